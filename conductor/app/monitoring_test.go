//go:build !race

package app

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/protobuf/proto"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// TestLogLevelsChangeWhileItRuns: the command changes what a running ingotd logs, of one part or of all.
func TestLogLevelsChangeWhileItRuns(t *testing.T) {
	d := ingotd.Start(t, kit.FreeAddr(t))
	command := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		args = append([]string{"log-level", "--data-dir", d.Dir}, args...)
		if err := Run(t.Context(), args, nil, &out, &errs); err != nil {
			return err.Error()
		}
		return out.String()
	}
	kit.Eventually(t, time.Minute, "the socket is there",
		func() bool { return !strings.Contains(command(), "no ingotd") })
	if got := command(); !strings.Contains(got, "engine       info\n") || !strings.Contains(got, "api ") {
		t.Errorf("levels: %s", got)
	}
	if got := command("engine=debug", "store=error"); !strings.Contains(got, "engine       debug\n") ||
		!strings.Contains(got, "store        error\n") || !strings.Contains(got, "api          info\n") {
		t.Errorf("levels after a change: %s", got)
	}
	if got := command("kitchen=debug"); !strings.Contains(got, "there is no part") {
		t.Errorf("a part that there is not: %s", got)
	}
	if got := command("loud"); !strings.Contains(got, "debug, info, warn or error") {
		t.Errorf("a level that there is not: %s", got)
	}
	if got := command("error"); strings.Contains(got, "info") {
		t.Errorf("levels after all were changed: %s", got)
	}
	if log := d.Log.String(); !strings.Contains(log, "a command changed what is logged") ||
		!strings.Contains(log, "part=main") {
		t.Errorf("the log does not say so: %s", log)
	}
}

// TestAuditFile: changes are lines of the audit log, which goes on in a new file after it was moved away and ingotd got
// a SIGHUP.
func TestAuditFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	d := ingotd.Start(t, kit.FreeAddr(t), "audit.file="+file)
	change := func(name string) {
		t.Helper()
		if status, _, out := d.Ask("POST", "/v1/nodes", `{"driver":"fake-hardware","name":"`+name+`"}`, nil); status != 201 {
			t.Fatalf("make %s: %d %s", name, status, out)
		}
	}
	lines := func(file string) string {
		b, err := os.ReadFile(file)
		if err != nil {
			return ""
		}
		return string(b)
	}
	change("one")
	// The line is written after the answer.
	kit.Eventually(t, time.Minute, "the change is a line", func() bool { return strings.Count(lines(file), "\n") == 1 })
	var e map[string]any
	if err := json.Unmarshal([]byte(lines(file)), &e); err != nil || e["route"] != "/v1/nodes" || e["status"] != 201.0 {
		t.Errorf("line %s: %v", lines(file), err)
	}
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(d.PID, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, time.Minute, "there is a new file", func() bool {
		_, err := os.Stat(file)
		return err == nil
	})
	change("two")
	kit.Eventually(t, time.Minute, "the next change is a line of the new file",
		func() bool { return strings.Count(lines(file), "\n") == 1 })
	if old := lines(file + ".1"); strings.Count(old, "\n") != 1 {
		t.Errorf("the old file has %s", old)
	}
}

// TestTracesOfAConductor: an ingotd sends its collector a span of each request, in the client's trace, and a trace of
// each job; its log names the trace.
func TestTracesOfAConductor(t *testing.T) {
	var mu sync.Mutex
	spans := map[string][]string{} // names by trace
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		var m collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(b, &m)
		}
		if err != nil {
			t.Errorf("what a collector can't read: %v", err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, rs := range m.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					id := hex.EncodeToString(s.TraceId)
					spans[id] = append(spans[id], s.Name)
				}
			}
		}
	}))
	defer srv.Close()
	htpasswd := filepath.Join(t.TempDir(), "htpasswd")
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(htpasswd, []byte("alice:"+string(hash)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := ingotd.Start(t, kit.FreeAddr(t), "traces.endpoint="+srv.URL, "api.auth=http_basic",
		"api.htpasswd_file="+htpasswd)
	const theirs = "4bf92f3577b34da6a3ce929d0e0e4736"
	login := map[string]string{"Authorization": "Basic YWxpY2U6c2VjcmV0"}
	header := map[string]string{"traceparent": "00-" + theirs + "-00f067aa0ba902b7-01",
		"Authorization": login["Authorization"]}
	status, h, out := d.Ask("POST", "/v1/nodes", `{"driver":"fake-hardware","name":"n"}`, header)
	if status != 201 || !strings.HasPrefix(h.Get("Traceparent"), "00-"+theirs+"-") {
		t.Fatalf("make a node: %d %s %s", status, h, out)
	}
	d.Ask("PUT", "/v1/nodes/n/states/provision", `{"target":"manage"}`, login)
	kit.Eventually(t, time.Minute, "the collector has the request and the job", func() bool {
		mu.Lock()
		defer mu.Unlock()
		job := false
		for _, names := range spans {
			job = job || strings.Contains(strings.Join(names, " "), "verify")
		}
		return job && strings.Contains(strings.Join(spans[theirs], " "), "POST /v1/nodes")
	})
	mu.Lock()
	defer mu.Unlock()
	for id, names := range spans {
		if job := strings.Contains(strings.Join(names, " "), "verify"); job || id == theirs {
			if log := d.Log.String(); !strings.Contains(log, "trace="+id) {
				t.Errorf("the log does not name the trace %s (of a job: %v): %s", id, job, log)
			}
		}
	}
}
