package swarm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/images/index"
	"github.com/klauspost/compress/zstd"
)

// picture is a published image in memory, and its origin.
type picture struct {
	x       *index.Index
	sum     Image
	raw     []byte
	objects map[[32]byte][]byte

	mu      sync.Mutex
	served  map[[32]byte]int
	egress  atomic.Int64
	broken  atomic.Bool   // the server is away
	latency time.Duration // of each object
	hold    chan struct{} // objects are given when it is closed; nil: at once
	asked   atomic.Int64  // objects
	waiting atomic.Int64  // requests without an answer
}

// newPicture makes an image of some chunks, of which the last is short and one is zeros.
func newPicture(t testing.TB, chunks int) *picture {
	t.Helper()
	return pictureOf(t, chunks, 16) // tests are to be quick
}

// pictureOf makes one whose chunks pack to about so much less.
func pictureOf(t testing.TB, chunks, less int) *picture {
	t.Helper()
	p := &picture{raw: make([]byte, (chunks-1)*index.ChunkSize+3*index.BlockSize+512), objects: map[[32]byte][]byte{},
		served: map[[32]byte]int{}, latency: 5 * time.Millisecond}
	src := mrand.NewChaCha8([32]byte{1})
	for i := range chunks {
		if i == 3 {
			continue
		}
		part := p.raw[i*index.ChunkSize : min((i+1)*index.ChunkSize, len(p.raw))]
		_, _ = src.Read(part[:len(part)/less]) // the rest packs well
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	keep := func(b []byte) index.Object {
		o := index.Of(b)
		p.objects[o.Sum] = b
		return o
	}
	x := &index.Index{Size: int64(len(p.raw)), SHA256: sha256.Sum256(p.raw)}
	var list []byte
	for i := range chunks {
		part := p.raw[i*index.ChunkSize : min((i+1)*index.ChunkSize, len(p.raw))]
		if index.IsZero(part) {
			x.Chunks = append(x.Chunks, index.Object{})
		} else {
			x.Chunks = append(x.Chunks, keep(z.EncodeAll(part, nil)))
		}
		for b := 0; b < len(part); b += index.BlockSize {
			s := index.SumBlock(part[b:min(b+index.BlockSize, len(part))])
			list = append(list, s[:]...)
		}
	}
	x.Lists = []index.Object{keep(z.EncodeAll(list, nil))}
	p.x, p.sum = x, Image(sha256.Sum256(x.Marshal()))
	return p
}

var errAway = errors.New("the image server is away")

func (p *picture) Object(ctx context.Context, o index.Object, dst []byte) error {
	p.asked.Add(1)
	p.waiting.Add(1)
	defer p.waiting.Add(-1)
	if p.hold != nil {
		select {
		case <-p.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case <-time.After(p.latency):
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.broken.Load() {
		return errAway
	}
	b := p.objects[o.Sum]
	if len(b) != len(dst) {
		return fmt.Errorf("the object has %d bytes, not %d", len(b), len(dst))
	}
	copy(dst, b)
	p.mu.Lock()
	p.served[o.Sum]++
	p.mu.Unlock()
	p.egress.Add(o.Len)
	return nil
}

// size is the transfer size of one copy of the image.
func (p *picture) size() (n int64) {
	for _, c := range p.x.Chunks {
		n += c.Len
	}
	return n
}

// authority is a conductor's CA.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"},
		NotBefore: time.Now().AddDate(-1, 0, 0), NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, cert}
}

func (a *authority) identity(t testing.TB, node string, generation uint64, usage x509.ExtKeyUsage) Identity {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: node},
		NotBefore: time.Now().AddDate(30, 0, 0), NotAfter: time.Now().AddDate(31, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}, URIs: []*url.URL{
			{Scheme: "ingot", Host: "node", Path: "/" + node,
				RawQuery: fmt.Sprintf("boot=b&generation=%d", generation)}}}
	// long over: the clock plays no part
	tmpl.NotBefore, tmpl.NotAfter = a.cert.NotBefore.AddDate(0, 1, 0), a.cert.NotBefore.AddDate(0, 2, 0)
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return Identity{Node: node, Generation: generation,
		Certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, CA: a.cert}
}

