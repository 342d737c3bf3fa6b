package glance_test

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/glance"
)

// swift is an object store as the documentation of its temporary URLs has it: a signature is the HMAC of method, end
// and path with the account's key, by a digest that its length says, and one for GET is good for HEAD.
type swift struct {
	*httptest.Server
	t       *testing.T
	mu      sync.Mutex
	key     string
	info    string
	lacks   bool // the object is not there
	down    bool
	tokens  []string // that came with any request
	signed  []string // digests of good requests for the object
	longest time.Duration
}

const bucket = "/v1/AUTH_web/glance/"

func newSwift(t *testing.T) *swift {
	s := &swift{t: t, key: "the account's key", info: `{"tempurl": {"allowed_digests": ["sha1", "sha256", "sha512"]}}`}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *swift) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *swift) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	token := r.Header.Get("X-Auth-Token")
	switch {
	case s.down:
		w.WriteHeader(http.StatusServiceUnavailable)
	case r.URL.Path == "/info":
		if s.info == "" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprint(w, s.info)
	case r.URL.Path == "/v1/AUTH_web" && r.Method == http.MethodHead:
		if token == "" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if s.key != "" {
			w.Header().Set("X-Account-Meta-Temp-URL-Key", s.key)
		}
		w.WriteHeader(http.StatusNoContent)
	case strings.HasPrefix(r.URL.Path, bucket):
		if token != "" {
			s.tokens = append(s.tokens, token)
		}
		name, ok := s.valid(r)
		switch {
		case !ok:
			w.WriteHeader(http.StatusUnauthorized)
		case s.lacks || r.URL.Path != bucket+own:
			http.NotFound(w, r)
		default:
			if r.Method == http.MethodGet {
				s.signed = append(s.signed, name)
			}
			w.Header().Set("Etag", `"abc"`)
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader(data))
		}
	default:
		http.NotFound(w, r)
	}
}

// valid checks a temporary URL as the middleware does.
func (s *swift) valid(r *http.Request) (digest string, ok bool) {
	sig, err := hex.DecodeString(r.FormValue("temp_url_sig"))
	end, eerr := strconv.ParseInt(r.FormValue("temp_url_expires"), 10, 64)
	if err != nil || eerr != nil || time.Now().Unix() > end {
		return "", false
	}
	s.longest = max(s.longest, time.Until(time.Unix(end, 0)))
	made, digest := map[int]func() hash.Hash{20: sha1.New, 32: sha256.New}[len(sig)],
		map[int]string{20: "sha1", 32: "sha256"}[len(sig)]
	if made == nil || !strings.Contains(s.info, `"`+digest+`"`) && strings.Contains(s.info, "allowed_digests") {
		return "", false
	}
	for _, method := range []string{r.Method, http.MethodGet} {
		h := hmac.New(made, []byte(s.key))
		fmt.Fprintf(h, "%s\n%d\n%s", method, end, r.URL.Path)
		ok = ok || hmac.Equal(h.Sum(nil), sig)
	}
	return digest, ok
}

// TestImagesComeFromSwift: an agent is led to Swift, with ranges, by the best digest that it takes, and with the key of
// the account or of a file. Where Swift has no such image, or does not answer, the conductor passes it on from Glance.
func TestImagesComeFromSwift(t *testing.T) {
	s := newSwift(t)
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("the key of a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		set    func(*swift)
		file   string
		digest string // of the URL; "": from Glance
	}{
		{"with the account's key", func(*swift) {}, "", "sha256"},
		{"with the key of a file", func(s *swift) { s.key = "the key of a file" }, file, "sha256"},
		{"a Swift with SHA-1 alone", func(s *swift) { s.info = `{"tempurl": {"allowed_digests": ["sha1"]}}` }, "", "sha1"},
		{"a Swift of old", func(s *swift) { s.info = `{"tempurl": {}}` }, "", "sha1"},
		{"a Swift with other digests", func(s *swift) { s.info = `{"tempurl": {"allowed_digests": ["sha512"]}}` }, "", ""},
		{"a Swift without temporary URLs", func(s *swift) { s.info = `{}` }, "", ""},
		{"a Swift that hides what it is", func(s *swift) { s.info = "" }, "", ""},
		{"an account without a key", func(s *swift) { s.key = "" }, "", ""},
		{"another key", func(*swift) {}, file, ""},
		{"a missing file", func(*swift) {}, file + "x", ""},
		{"no such object", func(s *swift) { s.lacks = true }, "", ""},
		{"no answer", func(s *swift) { s.down = true }, "", ""},
	} {
		s.set(func() {
			s.key, s.info, s.lacks, s.down = "the account's key", `{"tempurl": {"allowed_digests": ["sha1", "sha256"]}}`,
				false, false
			s.signed, s.tokens = nil, nil
			c.set(s)
		})
		w := beginWith(t, func(cfg *glance.Config) {
			cfg.Container, cfg.KeyFile = s.URL+strings.TrimSuffix(bucket, "/"), c.file
		})
		status, body, err := w.get(w.s.Address(&w.n, own), map[string]string{"Range": "bytes=4-8"})
		if status != 206 || body != data[4:9] || err != nil {
			t.Errorf("%s: %d %q %v", c.name, status, body, err)
		}
		s.set(func() {
			if got := strings.Join(s.signed, " "); got != c.digest || len(s.tokens) > 0 || s.longest > time.Hour {
				t.Errorf("%s: signed by %q, want %q; tokens %q, good for %v", c.name, got, c.digest, s.tokens, s.longest)
			}
		})
		if from, _ := w.asked.Load().(string); (from != "") != (c.digest == "") {
			t.Errorf("%s: Glance was asked for %q", c.name, from)
		}
	}
}

// TestSwiftKeyChanges: a key that was changed is found out, and no other machine is led to Swift.
func TestSwiftKeyChanges(t *testing.T) {
	s := newSwift(t)
	w := beginWith(t, func(cfg *glance.Config) { cfg.Container = s.URL + bucket })
	at := w.s.Address(&w.n, own)
	for _, key := range []string{"first", "second"} {
		s.set(func() { s.key, s.signed = key, nil })
		if status, body, err := w.get(at, nil); status != 200 || body != data || err != nil {
			t.Errorf("with the %s key: %d %q %v", key, status, body, err)
		}
		s.set(func() {
			if len(s.signed) != 1 {
				t.Errorf("with the %s key Swift served %d requests", key, len(s.signed))
			}
			s.signed = nil
		})
	}
	if status, _, _ := w.get(at[:len(at)-1]+"x", nil); status != 404 {
		t.Errorf("another code: %d", status)
	}
	for _, container := range []string{"swift/v1/a/b", "http://s/v1/a", "http://s/v1/a/b/c", "http://s/v1/a/b?x=y",
		"ftp://s/v1/a/b", "http://s/v1/a/b%20c"} {
		if _, err := glance.New(glance.Config{URL: "http://g", Container: container}, nil); err == nil {
			t.Errorf("the container %q is taken", container)
		}
	}
}
