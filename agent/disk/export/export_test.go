package export

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
)

const mib = 1 << 20

// lender is a machine whose target writes what comes, from the start of the disk on.
type lender struct {
	*fake.Disks
	t        *testing.T
	mu       sync.Mutex
	exported bool
	times    int
}

func (l *lender) Export(ctx context.Context, as Target) (func() error, error) {
	dev, err := l.OpenExclusive(ctx, as.Disk) // as the kernel does
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(as.Port))
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				for at, buf := int64(0), disk.Aligned(mib); ; at += mib {
					n, err := io.ReadFull(c, buf)
					clear(buf[n:]) // the device takes whole sectors only
					if n > 0 {
						if _, werr := dev.WriteAt(buf, at); werr != nil {
							l.t.Error(werr)
						}
					}
					if err != nil { // an end is an end
						return
					}
				}
			})
		}
	})
	l.mu.Lock()
	l.exported = true
	l.times++
	l.mu.Unlock()
	return func() error {
		err := ln.Close()
		all.Wait()
		l.mu.Lock()
		l.exported = false
		l.mu.Unlock()
		return errors.Join(err, dev.Close())
	}, nil
}

func (l *lender) lent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.exported
}

// bench is a step under way.
type bench struct {
	t     *testing.T
	m     *lender
	disk  *fake.Disk
	facts *step.Facts
	addr  string
	stop  context.CancelFunc
	alive atomic.Int32 // signs of life
	over  chan struct{}
	out   step.Outcome
	err   error
}

// begin starts the step with arguments beside those that it needs.
func begin(t *testing.T, more map[string]any) *bench {
	t.Helper()
	b := &bench{t: t, m: &lender{Disks: fake.NewDisks(t.TempDir()), t: t}, facts: &step.Facts{},
		over: make(chan struct{})}
	b.disk = b.m.Add(fake.DiskSpec{Name: "vda", Serial: "s", Size: 8 << 30, Fill: 0xa5})
	port := freePair(t)
	b.addr = "127.0.0.1:" + strconv.Itoa(port)
	args := map[string]any{"initiator_name": "iqn.2026-01.example:w", "initiator_address": "127.0.0.1",
		"chap_user": "u", "chap_password": "p-p-p-p-p-p-p", "port": port, "quiet": 1}
	for k, v := range more {
		args[k] = v
	}
	text, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	b.stop = stop
	go func() {
		defer close(b.over)
		b.out, b.err = Step(b.m)(ctx, &step.Call{Args: text, Log: slog.New(slog.DiscardHandler), Facts: b.facts,
			Report: func(step.Progress) {}, Alive: func() { b.alive.Add(1) }})
	}()
	t.Cleanup(func() { stop(); <-b.over })
	return b
}

// freePair is a port that nothing listens at, nor at the next one, which the target has.
func freePair(t *testing.T) int {
	t.Helper()
	for range 100 {
		first, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := first.Addr().(*net.TCPAddr).Port
		second, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port+1))
		first.Close()
		if err == nil {
			second.Close()
			return port
		}
	}
	t.Fatal("no two ports in a row are free")
	return 0
}

// connect connects as soon as the disk is exported.
func (b *bench) connect() net.Conn {
	b.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if b.m.lent() {
			c, err := net.Dial("tcp", b.addr)
			if err == nil {
				return c
			}
		}
		if time.Now().After(end) {
			b.t.Fatal("the disk was never exported")
		}
	}
}

// end waits for the end of the step, after which nothing is left of the export.
func (b *bench) end() {
	b.t.Helper()
	select {
	case <-b.over:
	case <-time.After(time.Minute):
		b.t.Fatal("the step does not end")
	}
	if b.m.lent() {
		b.t.Error("the export outlives the step")
	}
	if c, err := net.Dial("tcp", b.addr); err == nil {
		c.Close()
		b.t.Error("the listener outlives the step")
	}
	head := make([]byte, mib)
	if _, err := b.disk.ReadAt(head, 0); err != nil || disk.HasTable(head, 512) {
		b.t.Errorf("the disk would boot: %v", err)
	}
}

// image is the start of an image with a partition.
func image() []byte {
	b := make([]byte, 3*mib)
	b[510], b[511] = 0x55, 0xaa
	b[446+4] = 0x83
	binary.LittleEndian.PutUint32(b[446+8:], 2048)
	binary.LittleEndian.PutUint32(b[446+12:], 4096)
	b[2*mib] = 0x77
	return b
}

