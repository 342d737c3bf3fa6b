package redfish

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
)

// Behaviours of controllers that are broken, or an attacker's.
const (
	// ManyMembers has 100,000 members in every collection but that of the systems.
	ManyMembers Behaviour = "100,000 members"
	// LinksInLoops has collections that are their own next page and their own member.
	LinksInLoops Behaviour = "links in loops"
	// EscapesInNames has sequences for terminals in names.
	EscapesInNames Behaviour = "escape sequences in names"
	// DeepAnswers answers everything below the root with JSON of 100,000 levels.
	DeepAnswers Behaviour = "deep answers"
)

// turned is a resource of a hostile controller, which has more than anyone wants.
func (s *Service) turned(path string, o object) object {
	p := s.cfg.Personality
	members, is := o["Members"].([]object)
	switch {
	case is && p.Has(ManyMembers) && path != odata.Root+"/Systems":
		for i := range 100_000 {
			members = append(members, odata.Link(fmt.Sprintf("/m/%d", i)))
		}
		o["Members"] = members
	case is && p.Has(LinksInLoops) && path != odata.Root+"/Systems":
		o["Members@odata.nextLink"] = path
		o["Members"] = append(members, odata.Link(path))
	}
	if p.Has(EscapesInNames) {
		escape(o)
	}
	return o
}

// escape puts what a terminal would obey into every text that is no link and no type.
func escape(o object) {
	for key, v := range o {
		switch v := v.(type) {
		case object:
			escape(v)
		case string:
			if !strings.HasPrefix(key, "@") && slices.Contains([]string{"Name", "Model", "Manufacturer", "Vendor",
				"Product", "SerialNumber", "Message", "FirmwareVersion"}, key) {
				o[key] = v + "\x1b]0;owned\x07\x1b[2J\u202e"
			}
		}
	}
}
