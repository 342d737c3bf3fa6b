package burnin

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// NetworkArgs declares the arguments of burnin_network.
var NetworkArgs = []step.Arg{
	{Name: "partner", Type: "string", Required: true,
		Description: "address of the other machine, which runs this step at the same time with this machine's address and the other role"},
	{Name: "role", Type: "string", Required: true, Enum: []string{"writer", "reader"},
		Description: "the reader listens, only for its partner and only until it has connected; the writer connects; both then write and read in turn"},
	{Name: "port", Type: "integer", Min: step.Limit(1), Max: step.Limit(65535),
		Description: "TCP port of the reader (default 9000)"},
	{Name: "streams", Type: "integer", Min: step.Limit(1), Max: step.Limit(maxStreams),
		Description: "number of concurrent connections (default 4); the writer's value is used"},
	{Name: "runtime", Type: "number", Min: step.Limit(0), Max: step.Limit(longest),
		Description: "seconds in each direction (default 21600); the writer's value is used"},
	{Name: "wait", Type: "number", Min: step.Limit(1), Max: step.Limit(longest),
		Description: "seconds to wait for the partner (default 3600)"},
	{Name: "min_mbit_per_second", Type: "number", Min: step.Limit(0),
		Description: "fail below this throughput in either direction (default 0)"},
	{Name: "min_link_percent", Type: "number", Min: step.Limit(0), Max: step.Limit(100),
		Description: "fail below this percentage of the link's speed, if known (default 50)"},
	{Name: "max_retransmit_percent", Type: "number", Min: step.Limit(0), Max: step.Limit(100),
		Description: "fail if more of the segments were retransmitted; default: only report it"},
	{Name: "max_link_errors", Type: "integer", Min: step.Limit(0),
		Description: "fail if the link counted more errors during the test (default 0)"},
	{Name: "max_link_drops", Type: "integer", Min: step.Limit(0),
		Description: "fail if the link dropped more packets during the test; default: only report it"},
	{Name: "max_carrier_changes", Type: "integer", Min: step.Limit(0),
		Description: "fail if the link went down or up more often during the test (default 0)"},
}

type networkArgs struct {
	Partner       string   `json:"partner"`
	Role          string   `json:"role"`
	Port          *int     `json:"port"`
	Streams       *int     `json:"streams"`
	Runtime       *float64 `json:"runtime"`
	Wait          *float64 `json:"wait"`
	MinMbit       *float64 `json:"min_mbit_per_second"`
	MinLink       *float64 `json:"min_link_percent"`
	MaxRetransmit *float64 `json:"max_retransmit_percent"`
	MaxErrors     *int64   `json:"max_link_errors"`
	MaxDrops      *int64   `json:"max_link_drops"`
	MaxCarrier    *int64   `json:"max_carrier_changes"`
}

// links is the part of the machine that burnin_network uses.
type links interface {
	// Root is the directory that contains sys.
	Root() string
	Addresses(ifname string) ([]netip.Prefix, error)
	// Segments returns the number of segments sent on a connection, and of retransmitted ones.
	Segments(c *net.TCPConn) (sent, again int64, err error)
}

// NetworkResult holds this machine's measurements of burnin_network.
type NetworkResult struct {
	Role      string   `json:"role"`
	Partner   string   `json:"partner"`
	Local     string   `json:"local"`
	Interface string   `json:"interface,omitempty"`
	Speed     *int64   `json:"link_mbit_per_second,omitempty"` // nil: unknown to the driver
	Streams   int      `json:"streams"`
	Sent      Flow     `json:"sent"`
	Received  Flow     `json:"received"`
	Segments  int64    `json:"segments"`
	Again     int64    `json:"retransmitted"`
	Percent   float64  `json:"retransmitted_percent"`
	Corrupt   int64    `json:"corrupt_blocks"` // received here or, by its report, by the partner
	Link      counters `json:"link"`           // growth of the link's counters
}

// Flow is the traffic in one direction, over all streams.
type Flow struct {
	Bytes         int64   `json:"bytes"`
	Seconds       float64 `json:"seconds"`
	MbitPerSecond float64 `json:"mbit_per_second"`
	PercentOfLink float64 `json:"percent_of_link,omitempty"`
}

