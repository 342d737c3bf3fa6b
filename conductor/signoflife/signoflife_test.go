package signoflife

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		in   any
		want []string
		bad  string
	}{
		{in: nil}, {in: ""}, {in: "none"}, {in: []any{}}, {in: []string{"none"}},
		{in: "dhcp", want: []string{"dhcp"}},
		{in: []any{"phone_home", "port:22", "console:login: ", "dhcp", "dhcp"},
			want: []string{"phone_home", "port:22", "console:login: ", "dhcp"}},
		{in: "port:0", bad: "not a TCP port"}, {in: "port:65536", bad: "not a TCP port"},
		{in: "port", bad: "not a TCP port"}, {in: "port:-1", bad: "not a TCP port"}, {in: "console:", bad: "console"},
		{in: "console:a\nb", bad: "console"}, {in: "console:" + strings.Repeat("x", 101), bad: "console"},
		{in: "ping", bad: "use phone_home"}, {in: []any{"none", "dhcp"}, bad: `"none"`},
		{in: []any{1}, bad: "not a sign"}, {in: 5, bad: "neither"}, {in: "dhcp:x", bad: "nothing behind"},
		{in: strings.Split("port:1 port:2 port:3 port:4 port:5 port:6 port:7 port:8 port:9", " "),
			bad: "more than the 8"},
	} {
		got, err := Parse(c.in)
		if c.bad != "" {
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("Parse(%v) = %v, %v, want an error with %q", c.in, got, err, c.bad)
			}
			continue
		}
		if d := cmp.Diff(append([]string{}, c.want...), Texts(got)); err != nil || d != "" {
			t.Errorf("Parse(%v): %v\n%s", c.in, err, d)
		}
	}
}

func TestToken(t *testing.T) {
	const node, job = "0f2c9d4e-1111-4222-8333-444455556666", "job-1"
	key := []byte("secret")
	tok := Token(key, node, job)
	if tok == "" || tok != Token(key, node, job) || NodeOf(tok) != node || !Good(key, tok, node, job) {
		t.Fatalf("token %q of node %q is not good", tok, NodeOf(tok))
	}
	for name, bad := range map[string]bool{
		"other job": Good(key, tok, node, "job-2"), "other key": Good([]byte("x"), tok, node, job),
		"no key": Good(nil, Token(nil, node, job), node, job), "cut": Good(key, tok[:len(tok)-1], node, job),
		"empty": Good(key, "", node, job), "no node": Good(key, "", "x", job),
	} {
		if bad {
			t.Errorf("%s: the token is taken", name)
		}
	}
	for _, text := range []string{"", "x", tok + "AAAA", strings.Repeat("%", 64)} {
		if n := NodeOf(text); n != "" {
			t.Errorf("NodeOf(%q) = %q", text, n)
		}
	}
}

