package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// Origin is one or more web servers with the same files. It may be used by many goroutines at once.
type Origin struct {
	client    *http.Client
	transport *http.Transport
	log       *slog.Logger
	wait      Patience
	arg       string // the argument that holds its URLs
	thing     string // what the URLs lead to

	mu      sync.Mutex
	mirrors []*mirror
	some    bool // bytes of any file were received
}

// mirror is one server. Its mutable fields are guarded by its Origin.
type mirror struct {
	url  *url.URL // without user
	user *url.Userinfo
	name string // redacted

	busy   int       // connections
	fails  int       // failed attempts in a row
	after  time.Time // no request before
	err    error     // of the last attempt, if it failed
	rate   float64   // bytes per second of one connection; 0: unknown
	rated  time.Time
	wrong  int // recent missing files and wrong digests
	ranges verdict
}

// verdict is the known answer to a yes-no question.
type verdict int

const (
	unknown verdict = iota
	yes
	no
)

// NewOrigin takes the URLs of the same file, or directory, on each server. Paths are relative to them, like links in a
// page: with http://a/x/disk.ingot, "objects/ab" is http://a/x/objects/ab and "" is the file itself. A query is kept. A
// nil log is silent.
func NewOrigin(urls []string, ca string, wait Patience, log *slog.Logger) (*Origin, error) {
	return OriginOf("image", "image_source", urls, ca, wait, log)
}

// OriginOf is NewOrigin for other files than images: thing names them, and arg the argument with the URLs, in errors.
func OriginOf(thing, arg string, urls []string, ca string, wait Patience, log *slog.Logger) (*Origin, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	if len(urls) == 0 {
		return nil, step.Failf("set "+arg, "no URL is given")
	}
	o := &Origin{log: log, wait: wait, arg: arg, thing: thing}
	for _, raw := range urls {
		u, err := url.Parse(raw)
		if err != nil {
			// The error of url.Parse quotes the URL, which may contain a password.
			return nil, step.Failf("correct "+arg, "the %s's URL can't be understood", thing)
		}
		if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return nil, step.Failf("give "+arg+" as an http or https URL",
				"the %s's URL %s is not of a kind that can be fetched", thing, Redact(u))
		}
		m := &mirror{user: u.User, name: Redact(u)}
		u.User = nil
		m.url = u
		o.mirrors = append(o.mirrors, m)
	}
	var err error
	if o.transport, err = newTransport(ca, wait); err != nil {
		return nil, err
	}
	o.client = &http.Client{Transport: o.transport, CheckRedirect: checkRedirect}
	return o, nil
}

// Name returns the first URL, redacted.
func (o *Origin) Name() string { return o.mirrors[0].name }

// Close closes idle connections.
func (o *Origin) Close() { o.transport.CloseIdleConnections() }

// at returns the URL of a path on a mirror.
func (m *mirror) at(path string) (*url.URL, error) {
	if path == "" {
		return m.url, nil
	}
	ref, err := url.Parse(path)
	if err != nil || ref.IsAbs() || ref.Host != "" {
		return nil, step.Failf("", "%q is not a relative path", path)
	}
	u := m.url.ResolveReference(ref)
	if ref.RawQuery == "" {
		u.RawQuery = m.url.RawQuery // a signature for a whole directory
	}
	return u, nil
}

// forget is how fast an old measurement of a slow mirror expires: the assumed rate doubles in this time.
const forget = 30 * time.Second

// pick chooses a mirror that may accepts: the one with the highest expected rate, the first one among
// equals. If all are to be left alone for a while, by everyone or by this caller (rest), it returns the one that will
// be ready first, and the time until then. It reserves a place on the mirror only if there is no wait.
func (o *Origin) pick(may func(*mirror) bool, rest map[*mirror]time.Time) (*mirror, time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	best := 1.0
	for _, m := range o.mirrors {
		best = max(best, m.rate)
	}
	var choice, soonest *mirror
	var most float64
	var least time.Duration
	for _, m := range o.mirrors {
		if !may(m) {
			continue
		}
		if wait := max(m.after.Sub(now), rest[m].Sub(now)); wait > 0 {
			if soonest == nil || wait < least {
				soonest, least = m, wait
			}
			continue
		}
		if v := m.expect(now, best) / float64(m.busy+1); choice == nil || v > most {
			choice, most = m, v
		}
	}
	if choice != nil {
		choice.busy++
		return choice, 0
	}
	return soonest, least
}

// expect returns the expected rate of a mirror: an untried one may be as good as the best.
func (m *mirror) expect(now time.Time, best float64) float64 {
	v := best
	if m.rate > 0 {
		v = min(best, m.rate*math.Exp2(now.Sub(m.rated).Seconds()/forget.Seconds()))
	}
	if m.wrong >= 3 {
		v /= 1000
	}
	return v
}

// leave returns the place on a mirror.
func (o *Origin) leave(m *mirror) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m.busy--
}

