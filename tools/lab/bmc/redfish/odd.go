package redfish

import "github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"

// What some controllers have elsewhere, or besides.
const (
	phantom    = "HGX_Baseboard_0" // a system of PhantomSystem
	futureBoot = "/SD"             // the resource of settings of FutureBoot
	httpBoot   = "UefiHttp"        // the network by HTTP
	maxAddress = 1 << 10           // of HttpBootUri
	inPOST     = 2                 // changes that InPOST declines
)

// phantom is a system that is a part of the machine: it has a power state and a reset, and nothing to boot.
func (s *Service) phantom(path string) object {
	if !s.cfg.Personality.Has(PhantomSystem) {
		return nil
	}
	return object{"@odata.id": path, "@odata.type": "#ComputerSystem.v1_22_0.ComputerSystem", "Id": phantom,
		"Name": "Baseboard", "SystemType": "Physical", "PowerState": "On",
		"Status":  object{"State": "Enabled", "Health": "OK"},
		"Actions": object{"#ComputerSystem.Reset": object{"target": path + "/Actions/ComputerSystem.Reset"}}}
}

// moveBoot has a system lead to its settings, and show no choice of the boot device.
func (s *Service) moveBoot(path string, o object) {
	boot, _ := o["Boot"].(object)
	boot["BootSourceOverrideEnabled"], boot["BootSourceOverrideTarget"] = "Disabled", "None"
	o["@Redfish.Settings"] = object{"@odata.type": "#Settings.v1_3_5.Settings",
		"SettingsObject": odata.Link(path + futureBoot)}
}

// future is the system as it will be.
func (s *Service) future(path string) object {
	if !s.cfg.Personality.Has(FutureBoot) {
		return nil
	}
	return object{"@odata.id": path, "@odata.type": "#ComputerSystem.v1_22_0.ComputerSystem",
		"Id": s.cfg.Personality.SystemID, "Name": "System, as it will be", "Boot": s.boot()}
}
