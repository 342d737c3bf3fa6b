package rest

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// Version is the minor number of a microversion 1.N.
type Version int

// The supported range.
//
// A version is a promise about the whole API: a client of 1.N may use everything from 1.1 to 1.N. So MaxVersion is the
// version that the tables support completely: a test of conductor/api looks for the additions of each version. Entries
// beyond it are not promised yet.
const (
	MinVersion    Version = 1
	MaxVersion    Version = 115
	NewestVersion         = MaxVersion
)

// Versions at which something other than a field of an object came or changed. Fields are in the tables of fields.go.
const (
	VersionAvailable      Version = 2  // the state "available" has its name; before it is null
	VersionManageVerbs    Version = 4  // manage, provide
	VersionNames          Version = 5  // nodes are found by name
	VersionInspect        Version = 6  // verb inspect
	VersionSelectFields   Version = 8  // ?fields=
	VersionFilterState    Version = 9  // ?provision_state=
	VersionURLNames       Version = 10 // names may have all unreserved characters
	VersionEnroll         Version = 11 // new nodes start in enroll, before in available
	VersionRAID           Version = 12
	VersionAbort          Version = 13
	VersionStateLinks     Version = 14
	VersionClean          Version = 15
	VersionFilterDriver   Version = 16
	VersionAdopt          Version = 17
	VersionPortgroups     Version = 23
	VersionGroupParts     Version = 24 // port groups of a node, ports of a port group
	VersionNoChassis      Version = 25 // a node's chassis can be taken from it
	VersionSoftPower      Version = 27 // soft power targets and timeout
	VersionRamdisk        Version = 22 // lookup, heartbeat
	VersionVIFs           Version = 28
	VersionNMI            Version = 29
	VersionDriverDetails  Version = 30
	VersionVolumes        Version = 32
	VersionRebuildDrive   Version = 35 // rebuild takes a config drive
	VersionTraits         Version = 37
	VersionRescue         Version = 38
	VersionInspectWait    Version = 39 // "inspect wait" has its name; before it is "inspecting"
	VersionAbortInspect   Version = 41
	VersionFilterFault    Version = 42
	VersionDetailQuery    Version = 43 // ?detail=true
	VersionResetInterface Version = 45
	VersionConductorGroup Version = 46
	VersionConductors     Version = 49
	VersionOwner          Version = 50
	VersionDescription    Version = 51
	VersionAllocations    Version = 52
	VersionEvents         Version = 54 // events of the network service
	VersionTemplates      Version = 55 // deploy templates
	VersionDriveObject    Version = 56 // config drive as a JSON object
	VersionPatchAlloc     Version = 57 // PATCH of allocations
	VersionBackfill       Version = 58 // allocations of nodes that have their instance already
	VersionVendorData     Version = 59
	VersionAllocOwner     Version = 60
	VersionRetired        Version = 61
	VersionToken          Version = 62 // of agents
	VersionIndicators     Version = 63
	VersionNetworkType    Version = 64 // network_type in a port's local_link_connection
	VersionLessee         Version = 65
	VersionVIFPort        Version = 67 // port_uuid and portgroup_uuid of a VIF
	VersionDeploySteps    Version = 69
	VersionVerbAliases    Version = 73 // deploy, undeploy
	VersionBIOSRegistry   Version = 74 // attributes of BIOS settings; ?fields= and ?detail= of them
	VersionBootMode       Version = 75
	VersionSetBootMode    Version = 76
	VersionDriverFields   Version = 77
	VersionHistory        Version = 78
	VersionInventory      Version = 81
	VersionShards         Version = 82
	VersionChildren       Version = 83 // parent_node, include_children
	VersionContinue       Version = 84 // continue_inspection
	VersionUnhold         Version = 85
	VersionFirmware       Version = 86
	VersionService        Version = 87
	VersionPortName       Version = 88
	VersionAttachMedia    Version = 89
	VersionVTEP           Version = 90 // vtep-* in a port's local_link_connection
	VersionNoSuffix       Version = 91 // "x.json" is no longer "x"
	VersionRunbooks       Version = 92
	VersionGetMedia       Version = 93
	VersionPortNodeName   Version = 94  // ports are made with node_ident
	VersionNoPowerOff     Version = 95  // disable_power_off
	VersionRules          Version = 96  // inspection rules
	VersionPatchEscapes   Version = 98  // ~0 and ~1 in paths of a PATCH
	VersionGroupFilter    Version = 99  // ports and port groups by conductor_groups
	VersionGroupNetwork   Version = 102 // physical_network of port groups
	VersionInstanceName   Version = 104
	VersionNoVTEP         Version = 105 // vtep-* is gone again
	VersionGroupShards    Version = 106 // port groups by shard
	VersionRequestID      Version = 107 // X-OpenStack-Request-Id
	VersionServiceNoAgent Version = 108 // disable_ramdisk with service
	VersionHealth         Version = 109
	VersionAbortDeploy    Version = 110
	VersionDynamicGroups  Version = 111 // dynamic_portgroup, available_for_dynamic_portgroup
	VersionRunbookTraits  Version = 112 // description and traits of runbooks, whose names may be any then
	VersionHistoryProject Version = 113 // project in the history of a node
	VersionFirmwareNames  Version = 114 // vendor, model and serial_number of firmware components
	VersionHistoryStates  Version = 115 // states and durations in the history of a node
)

