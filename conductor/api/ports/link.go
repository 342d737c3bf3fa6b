package ports

import (
	"regexp"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// vtepText is a value of vtepKeys.
var vtepText = &rest.Schema{Types: []string{"string"}, Since: rest.VersionVTEP, Until: rest.VersionNoVTEP - 1}

// linkSchema is a port's connection to a switch.
var linkSchema = &rest.Schema{
	Types: []string{"object"}, Closed: true,
	Props: map[string]*rest.Schema{
		"port_id": {Types: []string{"string"}}, "switch_id": {Types: []string{"string"}},
		"switch_info":  {Types: []string{"string"}},
		"network_type": {Types: []string{"string"}, Enum: []any{"managed", "unmanaged"}},
		"hostname":     {Types: []string{"string"}}, "vtep-logical-switch": vtepText, "vtep-physical-switch": vtepText,
	},
}

// vtepKeys name the switches of OVN that a port is on.
var vtepKeys = []string{"vtep-logical-switch", "vtep-physical-switch"}

// hasVTEP reports whether a version has vtepKeys.
func hasVTEP(v rest.Version) bool { return v >= rest.VersionVTEP && v < rest.VersionNoVTEP }

// linkKinds are the members that make a link whole; one of them is enough.
var linkKinds = [][]string{
	{"port_id", "switch_id"}, // a switch
	{"port_id", "hostname"},  // a smart NIC
	append([]string{"port_id"}, vtepKeys...),
}

// datapathID is the name of a switch in OpenFlow: eight bytes, with colons between them or without.
var datapathID = regexp.MustCompile(`^(([0-9a-fA-F]{2}:){7}[0-9a-fA-F]{2}|[0-9a-fA-F]{16})$`)

// checkLink requires a complete link, or an empty object, or one that says that the switch is unmanaged, and writes the
// switch's address in its stored form. was is the port before; an unchanged link is accepted in every version.
func checkLink(v rest.Version, was *node.Port, link map[string]any) *rest.Error {
	if len(link) == 0 || was != nil && sameObject(was.LocalLinkConnection, link) {
		return nil
	}
	fault := linkSchema.Check(link)
	for i, key := range vtepKeys {
		if _, ok := link[key]; ok && fault == "" && link[vtepKeys[1-i]] == nil {
			fault = rest.Repr(vtepKeys[1-i]) + " is a dependency of " + rest.Repr(key)
		}
	}
	if fault == "" && link["network_type"] != "unmanaged" {
		fault = missingOf(link)
	}
	if fault != "" {
		return rest.BadRequest(
			"Schema error for local_link_connection: %s is not valid under any of the given schemas. Possible root cause: %s", rest.Repr(redact.Map(link)), fault)
	}
	if _, ok := link["network_type"]; ok && v < rest.VersionNetworkType {
		return rest.NotAcceptable()
	}
	for _, key := range vtepKeys {
		if _, ok := link[key]; ok && !hasVTEP(v) {
			return rest.NotAcceptable()
		}
	}
	if id, ok := link["switch_id"].(string); ok {
		mac, ok := document.HardwareAddress(id)
		if !ok {
			if !datapathID.MatchString(id) {
				return rest.BadRequest("Expected a MAC address or OpenFlow datapath ID but received %s.", id)
			}
			mac = strings.ToLower(id)
		}
		link["switch_id"] = mac
	}
	return nil
}

// missingOf returns the keys that a link to a switch lacks, or "" when it is complete in one way or another.
func missingOf(link map[string]any) string {
	lacks := func(names []string) string {
		for _, name := range names {
			if _, ok := link[name]; !ok {
				return rest.Repr(name) + " is a required property"
			}
		}
		return ""
	}
	for _, names := range linkKinds {
		if lacks(names) == "" {
			return ""
		}
	}
	return lacks([]string{"switch_id", "port_id"})
}
