package access

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/crypto/bcrypt"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// How the file is watched and how long a password counts as verified.
const (
	lookEvery    = time.Second            // between two looks at the file's date
	settled      = 200 * time.Millisecond // a file that was written less than this ago may still be written
	verifiedLife = time.Minute            // bcrypt takes 50 ms and more; a client sends its password with each request
	maxVerified  = 4096
	maxHtpasswd  = 4 << 20
	maxHeader    = 8 << 10
)

// Basic authenticates by HTTP basic authentication against an htpasswd file. Every user in the file may do everything.
// The file is read again when it changes; while it is invalid, the last valid one counts. Safe for concurrent use.
type Basic struct {
	path    string
	log     *slog.Logger
	now     func() time.Time
	key     [sha256.Size]byte // of the digests in verified
	from    func(*http.Request) netip.Addr
	guesses *guesses

	mu       sync.Mutex
	users    map[string][]byte
	noUser   []byte // a hash that no password has, for names that don't exist
	looked   time.Time
	size     int64
	modified time.Time
	bad      string // the last fault logged, so that it is logged once
	verified map[[sha256.Size]byte]time.Time
	under    map[[sha256.Size]byte]*attempt
}

// OpenBasic reads the htpasswd file at path, which has to be valid at the start. clients finds the address of a
// request's client; nil trusts no proxy.
func OpenBasic(path string, clients *limit.Clients, log *slog.Logger) (*Basic, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	b := &Basic{path: path, log: log, now: time.Now, from: clients.Address,
		verified: map[[sha256.Size]byte]time.Time{}, under: map[[sha256.Size]byte]*attempt{}}
	b.guesses = newGuesses(half(), func() time.Time { return b.now() })
	rand.Read(b.key[:])
	st, users, err := readHtpasswd(path)
	if err != nil {
		return nil, err
	}
	if err := b.use(st, users); err != nil {
		return nil, err
	}
	b.looked = b.now()
	return b, nil
}

func readHtpasswd(path string) (os.FileInfo, map[string][]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read the users of the API: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("read the users of the API: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxHtpasswd+1))
	if err == nil && len(text) > maxHtpasswd {
		err = fmt.Errorf("the file is larger than %d bytes", maxHtpasswd)
	}
	var users map[string][]byte
	if err == nil {
		users, err = parseHtpasswd(text)
	}
	if err != nil {
		return st, nil, fmt.Errorf("read the users of the API from %s: %w", path, err)
	}
	return st, users, nil
}

// use installs the content of a file. Called with mu held, or before b is shared.
func (b *Basic) use(st os.FileInfo, users map[string][]byte) error {
	// As costly as the costliest of them, so that a name that does not exist takes no less time than one that does.
	cost := bcrypt.MinCost
	for _, h := range users {
		if c, err := bcrypt.Cost(h); err == nil {
			cost = max(cost, c)
		}
	}
	if old, err := bcrypt.Cost(b.noUser); err != nil || old != cost {
		var pw [32]byte
		rand.Read(pw[:])
		h, err := bcrypt.GenerateFromPassword(pw[:], cost)
		if err != nil {
			return fmt.Errorf("make a hash that no password has: %w", err)
		}
		b.noUser = h
	}
	b.users, b.size, b.modified, b.bad = users, st.Size(), st.ModTime(), ""
	clear(b.verified)
	return nil
}

// refresh reads the file again if it has changed. Called with mu held.
func (b *Basic) refresh() {
	now := b.now()
	if now.Sub(b.looked) < lookEvery && now.After(b.looked) {
		return
	}
	b.looked = now
	st, err := os.Stat(b.path)
	if err == nil {
		if st.Size() == b.size && st.ModTime().Equal(b.modified) {
			return
		}
		if age := now.Sub(st.ModTime()); age >= 0 && age < settled {
			b.looked = time.Time{} // look again with the next request
			return
		}
		var users map[string][]byte
		if st, users, err = readHtpasswd(b.path); err == nil {
			if err = b.use(st, users); err == nil {
				b.log.Info("the users of the API were read again", "file", b.path, "users", len(users))
				return
			}
		}
	}
	if text := err.Error(); text != b.bad {
		b.bad = text
		b.log.Error("the file with the API's users changed and can't be used; those of before stay", "file", b.path,
			"err", err)
	}
}

// Authenticate finds out who sent a request. An error is a *Refusal, or that of the request's context.
func (b *Basic) Authenticate(r *http.Request) (*Actor, error) {
	name, password, err := basicHeader(r.Header["Authorization"])
	if err != nil {
		return nil, err
	}
	at := b.from(r)
	ok, err := b.verify(r.Context(), at, name, password)
	if err != nil {
		return nil, err
	}
	if !ok {
		b.log.Info("a login was refused", "user", name, "from", at)
		return nil, &Refusal{Status: http.StatusUnauthorized, Message: "Incorrect username or password",
			Challenge: basicChallenge}
	}
	return &Actor{UserID: name, UserName: name, All: true}, nil
}

// attempt is one password of one user that is being compared; others with the same one wait for it.
type attempt struct {
	done chan struct{}
	ok   bool
	err  error // it was not compared
}

func (b *Basic) verify(ctx context.Context, at netip.Addr, name, password string) (bool, error) {
	hash, known, digest, ok := b.lookup(name, password)
	if ok {
		return true, nil
	}
	b.mu.Lock()
	if other := b.under[digest]; other != nil {
		b.mu.Unlock()
		select {
		case <-other.done:
		case <-ctx.Done():
			return false, errGivenUp
		}
		if other.err == nil { // one guess, however often it is sent meanwhile
			return other.ok, nil
		}
		return b.compare(ctx, at, name, password, hash, known, digest)
	}
	a := &attempt{done: make(chan struct{})}
	b.under[digest] = a
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.under, digest)
		b.mu.Unlock()
		close(a.done)
	}()
	a.ok, a.err = b.compare(ctx, at, name, password, hash, known, digest)
	return a.ok, a.err
}

