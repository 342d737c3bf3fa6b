package lldp

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Neighbour holds the fields of a frame, under the names of Ironic's parse-lldp. Absent fields are not in the JSON.
type Neighbour struct {
	ChassisID         string   `json:"switch_chassis_id,omitempty"`
	PortID            string   `json:"switch_port_id,omitempty"`
	PortDescription   string   `json:"switch_port_description,omitempty"`
	SystemName        string   `json:"switch_system_name,omitempty"`
	SystemDescription string   `json:"switch_system_description,omitempty"`
	CanBe             []string `json:"switch_capabilities_support,omitempty"`
	Is                []string `json:"switch_capabilities_enabled,omitempty"`
	Addresses         []string `json:"switch_mgmt_addresses,omitempty"`

	// IEEE 802.1Q annex D.
	UntaggedVLAN        *int     `json:"switch_port_untagged_vlan_id,omitempty"`
	ProtocolVLANEnabled *bool    `json:"switch_port_protocol_vlan_enabled,omitempty"`
	ProtocolVLANSupport *bool    `json:"switch_port_protocol_vlan_support,omitempty"`
	ProtocolVLANs       []int    `json:"switch_port_protocol_vlan_ids,omitempty"`
	VLANs               []VLAN   `json:"switch_port_vlans,omitempty"`
	ProtocolIdentities  []string `json:"switch_protocol_identities,omitempty"` // hexadecimal
	ManagementVLAN      *int     `json:"switch_port_management_vlan_id,omitempty"`
	LinkAggregation     *bool    `json:"switch_port_link_aggregation_enabled,omitempty"`
	LinkAggregationCan  *bool    `json:"switch_port_link_aggregation_support,omitempty"`
	LinkAggregationPort *uint32  `json:"switch_port_link_aggregation_id,omitempty"`
	// from here on IEEE 802.3 clause 79
	Autonegotiation      *bool    `json:"switch_port_autonegotiation_enabled,omitempty"`
	AutonegotiationCan   *bool    `json:"switch_port_autonegotiation_support,omitempty"`
	PhysicalCapabilities []string `json:"switch_port_physical_capabilities,omitempty"`
	MAUType              string   `json:"switch_port_mau_type,omitempty"`
	MTU                  *int     `json:"switch_port_mtu,omitempty"`

	// In addition to Ironic's.
	TTL   *int   `json:"ttl,omitempty"` // seconds
	Power *Power `json:"switch_port_power,omitempty"`
	MED   *MED   `json:"med,omitempty"`
}

// VLAN is a VLAN of the port.
type VLAN struct {
	ID   int    `json:"id"`
	Name string `json:"name"`
}

// Power describes a port's power over Ethernet.
type Power struct {
	Supported bool `json:"supported"`
	Enabled   bool `json:"enabled"`
	Class     int  `json:"class"` // as in IEEE 802.3
	Allocated *int `json:"allocated_milliwatts,omitempty"`
}

// MED describes an LLDP-MED device.
type MED struct {
	Kind         string   `json:"device_type,omitempty"`
	Policies     []Policy `json:"network_policies,omitempty"`
	Hardware     string   `json:"hardware_revision,omitempty"`
	Firmware     string   `json:"firmware_revision,omitempty"`
	Software     string   `json:"software_revision,omitempty"`
	Serial       string   `json:"serial_number,omitempty"`
	Manufacturer string   `json:"manufacturer,omitempty"`
	Model        string   `json:"model,omitempty"`
	Asset        string   `json:"asset_id,omitempty"`
}

// Policy assigns the traffic of an application to a VLAN and a priority.
type Policy struct {
	Application int  `json:"application"` // 1 voice, 2 voice signalling, ... as in TIA-1057 table 12
	Unknown     bool `json:"unknown,omitempty"`
	Tagged      bool `json:"tagged"`
	VLAN        int  `json:"vlan_id"`
	Priority    int  `json:"priority"`
	DSCP        int  `json:"dscp"`
}