// quick is for tests in which somebody has to be waited for; the others are as patient as real agents are, however slow
// the machine.
var quick = times{dial: 2 * time.Second, answer: 2 * time.Second, window: 500 * time.Millisecond,
	fail: 50 * time.Millisecond, quiet: 1500 * time.Millisecond, maxPatience: 2 * time.Second,
	minPatience: 200 * time.Millisecond}

// hub is the conductor: it sends every node's state to all others.
type hub struct {
	t    *testing.T
	ca   *authority
	pic  *picture
	mu   sync.Mutex
	all  []*writer
	away bool

	times times // of agents that are added
}

func newHub(t *testing.T, chunks int) *hub { return newHubOf(t, newPicture(t, chunks)) }

func newHubOf(t *testing.T, pic *picture) *hub {
	return &hub{t: t, ca: newAuthority(t), pic: pic, times: patient}
}

// writer is an agent with a disk in memory.
type writer struct {
	unpackers int           // zero: 3
	slow      time.Duration // disk, for each chunk

	h    *hub
	name string
	n    *Node
	m    *Member
	disk []byte
	mu   sync.Mutex
	wake chan struct{}
	stop chan struct{}
	end  sync.WaitGroup

	have  bits
	state State
	known map[string]bool // neighbours sent to it
	liars []string
	log   *logBuffer
}

// logBuffer shares its lock with callers of Tell, like the agent's queue.
type logBuffer struct {
	mu *sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *logBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func (h *hub) add(rate uint64) *writer {
	h.t.Helper()
	w := &writer{h: h, name: fmt.Sprintf("node-%d", len(h.all)), disk: make([]byte, len(h.pic.raw)),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), known: map[string]bool{}, log: &logBuffer{mu: &h.mu}}
	w.n = New(slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})), func() {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	})
	w.n.times = h.times
	w.n.Enable(h.ca.identity(h.t, w.name, 1, x509.ExtKeyUsageClientAuth), rate)
	w.n.Session(netip.MustParseAddr("127.0.0.1"))
	h.mu.Lock()
	h.all = append(h.all, w)
	h.mu.Unlock()
	w.end.Go(w.session)
	h.t.Cleanup(func() {
		close(w.stop)
		w.end.Wait()
		w.n.Leave()
	})
	return w
}

// session sends the node's messages to all others, at once.
func (w *writer) session() {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-w.wake:
		case <-tick.C:
		case <-w.stop:
			return
		}
		w.h.mu.Lock()
		if w.h.away {
			w.h.mu.Unlock()
			continue
		}
		if st, _ := w.n.Tell(time.Now()); st != nil {
			w.h.tell(w, st)
		}
		w.h.mu.Unlock()
	}
}

func (h *hub) tell(w *writer, st *State) {
	w.liars = append(w.liars, st.Liars...)
	w.state = *st
	if st.Left {
		w.have = nil
		for _, o := range h.all {
			if o != w {
				o.n.Hear(News{Image: st.Image, Gone: []string{w.name}, Seeds: h.seeds()})
				delete(o.known, w.name)
			}
		}
		return
	}
	if st.Whole {
		w.have = slices.Clone(bits(st.Have))
	}
	for _, i := range st.Added {
		w.have.set(int(i))
	}
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), st.Port)
	for _, o := range h.all {
		if o == w || o.have == nil {
			continue
		}
		p := Peer{Node: w.name, Generation: 1, Addr: addr, Added: st.Added, Fetching: st.Fetching, Fetched: st.Fetched}
		if st.Whole || !o.known[w.name] {
			p.Whole, p.Have, p.Added = true, slices.Clone(w.have), nil
		}
		o.known[w.name] = true
		o.n.Hear(News{Image: st.Image, Peers: []Peer{p}, Seeds: h.seeds()})
	}
	if st.Whole {
		news := News{Image: st.Image, Whole: true, Seeds: h.seeds()}
		clear(w.known)
		for _, o := range h.all {
			if o != w && o.have != nil {
				w.known[o.name] = true
				news.Peers = append(news.Peers,
					Peer{Node: o.name, Generation: 1, Whole: true, Have: slices.Clone(o.have),
						Addr:     netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), o.state.Port),
						Fetching: o.state.Fetching})
			}
		}
		w.n.Hear(news)
	}
}

