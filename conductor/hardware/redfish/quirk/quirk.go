// Package quirk is the one table of what controllers do otherwise than the Redfish standard says, as data.
//
// A row names the machines that it is for (vendor, product, firmware), what to do about it, where that is known from
// and the test in which a controller behaves so and a client without the row fails. Sources are other people's code and
// reports, not our own hardware. The client (package controller) identifies a machine once and asks its Set; nothing
// else decides by vendor.
package quirk

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Behaviour is an act of the client that some controllers need.
type Behaviour string

// Behaviours.
const (
	// SameStateIsDone takes 409 for done when the power is as it was asked for.
	SameStateIsDone Behaviour = "409 to a power action in the same state means done"
	// RetryOnAfterOff repeats a power-on that gets 409.
	RetryOnAfterOff Behaviour = "409 to On just after off: try again"
	// NoBootMode sends no boot mode.
	NoBootMode Behaviour = "there is no boot mode: do not send it"
	// KeepBootTarget clears the boot device without changing the target.
	KeepBootTarget Behaviour = "target None is refused: clear the boot device by Disabled alone"
	// ModeAfterDevice sends the boot mode once more after a change of the device.
	ModeAfterDevice Behaviour = "a change of the boot device resets the boot mode: set it again"
	// WholeBoot sends target, enabled and mode together.
	WholeBoot Behaviour = "a change of the boot settings must have all of them"
	// MediaIsUSBCD boots from virtual media by the target UsbCd.
	MediaIsUSBCD Behaviour = "the boot target of virtual media is UsbCd"
	// MediaByImport boots from virtual media by an import of a configuration.
	MediaByImport Behaviour = "the boot target Cd is the machine's own drive: choose the virtual one by ImportSystemConfiguration"
	// InsertAgain repeats the insertion of a medium that gets 5xx.
	InsertAgain Behaviour = "5xx to the insertion of a medium: try three times, three seconds apart"
	// NetworkIsHTTP boots from the network by the target UefiHttp.
	NetworkIsHTTP Behaviour = "there is no boot target Pxe: boot from the network by UefiHttp"
	// RestartByOffOn restarts by off, ten seconds and on.
	RestartByOffOn Behaviour = "a forced restart hangs: turn off, wait, turn on"
	// FutureBoot changes and reads the boot settings at the resource that the system names for its settings.
	FutureBoot Behaviour = "the boot settings are at the resource of the system's settings"
	// WholeAccount sends name, role and state of an account with its password.
	WholeAccount Behaviour = "accounts are slots, written as a whole: send name, role and state with a password"
	// CloseConnections uses each connection for one request.
	CloseConnections Behaviour = "connections end after each answer: use a new one each time"
	// PollTask reads tasks themselves, not their monitors.
	PollTask Behaviour = "reading the monitor of a task deletes it: read the task"
	// AskJobQueue asks Dell's queue of jobs about tasks that are gone.
	AskJobQueue Behaviour = "tasks are gone before they were read: ask the queue of jobs"
	// NoRetryPolicy subscribes to events without a DeliveryRetryPolicy.
	NoRetryPolicy Behaviour = "subscriptions have no DeliveryRetryPolicy: leave it out"
	// VersionPrefix compares firmware versions without what is before them.
	VersionPrefix Behaviour = "firmware versions begin with the name of a build: compare what follows it"
)

// Row is one line of the table.
type Row struct {
	Name string
	// Vendor is a word of the vendor's name, lower case.
	Vendor string
	// Product is a pattern for the product, the machine's or the controller's model; "" is any. Except is one for those
	// that the row is not for.
	Product, Except string
	// From and Before bound the controller's firmware: From <= version < Before; "" is no bound. Firmware whose version
	// is not known is in no row with bounds.
	From, Before string
	Does         Behaviour
	// Source says where this is known from.
	Source string
	// Test names the test in which a controller behaves so.
	Test string
}

// test is that of all rows; each row is a case of it by its name.
const test = "conductor/hardware/redfish.TestRows/"

// idrac10 is in the model of an iDRAC10, which names the generation of its machine: firmware 2 and later is that of
// older ones, too.
const idrac10 = `\b(1[7-9]|[2-9][0-9])G\b`

