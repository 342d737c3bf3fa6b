package glance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/glance"
	"github.com/ingot-metal/ingot/conductor/node"
)

const (
	public = "11111111-1111-4111-8111-111111111111"
	own    = "22222222-2222-4222-8222-222222222222" // private, of project web
	shared = "33333333-3333-4333-8333-333333333333" // of project web, with project shop
	queued = "44444444-4444-4444-8444-444444444444"
	parted = "55555555-5555-4555-8555-555555555555"
	old    = "66666666-6666-4666-8666-666666666666" // has an MD5 sum only
	first  = "77777777-7777-4777-8777-777777777771"
	second = "77777777-7777-4777-8777-777777777772"
	named  = "88888888-8888-4888-8888-888888888881" // of project web, beside one that can't be used
	stale  = "88888888-8888-4888-8888-888888888882"
	absent = "99999999-9999-4999-8999-999999999999"
)

const data = "the bytes of an image, of which some are asked for twice"

// world is a Glance with images, and a conductor with one node.
type world struct {
	t      *testing.T
	s      *glance.Service
	glance *httptest.Server
	token  atomic.Int64 // the number of the good one
	asked  atomic.Value // the last header Range
	cut    atomic.Bool  // Glance ends in the middle
	n      node.Node
	lost   error // of reading the node
}

var errNone = errors.New("no such node")

func begin(t *testing.T) *world { return beginWith(t, func(*glance.Config) {}) }