// seeds are the first two that are there and miss something.
func (h *hub) seeds() (out []string) {
	for _, w := range h.all {
		misses := func() bool {
			for i := range h.pic.x.Chunks {
				if !w.have.has(i) {
					return true
				}
			}
			return false
		}
		if w.have != nil && len(out) < 2 && misses() {
			out = append(out, w.name)
		}
	}
	return out
}

func (w *writer) read(i int, off int64, dst []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	copy(dst, w.disk[int64(i)*index.ChunkSize+off:])
	return nil
}

func (w *writer) join() {
	if w.m == nil {
		w.m = w.n.Join(w.h.pic.x, w.h.pic.sum, w.h.pic, w.read)
	}
}

// write writes the whole image.
func (w *writer) write(ctx context.Context) error {
	w.join()
	all := make([]int, len(w.h.pic.x.Chunks))
	for i := range all {
		all[i] = i
	}
	w.m.Want(all...)
	w.m.Complete()
	return w.work(ctx)
}

func (w *writer) work(ctx context.Context) error {
	var g sync.WaitGroup
	errs := make(chan error, 4)
	for range cmp.Or(w.unpackers, 3) {
		g.Go(func() {
			buf := make([]byte, index.ChunkSize)
			for {
				i, ok := w.m.Next(ctx)
				if !ok {
					return
				}
				dst := buf[:w.h.pic.x.ChunkLen(i)]
				if err := w.m.Chunk(ctx, i, dst); err != nil {
					errs <- err
					return
				}
				time.Sleep(w.slow)
				w.mu.Lock()
				copy(w.disk[i*index.ChunkSize:], dst)
				w.mu.Unlock()
				w.m.Have(i)
			}
		})
	}
	g.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if !bytes.Equal(w.disk, w.h.pic.raw) {
		return errors.New("the disk does not hold the image")
	}
	return nil
}

// together has all writers write at once.
func (h *hub) together(ws ...*writer) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 3*time.Minute)
	defer cancel()
	var g sync.WaitGroup
	for _, w := range ws {
		g.Go(func() {
			if err := w.write(ctx); err != nil {
				h.t.Errorf("%s: %v", w.name, err)
			}
		})
	}
	g.Wait()
}

// hears waits until the hub knows all that a writer has.
func (h *hub) hears(w *writer) {
	h.t.Helper()
	wait(h.t, "the conductor's hearing", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		w.m.mu.Lock()
		defer w.m.mu.Unlock()
		return bytes.Equal(w.have, w.m.have)
	})
}

// TestSwarm holds what a swarm is for: each of several agents has the image in the end, and the origin has sent it
// about once.
func TestSwarm(t *testing.T) {
	h := newHub(t, 40)
	var ws []*writer
	for range 5 {
		ws = append(ws, h.add(0))
	}
	h.together(ws...)
	copies := float64(h.pic.egress.Load()) / float64(h.pic.size())
	// the image is so small that it is almost there when they hear of each other; bin/bench-swarm measures it
	if copies > 2 {
		t.Errorf("the origin sent %.2f copies of the image to 5 agents", copies)
	}
	for _, w := range ws {
		st := w.m.Stats()
		t.Logf("%s: %+v", w.name, st)
		if len(w.liars) > 0 {
			t.Errorf("%s calls %v liars", w.name, w.liars)
		}
	}
	t.Logf("the origin sent %.2f copies", copies)
}

// TestLate holds that a late agent gets all chunks from the present ones, which read some back from their disks.
func TestLate(t *testing.T) {
	h := newHub(t, 40)
	first := h.add(0)
	h.together(first)
	first.m.pool.clear()
	h.hears(first)
	before := h.pic.egress.Load()
	second := h.add(0)
	h.together(second)
	if sent := h.pic.egress.Load() - before; sent > h.pic.size()/10 {
		t.Errorf("the origin sent %d bytes to the second agent, the image has %d", sent, h.pic.size())
	}
	if st := first.m.Stats(); st.Repacked == 0 {
		t.Errorf("nothing was read back: %+v", st)
	}
	// What is at rest gives only what it has in memory, and never touches the disk again.
	first.m.Rest()
	second.m.Rest()
	h.hears(first)
	h.hears(second)
	h.times = quick
	third := h.add(0)
	first.mu.Lock() // reads hang
	h.together(third)
	first.mu.Unlock()
	if st := third.m.Stats(); st.FromPeers == 0 || st.FromOrigin == 0 {
		t.Errorf("from who is at rest: %+v", st)
	}
}

