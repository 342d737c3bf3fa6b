package swarm

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/proto/agentv1"
)

// full fails for a field that has its zero value: a new one must be put into the test, or it would not be seen to get
// lost.
func full(t *testing.T, v any) {
	t.Helper()
	r := reflect.ValueOf(v)
	for i := range r.NumField() {
		if r.Field(i).IsZero() {
			t.Errorf("%s.%s is not filled", r.Type(), r.Type().Field(i).Name)
		}
	}
}

func TestNothingGetsLost(t *testing.T) {
	s := State{Image: Image{1, 31: 2}, Port: 65535, Chunks: 9, Whole: true, Have: []byte{1, 1}, Added: []uint32{3},
		Fetching: []uint32{4}, Fetched: 1 << 40, Done: true, Left: true, Liars: []string{"l"}}
	full(t, s)
	if got, err := StateOf(s.Message()); err != nil || !cmp.Equal(got, s) {
		t.Errorf("%v\n%s", err, cmp.Diff(s, got))
	}
	p := Peer{Node: "n", Generation: 5, Addr: netip.MustParseAddrPort("[2001:db8::1]:80"), Whole: true, Have: []byte{7},
		Added: []uint32{1}, Fetching: []uint32{2}, Fetched: 3}
	n := News{Image: Image{9}, Whole: true, Peers: []Peer{p, {Addr: netip.MustParseAddrPort("192.0.2.1:1")}},
		Gone: []string{"g"}, Seeds: []string{"s"}, Fetched: 8}
	full(t, p)
	full(t, n)
	if got, err := NewsOf(n.Message()); err != nil ||
		!cmp.Equal(got, n, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })) {
		t.Errorf("%v\n%+v\n%+v", err, n, got)
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	image := make([]byte, 32)
	for want, m := range map[string]*agentv1.SwarmState{
		"whose name has 0 bytes": {}, "whose name has 33 bytes": {Image: make([]byte, 33)},
		"port 65536": {Image: image, Port: 1 << 16}, "4294967295 chunks": {Image: image, Chunks: 1<<32 - 1},
	} {
		if _, err := StateOf(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for want, m := range map[string]*agentv1.SwarmPeers{
		"whose name has 31 bytes": {Image: make([]byte, 31)},
		"a neighbour's address":   {Image: image, Peers: []*agentv1.SwarmPeer{{Address: "nonsense"}}},
	} {
		if _, err := NewsOf(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
