package arch

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/agent/linux"
	"github.com/ingot-metal/ingot/agent/step"
)

var update = flag.Bool("update", false, "write the files that are made from the agent's table of steps")

// TestStepsOfTheConductor binds the conductor's idea of the agent's steps, which it uses where no ramdisk's manifest is at hand, to the
// agent's own table: names, arguments, priorities, and what may be stopped when.
func TestStepsOfTheConductor(t *testing.T) {
	m := agentTable(t)
	b, err := json.MarshalIndent(m.Steps, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, filepath.Join("..", "..", "conductor", "engine", "agentsteps.json"), append(b, '\n'))
}

func agentTable(t *testing.T) step.Manifest {
	t.Helper()
	m, err := step.Describe(agent.Steps(linux.Machine{}, nil))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// golden holds a file to what the code makes, or makes it so.
func golden(t *testing.T, file string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(file)
	if err == nil && bytes.Equal(got, want) {
		return
	}
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s is not what agent/steps.go makes: run go test ./test/arch -run Steps -update and read the difference (-file +code)\n%s", filepath.Base(file), cmp.Diff(string(got), string(want)))
}
