package against

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
)

// repository makes one with a commit for each Makefile, and enters it.
func repository(t *testing.T, makefiles ...string) {
	t.Helper()
	kit.NeedPrograms(t, "git", "make")
	t.Chdir(t.TempDir())
	kit.Run(t, "git", "init", "-q")
	for _, text := range makefiles {
		if err := os.WriteFile("Makefile", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		kit.Run(t, "git", "add", "Makefile")
		kit.Run(t, "git", "-c", "user.name=test", "-c", "user.email=test@example.org", "commit", "-q", "-m", "next")
	}
}

// clean checks that no worktree is left, neither in git's list nor on the disk.
func clean(t *testing.T) {
	t.Helper()
	if list := strings.TrimSpace(kit.Run(t, "git", "worktree", "list")); strings.Contains(list, "\n") {
		t.Errorf("worktrees are left:\n%s", list)
	}
	if left, err := filepath.Glob("build/base/*/tree"); err != nil || len(left) > 0 {
		t.Errorf("left on the disk: %v %v", left, err)
	}
}

func comparison(revision string) (*Comparison, *bytes.Buffer) {
	var log bytes.Buffer
	return &Comparison{Revision: revision, Rounds: 5, Out: &log, Log: &log}, &log
}

const (
	first  = "build:\n\tmkdir bin && echo first >bin/ingotd\n"
	second = "build:\n\tmkdir bin && echo second >bin/ingotd\n"
	broken = "build:\n\tmkdir bin && echo half >bin/ingotd\n\techo conductor.go:7: syntax error >&2; exit 1\n"
)

func TestBuildMakesTheCommitOnce(t *testing.T) {
	repository(t, first, second)
	for _, again := range []bool{false, true} {
		c, log := comparison("HEAD~1")
		bin, err := c.Build(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(filepath.Join(bin, "ingotd")); err != nil || string(text) != "first\n" {
			t.Errorf("ingotd of HEAD~1 is %q (%v), want that of the first commit", text, err)
		}
		if strings.Contains(log.String(), "built before") != again {
			t.Errorf("second build %v: %s", again, log)
		}
		clean(t)
	}
}

func TestBuildFailureLeavesNothing(t *testing.T) {
	repository(t, broken)
	for range 2 { // the second time, too: nothing half built is taken for programs
		c, _ := comparison("HEAD")
		if bin, err := c.Build(t.Context()); err == nil || !strings.Contains(err.Error(), "syntax error") {
			t.Errorf("Build = %q, %v; want the compiler's message", bin, err)
		}
		clean(t)
	}
}

func TestUnknownRevision(t *testing.T) {
	repository(t, first)
	for _, revision := range []string{"nonesuch", "", "-n", "HEAD~7", "0123456789012345678901234567890123456789"} {
		c, _ := comparison(revision)
		if bin, err := c.Build(t.Context()); err == nil || !strings.Contains(err.Error(), "is no commit") {
			t.Errorf("revision %q: %q, %v; want that it is no commit", revision, bin, err)
		}
	}
	clean(t)
}

// TestBuildReplacesLeftWorktree: a run that was killed leaves a worktree, with or without git's knowledge and lock.
func TestBuildReplacesLeftWorktree(t *testing.T) {
	repository(t, first)
	commit := strings.TrimSpace(kit.Run(t, "git", "rev-parse", "HEAD"))
	dir := filepath.Join("build", "base", commit)
	tree := filepath.Join(dir, "tree")
	add := func() { kit.Run(t, "git", "worktree", "add", "--quiet", "--detach", tree, commit) }
	for name, leave := range map[string]func() error{
		"dirty": func() error {
			add()
			return os.WriteFile(filepath.Join(tree, "Makefile"), []byte(broken), 0o644)
		},
		"locked":            func() error { add(); kit.Run(t, "git", "worktree", "lock", tree); return nil },
		"without its files": func() error { add(); return os.RemoveAll(tree) },
		"locked, without its link": func() error {
			add()
			kit.Run(t, "git", "worktree", "lock", tree)
			return os.Remove(filepath.Join(tree, ".git"))
		},
		"unknown to git": func() error { return os.MkdirAll(filepath.Join(tree, "bin"), 0o755) },
	} {
		if err := leave(); err != nil {
			t.Fatal(err)
		}
		c, _ := comparison("HEAD")
		if _, err := c.Build(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		clean(t)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

func TestInterruptRemovesWorktree(t *testing.T) {
	repository(t, "build:\n\tmkdir bin && touch bin/ingotd started && sleep 1000\n")
	ctx, interrupt := context.WithCancelCause(t.Context())
	stopped := errors.New("interrupt signal received")
	go func() {
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if made, _ := filepath.Glob("build/base/*/tree/started"); len(made) > 0 {
				break
			}
		}
		interrupt(stopped)
	}()
	c, _ := comparison("HEAD")
	began := time.Now()
	if bin, err := c.Build(ctx); !errors.Is(err, stopped) {
		t.Errorf("Build = %q, %v; want %v", bin, err, stopped)
	}
	if took := time.Since(began); took > 15*time.Second { // what make started ended with it
		t.Errorf("Build took %v to stop", took)
	}
	clean(t)
	if left, _ := filepath.Glob("build/base/*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
