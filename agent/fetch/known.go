package fetch

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// known is the state of one file during its fetch, shared by all its connections.
type known struct {
	o      *Origin
	wanted int64 // required size; -1: any
	limit  int64 // of the size; 0: none

	mu       *sync.Mutex // the Origin's
	digest   bool        // a digest will be compared: pieces of all mirrors may be combined
	size     int64       // -1: unknown
	owner    *mirror     // source of the first bytes
	blind    bool        // combined pieces may be of different files
	some     bool        // bytes were received, in this or an earlier attempt
	furthest int64       // highest offset reached
	tags     map[*mirror]*tag
	resumes  int
	restarts int

	// State that survives a restart.
	only  *mirror            // the only mirror of the attempt
	out   map[*mirror]error  // excluded mirrors, and why
	wrong map[*mirror][]byte // digest of the file from one mirror alone
	total map[*mirror]int64  // bytes
}

// tag identifies the version of the file on one mirror.
type tag struct {
	seen     bool
	etag     string // strong, or ""
	modified string
	gave     int64 // bytes of this attempt
	refused  error // why this attempt can't use the mirror
	differs  bool  // because its file differs from the others'
}

func newKnown(o *Origin, wanted int64, digest bool) *known {
	return &known{o: o, mu: &o.mu, wanted: wanted, digest: digest, size: wanted, tags: map[*mirror]*tag{},
		out: map[*mirror]error{}, wrong: map[*mirror][]byte{}, total: map[*mirror]int64{}}
}

// reset forgets the file for a new attempt.
func (k *known) reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.size, k.owner, k.blind = k.wanted, nil, false
	clear(k.tags)
}

func (k *known) tag(m *mirror) *tag {
	t := k.tags[m]
	if t == nil {
		t = &tag{}
		k.tags[m] = t
	}
	return t
}

// join reports whether bytes of a mirror may be added to the present ones.
func (k *known) join(m *mirror) bool {
	if k.only != nil && m != k.only {
		return false
	}
	return k.owner == nil || k.digest && k.only == nil || m == k.owner && k.tag(m).etag != ""
}

// may reports whether a mirror may be used. The Origin's lock is held.
func (k *known) may(m *mirror, loose bool) bool {
	return k.out[m] == nil && k.tag(m).refused == nil && (loose || k.join(m))
}

// refuse excludes a mirror from this attempt.
func (k *known) refuse(m *mirror, err error, differs bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.tag(m)
	t.refused, t.differs = err, differs
	m.wrong++
}

// restart discards the data read, a few times.
func (k *known) restart(m *mirror, why string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.restartLocked(m, why)
}

func (k *known) restartLocked(m *mirror, why string) error {
	if k.restarts++; k.restarts > k.o.wait.Restarts {
		return step.Retryable(
			"see whether the image file is being replaced on the server all the time; let the server send a strong ETag",
			fmt.Errorf("fetch %s: started again %d times: %s", m.name, k.o.wait.Restarts, why))
	}
	k.o.log.Warn("download starts again from its beginning", "url", m.name, "bytes", k.furthest, "why", why)
	return ErrRestart
}

