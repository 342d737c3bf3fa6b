package access_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/access/keystonetest"
)

func keystone(t *testing.T,
	change func(*access.KeystoneConfig)) (*keystonetest.Server, *access.Keystone, *bytes.Buffer) {
	t.Helper()
	s := keystonetest.Start(t)
	s.AddUser("ingot", "own password")
	s.Grant("ingot", "service", "service")
	s.AddUser("alice", "pw")
	s.Grant("alice", "web", "admin", "member", "reader")
	s.Grant("alice", "", "reader")
	cfg := access.KeystoneConfig{AuthURL: s.URL,
		Own: func() (gophercloud.AuthOptions, error) { return ingot("own password"), nil }}
	if change != nil {
		change(&cfg)
	}
	log := &lockedBuffer{}
	k, err := access.NewKeystone(cfg, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return s, k, &log.b
}

// ingot is the server's own user.
func ingot(password string) gophercloud.AuthOptions {
	return gophercloud.AuthOptions{Username: "ingot", DomainID: "default", Password: password,
		Scope: &gophercloud.AuthScope{ProjectName: "service", DomainID: "default"}}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func ask(t *testing.T, k *access.Keystone, tokens ...string) (*access.Actor, *access.Refusal) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/v1/nodes", nil)
	r.Header["X-Auth-Token"] = tokens
	a, err := k.Authenticate(r)
	if err == nil {
		return a, nil
	}
	var refusal *access.Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("an error that is no refusal: %v", err)
	}
	return nil, refusal
}

func TestKeystoneIdentifiesTheClient(t *testing.T) {
	s, k, _ := keystone(t, nil)
	a, refusal := ask(t, k, s.Token("alice", "web"))
	if refusal != nil || a.ProjectID != s.Project("web") || a.Role != access.Admin || a.System || a.All || a.Trusted ||
		a.String() != "alice (project web)" {
		t.Errorf("alice in a project is %+v, %v", a, refusal)
	}
	a, refusal = ask(t, k, s.Token("alice", ""))
	if refusal != nil || a.ProjectID != "" || a.Role != access.Reader || !a.System || a.String() != "alice (system)" {
		t.Errorf("alice in the system is %+v, %v", a, refusal)
	}
	for _, bad := range [][]string{nil, {""}, {"nonsense"}, {"a", "b"}, {"a b"}, {"a\x00"},
		{strings.Repeat("x", 9000)}} {
		a, refusal := ask(t, k, bad...)
		if refusal == nil || refusal.Status != 401 || refusal.Challenge != `Keystone uri="`+s.URL+`"` {
			t.Errorf("token %.20q: %+v, %+v", bad, a, refusal)
		}
	}
}

func TestKeystoneIsAskedOnce(t *testing.T) {
	s, k, _ := keystone(t, nil)
	token := s.Token("alice", "web")
	s.Slow(50 * time.Millisecond)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if a, refusal := ask(t, k, token); refusal != nil || a.UserName != "alice" {
				t.Errorf("%v, %v", a, refusal)
			}
		})
	}
	wg.Wait()
	ask(t, k, token)
	if s.Asked() != 1 {
		t.Errorf("Keystone was asked %d times about one token", s.Asked())
	}
}

func TestRevokedAndEndedTokens(t *testing.T) {
	s, k, _ := keystone(t, func(c *access.KeystoneConfig) { c.CacheTime = 100 * time.Millisecond })
	token := s.Token("alice", "web")
	if _, refusal := ask(t, k, token); refusal != nil {
		t.Fatal(refusal)
	}
	s.Revoke(token)
	time.Sleep(150 * time.Millisecond)
	if _, refusal := ask(t, k, token); refusal == nil || refusal.Status != 401 {
		t.Errorf("a revoked token: %v", refusal)
	}
	// A token's end counts, however long answers are kept.
	s, k, _ = keystone(t, nil)
	if _, refusal := ask(t, k, s.Token("alice", "web")); refusal != nil { // logs the server in, before tokens get short
		t.Fatal(refusal)
	}
	life := 300 * time.Millisecond
	for ; ; life *= 2 { // until it is long enough for this machine
		s.TokenLife(life)
		token = s.Token("alice", "web")
		if _, refusal := ask(t, k, token); refusal == nil {
			break
		} else if life > 10*time.Second {
			t.Fatal(refusal)
		}
	}
	time.Sleep(life + 50*time.Millisecond)
	if _, refusal := ask(t, k, token); refusal == nil || refusal.Status != 401 {
		t.Errorf("a token that has ended: %v", refusal)
	}
}

