package redfish

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/tools/lab/bmc"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/vmedia"
)

type object = odata.Object

const chassisPath = odata.Root + "/Chassis/1"

func (s *Service) systemPath() string { return odata.Root + "/Systems/" + s.cfg.Personality.SystemID }
func (s *Service) managerPath() string {
	return odata.Root + "/Managers/" + s.cfg.Personality.ManagerID
}

// everything returns what is at a path, without a slash at its end; nil if there is nothing.
func (s *Service) everything(path string) object {
	o := s.resource(path)
	if o == nil {
		o = s.parts.Resource(path)
	}
	if o == nil {
		o = s.bios.Resource(path)
	}
	if o == nil {
		o = s.account(path)
	}
	if o == nil {
		o = s.tasks.Resource(path)
	}
	if o == nil {
		o = s.events.Resource(path)
	}
	if o == nil {
		o = s.dell.Resource(path)
	}
	if o == nil {
		o = s.raid.Resource(path)
	}
	if o == nil {
		o = s.standard(path)
	}
	if o == nil {
		o = s.firmware.Resource(path)
	}
	if o == nil {
		return nil
	}
	s.tasks.Extend(path, o)
	s.events.Extend(path, o)
	s.firmware.Extend(path, o)
	s.parts.Extend(path, o)
	s.bios.Extend(path, o)
	s.dell.Extend(path, o)
	s.raid.Extend(path, o)
	return s.turned(path, o)
}

// resource returns what is at a path, without machine parts and accounts; nil if there is nothing.
func (s *Service) resource(path string) object {
	p := s.cfg.Personality
	system, manager, chassis := s.systemPath(), s.managerPath(), chassisPath
	ok := object{"State": "Enabled", "Health": "OK"}
	switch path {
	case "/redfish":
		return object{"v1": odata.Root + "/"}
	case odata.Root:
		r := object{"@odata.id": odata.Root + "/", "@odata.type": "#ServiceRoot.v1_16_0.ServiceRoot", "Id": "RootService",
			"Name": "Root Service", "RedfishVersion": "1.18.0", "UUID": s.bmc.UUID().String(),
			"Systems": odata.Link(odata.Root + "/Systems"), "Managers": odata.Link(odata.Root + "/Managers"),
			"Chassis": odata.Link(odata.Root + "/Chassis"), "AccountService": odata.Link(accountService),
			"JsonSchemas": odata.Link(schemasPath), "Links": object{}}
		if p.Vendor != "" {
			r["Vendor"] = p.Vendor
		}
		if p.Product != "" {
			r["Product"] = p.Product
		}
		if !p.Has(NoSessionService) {
			r["SessionService"] = odata.Link(odata.Root + "/SessionService")
			r["Links"] = object{"Sessions": odata.Link(odata.Root + "/SessionService/Sessions")}
		}
		return r
	case odata.Root + "/Systems":
		members := []string{p.SystemID}
		if p.Has(TwoSystems) {
			members = append(members, "another")
		}
		if p.Has(PhantomSystem) {
			members = append(members, phantom)
		}
		c := odata.Collection(path, "ComputerSystemCollection", "Systems", members...)
		if p.Has(LeadsElsewhere) {
			c["Members"] = []object{odata.Link("@" + s.cfg.Elsewhere + odata.Root + "/Systems/1")}
		}
		return c
	case system:
		return s.system(system, manager, chassis)
	case odata.Root + "/Systems/" + phantom:
		return s.phantom(path)
	case system + futureBoot:
		return s.future(path)
	case system + "/EthernetInterfaces":
		return odata.Numbered(path, "EthernetInterfaceCollection", "Network cards", len(s.cfg.MACs))
	case system + "/SecureBoot":
		if !s.cfg.SecureBoot {
			return nil
		}
		return s.secureBootResource(path)
	case odata.Root + "/Managers":
		return odata.Collection(path, "ManagerCollection", "Managers", p.ManagerID)
	case manager:
		return s.drives.Link(s.showClock(object{"@odata.id": path, "@odata.type": "#Manager.v1_19_0.Manager",
			"Id": p.ManagerID, "Name": "Manager", "ManagerType": "BMC", "Model": p.ManagerModel,
			"FirmwareVersion": p.Firmware, "PowerState": "On", "Status": ok,
			"Links": object{"ManagerForServers": []object{odata.Link(system)},
				"ManagerForChassis": []object{odata.Link(chassis)}}}), path)
	case odata.Root + "/Chassis":
		return odata.Collection(path, "ChassisCollection", "Chassis", "1")
	case chassis:
		return object{"@odata.id": path, "@odata.type": "#Chassis.v1_25_0.Chassis", "Id": "1", "Name": "Chassis",
			"ChassisType": "RackMount", "Manufacturer": p.Manufacturer, "Model": p.Model, "Status": ok,
			"Links": object{"ComputerSystems": []object{odata.Link(system)},
				"ManagedBy": []object{odata.Link(manager)}}}
	case odata.Root + "/SessionService":
		if p.Has(NoSessionService) {
			return nil
		}
		return object{"@odata.id": path, "@odata.type": "#SessionService.v1_1_9.SessionService",
			"Id": "SessionService", "Name": "Session Service", "ServiceEnabled": true,
			"SessionTimeout": int(sessionIdle.Seconds()), "Sessions": odata.Link(path + "/Sessions"), "Status": ok}
	case odata.Root + "/SessionService/Sessions":
		if p.Has(NoSessionService) {
			return nil
		}
		ids := slices.Sorted(maps.Values(s.sessionIDs()))
		return odata.Collection(path, "SessionCollection", "Sessions", ids...)
	}
	if id, is := strings.CutPrefix(path, odata.Root+"/SessionService/Sessions/"); is {
		for _, known := range s.sessionIDs() {
			if known == id {
				return object{"@odata.id": path, "@odata.type": "#Session.v1_7_0.Session", "Id": id,
					"Name": "Session", "UserName": s.cfg.User}
			}
		}
	}
	if i, is := odata.Number(path, system+"/EthernetInterfaces", len(s.cfg.MACs)); is {
		mac := s.cfg.MACs[i-1]
		return object{"@odata.id": path, "@odata.type": "#EthernetInterface.v1_12_0.EthernetInterface",
			"Id": fmt.Sprint(i), "Name": "Network card", "MACAddress": mac, "PermanentMACAddress": mac,
			"InterfaceEnabled": true, "Status": ok}
	}
	return s.drives.Resource(path)
}