// stuck returns the error when no mirror may be used, or when patience with the usable ones has ended: ErrRestart if
// there are others than those that sent the bytes so far.
func (k *known) stuck(down time.Duration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var faults []error
	others := false // that a new attempt could use
	for _, m := range k.o.mirrors {
		t := k.tag(m)
		switch {
		case k.out[m] != nil:
			faults = append(faults, k.out[m])
		case k.only != nil && m != k.only:
			others = true
		case t.refused != nil:
			others = others || t.differs && k.owner != nil
			faults = append(faults, t.refused)
		case k.owner != nil && m != k.owner && !k.join(m):
			others = true
		case m.err != nil:
			faults = append(faults, m.err)
		}
	}
	if others {
		for _, m := range k.o.mirrors {
			if t := k.tag(m); k.out[m] == nil && (m == k.only || k.only == nil && t.gave > 0) {
				k.out[m] = cmp.Or(t.refused, m.err,
					fmt.Errorf("fetch %s: gave up after %s", m.name, down.Round(time.Second)))
			}
		}
		if k.only != nil {
			k.only = k.next()
		}
		return k.restartLocked(k.o.mirrors[0], "the remaining mirrors can't continue from there")
	}
	if len(faults) == 0 {
		faults = append(faults,
			step.Retryable("check the image server", fmt.Errorf("fetch %s: no answer", k.o.mirrors[0].name)))
	}
	err := faults[0]
	if len(faults) > 1 {
		err = &mirrorsError{faults}
	}
	again, remedy := false, ""
	for _, f := range faults {
		var se *step.Error
		if !errors.As(f, &se) {
			continue
		}
		again = again || se.Retryable
		remedy = cmp.Or(remedy, se.Remedy)
	}
	if again && k.some {
		return step.Retryable("check the image server and the network between it and the machine, then deploy again",
			fmt.Errorf("fetch %s: no new data for %s after %d bytes: %w", k.o.mirrors[0].name, down.Round(time.Second),
				k.furthest, err))
	}
	if again {
		return step.Retryable(remedy, err)
	}
	return step.Fail(remedy, err)
}

// next returns the first mirror that could still send the whole file alone.
func (k *known) next() *mirror {
	for _, m := range k.o.mirrors {
		if t := k.tag(m); k.out[m] == nil && (t.refused == nil || t.differs) {
			return m
		}
	}
	return nil
}

// mirrorsError joins the errors of several mirrors.
type mirrorsError struct{ each []error }

func (e *mirrorsError) Error() string {
	var parts []string
	for _, err := range e.each {
		parts = append(parts, err.Error())
	}
	return "no mirror can send it: " + strings.Join(parts, "; ")
}

func (e *mirrorsError) Unwrap() []error { return e.each }

// came records received bytes.
func (k *known) came(m *mirror, off, n int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.tag(m)
	switch {
	case k.owner == nil:
		k.owner = m
	case k.owner != m:
		k.blind = true
	}
	t.gave += n
	k.total[m] += n
	k.some, k.o.some = true, true
	k.furthest = max(k.furthest, off+n)
}

// empty returns the mirror with an empty file, if no mirror has sent a byte. The lock is held.
func (k *known) empty() *mirror {
	for _, m := range k.o.mirrors {
		if t := k.tag(m); t.seen && t.refused == nil && k.out[m] == nil {
			return m
		}
	}
	return nil
}

// distrust handles a wrong digest and reports whether another attempt makes sense. The digest is nil if it is not of
// the whole file, and so not comparable with other mirrors, or if the file was damaged before its end. The next attempt
// uses one mirror alone, so that the wrong file can be located.
func (k *known) distrust(got []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.owner == nil {
		k.owner = k.empty()
	}
	if k.owner == nil && got == nil {
		return false // no mirror has sent anything
	}
	if k.owner != nil && (!k.blind || k.only != nil) {
		for m, sum := range k.wrong {
			if got != nil && bytes.Equal(sum, got) {
				k.o.log.Warn("two mirrors have the very same file, so it is the digest that does not fit", "url",
					k.owner.name, "mirror", m.name)
				return false
			}
		}
		k.wrong[k.owner] = bytes.Clone(got)
		k.out[k.owner] = step.Failf("replace the file there", "fetch %s: the file there is not the right one",
			k.owner.name)
		k.owner.wrong += 2 // it was counted as a success
	}
	m := k.next()
	if m == nil || k.restarts >= k.o.wait.Restarts {
		return false
	}
	k.only = m
	k.restarts++
	k.o.log.Warn("the file is not the right one: it is fetched again, from one mirror alone", "url", m.name, "bytes",
		k.furthest)
	return true
}
