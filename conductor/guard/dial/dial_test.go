package dial

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestCheck(t *testing.T) {
	own := ""
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
			own = p.Addr().String()
		}
	}
	for _, c := range []struct{ addr, reason string }{
		{"192.0.2.7", ""}, {"2001:db8::7", ""}, {"10.1.2.3", ""}, {"fd12::1", ""}, {"::ffff:192.0.2.7", ""},
		{"64:ff9b::c000:207", ""}, {"127.0.0.1", "loopback"}, {"127.255.0.9", "loopback"}, {"::1", "loopback"},
		{"::ffff:127.0.0.1", "loopback"}, {"64:ff9b::7f00:1", "leads to 127.0.0.1"},
		{"2002:a9fe:a9fe::1", "leads to 169.254.169.254"}, {"::127.0.0.1", "leads to 127.0.0.1"},
		{"169.254.169.254", "link-local"}, {"fe80::1", "link-local"}, {"fe80::1%lo", "link-local"},
		{"0.0.0.0", "unspecified"}, {"::", "unspecified"}, {"0.1.2.3", "no host's"}, {"255.255.255.255", "no host's"},
		{"240.0.0.1", "no host's"}, {"224.0.0.1", "multicast"}, {"ff02::1", "multicast"}, {"fd00:ec2::254", "metadata"},
		{"100.100.100.200", "metadata"}, {own, "conductor's own"},
	} {
		if c.addr == "" {
			t.Log("this host has no address beyond loopback: its own is not tried")
			continue
		}
		for name, g := range map[string]*Guard{"nil": nil, "zero": {}} {
			err := g.Check(netip.AddrPortFrom(netip.MustParseAddr(c.addr), 80))
			if c.reason == "" && err != nil || c.reason != "" &&
				(err == nil || !strings.Contains(err.Error(), c.reason)) {
				t.Errorf("%s guard: Check(%s) = %v, want something of %q", name, c.addr, err, c.reason)
			}
		}
	}
	g := New([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/30"), netip.MustParsePrefix("fe80::/64")},
		netip.MustParseAddrPort("127.0.0.9:8080"))
	for addr, ok := range map[string]bool{"127.0.0.1:1": true, "[::ffff:127.0.0.1]:1": true, "127.0.0.4:1": false,
		"127.0.0.9:8080": true, "127.0.0.9:8081": false, "[fe80::1%lo]:1": true} {
		if err := g.Check(netip.MustParseAddrPort(addr)); (err == nil) != ok {
			t.Errorf("with exemptions: Check(%s) = %v", addr, err)
		}
	}
}

// TestTransport: what decides is the address that a connection is made to, for names, redirects and proxies as well.
func TestTransport(t *testing.T) {
	hits := 0
	secret := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits++ }))
	defer secret.Close()
	_, port, err := net.SplitHostPort(secret.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	// Where the redirect stands is exempt, where it leads is not.
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	public := httptest.NewUnstartedServer(http.RedirectHandler(secret.URL, http.StatusFound))
	public.Listener.Close()
	public.Listener = l
	public.Start()
	defer public.Close()
	g := New([]netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")})
	through := func(proxy string) func(*http.Request) (*url.URL, error) {
		return func(*http.Request) (*url.URL, error) { return url.Parse(proxy) }
	}
	for _, c := range []struct {
		name, url string
		proxy     func(*http.Request) (*url.URL, error)
	}{
		{"address", secret.URL, nil}, {"name", "http://localhost:" + port, nil}, {"redirect", public.URL, nil},
		{"proxy", "http://192.0.2.1/", through(secret.URL)}, {"target of a proxy", secret.URL, through(public.URL)},
		{"named target of a proxy", "http://localhost:" + port, through(public.URL)},
	} {
		client := http.Client{Transport: g.Transport(c.proxy), Timeout: 10 * time.Second}
		resp, err := client.Get(c.url)
		var refused *RefusedError
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v, want a refusal", c.name, err)
		}
		if err == nil {
			resp.Body.Close()
		}
	}
	if hits > 0 {
		t.Errorf("%d requests came through", hits)
	}
	client := http.Client{Transport: New([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}).Transport(nil),
		Timeout: 10 * time.Second}
	resp, err := client.Get(public.URL)
	if err != nil || hits != 1 {
		t.Fatalf("exempt: %v, %d requests", err, hits)
	}
	resp.Body.Close()
}

func TestParse(t *testing.T) {
	got, err := Parse([]string{"192.0.2.7/24", "2001:db8::/32", "127.0.0.1"})
	if err != nil || len(got) != 3 || got[0].String() != "192.0.2.0/24" || got[2].String() != "127.0.0.1/32" {
		t.Errorf("Parse = %v, %v", got, err)
	}
	for _, bad := range []string{"", "x", "192.0.2.0/33", "fe80::1%eth0", "::ffff:192.0.2.0/120"} {
		if got, err := Parse([]string{bad}); err == nil {
			t.Errorf("Parse(%q) = %v", bad, got)
		}
	}
}