const (
	defaultPort  = 9000
	maxStreams   = 64
	frameSize    = 256 << 10
	frames       = 4 // different ones
	silence      = time.Minute
	greetingTime = 15 * time.Second
	dialAgain    = 250 * time.Millisecond
)

var (
	hello = []byte("INGOTBI1") // from the writer: then session, streams, milliseconds of each direction
	start = []byte("INGOTGO1") // from the reader, on each stream, once all are there
)

// NetworkStep exchanges streams of noise with a partner and compares the received data with the sent: links and network
// cards can flip bits undetected by checksums. The agent listens only in the reader's role, on the address that leads
// to the partner, and only until all streams are connected; connections from other hosts are closed unread. Peers are
// not authenticated; only noise is exchanged.
func NetworkStep(m links) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, a networkArgs) (step.Outcome, error) {
		partner, err := netip.ParseAddr(a.Partner)
		if err != nil {
			return step.Outcome{},
				step.Failf("give the partner's address, not its name", "partner %q is no address", a.Partner)
		}
		n := &netTest{args: a, m: m, c: c, partner: partner.Unmap(),
			r: NetworkResult{Role: a.Role, Partner: partner.Unmap().String()}}
		if err := n.route(ctx); err != nil {
			return step.Outcome{}, err
		}
		if err := n.run(ctx); err != nil {
			return step.Outcome{}, step.WithResult(err, n.r)
		}
		c.Log.Info("network burnt in", "interface", n.r.Interface, "sent_mbit", n.r.Sent.MbitPerSecond, "received_mbit",
			n.r.Received.MbitPerSecond, "retransmitted", n.r.Again)
		return failed("check cable, transceiver and switch port of both machines, and the other pairs' results",
			n.r.judge(a), n.r)
	})
}

// netTest is a test under way.
type netTest struct {
	args    networkArgs
	m       links
	c       *step.Call
	partner netip.Addr
	local   netip.Addr
	r       NetworkResult
	p       *pace

	session uint64
	runtime time.Duration

	mu sync.Mutex
}

func (n *netTest) remote() string {
	return netip.AddrPortFrom(n.partner, uint16(orElse(n.args.Port, defaultPort))).String()
}

// route finds the local address and interface that lead to the partner, without sending a packet.
func (n *netTest) route(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", n.remote())
	if err != nil {
		return step.Retryable("check the network and the partner's address",
			fmt.Errorf("find the way to partner %s: %w", n.partner, err))
	}
	defer conn.Close()
	n.local = conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	n.r.Local = n.local.String()
	entries, _ := os.ReadDir(filepath.Join(n.m.Root(), netDir)) // without it the link stays unknown
	for _, e := range entries {
		addrs, _ := n.m.Addresses(e.Name())
		for _, p := range addrs {
			if p.Addr().Unmap().WithZone("") == n.local.WithZone("") && n.r.Interface == "" {
				n.r.Interface = e.Name()
			}
		}
	}
	if mbit, ok := number(n.m.Root(), netDir, n.r.Interface, "speed"); ok && mbit > 0 && n.r.Interface != "" {
		n.r.Speed = &mbit
	}
	return nil
}

const netDir = "sys/class/net"

func (n *netTest) counters() counters {
	if n.r.Interface == "" {
		return counters{}
	}
	return count(n.m.Root(), filepath.Join(netDir, n.r.Interface), "statistics/*_errors", "statistics/*_dropped",
		"carrier_changes")
}