func (s *Service) system(path, manager, chassis string) object {
	p := s.cfg.Personality
	state := "Off"
	if s.bmc.On() {
		state = "On"
	}
	action := object{"target": path + "/Actions/ComputerSystem.Reset"}
	if len(p.Resets) > 0 {
		action["ResetType@Redfish.AllowableValues"] = p.Resets
	}
	o := object{"@odata.id": path, "@odata.type": "#ComputerSystem.v1_22_0.ComputerSystem", "Id": p.SystemID,
		"Name": "System", "SystemType": "Physical", "UUID": s.bmc.UUID().String(), "Manufacturer": p.Manufacturer,
		"Model": p.Model, "PowerState": state, "Boot": s.boot(),
		"Status":             object{"State": "Enabled", "Health": "OK"},
		"EthernetInterfaces": odata.Link(path + "/EthernetInterfaces"),
		"Actions":            object{"#ComputerSystem.Reset": action},
		"Links": object{"ManagedBy": []object{odata.Link(manager)},
			"Chassis": []object{odata.Link(chassis)}}}
	if p.Has(FutureBoot) {
		s.moveBoot(path, o)
	}
	if p.Has(NoEthernet) {
		delete(o, "EthernetInterfaces")
	}
	if p.Has(NoManagedBy) {
		o["Links"] = object{"Chassis": []object{odata.Link(chassis)}}
	}
	if s.cfg.SecureBoot {
		o["SecureBoot"] = odata.Link(path + "/SecureBoot")
	}
	return s.drives.Link(o, path)
}

var targets = map[bmc.Device]string{bmc.Default: "None", bmc.PXE: "Pxe", bmc.Disk: "Hdd", bmc.CDROM: "Cd",
	bmc.USBCD: "UsbCd", bmc.HTTP: httpBoot, bmc.Setup: "BiosSetup"}