func TestKeystoneIsDown(t *testing.T) {
	s, k, log := keystone(t, nil)
	known, other := s.Token("alice", "web"), s.Token("alice", "")
	if _, refusal := ask(t, k, known); refusal != nil {
		t.Fatal(refusal)
	}
	s.Break(http.StatusBadGateway)
	if _, refusal := ask(t, k, known); refusal != nil {
		t.Errorf("a token that is known: %v", refusal)
	}
	if _, refusal := ask(t, k, other); refusal == nil || refusal.Status != 503 ||
		!strings.Contains(refusal.Message, "try again") {
		t.Errorf("a token that is not known: %+v", refusal)
	}
	if !strings.Contains(log.String(), "502") {
		t.Errorf("the log does not say why: %s", log)
	}
	s.Break(0)
	if a, refusal := ask(t, k, other); refusal != nil || !a.System {
		t.Errorf("after it is up again: %v", refusal)
	}
	s.Close()
	if _, refusal := ask(t, k, s.Token("alice", "web")); refusal == nil || refusal.Status != 503 {
		t.Errorf("without a Keystone: %+v", refusal)
	}
}

func TestOwnTokenIsRenewed(t *testing.T) {
	password := "own password"
	s, k, log := keystone(t, func(c *access.KeystoneConfig) {
		c.Own = func() (gophercloud.AuthOptions, error) { return ingot(password), nil }
	})
	if _, refusal := ask(t, k, s.Token("alice", "web")); refusal != nil {
		t.Fatal(refusal)
	}
	s.SetPassword("ingot", "another") // Keystone ends the tokens of users whose password changes
	if _, refusal := ask(t, k, s.Token("alice", "web")); refusal == nil || refusal.Status != 503 {
		t.Errorf("with a wrong password of its own: %+v", refusal)
	}
	if !strings.Contains(log.String(), "api.keystone.username") || strings.Contains(log.String(), "own password") {
		t.Errorf("log = %s", log)
	}
	password = "another"
	if _, refusal := ask(t, k, s.Token("alice", "web")); refusal != nil {
		t.Errorf("after the password was put right: %v", refusal)
	}
	s.Grant("ingot", "service", "reader")
	if _, refusal := ask(t, k, s.Token("alice", "")); refusal == nil || refusal.Status != 503 ||
		!strings.Contains(log.String(), "role service") {
		t.Errorf("without the role: %+v, log %s", refusal, log)
	}
}

// TestApplicationCredential: Ingot may log in with an application credential, whose secret it does not show.
func TestApplicationCredential(t *testing.T) {
	secret := "right secret"
	s, k, log := keystone(t, func(c *access.KeystoneConfig) {
		c.Own = func() (gophercloud.AuthOptions, error) {
			return gophercloud.AuthOptions{ApplicationCredentialID: "c1", ApplicationCredentialSecret: secret}, nil
		}
	})
	s.AddCredential("c1", "right secret", "ingot", "service")
	if _, refusal := ask(t, k, s.Token("alice", "web")); refusal != nil {
		t.Fatal(refusal)
	}
	s.SetPassword("ingot", "another") // ends the token
	secret = "wrong secret"
	if _, refusal := ask(t, k, s.Token("alice", "web")); refusal == nil || refusal.Status != 503 {
		t.Errorf("with a wrong secret: %+v", refusal)
	}
	if text := log.String(); !strings.Contains(text, "application credential c1: it refuses") ||
		strings.Contains(text, secret) {
		t.Errorf("log = %s", text)
	}
}

// TestBadTokensDontCostMuch: a client with invalid tokens neither makes Keystone busy nor pushes out valid tokens.
func TestBadTokensDontCostMuch(t *testing.T) {
	s, k, _ := keystone(t, nil)
	good := s.Token("alice", "web")
	ask(t, k, good)
	for range 5 {
		if _, refusal := ask(t, k, "nonsense"); refusal == nil || refusal.Status != 401 {
			t.Errorf("nonsense: %v", refusal)
		}
	}
	if s.Asked() != 2 {
		t.Errorf("Keystone was asked %d times about two tokens", s.Asked())
	}
	for i := range 1100 {
		ask(t, k, fmt.Sprint("nonsense-", i))
	}
	before := s.Asked()
	if _, refusal := ask(t, k, good); refusal != nil || s.Asked() != before {
		t.Errorf("after much nonsense the good token is asked about again (%v)", refusal)
	}
}

func TestTrustedService(t *testing.T) {
	s, k, _ := keystone(t, func(c *access.KeystoneConfig) { c.ServiceProject, c.ProjectDomain = "service", "default" })
	a, refusal := ask(t, k, s.Token("ingot", "service"))
	if refusal != nil || !a.Trusted || a.Role != access.None {
		t.Errorf("a service = %+v, %v", a, refusal)
	}
	s.AddUser("eve", "pw")
	s.Grant("eve", "web", "service")
	if a, refusal := ask(t, k, s.Token("eve", "web")); refusal != nil || a.Trusted || !a.Service {
		t.Errorf("a service of another project = %+v, %v", a, refusal)
	}
}

func TestKeystoneConfigIsChecked(t *testing.T) {
	for _, cfg := range []access.KeystoneConfig{{AuthURL: "keystone:5000"}, {AuthURL: "ftp://x"},
		{AuthURL: "https://x", CAFile: "/nonexistent"}} {
		if _, err := access.NewKeystone(cfg, nil); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}