func (n *netTest) run(ctx context.Context) error {
	wait := seconds(n.args.Wait, 3600)
	n.c.Report(step.Progress{Phase: "wait for the partner"})
	stop := everySecond(func() { alive(n.c) })
	meet := n.dial
	if n.args.Role == "reader" {
		meet = n.listen
	}
	conns, err := meet(ctx, wait)
	stop()
	if err != nil {
		return err
	}
	n.r.Streams = len(conns)
	before := n.counters()
	n.p = newPace(n.c, "exchange", 2*n.runtime)
	stop = everySecond(n.p.report)
	err = n.exchange(ctx, conns)
	stop()
	n.r.Link = n.counters().since(before)
	for _, f := range []*Flow{&n.r.Sent, &n.r.Received} {
		if f.Seconds > 0 {
			f.MbitPerSecond = float64(f.Bytes) * 8 / 1e6 / f.Seconds
		}
		if n.r.Speed != nil {
			f.PercentOfLink = 100 * f.MbitPerSecond / float64(*n.r.Speed)
		}
	}
	if n.r.Segments > 0 {
		n.r.Percent = 100 * float64(n.r.Again) / float64(n.r.Segments)
	}
	return err
}

func (n *netTest) absent(wait time.Duration, err error) error {
	return step.Retryable(
		"start this step on both machines at about the same time, each with the other's address, one as reader and one as writer; check that nothing between them blocks the port",
		fmt.Errorf("no partner at %s after %s: %w", n.remote(), wait, err))
}

// dial connects all streams, and retries until the partner is ready.
func (n *netTest) dial(ctx context.Context, wait time.Duration) ([]*net.TCPConn, error) {
	n.runtime = seconds(n.args.Runtime, 6*3600)
	begin := time.Now()
	for {
		conns, err := n.connect(ctx)
		if err == nil {
			return conns, nil
		}
		if ctx.Err() == nil && time.Since(begin) >= wait {
			return nil, n.absent(wait, err)
		}
		if err := step.Sleep(ctx, dialAgain); err != nil {
			return nil, err
		}
	}
}

func (n *netTest) connect(ctx context.Context) (conns []*net.TCPConn, err error) {
	defer func() {
		if err != nil {
			closeAll(conns)
		}
	}()
	n.session = rand.Uint64()
	streams := orElse(n.args.Streams, 4)
	greeting := binary.BigEndian.AppendUint64(bytes.Clone(hello), n.session)
	greeting = binary.BigEndian.AppendUint32(greeting, uint32(streams))
	greeting = binary.BigEndian.AppendUint64(greeting, uint64(n.runtime.Milliseconds()))
	d := net.Dialer{Timeout: greetingTime}
	for range streams {
		conn, err := d.DialContext(ctx, "tcp", n.remote())
		if err != nil {
			return conns, err
		}
		conns = append(conns, conn.(*net.TCPConn))
		_ = conn.SetDeadline(time.Now().Add(greetingTime))
		if _, err := conn.Write(greeting); err != nil {
			return conns, err
		}
	}
	for _, conn := range conns {
		quit := context.AfterFunc(ctx, func() { _ = conn.Close() })
		got := make([]byte, len(start))
		_, err := io.ReadFull(conn, got)
		if quit(); err != nil {
			return conns, err
		}
		if !bytes.Equal(got, start) {
			return conns, fmt.Errorf("what listens at %s is no burn-in", n.remote())
		}
	}
	return conns, nil
}

