package redfish

import (
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/dell"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/events"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/vmedia"
)

// Behaviour is something that some controllers do otherwise than the standard says, or otherwise than most.
type Behaviour string

// Behaviours. Who knows of them from which source is in conductor/hardware/redfish/quirk.
const (
	// NoSessionService has only Basic authentication.
	NoSessionService Behaviour = "no session service"
	// SameStateConflict declines to turn off a machine that is off, and on one that is on, with 409.
	SameStateConflict Behaviour = "conflict in the same state"
	// ConflictAfterOff declines to turn on for a second after the machine went off, with 409.
	ConflictAfterOff Behaviour = "conflict just after off"
	// NoBootMode has no BootSourceOverrideMode and declines it.
	NoBootMode Behaviour = "no boot mode"
	// NoneTargetRefused declines the boot target None.
	NoneTargetRefused Behaviour = "boot target None refused"
	// DeviceResetsMode sets the boot mode to Legacy with each change of the device that names no mode.
	DeviceResetsMode Behaviour = "device resets boot mode"
	// WholeBoot declines a boot change that lacks target, enabled or mode.
	WholeBoot Behaviour = "boot settings only as a whole"
	// OnceOnly declines Continuous.
	OnceOnly Behaviour = "boot device only once"
	// ClosesAfterAnswer closes a connection on which a second request arrives, unanswered.
	ClosesAfterAnswer Behaviour = "closes after each answer"
	// WeakETag gives weak ETags and accepts only strong ones.
	WeakETag Behaviour = "weak ETags"
	// NoIfMatch declines every If-Match.
	NoIfMatch Behaviour = "no If-Match"
	// EmptyETag gives ETags that are empty and declines every If-Match, an empty one, too.
	EmptyETag Behaviour = "empty ETags"
	// NeedsIfMatch declines a change without If-Match, with 428.
	NeedsIfMatch Behaviour = "If-Match required"
	// HTML answers everything with a page.
	HTML Behaviour = "HTML"
	// NoManagedBy does not say which manager a system has.
	NoManagedBy Behaviour = "no ManagedBy"
	// TwoSystems has a second system, which is no machine of the lab.
	TwoSystems Behaviour = "two systems"
	// DropsSessions forgets a session after each three requests.
	DropsSessions Behaviour = "drops sessions"
	// Endless answers the system with more bytes than anyone wants.
	Endless Behaviour = "endless answers"
	// LeadsElsewhere has links to other hosts.
	LeadsElsewhere Behaviour = "links to other hosts"
	// ForgetsBIOS takes changes and resets of BIOS settings, and does not make them.
	ForgetsBIOS Behaviour = "BIOS settings are forgotten"
	// NoIdentity declines to send the registry of BIOS settings without compression, with 406.
	NoIdentity Behaviour = "no registry without compression"
	// NoBIOSRegistry shows no registry of the BIOS settings.
	NoBIOSRegistry Behaviour = "no registry of BIOS settings"
	// DeviceIsOnce makes a boot device that comes without BootSourceOverrideEnabled one for one boot.
	DeviceIsOnce Behaviour = "a device is for once"
	// NoPXE has no boot device Pxe.
	NoPXE Behaviour = "no boot device Pxe"
	// RestartHangs takes ForceRestart and PowerCycle, and the machine does not start again.
	RestartHangs Behaviour = "restarts hang"
	// FutureBoot takes a choice of the boot device at the resource of settings only, and shows it there.
	FutureBoot Behaviour = "boot settings at another resource"
	// PhantomSystem has a second system that can't be booted.
	PhantomSystem Behaviour = "a system that can't be booted"
	// InPOST declines the first changes, because the machine is in POST.
	InPOST Behaviour = "in POST"
	// NoEthernet shows no network cards.
	NoEthernet Behaviour = "no network cards"
	// RepeatsPasswords repeats user names and passwords in its errors.
	RepeatsPasswords Behaviour = "repeats passwords"
)

