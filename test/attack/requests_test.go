package attack

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTricks: what a request is made of cannot be used for more than it is for. One ingotd stands all of it, and is as
// it was in the end.
func TestTricks(t *testing.T) {
	w := newWorld(t)
	id := w.node("n", `"extra":{"a":"canary-extra"}`)
	other := w.uuid(
		w.want(201, root, "POST", "/v1/nodes",
			`{"driver":"fake-hardware","name":"theirs","extra":{"a":"canary-theirs"}}`))
	w.want(201, root, "POST", "/v1/ports", `{"node_uuid":"`+other+`","address":"52:54:00:ca:fe:02"}`)
	w.lease("n", "shop")
	before := w.want(200, root, "GET", "/v1/nodes/detail", "", newest...)
	version := func(v string) []string { return []string{"X-OpenStack-Ironic-API-Version", v} }

	for _, c := range []struct {
		status            int
		who, method, path string
		body              string
		headers           []string
	}{
		// Members that are not for clients, and JSON patches that would get at them.
		{400, olga, "PATCH", "/v1/nodes/n", `[{"op":"replace","path":"/provision_state","value":"active"}]`, nil},
		{400, olga, "PATCH", "/v1/nodes/n",
			`[{"op":"add","path":"/driver_internal_info/agent_url","value":"http://192.0.2.1"}]`, nil},
		{400, olga, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/reservation","value":"me"}]`, nil},
		{400, olga, "PATCH", "/v1/nodes/n", `[{"op":"replace","path":"/uuid","value":"` + other + `"}]`, nil},
		{400, olga, "PATCH", "/v1/nodes/n", `[{"op":"replace","path":"/created_at","value":"2000-01-01T00:00:00Z"}]`,
			nil},
		{400, olga, "PATCH", "/v1/nodes/n", `[{"op":"move","from":"/driver_info","path":"/extra/x"}]`, nil},
		{400, olga, "PATCH", "/v1/nodes/n", `[{"op":"copy","from":"/driver_internal_info","path":"/extra/x"}]`, nil},
		{400, olga, "PATCH", "/v1/nodes/n", `[{"op":"test","path":"/provision_state","value":"enroll"}]`, nil},
		{400, olga, "PATCH", "/v1/nodes/n", `[{"op":"replace","path":"","value":{}}]`, nil},
		{400, olga, "PATCH", "/v1/nodes/n", `{"extra":{}}`, nil},
		{403, leo, "PATCH", "/v1/nodes/n",
			`[{"op":"add","path":"/extra/a","value":1},{"op":"replace","path":"/lessee","value":null}]`, nil},
		{403, olga, "PATCH", "/v1/nodes/n", `[{"op":"replace","path":"/owner","value":"` + w.projects["other"] + `"}]`,
			nil},
		{400, olga, "POST", "/v1/nodes", `{"driver":"fake-hardware","provision_state":"active"}`, nil},
		{400, olga, "POST", "/v1/nodes", `{"driver":"fake-hardware","reservation":"me"}`, nil},
		{400, olga, "POST", "/v1/nodes", `{"driver":"fake-hardware","driver_internal_info":{}}`, nil},
		{400, olga, "POST", "/v1/nodes", `{"driver":"fake-hardware","owner":"` + w.projects["other"] + `"}`, nil},

		// Microversions: not a number, from the future, several, and one that is older than the resource requires.
		{406, olga, "GET", "/v1/nodes", "", version("1.9999")},
		{406, olga, "GET", "/v1/nodes", "", version("2.0")},
		{406, olga, "GET", "/v1/nodes", "", version("99999999999999999999.1")},
		{406, olga, "GET", "/v1/nodes", "", version("1")},
		{406, olga, "GET", "/v1/nodes", "", version("one.two")},
		{406, olga, "GET", "/v1/nodes", "", version("-1.-1")},
		{406, olga, "GET", "/v1/nodes", "", version("1.82, 1.1")},
		{404, olga, "GET", "/v1/allocations", "", version("1.1")},
		{406, olga, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/description","value":"x"}]`, version("1.10")},

		// SQL where text is taken for a name, a number or a search.
		{400, olga, "GET", "/v1/nodes?sort_key=name;drop+table+nodes", "", nil},
		{400, olga, "GET", "/v1/nodes?sort_key=name'+OR+1=1--", "", nil},
		{400, olga, "GET", "/v1/nodes?sort_dir=asc;drop+table+nodes", "", nil},
		{400, olga, "GET", "/v1/nodes?fields=name,uuid'--", "", nil},
		{400, olga, "GET", "/v1/nodes?limit=1;drop+table+nodes", "", nil},
		{400, olga, "GET", "/v1/nodes?limit=-1", "", nil},
		{400, olga, "GET", "/v1/nodes?marker='+OR+'1'='1", "", nil},
		{400, eve, "GET", "/v1/nodes/'+OR+'1'='1", "", nil},
		{200, eve, "GET", "/v1/nodes?resource_class='+OR+1=1--", "", nil},
		{200, eve, "GET", "/ingot/v1/log?text=%25", "", nil},
		{200, eve, "GET", "/ingot/v1/log?text='+OR+1=1--", "", nil},

		// Paths, and bytes that end or divide something elsewhere.
		{404, eve, "GET", "/v1/../../../etc/passwd", "", nil},
		{404, olga, "GET", "/v1/nodes/..%2f..%2f..%2fetc%2fpasswd", "", nil},
		{400, olga, "GET", "/v1/nodes/n%0d%0aX-Evil:%201", "", nil},
		{400, olga, "GET", "/v1/nodes/n%00", "", nil},
		{400, olga, "GET", "/v1/nodes/%ff%fe", "", nil},
		{400, olga, "GET", "/v1/nodes?name=%zz", "", nil},
		{400, olga, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"a/../b"}`, nil},
		{400, olga, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"a\r\nb"}`, nil},
		{400, olga, "POST", "/v1/nodes", "{\"driver\":\"fake-hardware\",\"name\":\"a\x00\"}", nil},
		{400, olga, "POST", "/v1/nodes", strings.Repeat("[", 100_000), nil},
		{400, olga, "PATCH", "/v1/nodes/n", strings.Repeat(`{"a":`, 100_000), nil},
		{413, olga, "POST", "/v1/nodes", `{"driver":"` + strings.Repeat("x", 2<<20) + `"}`, nil},

		// If-Match: invalid ETags, too many, and attempts to use it to read or to change without permission.
		{400, olga, "PATCH", "/v1/nodes/n", `[]`, []string{"If-Match", "garbage"}},
		{400, olga, "PATCH", "/v1/nodes/n", `[]`, []string{"If-Match", `"` + strings.Repeat("x", 9000) + `"`}},
		{400, olga, "PATCH", "/v1/nodes/n", `[]`, []string{"If-Match", strings.Repeat(`"x",`, 101)}},
		{400, olga, "PATCH", "/v1/nodes/n", `[]`, []string{"If-Match", strings.Repeat(",", 9000)}},
		{400, olga, "PATCH", "/v1/nodes/n", `[]`, []string{"If-Match", `"' OR 1=1 --"`}},
		{412, olga, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/extra/a","value":1}]`,
			[]string{"If-Match", `"'OR'1'='1"`}},
		{412, olga, "DELETE", "/v1/nodes/n", "", []string{"If-Match", `W/"x"`}},
		{403, leo, "PATCH", "/v1/nodes/n", `[{"op":"replace","path":"/lessee","value":null}]`,
			[]string{"If-Match", "*"}},
		{404, eve, "PATCH", "/v1/nodes/n", `[]`, []string{"If-Match", `"x"`}},
		{404, eve, "DELETE", "/v1/nodes/theirs", "", []string{"If-Match", "*"}},
		{400, olga, "POST", "/v1/nodes", `{"driver":"fake-hardware"}`, []string{"If-Match", "*"}},
		{404, eve, "GET", "/v1/nodes/n", "", []string{"If-None-Match", "*"}},

		// What the agent would fetch or the conductor read.
		{400, olga, "POST", "/v1/nodes/n/vmedia", `{"device_type":"cdrom","image_url":"file:///etc/passwd"}`, newest},
	} {
		status, h, out := w.ask(c.who, c.method, strings.ReplaceAll(c.path, "'", "%27"), c.body, c.headers...)
		if status != c.status {
			t.Errorf("%s: %s %s %.200s %v = %d %.500s, want %d", c.who, c.method, c.path, c.body, c.headers, status,
				out, c.status)
		}
		if h.Get("X-Evil") != "" {
			t.Errorf("%s %s adds a header", c.method, c.path)
		}
		w.absent(c.method+" "+c.path, out, "canary-theirs", "root:x:0")
		if c.who == eve {
			w.absent(c.method+" "+c.path, out, "canary", id, other)
		}
	}

	// Heads of requests that no client library would send.
	for _, c := range []struct {
		name, text string
		status     int
	}{
		{"two tokens", "GET /v1/nodes HTTP/1.1\r\nHost: x\r\nX-Auth-Token: " + w.tokens[eve] + "\r\nX-Auth-Token: " +
			w.tokens[root] + "\r\n\r\n", 401},
		{"two tokens, the other way around", "GET /v1/nodes HTTP/1.1\r\nHost: x\r\nX-Auth-Token: " + w.tokens[root] +
			"\r\nX-Auth-Token: " + w.tokens[eve] + "\r\n\r\n", 401},
		{"a large header", "GET /v1/nodes HTTP/1.1\r\nHost: x\r\nX-Auth-Token: " + strings.Repeat("x", 2<<20) +
			"\r\n\r\n", 431},
		{"NUL in a header", "GET /v1/nodes HTTP/1.1\r\nHost: x\r\nX-Auth-Token: a\x00b\r\n\r\n", 400},
		{"two lengths", "POST /v1/nodes HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 60\r\n\r\n{}", 400},
		{"a length and chunks", "POST /v1/nodes HTTP/1.1\r\nHost: x\r\nX-Auth-Token: " + w.tokens[olga] +
			"\r\nContent-Length: 2\r\nTransfer-Encoding: nonsense\r\n\r\n{}", 501},
		{"a space in a name", "GET /v1/nodes HTTP/1.1\r\nHost : x\r\n\r\n", 400},
	} {
		if got := w.raw(c.text); got != c.status {
			t.Errorf("%s = %d, want %d", c.name, got, c.status)
		}
	}
	w.want(200, olga, "GET", "/v1/nodes/n", "")
	if after := w.want(200, root, "GET", "/v1/nodes/detail", "", newest...); after != before {
		t.Errorf("the nodes are\n%s\nwere\n%s", after, before)
	}

	// A user may have 64 streams of events; others have theirs.
	for i := range 65 {
		want := 200
		if i == 64 {
			want = 429
		}
		if got := w.status(
			w.send("GET /ingot/v1/events HTTP/1.1\r\nHost: x\r\nX-Auth-Token: " + w.tokens[rita] +
				"\r\n\r\n")); got != want {
			t.Fatalf("stream %d = %d, want %d", i, got, want)
		}
	}
	if got := w.status(
		w.send("GET /ingot/v1/events HTTP/1.1\r\nHost: x\r\nX-Auth-Token: " + w.tokens[auditor] +
			"\r\n\r\n")); got != 200 {
		t.Errorf("the stream of another user = %d", got)
	}

	// What is secret in the data directory, which is all but certificates and public keys, is for the service alone.
	err := filepath.WalkDir(w.d.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if public := strings.HasSuffix(path, ".crt") || strings.HasSuffix(path, ".pub"); err == nil && !public &&
			info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// raw sends the head of a request, and gives the status of the answer.
func (w *world) raw(text string) int {
	w.Helper()
	c := w.send("")
	defer c.Close()
	io.WriteString(c, text) // an error says that the answer came before the end of it
	return w.status(c)
}

// status reads the status of the answer that comes next.
func (w *world) status(c io.Reader) int {
	w.Helper()
	if c, ok := c.(interface{ SetReadDeadline(time.Time) error }); ok {
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			w.Fatal(err)
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		w.Fatalf("no answer: %v", err)
	}
	return resp.StatusCode // the body goes with the connection
}
