package client_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/access/keystonetest"
	"github.com/ingot-metal/ingot/conductor/client"
)

// guarded is a server that lets those in who have one of the given headers, and counts.
func guarded(t *testing.T, ok func(http.Header) bool) (*httptest.Server, *int) {
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		w.Header().Set("Content-Type", "application/json")
		if !ok(r.Header) {
			w.WriteHeader(401)
			w.Write([]byte(`{"error":{"message":"Authorization required","code":401}}`))
			return
		}
		w.Write([]byte(`{"drivers":[]}`))
	}))
	t.Cleanup(s.Close)
	return s, &n
}

func TestLogins(t *testing.T) {
	s, asked := guarded(t, func(h http.Header) bool {
		name, pw, _ := (&http.Request{Header: h}).BasicAuth()
		return name == "alice" && pw == "one" || h.Get("X-Auth-Token") == "good"
	})
	for name, c := range map[string]struct {
		endpoint string
		login    client.Credentials
		ok       bool
	}{
		"without": {s.URL, nil, false}, "in the endpoint": {strings.Replace(s.URL, "//", "//alice:one@", 1), nil, true},
		"basic": {s.URL, client.Basic{User: "alice", Password: "one"}, true},
		"wrong": {s.URL, client.Basic{User: "alice", Password: "x"}, false},
		"token": {s.URL, client.Token("good"), true}, "bad token": {s.URL, client.Token("bad"), false},
	} {
		cl, err := client.New(c.endpoint, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.login != nil {
			cl.Login = c.login
		}
		*asked = 0
		if _, err := cl.Drivers(t.Context()); (err == nil) != c.ok || *asked > 2 {
			t.Errorf("%s: %v after %d requests", name, err, *asked)
		}
	}
}

func TestKeystoneLogin(t *testing.T) {
	ks := keystonetest.Start(t)
	ks.AddUser("alice", "pw")
	ks.Grant("alice", "web", "member")
	last := ""
	s, _ := guarded(t, func(h http.Header) bool {
		last = h.Get("X-Auth-Token")
		return last != "" && last != "gAAAA-1"
	})
	ks.AddEndpoint("baremetal", s.URL)
	k := &client.Keystone{AuthURL: ks.URL + "/v3", Username: "alice", Password: "pw", Project: "web"}
	endpoint, err := k.Endpoint(t.Context())
	if err != nil || endpoint != s.URL {
		t.Fatalf("endpoint = %q, %v, want %s", endpoint, err, s.URL)
	}
	c, err := client.New(endpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Login = k
	time.Sleep(1100 * time.Millisecond) // a token that is refused at once is not made again
	// The server refuses the first token, as one that was revoked: the client gets another.
	if _, err := c.Drivers(t.Context()); err != nil || last != "gAAAA-2" {
		t.Errorf("after %s was refused: %v", last, err)
	}
	if _, err := c.Drivers(t.Context()); err != nil || last != "gAAAA-2" {
		t.Errorf("a good token is not used again: %s, %v", last, err)
	}
	for _, bad := range []*client.Keystone{
		{AuthURL: ks.URL, Username: "alice", Password: "wrong", Project: "web"},
		{AuthURL: ks.URL, Username: "alice", Password: "pw", Project: "other"},
		{AuthURL: "http://127.0.0.1:1", Username: "alice"},
		{AuthURL: ks.URL, Username: "alice", Password: "pw", ProjectID: "none"},
	} {
		if _, err := bad.Endpoint(t.Context()); err == nil || !strings.Contains(err.Error(), "log in to Keystone") {
			t.Errorf("%+v: %v", bad.Project, err)
		}
	}
}
