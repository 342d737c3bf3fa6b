package openstack

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// calls stands between OpenStack and the ingotd, and notes what is asked.
type calls struct {
	url string

	mu    sync.Mutex
	phase string
	seen  map[string][]string // by phase, in the order of the first time
	wrong []string            // answers that mean a fault of the ingotd, or of what Nova takes it for
}

// record starts it, for an ingotd that may be started later.
func record(t *testing.T, ingotd string) *calls {
	t.Helper()
	to, err := url.Parse(ingotd)
	if err != nil {
		t.Fatal(err)
	}
	c := &calls{seen: map[string][]string{}}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host
		},
		ModifyResponse: func(r *http.Response) error {
			c.note(r)
			return nil
		},
	}
	front := httptest.NewServer(proxy)
	t.Cleanup(front.Close)
	c.url = front.URL
	return c
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// note keeps the call that an answer is for.
func (c *calls) note(r *http.Response) {
	if strings.HasPrefix(r.Request.UserAgent(), "Go-http-client/") {
		return // Ingot's own import, and no part of OpenStack
	}
	path := uuids.ReplaceAllString(r.Request.URL.Path, "UUID")
	call := r.Request.Method + " /" + strings.Trim(path, "/")
	if q := r.Request.URL.Query(); len(q) > 0 {
		var names []string
		for name := range q {
			names = append(names, name)
		}
		slices.Sort(names)
		call += "?" + strings.Join(names, "&")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.seen[c.phase], call) {
		c.seen[c.phase] = append(c.seen[c.phase], call)
	}
	// 401 is for a client that asks what versions there are before it logs in; 409 is for one that has to come again.
	// The same for a virtual interface that went with the instance: Nova detaches it all the same, as from Ironic.
	if r.StatusCode == http.StatusBadRequest && call == "DELETE /v1/nodes/UUID/vifs/UUID" {
		return
	}
	faults := []int{http.StatusBadRequest, http.StatusForbidden, http.StatusNotAcceptable}
	if r.StatusCode >= 500 || slices.Contains(faults, r.StatusCode) {
		c.wrong = append(c.wrong, fmt.Sprintf("%s: %s: %s", c.phase, call, r.Status))
	}
}

// begin names what follows.
func (c *calls) begin(phase string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase = phase
}

// page has the calls, in a list for each phase.
var page = filepath.Join("..", "..", "docs", "explanation", "openstack.md")

// check holds that no call was answered as a fault, and that the page of the documentation lists the calls of each
// phase, and no others. Those that Nova repeats by itself from time to time are in the page's first list.
func (c *calls) check(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.wrong {
		t.Errorf("answered as a fault: %s", w)
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	listed, heading := map[string][]string{}, ""
	line := regexp.MustCompile("^(?:\\d+\\.|-) `([A-Z]+ /[^`]*)`")
	for l := range strings.Lines(string(b)) {
		if h, ok := strings.CutPrefix(l, "### "); ok {
			heading = strings.TrimSpace(h)
		} else if m := line.FindStringSubmatch(l); m != nil {
			listed[heading] = append(listed[heading], m[1])
		}
	}
	always := listed["Always"]
	for phase, seen := range c.seen {
		var own []string
		for _, call := range seen {
			if !slices.Contains(always, call) {
				own = append(own, call)
			}
		}
		for _, call := range own {
			if !slices.Contains(listed[phase], call) {
				t.Errorf("%s does not list %s under %q", page, call, phase)
			}
		}
		for _, call := range listed[phase] {
			if !slices.Contains(seen, call) {
				t.Errorf("%s lists %s under %q, which was not seen", page, call, phase)
			}
		}
	}
	for phase := range listed {
		if c.seen[phase] == nil && phase != "Always" {
			t.Errorf("%s has a list %q, which was not seen", page, phase)
		}
	}
	if t.Failed() {
		for phase, seen := range c.seen {
			t.Logf("%s:\n- %s", phase, strings.Join(seen, "\n- "))
		}
	}
}
