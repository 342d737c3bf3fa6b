package api

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/kit/described"
)

// watched is a Server all of whose answers are held against the description that it has of itself.
type watched struct {
	*Server
	t   testing.TB
	odd bool // requests are odd on purpose: they are not held against it
}

// newServer is New for tests.
func newServer(t testing.TB, st storage, en machines, cfg Config, log *slog.Logger) *watched {
	t.Helper()
	srv, err := New(st, en, cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	return &watched{Server: srv, t: t}
}

// descriptions are kept by what they depend on: to make one takes longer than most tests.
var descriptions sync.Map

type descriptionKey struct {
	newest    rest.Version
	noRamdisk bool
}

func (w *watched) document() *described.Document {
	key := descriptionKey{w.cfg.MaxVersion, w.cfg.NoRamdisk}
	if d, ok := descriptions.Load(key); ok {
		return d.(*described.Document)
	}
	doc, err := w.description()
	if err != nil {
		w.t.Fatal(err)
	}
	d, err := described.Parse(doc)
	if err != nil {
		w.t.Fatal(err)
	}
	descriptions.Store(key, d)
	return d
}

// answered are the operations that did what they were asked in some test.
var answered sync.Map

// neverDone are operations that nothing can do that there is in tests.
func neverDone(rt *call.Route) bool {
	// the methods of fake hardware take POST
	vendor := strings.Contains(rt.Path, "/vendor_passthru") && rt.Method != http.MethodPost
	return vendor && !strings.HasSuffix(rt.Path, "/methods") || strings.HasSuffix(rt.Path, "/inject_nmi")
}

// TestMain prints after a run of all tests which operations no test has seen succeed: their answers may differ from the
// description.
func TestMain(m *testing.M) {
	code := m.Run()
	whole := func(name string) bool { return flag.Lookup("test."+name).Value.String() == "" } // nothing was chosen
	if whole("run") && whole("skip") && whole("fuzz") && whole("list") {
		for _, rt := range (&Server{}).table() {
			name := rt.Method + " " + rt.Path
			if _, seen := answered.Load(name); !seen && len(rt.Answers) > 0 && !neverDone(&rt) {
				fmt.Fprintf(os.Stderr,
					"no test has seen %s succeed, so what it answers may not be as it is described\n", name)
				code = max(code, 1)
			}
		}
	}
	os.Exit(code)
}

// ServeHTTP implements http.Handler.
func (w *watched) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	var sent bytes.Buffer
	if r.Body != nil {
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, &sent), r.Body}
	}
	rec := &recorder{ResponseWriter: out}
	query := r.URL.RawQuery
	w.Server.ServeHTTP(rec, r)
	if rec.status == 0 && r.Context().Err() != nil {
		return // no answer was sent
	}
	x := described.Exchange{Method: r.Method, Status: cmp.Or(rec.status, http.StatusOK), Header: out.Header(),
		Body: rec.body.Bytes(), Sent: sent.Bytes()}
	d := w.document()
	segments, ours := normalise(r.URL.EscapedPath())
	version, _, verr := rest.Negotiate(r.Header, w.cfg.MaxVersion)
	if !ours && verr == nil {
		segments, query = w.routes.usual(r.Method, version, segments, query)
	}
	if !ours && len(segments) > 0 {
		x.Version = version
	}
	if w.odd {
		x.Sent = nil
	}
	x.Path = d.Path(segments)
	if r.Method == http.MethodHead || r.Method != strings.ToUpper(r.Method) {
		return // no description has it
	}
	x.Query, _ = parseQuery(query, rest.Repr)
	if x.Status < 400 {
		answered.Store(x.Method+" "+x.Path, true)
	}
	if err := d.Check(x); err != nil {
		w.t.Errorf("%s %s in version %s is not as /openapi.json says: %v", r.Method, r.URL.RequestURI(), version, err)
	}
}

// recorder keeps what is sent. It is a Flusher and has deadlines, as streams need.
type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	r.body.Write(b)
	return r.ResponseWriter.Write(b)
}
