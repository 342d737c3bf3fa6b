// Package bmc is a virtual baseboard management controller: IPMI 2.0 over RMCP+ and, at the same time, the in-band
// system interface of a QEMU machine, both on go-ipmi's server. Package bmc/redfish adds Redfish to the same
// controller.
//
// A BMC is wired to one Machine: its power, its ACPI button and its serial port. The controller keeps the boot flags;
// the machine takes them at each start, as firmware does in POST (TakeBoot), which uses up flags for the next boot
// only. The system GUID is the machine's UUID in SMBIOS byte order, what most controllers send.
//
// Faults make a controller that is silent, slow, busy, or takes an order and does nothing. They can be changed at any
// time.
package bmc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	ipmibmc "github.com/bougou/go-ipmi/pkg/bmc"
	"github.com/bougou/go-ipmi/pkg/server"
	"github.com/bougou/go-ipmi/pkg/types"
	"github.com/bougou/go-ipmi/pkg/vmproto"
	"github.com/google/uuid"
)

// Machine is the machine that the controller controls. Its methods may be called at any time, from several goroutines.
type Machine interface {
	// Wire is called once, before anything else, with the function by which the machine's firmware takes the boot
	// flags.
	Wire(takeBoot func() Boot)
	// On reports whether the machine runs.
	On() bool
	// Start turns it on and returns when it runs. Starting a running machine does nothing.
	Start() error
	// Stop takes its power away and returns when it is off.
	Stop() error
	// Reset restarts it hard, as one act: it is never seen as off.
	Reset() error
	// PressPower is the ACPI power button.
	PressPower() error
	// Console attaches to the serial port. A machine without one returns nil and no error.
	Console() (Console, error)
}

// Console is an attachment to the serial port.
type Console interface {
	// ReadAvailable copies what has come from the machine since the last call and never waits.
	ReadAvailable(p []byte) (int, error)
	Write(p []byte) (int, error)
	Close() error
}

// Device is a boot device.
type Device string

// Boot devices. Setup and CDROM are known to IPMI; a machine without them treats them as Default.
const (
	Default Device = ""
	PXE     Device = "pxe"
	Disk    Device = "disk"
	CDROM   Device = "cdrom"
	// USBCD is the drive of the controller's media where CDROM is the machine's own (OwnDrive).
	USBCD Device = "usb cdrom"
	Setup Device = "bios"
	// HTTP is the network by HTTP, for UEFI. IPMI knows it as PXE.
	HTTP Device = "http"
)

// Boot is the choice for one start.
type Boot struct {
	Device Device
	UEFI   bool // the EFI bit of the boot flags
	// Address of the image that HTTP loads; "" leaves it to DHCP.
	Address string
}

// Config describes a controller.
type Config struct {
	Name           string // for the log
	UUID           uuid.UUID
	User, Password string
	Machine        Machine
	// MAC, Prefix and Gateway are what the controller reports of its own network over the system interface. The address
	// itself, unless Prefix has one, is that of the socket.
	MAC     net.HardwareAddr
	Prefix  netip.Prefix
	Gateway netip.Addr
	// CipherSuites limits the RMCP+ suites; nil is 3 and 17.
	CipherSuites []int
	Log          *slog.Logger
}

// Faults are what can be wrong with a controller.
type Faults struct {
	Silent     bool          // no packet is answered
	Delay      time.Duration // each answer comes this much later
	Busy       bool          // power and boot commands are declined with C0h, node busy
	StayOff    bool          // power-on, cycle and reset are taken and not done
	StayOn     bool          // power-off and the soft one are taken and not done
	ForgetBoot bool          // boot flags are taken and not kept

	ForgetMedia bool // media are taken, shown as inserted, and in no drive
}

