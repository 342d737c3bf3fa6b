package attack

import (
	"fmt"
	"io"
	"net/http"
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
