package netboot

import (
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/conductor/node"
)

// TestOtherConductors: a machine is told of some others, as far as there is room for them, and of nothing that is no
// address.
func TestOtherConductors(t *testing.T) {
	var others []string
	c := Config{Conductor: "192.0.2.1:6386", Others: func() []string { return others }}
	names := func(own string) []string {
		line, err := commandLine(c, "t", "", own)
		if err != nil {
			t.Fatal(err)
		}
		config, err := agent.ParseCmdline(strings.ReplaceAll(line, "ingot.ca=", "ignored="))
		if err != nil {
			t.Fatalf("the agent does not understand %q: %v", line, err)
		}
		return config.Conductors
	}
	if got := names(""); !slices.Equal(got, []string{"192.0.2.1:6386"}) {
		t.Errorf("alone: %q", got)
	}
	others = []string{"a b:1", "x,y:1", "192.0.2.1:6386", "[2001:db8::2]:6386", "c3.example:1", "x:1\ninit=/bin/sh",
		"192.0.2.4:6386", "192.0.2.5:6386"}
	want := []string{"192.0.2.1:6386", "[2001:db8::2]:6386", "c3.example:1", "192.0.2.4:6386"}
	if got := names(""); !slices.Equal(got, want) {
		t.Errorf("with others: %q, want %q", got, want)
	}
	if got := names(strings.Repeat("a", 1925)); !slices.Equal(got, want[:1]) {
		t.Errorf("on a long command line: %q, want %q", got, want[:1])
	}
}

func TestBondParams(t *testing.T) {
	two := []string{"52:54:00:00:00:02", "52:54:00:00:00:01"}
	got := bondParams([]Group{
		{&node.Portgroup{Mode: "802.3ad", StandalonePortsSupported: true}, two},
		{&node.Portgroup{
			Mode: "802.3ad", Properties: map[string]any{"miimon": 50, "bond_lacp_rate": "fast", "speed": 1}}, two},
		{&node.Portgroup{Address: "52:54:00:00:00:0a", Properties: map[string]any{"xmit_hash_policy": "layer3+4"}},
			two[:1]},
		{&node.Portgroup{Mode: "active-backup"}, nil},
		{&node.Portgroup{Mode: "a b || shell"}, two},
	})
	want := []string{
		"ingot.bond=bond0,mode=802.3ad,members=52:54:00:00:00:01+52:54:00:00:00:02,miimon=50,lacp_rate=fast",
		"ingot.bond=bond1,mode=active-backup,members=52:54:00:00:00:02,address=52:54:00:00:00:0a,xmit_hash_policy=layer3+4",
	}
	if !slices.Equal(got, want) {
		t.Errorf("bondParams = %q, want %q", got, want)
	}
	line, err := commandLine(Config{Conductor: "192.0.2.1:6386"}, "t", "", "ingot.bond=bond7,members=52:54:00:00:00:07",
		got...)
	if err != nil || !slices.Contains(strings.Fields(line), want[1]) ||
		!slices.Contains(strings.Fields(line), "ingot.bond=bond7,members=52:54:00:00:00:07") {
		t.Errorf("command line %q, %v", line, err)
	}
}
