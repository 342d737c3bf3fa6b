package attack

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/ingot-metal/ingot/proto/agentv1"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// TestAnonymousBodies: a client without a token can send little, and a body that no handler needs is not read.
func TestAnonymousBodies(t *testing.T) {
	w := newWorld(t)
	id := w.node("n", `"inspect_interface":"agent"`)
	w.want(201, olga, "POST", "/v1/ports", `{"node_uuid":"`+id+`","address":"52:54:00:00:00:01"}`)
	large := strings.Repeat("x", 70<<10)
	inventory := `{"inventory":{"interfaces":[{"mac_address":"52:54:00:00:00:01","x":"` + large + `"}]}}`
	for _, tt := range []struct {
		method, path, body string
		want               int
	}{
		{"POST", "/v1/heartbeat/" + id, `{"callback_url":"` + large + `"}`, 413},
		{"POST", "/ingot/v1/phone_home/x", large, 404},                                 // not read at all
		{"POST", "/v1/continue_inspection", inventory, 404},                            // no node waits
		{"POST", "/v1/continue_inspection?node_uuid=" + id, inventory, 404},            // this one does not
		{"POST", "/v1/nodes", `{"driver":"fake-hardware","name":"` + large + `"`, 401}, // the token before the body
	} {
		w.want(tt.want, anonymous, tt.method, tt.path, tt.body, newest...)
	}
	w.state("n", "manage", "manageable")
	w.state("n", "inspect", "inspect wait")
	if out := w.want(400, anonymous, "POST", "/v1/continue_inspection?node_uuid="+id, inventory,
		newest...); !strings.Contains(out, "drives its own agent only") {
		t.Errorf("an inventory that is waited for: %s", out)
	}
	w.want(413, anonymous, "POST", "/v1/continue_inspection", `{"x":"`+strings.Repeat("x", 17<<20)+`"}`, newest...)
	w.want(400, anonymous, "POST", "/v1/continue_inspection", `{"x":`+strings.Repeat("[", 100<<10), newest...)

	// One large one at a time: this one has begun and is not finished.
	begun := "POST /v1/continue_inspection HTTP/1.1\r\nHost: x\r\nX-OpenStack-Ironic-API-Version: 1.84\r\nContent-Length: 1000000\r\n\r\n" + inventory
	first := w.send(begun)
	kit.Eventually(w, time.Minute, "a second inventory is refused", func() bool {
		status, h, _ := w.ask(anonymous, "POST", "/v1/continue_inspection", inventory, newest...)
		if status == 503 && h.Get("Retry-After") != "" {
			return true
		}
		// If this one was read just when the first came, it is the first that was refused.
		first.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if n, _ := first.Read(make([]byte, 1)); n > 0 {
			first.Close()
			first = w.send(begun)
		}
		return false
	})
	first.Close()
	kit.Eventually(w, time.Minute, "the next inventory is read", func() bool {
		status, _, _ := w.ask(anonymous, "POST", "/v1/continue_inspection", inventory, newest...)
		return status == 400
	})
}

// send writes raw bytes to the API and leaves the connection open.
func (w *world) send(text string) net.Conn {
	w.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(w.d.URL, "http://"))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		w.Fatal(err)
	}
	return c
}

// TestHalfSentRequests: incomplete requests are closed, with and without a token, read or not.
func TestHalfSentRequests(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t)
	id := w.node("n", "")
	var wg sync.WaitGroup
	for _, tt := range []struct{ name, text string }{
		{"header", "GET /v1 HTTP/1.1\r\nHost: x\r\n"},
		{"heartbeat", "POST /v1/heartbeat/" + id +
			" HTTP/1.1\r\nHost: x\r\nX-OpenStack-Ironic-API-Version: 1.82\r\nContent-Length: 60000\r\n\r\n{"},
		{"inspection", "POST /v1/continue_inspection HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{"},
		{"no token", "POST /v1/nodes HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{"},
		{"a token", "POST /v1/nodes HTTP/1.1\r\nHost: x\r\nX-Auth-Token: " + w.tokens[olga] +
			"\r\nContent-Length: 60000\r\n\r\n{"},
		{"phone home", "POST /ingot/v1/phone_home/x HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{"},
	} {
		c := w.send(tt.text)
		wg.Go(func() {
			begin := time.Now()
			c.SetReadDeadline(begin.Add(time.Minute))
			if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") ||
				time.Since(begin) > 40*time.Second {
				t.Errorf("%s: open after %v: %v", tt.name, time.Since(begin), err)
			}
		})
	}
	wg.Wait()
}

