package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
)

// TestDemo runs, with INGOT_FULL, what `make demo-openstack` runs.
func TestDemo(t *testing.T) {
	if os.Getenv("INGOT_FULL") == "" {
		return
	}
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "qemu-system-x86_64", "ip", "openstack", "genisoimage", "ssh", "ssh-keygen")
	t.Chdir("../../..") // where make runs it
	var out bytes.Buffer
	if err := run(t.Context(), nil, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	t.Log(out.String())
	for _, want := range []string{`server create web .*\n +ACTIVE after \d+ s\n +ssh debian@10\.77\.0\.1\d\d after \d+ s`,
		`server stop web\n +SHUTOFF`, `server start web\n +ACTIVE.*\n +ssh`, `server rescue .*\n +RESCUE`,
		`server unrescue web\n +ACTIVE.*\n +ssh`,
		`server rebuild web\n\nconductor-\d, which owns the node, is killed .*\n +ACTIVE.*\n +ssh`,
		`server delete .*\n +gone, and the machine is clean`} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("it does not say %q", want)
		}
	}
	for _, gone := range []string{pidFile, "/run/netns/ingot-" + rackName} {
		if _, err := os.Stat(gone); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", gone, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "os-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestDownWithoutADemo(t *testing.T) {
	t.Chdir(t.TempDir())
	var out bytes.Buffer
	err := run(t.Context(), []string{"-down"}, &out)
	if err != nil || !strings.Contains(out.String(), "No demo is up.") {
		t.Errorf("without a demo: %v, %s", err, &out)
	}
	if err := os.MkdirAll(filepath.Dir(pidFile), 0o755); err != nil {
		t.Fatal(err)
	}
	// The number of a demo that died belongs to another program by now.
	if err := os.WriteFile(pidFile, []byte("1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), []string{"-down"}, &out); err != nil {
		t.Errorf("with the number of another program: %v", err)
	}
}

func TestOneDemoAtATime(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := claim(); err != nil {
		t.Fatal(err)
	}
	if err := claim(); err == nil || !strings.Contains(err.Error(), "make demo-openstack-down") {
		t.Errorf("a second demo: %v", err)
	}
	if b, err := os.ReadFile(pidFile); err != nil || string(b) != strconv.Itoa(os.Getpid()) {
		t.Errorf("%s has %s, %v", pidFile, b, err)
	}
}

func TestImageThatIsNotThere(t *testing.T) {
	err := run(t.Context(), []string{"-image", "windows"}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "there are debian and tiny") {
		t.Errorf("an unknown image: %v", err)
	}
}