// TestDifference holds that an agent that needs but some chunks, and has the others already, fetches those and gives
// all.
func TestDifference(t *testing.T) {
	h := newHub(t, 12)
	w := h.add(0)
	copy(w.disk, h.pic.raw)
	clear(w.disk[5*index.ChunkSize : 6*index.ChunkSize])
	w.join()
	for i := range h.pic.x.Chunks {
		if i != 5 {
			w.m.Have(i)
		}
	}
	w.m.Want(5)
	w.m.Complete()
	if err := w.work(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := h.pic.egress.Load(), h.pic.x.Chunks[5].Len; got != want {
		t.Errorf("the origin sent %d bytes, want %d", got, want)
	}
	h.hears(w)
	second := h.add(0)
	h.together(second)
	if st := second.m.Stats(); st.FromOrigin != 0 {
		t.Errorf("the second: %+v", st)
	}
}

// TestOff holds that nothing listens and nothing is shared where swarms are not configured.
func TestOff(t *testing.T) {
	pic := newPicture(t, 5)
	var none *Node
	if m := none.Join(pic.x, pic.sum, pic, nil); m != nil {
		t.Error("no node has joined")
	}
	n := New(nil, func() {})
	n.Session(netip.MustParseAddr("127.0.0.1"))
	if m := n.Join(pic.x, pic.sum, pic, nil); m != nil {
		t.Error("joined though swarms are off")
	}
	if st, wait := n.Tell(time.Now()); st != nil || wait != 0 {
		t.Errorf("state %+v", st)
	}
	n.Leave()
	none.Leave()
}

// TestListener holds that it is there only between Join and Leave.
func TestListener(t *testing.T) {
	h := newHub(t, 5)
	w := h.add(0)
	w.join()
	addr := fmt.Sprintf("127.0.0.1:%d", w.m.port())
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	w.m.Leave()
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("somebody listens after Leave")
	}
}

// TestConductorGone holds that the known state is still used, and that the origin sends the rest.
func TestConductorGone(t *testing.T) {
	h := newHub(t, 12)
	first := h.add(0)
	h.together(first)
	second := h.add(0)
	second.join()
	wait(t, "the introduction", func() bool {
		second.m.mu.Lock()
		defer second.m.mu.Unlock()
		nb := second.m.near["node-0"]
		return nb != nil && bytes.Equal(nb.have, first.m.have)
	})
	h.mu.Lock()
	h.away = true
	h.mu.Unlock()
	first.n.SessionLost()
	second.n.SessionLost()
	h.pic.broken.Store(true)
	h.together(second) // all of it from the first
	h.pic.broken.Store(false)
	third := h.add(0)
	third.n.SessionLost()
	h.together(third) // all of it from the origin, at once
	if st := third.m.Stats(); st.FromPeers != 0 {
		t.Errorf("%+v", st)
	}
}

// TestPeerDies holds that a neighbour's death during a transfer costs others only time.
func TestPeerDies(t *testing.T) {
	h := newHub(t, 30)
	first := h.add(2_000_000)
	h.together(first)
	h.hears(first)
	h.times = quick
	second := h.add(0)
	second.join()
	go func() {
		for second.m.Stats().FromPeers == 0 {
			time.Sleep(time.Millisecond)
		}
		first.m.shut() // without a word
	}()
	h.together(second)
	if st := second.m.Stats(); st.FromOrigin == 0 || st.FromPeers == 0 || st.Liars != 0 {
		t.Errorf("%+v", st)
	}
}

func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: waited two minutes", what)
		}
	}
}