// boot is the property Boot of the system.
func (s *Service) boot() object {
	p := s.cfg.Personality
	now, persistent := s.bmc.Boot()
	enabled := "Disabled"
	if now.Device != bmc.Default {
		enabled = map[bool]string{false: "Once", true: "Continuous"}[persistent]
	}
	enables := []string{"Disabled", "Once", "Continuous"}
	if p.Has(OnceOnly) {
		enables = enables[:2]
	}
	target := targets[now.Device]
	usbCD := p.Has(vmedia.MediaBootAsUSBCD) || p.Has(vmedia.ListsUSBCD)
	if now.Device == bmc.USBCD && !usbCD {
		target = "Cd" // chosen by an import of Dell's
	}
	allowed := []string{"None", "Pxe", "Hdd", "Cd", "BiosSetup"}
	allowed = append(allowed, httpBoot)
	if p.Has(NoPXE) {
		allowed = slices.Delete(allowed, 1, 2)
	}
	if usbCD {
		allowed = append(allowed, "UsbCd")
	}
	if p.Has(NoneTargetRefused) {
		allowed = allowed[1:]
		if now.Device == bmc.Default {
			target = "Pxe"
		}
	}
	o := object{"BootSourceOverrideEnabled": enabled, "BootSourceOverrideTarget": target,
		"BootSourceOverrideTarget@Redfish.AllowableValues":  allowed,
		"BootSourceOverrideEnabled@Redfish.AllowableValues": enables}
	if s.cfg.HTTPBoot {
		o["HttpBootUri"] = nil
		if now.Address != "" {
			o["HttpBootUri"] = now.Address
		}
	}
	if !p.Has(NoBootMode) {
		o["BootSourceOverrideMode"] = map[bool]string{false: "Legacy", true: "UEFI"}[now.UEFI]
		o["BootSourceOverrideMode@Redfish.AllowableValues"] = []string{"Legacy", "UEFI"}
	}
	return o
}

// patchBoot changes the boot choice.
func (s *Service) patchBoot(change object) *odata.Problem {
	p := s.cfg.Personality
	current := s.boot()
	want := map[string]string{}
	for _, key := range []string{"BootSourceOverrideTarget", "BootSourceOverrideEnabled", "BootSourceOverrideMode"} {
		want[key], _ = current[key].(string)
		v, sent := change[key]
		if !sent {
			if p.Has(WholeBoot) {
				return odata.Fault("PropertyMissing", key)
			}
			continue
		}
		text, isText := v.(string)
		allowed, known := current[key+"@Redfish.AllowableValues"].([]string)
		switch {
		case !known:
			return odata.Fault("PropertyUnknown", key)
		case !isText:
			return odata.Fault("PropertyValueTypeError", fmt.Sprint(v), key)
		case !slices.Contains(allowed, text):
			return odata.Fault("PropertyValueNotInList", text, key)
		}
		want[key] = text
	}
	for key := range change {
		if _, known := want[key]; !known && (key != "HttpBootUri" || !s.cfg.HTTPBoot) {
			return odata.Fault("PropertyUnknown", key)
		}
	}
	if change["BootSourceOverrideMode"] != nil && p.Has(ModeIsJob) {
		s.addBIOSJob()
	}
	b := bmc.Boot{UEFI: want["BootSourceOverrideMode"] == "UEFI"}
	b.Address, _ = current["HttpBootUri"].(string)
	if v, sent := change["HttpBootUri"]; sent {
		var isText bool
		if b.Address, isText = v.(string); !isText && v != nil || len(b.Address) > maxAddress {
			return odata.Fault("PropertyValueFormatError", "...", "HttpBootUri")
		}
	}
	if change["BootSourceOverrideTarget"] != nil {
		if change["BootSourceOverrideMode"] == nil && p.Has(DeviceResetsMode) {
			b.UEFI = false
		}
		if change["BootSourceOverrideEnabled"] == nil && p.Has(DeviceIsOnce) {
			want["BootSourceOverrideEnabled"] = "Once"
		}
	}
	if want["BootSourceOverrideEnabled"] != "Disabled" {
		for device, target := range targets {
			if target == want["BootSourceOverrideTarget"] {
				b.Device = device
			}
		}
	}
	s.bmc.SetBoot(b, want["BootSourceOverrideEnabled"] == "Continuous")
	return nil
}

// etag is that of a resource in the form that the controller gives. The time is not part of it.
func (s *Service) etag(o object) string {
	if o["DateTime"] != nil {
		o = maps.Clone(o)
		delete(o, "DateTime")
	}
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // maps, texts and numbers
	}
	if s.cfg.Personality.Has(EmptyETag) {
		return ""
	}
	sum := sha256.Sum256(b)
	tag := `"` + hex.EncodeToString(sum[:6]) + `"`
	if s.cfg.Personality.Has(WeakETag) {
		return "W/" + tag
	}
	return tag
}

// matched declines a change whose If-Match is not that of the resource.
func (s *Service) matched(o object, header http.Header) *odata.Problem {
	p, ifMatch := s.cfg.Personality, header.Get("If-Match")
	switch tag := s.etag(o); {
	case p.Has(EmptyETag) && header.Values("If-Match") != nil:
		return odata.Fault("PreconditionFailed")
	case ifMatch == "" && p.Has(NeedsIfMatch):
		return odata.Fault("PreconditionRequired")
	case ifMatch == "":
		return nil
	case p.Has(NoIfMatch), ifMatch != "*" && ifMatch != strings.TrimPrefix(tag, "W/"):
		return odata.Fault("PreconditionFailed")
	}
	return nil
}
