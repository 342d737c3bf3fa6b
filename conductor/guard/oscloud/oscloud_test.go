package oscloud_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
)

// server answers requests, and holds the token that is good.
func server(t *testing.T, answer http.HandlerFunc) (oscloud.Config, *[]string) {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	dropped := &[]string{}
	token := "stale"
	return oscloud.Config{Name: "Neutron", URL: s.URL, Path: "/v2.0",
		Login:  func(context.Context) (string, error) { return token, nil },
		Forget: func(old string) { *dropped, token = append(*dropped, old), "fresh" }}, dropped
}

func list(t *testing.T, c oscloud.Config) error {
	t.Helper()
	client, err := oscloud.New(c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = ports.List(client, nil).AllPages(t.Context())
	return oscloud.Explain("Neutron", "list ports", err)
}

func TestRefusedTokenIsRenewedOnce(t *testing.T) {
	var body strings.Builder
	c, dropped := server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Auth-Token") != "fresh" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(&body, r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"ports": []}`)
	})
	if err := list(t, c); err != nil || body.String() != "/v2.0/ports" || len(*dropped) != 1 {
		t.Errorf("list = %v, asked %q, dropped %v", err, body.String(), *dropped)
	}
	c.Forget = func(string) {} // the new one is not good either
	c.Login = func(context.Context) (string, error) { return "never", nil }
	err := list(t, c)
	if err == nil || !oscloud.Is(err, http.StatusUnauthorized) || !strings.Contains(err.Error(), "role") ||
		strings.Contains(err.Error(), "never") {
		t.Errorf("with a refused token: %v", err)
	}
}

// TestAnswersAreHostile: what a service sends reaches neither a terminal nor the memory without bounds, and the token
// goes to no other host.
func TestAnswersAreHostile(t *testing.T) {
	stolen := make(chan string, 1)
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		stolen <- r.Header.Get("X-Auth-Token")
	}))
	defer thief.Close()
	huge := strings.Repeat("x", 1<<20)
	for name, test := range map[string]struct {
		answer  func(http.ResponseWriter)
		want    string
		passing bool
	}{
		"a long message with escapes": {func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusConflict)
			fmt.Fprintf(w, `{"NeutronError": {"message": "quota\u001b[2J\nexceeded %s"}}`, huge)
		}, "Neutron answered 409: quota", false},
		"no JSON": {func(w http.ResponseWriter) {
			w.WriteHeader(502)
			fmt.Fprint(w, huge)
		}, "answered 502", true},
		"an endless answer":      {endless, "can't be asked", true},
		"a link to another host": {func(w http.ResponseWriter) { link(w, thief.URL) }, "another server", false},
		"a redirect": {func(w http.ResponseWriter) {
			w.Header().Set("Location", thief.URL)
			w.WriteHeader(302)
		}, "answered 302", false},
		"an error of placement's": {func(w http.ResponseWriter) {
			w.WriteHeader(400)
			fmt.Fprint(w, `{"errors": [{"detail": "no such class"}]}`)
		}, "no such class", false},
		"an error that is a single text": {func(w http.ResponseWriter) { w.WriteHeader(400); fmt.Fprint(w, `{"error": "bad"}`) }, "400: bad", false},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := server(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				test.answer(w)
			})
			err := list(t, c)
			if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 600 ||
				strings.ContainsAny(err.Error(), "\x1b\n") || oscloud.Passing(err) != test.passing {
				t.Errorf("error %q, passing %v; want %q, %v", err, oscloud.Passing(err), test.want, test.passing)
			}
		})
	}
	select {
	case token := <-stolen:
		t.Errorf("another host got the token %q", token)
	default:
	}
}

func link(w http.ResponseWriter, to string) {
	fmt.Fprintf(w, `{"ports": [{"id": "1"}], "ports_links": [{"rel": "next", "href": %q}]}`, to+"/v2.0/ports")
}

func endless(w http.ResponseWriter) {
	fmt.Fprint(w, `{"ports": ["`)
	for {
		if _, err := fmt.Fprint(w, strings.Repeat("x", 1<<16)); err != nil {
			return
		}
	}
}

func TestNoAnswer(t *testing.T) {
	c, _ := server(t, nil)
	c.URL = "http://user:hunter2@127.0.0.1:1/v2.0/"
	err := list(t, c)
	if !oscloud.Passing(err) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("no server: %v", err)
	}
	c.Login = func(context.Context) (string, error) { return "", errors.New("Keystone refuses") }
	if err := list(t, c); err == nil || !strings.Contains(err.Error(), "Keystone refuses") {
		t.Errorf("no login: %v", err)
	}
	for _, bad := range []string{"", "neutron.example", "ftp://x", "http://"} {
		c.URL = bad
		if _, err := oscloud.New(c); err == nil || !strings.Contains(err.Error(), "address of Neutron") {
			t.Errorf("New(%q) = %v", bad, err)
		}
	}
}
