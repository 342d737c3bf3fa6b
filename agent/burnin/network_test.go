package burnin

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/step"
)

// freePort returns an unused port.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// ended is how one of a pair ended.
type ended struct {
	r   NetworkResult
	err error
}

// pair runs both roles on this machine; the writer connects to a separate port, on which the reader or a proxy listens.
func pair(t *testing.T, ctx context.Context, mw, mr links, writerPort, readerPort int,
	writerArgs, readerArgs string) (w, r ended) {
	t.Helper()
	var wg sync.WaitGroup
	run := func(e *ended, m links, args string) {
		out, err := NetworkStep(m)(ctx, call(args))
		*e = ended{resultOf[NetworkResult](t, out, err), err}
	}
	wg.Go(func() {
		run(&r, mr, fmt.Sprintf(`{"role": "reader", "partner": "127.0.0.1", "port": %d, "wait": 60%s}`, readerPort,
			readerArgs))
	})
	wg.Go(func() {
		run(&w, mw, fmt.Sprintf(
			`{"role": "writer", "partner": "127.0.0.1", "port": %d, "wait": 60, "runtime": 0.05, "streams": 3%s}`,
			writerPort, writerArgs))
	})
	wg.Wait()
	return w, r
}

// wired is a machine with a link to itself.
func wired(t *testing.T, speed string) *fake.Machine {
	m := fake.NewMachine(t.TempDir())
	m.Nets = map[string][]netip.Prefix{"eth7": {netip.MustParsePrefix("127.0.0.1/8")},
		"eth8": {netip.MustParsePrefix("192.0.2.1/24")}}
	put(t, m.Root(),
		map[string]string{netDir + "/eth8/speed": "10", netDir + "/eth7/speed": speed,
			netDir + "/eth7/carrier_changes": "2", netDir + "/eth7/statistics/rx_errors": "5",
			netDir + "/eth7/statistics/rx_crc_errors": "1", netDir + "/eth7/statistics/rx_dropped": "9"})
	return m
}

// TestNetwork runs a real pair over the loopback interface.
func TestNetwork(t *testing.T) {
	port := freePort(t)
	const lenient = `, "max_link_errors": 1000000, "max_carrier_changes": 1000`
	w, r := pair(t, t.Context(), linux.Machine{}, linux.Machine{}, port, port, lenient, lenient)
	wantError(t, w.err)
	wantError(t, r.err)
	if w.r.Streams != 3 || r.r.Streams != 3 || w.r.Sent.Bytes < 3*frameSize || w.r.Sent.Bytes != r.r.Received.Bytes ||
		r.r.Sent.Bytes < 3*frameSize ||
		r.r.Sent.Bytes != w.r.Received.Bytes || w.r.Corrupt+r.r.Corrupt != 0 || w.r.Sent.MbitPerSecond <= 0 ||
		w.r.Segments == 0 || r.r.Local != "127.0.0.1" {
		t.Errorf("writer %+v\nreader %+v", w.r, r.r)
	}
	if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
		t.Errorf("the reader still listens: %v", err)
	} else {
		l.Close()
	}
}

// late is a machine to whose link something happens while it is used.
type late struct {
	*fake.Machine
	happens func()
}

func (m late) Segments(c *net.TCPConn) (int64, int64, error) {
	m.happens()
	return m.Machine.Segments(c)
}

