package redfish

import (
	"net/http"
	"strings"

	"github.com/ingot-metal/ingot/tools/lab/bmc/media"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/events"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/vmedia"
)

// wireMedia makes the drives for virtual media.
func (s *Service) wireMedia() {
	p := s.cfg.Personality
	s.drives = vmedia.New(vmedia.Config{Personality: p.Name,
		Has:    func(b string) bool { return p.Has(Behaviour(b)) },
		System: s.systemPath(), Manager: s.managerPath(),
		SetMedium: s.bmc.SetMedium, Media: s.cfg.Media, Log: s.log})
	if p.Has(vmedia.MediaBootAsUSBCD) || p.Has(vmedia.CDIsOwnDrive) {
		s.bmc.OwnDrive()
	}
	if p.Has(vmedia.ListsUSBCD) {
		s.bmc.NoUSBDrive()
	}
}

// Image returns what the controller reads for a drive, by the Id of the drive's resource; nil when it is empty.
func (s *Service) Image(drive string) *media.File { return s.drives.Image(drive) }

// answerMedia carries out a change of virtual media, and reports whether the request was one. empty says that it has
// no body.
func (s *Service) answerMedia(w http.ResponseWriter, r *http.Request, path string, body object, empty bool) (bool,
	*odata.Problem) {
	o := s.drives.Resource(path)
	ifMatch := r.Header.Get("If-Match")
	switch {
	case r.Method == http.MethodGet || r.Method == http.MethodHead || !strings.Contains(path, "/VirtualMedia/"):
		return false, nil
	case s.bmc.Faults().Busy:
		return true, odata.Fault("ServiceTemporarilyUnavailable", "1")
	case r.Method == http.MethodPost && ifMatch != "" && s.cfg.Personality.Has(NoIfMatch):
		return true, odata.Fault("PreconditionFailed")
	case r.Method == http.MethodPatch && s.drives.Patchable(path):
		if problem := s.matched(o, r.Header); problem != nil {
			return true, problem
		}
	}
	known, location, declined := s.drives.Do(r.Context(), vmedia.Request{Method: r.Method, Path: path, Body: body,
		Empty: empty})
	if !known && declined == nil {
		return false, nil
	}
	if declined == nil {
		s.events.Notify(events.Event{Kind: "Alert", Severity: "OK", Origin: path,
			Message: "Virtual media have changed."})
	}
	return true, s.changed(w, location, declined)
}