// beginWith is begin with another configuration.
func beginWith(t *testing.T, set func(*glance.Config)) *world {
	w := &world{t: t, n: node.Node{UUID: "node-1", Job: &node.Job{ID: "job-1", Phase: node.PhaseDeploy}}}
	mux := http.NewServeMux()
	images := map[string]map[string]any{
		public: {"visibility": "public"}, own: {"visibility": "private", "owner": "web"},
		shared: {"visibility": "shared", "owner": "web"}, queued: {"visibility": "public", "status": "queued"},
		parted: {"visibility": "public", "kernel_id": public},
		first:  {"name": "twice", "visibility": "public"}, second: {"name": "twice", "visibility": "public"},
		named: {"name": "Debian 12 & more", "visibility": "private", "owner": "web"},
		stale: {"name": "Debian 12 & more", "visibility": "public", "status": "deactivated"},
		old: {"visibility": "public", "os_hash_algo": nil, "os_hash_value": nil,
			"checksum": strings.Repeat("c", 32)},
	}
	record := func(id string) map[string]any {
		out := map[string]any{"id": id, "status": "active", "disk_format": "qcow2", "container_format": "bare",
			"os_hash_algo": "sha512", "os_hash_value": "abc"}
		maps.Copy(out, images[id])
		return out
	}
	mux.HandleFunc("GET /v2/images", func(rw http.ResponseWriter, r *http.Request) {
		list := []any{}
		for id, i := range images {
			if r.FormValue("visibility") == "all" && i["name"] == r.FormValue("name") {
				list = append(list, record(id))
			}
		}
		if err := json.NewEncoder(rw).Encode(map[string]any{"images": list}); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("GET /v2/images/{id}", func(rw http.ResponseWriter, r *http.Request) {
		if images[r.PathValue("id")] == nil {
			http.NotFound(rw, r)
			return
		}
		if err := json.NewEncoder(rw).Encode(record(r.PathValue("id"))); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("GET /v2/images/{id}/members/{project}", func(rw http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") != shared || r.PathValue("project") != "shop" {
			http.NotFound(rw, r)
			return
		}
		fmt.Fprint(rw, `{"status": "accepted"}`)
	})
	mux.HandleFunc("GET /v2/images/{id}/file", func(rw http.ResponseWriter, r *http.Request) {
		w.asked.Store(r.Header.Get("Range"))
		if w.cut.Load() {
			rw.Header().Set("Content-Length", fmt.Sprint(len(data)))
			fmt.Fprint(rw, data[:10])
			rw.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		http.ServeContent(rw, r, "", time.Time{}, strings.NewReader(data))
	})
	w.glance = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Auth-Token") != fmt.Sprint("token ", w.token.Load()) {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(rw, r)
	}))
	t.Cleanup(w.glance.Close)
	mine := w.token.Load()
	cfg := glance.Config{URL: w.glance.URL, Base: "http://192.0.2.1:8080", Key: []byte("k"),
		Local:  func(name string) bool { return name == "local.img" },
		Login:  func(context.Context) (string, error) { return fmt.Sprint("token ", mine), nil },
		Forget: func(string) { mine = w.token.Load() },
		Node: func(_ context.Context, uuid string) (*node.Node, error) {
			if uuid != w.n.UUID {
				return nil, errNone
			}
			return w.n.Clone(), w.lost
		},
		NotFound: func(err error) bool { return errors.Is(err, errNone) },
	}
	set(&cfg)
	var err error
	if w.s, err = glance.New(cfg, nil); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestGlanceDescribesImages(t *testing.T) {
	w := begin(t)
	nova := node.Requester{User: "nova", Project: "service", Trusted: true}
	byName := map[string]any{"image_disk_format": "qcow2", "image_os_hash_algo": "sha512", "image_os_hash_value": "abc",
		"image_checksum": nil, "image_source": named}
	known := map[string]any{"image_disk_format": "qcow2", "image_os_hash_algo": "sha512", "image_os_hash_value": "abc",
		"image_checksum": nil}
	for _, c := range []struct {
		source string
		by     node.Requester
		want   map[string]any
		err    string
	}{
		{"http://x/y", nova, nil, ""},
		{"debian", nova, nil, ""}, // neither in Glance nor here
		{"local.img", nova, nil, ""},
		{"Debian 12 & more", node.Requester{Project: "web"}, byName, ""},
		{"glance://Debian 12 & more", nova, byName, ""},
		{"glance://Debian 12 & more", node.Requester{Project: "shop"}, nil, stale + " is deactivated"},
		{"glance://debian", nova, nil, `"debian" could not be found`},
		{"glance://local.img", nova, nil, `"local.img" could not be found`},
		{"twice", nova, nil, first},
		{"twice", nova, nil, second},
		{"glance://", nova, nil, "no name or ID"},
		{"debian:12", nova, nil, ""},
		{public, node.Requester{Project: "shop"}, known, ""},
		{"glance://" + strings.ToUpper(public), nova, known, ""},
		{own, nova, known, ""},
		{own, node.Requester{Project: "web"}, known, ""},
		{own, node.Requester{Project: "shop"}, nil, "could not be found"},
		{own, node.Requester{}, nil, "could not be found"},
		{shared, node.Requester{Project: "shop"}, known, ""},
		{shared, node.Requester{Project: "other"}, nil, "could not be found"},
		{absent, nova, nil, "could not be found"},
		{queued, nova, nil, "is queued in Glance"},
		{parted, nova, nil, "partition image"},
		{old, nova, map[string]any{"image_disk_format": "qcow2", "image_os_hash_algo": nil, "image_os_hash_value": nil,
			"image_checksum": strings.Repeat("c", 32)}, ""},
	} {
		got, err := w.s.Describe(node.WithRequester(t.Context(), c.by), c.source)
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s for %+v (-want +got):\n%s", c.source, c.by, d)
		}
		var invalid *node.InvalidError
		if (c.err != "") != errors.As(err, &invalid) || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s for %+v: %v, want %q", c.source, c.by, err, c.err)
		}
	}
}