// Personality is the shape of a controller's tree and its behaviour, as data.
type Personality struct {
	Name string
	// Vendor and Product are of the service root; "" leaves them out, as older controllers do.
	Vendor, Product string
	// Manufacturer and Model are the machine's.
	Manufacturer, Model string
	// ManagerModel and Firmware are the controller's.
	ManagerModel, Firmware string
	SystemID, ManagerID    string
	// Resets are the power actions; none lists none and takes all.
	Resets []string
	// Sessions is how many there may be at a time; 0 is 16.
	Sessions int
	// Latency is how much later each answer comes.
	Latency    time.Duration
	Behaviours []Behaviour
}

// Has reports whether the controller behaves so.
func (p Personality) Has(b Behaviour) bool { return slices.Contains(p.Behaviours, b) }

// allResets are those of most controllers.
var allResets = []string{"On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "Nmi", "PowerCycle",
	"PushPowerButton"}

// personalities is the table. Names and identities are those that controllers report; the generic one keeps to the
// standard.
var personalities = []Personality{
	{Name: "generic", Vendor: "Ingot", Product: "Lab", Manufacturer: "QEMU", Model: "Standard PC",
		ManagerModel: "Lab BMC", Firmware: "1.0", SystemID: "1", ManagerID: "1", Resets: allResets},
	{Name: "dell-idrac9", Vendor: "Dell", Product: "Integrated Dell Remote Access Controller",
		Manufacturer: "Dell Inc.", Model: "PowerEdge R640", ManagerModel: "14G Monolithic", Firmware: "7.00.00.171",
		SystemID: "System.Embedded.1", ManagerID: "iDRAC.Embedded.1", Resets: allResets, Sessions: 8,
		Behaviours: []Behaviour{SameStateConflict, AccountSlots, TasksVanish, OddTimes, vmedia.StaysInserted,
			vmedia.PlainURL}},
	{Name: "dell-idrac9-5", Vendor: "Dell", Product: "Integrated Dell Remote Access Controller",
		Manufacturer: "Dell Inc.", Model: "PowerEdge R640", ManagerModel: "14G Monolithic", Firmware: "5.10.50.00",
		SystemID: "System.Embedded.1", ManagerID: "iDRAC.Embedded.1", Resets: allResets, Sessions: 8,
		Behaviours: []Behaviour{SameStateConflict, AccountSlots, TasksVanish, OddTimes, vmedia.StaysInserted,
			vmedia.PlainURL, vmedia.CDIsOwnDrive}},
	{Name: "dell-idrac10", Vendor: "Dell", Product: "Integrated Dell Remote Access Controller",
		Manufacturer: "Dell Inc.", Model: "PowerEdge R670", ManagerModel: "17G Monolithic", Firmware: "1.20.50.00",
		SystemID: "System.Embedded.1", ManagerID: "iDRAC.Embedded.1", Resets: allResets, Sessions: 8,
		Behaviours: []Behaviour{SameStateConflict, AccountSlots, ConflictAfterOff, NoIfMatch, TasksVanish, OddTimes,
			vmedia.StaysInserted, vmedia.PlainURL, dell.ImportTargetIsList, dell.NoDellTree}},
	{Name: "hpe-gen9", Vendor: "HPE", Product: "ProLiant DL380 Gen9", Manufacturer: "HPE",
		Model: "ProLiant DL380 Gen9", ManagerModel: "iLO 4", Firmware: "iLO 4 v2.82", SystemID: "1", ManagerID: "1",
		Resets: []string{"On", "ForceOff", "ForceRestart", "Nmi", "PushPowerButton"},
		Behaviours: []Behaviour{NoBootMode, NoneTargetRefused, ClosesAfterAnswer, vmedia.PlainURL,
			events.NoRetryPolicy}},
	{Name: "hpe-ilo5", Vendor: "HPE", Product: "ProLiant DL380 Gen10", Manufacturer: "HPE",
		Model: "ProLiant DL380 Gen10", ManagerModel: "iLO 5", Firmware: "iLO 5 v3.02", SystemID: "1", ManagerID: "1",
		Resets: []string{"On", "ForceOff", "GracefulShutdown", "ForceRestart", "Nmi", "PushPowerButton",
			"GracefulRestart"}, Behaviours: []Behaviour{NoneTargetRefused, ClosesAfterAnswer, DoneBeforeStart,
			vmedia.EjectWantsBody, vmedia.PlainURL, events.NoRetryPolicy}},
	{Name: "hpe-ilo6", Vendor: "HPE", Product: "ProLiant DL380 Gen11", Manufacturer: "HPE",
		Model: "ProLiant DL380 Gen11", ManagerModel: "iLO 6", Firmware: "iLO 6 v1.58", SystemID: "1", ManagerID: "1",
		Resets: []string{"On", "ForceOff", "GracefulShutdown", "ForceRestart", "Nmi", "PushPowerButton",
			"GracefulRestart"}, Behaviours: []Behaviour{NoneTargetRefused, ClosesAfterAnswer, DoneBeforeStart,
			vmedia.EjectWantsBody, vmedia.PlainURL, events.NoRetryPolicy}},
	{Name: "lenovo-xcc", Vendor: "Lenovo", Manufacturer: "Lenovo", Model: "ThinkSystem SR650",
		ManagerModel: "Lenovo XClarity Controller", Firmware: "CDI3A4A 9.40", SystemID: "1", ManagerID: "1",
		Resets:     []string{"On", "Nmi", "GracefulShutdown", "GracefulRestart", "ForceOn", "ForceOff", "ForceRestart"},
		Behaviours: []Behaviour{OnceOnly, MonitorOnce, PrefixedVersions, vmedia.WantsInserted, vmedia.PlainURL}},
	{Name: "supermicro", Vendor: "Supermicro", Manufacturer: "Supermicro", Model: "SYS-1029U-TR4",
		ManagerModel: "ASPEED", Firmware: "1.73.14", SystemID: "1", ManagerID: "1",
		Resets: []string{"On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "Nmi", "ForceOn"},
		Behaviours: []Behaviour{DeviceResetsMode, DeviceIsOnce, vmedia.MediaBootAsUSBCD, vmedia.NoInserted,
			vmedia.NameStays, vmedia.PlainURL}},
	{Name: "ami", Vendor: "AMI", Product: "AMI Redfish Server", Manufacturer: "ASRockRack", Model: "X570D4U",
		ManagerModel: "AST2500", Firmware: "1.30.0", SystemID: "Self", ManagerID: "Self",
		Resets:     []string{"On", "ForceOff", "GracefulShutdown", "ForceRestart"},
		Behaviours: []Behaviour{WholeBoot, FutureBoot, WeakETag, NeedsIfMatch}},
	{Name: "openbmc", Manufacturer: "OpenBMC", Model: "romulus", ManagerModel: "OpenBmc", Firmware: "2.18.0",
		SystemID: "system", ManagerID: "bmc",
		Resets: []string{"On", "ForceOff", "ForceOn", "ForceRestart", "GracefulRestart", "GracefulShutdown",
			"PowerCycle", "Nmi"}},
}

// Personalities are the names, the generic one first.
func Personalities() (names []string) {
	for _, p := range personalities {
		names = append(names, p.Name)
	}
	return names
}

// ByName returns a personality; ok is false if there is none of that name. "" is the generic one.
func ByName(name string) (p Personality, ok bool) {
	if name == "" {
		name = personalities[0].Name
	}
	i := slices.IndexFunc(personalities, func(p Personality) bool { return strings.EqualFold(p.Name, name) })
	if i < 0 {
		return Personality{}, false
	}
	return personalities[i], true
}
