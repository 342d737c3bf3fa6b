package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// git runs git in a folder and returns what it prints.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

func topLevel(ctx context.Context) (string, error) {
	out, err := git(ctx, ".", "rev-parse", "--show-toplevel")
	if err != nil {
		return "", fmt.Errorf("what changed is asked of git: %w", err)
	}
	return strings.TrimSuffix(out, "\n"), nil
}

// upstream lists what a change is compared with when no base is named, the first that exists.
var upstream = []string{"upstream/main", "origin/main", "main", "HEAD"}

// changedFiles lists the files of a repository that differ between the merge base of HEAD with a base and the working
// tree, including new ones that are not ignored. A renamed file is listed with both names. The first result is the
// compared commit.
func changedFiles(ctx context.Context, dir, base string) (from string, files []string, err error) {
	if base == "" {
		i := slices.IndexFunc(upstream, func(ref string) bool {
			_, err := git(ctx, dir, "rev-parse", "--verify", "--quiet", ref+"^{commit}")
			return err == nil
		})
		if i < 0 {
			return "", nil, fmt.Errorf("%s has no commit yet: there is nothing to compare with", dir)
		}
		base = upstream[i]
	}
	if _, err := git(ctx, dir, "rev-parse", "--verify", "--quiet", "--end-of-options", base+"^{commit}"); err != nil {
		return "", nil, fmt.Errorf("BASE=%s is neither a commit nor a branch of this repository", base)
	}
	out, err := git(ctx, dir, "merge-base", "--", base, "HEAD")
	if err != nil {
		return "", nil, fmt.Errorf("HEAD and %s have no commit in common; git fetch --unshallow, or name a BASE: %w",
			base, err)
	}
	commit := strings.TrimSpace(out)
	short, err := git(ctx, dir, "log", "-1", "--format=%h %s", commit)
	if err != nil {
		return "", nil, err
	}
	short = strings.TrimSpace(short)
	if len(short) > 80 {
		short = short[:80] + "..."
	}
	from = fmt.Sprintf("%s (of %s)", short, base)

	changed, err := git(ctx, dir, "diff", "--name-only", "--no-renames", "-z", commit, "--")
	if err != nil {
		return "", nil, err
	}
	untracked, err := git(ctx, dir, "ls-files", "--others", "--exclude-standard", "-z")
	if err != nil {
		return "", nil, err
	}
	for name := range strings.SplitSeq(changed+untracked, "\x00") {
		if name != "" {
			files = append(files, name)
		}
	}
	slices.Sort(files)
	return from, slices.Compact(files), nil
}