var (
	capabilityNames = []string{"", "Repeater", "Bridge", "WLAN", "Router", "Telephone", "DOCSIS cable device",
		"Station only", "C-Vlan", "S-Vlan", "TPMR"}
	// From bit 14 downwards: RFC 4836, IANAifMauAutoNegCapBits.
	negotiable = []string{"10BASE-T hdx", "10BASE-T fdx", "10BASE-T4", "100BASE-TX hdx", "100BASE-TX fdx",
		"100BASE-T2 hdx", "100BASE-T2 fdx", "PAUSE fdx", "Asym PAUSE fdx", "Sym PAUSE fdx", "Asym and Sym PAUSE fdx",
		"1000BASE-X hdx", "1000BASE-X fdx", "1000BASE-T hdx", "1000BASE-T fdx"}
	// By number: IANA-MAU-MIB, dot3MauType.
	mauTypes = []string{"Unknown", "AUI", "10BASE-5", "FOIRL", "10BASE-2", "10BASE-T duplex mode unknown", "10BASE-FP",
		"10BASE-FB", "10BASE-FL duplex mode unknown", "10BROAD36", "10BASE-T half duplex", "10BASE-T full duplex",
		"10BASE-FL half duplex", "10BASE-FL full duplex", "100 BASE-T4", "100BASE-TX half duplex",
		"100BASE-TX full duplex", "100BASE-FX half duplex", "100BASE-FX full duplex", "100BASE-T2 half duplex",
		"100BASE-T2 full duplex", "1000BASE-X half duplex", "1000BASE-X full duplex", "1000BASE-LX half duplex",
		"1000BASE-LX full duplex", "1000BASE-SX half duplex", "1000BASE-SX full duplex", "1000BASE-CX half duplex",
		"1000BASE-CX full duplex", "1000BASE-T half duplex", "1000BASE-T full duplex", "10GBASE-X", "10GBASE-LX4",
		"10GBASE-R", "10GBASE-ER", "10GBASE-LR", "10GBASE-SR", "10GBASE-W", "10GBASE-EW", "10GBASE-LW", "10GBASE-SW",
		"10GBASE-CX4", "2BASE-TL", "10PASS-TS", "100BASE-BX10D", "100BASE-BX10U", "100BASE-LX10", "1000BASE-BX10D",
		"1000BASE-BX10U", "1000BASE-LX10", "1000BASE-PX10D", "1000BASE-PX10U", "1000BASE-PX20D", "1000BASE-PX20U",
		"10GBASE-T", "10GBASE-LRM", "1000BASE-KX", "10GBASE-KX4", "10GBASE-KR", "10/1GBASE-PRX-D1", "10/1GBASE-PRX-D2",
		"10/1GBASE-PRX-D3", "10/1GBASE-PRX-U1", "10/1GBASE-PRX-U2", "10/1GBASE-PRX-U3", "10GBASE-PR-D1",
		"10GBASE-PR-D2", "10GBASE-PR-D3", "10GBASE-PR-U1", "10GBASE-PR-U3", "40GBASE-KR4", "40GBASE-CR4",
		"40GBASE-SR4", "40GBASE-FR", "40GBASE-LR4", "100GBASE-CR10",
		"100GBASE-SR10", "100GBASE-LR4", "100GBASE-ER4"}
	medKinds = []string{"", "endpoint class I", "endpoint class II", "endpoint class III", "network connectivity"}
)

// Describe parses the TLVs. If a kind that is allowed once is repeated, the first one is used.
func Describe(all []TLV) Neighbour {
	var n Neighbour
	for _, t := range all {
		v := t.Value
		switch t.Type {
		case typeChassis:
			first(&n.ChassisID, identifier(v, chassisKinds))
		case typePort:
			first(&n.PortID, identifier(v, portKinds))
		case typeTTL:
			number(&n.TTL, v)
		case typePortDescription:
			first(&n.PortDescription, text(v))
		case typeSystemName:
			first(&n.SystemName, text(v))
		case typeSystemDescribed:
			first(&n.SystemDescription, text(v))
		case typeCapabilities:
			if len(v) == 4 && n.CanBe == nil && n.Is == nil {
				n.CanBe, n.Is = bits(binary.BigEndian.Uint16(v)), bits(binary.BigEndian.Uint16(v[2:]))
			}
		case typeAddress:
			if len(v) < 2 {
				continue
			}
			if a := address(v[1 : 1+min(int(v[0]), len(v)-1)]); a != "" {
				n.Addresses = append(n.Addresses, a)
			}
		case typeOrganization:
			if len(v) < 4 {
				continue
			}
			switch [3]byte(v) {
			case [3]byte{0x00, 0x80, 0xc2}:
				n.dot1(v[3], v[4:])
			case [3]byte{0x00, 0x12, 0x0f}:
				n.dot3(v[3], v[4:])
			case [3]byte{0x00, 0x12, 0xbb}:
				n.med(v[3], v[4:])
			}
		}
	}
	return n
}

func (n *Neighbour) dot1(subtype byte, v []byte) {
	switch subtype {
	case 1:
		number(&n.UntaggedVLAN, v)
	case 2:
		if len(v) != 3 {
			return
		}
		flag(&n.ProtocolVLANEnabled, v[0]&4)
		flag(&n.ProtocolVLANSupport, v[0]&2)
		n.ProtocolVLANs = append(n.ProtocolVLANs, int(binary.BigEndian.Uint16(v[1:])))
	case 3:
		if len(v) >= 3 && int(v[2]) <= len(v)-3 {
			n.VLANs = append(n.VLANs, VLAN{ID: int(binary.BigEndian.Uint16(v)), Name: text(v[3 : 3+int(v[2])])})
		}
	case 4:
		if len(v) >= 1 && int(v[0]) <= len(v)-1 {
			n.ProtocolIdentities = append(n.ProtocolIdentities, hex.EncodeToString(v[1:1+int(v[0])]))
		}
	case 6:
		number(&n.ManagementVLAN, v)
	case 7:
		n.aggregation(v)
	}
}

