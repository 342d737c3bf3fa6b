package app

import (
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/peer"
)

// TestPeersOfARotatedCA: while the CA is rotated with an overlap, a conductor that has taken the new one and one that
// was not started again forward requests to each other; without an overlap they do not.
func TestPeersOfARotatedCA(t *testing.T) {
	for _, tt := range []struct {
		overlap time.Duration
		want    bool
	}{{time.Hour, true}, {0, false}} {
		before, after := t.TempDir(), t.TempDir()
		old, err := agents.OpenCA(before)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(after, os.DirFS(before)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(after, "ca.key"), 0o600); err != nil {
			t.Fatal(err)
		}
		rotated, err := agents.RotateCA(after, time.Now(), tt.overlap)
		if err != nil {
			t.Fatal(err)
		}
		identities := map[string]*peer.Identity{}
		reach := map[string]string{}
		for name, ca := range map[string]*agents.CA{"old": old, "new": rotated} {
			id, err := peer.NewIdentity(name, ca, nil)
			if err != nil {
				t.Fatal(err)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			s := peer.NewServer(id, func(w http.ResponseWriter, _ *http.Request, _ peer.Origin) {
				w.WriteHeader(http.StatusNoContent)
			}, nil, nil, nil)
			web := limit.HTTP(s, slog.New(slog.DiscardHandler))
			done := make(chan error, 1)
			go func() { done <- web.Serve(s.Listener(l)) }()
			t.Cleanup(func() {
				web.Close()
				<-done
			})
			identities[name], reach[name] = id, l.Addr().String()
		}
		for _, way := range [][2]string{{"old", "new"}, {"new", "old"}} {
			c := peer.NewClient(identities[way[0]], func(name string) (string, bool) { return reach[name], true }, nil)
			_, err := c.Forward(t.Context(), way[1],
				&peer.Request{ID: "r", Actor: access.Anybody(), Method: "GET", URL: "/"})
			if (err == nil) != tt.want {
				t.Errorf("with an overlap of %s, %s to %s: %v", tt.overlap, way[0], way[1], err)
			}
			c.Close()
		}
	}
}

// TestPeerAddress: other conductors are given an address that they can reach, wherever the database is.
func TestPeerAddress(t *testing.T) {
	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 6387} }
	for _, tt := range []struct{ what, listen, database, reach, want string }{
		{"an address of its own", "192.0.2.7", "127.0.0.1:5432", "10.0.0.1:6386", "192.0.2.7:6387"},
		{"the database on this host", "::", "127.0.0.1:5432", "10.0.0.1:6386", "10.0.0.1:6387"},
		{"its socket", "::", "", "10.0.0.1:6386", "10.0.0.1:6387"},
		{"a database without a way to it", "0.0.0.0", "nonsense", "[2001:db8::1]:6386", "[2001:db8::1]:6387"},
	} {
		if got, err := peerAddress(at(tt.listen), tt.database, tt.reach); err != nil || got != tt.want {
			t.Errorf("%s: %q, %v, want %q", tt.what, got, err, tt.want)
		}
	}
	// Towards another host the address is one of this host's.
	if got, err := peerAddress(at("::"), "198.51.100.1:5432", "10.0.0.1:6386"); err == nil && got != "10.0.0.1:6387" {
		host, _, _ := net.SplitHostPort(got)
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatalf("%s is none of this host: %v", got, err)
		}
		l.Close()
	} else if err != nil {
		t.Error(err)
	}
}