// Table is the table.
var Table = []Row{
	{Name: "dell-same-state", Vendor: "dell", Does: SameStateIsDone,
		Source: "libredfish: PowerControl of Dell", Test: test + "dell-same-state"},
	{Name: "idrac9-virtual-cd", Vendor: "dell", Except: idrac10, Before: "6", Does: MediaByImport,
		Source: "ironic and sushy: set_virtual_boot_device of iDRAC before 6.00", Test: test + "idrac9-virtual-cd"},
	{Name: "dell-account-slots", Vendor: "dell", Does: WholeAccount,
		Source: "nv-redfish; ironcore-dev/metal-operator", Test: test + "dell-account-slots"},
	{Name: "idrac10-on-after-off", Vendor: "dell", Product: idrac10, Does: RetryOnAfterOff,
		Source: "ironic: power of iDRAC10, known by the generation in its model", Test: test + "idrac10-on-after-off"},
	{Name: "hpe-gen9-boot-mode", Vendor: "hpe", Product: `Gen9\b`, Does: NoBootMode,
		Source: "sushy: BootSourceOverrideMode of HPE Gen9", Test: test + "hpe-gen9-boot-mode"},
	{Name: "hpe-target-none", Vendor: "hpe", Does: KeepBootTarget,
		Source: "ironcore-dev/metal-operator#998", Test: test + "hpe-target-none"},
	{Name: "hpe-connections", Vendor: "hpe", Before: "7", Does: CloseConnections,
		Source: "nv-redfish: iLO before 7", Test: test + "hpe-connections"},
	{Name: "hpe-retry-policy", Vendor: "hpe", Does: NoRetryPolicy,
		Source: "ironcore-dev/metal-operator: subscriptions of iLO", Test: test + "hpe-retry-policy"},
	{Name: "supermicro-boot-mode", Vendor: "supermicro", Does: ModeAfterDevice,
		Source: "ironic: sync of the boot mode after set_boot_device", Test: test + "supermicro-boot-mode"},
	{Name: "supermicro-usb-cd", Vendor: "supermicro", Except: `ARS-111GL-NHR`, Does: MediaIsUSBCD,
		Source: "ironic: boot device of virtual media on Supermicro", Test: test + "supermicro-usb-cd"},
	{Name: "supermicro-x10-boot-mode", Vendor: "supermicro", Product: `\bX10`, Does: NoBootMode,
		Source: "ironcore-dev/metal-operator#982", Test: test + "supermicro-x10-boot-mode"},
	{Name: "dell-insert-again", Vendor: "dell", Does: InsertAgain,
		Source: "ironic: retries of the insertion on Dell", Test: test + "dell-insert-again"},
	{Name: "dell-xe9680-http", Vendor: "dell", Product: `XE9680`, Does: NetworkIsHTTP,
		Source: "libredfish: boot order of PowerEdge XE9680", Test: test + "dell-xe9680-http"},
	{Name: "lenovo-restart", Vendor: "lenovo", Product: `SR(675 V3|650 V4)`, Does: RestartByOffOn,
		Source: "libredfish, nv-redfish: ForceRestart of SR675 V3 and SR650 V4", Test: test + "lenovo-restart"},
	{Name: "ami-future-boot", Vendor: "ami", Does: FutureBoot,
		Source: "sushy: AMI; ironcore-dev/metal-operator#188", Test: test + "ami-future-boot"},
	{Name: "asrock-future-boot", Vendor: "asrockrack", Does: FutureBoot,
		Source: "sushy: ASRockRack", Test: test + "asrock-future-boot"},
	{Name: "ami-whole-boot", Vendor: "ami", Does: WholeBoot,
		Source: "sushy: AMI; ironcore-dev/metal-operator#188", Test: test + "ami-whole-boot"},
	{Name: "asrock-whole-boot", Vendor: "asrockrack", Does: WholeBoot,
		Source: "sushy: ASRockRack", Test: test + "asrock-whole-boot"},
	{Name: "dell-task-gone", Vendor: "dell", Does: AskJobQueue,
		Source: "ironic: drac check_scheduled_idrac_job; nv-redfish", Test: test + "dell-task-gone"},
	{Name: "xcc-monitor", Vendor: "lenovo", Does: PollTask,
		Source: "bmclib: Lenovo XCC", Test: test + "xcc-monitor"},
	{Name: "xcc-version-prefix", Vendor: "lenovo", Does: VersionPrefix,
		Source: "libredfish: firmware versions of Lenovo", Test: test + "xcc-version-prefix"},
}

// Identity has the names that a controller gives itself and its machine.
type Identity struct {
	// Vendor and Product are the service's, Manufacturer and Model the machine's, Manager and Firmware the
	// controller's.
	Vendor, Product, Manufacturer, Model, Manager, Firmware string
}

// Set is the rows that apply to a machine.
type Set []Row

// aliases are long names of vendors.
var aliases = strings.NewReplacer("hewlett packard enterprise", "hpe", "american megatrends", "ami",
	"super micro computer", "supermicro", ",", " ")

// Match returns the rows of a table for a machine.
func Match(table []Row, id Identity) Set {
	var set Set
	makers := strings.Fields(aliases.Replace(strings.ToLower(id.Vendor + " " + id.Manufacturer)))
	for _, r := range table {
		if slices.Contains(makers, r.Vendor) && fits(r, id) && within(r, id) {
			set = append(set, r)
		}
	}
	return set
}

func fits(r Row, id Identity) bool {
	is := func(pattern string) bool {
		re := regexp.MustCompile(pattern)
		return re.MatchString(id.Product) || re.MatchString(id.Model) || re.MatchString(id.Manager)
	}
	return (r.Product == "" || is(r.Product)) && (r.Except == "" || !is(r.Except))
}

func within(r Row, id Identity) bool {
	if r.From == "" && r.Before == "" {
		return true
	}
	v := version(id.Firmware)
	return len(v) > 0 && (r.From == "" || slices.Compare(v, version(r.From)) >= 0) &&
		(r.Before == "" || slices.Compare(v, version(r.Before)) < 0)
}

var numbers = regexp.MustCompile(`[0-9]+`)

// version are the numbers of a version, at most eight: 5, 3 and 2 of "iLO 5 v3.02".
func version(s string) (v []int) {
	for _, n := range numbers.FindAllString(s, 8) {
		i, err := strconv.Atoi(n)
		if err != nil {
			return nil
		}
		v = append(v, i)
	}
	return v
}

// Has reports whether a row of the set does so.
func (s Set) Has(b Behaviour) bool {
	return slices.ContainsFunc(s, func(r Row) bool { return r.Does == b })
}

// Names are the names of the rows.
func (s Set) Names() (names []string) {
	for _, r := range s {
		names = append(names, r.Name)
	}
	return names
}