func TestGlanceThatIsAwayIsNoFaultOfTheImage(t *testing.T) {
	w := begin(t)
	w.glance.Close()
	_, err := w.s.Describe(t.Context(), public)
	var invalid *node.InvalidError
	if err == nil || errors.As(err, &invalid) {
		t.Errorf("without Glance: %v", err)
	}
	if _, err := glance.New(glance.Config{URL: "glance:9292"}, nil); err == nil {
		t.Error("an address that is none was accepted")
	}
	if _, err := glance.New(glance.Config{URL: "http://g", CAFile: "/no/such"}, nil); err == nil {
		t.Error("a missing file of certificates was accepted")
	}
}

// get asks the conductor for an image as an agent does.
func (w *world) get(address string, header map[string]string) (status int, body string, err error) {
	w.t.Helper()
	mux := http.NewServeMux()
	mux.Handle("GET "+glance.Path+"{id}", w.s)
	conductor := httptest.NewServer(mux)
	defer conductor.Close()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet,
		conductor.URL+strings.TrimPrefix(address, "http://192.0.2.1:8080"), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err // the connection ended before anything of the image was sent
	}
	defer resp.Body.Close()
	if v := resp.Header.Get("X-Auth-Token"); v != "" {
		w.t.Errorf("a token reaches the agent: %s", v)
	}
	if tag := resp.Header.Get("ETag"); resp.StatusCode < 300 && tag != `"abc"` {
		w.t.Errorf("ETag is %s", tag)
	}
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func TestGlanceImagesReachTheAgentOfTheirJob(t *testing.T) {
	w := begin(t)
	at := w.s.Address(&w.n, own)
	if status, body, err := w.get(at, nil); status != 200 || body != data || err != nil {
		t.Fatalf("the whole image: %d %q %v", status, body, err)
	}
	for _, c := range []struct {
		header map[string]string
		status int
		body   string
	}{
		{map[string]string{"Range": "bytes=4-8"}, 206, data[4:9]},
		{map[string]string{"Range": "bytes=4-", "If-Range": `"abc"`}, 206, data[4:]},
		{map[string]string{"Range": "bytes=4-", "If-Range": `"other"`}, 200, data},
		{map[string]string{"Range": "bytes=9999-"}, 416, ""},
	} {
		status, body, err := w.get(at, c.header)
		if status != c.status || err != nil || status < 300 && body != c.body {
			t.Errorf("%v: %d %q %v", c.header, status, body, err)
		}
	}
	w.token.Add(1) // Keystone has revoked the token
	if status, body, _ := w.get(at, nil); status != 200 || body != data {
		t.Errorf("after the token ended: %d %q", status, body)
	}
	w.cut.Store(true)
	if status, body, err := w.get(at, nil); err == nil {
		t.Errorf("a part is taken for the whole: %d %q", status, body)
	}
	w.glance.Close()
	if status, body, _ := w.get(at, nil); status != 502 || strings.Contains(body, "token") {
		t.Errorf("without Glance: %d %q", status, body)
	}
}

func TestGlanceImagesReachNoOtherClient(t *testing.T) {
	w := begin(t)
	at := w.s.Address(&w.n, own)
	refused := func(what, address string) {
		t.Helper()
		if status, body, _ := w.get(address, nil); status != 404 || strings.Contains(body, "bytes of an image") {
			t.Errorf("%s: %d %q", what, status, body)
		}
	}
	refused("another image", strings.Replace(at, own, public, 1))
	refused("another node", strings.Replace(at, "node-1", "node-2", 1))
	refused("no code", at[:strings.Index(at, "&token")])
	refused("another code", at[:len(at)-1]+"x")
	refused("no image", strings.Replace(at, own, "x", 1))
	w.n.Job.Phase = node.PhaseClean
	refused("in cleaning", at)
	w.n.Job.Phase, w.n.Job.ID = node.PhaseDeploy, "job-2"
	refused("in the next job", at)
	w.n.Job = nil
	refused("without a job", at)
	w.lost = errors.New("the database is away")
	if status, _, _ := w.get(at, nil); status != 503 {
		t.Errorf("without the database: %d", status)
	}
}
