package compat

import (
	"regexp"
	"slices"
	"testing"

	"github.com/ingot-metal/ingot/conductor/hardware/redfish/quirk"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/dell"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/vmedia"
)

// meeting is a behaviour of controllers that Ironic or sushy knows.
type meeting struct {
	// word is the script's for it.
	word string
	// at reports whether a controller of the lab behaves so.
	at func(p service.Personality) bool
	// rows are those of Ingot's table that are for it; its client meets others without a row.
	rows []string
}

// has is for controllers with one of some behaviours.
func has(any ...service.Behaviour) func(service.Personality) bool {
	return func(p service.Personality) bool { return slices.ContainsFunc(any, p.Has) }
}

// named is for personalities whose shape, which is no behaviour, is so.
func named(names ...string) func(service.Personality) bool {
	return func(p service.Personality) bool { return slices.Contains(names, p.Name) }
}

func both(a, b func(service.Personality) bool) func(service.Personality) bool {
	return func(p service.Personality) bool { return a(p) && b(p) }
}

func not(a func(service.Personality) bool) func(service.Personality) bool {
	return func(p service.Personality) bool { return !a(p) }
}

// isDell is for Dell's controllers.
func isDell(p service.Personality) bool { return p.Vendor == "Dell" }

// sushyMeets has what the test drives, in the order of the script's files. Where Debian's version of sushy is too old
// to know a behaviour, the script makes the call that newer versions or Ironic make; each of these says so there.
var sushyMeets = []meeting{
	// lab.py: power, shapes, ETags
	{"conflict", has(service.ConflictAfterOff), []string{"idrac10-on-after-off"}},
	{"no_managed_by", has(service.NoManagedBy), nil},
	{"no_ethernet", has(service.NoEthernet), nil},
	{"phantom", has(service.PhantomSystem), nil},
	{"if_match_required", has(service.NeedsIfMatch), nil},
	{"weak_etag_refused", has(service.WeakETag), nil},
	{"etag_refused", has(service.NoIfMatch), nil},
	{"empty_etag", has(service.EmptyETag), nil},
	// boot.py
	{"in_post", has(service.InPOST), nil},
	{"once_only", has(service.OnceOnly), nil},
	{"no_boot_mode", has(service.NoBootMode), []string{"hpe-gen9-boot-mode"}},
	{"whole_boot", has(service.WholeBoot), []string{"ami-whole-boot", "asrock-whole-boot"}},
	{"future_boot", has(service.FutureBoot), []string{"ami-future-boot", "asrock-future-boot"}},
	{"enabled_lost", has(service.DeviceIsOnce), nil},
	{"mode_lost", both(has(service.DeviceResetsMode), not(has(service.NoBootMode))), []string{"supermicro-boot-mode"}},
	{"usb_cd", has(vmedia.MediaBootAsUSBCD), []string{"supermicro-usb-cd"}},
	{"cd_beside_usb_cd", has(vmedia.ListsUSBCD), nil},
	// media.py
	{"drives_of_system", named("generic", "dell-idrac10"), nil},
	{"dvd_only", has(vmedia.OnlyDVD), nil},
	{"slot_refuses", has(vmedia.InternalSlots), nil},
	{"slot_without_action", named("lenovo-xcc", "openbmc"), nil},
	{"media_by_patch", named("hpe-gen9", "lenovo-xcc"), nil},
	{"insert_again", has(vmedia.FailsFirst), []string{"dell-insert-again"}},
	{"inserted_refused", has(vmedia.NoInserted), nil},
	{"wants_protocol", has(vmedia.WantsProtocol), nil},
	{"wants_method", has(vmedia.WantsMethod), nil},
	{"wants_credentials", has(vmedia.WantsCredentials), nil},
	{"query_refused", has(vmedia.PlainURL), nil},
	{"ampersand_refused", has(vmedia.PlainURL), nil},
	{"no_ipv6", has(vmedia.NoIPv6), nil},
	{"only_slot_1", named("dell-idrac10"), nil},
	{"eject_body", has(vmedia.EjectWantsBody), nil},
	{"stays_inserted", has(vmedia.StaysInserted), nil},
	{"name_stays", has(vmedia.NameStays), nil},
	// the machine's start with the boot device Cd, which no client sees
	{"own_drive", has(vmedia.CDIsOwnDrive), []string{"idrac9-virtual-cd"}},
	// dell.py
	{"import_wants_list", has(dell.ImportTargetIsList), nil},
	{"no_dell_tree", has(dell.NoDellTree), nil},
	{"not_ready_after_reset", isDell, nil},
	// work.py
	{"mode_is_job", has(service.ModeIsJob), nil},
	{"settings_are_job", isDell, nil},
	{"secure_boot_is_job", isDell, nil},
	{"pending_is_all", named("hpe-gen9", "hpe-ilo5", "hpe-ilo6", "lenovo-xcc"), nil},
	{"identity_refused", has(service.NoIdentity), nil},
	{"no_licence", has(service.SecureBootLicence), nil},
	{"no_update", named("hpe-gen9"), nil},
	{"not_ready", has(service.NotReady), nil},
	{"task_gone", has(service.TasksVanish), []string{"dell-task-gone"}},
	{"done_before_start", has(service.DoneBeforeStart), nil},
}

// sushyKnows matches the source of a row that is known from Ironic or sushy.
var sushyKnows = regexp.MustCompile(`\b(ironic|sushy)\b`)

// TestSushyMeetsEveryRow: each row of Ingot's table that is known from Ironic or sushy is driven by sushy at a
// controller of the lab that behaves so, and is one for that controller; each behaviour is at a controller, and each
// personality is driven.
func TestSushyMeetsEveryRow(t *testing.T) {
	rows := map[string]bool{}
	for _, m := range sushyMeets {
		at := 0
		for _, d := range sushyDrives {
			p := d.is(t)
			if !m.at(p) {
				continue
			}
			at++
			for _, r := range quirk.Match(quirk.Table, quirk.Identity{Vendor: p.Vendor, Product: p.Product,
				Manufacturer: p.Manufacturer, Model: p.Model, Manager: p.ManagerModel, Firmware: p.Firmware}) {
				if slices.Contains(m.rows, r.Name) {
					rows[r.Name] = true
				}
			}
		}
		if at == 0 {
			t.Errorf("no controller has %s", m.word)
		}
		for _, name := range m.rows {
			if !rows[name] {
				t.Errorf("no controller with %s is one of row %s", m.word, name)
			}
		}
	}
	for _, r := range quirk.Table {
		if sushyKnows.MatchString(r.Source) != rows[r.Name] {
			t.Errorf("row %s is known from %q; driven by sushy: %v", r.Name, r.Source, rows[r.Name])
		}
	}
	for _, name := range service.Personalities() {
		if !slices.ContainsFunc(sushyDrives, func(d driven) bool { return d.personality == name }) {
			t.Errorf("sushy does not drive %s", name)
		}
	}
}
