package watch

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/signoflife"
)

// rack is a store and the drivers of one node that is being started.
type rack struct{ says string }

func (rack) Node(_ context.Context, ident string) (*node.Node, error) {
	if ident != "u" {
		return nil, node.ErrNotFound
	}
	var networks []any
	// a user who may edit the node writes this
	for _, ip := range []string{"192.0.2.9", "203.0.113.9", "127.0.0.1", "169.254.169.254"} {
		networks = append(networks, map[string]any{"ip_address": ip})
	}
	return &node.Node{UUID: "u", Job: &node.Job{ID: "j"}, Boot: &node.Boot{Address: "198.51.100.4"},
		InstanceInfo: map[string]any{
			"configdrive": map[string]any{"network_data": map[string]any{"networks": networks}}}}, nil
}

func (rack) PortByMAC(_ context.Context, mac string) (*node.Port, error) {
	if mac != "52:54:00:00:00:01" {
		return nil, node.ErrNotFound
	}
	return &node.Port{NodeUUID: "u", Address: mac}, nil
}

func (rack) Leases(context.Context) ([]node.Lease, error) {
	soon := time.Now().Add(time.Hour)
	return []node.Lease{{IP: "198.51.100.1", NodeUUID: "u", ExpiresAt: soon},
		{IP: "198.51.100.2", NodeUUID: "other", ExpiresAt: soon},
		{IP: "198.51.100.3", NodeUUID: "u", ExpiresAt: time.Now().Add(-time.Second)},
		{IP: "127.0.0.3", NodeUUID: "u", ExpiresAt: soon}}, nil
}

func (r rack) Open(*node.Node) (power.Driver, error) { return &console{says: r.says}, nil }

// console says something once, and is silent then.
type console struct {
	power.Driver
	says string
}

func (*console) Close() error { return nil }

func (c *console) WatchConsole(ctx context.Context, w io.Writer) error {
	if _, err := io.WriteString(w, c.says); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func begin(t *testing.T, signs ...string) (ws *Watches, found chan string) {
	t.Helper()
	found = make(chan string, 10)
	r := rack{says: "booting\nwelcome to n1\n"}
	ws = New(r, r, func(_ context.Context, id, job, kind, detail string) error {
		found <- id + " " + job + " " + kind + " " + detail
		return ErrNotAwaited // which ends the watch
	}, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("127.0.0.0/8")}, nil,
		slog.New(slog.DiscardHandler))
	list, err := signoflife.Parse(signs)
	if err != nil {
		t.Fatal(err)
	}
	if err := ws.Begin(t.Context(), "u", "j", list, false); err != nil {
		t.Fatal(err)
	}
	return ws, found
}

// TestConsole: what the console says is found once it is the text that is waited for.
func TestConsole(t *testing.T) {
	ws, found := begin(t, "console:welcome to")
	if got, want := <-found, "u j console:welcome to "; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	ws.Wait() // nothing waits for it, so all has ended
	if ws.Reads("u") {
		t.Error("the console counts as read after the end")
	}
	for sign, reads := range map[string]bool{"console:never": true, "dhcp": false} {
		if ws, _ := begin(t, sign); ws.Reads("u") != reads || ws.Reads("other") {
			t.Errorf("with %s the console counts as read: %v, want %v", sign, !reads, reads)
		}
	}
}

// TestDHCP: the node's own port counts, while its job is watched, and no other.
func TestDHCP(t *testing.T) {
	ws, found := begin(t, "dhcp")
	ws.DHCPSeen(t.Context(), "52:54:00:00:00:02")
	ws.DHCPSeen(t.Context(), "52:54:00:00:00:01")
	if got, want := <-found, "u j dhcp 52:54:00:00:00:01"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	ws.Wait()
	ws.DHCPSeen(t.Context(), "52:54:00:00:00:01")
	if len(found) != 0 {
		t.Errorf("found %q after the end", <-found)
	}
}

// TestAddresses: a port is tried where DHCP or the agent's session showed the machine to be, and at what users write
// inside of the configured networks, but never on this host.
func TestAddresses(t *testing.T) {
	ws, _ := begin(t)
	var got []string
	for _, a := range ws.addresses(t.Context(), "u") {
		got = append(got, a.String())
	}
	if want := []string{"192.0.2.9", "198.51.100.1", "198.51.100.4"}; !slices.Equal(got, want) {
		t.Errorf("addresses %v, want %v", got, want)
	}
}

// TestNothing: without signs, and after the end of the job, nothing is started.
func TestNothing(t *testing.T) {
	ws, _ := begin(t)
	if len(ws.of) != 0 {
		t.Errorf("watches %v", ws.of)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ws.Begin(ctx, "u", "j", []signoflife.Sign{{Kind: signoflife.DHCP}}, true); err == nil || len(ws.of) != 0 {
		t.Errorf("begun after the end: %v, %v", err, ws.of)
	}
}
