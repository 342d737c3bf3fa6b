package netboot

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

func TestTransfersAreBounded(t *testing.T) {
	now := time.Now()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	var l tftpLimits
	var ends []func(bool)
	for i := range limit.TFTPPerAddress + 1 {
		end, ok := l.begin(at(1), now)
		if ok != (i < limit.TFTPPerAddress) {
			t.Errorf("transfer %d of an address: %v", i, ok)
		}
		if ok {
			ends = append(ends, end)
		}
	}
	for i := range limit.TFTPTransfers {
		end, ok := l.begin(at(100+i), now)
		if ok != (i < limit.TFTPTransfers-limit.TFTPPerAddress) {
			t.Fatalf("transfer %d of all: %v", i, ok)
		}
		if ok {
			ends = append(ends, end)
		}
	}
	for _, end := range ends {
		end(true)
	}
	if end, ok := l.begin(at(1), now); !ok {
		t.Error("a place that is free again is not given")
	} else {
		end(true)
	}

	// An address that does not answer gets little: it may be made up.
	sent := 0
	for range 100 {
		if end, ok := l.begin(at(2), now); ok {
			end(false)
			sent++
		}
	}
	if sent != limit.TFTPSilent {
		t.Errorf("%d transfers to an address that does not answer, want %d", sent, limit.TFTPSilent)
	}
	if end, ok := l.begin(at(2), now.Add(2*limit.TFTPForgive)); !ok {
		t.Error("an address that did not answer once is refused for good")
	} else {
		end(true)
	}
	for i := range 2 * maxCounted {
		if end, ok := l.begin(at(1000+i), now); ok {
			end(false)
		}
	}
	if len(l.by) > maxCounted || l.open != 0 {
		t.Errorf("%d addresses are counted, %d transfers open", len(l.by), l.open)
	}
}

func TestRepliesAreBounded(t *testing.T) {
	var r replies
	now := time.Now()
	sent := 0
	for range 1000 {
		if r.take("52:54:00:00:00:01", now) {
			sent++
		}
	}
	if sent != limit.DHCPReplies || !r.take("52:54:00:00:00:02", now) ||
		!r.take("52:54:00:00:00:01", now.Add(limit.DHCPRefill)) {
		t.Errorf("%d replies in a row, want %d", sent, limit.DHCPReplies)
	}
}
