package discover_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	kit "github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/tools/enrol/discover"
)

var admin = discover.Account{User: "admin", Password: kit.Password}

func address(url string) string { return strings.TrimPrefix(url, "https://") }

// TestFind asks a controller of each vendor, and then for its machines.
func TestFind(t *testing.T) {
	for _, vendor := range []string{"generic", "dell-idrac9", "hpe-ilo5", "lenovo-xcc", "supermicro", "ami"} {
		b := kit.Start(t, kit.Personality(t, vendor))
		found := discover.Find(t.Context(), []discover.Target{{Address: address(b.Service.URL())}})
		if len(found) != 1 || found[0].Fault != "" || found[0].Vendor == "" || found[0].Version == "" ||
			len(found[0].Fingerprint) != 64 || found[0].PEM != string(b.Service.CertificatePEM()) ||
			found[0].Named != nil {
			t.Errorf("%s: %+v", vendor, found)
			continue
		}
		machines, err := discover.Machines(t.Context(), &found[0], admin)
		if err != nil || len(machines) != 1 || machines[0].UUID != kit.UUID.String() || machines[0].Model == "" ||
			machines[0].SystemID != "" {
			t.Errorf("%s: %+v, %v", vendor, machines, err)
		}
		_, err = discover.Machines(t.Context(), &found[0], discover.Account{User: "admin", Password: "x"})
		if err == nil || !strings.Contains(err.Error(), "wrong user name or password") {
			t.Errorf("%s: a wrong password: %v", vendor, err)
		}
	}
}

// server answers over TLS by f.
func server(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewUnstartedServer(f)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return address(s.URL)
}

const service = `{"RedfishVersion": "1.0.0", "Oem": {"Contoso": {}}, "Systems": {"@odata.id": "/redfish/v1/Systems"}}`

// TestPasswordStays: it goes to no address before that was accepted, to none with another certificate, and along no
// link or redirect.
func TestPasswordStays(t *testing.T) {
	var sent atomic.Int32
	elsewhere := server(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the password went elsewhere")
		}
	})
	systems := `{"Members": [{"@odata.id": "https://` + elsewhere + `/redfish/v1/Systems/1"}]}`
	at := server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			sent.Add(1)
		}
		switch {
		case r.URL.Path != "/redfish/v1/Systems":
			fmt.Fprint(w, service)
		case systems == "":
			http.Redirect(w, r, "https://"+elsewhere+"/redfish/v1/Systems", http.StatusFound)
		default:
			fmt.Fprint(w, systems)
		}
	})
	found := discover.Find(t.Context(), []discover.Target{{Address: at}})
	if len(found) != 1 || found[0].Fault != "" || found[0].Vendor != "Contoso" || sent.Load() != 0 {
		t.Fatalf("%+v, the password was sent %d times", found, sent.Load())
	}
	other := found[0]
	other.Fingerprint = strings.Repeat("ab", 32)
	if _, err := discover.Machines(t.Context(), &other, admin); err == nil || sent.Load() != 0 ||
		!strings.Contains(err.Error(), "its certificate is another") {
		t.Errorf("another certificate: %v, the password was sent %d times", err, sent.Load())
	}
	c := discover.Find(t.Context(), []discover.Target{{Address: at, Fingerprint: other.Fingerprint}})[0]
	if !strings.Contains(c.Fault, "its certificate is another") || c.Absent() {
		t.Errorf("a list with another certificate: %+v", c)
	}
	if _, err := discover.Machines(t.Context(), &found[0], admin); err == nil ||
		!strings.Contains(err.Error(), "leads elsewhere") {
		t.Errorf("a link elsewhere: %v", err)
	}
	systems = ""
	if _, err := discover.Machines(t.Context(), &found[0], admin); err == nil ||
		!strings.Contains(err.Error(), "answers 302") {
		t.Errorf("a redirect: %v", err)
	}
	if _, err := discover.Machines(t.Context(), &discover.Controller{Address: at}, admin); err == nil {
		t.Error("a controller that was not found is asked")
	}
}