func TestNetworkLimits(t *testing.T) {
	stats := netDir + "/eth7/statistics/"
	for _, tt := range []struct {
		name, speed, args string
		again             int64
		happens           map[string]string
		want              []string
	}{
		{"good", "1", ``, 0, nil, nil},
		{"speed not known", "-1", ``, 0, nil, nil},
		{"slow for its link", "999999999", ``, 0, nil,
			[]string{"sending to 127.0.0.1 at ", "receiving from 127.0.0.1 at ", "of the link's speed, and not 50"}},
		{"slow is allowed", "999999999", `, "min_link_percent": 0`, 0, nil, nil},
		{"too slow", "1", `, "min_mbit_per_second": 1e12`, 0, nil,
			[]string{"sending to 127.0.0.1 at ", "Mbit/s, and not 1e+12"}},
		{"retransmits", "1", `, "max_retransmit_percent": 2`, 30, nil,
			[]string{"3 % of the segments had to be sent again, and 2 is allowed"}},
		{"retransmits told", "1", ``, 30, nil, nil},
		{"errors", "1", ``, 0, map[string]string{stats + "rx_errors": "7", stats + "rx_crc_errors": "2"},
			[]string{"link eth7 counted 2 errors, and 0 is allowed"}},
		{"errors allowed", "1", `, "max_link_errors": 2`, 0, map[string]string{stats + "rx_errors": "7"}, nil},
		{"drops", "1", `, "max_link_drops": 10`, 0, map[string]string{stats + "rx_dropped": "20"},
			[]string{"link eth7 counted 11 dropped packets, and 10 is allowed"}},
		{"drops told", "1", ``, 0, map[string]string{stats + "rx_dropped": "20"}, nil},
		{"carrier", "1", ``, 0, map[string]string{netDir + "/eth7/carrier_changes": "4"},
			[]string{"link eth7 counted 2 changes of its carrier"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := wired(t, tt.speed)
			m.Again = tt.again
			port := freePort(t)
			w, r := pair(t, t.Context(), late{m, func() { put(t, m.Root(), tt.happens) }}, wired(t, "1"), port, port,
				tt.args, "")
			wantError(t, w.err, tt.want...)
			wantError(t, r.err)
			if w.r.Interface != "eth7" || (w.r.Speed == nil) != (tt.speed == "-1") || w.r.Segments != 3000 ||
				w.r.Again != 3*tt.again {
				t.Errorf("result %+v", w.r)
			}
		})
	}
}

// between copies data from its own port to another, through a function that may change it or end the connection.
func between(t *testing.T, to int, pass func(toReader bool, at int64, p []byte) error) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", to))
			if err != nil {
				in.Close()
				continue
			}
			carry := func(from, to net.Conn, toReader bool) {
				defer from.Close()
				defer to.Close()
				buf, at := make([]byte, 64<<10), int64(0)
				for {
					n, err := from.Read(buf)
					if perr := pass(toReader, at, buf[:n]); perr != nil {
						return
					}
					at += int64(n)
					if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
						return
					}
				}
			}
			wg.Go(func() { carry(in, out, true) })
			wg.Go(func() { carry(out, in, false) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().(*net.TCPAddr).Port
}

// TestNetworkCorrupt: a bit that turned on the way is found in either direction, and both partners know.
func TestNetworkCorrupt(t *testing.T) {
	for _, toReader := range []bool{true, false} {
		port := freePort(t)
		at := int64(5000) // inside of the first block, in either direction
		through := between(t, port, func(to bool, off int64, p []byte) error {
			if to == toReader && off <= at && at < off+int64(len(p)) {
				p[at-off] ^= 0x10
			}
			return nil
		})
		w, r := pair(t, t.Context(), fake.NewMachine(t.TempDir()), fake.NewMachine(t.TempDir()), through, port, "", "")
		wantError(t, w.err, "3 blocks of 256 KiB arrived otherwise")
		wantError(t, r.err, "3 blocks of 256 KiB arrived otherwise")
	}
}

// TestNetworkCut: a connection that ends early is never a success, and both partners report it.
func TestNetworkCut(t *testing.T) {
	port := freePort(t)
	through := between(t, port, func(to bool, off int64, p []byte) error {
		if to && off > frameSize/2 {
			return io.ErrUnexpectedEOF
		}
		return nil
	})
	w, r := pair(t, t.Context(), fake.NewMachine(t.TempDir()), fake.NewMachine(t.TempDir()), through, port,
		`, "runtime": 3600`, "")
	for _, e := range []ended{w, r} {
		wantError(t, e.err, "exchange data with partner 127.0.0.1")
		if !step.AsError(e.err).Retryable {
			t.Errorf("%v is not retryable", e.err)
		}
	}
}

func TestNetworkAbsent(t *testing.T) {
	for _, role := range []string{"writer", "reader"} {
		_, err := NetworkStep(fake.NewMachine(t.TempDir()))(t.Context(),
			call(fmt.Sprintf(`{"role": %q, "partner": "127.0.0.1", "port": %d, "wait": 0.1}`, role, freePort(t))))
		wantError(t, err, "no partner at 127.0.0.1:", "after 100ms")
		if e := step.AsError(err); !e.Retryable || e.Remedy == "" {
			t.Errorf("%s: %+v", role, e)
		}
	}
	_, err := NetworkStep(fake.NewMachine(t.TempDir()))(t.Context(), call(`{"role": "writer", "partner": "rack2"}`))
	wantError(t, err, "is no address")
}

// TestNetworkStranger: connections from other hosts or with another protocol are refused, and the partners still
// connect.
func TestNetworkStranger(t *testing.T) {
	port := freePort(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var r ended
	wg.Go(func() {
		out, err := NetworkStep(fake.NewMachine(t.TempDir()))(ctx,
			call(fmt.Sprintf(`{"role": "reader", "partner": "127.0.0.1", "port": %d, "wait": 300}`, port)))
		r = ended{resultOf[NetworkResult](t, out, err), err}
	})
	knock := func(from, say string) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		var conn net.Conn
		for conn == nil && ctx.Err() == nil { // until the reader listens
			conn, _ = d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		}
		if conn == nil {
			t.Errorf("the reader never listened")
			return
		}
		defer conn.Close()
		_, _ = conn.Write([]byte(say))
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Minute))
		if b, err := io.ReadAll(conn); len(b) > 0 || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s was answered %q, %v", from, b, err)
		}
	}
	knock("127.0.0.2", "")
	knock("127.0.0.1", "GET / HTTP/1.1\r\nHost: reader.example\r\n\r\n")
	out, err := NetworkStep(fake.NewMachine(t.TempDir()))(ctx,
		call(fmt.Sprintf(`{"role": "writer", "partner": "127.0.0.1", "port": %d, "wait": 300, "runtime": 0}`, port)))
	wantError(t, err)
	wg.Wait()
	wantError(t, r.err)
	if w := resultOf[NetworkResult](t, out, err); w.Streams != 4 || r.r.Streams != 4 {
		t.Errorf("writer %+v, reader %+v", w, r.r)
	}
}