// BMC is a running controller.
type BMC struct {
	cfg     Config
	log     *slog.Logger
	state   *ipmibmc.BMC
	srv     *server.Server
	conn    *packetConn
	served  sync.WaitGroup
	inband  *vmproto.VMServer
	ctx     context.Context
	cancel  context.CancelFunc
	faults  atomic.Pointer[Faults]
	own     atomic.Bool // OwnDrive
	noUSB   atomic.Bool // NoUSBDrive
	starts  atomic.Int64
	flagsMu sync.Mutex
	flags   types.BootOptionParam_BootFlags
	uefi    bool   // the firmware's own boot mode, without flags
	http    bool   // PXE means HTTP
	address string // of Boot.Address

	restarts []string // also of flagsMu
}

// Start makes a controller that answers on conn until Close. It takes conn over. Without conn it has no IPMI over the
// network.
func Start(conn net.PacketConn, cfg Config) (*BMC, error) {
	if cfg.Machine == nil {
		return nil, errors.New("start controller: no machine")
	}
	b := &BMC{cfg: cfg, log: cfg.Log}
	b.log = cmp.Or(b.log, slog.New(slog.DiscardHandler))
	b.log = b.log.With("bmc", cfg.Name)
	b.faults.Store(&Faults{})
	b.ctx, b.cancel = context.WithCancel(context.Background())

	b.state = ipmibmc.New(ipmibmc.DeviceInfo{
		DeviceID: 0x20, DeviceRevision: 1, FirmwareMajor: 1, IPMIVersion: 0x20,
		// as QEMU's own simulated controller has it, so that guest drivers know what to expect
		ManufacturerID:          0x0157,
		AdditionalDeviceSupport: 0x80, // chassis device
	}, smbiosOrder(cfg.UUID), hardware{b})
	user, err := b.state.Users.Add(2, cfg.User)
	if err != nil {
		return nil, fmt.Errorf("add user %q: %w", cfg.User, err)
	}
	user.SetPassword([]byte(cfg.Password))
	user.Enabled = true
	user.ChannelAccess[1] = ipmibmc.UserChannelAccess{MaxPrivilege: ipmibmc.PrivilegeLevelAdministrator, Enabled: true}
	for _, id := range cfg.CipherSuites {
		if !ipmibmc.SupportedCipherSuite(types.CipherSuiteID(id)) {
			return nil, fmt.Errorf("cipher suite %d: the server doesn't have it", id)
		}
	}
	if len(cfg.CipherSuites) > 0 {
		var ids []types.CipherSuiteID
		for _, id := range cfg.CipherSuites {
			ids = append(ids, types.CipherSuiteID(id))
		}
		b.state.SetCipherSuites(ids)
	}

	cfg.Machine.Wire(b.TakeBoot)
	reg := b.registry()
	b.inband = vmproto.NewVMServer(b.state, vmproto.WithVMHandlerRegistry(reg))
	if conn == nil {
		return b, nil
	}
	b.conn = &packetConn{PacketConn: conn, bmc: b}
	b.srv = server.NewServer(b.state, b.conn, server.WithHandlerRegistry(reg))
	b.served.Go(func() {
		if err := b.srv.Serve(b.ctx); err != nil && b.ctx.Err() == nil {
			b.log.Error("controller stopped", "err", err)
		}
	})
	return b, nil
}

