package ipmi

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// endless is a controller that never stops sending.
type endless struct {
	net.Conn
	closed bool
}

func (e *endless) Read(p []byte) (int, error) { return min(len(p), 1000), nil }
func (e *endless) Close() error               { e.closed = true; return nil }

func TestEndlessControllerIsCutOff(t *testing.T) {
	now := time.Now()
	e := &endless{}
	b := &bounded{Conn: e, now: func() time.Time { return now }, may: func() error { return nil }}
	buf := make([]byte, 1500)
	read := func(bytes int) error {
		for got := 0; got < bytes; got += 1000 {
			if _, err := b.Read(buf); err != nil {
				return err
			}
		}
		return nil
	}
	for range 5 { // as much as a console can have, for long
		if err := read(limit.IPMIFloodBytes - 2000); err != nil {
			t.Fatal(err)
		}
		now = now.Add(limit.IPMIFloodTime)
	}
	if err := read(limit.IPMIFloodBytes + 2000); err == nil || !strings.Contains(err.Error(), "sends more than") ||
		!e.closed {
		t.Errorf("a flood = %v, closed %v", err, e.closed)
	}
}