// measured records what a connection received while it was waited for, and whether that was fast enough.
func (o *Origin) measured(m *mirror, n int64, took time.Duration, good bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	rate := float64(n) / max(took.Seconds(), 1e-6)
	if m.rate > 0 {
		rate = (m.rate + rate) / 2
	}
	m.rate, m.rated = max(rate, 1), time.Now()
	if good {
		m.fails = 0
	}
}

// worked records a completely read response.
func (o *Origin) worked(m *mirror) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m.fails, m.err, m.wrong = 0, nil, max(0, m.wrong-1)
}

// goodEnough is the number of new bytes that make a connection successful. A server that closes after every few bytes
// must not be asked in a tight loop.
const goodEnough = 64 << 10

// failed records a failed attempt, and returns the time before which the mirror should be left alone: for a while, or
// as long as it asked within reason. That applies to all callers, unless other connections to this mirror are working:
// then one more was too many for it, and only the refused caller waits.
func (o *Origin) failed(m *mirror, err error, asked time.Duration, others bool) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	pause := min(o.wait.First<<min(m.fails, 20), o.wait.Longest)
	// With jitter, so that a thousand nodes don't hit a recovering server at once.
	pause = time.Duration(float64(pause) * (0.75 + rand.Float64()/2))
	until := time.Now().Add(max(pause, min(asked, o.wait.Start/2)))
	m.err = err
	if !others || m.busy == 0 {
		m.fails++
		m.after = until
	}
	return until
}

// ranged records whether a server supports ranges.
func (o *Origin) ranged(m *mirror, v verdict) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m.ranges = v
}

func (o *Origin) hasRanges(m *mirror) verdict {
	o.mu.Lock()
	defer o.mu.Unlock()
	return m.ranges
}

// faster reports whether a usable mirror is by a factor faster than rate, or, unless it must be certain, could be.
func (o *Origin) faster(rate, factor float64, certain bool, may func(*mirror) bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.mirrors, func(m *mirror) bool {
		return may(m) && !m.after.After(time.Now()) && (m.rate > factor*rate || m.rate == 0 && !certain)
	})
}

// Get fetches a small file of exactly size bytes into dst, which is enlarged if too small, and returns dst's first size
// bytes. It waits and retries as patiently as File does, and uses all mirrors.
func (o *Origin) Get(ctx context.Context, path string, size int64, dst []byte) ([]byte, error) {
	return o.GetChecked(ctx, path, size, dst, nil)
}

// DamagedTries is how often a damaged file is fetched before the damage is attributed to the server, and not to the
// transfer.
const DamagedTries = 3

// GetChecked is Get for a file that can be verified: data that check refuses is fetched again, from another mirror
// while there is one, and at least DamagedTries times in all.
func (o *Origin) GetChecked(ctx context.Context, path string, size int64, dst []byte,
	check func([]byte) error) ([]byte, error) {
	if int64(cap(dst)) < size {
		dst = make([]byte, size)
	}
	dst = dst[:size]
	k := newKnown(o, size, check != nil)
	for damaged := 0; ; {
		err := o.get(ctx, k, path, dst)
		switch {
		case errors.Is(err, ErrRestart):
			k.reset()
			continue
		case err != nil:
			return nil, err
		case check == nil:
			return dst, nil
		}
		if err = check(dst); err == nil {
			return dst, nil
		}
		damaged++
		switch again := k.distrust(nil); {
		case again:
			o.log.Warn("wrong content, asking another mirror", "url", o.nameOf(path), "err", err)
			k.reset()
		case damaged < DamagedTries:
			o.log.Warn("wrong content, asking again", "url", o.nameOf(path), "err", err)
			k = newKnown(o, size, true) // all mirrors have another chance
		default:
			return nil, step.Fail("publish the image again, or correct the mirrors",
				fmt.Errorf("fetch %s: %w", o.nameOf(path), err))
		}
	}
}

// GetUpTo fetches a file of unknown size, at most limit.
func (o *Origin) GetUpTo(ctx context.Context, path string, limit int64) ([]byte, error) {
	k := newKnown(o, -1, false)
	k.limit = limit
	for {
		s := newStream(ctx, o, k, path, 0, -1)
		got, err := s.all()
		s.close()
		if errors.Is(err, ErrRestart) {
			k.reset()
			continue
		}
		return got, err
	}
}

func (o *Origin) get(ctx context.Context, k *known, path string, dst []byte) error {
	s := newStream(ctx, o, k, path, 0, -1)
	defer s.close()
	if len(dst) == 0 { // it must still exist
		return s.connect()
	}
	_, err := s.full(dst)
	if err == io.EOF { // impossible, since the size agreed
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (o *Origin) nameOf(path string) string {
	u, err := o.mirrors[0].at(path)
	if err != nil {
		return o.Name()
	}
	return Redact(u)
}

// best returns the rate of the fastest mirror's connections.
func (o *Origin) best() float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	best := 0.0
	for _, m := range o.mirrors {
		best = max(best, m.rate)
	}
	return best
}
