package boot

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/u-root/u-root/pkg/efivarfs"
)

// efiFolder makes the folder by which a machine that was started by UEFI is known.
func efiFolder(t *testing.T, root string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, "sys/firmware/efi"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestCleanNVRAM(t *testing.T) {
	hd := func(label, file string) []byte {
		b, err := loadOption(label, file,
			disk.Partition{Number: 1, StartLBA: 2048, Sectors: 4096, GUID: "11111111-2222-4333-8444-555555555555"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	other := func(label string, nodes ...[]byte) []byte {
		path := append(slices.Concat(nodes...), 0x7f, 0xff, 4, 0)
		b := binary.LittleEndian.AppendUint32(nil, loadActive)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(path)))
		return append(append(b, utf16z(label)...), path...)
	}
	mac := node(3, 11, append([]byte{0x52, 0x54, 0, 1, 2, 3}, make([]byte, 27)...))
	for _, c := range []struct {
		args    string
		removed string
		order   []uint16
	}{
		{``, "Boot0001 Boot0002 Boot0005", []uint16{3, 0}},
		{`{"match_patterns": ["^UEFI PXE"]}`, "Boot0003", []uint16{1, 0, 2, 5}},
		{`{"match_patterns": ["."]}`, "Boot0000 Boot0001 Boot0002 Boot0003 Boot0005", nil},
		{`{"match_patterns": []}`, "", []uint16{1, 3, 0, 2, 5}},
		{`{"match_patterns": ["mac\\(5254"]}`, "Boot0003", []uint16{1, 0, 2, 5}},
	} {
		m := fake.NewMachine(t.TempDir())
		m.EFI = &fake.Variables{}
		efiFolder(t, m.Root())
		v := vars{m.EFI}
		set := func(name string, value []byte) {
			if err := v.write(name, value); err != nil {
				t.Fatal(err)
			}
		}
		set("Boot0000", other("UiApp", node(4, 6, make([]byte, 16))))
		set("Boot0001", hd("debian", `\EFI\debian\shimx64.efi`))
		set("Boot0002", hd("ubuntu", `\EFI\ubuntu\x.efi`))
		set("Boot0003", other("UEFI PXEv4", mac))
		set("Boot0005", other("moved", node(4, 4, utf16z(`\EFI\old\GRUBX64.EFI`))))
		set("Other", []byte{1})
		set("BootOrder", []byte{1, 0, 3, 0, 0, 0, 2, 0, 5, 0})
		set("BootNext", []byte{1, 0})
		for range 2 { // once more is no harm
			out, err := CleanNVRAMStep(m)(t.Context(),
				&step.Call{Args: json.RawMessage(c.args), Log: slog.New(slog.DiscardHandler), Facts: &step.Facts{}})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, r := range out.Result.(map[string]any)["removed"].([]Removed) {
				names = append(names, r.Name)
			}
			if got := strings.Join(names, " "); got != c.removed {
				t.Errorf("%s removed %q, want %q", c.args, got, c.removed)
			}
			c.removed = ""
		}
		raw, err := v.read("BootOrder")
		if err != nil {
			t.Fatal(err)
		}
		var order []uint16
		for ; len(raw) >= 2; raw = raw[2:] {
			order = append(order, binary.LittleEndian.Uint16(raw))
		}
		if !slices.Equal(order, c.order) {
			t.Errorf("%s: order %v, want %v", c.args, order, c.order)
		}
		next, err := v.read("BootNext")
		if err != nil || (len(next) == 0) == slices.Contains(order, 1) {
			t.Errorf("%s: next %v, %v", c.args, next, err)
		}
	}
	m := fake.NewMachine(t.TempDir())
	efiFolder(t, m.Root())
	if _, err := CleanNVRAMStep(m)(t.Context(),
		&step.Call{Log: slog.New(slog.DiscardHandler), Facts: &step.Facts{}}); !errors.Is(err, efivarfs.ErrNoFS) {
		t.Errorf("a UEFI machine whose variables can't be seen: %v", err)
	}
	m = fake.NewMachine(t.TempDir())
	if _, err := CleanNVRAMStep(m)(t.Context(),
		&step.Call{Log: slog.New(slog.DiscardHandler), Facts: &step.Facts{}}); err != nil {
		t.Errorf("without UEFI: %v", err)
	}
	if _, err := CleanNVRAMStep(m)(t.Context(),
		&step.Call{Args: json.RawMessage(`{"match_patterns": ["("]}`), Facts: &step.Facts{}}); err == nil {
		t.Error("a pattern that is none was taken")
	}
}

func FuzzPathText(f *testing.F) {
	f.Add([]byte{4, 1, 42, 0}, "x")
	f.Add(node(4, 4, utf16z(`\a.efi`)), "y")
	f.Fuzz(func(t *testing.T, path []byte, _ string) { _ = pathText(path) })
}
