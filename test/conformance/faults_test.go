package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ingot-metal/ingot/test/conformance/accept"
	"github.com/ingot-metal/ingot/test/conformance/ask"
	"github.com/ingot-metal/ingot/test/conformance/ironic"
	"github.com/ingot-metal/ingot/test/conformance/record"
	"github.com/ingot-metal/ingot/test/conformance/run"
)

// fault is one that is planted in a copy of ingotd.
type fault struct {
	what string
	file string // of the product
	text string // is in the file once
	with string // stands in its place, and compiles
	auth ironic.Auth
}

// faults are of the kinds that a change of structure makes: a header, a member, a value, an order, a check, a rule or
// an effect is lost.
var faults = []fault{
	{"the next page has no limit", "conductor/api/call/page.go", "\tadd(\"limit\", strconv.Itoa(p.Limit))\n",
		"\t_ = strconv.Itoa\n", ironic.None},
	{"descending is refused", "conductor/api/call/page.go", `p.Desc = *d == "desc"; !p.Desc`,
		`p.Desc = *d == "DESC"; !p.Desc`, ironic.None},
	{"a new node has no Location", "conductor/api/nodes/nodes.go",
		`Location: c.Base + "/v1/nodes/" + n.UUID, ETag: n.Tag(),`, `ETag: n.Tag(),`, ironic.None},
	{"a member is missing", "conductor/rest/node.go", `{"description", `, `{"descriptions", `, ironic.None},
	{"the version is not told", "conductor/api/server.go", `w.Header().Set(rest.VersionHeader, version.String())`, ``,
		ironic.None},
	{"unknown arguments are taken", "conductor/api/call/call.go",
		`if !slices.Contains(known, name) && len(odd) < mostShown {`, `if len(known) > 1000 && len(odd) < mostShown {`,
		ironic.None},
	{"why there is maintenance is forgotten", "conductor/api/states/states.go",
		`n.Maintenance, n.MaintenanceReason = on, document.Text(b, "reason")`,
		`n.Maintenance, n.MaintenanceReason = on, ""`, ironic.None},
	{"nodes in use can be deleted", "conductor/api/nodes/nodes.go",
		`case !slices.Contains(deletable, n.Provision) && !n.Maintenance:`, `case n.Provision == "":`, ironic.None},
	{"strangers are let in", "conductor/api/server.go", `case missing != nil || rt.Access != call.Public:`, `case false:`,
		ironic.HTTPBasic},
	{"readers delete nodes", "conductor/api/access.go", `{rule: access.NodeDelete}`, `{rule: access.NodeGet}`,
		ironic.Keystone},
}

// source is the text of the file with the fault, or nil when the entry does not fit.
func (f fault) source(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", f.file))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte(f.text)); n != 1 {
		t.Errorf("%s: %s has %q %d times, want it once", f.what, f.file, f.text, n)
		return nil
	}
	return bytes.Replace(text, []byte(f.text), []byte(f.with), 1)
}

// build builds an ingotd with the fault. The source stays as it is.
func (f fault) build(t *testing.T) string {
	t.Helper()
	dir, text := t.TempDir(), f.source(t)
	file, err := filepath.Abs(filepath.Join("../..", f.file))
	if err != nil {
		t.Fatal(err)
	}
	mutant, overlay, bin := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir,
		"ingotd")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{file: mutant}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{mutant: text, overlay: list} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-overlay="+overlay, "-o",
		bin,
		"./conductor/cmd/ingotd")
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0", "GOGC=400")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: the copy does not compile: %v\n%s", f.what, err, out)
	}
	return bin
}

// TestPlantedFaults: each entry of the list of faults fits the code. With INGOT_FULL they are planted in copies of
// ingotd, and each is detected by the comparison with a real Ironic, and by that with a recorded one.
func TestPlantedFaults(t *testing.T) {
	for _, f := range faults {
		f.source(t)
	}
	if os.Getenv("INGOT_FULL") == "" || t.Failed() {
		return
	}
	list, err := (&options{dir: "testdata"}).list()
	if err != nil {
		t.Fatal(err)
	}
	recorded, ctx := recording(t, "testdata/ironic-21.4.jsonl.gz"), t.Context() // of the servers: of all faults
	for _, auth := range ways {
		var pair *ironic.Pair
		for _, f := range faults {
			if f.auth != auth {
				continue
			}
			t.Run(f.what, func(t *testing.T) {
				bin := f.build(t)
				found(t, list, bin, auth, recorded[auth])
				if pair == nil {
					pair, err = ironic.Start(ctx, ironic.Options{Auth: auth, Binary: bin, Log: slog.Default()})
				} else {
					err = pair.Use(ctx, bin)
				}
				if err != nil {
					t.Fatal(err)
				}
				beside(t, list, pair, auth)
			})
		}
		if pair != nil {
			if err := pair.Stop(); err != nil {
				t.Error(err)
			}
		}
	}
}

// found holds that a fault shows in the comparison with a recording.
func found(t *testing.T, list accept.List, bin string, auth ironic.Auth, es []record.Exchange) {
	t.Helper()
	var report run.Report
	if err := report.Replay(t.Context(), list, alone(t, auth, bin), es); err != nil {
		t.Fatal(err)
	}
	if len(report.Found) == 0 {
		t.Errorf("none of %d recorded answers shows it", report.Compared)
	}
}

// beside holds that a fault shows beside a real Ironic.
func beside(t *testing.T, list accept.List, pair *ironic.Pair, auth ironic.Auth) {
	t.Helper()
	first, second := &run.Server{Base: pair.Ironic}, &run.Server{Base: pair.Ingot}
	first.As(pair)
	second.As(pair)
	routes, err := description(t.Context(), second)
	if err != nil {
		t.Fatal(err)
	}
	var report run.Report
	for _, scene := range ask.Scenes(routes, asked(auth), 21, 0) {
		if _, err := report.Both(t.Context(), list, first, second, scene, true); err != nil {
			t.Fatal(err)
		}
		if len(report.Found) > 0 {
			t.Logf("found after %d requests: %s %v", report.Compared, report.Found[0].Ask.Route,
				report.Found[0].Difference)
			return
		}
	}
	t.Errorf("none of %d requests to both shows it", report.Compared)
}