func TestAddPhoneHome(t *testing.T) {
	const url = "http://10.0.0.1:8080/ingot/v1/phone_home/tok"
	parts := func(d map[string]any) []any {
		switch v := d["vendor_data"].(map[string]any)["cloud-init"].(type) {
		case string:
			return []any{v}
		case []any:
			return v
		}
		return nil
	}
	given := map[string]any{"user_data": "#cloud-config\nx: phone_home: no\n",
		"meta_data":    map[string]any{"uuid": "u", "ingot": map[string]any{"a": "b"}},
		"vendor_data":  map[string]any{"cloud-init": "#cloud-config\ntheirs: 1\n", "other": map[string]any{"k": "v"}},
		"network_data": map[string]any{"n": 1.0}}
	before, _ := json.Marshal(given)
	got, err := AddPhoneHome(given, url, "node")
	if err != nil {
		t.Fatal(err)
	}
	if after, _ := json.Marshal(given); !bytes.Equal(before, after) {
		t.Error("the user's own object was changed")
	}
	if p := parts(got); len(p) != 2 || p[0] != "#cloud-config\ntheirs: 1\n" || !strings.Contains(p[1].(string), url) ||
		!strings.HasPrefix(p[1].(string), "#cloud-config\n") {
		t.Errorf("parts of vendor data: %q", p)
	}
	if d := cmp.Diff(map[string]any{"a": "b", "phone_home_url": url},
		got["meta_data"].(map[string]any)["ingot"]); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(given["network_data"], got["network_data"]); d != "" || got["user_data"] != given["user_data"] ||
		got["vendor_data"].(map[string]any)["other"] == nil {
		t.Errorf("something of the user's is lost: %v", got)
	}
	text, _ := json.Marshal(given)
	if asText, err := AddPhoneHome(string(text), url, "node"); err != nil || cmp.Diff(got, asText) != "" {
		t.Errorf("the same as text: %v, %s", err, cmp.Diff(got, asText))
	}
	if got, err = AddPhoneHome(map[string]any{"vendor_data": map[string]any{"cloud-init": []any{"a", "b"}}}, url,
		""); err != nil || len(parts(got)) != 3 {
		t.Errorf("a list of parts: %v, %v", got, err)
	}
	if got, err = AddPhoneHome(nil, url, "node"); err != nil || got["meta_data"].(map[string]any)["uuid"] != "node" ||
		len(parts(got)) != 1 {
		t.Errorf("no config drive: %v, %v", got, err)
	}
	for name, bad := range map[string]any{
		"finished image": "H4sIAAAA", "URL": "http://x/drive", "vendor data": map[string]any{"vendor_data": "x"},
		"cloud-init object": map[string]any{"vendor_data": map[string]any{"cloud-init": map[string]any{}}},
		"meta data":         map[string]any{"meta_data": []any{}},
		"taken key":         map[string]any{"meta_data": map[string]any{"ingot": "mine"}},
		"own phone_home":    map[string]any{"user_data": "#cloud-config\nphone_home:\n  url: http://me/\n"},
		"the same in base64": map[string]any{
			"user_data": base64.StdEncoding.EncodeToString([]byte("#cloud-config\nphone_home: {}\n"))},
		"the same as object": map[string]any{"user_data": map[string]any{"phone_home": map[string]any{}}},
		"number":             3,
	} {
		if got, err := AddPhoneHome(bad, url, ""); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestAddresses(t *testing.T) {
	drive := func(ips ...string) any {
		var nets []any
		for _, ip := range ips {
			nets = append(nets, map[string]any{"type": "ipv4", "ip_address": ip})
		}
		return map[string]any{"network_data": map[string]any{"networks": nets}}
	}
	// Nothing outside of the networks of such systems: users write this.
	networks := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32"),
		netip.MustParsePrefix("fe80::/10")}
	got := Addresses(drive("192.0.2.7", "192.0.3.7", "127.0.0.1", "0.0.0.0", "::1", "169.254.169.254",
		"::ffff:127.0.0.1", "fe80::1%eth0", "2001:db8::7/64", "::ffff:192.0.2.7", "x", ""), networks)
	if d := cmp.Diff([]string{"192.0.2.7", "2001:db8::7"}, func() (s []string) {
		for _, a := range got {
			s = append(s, a.String())
		}
		return s
	}()); d != "" {
		t.Error(d)
	}
	if got := Addresses(drive("192.0.2.7"), nil); got != nil {
		t.Errorf("without networks: %v", got)
	}
	for _, v := range []any{nil, "x", `{"network_data":{}}`, 3,
		map[string]any{"network_data": map[string]any{"networks": "x"}}} {
		if got := Addresses(v, networks); got != nil {
			t.Errorf("Addresses(%v) = %v", v, got)
		}
	}
}

func TestWaitPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	dial := new(net.Dialer).DialContext
	asked := 0
	at, err := WaitPort(t.Context(), dial, port, func(context.Context) []netip.Addr {
		if asked++; asked == 1 { // no lease yet
			return nil
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	})
	if err != nil || at.Port() != uint16(port) || asked != 2 {
		t.Errorf("WaitPort = %v, %v after %d rounds", at, err, asked)
	}
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	_, err = WaitPort(ctx, dial, port, func(context.Context) []netip.Addr {
		cancel()
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("WaitPort of a closed port = %v", err)
	}
}

func TestFinder(t *testing.T) {
	for _, c := range []struct {
		pieces []string
		found  bool
	}{
		{[]string{"demo login: "}, true}, {[]string{"demo lo", "gin:"}, true},
		{[]string{"l", "o", "g", "i", "n", ":"}, true}, {[]string{"login", "-login", " :"}, false},
		{[]string{"", "lologin:"}, true},
	} {
		f, found := NewFinder("login:"), false
		for _, p := range c.pieces {
			n, err := f.Write([]byte(p))
			if n != len(p) || err != nil && !errors.Is(err, ErrFound) {
				t.Errorf("Write = %d, %v", n, err)
			}
			found = found || err != nil
		}
		if found != c.found {
			t.Errorf("%q: found %v", c.pieces, found)
		}
	}
}
