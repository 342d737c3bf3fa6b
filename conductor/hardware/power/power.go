// Package power is the contract of power drivers: the operations that turn a machine on and off.
//
// A driver is opened per node from its driver_info and closed after use. SetPower, SetBootDevice and the rest only send
// a request; the engine polls Power until the machine is in the state it wants, because controllers lie. Every call
// ends when its context does. Errors that the engine or an operator must distinguish are of type *Error.
package power

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
)

// State is the power state of a machine, in Ironic's words.
type State string

// Power states. The API shows Unknown as null.
const (
	On      State = "power on"
	Off     State = "power off"
	Failed  State = "error"
	Unknown State = ""
)

// Action is an action on a machine's power.
type Action string

// Power actions. SoftOff asks the operating system (ACPI); Cycle and Reset act on a machine that is on.
const (
	TurnOn  Action = "on"
	TurnOff Action = "off"
	SoftOff Action = "soft off"
	Cycle   Action = "cycle"
	Reset   Action = "reset"
)

// Device is a boot device, in Ironic's words.
type Device string

// Boot devices. None leaves the choice to the firmware.
const (
	BootPXE Device = "pxe"
	// BootHTTP is the network by HTTP, which UEFI has.
	BootHTTP  Device = "uefihttp"
	BootDisk  Device = "disk"
	BootCDROM Device = "cdrom"
	BootBIOS  Device = "bios"
	BootSafe  Device = "safe"
	BootNone  Device = "none"
)

// Boot is a boot choice. Mode is "bios", "uefi", or "" for whatever the machine is set to.
type Boot struct {
	Device     Device
	Persistent bool
	Mode       string
	// Address of the image that BootHTTP loads; "" leaves it to DHCP.
	Address string
}

// Driver acts on one machine. It is not safe for concurrent use unless it says so; the engine serialises by Key.
type Driver interface {
	// Power returns the power state.
	Power(ctx context.Context) (State, error)
	// SetPower requests an action and returns when the controller accepted it, not when it is done.
	SetPower(ctx context.Context, a Action) error
	// SetBoot sets the machine's boot device for the next start (or from now on, if persistent).
	SetBoot(ctx context.Context, b Boot) error
	// Boot reads the choice back.
	Boot(ctx context.Context) (Boot, error)
	// Devices lists what SetBoot accepts.
	Devices() []Device
	// SystemGUIDs returns the identity by which the machine may show up in DHCP option 97, in every byte order that
	// firmware is known to use, lower case with dashes. Empty when the controller has none to tell.
	SystemGUIDs(ctx context.Context) ([]string, error)
	// Key names the controller: two nodes with the same key are never worked on at once.
	Key() string
	// Close ends sessions.
	Close() error
}

// RowTeller is a Driver that treats controllers by a table of what they do otherwise than the standard.
type RowTeller interface {
	// Rows are the names of the table's rows that applied at the last call; nil before the first.
	Rows() []string
}

// PasswordDriver is a Driver that can set the password of the account that it uses.
type PasswordDriver interface {
	SetPassword(ctx context.Context, password string) error
}

// RowsOf are the rows of a driver; nil if it has none.
func RowsOf(d Driver) []string {
	if t, ok := As[RowTeller](d); ok {
		return t.Rows()
	}
	return nil
}

// VendorTeller is a Driver that knows the machine's maker.
type VendorTeller interface {
	// Vendor is the maker's name in the words of the controller; "" when it does not say.
	Vendor(ctx context.Context) (string, error)
}

// ConsoleWatcher is a Driver that can read the machine's serial console.
type ConsoleWatcher interface {
	// WatchConsole writes the console's output from now on to w, until ctx ends, the console breaks off, or w fails; it
	// returns the error of that event.
	WatchConsole(ctx context.Context, w io.Writer) error
}

