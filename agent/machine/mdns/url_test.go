package mdns

import (
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// described is an answer with place, text and addresses of a service.
func described(t testing.TB, service, target string, port uint16, words []string, addrs ...[4]byte) []byte {
	t.Helper()
	head := func(name string, kind dnsmessage.Type) dnsmessage.ResourceHeader {
		return dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}
	}
	m := dnsmessage.Message{Header: dnsmessage.Header{Response: true}, Answers: []dnsmessage.Resource{
		{Header: head(service, dnsmessage.TypeSRV),
			Body: &dnsmessage.SRVResource{Port: port, Target: dnsmessage.MustNewName(target)}},
		{Header: head(service, dnsmessage.TypeTXT), Body: &dnsmessage.TXTResource{TXT: words}}}}
	for _, a := range addrs {
		m.Additionals = append(m.Additionals,
			dnsmessage.Resource{Header: head(target, dnsmessage.TypeA), Body: &dnsmessage.AResource{A: a}})
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const introspection = "baremetal-introspection._openstack._tcp.local."

func TestURL(t *testing.T) {
	at := [4]byte{192, 0, 2, 1}
	for name, tt := range map[string]struct {
		message []byte
		want    string
	}{
		"an Ironic": {described(t, Service, "ironic-host.local.", 6385, []string{"path=", "protocol=http"}, at),
			"http://192.0.2.1:6385"},
		"with a path": {described(t, Service, "a.local.", 443, []string{"path=/baremetal"}, at),
			"https://192.0.2.1:443/baremetal"},
		"port 80": {described(t, Service, "a.local.", 80, []string{""}, at), "http://192.0.2.1:80"},
		"a name": {described(t, Service, "ironic.example.", 6385, []string{""}),
			"https://ironic.example:6385"},
		"loopback before": {described(t, Service, "a.local.", 80, []string{""}, [4]byte{127, 0, 0, 1}, at),
			"http://192.0.2.1:80"},
		"another service": {described(t, introspection, "a.local.", 80, []string{""}, at), ""},
		"no address":      {described(t, Service, "a.local.", 80, []string{""}), ""},
		"no port":         {described(t, Service, "a.local.", 0, []string{""}, at), ""},
		"a protocol":      {described(t, Service, "a.local.", 80, []string{"protocol=file"}, at), ""},
		"another host":    {described(t, Service, "a.local.", 80, []string{"path=@evil.example/"}, at), ""},
		"only text":       {message(t, Service, "path=/", "protocol=http"), ""},
		"nothing":         {nil, ""},
	} {
		got, err := URL(tt.message, Service)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tt.want)
		}
	}
}

// FuzzURL: what a neighbour sends is an http or https URL or an error.
func FuzzURL(f *testing.F) {
	f.Add(described(f, Service, "a.local.", 80, []string{"path=/x"}, [4]byte{192, 0, 2, 1}))
	f.Add([]byte(strings.Repeat("\xc0\x0c", 100)))
	f.Fuzz(func(t *testing.T, b []byte) {
		at, err := URL(b, Service)
		if err != nil {
			return
		}
		if u, err := url.Parse(at); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			t.Errorf("%q, %v", at, err)
		}
	})
}
