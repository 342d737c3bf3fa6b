package lldp

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ironicExample is the example frame in Ironic's tests of its hook parse-lldp, with Ironic's result.
const ironicExample = `[[1,"04112233aabbcc"],[2,"07373334"],[3,"003c"],
	[4,"686f737430322e6c61622e656e6720706f727420332028426f6e6429"],[5,"737730312d646973742d31622d623132"],
	[6,"4e6574776f726b732c20496e632e20353530302c2076657273696f6e203132204275696c6420646174653a20323031342d30332d31332030383a33383a33302055544320"],
	[7,"00140014"],[8,"0501c000020f020000000000"],[8,"110220010db885a3000000008a2e03707334020000000000"],[8,"0706aa11bb22cc3302000003e900"],
	[127,"00120f01036c110010"],[127,"00120f030300000002"],[127,"00120f0405ea"],[127,"0080c2010066"],[127,"0080c20206000a"],[127,"0080c202060014"],
	[127,"0080c204080026424203000000"],[127,"0080c203006507766c616e313031"],[127,"0080c203006607766c616e313032"],
	[127,"0080c203006807766c616e313034"],[127,"0080c2060058"],[0,""]]`

const ironicResult = `{
	"switch_chassis_id": "11:22:33:aa:bb:cc", "switch_port_id": "734", "switch_port_description": "host02.lab.eng port 3 (Bond)",
	"switch_system_name": "sw01-dist-1b-b12",
	"switch_system_description": "Networks, Inc. 5500, version 12 Build date: 2014-03-13 08:38:30 UTC ",
	"switch_capabilities_enabled": ["Bridge", "Router"], "switch_capabilities_support": ["Bridge", "Router"],
	"switch_mgmt_addresses": ["192.0.2.15", "2001:db8:85a3::8a2e:370:7334", "aa:11:bb:22:cc:33"],
	"switch_port_autonegotiation_enabled": true, "switch_port_autonegotiation_support": true,
	"switch_port_link_aggregation_enabled": true, "switch_port_link_aggregation_support": true, "switch_port_link_aggregation_id": 2,
	"switch_port_management_vlan_id": 88, "switch_port_mau_type": "100BASE-TX full duplex", "switch_port_mtu": 1514,
	"switch_port_physical_capabilities": ["1000BASE-T fdx", "100BASE-TX fdx", "100BASE-TX hdx", "10BASE-T fdx", "10BASE-T hdx", "Asym and Sym PAUSE fdx"],
	"switch_port_protocol_vlan_enabled": true, "switch_port_protocol_vlan_support": true, "switch_port_protocol_vlan_ids": [10, 20],
	"switch_port_untagged_vlan_id": 102,
	"switch_port_vlans": [{"id": 101, "name": "vlan101"}, {"id": 102, "name": "vlan102"}, {"id": 104, "name": "vlan104"}],
	"switch_protocol_identities": ["0026424203000000"], "ttl": 60}`

// frame puts TLVs into an Ethernet frame.
func frame(tlvs ...TLV) []byte {
	b := []byte{1, 0x80, 0xc2, 0, 0, 0x0e, 0x52, 0x54, 0, 1, 2, 3, 0x88, 0xcc}
	for _, t := range tlvs {
		b = append(b, t.Type<<1|byte(len(t.Value)>>8), byte(len(t.Value)))
		b = append(b, t.Value...)
	}
	return b
}

