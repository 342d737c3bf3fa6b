package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/trace"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/tools/cli/render"
)

// timelineServer answers with the time line of a node that was cleaned and deployed, and keeps what a collector is
// sent.
func timelineServer(t *testing.T) (url string, collected func() string) {
	t.Helper()
	begin := time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)
	var marks []node.Mark
	add := func(job string, seconds int, name, detail string) {
		marks = append(marks,
			node.Mark{JobID: job, Name: name, Detail: detail, At: begin.Add(time.Duration(seconds) * time.Second)})
	}
	add("j1", 0, node.MarkRequested, "clean")
	add("j1", 1, node.MarkStepBegan, "erase")
	add("j1", 9, node.MarkStepDone, "erase")
	add("j1", 9, node.MarkState, "available")
	add("j2", 20, node.MarkRequested, "deploy")
	add("j2", 20, node.MarkStepBegan, "write_image")
	add("j2", 30, node.MarkStepDone, "write_image")
	add("j2", 30, node.MarkState, "active")
	var got string
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ingot/v1/nodes/n1/timeline", func(w http.ResponseWriter, r *http.Request) {
		out := rest.Timeline{NodeUUID: "4d7f9a1e-0000-4000-8000-000000000001", Marks: []rest.Mark{}}
		var of []node.Mark
		for _, m := range marks {
			if job := r.URL.Query().Get("job"); job == "" || job == m.JobID {
				of = append(of, m)
				out.Marks = append(out.Marks,
					rest.Mark{JobID: rest.Null(m.JobID), Name: m.Name, Detail: rest.Null(m.Detail),
						At: m.At.Format(time.RFC3339Nano)})
			}
		}
		out.Traces = trace.Of(of, nil, begin)
		if err := json.NewEncoder(w).Encode(out); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("the collector is sent %q, %v", r.Header.Get("Content-Type"), err)
		}
		got = string(b)
	})
	mux.HandleFunc("POST /full/v1/traces", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the disk is full", http.StatusInsufficientStorage)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL, func() string { return got }
}

func TestTimeline(t *testing.T) {
	url, collected := timelineServer(t)
	u := &user{t: t, url: url}
	if out := u.ok(words("node timeline n1")...); !strings.HasPrefix(out, "deploy: 10.0 s") ||
		!strings.Contains(out, "write_image") || strings.Contains(out, "erase") {
		t.Errorf("the last job's waterfall is\n%s", out)
	}
	for _, args := range []string{"--phase clean", "--job j1"} {
		if out := u.ok(words("node timeline n1 " + args)...); !strings.HasPrefix(out, "clean: 9.0 s") ||
			strings.Contains(out, "write_image") {
			t.Errorf("with %s it is\n%s", args, out)
		}
	}
	if out := u.ok(words("node timeline n1 --marks --phase clean")...); !strings.Contains(out, "step started") ||
		strings.Contains(out, "write_image") {
		t.Errorf("the marks are\n%s", out)
	}
	for _, c := range []struct {
		args   string
		traces int
		marks  int
	}{{"--json", 2, 8}, {"-o json", 2, 8}, {"--json --phase deploy", 1, 4}, {"--json --job j1", 1, 4}} {
		var tl rest.Timeline
		if err := json.Unmarshal([]byte(u.ok(words("node timeline n1 "+c.args)...)), &tl); err != nil ||
			len(tl.Traces) != c.traces || len(tl.Marks) != c.marks {
			t.Errorf("with %s there are %d traces and %d marks, want %d and %d (%v)", c.args, len(tl.Traces),
				len(tl.Marks), c.traces, c.marks, err)
		}
	}
	u.fails(words("node timeline n1 --phase rescue"), "no such job")
	u.fails(words("node timeline n1 --job j9"), "no such job")
	u.fails(words("node timeline n1 --job j1 --phase clean"), "--phase")

	file := filepath.Join(t.TempDir(), "trace.json")
	u.ok("node", "timeline", "n1", "--phase", "deploy", "--otlp", file)
	raw, err := os.ReadFile(file)
	if err != nil || strings.Count(string(raw), `"traceId"`) != 2 { // the job and its step
		t.Errorf("the file has\n%s (%v)", raw, err)
	}
	u.ok("node", "timeline", "n1", "--otlp", url)
	if strings.Count(collected(), `"traceId"`) != 5 {
		t.Errorf("the collector got\n%s", collected())
	}
	u.fails([]string{"node", "timeline", "n1", "--otlp", url + "/full/v1/traces"}, "507", "the disk is full")
	u.fails([]string{"node", "timeline", "n1", "--otlp", filepath.Join(t.TempDir(), "no", "such")}, "write the trace")
}

// TestTimelineExportStopped: only the collector had work, so no work on the node goes on.
func TestTimelineExportStopped(t *testing.T) {
	url, _ := timelineServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice that the client is gone
		cancel()
		<-r.Context().Done()
	}))
	defer collector.Close()
	err := Run(ctx, []string{"node", "timeline", "n1", "--endpoint", url, "--otlp", collector.URL}, nil, io.Discard,
		io.Discard, func(string) string { return "" })
	if !errors.Is(err, context.Canceled) || strings.Contains(Message(err), "\n") {
		t.Errorf("an export that was stopped: %q", Message(err))
	}
}

// TestSpanRows: -o csv has each span once, those inside others as well, with numbers that programs can add.
func TestSpanRows(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, int64(s*1e9)) }
	rows := spanRows(at(0), []rest.Span{{Name: "boot", Kind: "group", Begin: at(0), Seconds: 3, Spans: []rest.Span{
		{Name: "firmware", Kind: "firmware", Begin: at(1.5), Seconds: 1.5}}},
		{Name: "write_image", Kind: "step", Begin: at(3), Seconds: 0.25, Bytes: 1 << 30, Detail: "a, b"}})
	want := [][]string{{"0.000", "3.000", "group", "boot", "0", ""},
		{"1.500", "1.500", "firmware", "firmware", "0", ""},
		{"3.000", "0.250", "step", "write_image", "1073741824", "a, b"}}
	if d := cmp.Diff(want, rows); d != "" {
		t.Error(d)
	}
}

// TestResultsInEachFormat: what a command has done, as its fields, its name or a sentence.
func TestResultsInEachFormat(t *testing.T) {
	v := map[string]any{"name": "web1", "power_state": "power on", "size": 3}
	for text, want := range map[string]string{"": "done\n", "csv": "name,web1\npower_state,power on\nsize,3\n",
		"name": "web1\n", "go-template={{.size}}": "3\n"} {
		var out strings.Builder
		f, err := render.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		p := &program{stdout: &out, format: f}
		if err := p.result(v, "done"); err != nil || out.String() != want {
			t.Errorf("-o %s = %q, %v; want %q", text, &out, err, want)
		}
	}
	var out strings.Builder
	f, err := render.Parse("name")
	if err != nil {
		t.Fatal(err)
	}
	if err := (&program{stdout: &out, format: f}).result(map[string]any{"size": 3}, "done"); err != nil ||
		out.String() != "done\n" {
		t.Errorf("-o name of a result without a name: %q, %v", &out, err)
	}
}
