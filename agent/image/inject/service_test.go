package inject

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/test/kit"
)

// installed is a machine with a disk on which a system was installed, and booted into the agent for service.
func installed(t *testing.T, img []byte, sector int) *world {
	t.Helper()
	w := &world{m: fake.NewDisks(t.TempDir()), facts: &step.Facts{}, size: int64(len(img))}
	w.d = w.m.Add(fake.DiskSpec{Name: "vda", Serial: "test-1", Size: w.size, SectorSize: sector, Record: true})
	if _, err := w.d.WriteAt(img, 0); err != nil {
		t.Fatal(err)
	}
	w.facts.Set(step.During{}, step.Service)
	return w
}

func (w *world) content(t *testing.T) []byte {
	t.Helper()
	b := make([]byte, w.size)
	if _, err := w.d.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

func (w *world) save(t *testing.T, at, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "part")
	if err := os.WriteFile(path, w.content(t)[at:at+size], 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestIntoInstalledSystem puts files into the partitions of a system that was shut down, and changes nothing else on
// its disk.
func TestIntoInstalledSystem(t *testing.T) {
	const from = 6 * mib
	for name, script := range map[string]string{
		"gpt": gptScript,
		"mbr": "label: dos\nstart=2048, size=8192, type=ef\nstart=10240, size=14336, type=5\nstart=12288, size=12288, type=83\n",
	} {
		t.Run(name, func(t *testing.T) {
			img := system(t, 14*mib, script, map[int64]string{mib: esp(t, 4*mib), from: root(t, 6*mib)})
			w := installed(t, img, 512)
			last := map[string]any{"gpt": 3, "mbr": 5}[name]
			args := object{"root_device": object{"serial": "test-1"}, "files": []object{
				{"path": "/etc/hostname", "content": b64("serviced\n")},
				{"path": "/etc/app/secret", "content": b64("s3cret\n"), "mode": "0600", "owner": "alice"},
				{"path": "/top", "partition": last, "content": b64("top")},
				{"path": "/EFI/ingot/mark.txt", "content": b64("on the ESP")},
				{"path": "/etc/group", "deleted": true},
			}}
			r, err := w.inject(t, args)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Files) != 5 || r.Files[0].What != "replaced" || r.Files[3].FileSystem != "vfat" ||
				r.Unlabelled != 2 {
				t.Errorf("the result is %+v", r)
			}
			now := w.content(t)
			for _, span := range [][2]int{{0, mib}, {5 * mib, from}, {12 * mib, 14 * mib}} {
				if !bytes.Equal(now[span[0]:span[1]], img[span[0]:span[1]]) {
					t.Errorf("bytes %d to %d, outside of the file systems, were changed", span[0], span[1])
				}
			}
			part := w.save(t, from, 6*mib)
			kit.Run(t, "e2fsck", "-f", "-n", part)
			for name, want := range map[string]string{"/etc/hostname": "serviced\n", "/etc/app/secret": "s3cret\n",
				"/top": "top"} {
				got := filepath.Join(t.TempDir(), "f")
				kit.Run(t, "debugfs", "-R", "dump "+name+" "+got, part)
				if b, err := os.ReadFile(got); err != nil || string(b) != want {
					t.Errorf("%s has %q, %v, want %q", name, b, err, want)
				}
			}
			fat := w.save(t, mib, 4*mib)
			kit.Run(t, "fsck.fat", "-n", fat)
			if got := kit.Run(t, "mtype", "-i", fat, "::/efi/INGOT/mark.TXT"); got != "on the ESP" {
				t.Errorf("on the ESP is %q", got)
			}
			// Run again, it puts the same again.
			if r, err := w.inject(t, args); err != nil || len(r.Files) != 5 || r.Files[1].What != "replaced" ||
				r.Files[4].What != "absent" {
				t.Errorf("a second time: %+v, %v", r, err)
			}
		})
	}
}

// TestUncleanIsRefused holds that file systems of a system that was cut off are not changed, and that the error says
// how to unmount them cleanly.
func TestUncleanIsRefused(t *testing.T) {
	debug := func(request string) func(t *testing.T, root, esp string) {
		return func(t *testing.T, root, _ string) { kit.Run(t, "debugfs", "-w", "-R", request, root) }
	}
	marked := func(at int, value byte) func(t *testing.T, root, esp string) {
		return func(t *testing.T, _, esp string) {
			b, err := os.ReadFile(esp)
			if err != nil {
				t.Fatal(err)
			}
			b[at] = value
			if err := os.WriteFile(esp, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, root, esp string)
		file  object
		word  string
		after string // what the remedy has in it
	}{
		"journal": {debug("feature needs_recovery"), object{"path": "/etc/x", "content": ""},
			"journal has not been replayed", "power off --soft"},
		"not clean": {debug("set_super_value state 0"),
			object{"path": "/x", "partition": "cloudimg-rootfs", "content": ""}, "not marked as clean",
			"power off --soft"},
		"orphans": {debug("set_super_value last_orphan 12"), object{"path": "/etc/x", "content": ""},
			"wait to be deleted", "power off --soft"},
		"errors": {debug("set_super_value state 3"), object{"path": "/x", "partition": 3, "content": ""},
			"found errors", "another partition"},
		"fat": {marked(0x25, 1), object{"path": "/EFI/x", "content": ""}, "was not unmounted",
			"power off --soft"},
		"fat by label": {marked(0x25, 1), object{"path": "/x", "partition": "UEFI", "content": ""},
			"was not unmounted", "power off --soft"},
		"another is torn": {debug("feature needs_recovery"), object{"path": "/srv/x", "content": ""},
			"journal has not been replayed", "power off --soft"},
		"no room": {nil, object{"path": "/etc/x", "content": b64(strings.Repeat("x", 6*mib))}, "no room",
			"make room"},
		"no such folder": {nil, object{"path": "/srv/x", "content": ""},
			"no partition of the system has a folder /srv", "name the partition"},
	} {
		t.Run(name, func(t *testing.T) {
			r, e := root(t, 6*mib), esp(t, 4*mib)
			if c.spoil != nil {
				c.spoil(t, r, e)
			}
			img := system(t, 14*mib, gptScript, map[int64]string{mib: e, 6 * mib: r})
			w := installed(t, img, 512)
			args := object{"root_device": object{"name": "/dev/vda"}, "files": []object{c.file}}
			if _, err := w.inject(t, args); err == nil || !strings.Contains(err.Error(), c.word) ||
				!strings.Contains(step.AsError(err).Remedy, c.after) {
				t.Errorf("%v (%s), want %q and %q", err, step.AsError(err).Remedy, c.word, c.after)
			}
			if !bytes.Equal(w.content(t), img) {
				t.Error("the disk was changed")
			}
		})
	}
}

// TestWhichDisk holds that an installed system is looked for where a deployment would put one, and in service alone.
func TestWhichDisk(t *testing.T) {
	img := system(t, 14*mib, gptScript, map[int64]string{mib: esp(t, 4*mib), 6 * mib: root(t, 6*mib)})
	m := fake.NewDisks(t.TempDir())
	for _, n := range []string{"vda", "vdb", "vdc"} {
		d := m.Add(fake.DiskSpec{Name: n, Serial: "disk-" + n,
			Size: map[string]int64{"vda": 6 << 30, "vdb": 5 << 30, "vdc": 7 << 30}[n]})
		if n == "vdc" {
			continue
		}
		if _, err := d.WriteAt(img, 0); err != nil {
			t.Fatal(err)
		}
	}
	run := func(phase step.Phase, hints string) (string, error) {
		var disks []string
		args := `{"files": [{"path": "/etc/hostname", "content": ""}], "root_device": ` + hints + `}`
		facts := &step.Facts{}
		facts.Set(step.During{}, phase)
		log := slog.New(slog.NewTextHandler(writer(func(b []byte) {
			if _, rest, ok := strings.Cut(string(b), "disk=\""); ok {
				disks = append(disks, rest[:len("/dev/vda")])
			}
		}), nil))
		_, err := Step(m)(t.Context(),
			&step.Call{Args: json.RawMessage(args), Log: log, Facts: facts, Report: func(step.Progress) {}})
		return strings.Join(disks, " "), err
	}
	for hints, want := range map[string]string{`null`: "/dev/vdb", `{"serial": "disk-vda"}`: "/dev/vda"} {
		if got, err := run(step.Service, hints); err != nil || got != want {
			t.Errorf("hints %s: %s, %v, want %s", hints, got, err, want)
		}
	}
	for hints, word := range map[string]string{`{"serial": "disk-vdc"}`: "no partition table",
		`{"serial": "none"}`: "no disk fits", `{"sirial": "x"}`: "sirial"} {
		if _, err := run(step.Service, hints); err == nil || !strings.Contains(err.Error(), word) ||
			step.AsError(err).Remedy == "" {
			t.Errorf("hints %s: %v, want %q", hints, err, word)
		}
	}
	for _, phase := range []step.Phase{step.Deploy, step.Clean} {
		if _, err := run(phase, `null`); err == nil || !strings.Contains(err.Error(), "no image has been written") {
			t.Errorf("in %s: %v", phase, err)
		}
	}
	// An open disk stays with its holder.
	disks, err := disk.List(t.Context(), m.Root())
	if err != nil {
		t.Fatal(err)
	}
	dev, err := m.OpenExclusive(t.Context(), disks[1].Name)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if _, err := run(step.Service, `null`); err == nil || !strings.Contains(step.AsError(err).Remedy, "release it") {
		t.Errorf("a disk in use: %v", err)
	}
}

type writer func(b []byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

// TestPowerCutInService cuts the power after every write. The file system is as before, as wanted, or says itself that
// it has to be repaired, which e2fsck then does without asking; and the step does not touch it before that.
func TestPowerCutInService(t *testing.T) {
	const from = 6 * mib
	img := system(t, 14*mib, gptScript, map[int64]string{mib: esp(t, 4*mib), from: root(t, 6*mib)})
	w := installed(t, img, 512)
	args := object{"root_device": object{"name": "/dev/vda"},
		"files": []object{{"path": "/etc/hostname", "content": b64("serviced\n")},
			{"path": "/etc/a/b/c", "content": b64(strings.Repeat("c", 9000))}}}
	if _, err := w.inject(t, args); err != nil {
		t.Fatal(err)
	}
	ops, done := w.d.History(), w.content(t)
	if len(ops) < 4 {
		t.Fatalf("only %d writes", len(ops))
	}
	repaired := 0
	for n := range len(ops) + 1 {
		cut := installed(t, img, 512)
		for _, op := range ops[:n] {
			if len(op.Data) > 0 {
				if _, err := cut.d.WriteAt(op.Data, op.Off); err != nil {
					t.Fatal(err)
				}
			}
		}
		now := cut.content(t)
		if bytes.Equal(now, img) || bytes.Equal(now, done) {
			continue
		}
		if _, err := cut.inject(t, args); err == nil || !strings.Contains(err.Error(), "not marked as clean") ||
			!bytes.Equal(cut.content(t), now) {
			t.Errorf("after %d of %d writes the step runs again: %v", n, len(ops), err)
		}
		part := cut.save(t, from, 6*mib)
		kit.Run(t, "sh", "-c", `e2fsck -y "$1"; test $? -le 1`, "sh", part)
		kit.Run(t, "e2fsck", "-f", "-n", part)
		repaired++
	}
	if repaired == 0 {
		t.Error("no cut left anything to repair")
	}
}
