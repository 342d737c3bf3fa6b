package site_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/agent/step/site"
	"github.com/ingot-metal/ingot/test/kit"
)

// add puts a step that is a shell script into folder.
func add(t *testing.T, folder, name, manifest, script string) {
	t.Helper()
	dir := filepath.Join(folder, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if manifest == "" {
		manifest = fmt.Sprintf(
			`{"interface":"deploy","step":%q,"run":"run","abortable":true,"args":[{"name":"file","type":"string"}]}`,
			name)
	}
	for file, text := range map[string]string{"step.json": manifest, "run": "#!/bin/sh\n" + script + "\n"} {
		kit.WriteProgram(t, filepath.Join(dir, file), text)
	}
}

// tape records what a plan reports.
type tape struct {
	mu      sync.Mutex
	last    step.Progress
	results []step.Result
	saw     chan step.Progress
}

func (*tape) StepStarted(int, step.Planned) {}
func (p *tape) Progress(_ int, _ step.Planned, pr step.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = pr
	select {
	case p.saw <- pr:
	default:
	}
}
func (p *tape) StepFinished(_ int, _ step.Planned, r step.Result) { p.results = append(p.results, r) }

type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// run runs a plan of one step.
func run(t *testing.T, ctx context.Context, table []step.Step, name, args string) (step.End, *tape, string) {
	t.Helper()
	var l logs
	tp := &tape{saw: make(chan step.Progress, 100)}
	facts := &step.Facts{}
	facts.Set(step.Node{}, "node-1")
	r := &step.Runner{Table: table, Log: slog.New(slog.NewTextHandler(&l, nil))}
	end := r.Run(ctx, facts, []step.Planned{{Interface: "deploy", Name: name, Args: json.RawMessage(args)}}, tp)
	return end, tp, l.String()
}

func load(t *testing.T, folder string) []step.Step {
	t.Helper()
	table, err := site.Load(folder, linux.Machine{},
		func(context.Context) (any, error) { return map[string]any{"hostname": "h1"}, nil })
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestGoStep builds the example of docs/howto/site-steps.md, as a site would, and runs it.
func TestGoStep(t *testing.T) {
	folder := t.TempDir()
	dir := filepath.Join(folder, "label")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("testdata/example/step.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "step.json"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "label"), "./testdata/example/main.go")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the example: %v\n%s", err, out)
	}
	table := load(t, folder)
	file := filepath.Join(t.TempDir(), "asset")
	end, tp, log := run(t, t.Context(), table, "example_label",
		fmt.Sprintf(`{"file":%q,"copies":2,"mode":"loud"}`, file))
	if !end.Done {
		t.Fatalf("ended with %+v\n%s", end.Err, log)
	}
	got, err := os.ReadFile(file)
	if want := strings.Repeat("NODE NODE-1, HOST H1\n", 2); err != nil || string(got) != want {
		t.Errorf("it wrote %q, %v; want %q", got, err, want)
	}
	result, _ := json.Marshal(tp.results[0].Outcome.Result)
	if string(result) != `{"lines":2}` || tp.last.Phase != "write" || tp.last.Bytes != 42 || tp.last.Total != 42 {
		t.Errorf("result %s, last progress %+v", result, tp.last)
	}
	if !strings.Contains(log, "label written to") {
		t.Errorf("its words are not in the step's log:\n%s", log)
	}
	// The arguments are held to the manifest before the program is started.
	end, _, _ = run(t, t.Context(), table, "example_label", fmt.Sprintf(`{"file":%q,"copies":9}`, file))
	if end.Err == nil || !strings.Contains(end.Err.Error(), "is 9, but has to be at most 5") {
		t.Errorf("copies 9: %+v", end.Err)
	}
	end, _, _ = run(t, t.Context(), table, "example_label", fmt.Sprintf(`{"file":%q}`, filepath.Join(file, "no")))
	if end.Err == nil || !strings.Contains(end.Err.Error(), "not a directory") ||
		end.Err.Remedy != "give it a file that can be written" {
		t.Errorf("no file: %+v", end.Err)
	}
	m, err := step.Describe(table)
	if err != nil || len(m.Steps) != 1 || m.Steps[0].Priority["clean"] != 20 || m.Steps[0].Timeout != 10*time.Minute ||
		m.Steps[0].Description == "" {
		t.Errorf("the table's manifest is %+v, %v", m, err)
	}
}

// TestProtocol covers a program's output and the ways it may end.
func TestProtocol(t *testing.T) {
	for _, c := range []struct {
		name, script string
		kind         step.Kind
		after        time.Duration
		result       string
		fault        string // words of the failure; "": it is done
		retryable    bool
		log          string
	}{
		{name: "silent", script: `exit 0`, result: `null`},
		{name: "result", script: `echo '{"result":{"a":1}}'; echo '{"result":{"a":2}}'`, result: `{"a":2}`},
		{name: "input", script: `read -r in; echo "{\"result\":$in}"`,
			result: `{"protocol":1,"interface":"deploy","step":"input","args":{},"node":"node-1","inventory":{"hostname":"h1"}}`},
		{name: "words", script: `echo hello; echo '{"log":{"level":"warn","message":"mind the gap"}}'; echo oops >&2`,
			result: `null`, log: "level=WARN msg=\"mind the gap\""},
		{name: "reboot", script: `echo '{"outcome":"reboot"}'`, kind: step.Reboot, result: `null`},
		{name: "hold", script: `echo '{"outcome":"hold"}'`, kind: step.Hold, result: `null`},
		{name: "status", script: `echo it broke >&2; exit 3`,
			fault: "the program ended with status 3; it said: it broke"},
		{name: "error", script: `echo '{"error":{"message":"no luck","retryable":true}}'; exit 1`, fault: "no luck",
			retryable: true},
		{name: "error_and_status_0", script: `echo '{"error":{"message":"no luck"}}'`, fault: "no luck"},
		{name: "error_keeps_result",
			script: `echo '{"result":{"bad":["sdb"]}}'; echo '{"error":{"message":"no luck"}}'`, fault: "no luck",
			result: `{"bad":["sdb"]}`},
		{name: "signal", script: `kill -KILL $$`, fault: "signal: killed"},
		{name: "unknown_key", script: `echo '{"dance":1}'`, fault: "does not keep to the protocol"},
		{name: "half_a_line", script: `echo '{"result":{'`, fault: "does not keep to the protocol"},
		{name: "two_in_one", script: `echo '{"result":{},"outcome":"done"}'`,
			fault: "it has 2 of progress, log, result, error and outcome"},
		{name: "list", script: `echo '{"result":[1]}'`, fault: "the result is not an object"},
		{name: "outcome", script: `echo '{"outcome":"explode"}'`, fault: "is none of done, rerun, reboot, hold"},
		{name: "later_words", script: `echo '{"result":{"a":1}}'; (sleep 600; echo late) & exit 0`, result: `{"a":1}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			add(t, folder, c.name, "", c.script)
			end, tp, log := run(t, t.Context(), load(t, folder), c.name, "")
			r := tp.results[0]
			if c.fault != "" {
				if r.Err == nil || !strings.Contains(r.Err.Error(), c.fault) || r.Err.Retryable != c.retryable {
					t.Fatalf("ended with %+v, want %q", r.Err, c.fault)
				}
				if got, _ := json.Marshal(r.Err.Result); c.result != "" && string(got) != c.result {
					t.Errorf("the failed step's result is %s, want %s", got, c.result)
				}
				return
			}
			if r.Err != nil {
				t.Fatalf("ended with %v\n%s", r.Err, log)
			}
			got, _ := json.Marshal(r.Outcome.Result)
			if string(got) != c.result || r.Outcome.Kind != c.kind || end.Halted != c.kind {
				t.Errorf("result %s, outcome %+v, end %+v", got, r.Outcome, end)
			}
			if !strings.Contains(log, c.log) {
				t.Errorf("the log lacks %q:\n%s", c.log, log)
			}
		})
	}
}

// TestRerun: the program runs again when it asks to, and says when it has had enough.
func TestRerun(t *testing.T) {
	folder := t.TempDir()
	add(t, folder, "again", "", `f=$(dirname "$0")/count; echo x >> "$f"
if [ $(wc -l < "$f") -lt 3 ]; then echo '{"outcome":"rerun","after_seconds":0.01}'; fi`)
	end, tp, log := run(t, t.Context(), load(t, folder), "again", "")
	if !end.Done || len(tp.results) != 3 || tp.results[0].Outcome.After != 10*time.Millisecond {
		t.Errorf("ended with %+v after %d runs\n%s", end, len(tp.results), log)
	}
}

// TestAbort: the program and all that it started are gone when the step has ended, whether or not they mind SIGTERM.
func TestAbort(t *testing.T) {
	for name, script := range map[string]string{
		"minds": `trap 'echo bye >&2; exit 0' TERM; sleep 600 & echo $! > "$F"; echo '{"progress":{"phase":"up"}}'; wait`,
		"plain": `sleep 600 & echo $! > "$F"; echo '{"progress":{"phase":"up"}}'; wait`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			pid := filepath.Join(folder, "pid")
			add(t, folder, name, "", "F="+pid+"\n"+script)
			table := load(t, folder)
			if err := os.Remove(pid); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				for ctx.Err() == nil {
					if b, err := os.ReadFile(pid); err == nil && bytes.HasSuffix(b, []byte("\n")) {
						cancel()
						return
					}
					time.Sleep(5 * time.Millisecond)
				}
			}()
			end, _, log := run(t, ctx, table, name, "")
			if !end.Cancelled || end.Done || end.Err == nil || !strings.Contains(end.Err.Error(), "was cancelled") {
				t.Errorf("ended with %+v\n%s", end, log)
			}
			b, err := os.ReadFile(pid)
			if err != nil {
				t.Fatal(err)
			}
			child, err := strconv.Atoi(strings.TrimSpace(string(b)))
			if err != nil {
				t.Fatal(err)
			}
			gone := func() bool {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
				return err != nil || strings.Contains(string(stat), ") Z ")
			}
			for deadline := time.Now().Add(time.Minute); !gone(); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("what the program started is still there")
				}
			}
		})
	}
}

// TestLimits: neither a program that says nothing nor one that never ends stays.
func TestLimits(t *testing.T) {
	for name, c := range map[string]struct{ limits, script, fault string }{
		"stall": {`"stall":"300ms"`, `sleep 600`, "made no progress for 300ms"},
		"timeout": {`"timeout":"500ms","stall":"1h"`, `while :; do echo still here; sleep 0.05; done`,
			"took longer than 500ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			add(t, folder, name, fmt.Sprintf(`{"interface":"deploy","step":%q,"run":"run",%s}`, name, c.limits),
				c.script)
			end, _, log := run(t, t.Context(), load(t, folder), name, "")
			if end.Err == nil || !strings.Contains(end.Err.Error(), c.fault) {
				t.Errorf("ended with %+v\n%s", end.Err, log)
			}
		})
	}
}

func TestManifests(t *testing.T) {
	for _, c := range []struct{ name, manifest, words string }{
		{"broken", `{`, "it is not a manifest"},
		{"unknown", `{"interface":"deploy","step":"a","run":"run","colour":"red"}`, "unknown field"},
		{"interface", `{"interface":"kitchen","step":"a","run":"run"}`, `interface "kitchen" is none of bios, deploy`},
		{"step", `{"interface":"deploy","step":"Rm -rf","run":"run"}`, "is not made of lower-case letters"},
		{"escape", `{"interface":"deploy","step":"a","run":"../../bin/sh"}`,
			"is not the name of a file in the step's folder"},
		{"absolute", `{"interface":"deploy","step":"a","run":"/bin/sh"}`,
			"is not the name of a file in the step's folder"},
		{"link", `{"interface":"deploy","step":"a","run":"link"}`, "lies outside of the step's folder"},
		{"missing", `{"interface":"deploy","step":"a","run":"none"}`, "find its program"},
		{"data", `{"interface":"deploy","step":"a","run":"step.txt"}`, "is not an executable file"},
		{"argument", `{"interface":"deploy","step":"a","run":"run","args":[{"name":"x","type":"float"}]}`,
			`unknown type "float"`},
		{"priority", `{"interface":"deploy","step":"a","run":"run","priority":{"clean":5000}}`,
			"priority in phase clean is 5000"},
		{"timeout", `{"interface":"deploy","step":"a","run":"run","timeout":"soon"}`, `"soon" is not a duration`},
	} {
		folder := t.TempDir()
		add(t, folder, "s", c.manifest, "exit 0")
		if err := os.Symlink("/bin/sh", filepath.Join(folder, "s", "link")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "s", "step.txt"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if table, err := site.Load(folder, linux.Machine{}, nil); err == nil ||
			!strings.Contains(err.Error(), c.words) || len(table) > 1 {
			t.Errorf("%s: %v, %v; want %q", c.name, table, err, c.words)
		}
	}
	if table, err := site.Load(filepath.Join(t.TempDir(), "none"), linux.Machine{}, nil); err != nil || table != nil {
		t.Errorf("no folder: %v, %v", table, err)
	}
	folder := t.TempDir()
	add(t, folder, "one", `{"interface":"deploy","step":"same","run":"run"}`, "exit 0")
	add(t, folder, "two", `{"interface":"deploy","step":"same","run":"run"}`, "exit 0")
	if _, err := site.Load(folder, linux.Machine{}, nil); err == nil ||
		!strings.Contains(err.Error(), "in the table twice") {
		t.Errorf("twice: %v", err)
	}
}
