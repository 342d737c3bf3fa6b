// Package switched serves the lab's switches to tests.
package switched

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/tools/lab/vswitch"
)

// Serve lets a switch be configured over SSH on loopback until the test ends. hostKey is the line by which its clients
// know it.
func Serve(t testing.TB, s *vswitch.Switch) (address, hostKey string) {
	t.Helper()
	key, hostKey, err := vswitch.NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() {
		if err := s.Serve(ctx, l, key); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); served.Wait() })
	return l.Addr().String(), hostKey
}
