package netboot

import (
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

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