func tlvs(t testing.TB, pairs string) []TLV {
	t.Helper()
	var all []TLV
	if err := json.Unmarshal([]byte(pairs), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func asMap(t *testing.T, v any) map[string]any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestIronicsExample(t *testing.T) {
	all := tlvs(t, ironicExample)
	parsed, err := Parse(frame(all...))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all, parsed); diff != "" {
		t.Errorf("Parse (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(asMap(t, json.RawMessage(ironicResult)), asMap(t, Describe(parsed))); diff != "" {
		t.Errorf("Describe (-want +got):\n%s", diff)
	}
	// The pairs that are sent are those that were read.
	b, err := json.Marshal(parsed)
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := json.Compact(&want, []byte(ironicExample)); err != nil || want.String() != string(b) {
		t.Errorf("JSON %s, want %s (%v)", b, &want, err)
	}
}

func TestDescribe(t *testing.T) {
	for name, c := range map[string]struct{ pairs, want string }{
		"address as chassis": {`[[1,"0501c000020f"]]`, `{"switch_chassis_id":"192.0.2.15"}`},
		"name as chassis":    {`[[1,"0773773031"]]`, `{"switch_chassis_id":"sw01"}`},
		"IPv6 as port":       {`[[2,"040220010db8000000000000000000000001"]]`, `{"switch_port_id":"2001:db8::1"}`},
		"MAC as port":        {`[[2,"03525400aabbcc"]]`, `{"switch_port_id":"52:54:00:aa:bb:cc"}`},
		"the first one counts": {`[[1,"04112233aabbcc"],[1,"04332211ddeeff"],[2,"07373334"],[2,"07373435"]]`,
			`{"switch_chassis_id":"11:22:33:aa:bb:cc","switch_port_id":"734"}`},
		"what is not known": {
			`[[10,"04112233aabbcc"],[127,"00906901425030323134530393236a"],[127,"23ac00746573"],[127,"0011"]]`, `{}`},
		"cut short": {
			`[[1,""],[1,"04112233"],[2,"03"],[3,"00"],[7,"0014"],[8,"05"],[8,"0501c0"],[127,"0080c2"],[127,"0080c203006507"],[127,"00120f0103"],[127,"0080c20407"]]`, `{}`},
		"text that can't be": {`[[5,"73777f1b5b324a01ff00"]]`, "{\"switch_system_name\":\"sw[2J\ufffd\"}"},
		"full duplex alone": {`[[127,"00120f010320000010"]]`,
			`{"switch_port_autonegotiation_enabled":true,"switch_port_autonegotiation_support":true,"switch_port_physical_capabilities":["10BASE-T fdx"],"switch_port_mau_type":"100BASE-TX full duplex"}`},
		"younger medium": {`[[127,"00120f01000000ffff"]]`,
			`{"switch_port_autonegotiation_enabled":false,"switch_port_autonegotiation_support":false}`},
		"aggregation of 802.1": {`[[127,"0080c2070100000005"]]`,
			`{"switch_port_link_aggregation_enabled":false,"switch_port_link_aggregation_support":true,"switch_port_link_aggregation_id":5}`},
		"capabilities, all": {
			`[[7,"07fe0000"]]`,
			`{"switch_capabilities_support":["Repeater","Bridge","WLAN","Router","Telephone","DOCSIS cable device","Station only","C-Vlan","S-Vlan","TPMR"]}`},
		"power over Ethernet": {
			`[[127,"00120f02070104"]]`, `{"switch_port_power":{"supported":true,"enabled":true,"class":3}}`},
		"power, with what is had": {`[[127,"00120f020701045200820082"]]`,
			`{"switch_port_power":{"supported":true,"enabled":true,"class":3,"allocated_milliwatts":13000}}`},
		"MED": {`[[127,"0012bb01003f04"],[127,"0012bb020140c9ae"],[127,"0012bb0541"],[127,"0012bb0642"],[127,"0012bb0743"],[127,"0012bb0844"],[127,"0012bb0945"],[127,"0012bb0a46"],[127,"0012bb0b47"]]`,
			`{"med":{"device_type":"network connectivity","network_policies":[{"application":1,"tagged":true,"vlan_id":100,"priority":6,"dscp":46}],
			"hardware_revision":"A","firmware_revision":"B","software_revision":"C","serial_number":"D","manufacturer":"E","model":"F","asset_id":"G"}}`},
	} {
		if diff := cmp.Diff(asMap(t, json.RawMessage(c.want)), asMap(t, Describe(tlvs(t, c.pairs)))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	good := frame(tlvs(t, `[[1,"04112233aabbcc"],[2,"07373334"],[3,"003c"],[0,""]]`)...)
	tagged := slices.Concat(good[:12], []byte{0x81, 0, 0, 7}, good[12:])
	for name, c := range map[string]struct {
		frame []byte
		err   error
	}{
		"good":            {good, nil},
		"padded":          {append(slices.Clone(good), make([]byte, 30)...), nil},
		"in a VLAN":       {tagged, nil},
		"no end marker":   {good[:len(good)-2], nil},
		"empty":           {nil, ErrNotLLDP},
		"other type":      {slices.Concat(good[:12], []byte{8, 0}, good[14:]), ErrNotLLDP},
		"cut off":         {good[:len(good)-3], ErrBroken},
		"no port":         {frame(tlvs(t, `[[1,"04112233aabbcc"],[3,"003c"]]`)...), ErrBroken},
		"nothing at all":  {good[:14], ErrBroken},
		"chassis not 1st": {frame(tlvs(t, `[[2,"07373334"],[1,"04112233aabbcc"],[3,"003c"]]`)...), ErrBroken},
	} {
		if all, err := Parse(c.frame); !errors.Is(err, c.err) || err == nil && len(all) < 3 {
			t.Errorf("%s: %v, %v, want %v", name, all, err, c.err)
		}
	}
	if all, _ := Parse(good); Leaving(all) {
		t.Error("a neighbour with 60 s to live is leaving")
	}
	if all, _ := Parse(frame(tlvs(t, `[[1,"04112233aabbcc"],[2,"07373334"],[3,"0000"],[0,""]]`)...)); !Leaving(all) {
		t.Error("a neighbour with no time to live is not leaving")
	}
	for _, bad := range []string{`[[1]]`, `[["x","00"]]`, `[[1,"0"]]`, `[[300,"00"]]`, `[5]`} {
		var all []TLV
		if json.Unmarshal([]byte(bad), &all) == nil {
			t.Errorf("%s is taken for TLVs: %v", bad, all)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(frame(tlvs(f, ironicExample)...))
	med, _ := hex.DecodeString("0012bb020140c9ae")
	f.Add(frame(TLV{1, []byte("\x07a")}, TLV{2, []byte("\x07b")}, TLV{3, []byte{0, 60}}, TLV{127, med}))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := Parse(b)
		if err != nil {
			return
		}
		n := Describe(all)
		if _, err := json.Marshal(n); err != nil {
			t.Error(err)
		}
		again, err := Parse(frame(all...))
		if err != nil || len(again) != len(all) {
			t.Errorf("put together again: %v, %d TLVs, want %d", err, len(again), len(all))
		}
	})
}
