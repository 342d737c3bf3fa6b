package attack

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/test/kit"
)

// scrape asks a listener for metrics as one of the people.
func (w *world) scrape(who, method, url string) (int, string) {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), method, url, nil)
	if err != nil {
		w.Fatal(err)
	}
	if who != anonymous {
		r.Header.Set("X-Auth-Token", w.tokens[who])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestScrapesNeedTheRight: numbers of the whole site are for readers of the system, at both listeners; the one for
// metrics has nothing else, and takes nothing.
func TestScrapesNeedTheRight(t *testing.T) {
	_, port, _ := strings.Cut(kit.FreeAddr(t), ":")
	w := newWorld(t, "metrics.listen=0.0.0.0:"+port)
	w.node("canary-node", `"description":"canary-text","extra":{"a":"canary-extra"}`)
	for _, base := range []string{w.d.URL, "http://127.0.0.1:" + port} {
		for who, want := range map[string]int{anonymous: 401, auditor: 200, root: 200, olga: 403, eve: 403, zoe: 403} {
			status, body := w.scrape(who, "GET", base+"/metrics")
			if status != want || strings.Contains(body, "ingot_nodes") != (want == 200) {
				t.Errorf("%q at %s: %d %.300s, want %d", who, base, status, body, want)
			}
			w.absent("a scrape", body, "canary-text", "canary-extra")
		}
	}
	for path, want := range map[string]int{"/": 404, "/v1/nodes": 404, "/metrics/..%2fv1": 404, "/debug/pprof/": 404} {
		if status, body := w.scrape(root, "GET", "http://127.0.0.1:"+port+path); status != want {
			t.Errorf("the listener for metrics answers %s with %d %.300s, want %d", path, status, body, want)
		}
	}
	if status, _ := w.scrape(root, "POST", "http://127.0.0.1:"+port+"/metrics"); status != 405 {
		t.Errorf("POST of metrics = %d, want 405", status)
	}
}

// TestScrapeFlood: scrapes beyond those that are answered at one time are refused, and the API stays what it was.
func TestScrapeFlood(t *testing.T) {
	at := kit.FreeAddr(t)
	w := newWorld(t, "metrics.listen="+at)
	w.node("n", "")
	var answered, refused, closed atomic.Int64
	stop := time.Now().Add(2 * time.Second)
	var wg sync.WaitGroup
	for range 3 * limit.ScrapersPerAddress {
		wg.Go(func() {
			// each a connection of its own
			c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
			for time.Now().Before(stop) {
				resp, err := c.Get("http://" + at + "/metrics")
				if err != nil {
					closed.Add(1)
					continue
				}
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				switch {
				case err != nil:
					closed.Add(1)
				case resp.StatusCode == http.StatusOK:
					answered.Add(1)
				case resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != "":
					refused.Add(1)
				default:
					t.Errorf("a scrape is answered with %d", resp.StatusCode)
				}
			}
		})
	}
	for time.Now().Before(stop) {
		w.want(200, olga, "GET", "/v1/nodes/n", "")
	}
	wg.Wait()
	t.Logf("%d answered, %d refused, %d closed", answered.Load(), refused.Load(), closed.Load())
	if answered.Load() == 0 || refused.Load()+closed.Load() == 0 {
		t.Error("the flood was none, or it shut out everyone")
	}
	if status, _ := w.scrape(anonymous, "GET", fmt.Sprintf("http://%s/metrics", at)); status != 200 {
		t.Errorf("a scrape after the flood = %d", status)
	}
}

// TestAuditLogHasNoSecrets: whatever a client sends, as values of bodies, of queries and of headers, also in requests
// that are refused or make no sense, is in no line of the audit log, and no client can make a line of its own.
func TestAuditLogHasNoSecrets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	w := newWorld(t, "audit.file="+file)
	id := w.node("n", `"driver_info":{"ipmi_password":"canary-1"}`)
	w.want(200, olga, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/driver_info/ipmi_password","value":"canary-2"}]`)
	w.state("n", "manage", "manageable")
	w.state("n", "provide", "available")
	w.ask(olga, "PUT", "/v1/nodes/n/states/provision", `{"target":"active","configdrive":"canary-3"}`, newest...)
	w.ask(olga, "PUT", "/v1/nodes/n/states/provision", `{"target":"rescue","rescue_password":"canary-4"}`, newest...)
	w.ask(root, "POST", "/ingot/v1/nodes/n/controller_password", `{"password":"canary-5"}`)
	w.ask(root, "POST", "/v1/nodes/n/vendor_passthru/x?password=canary-6", `{"password":"canary-7"}`, newest...)
	w.ask(eve, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/extra/x","value":"canary-8"}]`)
	w.ask(olga, "PATCH", "/v1/nodes/n", `{"password":"canary-9"`)
	w.ask(olga, "POST", "/v1/nodes", `"canary-10"`)
	w.ask(anonymous, "POST", "/v1/nodes", `{"driver":"canary-11"}`, "X-Auth-Token", "canary-12", "User-Agent",
		"canary-13")
	forged := "x\"}\n{\"user\":\"forged\"}"
	w.ask(olga, "PATCH", "/v1/nodes/"+strings.ReplaceAll(forged, "\n", "%0a"), `[{"op":"add","path":"`+
		strings.NewReplacer("\n", `\n`, `"`, `\"`).Replace(forged)+`","value":1}]`)
	var text string
	kit.Eventually(t, time.Minute, "the last request is in the audit log", func() bool {
		b, err := os.ReadFile(file)
		text = string(b)
		return err == nil && strings.Contains(text, "forged")
	})
	w.absent("the audit log", text, "canary-", w.tokens[olga], w.tokens[root])
	users := map[string]int{}
	for line := range strings.Lines(text) {
		var e struct{ User, Node, Route string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Errorf("a line that is none: %q, %v", line, err)
		}
		name, _, _ := strings.Cut(e.User, " ")
		users[name]++
		if e.Route == "/v1/nodes/{node}" && name == eve && e.Node != "" {
			t.Errorf("the line of one who may not see the node names it: %s", line)
		}
	}
	if users[olga] < 6 || users[root] < 3 || users[eve] != 1 || users["forged"] > 0 || users[""] > 0 ||
		!strings.Contains(text, `"node":"`+id+`"`) {
		t.Errorf("lines by user: %v", users)
	}
}