func (n *Neighbour) dot3(subtype byte, v []byte) {
	switch subtype {
	case 1:
		if len(v) != 5 || n.Autonegotiation != nil {
			return
		}
		flag(&n.Autonegotiation, v[0]&2)
		flag(&n.AutonegotiationCan, v[0]&1)
		pmd := binary.BigEndian.Uint16(v[1:])
		for i, name := range negotiable {
			if pmd&(1<<(14-i)) != 0 {
				n.PhysicalCapabilities = append(n.PhysicalCapabilities, name)
			}
		}
		slices.Sort(n.PhysicalCapabilities)
		if m := int(binary.BigEndian.Uint16(v[3:])); m < len(mauTypes) {
			n.MAUType = mauTypes[m]
		}
	case 2:
		if len(v) < 3 || n.Power != nil {
			return
		}
		n.Power = &Power{Supported: v[0]&2 != 0, Enabled: v[0]&4 != 0, Class: max(int(v[2])-1, 0)}
		if len(v) >= 8 {
			n.Power.Allocated = new(int(binary.BigEndian.Uint16(v[6:])) * 100)
		}
	case 3: // withdrawn from 802.3 and moved to 802.1, but still sent
		n.aggregation(v)
	case 4:
		number(&n.MTU, v)
	}
}

func (n *Neighbour) aggregation(v []byte) {
	if len(v) != 5 || n.LinkAggregation != nil {
		return
	}
	flag(&n.LinkAggregation, v[0]&2)
	flag(&n.LinkAggregationCan, v[0]&1)
	n.LinkAggregationPort = new(binary.BigEndian.Uint32(v[1:]))
}

func (n *Neighbour) med(subtype byte, v []byte) {
	if n.MED == nil {
		n.MED = &MED{}
	}
	m := n.MED
	switch subtype {
	case 1:
		if len(v) >= 3 && int(v[2]) < len(medKinds) {
			first(&m.Kind, medKinds[v[2]])
		}
	case 2:
		if len(v) != 4 {
			return
		}
		// Application (8 bits), unknown, tagged, reserved, VLAN (12), priority (3), DSCP (6).
		b := binary.BigEndian.Uint32(v)
		m.Policies = append(m.Policies,
			Policy{Application: int(v[0]), Unknown: b>>23&1 == 1, Tagged: b>>22&1 == 1, VLAN: int(b >> 9 & 0xfff),
				Priority: int(b >> 6 & 7), DSCP: int(b & 0x3f)})
	case 5:
		first(&m.Hardware, text(v))
	case 6:
		first(&m.Firmware, text(v))
	case 7:
		first(&m.Software, text(v))
	case 8:
		first(&m.Serial, text(v))
	case 9:
		first(&m.Manufacturer, text(v))
	case 10:
		first(&m.Model, text(v))
	case 11:
		first(&m.Asset, text(v))
	}
}

// The kinds of identities of chassis and ports: 's' is a string, 'm' a MAC, 'a' a network address.
var (
	chassisKinds = map[byte]byte{1: 's', 2: 's', 3: 's', 4: 'm', 5: 'a', 6: 's', 7: 's'}
	portKinds    = map[byte]byte{1: 's', 2: 's', 3: 'm', 4: 'a', 5: 's', 7: 's'}
)

// identifier parses the identity of a chassis or port. Its first byte is its kind.
func identifier(v []byte, kinds map[byte]byte) string {
	if len(v) < 2 {
		return ""
	}
	switch kinds[v[0]] {
	case 's':
		return text(v[1:])
	case 'm':
		if len(v) >= 7 {
			return net.HardwareAddr(v[1:7]).String()
		}
	case 'a':
		return address(v[1:])
	}
	return ""
}

// address parses an address after its family: IANA's address family numbers.
func address(v []byte) string {
	switch {
	case len(v) >= 5 && v[0] == 1:
		return netip.AddrFrom4([4]byte(v[1:])).String()
	case len(v) >= 17 && v[0] == 2:
		return netip.AddrFrom16([16]byte(v[1:])).String()
	case len(v) >= 7 && v[0] == 6:
		return net.HardwareAddr(v[1:7]).String()
	}
	return ""
}

func bits(b uint16) []string {
	out := []string{}
	for i, name := range capabilityNames {
		if i > 0 && b&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return out
}

func first(into *string, s string) {
	*into = cmp.Or(*into, s)
}

func flag(into **bool, b byte) {
	if *into == nil {
		*into = new(b != 0)
	}
}

func number(into **int, v []byte) {
	if len(v) >= 2 && *into == nil {
		*into = new(int(binary.BigEndian.Uint16(v)))
	}
}

// text cleans a string from the network: printable, without characters that move a terminal's cursor. Descriptions may
// have several lines.
func text(v []byte) string {
	s := strings.ToValidUTF8(strings.TrimRight(string(v), "\x00"), "\ufffd")
	return strings.Map(func(r rune) rune {
		if r < 0x20 && r != '\n' && r != '\r' && r != '\t' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, s)
}
