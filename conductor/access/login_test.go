package access

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/ingot-metal/ingot/conductor/access/keystonetest"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// as is the server's own user, with its password.
func as(password string) func() (gophercloud.AuthOptions, error) {
	return func() (gophercloud.AuthOptions, error) {
		return gophercloud.AuthOptions{Username: "ingot", DomainID: "default", Password: password,
			Scope: &gophercloud.AuthScope{ProjectName: "service", DomainID: "default"}}, nil
	}
}

func TestLoginToKeystone(t *testing.T) {
	ks := keystonetest.Start(t)
	ks.AddUser("ingot", "own")
	ks.Grant("ingot", "service", "service")
	ks.AddUser("ann", "right")
	ks.Grant("ann", "web", "member", "reader")
	ks.Grant("ann", "", "reader")
	k, err := NewKeystone(KeystoneConfig{AuthURL: ks.URL, Own: as("own")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddr("192.0.2.1")
	who := func(token string) (*Actor, error) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-Auth-Token", token)
		return k.Authenticate(r)
	}
	refused := func(l Login, at netip.Addr) int {
		t.Helper()
		_, err := k.Login(t.Context(), at, l)
		var r *Refusal
		if !errors.As(err, &r) {
			t.Fatalf("Login(%s) = %v, want a refusal", l.User, err)
		}
		return r.Status
	}

	token, err := k.Login(t.Context(), at, Login{User: "ann", Password: "right", Project: "web"})
	if err != nil {
		t.Fatal(err)
	}
	if a, err := who(token); err != nil || a.ProjectName != "web" || a.Role != Member {
		t.Errorf("with a project: %+v, %v", a, err)
	}
	if system, err := k.Login(t.Context(), at, Login{User: "ann", Password: "right", System: true}); err != nil {
		t.Error(err)
	} else if a, err := who(system); err != nil || !a.System {
		t.Errorf("in the system: %+v, %v", a, err)
	}
	k.Logout(t.Context(), token)
	if _, err := who(token); err == nil {
		t.Error("the token is good after its user has logged out")
	}

	if got := refused(Login{User: "ann", Password: "right", Project: "other"}, at); got != 401 {
		t.Errorf("a project without a role = %d, want 401", got)
	}
	if got := refused(Login{User: strings.Repeat("x", maxLogin+1)}, at); got != 400 {
		t.Errorf("a long name = %d, want 400", got)
	}
	ks.Break(503)
	for range limit.LoginFailures + 2 {
		if got := refused(Login{User: "ann", Password: "right"}, at); got != 503 {
			t.Fatalf("while Keystone is broken = %d, want 503", got)
		}
	}
	ks.Break(0)

	// Guesses are counted as those of http_basic, and keep no other user out.
	last := 0
	for i := range limit.LoginFailures + 3 {
		last = refused(Login{User: "ann", Password: fmt.Sprint("wrong", i), Project: "web"}, at)
	}
	if last != 429 {
		t.Errorf("the last of many wrong passwords = %d, want 429", last)
	}
	other := netip.MustParseAddr("192.0.2.2")
	if _, err := k.Login(t.Context(), other, Login{User: "ann", Password: "right", Project: "web"}); err != nil {
		t.Errorf("the user at another address: %v", err)
	}
}