// Headers of negotiation.
const (
	VersionHeader    = "X-OpenStack-Ironic-API-Version"
	ServiceHeader    = "OpenStack-API-Version" // the same for all of OpenStack: "baremetal 1.50"
	MinVersionHeader = "X-OpenStack-Ironic-API-Minimum-Version"
	MaxVersionHeader = "X-OpenStack-Ironic-API-Maximum-Version"
)

// String returns "1.N".
func (v Version) String() string { return "1." + strconv.Itoa(int(v)) }

// The names of the headers that each request has, as net/http keeps them.
var versionKey, serviceKey = http.CanonicalHeaderKey(VersionHeader), http.CanonicalHeaderKey(ServiceHeader)

// versionText matches a version, however large its numbers are.
var versionText = regexp.MustCompile(`^\s*([+-]?\d+)\s*\.\s*([+-]?\d+)\s*$`)

// Negotiate reads the version that a client requests, of which newest is the newest supported one: none is 1.1,
// "latest" the newest. The header of all of OpenStack counts before Ironic's own. The error is the answer. ranged
// reports whether that answer carries the headers with the range, which clients use to try again: it does unless the
// header could not be parsed at all.
func Negotiate(h http.Header, newest Version) (v Version, ranged bool, err *Error) {
	header := h.Get(versionKey)
	for _, line := range h[serviceKey] {
		for part := range strings.SplitSeq(line, ",") {
			// The last one wins, as when a header is given twice.
			if words := strings.Fields(part); len(words) > 0 && strings.EqualFold(words[0], "baremetal") {
				header = strings.Join(words[1:], " ")
			}
		}
	}
	if header == "" {
		return MinVersion, true, nil
	}
	if strings.EqualFold(header, "latest") {
		return newest, true, nil
	}
	// as nearly all are, and each request has one
	if minor, ok := strings.CutPrefix(header, "1."); ok && len(minor) <= 3 {
		if n, err := strconv.ParseUint(minor, 10, 16); err == nil && Version(n) >= MinVersion && Version(n) <= newest {
			return Version(n), true, nil
		}
	}
	m := versionText.FindStringSubmatch(header)
	if m == nil {
		return 0, false, Routing(http.StatusNotAcceptable, "Invalid value for "+VersionHeader+" header")
	}
	major, _ := strconv.Atoi(m[1]) // too large a number becomes the largest one, which is no version either
	minor, _ := strconv.Atoi(m[2])
	if len(header) > 40 {
		header = header[:40] + "..."
	}
	offered := fmt.Sprintf("not supported by this service. The supported version range is: [%s, %s].", MinVersion,
		newest)
	if major != 1 {
		return 0, true, Routing(http.StatusNotAcceptable,
			fmt.Sprintf("Mutually exclusive versions requested. Version %s requested but %s", header, offered))
	}
	if minor < int(MinVersion) || minor > int(newest) {
		return 0, true, Routing(http.StatusNotAcceptable,
			fmt.Sprintf("Version %s was requested but the minor version is %s", header, offered))
	}
	return Version(minor), true, nil
}

// StateFor returns the name of a provision state (or target) in version v; "" is null.
func StateFor(v Version, state string) string {
	if state == "available" && v < VersionAvailable {
		return ""
	}
	if state == "inspect wait" && v < VersionInspectWait {
		return "inspecting"
	}
	return state
}
