package image

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/step"
)

func TestMemoryFor(t *testing.T) {
	for _, c := range []struct {
		cores    int
		ram, mib int64
	}{
		{1, 512 * mib, 48}, {4, 512 * mib, 48}, {4, 1 << 40, 48}, {5, 1 << 40, 60}, {16, 1 << 40, 192},
		{16, 512 * mib, 128}, {64, 100 * mib, 48}, {128, 1 << 40, 1536}, {16, 0, 48},
	} {
		if got := MemoryFor(c.cores, c.ram); got != c.mib*mib {
			t.Errorf("%d cores, %d MiB of RAM: %d MiB, want %d", c.cores, c.ram/mib, got/mib, c.mib)
		}
	}
}

// TestMoreMemoryMoreAtOnce follows image_memory from the step's arguments to what it allows.
func TestMoreMemoryMoreAtOnce(t *testing.T) {
	further := func(args string) (int, error) {
		all := `{"image_source": "http://x", "allow_unverified": true` + args + `}`
		a, err := parseArgs(&step.Call{Args: json.RawMessage(all)})
		return a.further, err
	}
	for _, c := range []struct {
		args string
		want int
	}{
		{`, "image_memory": 48`, 0}, {`, "image_memory": 59`, 0}, {`, "image_memory": 60`, 1},
		{`, "image_memory": 72`, 2},
	} {
		if got, err := further(c.args); err != nil || got != c.want {
			t.Errorf("%s: for %d further cores, %v; want %d", c.args, got, err, c.want)
		}
	}
	if _, err := further(`, "image_memory": 1000000`); err == nil ||
		!strings.Contains(err.Error(), "half of this machine's") {
		t.Errorf("a TiB: %v", err)
	}
}