// TestNetworkStop: both roles end at once when they are stopped, waiting or at work, and nothing listens any more.
func TestNetworkStop(t *testing.T) {
	for _, role := range []string{"writer", "reader"} {
		port := freePort(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("stop")
		c := call(fmt.Sprintf(`{"role": %q, "partner": "127.0.0.1", "port": %d, "wait": 3600}`, role, port))
		c.Report = func(step.Progress) { time.AfterFunc(10*time.Millisecond, func() { cancel(why) }) }
		if _, err := NetworkStep(fake.NewMachine(t.TempDir()))(ctx, c); !errors.Is(err, why) {
			t.Errorf("%s: %v", role, err)
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	port := freePort(t)
	ctx, cancel := context.WithCancel(t.Context())
	through := between(t, port, func(to bool, off int64, p []byte) error {
		if to && off > 4*frameSize {
			cancel()
		}
		return nil
	})
	w, r := pair(t, ctx, fake.NewMachine(t.TempDir()), fake.NewMachine(t.TempDir()), through, port, `, "runtime": 3600`,
		"")
	wantError(t, w.err, "stopped before its end")
	wantError(t, r.err, "stopped before its end")
}

func FuzzGreeting(f *testing.F) {
	good := binary.BigEndian.AppendUint64(append([]byte(nil), hello...), 42)
	good = binary.BigEndian.AppendUint32(good, 4)
	good = binary.BigEndian.AppendUint64(good, 1000)
	f.Add(good)
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a.example"))
	f.Add(append(append([]byte(nil), hello...), make([]byte, 20)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		session, streams, runtime, err := parseGreeting(b)
		if err == nil && (streams < 1 || streams > maxStreams || runtime < 0 || runtime > longest*time.Second ||
			session != binary.BigEndian.Uint64(b[8:])) {
			t.Errorf("%x is a greeting of %d streams for %s", b, streams, runtime)
		}
	})
}