// listen waits for all streams of the partner and accepts no other host.
func (n *netTest) listen(ctx context.Context, wait time.Duration) (conns []*net.TCPConn, err error) {
	port := uint16(orElse(n.args.Port, defaultPort))
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", netip.AddrPortFrom(n.local, port).String())
	if err != nil {
		return nil, step.Fail("give another port", fmt.Errorf("listen for partner %s: %w", n.partner, err))
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(wait))
	defer func() {
		if err != nil {
			closeAll(conns)
		}
	}()
	want := 0
	for want == 0 || len(conns) < want {
		conn, err := l.(*net.TCPListener).AcceptTCP()
		switch {
		case ctx.Err() != nil:
			return conns, context.Cause(ctx)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return conns, n.absent(wait, fmt.Errorf("%d of its streams came", len(conns)))
		case err != nil:
			return conns, fmt.Errorf("listen for partner %s: %w", n.partner, err)
		}
		from := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		if from.WithZone("") != n.partner.WithZone("") {
			n.c.Log.Warn("another host than the partner connected", "from", from.String())
			_ = conn.Close()
			continue
		}
		session, streams, runtime, err := readGreeting(conn)
		if err != nil {
			n.c.Log.Warn("the partner connected, but sent an unexpected greeting", "err", err)
			_ = conn.Close()
			continue
		}
		if session != n.session { // the partner started again
			closeAll(conns)
			conns, n.session, n.runtime, want = nil, session, runtime, streams
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		if _, err := conn.Write(start); err != nil {
			return conns, step.Retryable("try again", fmt.Errorf("begin with partner %s: %w", n.partner, err))
		}
	}
	return conns, nil
}

func readGreeting(conn net.Conn) (session uint64, streams int, runtime time.Duration, err error) {
	_ = conn.SetDeadline(time.Now().Add(greetingTime))
	b := make([]byte, len(hello)+20)
	if _, err := io.ReadFull(conn, b); err != nil {
		return 0, 0, 0, err
	}
	return parseGreeting(b)
}

func parseGreeting(b []byte) (session uint64, streams int, runtime time.Duration, err error) {
	if len(b) != len(hello)+20 || !bytes.HasPrefix(b, hello) {
		return 0, 0, 0, errors.New("this is no burn-in of this version")
	}
	b = b[len(hello):]
	session, n, ms := binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint64(b[12:])
	if n < 1 || n > maxStreams || ms > longest*1000 {
		return 0, 0, 0, fmt.Errorf("%d streams of %d ms are out of range", n, ms)
	}
	return session, int(n), time.Duration(ms) * time.Millisecond, nil
}

func closeAll(conns []*net.TCPConn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// exchange runs all streams in both directions: first from the writer to the reader. An error on one ends the others.
func (n *netTest) exchange(parent context.Context, conns []*net.TCPConn) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { closeAll(conns) })()
	defer closeAll(conns)
	blocks := framesOf(n.session)
	var wg sync.WaitGroup
	for _, conn := range conns {
		wg.Go(func() {
			if err := n.stream(conn, blocks); err != nil {
				cancel(fmt.Errorf("exchange data with partner %s: %w", n.partner, err))
			}
		})
	}
	wg.Wait()
	if parent.Err() != nil {
		return stopped(parent, "burn-in of the network", nil)
	}
	if ctx.Err() == nil {
		return nil
	}
	return step.Retryable("see the partner's result: this machine's link or the partner's went away, or its step ended",
		context.Cause(ctx))
}

// framesOf returns the blocks that are sent in turn, each prefixed with its length.
func framesOf(session uint64) [][]byte {
	out := make([][]byte, frames)
	for i := range out {
		out[i] = append(binary.BigEndian.AppendUint32(nil, frameSize), noise(mix(session)+uint64(i), frameSize)...)
	}
	return out
}

func (n *netTest) stream(conn *net.TCPConn, blocks [][]byte) error {
	phases := []func(*net.TCPConn, [][]byte) error{n.send, n.receive}
	if n.args.Role == "reader" {
		phases[0], phases[1] = phases[1], phases[0]
	}
	for _, phase := range phases {
		if err := phase(conn, blocks); err != nil {
			return err
		}
	}
	// The kernel drops its counters when the connection closes.
	sent, again, err := n.m.Segments(conn)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.r.Segments += sent
	n.r.Again += again
	return nil
}

// send writes until the time is up, and then reads how much of it arrived.
func (n *netTest) send(conn *net.TCPConn, blocks [][]byte) error {
	begin := time.Now()
	bytesSent := int64(0)
	for i := 0; i == 0 || time.Since(begin) < n.runtime; i++ {
		_ = conn.SetDeadline(time.Now().Add(silence))
		if _, err := conn.Write(blocks[i%frames]); err != nil {
			return fmt.Errorf("after %d bytes sent: %w", bytesSent, err)
		}
		bytesSent += frameSize
		n.p.bytes.Add(frameSize)
	}
	_ = conn.SetDeadline(time.Now().Add(silence))
	if _, err := conn.Write(make([]byte, 4)); err != nil {
		return fmt.Errorf("after %d bytes sent: %w", bytesSent, err)
	}
	var answer [16]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return fmt.Errorf("hear whether %d bytes arrived: %w", bytesSent, err)
	}
	arrived, corrupt := int64(binary.BigEndian.Uint64(answer[:])), int64(binary.BigEndian.Uint64(answer[8:]))
	if arrived != bytesSent || corrupt < 0 {
		return fmt.Errorf("of %d bytes sent %d arrived", bytesSent, arrived)
	}
	n.add(&n.r.Sent, bytesSent, time.Since(begin), corrupt)
	return nil
}

