package redfish

import (
	"encoding/json"
	"net/http"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/update"
)

// Behaviours of firmware updates.
const (
	// DoneBeforeStart ends the task of a BIOS update before the start from which on the new BIOS is in use.
	DoneBeforeStart Behaviour = "BIOS update done before the start"
	// FirmwareLies ends updates with success and keeps the firmware.
	FirmwareLies Behaviour = "firmware stays"
	// NoDowngrade fails updates with older firmware.
	NoDowngrade Behaviour = "no older firmware"
	// PrefixedVersions has the name of a build before the version of the BIOS.
	PrefixedVersions Behaviour = "versions with a prefix"
	// NotReady declines the first updates, since the controller is not ready, in Dell's words.
	NotReady Behaviour = "not ready"
)

// wireFirmware makes the firmware.
func (s *Service) wireFirmware() {
	p := s.cfg.Personality
	opt := update.Options{System: s.systemPath(), Manager: s.managerPath(), Chassis: chassisPath, Starts: s.bmc.Starts,
		Restart: s.Restart, Tasks: s.tasks, DoneBeforeStart: p.Has(DoneBeforeStart), Lies: p.Has(FirmwareLies),
		NoDowngrade: p.Has(NoDowngrade)}
	if p.Has(PrefixedVersions) {
		opt.Prefix = "IVE178E-"
	}
	if p.Has(NotReady) {
		opt.NotReady = 2
	}
	s.firmware = update.New(p.Name, p.Firmware, opt)
}

// Firmware is the firmware of the machine and the controller.
func (s *Service) Firmware() *update.Machine { return s.firmware }

// simpleUpdate has the controller fetch a file and bring its firmware into use.
func (s *Service) simpleUpdate(w http.ResponseWriter, body object) *odata.Problem {
	if s.bmc.Faults().Busy {
		return odata.Fault("ServiceTemporarilyUnavailable", "1")
	}
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err) // it was JSON
	}
	id, problem := s.firmware.Simple(body, string(raw))
	if problem == nil {
		s.tasks.Accepted(w, id)
	}
	return problem
}
