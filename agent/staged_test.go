package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/image"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
)

// TestStagedOverSession: what a plan of phase warm wrote is there for the deployment that comes next, if it begins with
// the image; for none that comes later, and for none that does something else first.
func TestStagedOverSession(t *testing.T) {
	img := bytes.Repeat([]byte("system "), 1<<19)[:3<<20]
	clear(img[440:512])
	img[446+4] = 0x83
	binary.LittleEndian.PutUint32(img[446+8:], 2048)
	binary.LittleEndian.PutUint32(img[446+12:], uint32(len(img)/512-2048))
	img[510], img[511] = 0x55, 0xaa
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "disk.raw", time.Unix(1, 0), bytes.NewReader(img))
	}))
	defer srv.Close()
	sum := sha256.Sum256(img)
	args, err := json.Marshal(
		map[string]any{"image_source": srv.URL + "/disk.raw", "image_checksum": hex.EncodeToString(sum[:]),
			"root_device": map[string]any{"serial": "s1"}})
	if err != nil {
		t.Fatal(err)
	}

	c := newConductor(t)
	b := newBench(t, c)
	m := fake.NewMachine(t.TempDir())
	m.Disks.Add(fake.DiskSpec{Name: "vda", Serial: "s1", Size: 16 << 20, Fill: 0xa5})
	b.opts.Steps = append(b.opts.Steps,
		step.Step{Row: step.Row{Interface: "deploy", Name: "write_image", Args: image.WriteArgs, Stall: image.Stall},
			Run: image.WriteStep(m)})
	b.run()
	generation := uint64(3)
	run := func(phase string, steps ...string) string {
		t.Helper()
		generation++
		p := &agentv1.Plan{Id: fmt.Sprintf("p%d", generation), Generation: generation, Phase: phase}
		for _, s := range steps {
			st := &agentv1.Step{Interface: "deploy", Name: s}
			if s == "write_image" {
				st.Args = args
			}
			p.Steps = append(p.Steps, st)
		}
		c.say(&agentv1.ConductorMessage{Body: &agentv1.ConductorMessage_Plan{Plan: p}})
		poll(t, "the end of plan "+p.Id, func() bool { return c.finished(p.Id) != nil })
		if !c.finished(p.Id).Done {
			t.Fatalf("plan %s: %s", p.Id, c.outcomes(p.Id))
		}
		return c.outcomes(p.Id)
	}
	for _, s := range []struct {
		what  string
		plans [][]string // phase and steps
		found bool       // in the last
	}{
		{"next", [][]string{{"warm", "write_image"}, {"deploy", "write_image"}}, true},
		{"once more", [][]string{{"deploy", "write_image"}}, false},
		{"asked for twice",
			[][]string{{"warm", "write_image"}, {"warm", "write_image"}, {"deploy", "write_image", "quick"}}, true},
		{"something else first", [][]string{{"warm", "write_image"}, {"deploy", "quick", "write_image"}}, false},
		{"another plan between", [][]string{{"warm", "write_image"}, {"clean", "quick"}, {"deploy", "write_image"}},
			false},
		{"written by a deployment",
			[][]string{{"deploy", "write_image"}, {"clean", "quick"}, {"deploy", "write_image"}}, false},
	} {
		got := ""
		for _, p := range s.plans {
			got = run(p[0], p[1:]...)
		}
		if found := strings.Contains(got, `"staged":true`); found != s.found {
			t.Errorf("%s: found %v, want %v: %s", s.what, found, s.found, got)
		}
	}
}
