package attack

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// dashboard sends requests to the dashboard of an ingotd from one address.
type dashboard struct {
	t    *testing.T
	url  string
	http *http.Client
}

func newDashboard(t *testing.T, url, from string) dashboard {
	c := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}}
	t.Cleanup(c.CloseIdleConnections)
	return dashboard{t, url, c}
}

// send sends a request with headers, pairs of name and value.
func (d dashboard) send(method, path, body string, headers ...string) (*http.Response, string) {
	d.t.Helper()
	r, err := http.NewRequestWithContext(d.t.Context(), method, d.url+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-OpenStack-Ironic-API-Version", "latest")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := d.http.Do(r)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return resp, string(b)
}

// withUsers starts an ingotd with the users alice and bob, whose password is "secret".
func withUsers(t *testing.T, set ...string) *ingotd.Process {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), 8)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "htpasswd")
	if err := os.WriteFile(path, []byte("alice:"+string(hash)+"\nbob:"+string(hash)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return ingotd.Start(t, kit.FreeAddr(t),
		append([]string{"api.auth=http_basic", "api.htpasswd_file=" + path}, set...)...)
}

// TestSignInsAtTheDashboard: who guesses there is stopped as at the API, and what is large, slow or nonsense costs
// little and ends.
func TestSignInsAtTheDashboard(t *testing.T) {
	t.Parallel() // it waits
	p := withUsers(t)
	d := newDashboard(t, p.URL, "127.0.0.2")
	login := func(d dashboard, name, password string) int {
		t.Helper()
		r, _ := d.send("POST", "/ui/session", `{"user":"`+name+`","password":"`+password+`"}`)
		return r.StatusCode
	}
	last := 0
	for i := range 20 {
		last = login(d, "alice", fmt.Sprint("wrong", i))
	}
	if last != 429 {
		t.Errorf("guess 20 = %d, want 429", last)
	}
	for _, tt := range []struct{ from, name string }{{"127.0.0.1", "alice"}, {"127.0.0.2", "bob"}} {
		if got := login(newDashboard(t, p.URL, tt.from), tt.name, "secret"); got != 200 {
			t.Errorf("%s from %s = %d, want 200", tt.name, tt.from, got)
		}
	}
	for i := range 60 {
		last = login(newDashboard(t, p.URL, "127.0.0.3"), fmt.Sprint("user", i), "wrong")
	}
	if last != 429 {
		t.Errorf("name 60 from one address = %d, want 429", last)
	}

	d = newDashboard(t, p.URL, "127.0.0.4")
	for _, tt := range []struct {
		what, body string
		headers    []string
		want       int
	}{
		{"a large body", `{"user":"` + strings.Repeat("x", 1<<20) + `"}`, nil, 413},
		{"deep JSON", strings.Repeat("[", 16000), nil, 400},
		{"no JSON", "user=alice&password=secret", nil, 400},
		{"a form", "user=alice&password=secret", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
		{"a large cookie", `{"user":"x","password":"x"}`,
			[]string{"Cookie", "ingot_ui=" + strings.Repeat("A", 40<<10)}, 401},
		{"a larger cookie", `{"user":"x","password":"x"}`,
			[]string{"Cookie", "ingot_ui=" + strings.Repeat("A", 200<<10)}, 431},
	} {
		r, out := d.send("POST", "/ui/session", tt.body, tt.headers...)
		if r.StatusCode != tt.want || len(out) > 1000 || strings.Contains(out, "secret") {
			t.Errorf("%s = %d %.200s, want %d", tt.what, r.StatusCode, out, tt.want)
		}
	}

	// A body that comes slowly, and one that does not come.
	for _, sent := range []string{"", `{"user":"al`} {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST /ui/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
			"Content-Length: 100\r\n\r\n%s", sent)
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if r, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil && r.StatusCode != 408 {
			t.Errorf("half a body = %d, want 408 or the end of the connection", r.StatusCode)
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("half a body is waited for for ever")
		}
	}
	if strings.Contains(p.Log.String(), "secret") || strings.Contains(p.Log.String(), "wrong1") {
		t.Error("a password is in the log")
	}
}

// signIn signs alice in, and returns her session's cookie and word.
func signIn(t *testing.T, p *ingotd.Process) (cookie, csrf string) {
	t.Helper()
	r, out := newDashboard(t, p.URL, "127.0.0.1").send("POST", "/ui/session", `{"user":"alice","password":"secret"}`)
	if r.StatusCode != 200 || len(r.Cookies()) != 1 {
		t.Fatalf("sign in = %d %s", r.StatusCode, out)
	}
	cookie, _, _ = strings.Cut(r.Cookies()[0].String(), ";")
	_, after, _ := strings.Cut(out, `"csrf":"`)
	csrf, _, _ = strings.Cut(after, `"`)
	return cookie, csrf
}

// TestForgedRequestsOfPages: a session's cookie alone, as a page of another site can have it sent, changes nothing.
func TestForgedRequestsOfPages(t *testing.T) {
	p := withUsers(t)
	d := newDashboard(t, p.URL, "127.0.0.1")
	cookie, csrf := signIn(t, p)
	node := `{"driver":"fake-hardware","name":"forged"}`
	for _, tt := range []struct {
		what    string
		headers []string
		want    int
	}{
		{"a cookie alone", []string{"Cookie", cookie}, 403},
		{"the word alone", []string{"X-Ingot-CSRF", csrf}, 401},
		{"another origin", []string{"Cookie", cookie, "X-Ingot-CSRF", csrf, "Origin", "http://evil.example"}, 403},
		{"another site", []string{"Cookie", cookie, "X-Ingot-CSRF", csrf, "Sec-Fetch-Site", "cross-site"}, 403},
		{"a login beside it", []string{"Authorization", "Basic YWxpY2U6c2VjcmV0"}, 401},
		{"a page of ours",
			[]string{"Cookie", cookie, "X-Ingot-CSRF", csrf, "Origin", p.URL, "Sec-Fetch-Site", "same-origin"}, 201},
	} {
		if r, out := d.send("POST", "/ui/api/v1/nodes", node, tt.headers...); r.StatusCode != tt.want {
			t.Errorf("%s = %d %.200s, want %d", tt.what, r.StatusCode, out, tt.want)
		} else if r.Header.Get("WWW-Authenticate") != "" || r.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: the answer has %v", tt.what, r.Header)
		}
	}
	// The API itself takes no cookie.
	if r, _ := d.send("GET", "/v1/nodes", "", "Cookie", cookie, "X-Ingot-CSRF", csrf); r.StatusCode != 401 {
		t.Errorf("the API with the cookie of the dashboard = %d, want 401", r.StatusCode)
	}

	off := withUsers(t, "web.enabled=false")
	if r, _ := newDashboard(t, off.URL, "127.0.0.1").send("GET", "/ui/", ""); r.StatusCode == 200 {
		t.Error("a dashboard that is turned off is served")
	}
}

