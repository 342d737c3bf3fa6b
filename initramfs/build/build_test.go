package build

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/initramfs/archive"
	"github.com/ingot-metal/ingot/initramfs/kernel"
	"github.com/ingot-metal/ingot/test/kit"
)

// standIn compiles the program that stands in for the agent.
func standIn(t *testing.T) string {
	t.Helper()
	kit.NeedPrograms(t, "apt-get", "apt-cache", "go")
	file := filepath.Join(t.TempDir(), "agent")
	t.Setenv("CGO_ENABLED", "0")
	kit.Run(t, "go", "build", "-trimpath", "-ldflags", "-s -w -buildid= -X main.version=1.2.3", "-o", file,
		"./testdata/agent")
	return file
}

func build(t *testing.T, o Options) *Report {
	t.Helper()
	if o.Out == "" {
		o.Out = t.TempDir()
	}
	r, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestLab(t *testing.T) {
	agent := standIn(t)
	r := build(t, Options{Agent: agent})
	m := r.Manifest
	if m.Profile != "lab" || m.Agent.Version != "1.2.3" || !strings.Contains(m.KernelPackage, "cloud") ||
		!strings.Contains(string(m.Steps), "nothing") {
		t.Errorf("manifest = %+v", m)
	}
	if m.Initramfs.Size > 12e6 {
		t.Errorf("initramfs has %d bytes, the goal is 12 MB", m.Initramfs.Size)
	}
	var b bytes.Buffer
	if err := r.Print(&b, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{m.KernelRelease, "kernel modules", "virtio", m.Initramfs.SHA256,
		"not in this kernel"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, &b)
		}
	}

	again := build(t, Options{Agent: agent})
	if again.Manifest.Initramfs != m.Initramfs || again.Manifest.Kernel != m.Kernel {
		t.Errorf("two builds differ: %+v, %+v", m.Initramfs, again.Manifest.Initramfs)
	}

	t.Run("boots", func(t *testing.T) {
		kit.Boot(t, kit.VM{
			Kernel: filepath.Join(r.Dir, m.Kernel.File), Initrd: filepath.Join(r.Dir, m.Initramfs.File),
			Append: m.Cmdline, Args: []string{"-nic", "user,restrict=on,model=virtio-net-pci"},
			Until: `STAND-IN links=eth0,lo`,
		})
	})
	t.Run("inspect finds damage", func(t *testing.T) { inspectDamage(t, r.Dir) })
}

// TestServer boots the ramdisk for real machines in a virtual one, and its shell runs.
func TestServer(t *testing.T) {
	r := build(t, Options{Agent: standIn(t), Profile: "server"})
	m := r.Manifest
	if m.Initramfs.Size > 40e6 {
		t.Errorf("initramfs has %d bytes, the goal is 40 MB", m.Initramfs.Size)
	}
	kit.Boot(t, kit.VM{
		Kernel: filepath.Join(r.Dir, m.Kernel.File), Initrd: filepath.Join(r.Dir, m.Initramfs.File), Append: m.Cmdline,
		Args:  []string{"-nic", "user,restrict=on,model=virtio-net-pci"},
		Until: `STAND-IN links=eth0,lo shell on Linux \(<nil>\)`,
	})
	var b bytes.Buffer
	if err := r.Print(&b, true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"mlx5_core", "shell", "firmware files"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, &b)
		}
	}
}