// TestOthers: what else listens on the port.
func TestOthers(t *testing.T) {
	var body atomic.Pointer[string]
	at := server(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, *body.Load()) })
	for name, c := range map[string]struct{ text, want string }{
		"a page":        {"<html>Login</html>", "not that of a Redfish service"},
		"other JSON":    {`{"version": 1}`, "not that of a Redfish service"},
		"endless":       {`{"a": "` + strings.Repeat("x", 1<<20), "larger than 256 KiB"},
		"a long vendor": {strings.Replace(service, "Contoso", strings.Repeat("é", 1000), 1), ""},
	} {
		body.Store(&c.text)
		got := discover.Find(t.Context(), []discover.Target{{Address: at}})[0]
		if !strings.Contains(got.Fault, c.want) || (got.Fault == "") != (c.want == "") || got.Absent() ||
			len([]rune(got.Vendor)) > 128 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	found := discover.Find(ctx, []discover.Target{{Address: address(strings.Replace(plain.URL, "http:", "https:", 1))},
		{Address: address(strings.Replace(gone.URL, "http:", "https:", 1))}})
	if found[0].Fault == "" || found[0].Absent() || !found[1].Absent() {
		t.Errorf("without TLS, and nothing: %+v", found)
	}
	cancel(errors.New("enough"))
	if c := discover.Find(ctx, make([]discover.Target, 1000))[999]; c.Fault == "" {
		t.Errorf("after the end: %+v", c)
	}
}

func TestTargets(t *testing.T) {
	for word, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "bmc1.example:8443": "bmc1.example:8443", "bmc-1": "bmc-1",
		"[2001:db8::1]:8443": "[2001:db8::1]:8443",
		"2001:db8::1":        "[2001:db8::1]", "192.0.2.4/30": "192.0.2.5 192.0.2.6",
		"192.0.2.5/30": "192.0.2.5 192.0.2.6",
		"192.0.2.4/31": "192.0.2.4 192.0.2.5", "192.0.2.4/32": "192.0.2.4",
		"2001:db8::/127":                  "[2001:db8::] [2001:db8::1]",
		"192.0.2.254-192.0.3.1":           "192.0.2.254 192.0.2.255 192.0.3.0 192.0.3.1",
		"255.255.255.255-255.255.255.255": "255.255.255.255",
	} {
		all, err := discover.Parse(word)
		if got := names(all); err != nil || got != want {
			t.Errorf("%s: %q %v, want %q", word, got, err, want)
		}
	}
	for word, want := range map[string]string{"10.0.0.0/8": "smaller network", "2001:db8::/64": "smaller network",
		"10.0.0.0-10.200.0.0": "smaller range", "10.0.0.2-10.0.0.1": "not before", "10.0.0.2-::1": "not before",
		"https://h/": "neither an address", "user@h": "neither an address", "a b": "neither an address"} {
		if all, err := discover.Parse(word); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v %v, want %q", word, names(all), err, want)
		}
	}
	sum := strings.Repeat("ab", 32)
	all, err := discover.ReadTargets([]byte("ADDRESS  FINGERPRINT\n# a comment\n\n192.0.2.1  " + sum + "  Dell  iDRAC\n192.0.2.2  -  - -\n192.0.2.8/31\n"))
	if err != nil || names(all) != "192.0.2.1 192.0.2.2 192.0.2.8 192.0.2.9" || all[0].Fingerprint != sum ||
		all[1].Fingerprint != "" {
		t.Errorf("a table: %v %v", all, err)
	}
	for text, want := range map[string]string{"192.0.2.1\nx/y\n": "line 2",
		strings.Repeat("10.1.0.0/16\n", 2): "several lists", strings.Repeat("x", 1<<20): "token too long"} {
		if _, err := discover.ReadTargets([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
}

func names(all []discover.Target) string {
	var s []string
	for _, t := range all {
		s = append(s, t.Address)
	}
	return strings.Join(s, " ")
}