// Addr is where the controller listens for IPMI; the zero value when it does not.
func (b *BMC) Addr() netip.AddrPort {
	if b.conn == nil {
		return netip.AddrPort{}
	}
	return b.conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// SetFaults replaces the faults; the zero value heals the controller.
func (b *BMC) SetFaults(f Faults) { b.faults.Store(&f) }

// Faults returns what is wrong with the controller.
func (b *BMC) Faults() Faults { return *b.faults.Load() }

// UUID is the machine's.
func (b *BMC) UUID() uuid.UUID { return b.cfg.UUID }

// ServeSystemInterface answers the machine's in-band interface (QEMU's ipmi-bmc-extern) until the controller is closed:
// one connection for each run of QEMU. It closes ln.
func (b *BMC) ServeSystemInterface(ln net.Listener) error { return b.inband.Serve(b.ctx, ln) }

// Close stops the controller. The machine stays as it is.
func (b *BMC) Close() error {
	b.cancel()
	if b.conn == nil {
		return nil
	}
	err := b.srv.Close()
	b.served.Wait()
	b.conn.sending.Wait()
	return err
}

// Starts counts the starts of the machine.
func (b *BMC) Starts() int64 { return b.starts.Load() }

// OwnDrive makes CDROM the machine's own drive, which it does not have: it then starts as without a choice.
func (b *BMC) OwnDrive() { b.own.Store(true) }

// NoUSBDrive makes USBCD a device that starts nothing.
func (b *BMC) NoUSBDrive() { b.noUSB.Store(true) }

// TakeBoot does as firmware does in POST: it reads the boot flags and clears those that are for one boot only. It never
// returns USBCD: CDROM is the drive of the controller's media.
func (b *BMC) TakeBoot() Boot {
	b.starts.Add(1)
	b.flagsMu.Lock()
	defer b.flagsMu.Unlock()
	boot := b.bootLocked()
	switch {
	case boot.Device == USBCD && b.noUSB.Load():
		boot.Device = Default
	case boot.Device == USBCD:
		boot.Device = CDROM
	case boot.Device == CDROM && b.own.Load():
		boot.Device = Default
	}
	if b.flags.BootFlagsValid && !b.flags.Persist {
		b.flags = types.BootOptionParam_BootFlags{}
	}
	return boot
}

// SetBoot chooses the device of the next start, or of all; Default leaves it to the firmware. The mode stays until it
// is changed, as a setting of the firmware does.
func (b *BMC) SetBoot(boot Boot, persistent bool) {
	if b.faults.Load().ForgetBoot {
		return
	}
	b.flagsMu.Lock()
	defer b.flagsMu.Unlock()
	b.uefi = boot.UEFI
	b.http, b.address = boot.Device == HTTP, boot.Address
	b.flags = types.BootOptionParam_BootFlags{}
	if boot.Device != Default {
		b.flags = types.BootOptionParam_BootFlags{BootFlagsValid: true, Persist: persistent,
			BIOSBootType: types.BIOSBootType(boot.UEFI), BootDeviceSelector: selectors[boot.Device]}
	}
	b.log.Debug("boot choice", "boot", boot, "persistent", persistent)
}

var selectors = map[Device]types.BootDeviceSelector{PXE: types.BootDeviceSelectorForcePXE,
	Disk: types.BootDeviceSelectorForceHardDrive, CDROM: types.BootDeviceSelectorForceCDROM,
	USBCD: types.BootDeviceSelectorForceRemoteCDROM, HTTP: types.BootDeviceSelectorForcePXE,
	Setup: types.BootDeviceSelectorForceBIOSSetup}

// Boot returns the device that the next start boots from, and whether later starts will too.
func (b *BMC) Boot() (_ Boot, persistent bool) {
	b.flagsMu.Lock()
	defer b.flagsMu.Unlock()
	return b.bootLocked(), b.flags.BootFlagsValid && b.flags.Persist
}

func (b *BMC) bootLocked() Boot {
	if !b.flags.BootFlagsValid {
		return Boot{UEFI: b.uefi, Address: b.address}
	}
	boot := Boot{UEFI: bool(b.flags.BIOSBootType), Address: b.address}
	switch b.flags.BootDeviceSelector {
	case types.BootDeviceSelectorForcePXE:
		boot.Device = PXE
		if b.http {
			boot.Device = HTTP
		}
	case types.BootDeviceSelectorForceHardDrive, types.BootDeviceSelectorForceHardDriveSafe:
		boot.Device = Disk
	case types.BootDeviceSelectorForceCDROM:
		boot.Device = CDROM
	case types.BootDeviceSelectorForceRemoteCDROM:
		boot.Device = USBCD
	case types.BootDeviceSelectorForceBIOSSetup:
		boot.Device = Setup
	}
	return boot
}

// smbiosOrder stores the first three fields of the UUID least significant byte first, as SMBIOS 2.6 and later do.
func smbiosOrder(u uuid.UUID) [16]byte {
	return [16]byte{u[3], u[2], u[1], u[0], u[5], u[4], u[7], u[6], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
		u[15]}
}
