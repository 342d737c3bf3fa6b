package kit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// given are the ports that this process has given away.
var given = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}

// FreeAddr is an address on the loopback interface for a program that can't be handed a socket. Nobody listens there now, and the kernel gives
// its port to nobody who asks for any: those are often taken again before the program is up.
func FreeAddr(t testing.TB) string {
	t.Helper()
	const low = 15000
	high := 32768 // where Linux begins to give out ports by itself
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if f := strings.Fields(string(b)); len(f) == 2 {
			if n, err := strconv.Atoi(f[0]); err == nil && n > low+1000 {
				high = n
			}
		}
	}
	given.Lock()
	defer given.Unlock()
	for range 1000 {
		port := low + rand.IntN(high-low)
		if given.ports[port] {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue // taken
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		given.ports[port] = true
		return l.Addr().String()
	}
	t.Fatal("no port is free")
	return ""
}