// receive reads until the partner reports the end of its time, compares the data, and replies with the amount.
func (n *netTest) receive(conn *net.TCPConn, blocks [][]byte) error {
	begin := time.Now()
	buf := make([]byte, frameSize)
	got, corrupt := int64(0), int64(0)
	for i := 0; ; i++ {
		_ = conn.SetDeadline(time.Now().Add(silence))
		if _, err := io.ReadFull(conn, buf[:4]); err != nil {
			return fmt.Errorf("after %d bytes received: %w", got, err)
		}
		size := binary.BigEndian.Uint32(buf)
		if size == 0 {
			break
		}
		if size != frameSize {
			return fmt.Errorf("after %d bytes received: the partner announces a block of %d bytes", got, size)
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			return fmt.Errorf("after %d bytes received: %w", got, err)
		}
		if !bytes.Equal(buf, blocks[i%frames][4:]) {
			corrupt++
		}
		got += frameSize
		n.p.bytes.Add(frameSize)
	}
	answer := binary.BigEndian.AppendUint64(nil, uint64(got))
	answer = binary.BigEndian.AppendUint64(answer, uint64(corrupt))
	if _, err := conn.Write(answer); err != nil {
		return fmt.Errorf("tell that %d bytes arrived: %w", got, err)
	}
	n.add(&n.r.Received, got, time.Since(begin), corrupt)
	return nil
}

func (n *netTest) add(f *Flow, size int64, took time.Duration, corrupt int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f.Bytes += size
	f.Seconds = max(f.Seconds, took.Seconds())
	n.r.Corrupt += corrupt
}

func (r *NetworkResult) judge(a networkArgs) (out []string) {
	bad := func(format string, v ...any) { out = append(out, fmt.Sprintf(format, v...)) }
	if r.Corrupt > 0 {
		bad("%d blocks of 256 KiB arrived otherwise than they were sent", r.Corrupt)
	}
	for _, d := range []struct {
		what string
		flow Flow
	}{{"sending to", r.Sent}, {"receiving from", r.Received}} {
		if least := orElse(a.MinMbit, 0); d.flow.MbitPerSecond < least {
			bad("%s %s at %.0f Mbit/s, and not %g", d.what, r.Partner, d.flow.MbitPerSecond, least)
		}
		if least := orElse(a.MinLink, 50); r.Speed != nil && d.flow.PercentOfLink < least {
			bad("%s %s at %.0f Mbit/s, %.0f %% of the link's speed, and not %g", d.what, r.Partner,
				d.flow.MbitPerSecond, d.flow.PercentOfLink, least)
		}
	}
	if a.MaxRetransmit != nil && r.Percent > *a.MaxRetransmit {
		bad("%.3g %% of the segments had to be sent again, and %g is allowed", r.Percent, *a.MaxRetransmit)
	}
	for _, l := range []struct {
		what   string
		n      int64
		most   *int64
		strict bool
	}{
		// Not every driver includes errors of each kind in the total.
		{"errors", max(r.Link.sum("/rx_errors"),
			r.Link.sum("/rx_crc_errors", "/rx_frame_errors", "/rx_length_errors")) + r.Link.sum("/tx_errors"),
			a.MaxErrors, true},
		{"dropped packets", r.Link.sum("_dropped", "/rx_missed_errors"), a.MaxDrops, false},
		{"changes of its carrier", r.Link.sum("carrier_changes"), a.MaxCarrier, true},
	} {
		if l.n > orElse(l.most, 0) && (l.strict || l.most != nil) {
			bad("link %s counted %d %s, and %d is allowed", r.Interface, l.n, l.what, orElse(l.most, 0))
		}
	}
	return out
}
