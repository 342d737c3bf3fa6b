package limit

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// Why a body is not read to its end.
var (
	// ErrBusy means that too many bytes of bodies are in flight: the same request may do in RetryAfter.
	ErrBusy = errors.New("the server is reading as many bodies as it has memory for; try again in a moment")
	// ErrSlow means that the body did not come in its time.
	ErrSlow = fmt.Errorf("the body did not arrive in time: it has %v and one more second for each %d KiB", BodyTime,
		BodyRate>>10)
)

// RetryAfter is how long a client that got ErrBusy should wait.
const RetryAfter = 2 * time.Second

// TooLargeError means that a body is larger than it may be.
type TooLargeError struct{ Limit int64 }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("The body is larger than the %d bytes allowed here.", e.Limit)
}

// Budget bounds the bytes of all bodies that are in memory at one time, and of messages of agents. Unauthenticated
// callers share the part that is not reserved; agents have as much again, so that a compromised agent can't keep users
// out. Nil bounds nothing. Safe for concurrent use.
type Budget struct {
	total, reserved int64

	mu   sync.Mutex
	used [callers]int64
}

// caller is whose bytes are counted.
type caller int

// leastAgents is the least budget of agents: two messages of the largest kind.
const leastAgents = 32 << 20

const (
	anonymous caller = iota
	agent            // with a certificate
	known            // authenticated
	callers
)

// NewBudget makes a budget of total bytes, of which reserved are for authenticated callers alone.
func NewBudget(total, reserved int64) *Budget { return &Budget{total: total, reserved: reserved} }

func (b *Budget) take(n int64, who caller) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	most := [callers]int64{anonymous: b.total - b.reserved, agent: max(b.total-b.reserved, leastAgents),
		known: b.total}[who]
	if b.used[who]+n > most || b.used[anonymous]+b.used[agent]+b.used[known]+n > b.total {
		return false
	}
	b.used[who] += n
	return true
}

func (b *Budget) give(n int64, who caller) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used[who] -= n
}

// Body reads the body of one request. Close returns its part of the budget.
type Body struct {
	r      io.Reader
	w      http.ResponseWriter
	budget *Budget
	who    caller
	limit  int64
	read   int64
	taken  int64
	begin  time.Time
}

// Open begins to read the body of a request, of at most limit bytes. Who is not authenticated gets no
// more than AnonymousBody.
func (b *Budget) Open(w http.ResponseWriter, r *http.Request, limit int64, authenticated bool) *Body {
	if !authenticated {
		return b.open(w, r, min(limit, AnonymousBody), anonymous)
	}
	return b.open(w, r, limit, known)
}

// OpenStream is Open for a body that is not kept in memory: it has a limit, but takes nothing from the budget.
func OpenStream(w http.ResponseWriter, r *http.Request, limit int64) *Body {
	return (*Budget)(nil).open(w, r, limit, anonymous)
}

func (b *Budget) open(w http.ResponseWriter, r *http.Request, limit int64, who caller) *Body {
	return &Body{r: http.MaxBytesReader(w, r.Body, limit), w: w, budget: b, who: who, limit: limit, begin: time.Now()}
}

// Read implements io.Reader. Its errors are ErrBusy, ErrSlow, a *TooLargeError, or those of the connection.
func (b *Body) Read(p []byte) (int, error) {
	deadline(b.w, b.begin.Add(BodyTime+time.Duration(b.read)*time.Second/BodyRate))
	n, err := b.r.Read(p)
	b.read += int64(n)
	if n > 0 && !b.Charge(int64(n)) {
		return 0, ErrBusy
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, io.EOF):
		// the connection is watched while the request is worked on, for as long as that takes
		deadline(b.w, time.Time{})
	case errors.As(err, &tooLarge):
		err = &TooLargeError{Limit: b.limit}
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = ErrSlow
	}
	return n, err
}

// Charge takes n more bytes of the budget, for data made from the body, and reports whether they were available.
func (b *Body) Charge(n int64) bool {
	if !b.budget.take(n, b.who) {
		return false
	}
	b.taken += n
	return true
}

// Close returns the body's part of the budget. It does not close the request's body.
func (b *Body) Close() {
	b.budget.give(b.taken, b.who)
	b.taken = 0
}