// inspectDamage breaks copies of a good ramdisk in all ways that happen to files.
func inspectDamage(t *testing.T, good string) {
	edit := func(change func(*Manifest)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			m, err := ReadManifest(dir)
			if err != nil {
				t.Fatal(err)
			}
			change(m)
			data, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			put(t, dir, ManifestFile, data)
		}
	}
	// sealed replaces the initramfs and makes size and digest of the manifest fit.
	sealed := func(data []byte) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			size, sum, err := writeSummed(filepath.Join(dir, InitramfsFile), func(w io.Writer) error {
				_, err := w.Write(data)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			edit(func(m *Manifest) { m.Initramfs.Size, m.Initramfs.SHA256 = size, sum })(t, dir)
		}
	}
	for name, tc := range map[string]struct {
		change func(t *testing.T, dir string)
		want   string
	}{
		"no manifest": {func(t *testing.T, dir string) { remove(t, dir, ManifestFile) }, "holds no ramdisk"},
		"manifest not JSON": {func(t *testing.T, dir string) { put(t, dir, ManifestFile, []byte("<html>")) },
			"not a ramdisk's manifest"},
		"other format":      {edit(func(m *Manifest) { m.Format = 7 }), "format is 7"},
		"digest malformed":  {edit(func(m *Manifest) { m.Kernel.SHA256 = "abc" }), "malformed"},
		"file name escapes": {edit(func(m *Manifest) { m.Kernel.File = "../vmlinuz" }), "plain file name"},
		"no kernel":         {func(t *testing.T, dir string) { remove(t, dir, KernelFile) }, "read the kernel"},
		"initramfs short": {func(t *testing.T, dir string) { truncate(t, dir, InitramfsFile, 1000) },
			"has 1000 bytes"},
		"boot loader damaged": {func(t *testing.T, dir string) { flip(t, dir, "grubx64.efi") },
			"the boot loader grubx64.efi has SHA-256"},
		"loader's name escapes": {edit(func(m *Manifest) { m.Loaders[0].File = "../x" }), "plain file name"},
		"one bit flipped":       {func(t *testing.T, dir string) { flip(t, dir, InitramfsFile) }, "SHA-256"},
		"initramfs not zstd":    {sealed([]byte("no archive")), "not zstd"},
		"agent exchanged":       {edit(func(m *Manifest) { m.Agent.SHA256 = strings.Repeat("0", 64) }), "/init"},
		"module not there": {edit(func(m *Manifest) { m.Modules = append(m.Modules, Module{"floppy", 1}) }),
			"floppy"},
		"module not listed": {edit(func(m *Manifest) { m.Modules = m.Modules[1:] }), "not in the manifest"},
		"unpacked size":     {edit(func(m *Manifest) { m.Initramfs.UnpackedSize++ }), "unpacks to"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(good)); err != nil {
				t.Fatal(err)
			}
			tc.change(t, dir)
			if _, err := Inspect(dir); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want one with %q", err, tc.want)
			}
		})
	}
}

// TestShellModule holds the shell's module, which no pattern of the main one reaches, to the same rules.
func TestShellModule(t *testing.T) {
	kit.NeedPrograms(t, "go")
	t.Setenv("GOFLAGS", "")
	t.Chdir("../shell")
	if out := kit.Run(t, "gofmt", "-l", "."); out != "" {
		t.Errorf("not formatted: %s", out)
	}
	kit.Run(t, "go", "vet", ".")
	for c := range strings.FieldsSeq(kit.Run(t, "go", "list", "tool")) {
		if !strings.HasPrefix(c, "github.com/u-root/u-root/cmds/") {
			t.Errorf("%s is no command of u-root", c)
		}
	}
}

func put(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, dir, name string, size int64) {
	t.Helper()
	if err := os.Truncate(filepath.Join(dir, name), size); err != nil {
		t.Fatal(err)
	}
}

func flip(t *testing.T, dir, name string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 4
	put(t, dir, name, data)
}

func TestExtras(t *testing.T) {
	agent := standIn(t)
	dir := t.TempDir()
	put(t, dir, "notes.txt", []byte("hello"))
	fw := t.TempDir()
	put(t, fw, "card.bin", []byte("firmware"))
	r := build(t, Options{Agent: agent, Overlay: []string{dir}, Firmware: fw, CA: "testdata/ca.pem",
		Modules: []string{"raid1", "floppy?"}})
	data, err := os.ReadFile(filepath.Join(r.Dir, InitramfsFile))
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := archive.Read(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"notes.txt": "hello", "lib/firmware/card.bin": "firmware"} {
		if string(got[name].Data) != want {
			t.Errorf("%s = %q, want %q", name, got[name].Data, want)
		}
	}
	if ca := string(got["etc/ingot/ca.pem"].Data); !strings.HasPrefix(ca, "-----BEGIN CERTIFICATE-----") ||
		strings.Contains(ca, "PRIVATE") {
		t.Errorf("pinned CA = %q", ca)
	}
	names := map[string]bool{}
	for _, m := range r.Manifest.Modules {
		names[m.Name] = true
	}
	if !names["raid1"] || !names["md_mod"] {
		t.Error("raid1 was asked for; it or what it needs is missing")
	}
}

func TestRefuses(t *testing.T) {
	agent := standIn(t)
	notPEM := filepath.Join(t.TempDir(), "ca")
	if err := os.WriteFile(notPEM, []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		o    Options
		want string
	}{
		"no such profile":   {Options{Profile: "toaster"}, "choose one of lab, server"},
		"no such package":   {Options{Kernel: "linux-image-0.0.1-none"}, "linux-image-0.0.1-none"},
		"no such file":      {Options{Kernel: "/nowhere/linux.deb"}, "/nowhere/linux.deb"},
		"not a package":     {Options{Kernel: deb(t, "hello")}, "not a Debian package"},
		"no such module":    {Options{Modules: []string{"floppy", "zip_drive"}}, "no module zip_drive"},
		"CA no certificate": {Options{CA: notPEM}, "does not begin with a certificate"},
		"agent no agent":    {Options{Agent: "/bin/true"}, "not an ingot-agent"},
		"overlay missing":   {Options{Overlay: []string{"/nowhere"}}, "/nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.o.Out = filepath.Join(t.TempDir(), "out")
			if tc.o.Agent == "" {
				tc.o.Agent = agent
			}
			if _, err := Build(t.Context(), tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want one with %q", err, tc.want)
			}
			if _, err := os.Stat(filepath.Join(tc.o.Out, ManifestFile)); err == nil {
				t.Error("a manifest was left behind")
			}
		})
	}
}

