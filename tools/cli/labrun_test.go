package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/tools/lab"
)

// TestLabByCommand leads a lab through its life with the program itself, as somebody at a shell does.
func TestLabByCommand(t *testing.T) {
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "ip", "qemu-system-x86_64")
	bin := made.Program(t, "ingot")
	name, dir := fmt.Sprintf("cli%d", os.Getpid()), filepath.Join(t.TempDir(), "lab")
	command := func(ctx context.Context, line string, more ...string) (string, error) {
		out, err := exec.CommandContext(ctx, bin, append(words(line), more...)...).CombinedOutput()
		return string(out), err
	}
	ingot := func(line string, more ...string) string {
		t.Helper()
		out, err := command(t.Context(), line, more...)
		if err != nil {
			t.Fatalf("ingot %s: %v\n%s", line, err, out)
		}
		return out
	}
	down := false
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "lab.log"))
			t.Logf("lab's log:\n%s", log)
		}
		if !down {
			_, _ = command(context.Background(), "lab down --name "+name)
		}
	})
	status := func() lab.NodeStatus {
		t.Helper()
		out := ingot("lab status -o json --name " + name)
		var s lab.Status
		if err := json.Unmarshal([]byte(out), &s); err != nil || s.Name != name || s.Dir != dir || len(s.Nodes) != 1 {
			t.Fatalf("status: %v\n%s", err, out)
		}
		return s.Nodes[0]
	}

	out := ingot("lab up --nodes 1 --memory 64 --disk virtio:16M --accel tcg --subnet 10.78.9.0/24 --name "+name,
		"--dir", dir)
	if !strings.Contains(out, name) || !strings.Contains(out, "node-0") || !strings.Contains(out, "10.78.9.201") {
		t.Errorf("up says\n%s", out)
	}
	if out, err := command(t.Context(), "lab up --name "+name, "--dir", dir); err == nil {
		t.Errorf("a second lab of that name came up:\n%s", out)
	}
	if n := status(); n.On || n.Name != "node-0" || n.BMCAddress != "10.78.9.201" || n.MemoryMiB != 64 {
		t.Errorf("after up: %+v", n)
	}
	ingot("lab power on node-0 --name " + name)
	if n := status(); !n.On || n.PID == 0 {
		t.Errorf("after power on: %+v", n)
	}
	// The table says the same in words.
	table := ingot("lab status --name " + name)
	var row []string
	for line := range strings.Lines(table) {
		if f := words(line); len(f) > 1 && f[0] == "node-0" {
			row = f
		}
	}
	if len(row) < 4 || row[1] != "on" || row[2] != "bios" || row[3] != "64" ||
		!strings.Contains(table, "10.78.9.0/24") {
		t.Errorf("status says\n%s", table)
	}
	ingot("lab power off node-0 --name " + name)
	if n := status(); n.On {
		t.Errorf("after power off: %+v", n)
	}
	if out, err := command(t.Context(), "lab power on node-7 --name "+name); err == nil ||
		!strings.Contains(out, "node-7") {
		t.Errorf("power on of a machine that is not there: %v\n%s", err, out)
	}
	if out := ingot("lab down --name " + name); !strings.Contains(out, "is down") {
		t.Errorf("down says %q", out)
	}
	down = true
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the lab's folder is still there: %v", err)
	}
	if out, err := command(t.Context(), "lab status --name "+name); err == nil ||
		!strings.Contains(out, "ingot lab up --name "+name) {
		t.Errorf("status of a lab that is down: %v\n%s", err, out)
	}
}