// TestConnectionsPerAddress: one address can't take all connections, and its connections are gone soon after it has too
// many.
func TestConnectionsPerAddress(t *testing.T) {
	w := newWorld(t, "limits.api_connections=40", "limits.api_connections_per_address=16",
		"limits.agent_connections=40", "limits.agent_connections_per_address=16")
	for _, addr := range []string{strings.TrimPrefix(w.d.URL, "http://"), w.d.Agents} {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		for range 16 {
			c, err := from.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		c, err := from.Dial("tcp", addr)
		if err == nil {
			defer c.Close()
			c.SetReadDeadline(time.Now().Add(5 * time.Second))
			_, err = c.Read(make([]byte, 1))
		}
		if err == nil || strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: connection 17 of an address is open", addr)
		}
	}
	// The client gets the reason, if TLS is not in the way.
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).Dial("tcp",
		strings.TrimPrefix(w.d.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "POST /v1/nodes HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n"+
		strings.Repeat("x", 60_000)); err != nil {
		t.Fatal(err)
	}
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 503 ||
		resp.Header.Get("Retry-After") == "" {
		t.Errorf("a request beyond the connections = %v, %v, want 503 with Retry-After", resp, err)
	}
	w.want(200, olga, "GET", "/v1/nodes", "")
}

// TestStrangersToAgentsListener: without a certificate there is one call, with a short message.
func TestStrangersToAgentsListener(t *testing.T) {
	w := newWorld(t)
	conn, err := grpc.NewClient(w.d.Agents,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	agents := agentv1.NewAgentsClient(conn)
	if _, err := agents.Enroll(ctx, &agentv1.EnrollRequest{Token: strings.Repeat("x", 65<<10)}); status.Code(
		err) != codes.ResourceExhausted {
		t.Errorf("an enrolment of 65 KiB = %v", err)
	}
	if _, err := agents.Enroll(ctx, &agentv1.EnrollRequest{Protocol: 1}); status.Code(err) == codes.ResourceExhausted ||
		err == nil {
		t.Errorf("a short enrolment = %v", err)
	}
	stream, err := agents.Session(ctx)
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a session without certificate = %v", err)
	}
}

// TestManyValues: a body of an authenticated caller can't be made of more values than memory is for.
func TestManyValues(t *testing.T) {
	w := newWorld(t)
	w.node("n", "")
	if out := w.want(413, olga, "PATCH", "/v1/nodes/n", "["+strings.Repeat("0,", 520_000)+"0]"); !strings.Contains(out,
		"values") && !strings.Contains(out, "bytes") {
		t.Errorf("500,000 values: %s", out)
	}
	// The connection is of use after that.
	c := w.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("GET / = %v, %v", resp, err)
	}
}

// TestGuessedPasswords: a client that guesses gets 429 and keeps no other client out.
func TestGuessedPasswords(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), 8)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "htpasswd")
	if err := os.WriteFile(path, []byte("alice:"+string(hash)+"\nbob:"+string(hash)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := ingotd.Start(t, kit.FreeAddr(t), "api.auth=http_basic", "api.htpasswd_file="+path)
	login := func(from, name, password string) (int, string) {
		t.Helper()
		c := http.Client{
			Transport: &http.Transport{
				DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}}
		defer c.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), "GET", d.URL+"/v1/nodes", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth(name, password)
		req.Header.Set("X-Forwarded-For", "203.0.113.1") // no proxy is configured
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("Retry-After")
	}
	last, after := 0, ""
	for i := range 20 {
		last, after = login("127.0.0.2", "alice", fmt.Sprint("wrong", i))
	}
	if last != 429 || after == "" {
		t.Errorf("guess 20 = %d, Retry-After %q, want 429 and a time", last, after)
	}
	for _, tt := range []struct{ from, name string }{{"127.0.0.1", "alice"}, {"127.0.0.2", "bob"}} {
		if got, _ := login(tt.from, tt.name, "secret"); got != 200 {
			t.Errorf("%s from %s = %d, want 200", tt.name, tt.from, got)
		}
	}
	for i := range 60 {
		last, _ = login("127.0.0.3", fmt.Sprint("user", i), "wrong")
	}
	if last != 429 {
		t.Errorf("name 60 from one address = %d, want 429", last)
	}
}