func deb(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kernel.deb")
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestProfilesFitTheirKernels holds every profile against the kernel it is made for: names of modules change between
// releases.
func TestProfilesFitTheirKernels(t *testing.T) {
	kit.NeedPrograms(t, "apt-get", "apt-cache")
	cache, err := kernel.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range profiles {
		t.Run(name, func(t *testing.T) {
			deb, err := kernel.Fetch(t.Context(), p.kernel, cache, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			tree, err := kernel.Open(t.Context(), deb, cache)
			if err != nil {
				t.Fatal(err)
			}
			set, err := tree.Select(p.modules)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d modules, absent: %v", len(set.Modules), set.Absent)
		})
	}
}

// TestStepFolderAsWritten: a step's folder has the same place in the ramdisk, however its path is written.
func TestStepFolderAsWritten(t *testing.T) {
	above := t.TempDir()
	own := filepath.Join(above, "flash")
	if err := errors.Join(os.Mkdir(own, 0o755), os.WriteFile(filepath.Join(own, "step.json"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ in, dir string }{{above, own}, {above, own + "/"}, {above, "flash"}, {above, "./flash"},
		{above, "./flash/"}, {above, "flash/."}, {own, "."}, {own, "../flash"}} {
		t.Chdir(c.in)
		o, to := Options{Steps: []string{c.dir}}, t.TempDir()
		a := archive.New()
		if err := errors.Join(gatherSteps(o, to), addFiles(a, o)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(to, "flash/step.json")); err != nil {
			t.Errorf("%s: the agent is not asked about the step: %v", c.dir, err)
		}
		var b bytes.Buffer
		if _, err := a.Write(&b); err != nil {
			t.Fatal(err)
		}
		in, _, err := archive.Read(&b)
		if _, ok := in["usr/lib/ingot/steps/flash/step.json"]; !ok || err != nil {
			t.Errorf("%s: the ramdisk has %v (%v)", c.dir, slices.Sorted(maps.Keys(in)), err)
		}
	}
}

// TestSiteSteps: steps of overlays and of --step come together as they will lie in the ramdisk, the last one winning,
// and the agent is asked about them.
func TestSiteSteps(t *testing.T) {
	low, high, own := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "flash")
	for _, f := range []struct{ dir, name, text string }{
		{low, "usr/lib/ingot/steps/burn/step.json", "low"}, {low, "usr/lib/ingot/steps/burn/run", "low"},
		{high, "usr/lib/ingot/steps/burn/step.json", "high"}, {own, "step.json", "own"}, {own, "bin/run", "own"},
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(f.dir, f.name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(f.dir, f.name), []byte(f.text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	to := filepath.Join(t.TempDir(), "steps")
	o := Options{Overlay: []string{low, t.TempDir(), high}, Steps: []string{own}}
	if err := gatherSteps(o, to); err != nil {
		t.Fatal(err)
	}
	a := archive.New()
	if err := addFiles(a, o); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := a.Write(&b); err != nil {
		t.Fatal(err)
	}
	in, _, err := archive.Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"burn/step.json": "high", "burn/run": "low", "flash/step.json": "own",
		"flash/bin/run": "own"} {
		got, err := os.ReadFile(filepath.Join(to, name))
		if err != nil || string(got) != want {
			t.Errorf("the agent is asked about %s = %q, %v; want %q", name, got, err, want)
		}
		if got := in["usr/lib/ingot/steps/"+name]; string(got.Data) != want {
			t.Errorf("the ramdisk has %s = %q, want %q", name, got.Data, want)
		}
		if fi, err := os.Stat(filepath.Join(to, name)); err != nil || fi.Mode().Perm()&0o100 == 0 {
			t.Errorf("%s can't be run any more: %v, %v", name, fi, err)
		}
	}
	if err := gatherSteps(Options{Steps: []string{filepath.Join(own, "step.json")}}, t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), "is not a folder") {
		t.Errorf("a file for a step: %v", err)
	}
}
