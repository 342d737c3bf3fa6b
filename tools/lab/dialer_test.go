package lab_test

import (
	"net"
	"testing"

	"github.com/ingot-metal/ingot/tools/lab"
)

// dialer lets go-ipmi reach a controller in the lab from outside.
type dialer struct {
	t *testing.T
	l *lab.Lab
}

func (d dialer) Dial(network, address string) (net.Conn, error) {
	return d.l.DialContext(d.t.Context(), network, address)
}