// liar is a neighbour that is not what it seems: it has a good certificate, and does its worst.
func (h *hub) liar(name string, serve func(c *tls.Conn, r request)) netip.AddrPort {
	h.t.Helper()
	id := h.ca.identity(h.t, name, 1, x509.ExtKeyUsageClientAuth)
	l, err := tls.Listen("tcp", "127.0.0.1:0", id.tls(func(who) error { return nil }))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for {
					r, err := readRequest(c)
					if err != nil {
						return
					}
					serve(c.(*tls.Conn), r)
				}
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// TestLiars holds that with any data from a neighbour the disk is right in the end, and that a sender of wrong bytes is
// never asked again.
func TestLiars(t *testing.T) {
	type serve = func(p *picture, c *tls.Conn, r request)
	pack := func(t *testing.T, data []byte) []byte {
		z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		return z.EncodeAll(data, nil)
	}
	head := func(c *tls.Conn, e encoding, n int) { _, _ = c.Write(answer{statusOK, e, uint32(n)}.bytes()) }
	for name, one := range map[string]struct {
		serve  serve
		barred bool
	}{
		"a wrong bit": {func(p *picture, c *tls.Conn, r request) {
			b := slices.Clone(p.objects[p.x.Chunks[r.chunk].Sum])
			b[len(b)-1] ^= 1
			head(c, published, len(b))
			_, _ = c.Write(b)
		}, true},
		"another chunk": {func(p *picture, c *tls.Conn, r request) {
			b := pack(t, p.raw[:p.x.ChunkLen(int(r.chunk))])
			if r.chunk == 0 {
				b = pack(t, p.raw[index.ChunkSize:2*index.ChunkSize])
			}
			head(c, repacked, len(b))
			_, _ = c.Write(b)
		}, true},
		"one wrong byte, packed well": {func(p *picture, c *tls.Conn, r request) {
			d := slices.Clone(p.raw[int(r.chunk)*index.ChunkSize:][:p.x.ChunkLen(int(r.chunk))])
			d[len(d)-1]++
			b := pack(t, d)
			head(c, repacked, len(b))
			_, _ = c.Write(b)
		}, true},
		"no frame": {func(_ *picture, c *tls.Conn, _ request) {
			head(c, repacked, 1000)
			_, _ = c.Write(make([]byte, 1000))
		}, true},
		"a length that can't be": {func(_ *picture, c *tls.Conn, _ request) { head(c, repacked, maxPacked+1) }, true},
		"another length": {
			func(p *picture, c *tls.Conn, r request) { head(c, published, int(p.x.Chunks[r.chunk].Len)+1) }, true},
		"an unknown encoding": {func(_ *picture, c *tls.Conn, _ request) { head(c, 9, 1) }, true},
		"silence":             {func(*picture, *tls.Conn, request) {}, false},
		"a short answer": {func(p *picture, c *tls.Conn, r request) {
			head(c, published, int(p.x.Chunks[r.chunk].Len))
			_, _ = c.Write([]byte{1, 2, 3})
			_ = c.Close()
		}, false},
		"a drip": {func(p *picture, c *tls.Conn, r request) {
			head(c, published, int(p.x.Chunks[r.chunk].Len))
			for _, b := range p.objects[p.x.Chunks[r.chunk].Sum] {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		}, false},
		"busy for ever": {
			func(_ *picture, c *tls.Conn, _ request) { _, _ = c.Write(answer{status: statusBusy}.bytes()) }, false},
		"nothing of it": {
			func(_ *picture, c *tls.Conn, _ request) { _, _ = c.Write(answer{status: statusMissing}.bytes()) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t, 6)
			if !one.barred {
				h.times = quick
			}
			addr := h.liar("liar", func(c *tls.Conn, r request) { one.serve(h.pic, c, r) })
			w := h.add(0)
			w.join()
			all := newBits(len(h.pic.x.Chunks))
			for i := range h.pic.x.Chunks {
				all.set(i)
			}
			wait(t, "the conductor's word", func() bool { w.m.mu.Lock(); defer w.m.mu.Unlock(); return w.m.heard })
			w.n.Hear(News{Image: h.pic.sum, Whole: true,
				Peers: []Peer{{Node: "liar", Generation: 1, Addr: addr, Whole: true, Have: all}}})
			h.together(w)
			st := w.m.Stats()
			if one.barred != (st.Liars == 1) {
				t.Errorf("%+v, want barred %v", st, one.barred)
			}
			if one.barred {
				wait(t, "the report", func() bool {
					h.mu.Lock()
					defer h.mu.Unlock()
					return slices.Equal(w.liars, []string{"liar"})
				})
				if !strings.Contains(w.log.String(), "sent wrong bytes") {
					t.Error("the log does not name the liar")
				}
				w.n.Hear(News{Image: h.pic.sum,
					Peers: []Peer{{Node: "liar", Generation: 1, Addr: addr, Whole: true, Have: all}}})
				w.m.mu.Lock()
				defer w.m.mu.Unlock()
				if w.m.near["liar"] != nil {
					t.Error("the liar is back")
				}
			}
		})
	}
}

// TestStrangers holds that a node is not served if the conductor did not list it.
func TestStrangers(t *testing.T) {
	h := newHub(t, 6)
	w := h.add(0)
	h.together(w)
	friend := h.ca.identity(t, "friend", 2, x509.ExtKeyUsageClientAuth)
	w.n.Hear(News{Image: h.pic.sum,
		Peers: []Peer{{Node: "friend", Generation: 2, Addr: netip.MustParseAddrPort("127.0.0.1:9"), Whole: true,
			Have: newBits(6)}}})
	addr := fmt.Sprintf("127.0.0.1:%d", w.m.port())
	ask := func(conf *tls.Config, image Image, chunk uint32) (answer, error) {
		c, err := tls.Dial("tcp", addr, conf)
		if err != nil {
			return answer{}, err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write(request{image, chunk}.bytes()); err != nil {
			return answer{}, err
		}
		return readAnswer(c, h.pic.x.Chunks[1].Len)
	}
	conf := func(id Identity) *tls.Config { return id.tls(func(who) error { return nil }) }
	other := newAuthority(t).identity(t, "friend", 2, x509.ExtKeyUsageClientAuth)
	other.CA = h.ca.cert
	none := conf(friend)
	none.Certificates = nil
	plain := conf(friend)
	plain.NextProtos = nil
	for name, c := range map[string]*tls.Config{
		"no certificate":            none,
		"another CA's":              conf(other),
		"a node that is not listed": conf(h.ca.identity(t, "stranger", 2, x509.ExtKeyUsageClientAuth)),
		"an older boot":             conf(h.ca.identity(t, "friend", 1, x509.ExtKeyUsageClientAuth)),
		"the conductor's own":       conf(h.ca.identity(t, "friend", 2, x509.ExtKeyUsageServerAuth)),
		"not the protocol of these": plain,
	} {
		if a, err := ask(c, h.pic.sum, 1); err == nil {
			t.Errorf("%s: served with %+v", name, a)
		}
	}
	if a, err := ask(conf(friend), h.pic.sum, 1); err != nil || a.status != statusOK {
		t.Errorf("a neighbour: %+v, %v", a, err)
	}
	if a, err := ask(conf(friend), Image{9}, 1); err != nil || a.status != statusMissing {
		t.Errorf("of another image: %+v, %v", a, err)
	}
	if a, err := ask(conf(friend), h.pic.sum, 1<<31); err == nil {
		t.Errorf("of a chunk that can't be: %+v", a)
	}
	if a, err := ask(conf(friend), h.pic.sum, 3); err != nil || a.status != statusMissing {
		t.Errorf("of zeros: %+v, %v", a, err)
	}
	w.n.Hear(News{Image: h.pic.sum, Gone: []string{"friend"}})
	if a, err := ask(conf(friend), h.pic.sum, 1); err == nil {
		t.Errorf("a neighbour that is gone: %+v", a)
	}
	// And the other end must be the named node.
	m := w.m
	imposter := h.liar("imposter", func(c *tls.Conn, _ request) {})
	if c, err := m.dial(t.Context(), who{"friend", 2}, imposter); err == nil {
		c.Close()
		t.Error("another node passed for the one that was named")
	}
}

// TestUnverified holds that nothing is given away before it is written, nor what the disk does not give back.
func TestUnverified(t *testing.T) {
	h := newHub(t, 6)
	w := h.add(0)
	h.together(w)
	w.m.pool.clear()
	w.mu.Lock()
	for i := range w.disk {
		w.disk[i] ^= 0x55 // something else wrote to it
	}
	w.mu.Unlock()
	if p, err := w.m.pack(1); err == nil {
		t.Errorf("gives away %+v", p.encoding)
	}
	h.times = quick
	second := h.add(0)
	h.together(second)
	if st := second.m.Stats(); st.FromPeers != 0 || st.Liars != 0 {
		t.Errorf("%+v", st)
	}
}

// TestOriginFails holds that its error is the writer's.
func TestOriginFails(t *testing.T) {
	h := newHub(t, 6)
	h.pic.broken.Store(true)
	w := h.add(0)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := w.write(ctx); !errors.Is(err, errAway) {
		t.Errorf("write = %v", err)
	}
}
