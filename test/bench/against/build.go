package against

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Build returns the folder with the programs of the base: build/base/<commit>/bin in the repository of the working
// folder.
//
// When it is missing, the commit is checked out beside it, as build/base/<commit>/tree, and its own `make build` makes
// the programs: packages and flags are those of the commit. The worktree is removed again whether that succeeds, fails
// or is interrupted; one that a killed run left is replaced. The folder appears only when it is complete, so that the
// next run can use it without building.
func (c *Comparison) Build(ctx context.Context) (string, error) {
	if err := c.Check(); err != nil {
		return "", err
	}
	root, err := git(ctx, "rev-parse", "--show-toplevel")
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	if strings.HasPrefix(c.Revision, "-") {
		return "", fmt.Errorf("%q is no commit: revisions do not begin with a dash", c.Revision)
	}
	commit, err := git(ctx, "rev-parse", "--verify", "--quiet", c.Revision+"^{commit}")
	if interrupted := context.Cause(ctx); interrupted != nil {
		return "", fmt.Errorf("find commit %s: %w", c.Revision, interrupted)
	}
	if err != nil {
		return "", fmt.Errorf("%q is no commit of this repository (a shallow clone lacks most: git fetch --unshallow)",
			c.Revision)
	}
	dir := filepath.Join(root, "build", "base", commit)
	bin := filepath.Join(dir, "bin")
	if _, err := os.Stat(bin); err == nil {
		fmt.Fprintf(c.Log, "%s was built before, in %s\n", c.Revision, bin)
		return bin, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look for the programs of %s: %w", c.Revision, err)
	}
	fmt.Fprintf(c.Log, "building %s (%.12s)\n", c.Revision, commit)
	tree := filepath.Join(dir, "tree")
	if err := removeTree(ctx, tree); err != nil { // left by a run that was killed
		return "", err
	}
	err = buildTree(ctx, commit, tree, bin)
	if interrupted := context.Cause(ctx); interrupted != nil {
		err = interrupted
	}
	if err = errors.Join(err, removeTree(ctx, tree)); err != nil {
		os.Remove(dir) // it is empty, or kept
		return "", fmt.Errorf("build %s: %w", c.Revision, err)
	}
	return bin, nil
}

func buildTree(ctx context.Context, commit, tree, bin string) error {
	// The hooks of the repository are for people's own worktrees.
	_, err := git(ctx, "-c", "core.hooksPath=/dev/null",
		"worktree", "add", "--quiet", "--force", "--detach", tree, commit)
	if err != nil {
		return err
	}
	if _, err := output(ctx, "make", "-C", tree, "build"); err != nil {
		return err
	}
	return os.Rename(filepath.Join(tree, "bin"), bin)
}

// removeTree removes a worktree, or what there is of one. It is not stopped by an interrupt.
func removeTree(ctx context.Context, tree string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	listed, err := git(ctx, "worktree", "list", "--porcelain")
	if err != nil {
		return fmt.Errorf("list worktrees: %w", err)
	}
	if known := strings.Contains(listed+"\n", "worktree "+tree+"\n"); known {
		// Forced twice, because git locks a worktree while it makes it, and leaves the lock when it is killed.
		if _, err := git(ctx, "worktree", "remove", "--force", "--force", tree); err == nil {
			return nil
		}
		git(ctx, "worktree", "unlock", tree) // fails when it has no lock
	}
	if err := os.RemoveAll(tree); err != nil {
		return fmt.Errorf("remove the worktree: %w", err)
	}
	if _, err := git(ctx, "worktree", "prune"); err != nil {
		return fmt.Errorf("remove the worktree: %w", err)
	}
	return nil
}

// SameGo writes to the log when the two programs were made by different versions of Go, which are then compared too.
func (c *Comparison) SameGo(base, this string) error {
	old, err := buildinfo.ReadFile(base)
	if err != nil {
		return fmt.Errorf("look at the program of %s: %w", c.Revision, err)
	}
	now, err := buildinfo.ReadFile(this)
	if err != nil {
		return fmt.Errorf("look at the program of this tree: %w", err)
	}
	if old.GoVersion != now.GoVersion {
		fmt.Fprintf(c.Log, "note: %s was built with %s, this tree with %s\n", c.Revision, old.GoVersion, now.GoVersion)
	}
	return nil
}

func git(ctx context.Context, args ...string) (string, error) { return output(ctx, "git", args...) }

// output runs a program in a separate process group. An interrupt of the terminal then ends it only through ctx, with
// all processes that it started, and does not reach the programs that clean up afterwards.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, tail(errs.String(), 30))
	}
	return strings.TrimSpace(out.String()), nil
}

// tail is the last lines of a text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