// TestConsolesThroughTheDashboard: a console is its user's, with the same proofs as any other request of a page; it
// ends for who signs out, and neither many consoles nor much input cost the server more than their bounds.
func TestConsolesThroughTheDashboard(t *testing.T) {
	p := withUsers(t)
	d := newDashboard(t, p.URL, "127.0.0.1")
	cookie, csrf := signIn(t, p)
	page := []string{"Cookie", cookie, "X-Ingot-CSRF", csrf, "Origin", p.URL, "Sec-Fetch-Site", "same-origin"}
	do := func(want int, method, path, body string, headers ...string) string {
		t.Helper()
		r, out := d.send(method, path, body, headers...)
		if r.StatusCode != want {
			t.Fatalf("%s %s = %d %.300s, want %d", method, path, r.StatusCode, out, want)
		}
		return out
	}
	for i := range 12 {
		do(201, "POST", "/ui/api/v1/nodes", fmt.Sprintf(`{"driver":"fake-hardware","name":"n%d"}`, i), page...)
	}
	const at = "/ui/api/ingot/v1/nodes/n0/console"
	for _, headers := range [][]string{{"Cookie", cookie}, {"X-Ingot-CSRF", csrf},
		{"Cookie", cookie, "X-Ingot-CSRF", csrf, "Origin", "http://evil.example"},
		{"Cookie", cookie, "X-Ingot-CSRF", csrf, "Sec-Fetch-Site", "same-site"}} {
		if r, out := d.send("POST", at, "{}", headers...); r.StatusCode != 401 && r.StatusCode != 403 {
			t.Errorf("a console is opened with %q: %d %s", headers, r.StatusCode, out)
		}
	}
	_, after, _ := strings.Cut(do(200, "POST", at, "{}", page...), `"session":"`)
	session, _, _ := strings.Cut(after, `"`)
	read := at + "/" + session
	do(200, "GET", read, "", page...)
	do(403, "GET", read, "", "Cookie", cookie)
	bob := []string{"Authorization", "Basic Ym9iOnNlY3JldA=="}
	for _, method := range []string{"GET", "DELETE"} {
		do(404, method, "/ingot/v1/nodes/n0/console/"+session, "", bob...)
	}
	do(404, "POST", "/ingot/v1/nodes/n0/console/"+session, `{"input":"eA=="}`, bob...)
	do(409, "POST", "/ingot/v1/nodes/n0/console", "{}", bob...)

	full := 0
	for i := 1; i < 12; i++ {
		r, _ := d.send("POST", fmt.Sprintf("/ui/api/ingot/v1/nodes/n%d/console", i), "{}", page...)
		if r.StatusCode == 503 {
			full++
		}
	}
	if full != 4 { // 8 for each user
		t.Errorf("%d of 12 consoles were refused, want 4", full)
	}
	do(400, "POST", read, `{"input":"`+strings.Repeat("AAAA", 4000)+`"}`, page...)
	do(413, "POST", read, `{"input":"`+strings.Repeat("A", 2<<20)+`"}`, page...)
	do(204, "DELETE", "/ui/session", "", page...)
	do(401, "GET", read, "", page...)
	do(401, "POST", read, `{"input":"eA=="}`, page...)
}
