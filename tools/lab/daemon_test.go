package lab_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
)

// launch starts a daemon with one machine that has tinyGuest.
func launch(t *testing.T) (lab.Status, string) {
	t.Helper()
	needs(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	disk := filepath.Join(dir, "tiny.raw")
	if err := os.WriteFile(disk, tinyGuest("disk"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := name(t)
	d := lab.Daemon{
		Options: lab.Options{
			Name: n, Dir: dir,
			Nodes: []lab.NodeSpec{
				{Name: "one", MemoryMiB: 64, Disks: []lab.DiskSpec{{File: disk, SizeBytes: 1 << 20}}}}},
		Conductors: []lab.ConductorSpec{{Bin: self, Config: "/etc/ingot.yaml", RESTAddr: "127.0.0.1:0",
			Log: filepath.Join(dir, "ingotd.log")}},
	}
	s, err := lab.Launch(t.Context(), []string{self, "run-lab"}, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var notUp *lab.NotUpError
		if err := lab.TakeDown(context.Background(), n, false); err != nil && !errors.As(err, &notUp) {
			t.Errorf("TakeDown: %v", err)
		}
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "lab.log"))
			t.Logf("daemon's log:\n%s", log)
		}
	})
	return s, n
}

func TestDaemon(t *testing.T) {
	s, n := launch(t)
	if len(s.Nodes) != 1 || s.Nodes[0].On || len(s.Conductors) != 1 || s.Conductors[0].PID == 0 ||
		s.Host.String() != "10.77.0.1" {
		t.Errorf("status = %+v", s)
	}
	names, err := lab.List()
	if err != nil || !strings.Contains(strings.Join(names, " "), n) {
		t.Errorf("List = %v, %v", names, err)
	}
	con, err := lab.DialConsole(t.Context(), n, "one")
	if err != nil {
		t.Fatal(err)
	}
	defer con.Close()
	if err := lab.PowerNode(t.Context(), n, "one", "on"); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(con)
	for lines.Scan() && !strings.Contains(lines.Text(), "HELLO from the disk") {
	}
	if _, err := con.Write([]byte("o")); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, 2*time.Minute, "the machine is off", func() bool {
		s, err := lab.Query(t.Context(), n)
		return err == nil && !s.Nodes[0].On
	})

	// A person at the console, who leaves it with Ctrl-].
	keyboard, hands, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer keyboard.Close()
	defer hands.Close()
	if _, err := hands.WriteString("x\x1d"); err != nil {
		t.Fatal(err)
	}
	var screen strings.Builder
	if err := lab.Terminal(t.Context(), n, "one", keyboard, &screen); err != nil ||
		!strings.Contains(screen.String(), "Console of one") {
		t.Errorf("Terminal: %v, %q", err, screen.String())
	}

	if err := lab.PowerNode(t.Context(), n, "two", "on"); err == nil || !strings.Contains(err.Error(), "no machine") {
		t.Errorf("PowerNode of a machine that is not there: %v", err)
	}
	if err := lab.PowerNode(t.Context(), n, "one", "explode"); err == nil ||
		!strings.Contains(err.Error(), "unknown power action") {
		t.Errorf("PowerNode: %v", err)
	}
	if _, err := lab.DialConsole(t.Context(), n, "two"); err == nil {
		t.Error("console of a machine that is not there")
	}
	if err := lab.PowerNode(t.Context(), n, "one", "on"); err != nil {
		t.Fatal(err)
	}
	if err := lab.TakeDown(t.Context(), n, true); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/run/netns/ingot-" + n, "/run/ingot-lab/" + n, s.Nodes[0].ConsoleLog} {
		if exists(p) {
			t.Errorf("%s is left", p)
		}
	}
	var notUp *lab.NotUpError
	if _, err := lab.Query(t.Context(), n); !errors.As(err, &notUp) {
		t.Errorf("Query after the end: %v", err)
	}
	if err := lab.TakeDown(t.Context(), n, true); !errors.As(err, &notUp) {
		t.Errorf("TakeDown after the end: %v", err)
	}
}

// When TakeDown returns all is gone, down to the last file: who asked for it may want to use the folder, or end.
func TestTakeDownPurges(t *testing.T) {
	s, n := launch(t)
	if err := lab.TakeDown(t.Context(), n, true); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/run/netns/ingot-" + n, "/run/ingot-lab/" + n, s.Nodes[0].ConsoleLog} {
		if exists(p) {
			t.Errorf("%s is left", p)
		}
	}
}

// A daemon that was killed: TakeDown removes what is left.
func TestDaemonKilled(t *testing.T) {
	s, n := launch(t)
	if err := lab.PowerNode(t.Context(), n, "one", "on"); err != nil {
		t.Fatal(err)
	}
	p, err := os.FindProcess(s.PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := lab.TakeDown(t.Context(), n, false); err != nil {
		t.Fatal(err)
	}
	if exists("/run/netns/ingot-"+n) || exists("/run/ingot-lab/"+n) {
		t.Error("leftovers")
	}
}

func TestLaunchReportsErrors(t *testing.T) {
	needs(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	_, err = lab.Launch(t.Context(), []string{self, "run-lab"}, lab.Daemon{
		Options: lab.Options{Name: name(t), Dir: dir},
		Conductors: []lab.ConductorSpec{{Bin: self, Config: "broken", RESTAddr: "127.0.0.1:0",
			Log: filepath.Join(dir, "ingotd.log")}},
	})
	if err == nil || !strings.Contains(err.Error(), "port is no number") {
		t.Errorf("Launch: %v, want the conductor's complaint", err)
	}
	_, err = lab.Launch(t.Context(), []string{self, "run-lab"}, lab.Daemon{Options: lab.Options{Name: "Bad Name"}})
	if err == nil || !strings.Contains(err.Error(), "lab name") {
		t.Errorf("Launch: %v, want the name refused", err)
	}
}
