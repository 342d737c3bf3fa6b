package disk

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
)

// TestChoiceIsExplained holds that what package rootdevice says reaches the operator: remedy, retry, and the choice in
// JSON.
func TestChoiceIsExplained(t *testing.T) {
	if _, err := ParseHints(json.RawMessage(`{"sizes": 1}`)); err == nil || step.AsError(err).Remedy == "" {
		t.Errorf("ParseHints: %v without a remedy", err)
	}
	_, err := Choose(nil, nil)
	if e := step.AsError(err); err == nil || !e.Retryable || e.Remedy == "" {
		t.Errorf("no disk: %+v, want a step.Error that may be tried again", err)
	}
	hints, err := ParseHints(json.RawMessage(`{"serial": "Y"}`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Choose([]Disk{{Name: "/dev/sda", Size: 5 << 30, Serial: "X"}, {Name: "/dev/sdb", Size: 6 << 30}}, hints)
	for _, w := range []string{"/dev/sda (serial is x, wanted Y)", "/dev/sdb (serial is not known, wanted Y)"} {
		if err == nil || !strings.Contains(err.Error(), w) || step.AsError(err).Remedy == "" ||
			step.AsError(err).Retryable {
			t.Errorf("Choose: %v, want %q and a remedy", err, w)
		}
	}
	c, err := Choose([]Disk{{Name: "/dev/sda", Size: 5 << 30, Serial: "Y"}}, hints)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var back struct{ Name, Why string }
	if err := json.Unmarshal(b, &back); err != nil || back.Name != "/dev/sda" || back.Why != c.Why || c.Why == "" {
		t.Errorf("Choice in JSON: %s, %v", b, err)
	}
}

func TestOpenVerified(t *testing.T) {
	m := fake.NewDisks(t.TempDir())
	m.Add(fake.DiskSpec{Name: "vda", Size: 1 << 30, Serial: "one"})
	disks, err := List(t.Context(), m.Root())
	if err != nil {
		t.Fatal(err)
	}
	id := disks[0].Identity()
	dev, d, err := OpenVerified(t.Context(), m, id)
	if err != nil || d.Name != "/dev/vda" {
		t.Fatalf("OpenVerified = %v, %v", d, err)
	}
	if _, _, err := OpenVerified(t.Context(), m, id); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("second open: %v, want busy", err)
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}

	// The disk is swapped for another one of the same name and size.
	m.Remove("vda")
	m.Add(fake.DiskSpec{Name: "vda", Size: 1 << 30, Serial: "two"})
	if _, _, err := OpenVerified(t.Context(), m, id); err == nil ||
		!strings.Contains(err.Error(), `serial is "two", not "one"`) {
		t.Errorf("open of a swapped disk: %v", err)
	}
	// Gone altogether.
	m.Remove("vda")
	if _, _, err := OpenVerified(t.Context(), m, id); err == nil || !strings.Contains(err.Error(), "is gone") {
		t.Errorf("open of a pulled disk: %v", err)
	}
	if _, _, err := OpenVerified(t.Context(), m, Identity{Name: "/dev/vda", Size: 1 << 30}); err == nil {
		t.Error("a disk that nothing identifies was opened")
	}
}

// A root disk that was made in this plan goes before what anybody said before.
func TestRootOf(t *testing.T) {
	hints := func(raw string) Hints {
		h, err := ParseHints(json.RawMessage(raw))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	given, made := hints(`{"serial":"old"}`), hints(`{"serial":"new"}`)
	f := &step.Facts{}
	if got := RootOf(f, given); got.String() != given.String() {
		t.Errorf("RootOf = %s, want %s", got, given)
	}
	SetRoot(f, made)
	if got := RootOf(f, given); got.String() != made.String() {
		t.Errorf("RootOf = %s, want %s", got, made)
	}
	SetRoot(f, nil)
	if got := RootOf(f, given); got.String() != given.String() {
		t.Errorf("RootOf = %s after the disk was removed, want %s", got, given)
	}
}