// compare computes a hash, when the caller has not been wrong too often, and remembers the password if it is right.
func (b *Basic) compare(ctx context.Context, at netip.Addr, name, password string, hash []byte, known bool,
	digest [sha256.Size]byte) (bool, error) {
	return b.guesses.check(ctx, guesser{limit.Owner(at), b.mac(name)}, func() (ok, learned bool) {
		if b.isVerified(digest) { // while this one waited
			return true, true
		}
		if err := bcrypt.CompareHashAndPassword(hash, []byte(password)); err != nil || !known {
			return false, true // whatever is wrong with it, it is the wrong password
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.verified) >= maxVerified {
			clear(b.verified)
		}
		b.verified[digest] = b.now().Add(verifiedLife)
		return true, true
	})
}

// lookup finds a user's hash, or noUser, and the digest under which this password is remembered. The digest covers the
// hash, so that a changed password is not remembered.
func (b *Basic) lookup(name, password string) (hash []byte, known bool, digest [sha256.Size]byte, verified bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh()
	hash, known = b.users[name]
	if !known {
		hash = b.noUser
	}
	digest = b.mac(name, string(hash), password)
	until, ok := b.verified[digest]
	return hash, known, digest, ok && known && b.now().Before(until)
}

// mac returns a digest that can't be made or guessed from without the key of this process.
func (b *Basic) mac(parts ...string) (sum [sha256.Size]byte) {
	mac := hmac.New(sha256.New, b.key[:])
	for _, part := range parts {
		fmt.Fprintf(mac, "%d:%s", len(part), part)
	}
	mac.Sum(sum[:0])
	return sum
}

func (b *Basic) isVerified(digest [sha256.Size]byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	until, ok := b.verified[digest]
	return ok && b.now().Before(until)
}

const basicChallenge = `Basic realm="Baremetal API"`

// basicHeader reads the values of the header Authorization. The words are those that clients of Ironic know.
func basicHeader(values []string) (name, password string, err error) {
	if len(values) == 0 {
		return "", "", &Refusal{Status: http.StatusUnauthorized, Message: "Authorization required",
			Challenge: basicChallenge}
	}
	if len(values) > 1 || len(values[0]) > maxHeader {
		return "", "", malformed("Could not parse Authorization header")
	}
	kind, token, ok := strings.Cut(strings.TrimSpace(values[0]), " ")
	if token = strings.TrimSpace(token); !ok || token == "" {
		return "", "", malformed("Could not parse Authorization header")
	}
	if !strings.EqualFold(kind, "basic") {
		return "", "", malformed("Only Basic authorization is supported here, not another type")
	}
	pair, derr := base64.StdEncoding.Strict().DecodeString(token)
	name, password, ok = strings.Cut(string(pair), ":")
	if derr != nil || !ok || !utf8.ValidString(name) {
		return "", "", malformed("Could not decode authorization token")
	}
	return name, password, nil
}