// Console is a Driver by which people can work at the machine's serial console.
type Console interface {
	// Console writes the console's output from now on to out, and sends what it reads from in, until ctx ends, the
	// console breaks off, or one of the two fails; it returns the error of that event. Reads of in end with ctx.
	Console(ctx context.Context, in io.Reader, out io.Writer) error
}

// Commander is a Driver whose controller takes the rest of IPMI's commands. What was sent and not answered may have
// been done; it is not sent in a second session.
type Commander interface {
	// InjectNMI sends a non-maskable interrupt to a machine that is on.
	InjectNMI(ctx context.Context) error
	// ResetController restarts the controller; a warm restart leaves more as it is, and what that is is the
	// controller's. It ends when the controller took it, or does not answer it any more.
	ResetController(ctx context.Context, warm bool) error
	// Raw sends a command that the caller answers for; an answer with a completion code other than 0 is an error.
	Raw(ctx context.Context, netFn, command byte, data []byte) error
}

// BootImage is where a controller reads an image.
type BootImage struct {
	Address string
	// Authority is the certificate (PEM) of the authority that signed that of the image's server; "": it is not known.
	Authority string
	// Plain is the same as Address without TLS, for firmware, which knows no such authority.
	Plain string
}

// MediaDriver is a Driver whose controller has virtual media.
type MediaDriver interface {
	// InsertMedia makes an image the disc that BootCDROM boots, in place of what is there. It is called again when in
	// doubt. Checked says that the controller reads it over TLS and checks the server's certificate.
	InsertMedia(ctx context.Context, image BootImage) (checked bool, err error)
	// EjectMedia takes out all discs; there need be none.
	EjectMedia(ctx context.Context) error
}

// Info is a node's driver_info as the API holds it, secrets in the clear.
type Info map[string]any

// Property describes one key of driver_info, for GET /v1/drivers/{name}/properties.
type Property struct {
	Name, Description string
	Required          bool
}

// Opener makes a driver from driver_info. It checks info (errors of kind Config) and does not touch the network.
type Opener func(info Info, log *slog.Logger) (Driver, error)

// Kind sorts the errors of a controller by the action that they need.
type Kind string

// Kinds of error.
const (
	Config      Kind = "configuration"  // driver_info is incomplete or wrong: a person must change it
	Auth        Kind = "authentication" // the controller answers but refuses user name or password
	Unreachable Kind = "unreachable"    // no answer
	Refused     Kind = "refused"        // the controller took the request and said no
	Unsupported Kind = "unsupported"    // the driver or the controller cannot do this
	Busy        Kind = "busy"           // try again shortly
)

// Error is the error of a driver. Its text is a sentence for an operator.
type Error struct {
	Kind Kind
	Op   string // the operation: "read power state"
	Addr string // the controller
	Err  error  // cause; may be nil
	Hint string // what to do
}

func (e *Error) Error() string {
	s := e.Op
	if e.Addr != "" {
		s += " at " + e.Addr
	}
	if e.Err != nil {
		s += ": " + strings.ReplaceAll(e.Err.Error(), "\n", "; ") // those of several faults at once
	}
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the first *Error in err's chain, or "" if there is none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}

// Retryable reports whether the same call may succeed later without any change by an operator.
func Retryable(err error) bool {
	return slices.Contains([]Kind{Unreachable, Busy}, KindOf(err))
}

// GUIDs renders a system GUID in the orders that firmware uses: unchanged (RFC 4122), and with the first three fields
// least significant byte first (SMBIOS, UEFI and so DHCP option 97 on PCs). All zeros and all ones mean that none was
// set.
func GUIDs(b [16]byte) []string {
	if b == ([16]byte{}) || b == [16]byte([]byte(strings.Repeat("\xff", 16))) {
		return nil
	}
	swapped := [16]byte{b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
		b[15]}
	text := func(v [16]byte) string { return fmt.Sprintf("%x-%x-%x-%x-%x", v[:4], v[4:6], v[6:8], v[8:10], v[10:]) }
	if swapped == b {
		return []string{text(b)}
	}
	return []string{text(b), text(swapped)}
}