// TestRequestsOfPeopleStay: reports do not displace the records of requests.
func TestRequestsOfPeopleStay(t *testing.T) {
	w := newWorld(t, "history.reports_per_node=10", "history.requests_per_node=1000")
	w.node("n", "")
	const asked = 80
	for i := range asked {
		target := []string{"power on", "power off"}[i%2]
		w.want(202, olga, "PUT", "/v1/nodes/n/states/power", `{"target":"`+target+`"}`)
		kit.Eventually(w, time.Minute, "the node is at "+target, func() bool {
			out := w.want(200, olga, "GET", "/v1/nodes/n/states", "")
			return strings.Contains(out, `"power_state":"`+target+`"`) &&
				strings.Contains(out, `"target_power_state":null`)
		})
	}
	var h struct{ History []struct{ Event string } }
	if err := json.Unmarshal([]byte(w.want(200, olga, "GET", "/v1/nodes/n/history?detail=true", "")), &h); err != nil {
		t.Fatal(err)
	}
	requests := 0
	for _, l := range h.History {
		if strings.HasSuffix(l.Event, "requested") {
			requests++
		}
	}
	if requests != asked {
		t.Errorf("%d of %d requests are in the history, with %d other lines", requests, asked, len(h.History)-requests)
	}
}

// TestNodesStaySmall: no field grows without end, by one request or by many.
func TestNodesStaySmall(t *testing.T) {
	w := newWorld(t)
	w.node("n", "")
	w.want(201, olga, "POST", "/v1/ports", `{"uuid":"00000000-0000-4000-8000-000000000002","node_uuid":"`+w.id("n")+
		`","address":"52:54:00:00:00:01"}`)
	w.want(201, root, "POST", "/v1/chassis", `{"uuid":"00000000-0000-4000-8000-000000000001"}`)
	piece := strings.Repeat("x", 20<<10)
	for _, tt := range []struct{ who, path, field string }{
		{olga, "/v1/nodes/n", "extra"}, {olga, "/v1/nodes/n", "properties"}, {olga, "/v1/nodes/n", "driver_info"},
		{olga, "/v1/ports/00000000-0000-4000-8000-000000000002", "extra"},
		{root, "/v1/chassis/00000000-0000-4000-8000-000000000001", "extra"},
	} {
		last := 0
		for i := range 5 {
			last, _, _ = w.ask(tt.who, "PATCH", tt.path,
				fmt.Sprintf(`[{"op":"add","path":"/%s/k%d","value":"%s"}]`, tt.field, i, piece))
		}
		if last != 413 {
			t.Errorf("PATCH %s /%s, 100 KiB in pieces = %d, want 413", tt.path, tt.field, last)
		}
		w.want(200, tt.who, "PATCH", tt.path, `[{"op":"remove","path":"/`+tt.field+`/k0"}]`)
	}
	large := strings.Repeat("x", 70<<10)
	w.want(413, olga, "POST", "/v1/nodes", `{"driver":"fake-hardware","extra":{"a":"`+large+`"}}`)
	w.want(413, olga, "POST", "/v1/ports", `{"node_uuid":"`+w.id("n")+`","address":"52:54:00:00:00:02","extra":{"a":"`+
		large+`"}}`)
	w.want(413, olga, "POST", "/v1/allocations", `{"resource_class":"x","extra":{"a":"`+large+`"}}`)
	if out := w.want(413, olga, "PUT", "/v1/nodes/n/states/raid",
		`{"logical_disks":[{"size_gb":"MAX","raid_level":"1","volume_name":"`+large+`"}]}`,
		newest...); !strings.Contains(out, "65536 bytes") {
		t.Errorf("a target RAID configuration of 70 KiB: %s", out)
	}
	// Fields that are small enough each are not too many together.
	wide := strings.Repeat("x", 900<<10)
	w.want(200, olga, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/instance_info/a","value":"`+wide+`"}]`, newest...)
	if out := w.want(413, olga, "PATCH", "/v1/nodes/n",
		`[{"op":"add","path":"/network_data","value":{"links":[],"networks":[],"services":[{"type":"dns","address":"`+
			wide+`"}]}}]`, newest...); !strings.Contains(out, "1572864 bytes") {
		t.Errorf("1.8 MB together: %s", out)
	}
	w.want(200, olga, "PATCH", "/v1/nodes/n", `[{"op":"remove","path":"/instance_info/a"}]`, newest...)
	if n := len(w.want(200, root, "GET", "/v1/nodes/n", "")); n > 300<<10 {
		t.Errorf("the node has %d bytes", n)
	}
}

// id gives the UUID of a node by its name.
func (w *world) id(name string) string {
	w.Helper()
	var n struct{ UUID string }
	if err := json.Unmarshal([]byte(w.want(200, root, "GET", "/v1/nodes/"+name, "")), &n); err != nil {
		w.Fatal(err)
	}
	return n.UUID
}
