package lab_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/initramfs/archive"
	"github.com/ingot-metal/ingot/initramfs/kernel"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
)

// Linux in a machine finds its controller over KCS and reads from it the address that IPMI over LAN has.
func TestControllerFromInside(t *testing.T) {
	needs(t)
	kit.NeedPrograms(t, "apt-get", "dpkg-deb", "go")
	dir := t.TempDir()
	cache, err := kernel.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	// the cloud kernel has no IPMI
	deb, err := kernel.Fetch(t.Context(), "linux-image-amd64", cache, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	tree, err := kernel.Open(t.Context(), deb, cache)
	if err != nil {
		t.Fatal(err)
	}
	set, err := tree.Select([]string{"ipmi_si", "ipmi_devintf"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CGO_ENABLED", "0")
	kit.Run(t, "go", "build", "-o", filepath.Join(dir, "init"), "./testdata/guest")
	files := archive.New()
	add := func(name string, data []byte, err error) {
		t.Helper()
		if err == nil {
			err = files.File(name, data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	init, err := os.ReadFile(filepath.Join(dir, "init"))
	add("init", init, err)
	var order strings.Builder
	for _, m := range set.LoadOrder() {
		data, err := tree.Read(m)
		add(m.Name+".ko", data, err)
		order.WriteString("/" + m.Name + ".ko\n")
	}
	add("modules", []byte(order.String()), nil)
	for _, err := range []error{files.Dir("dev", 0o755), files.CharDev("dev/console", 0o600, 5, 1)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	initrd, err := os.Create(filepath.Join(dir, "initrd"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := files.Write(initrd); err != nil {
		t.Fatal(err)
	}
	if err := initrd.Close(); err != nil {
		t.Fatal(err)
	}

	l, err := lab.Up(t.Context(), lab.Options{Name: name(t), Dir: dir, Nodes: []lab.NodeSpec{{
		MemoryMiB: 256, Kernel: tree.Vmlinuz(), Initrd: initrd.Name(), Append: "console=ttyS0 panic=-1 no_timer_check",
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Down(t.Context())
	m := l.Nodes()[0]
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	if err := m.WaitOff(limit(t)); err != nil {
		t.Error(err)
	}
	log, err := os.ReadFile(m.ConsoleLog)
	if err != nil {
		t.Fatal(err)
	}
	if want := "GUEST controller is " + m.BMCAddress + " 52:54:00:bc:00:01"; !strings.Contains(string(log), want) {
		t.Errorf("console lacks %q:\n%s", want, log)
	}
	for _, complaint := range []string{"ipmi_si: probe failed", "Invalid return from get global", "cannot clear"} {
		if strings.Contains(string(log), complaint) {
			t.Errorf("the kernel complains: %q\n%s", complaint, log)
		}
	}
	t.Logf("%s", grep(string(log), "ipmi"))
}

func grep(text, word string) string {
	var out []string
	for line := range strings.Lines(text) {
		if strings.Contains(strings.ToLower(line), word) {
			out = append(out, strings.TrimRight(line, "\r\n"))
		}
	}
	return strings.Join(out, "\n")
}
