package redfish

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
)

// Behaviours of controllers in Secure Boot and time.
const (
	// SecureBootLicence declines to show Secure Boot, for lack of a licence.
	SecureBootLicence Behaviour = "no licence for Secure Boot"
	// ForgetsClock takes a new time, and goes on with the old.
	ForgetsClock Behaviour = "the clock stays"
	// OddClock shows its time in a form that is not the standard's.
	OddClock Behaviour = "an odd form of time"
)

// secureBoot is the state of Secure Boot, of which the second is that of the present start. Guarded by Service.mu.
type secureBoot struct {
	on, onNow     bool
	keys, keysNow string // default or none
}

const defaultKeys, noKeys = "default", "none"

// resetKeys are the values of the action that resets keys, and what they leave.
var resetKeys = map[string]string{"ResetAllKeysToDefault": defaultKeys, "DeleteAllKeys": noKeys}

// SecureBootKeys are those that the machine has since its last start: "default" or "none".
func (s *Service) SecureBootKeys() string {
	s.turnOver()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.secure.keysNow
}

func (s *Service) secureBootPath() string { return s.systemPath() + "/SecureBoot" }

// secureBootResource is the resource SecureBoot.
func (s *Service) secureBootResource(path string) object {
	s.mu.Lock()
	defer s.mu.Unlock()
	current := map[bool]string{false: "Disabled", true: "Enabled"}[s.secure.onNow]
	mode := map[string]string{defaultKeys: "UserMode", noKeys: "SetupMode"}[s.secure.keysNow]
	return object{"@odata.id": path, "@odata.type": "#SecureBoot.v1_1_0.SecureBoot", "Id": "SecureBoot",
		"Name": "Secure Boot", "SecureBootEnable": s.secure.on, "SecureBootCurrentBoot": current,
		"SecureBootMode": mode, "Actions": object{"#SecureBoot.ResetKeys": object{"target": path + "/Actions/SecureBoot.ResetKeys",
			"ResetKeysType@Redfish.AllowableValues": slices.Sorted(maps.Keys(resetKeys))}}}
}

// answerSecureBoot resets keys, and declines everything where there is no licence; done is false if the request is none
// for it.
func (s *Service) answerSecureBoot(w http.ResponseWriter, method, path string, body object) (done bool,
	problem *odata.Problem) {
	switch {
	case !s.cfg.SecureBoot:
		return false, nil
	case path == s.secureBootPath() && s.cfg.Personality.Has(SecureBootLicence):
		return true, odata.Fault("OemLicenseNotPassed", "SFT-DCMS-SINGLE")
	case method != http.MethodPost || path != s.secureBootPath()+"/Actions/SecureBoot.ResetKeys":
		return false, nil
	}
	kind, isText := body["ResetKeysType"].(string)
	keys, known := resetKeys[kind]
	switch {
	case !isText:
		return true, odata.Fault("ActionParameterMissing", "SecureBoot.ResetKeys", "ResetKeysType")
	case !known:
		return true, odata.Fault("ActionParameterValueNotInList", kind, "ResetKeysType", "SecureBoot.ResetKeys")
	}
	s.mu.Lock()
	s.secure.keys = keys
	s.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
	return true, nil
}

// clock is how far the controller's is from the host's, and the zone that it shows times in. Guarded by Service.mu.
type clock struct {
	ahead  time.Duration
	offset string // "" is +00:00
}

// Clock is the time that the controller has.
func (s *Service) Clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.clock.ahead)
}

// showClock adds the time to the manager.
func (s *Service) showClock(o object) object {
	now := s.Clock()
	s.mu.Lock()
	defer s.mu.Unlock()
	zone := time.UTC
	if at, err := time.Parse("-07:00", s.clock.offset); err == nil {
		zone = at.Location()
	}
	o["DateTime"] = now.In(zone).Format("2006-01-02T15:04:05-07:00")
	o["DateTimeLocalOffset"] = now.In(zone).Format("-07:00")
	if s.cfg.Personality.Has(OddClock) {
		o["DateTime"] = now.In(zone).Format("2006-01-02T15:04:05-0700")
	}
	return o
}

// patchManager sets the clock.
func (s *Service) patchManager(_ string, body object) *odata.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.clock
	for key, v := range body {
		text, isText := v.(string)
		form := map[string]string{"DateTime": time.RFC3339, "DateTimeLocalOffset": "-07:00"}[key]
		at, err := time.Parse(form, text)
		switch {
		case form == "":
			return odata.Fault("PropertyUnknown", key)
		case !isText:
			return odata.Fault("PropertyValueTypeError", fmt.Sprint(v), key)
		case err != nil:
			return odata.Fault("PropertyValueFormatError", text, key)
		case key == "DateTime":
			next.ahead = time.Until(at)
		default:
			next.offset = text
		}
	}
	if !s.cfg.Personality.Has(ForgetsClock) {
		s.clock = next
	}
	return nil
}