// leave logs out and closes the connection.
func leave(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := c.Write(append([]byte{0x46, 0x80}, make([]byte, logoutSize-2)...)); err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// written has an initiator write an image and log out, and waits for the step's success.
func (b *bench) written() {
	b.t.Helper()
	c := b.connect()
	if _, err := c.Write(image()); err != nil {
		b.t.Fatal(err)
	}
	leave(b.t, c)
	b.end()
	if b.err != nil {
		b.t.Fatal(b.err)
	}
}

func TestDiskIsWritten(t *testing.T) {
	b := begin(t, nil)
	b.written()
	r := b.out.Result.(Result)
	if r.Received != 3*mib+logoutSize || r.Table != "mbr" || len(r.Partitions) != 1 || r.Disk.Serial != "s" {
		t.Errorf("result %+v", r)
	}
	at := make([]byte, 1)
	if _, err := b.disk.ReadAt(at, 2*mib); err != nil || at[0] != 0x77 {
		t.Errorf("byte at 2 MiB is %x, %v", at[0], err)
	}
	// The steps that follow find it, and commit the table.
	if _, err := disk.Commit(t.Context(), b.facts, b.m, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, mib)
	if _, err := b.disk.ReadAt(head, 0); err != nil || !disk.HasTable(head, 512) {
		t.Errorf("no table after the commit: %v", err)
	}
}

// TestOtherHostsAreRefused: no byte of another address comes through; nor is the disk taken to be written.
func TestOtherHostsAreRefused(t *testing.T) {
	b := begin(t, map[string]any{"initiator_address": "127.0.0.9"})
	c := b.connect()
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a connection of another host is served")
	}
	at := make([]byte, 1)
	if _, err := b.disk.ReadAt(at, 2*mib); err != nil || at[0] != 0xa5 {
		t.Errorf("byte at 2 MiB is %x, %v", at[0], err)
	}
	b.stop()
	b.end()
	if b.err == nil {
		t.Error("a step that was stopped succeeded")
	}
}

// TestStoppedInTheMiddle: an initiator that is at it loses its connection, and the disk has no table.
func TestStoppedInTheMiddle(t *testing.T) {
	b := begin(t, nil)
	c := b.connect()
	defer c.Close()
	if _, err := c.Write(image()); err != nil {
		t.Fatal(err)
	}
	b.stop()
	b.end()
	if !errors.Is(b.err, context.Canceled) {
		t.Errorf("the step ends with %v", b.err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection outlives the step")
	}
}

// TestWindow: the export ends at its time, an initiator being there or not.
func TestWindow(t *testing.T) {
	b := begin(t, map[string]any{"window": 1})
	c := b.connect()
	defer c.Close()
	if _, err := c.Write(image()); err != nil {
		t.Fatal(err)
	}
	b.end()
	if b.err == nil || !strings.Contains(b.err.Error(), "was not written within 1s") {
		t.Errorf("the step ends with %v", b.err)
	}
}

// TestLateInitiator: a step that waits shows life, else it would end before its window.
func TestLateInitiator(t *testing.T) {
	b := begin(t, nil)
	for end := time.Now().Add(time.Minute); b.alive.Load() < 2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the waiting step shows no life")
		}
	}
	b.written()
}

// TestInitiatorThatDies: one that goes away without logging out may have written a part only.
func TestInitiatorThatDies(t *testing.T) {
	b := begin(t, map[string]any{"window": 4})
	c := b.connect()
	if _, err := c.Write(image()); err != nil {
		t.Fatal(err)
	}
	c.Close()
	b.end()
	if b.err == nil || !strings.Contains(b.err.Error(), "was not written within 4s") {
		t.Errorf("the step ends with %v", b.err)
	}
}

func TestIsLogout(t *testing.T) {
	header := append([]byte{0x46, 0x80}, make([]byte, logoutSize-2)...)
	header[16] = 7 // its tag
	write := append([]byte{0x01, 0x80}, header[2:]...)
	for name, c := range map[string]struct {
		last []byte
		want bool
	}{
		"nothing": {nil, false}, "a part": {header[1:], false}, "a logout": {header, true},
		"with a digest": {append(append([]byte{}, header...), 1, 2, 3, 4), true},
		"after others":  {append([]byte{9, 9, 9, 9}, header...), true}, "a write": {write, false},
		"zeros": {make([]byte, logoutSize+digestSize), false},
	} {
		if got := isLogout(c.last); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestNothingBootable: what has no partition table is refused, and does not boot.
func TestNothingBootable(t *testing.T) {
	b := begin(t, nil)
	c := b.connect()
	if _, err := c.Write(make([]byte, 3*mib)); err != nil {
		t.Fatal(err)
	}
	leave(t, c)
	b.end()
	if b.err == nil || !strings.Contains(b.err.Error(), "partition table") {
		t.Errorf("the step ends with %v", b.err)
	}
	if _, err := disk.PendingOf(b.facts); err == nil {
		t.Error("later steps find an image")
	}
}

func TestArguments(t *testing.T) {
	for name, more := range map[string]map[string]any{
		"a name that leads elsewhere": {"initiator_name": "iqn.2026-01.example:../../x"},
		"no name":                     {"initiator_name": "writer"},
		"a password with a line":      {"chap_password": "p-p-p-p-p-p\np"},
		"an address of no host":       {"initiator_address": "0.0.0.0"},
		"a name of a host":            {"initiator_address": "writer.example"},
	} {
		b := begin(t, more)
		<-b.over
		if b.err == nil || b.m.times != 0 {
			t.Errorf("%s: %v, exported %d times", name, b.err, b.m.times)
		}
		if strings.Contains(b.err.Error(), "p-p-p") {
			t.Errorf("%s: the error has the password", name)
		}
	}
}
