// Package port finds addresses on the loopback interface for programs that can't be handed a socket.
package port

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
)

// given are the ports that this process has given away.
var given = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}

// Free returns an address, HOST:PORT, at which no process listens. Its port is outside of the range from which the
// kernel picks ports: those are often taken again before the program is up.
func Free() (string, error) {
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
			return "", err
		}
		given.ports[port] = true
		return l.Addr().String(), nil
	}
	return "", errors.New("no port is free")
}
