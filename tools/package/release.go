package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// A release is made of a commit that has a tag, with nothing changed, and is signed. gpg signs, so that the key may be
// wherever gpg can use it: in a token, or with an agent that asks for its passphrase.

var releaseTag = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// mayRelease refuses what can't be released.
func (b *build) mayRelease(ctx context.Context) error {
	if changed, err := b.output(ctx, "git", "status", "--porcelain"); err != nil {
		return err
	} else if changed != "" {
		return fmt.Errorf("the tree has changes, which a release must not have: commit or remove them\n%s", changed)
	}
	if !releaseTag.MatchString(b.program) {
		return fmt.Errorf("this commit (%s) is no release: tag it, as with git tag -s v1.2.0", b.program)
	}
	if tag, err := b.output(ctx, "git", "describe", "--always", "--dirty"); err != nil {
		return err
	} else if tag != b.program {
		return fmt.Errorf("the version %s is not that of this commit, %s: leave out -version", b.program, tag)
	}
	changes, err := os.ReadFile(filepath.Join(b.source, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	if heading := "\n## " + b.version + "\n"; !bytes.Contains(changes, []byte(heading)) {
		return fmt.Errorf("CHANGELOG.md has no heading %q: the changes are still unreleased", strings.TrimSpace(heading))
	}
	if _, err := b.gpg(ctx, nil, "--list-secret-keys", b.key); err != nil {
		return fmt.Errorf("gpg has no secret key %q: name one with its fingerprint, make release KEY=...: %w", b.key, err)
	}
	return nil
}

// complete refuses a release without the ramdisk.
func (b *build) complete() error {
	if _, err := os.Stat(filepath.Join(b.ramdisk, "manifest.json")); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no ramdisk in %s, which a release has: run make ramdisk", b.ramdisk)
	} else if err != nil {
		return err
	}
	return nil
}

// gpg runs gpg with an input, and returns what it prints.
func (b *build) gpg(ctx context.Context, in io.Reader, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "gpg", append([]string{"--batch", "--quiet", "--no-auto-key-locate"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("gpg: %w\n%s", err, errs.String())
	}
	return out.Bytes(), nil
}

// signer signs what nfpm hands over, for rpm, whose signatures are binary.
func (b *build) signer(ctx context.Context) func(io.Reader) ([]byte, error) {
	return func(data io.Reader) ([]byte, error) {
		return b.gpg(ctx, data, "--local-user", b.key, "--digest-algo", "SHA256", "--detach-sign")
	}
}

// sign signs the checksums, which hold for all files; writes the provenance of the chart, which Helm looks for beside
// it; and writes the public key.
func (b *build) sign(ctx context.Context) error {
	about, err := os.ReadFile(filepath.Join(b.source, "tools/package/chart/Chart.yaml"))
	if err != nil {
		return err
	}
	if about, err = b.chartAbout(about); err != nil {
		return err
	}
	chart, err := os.ReadFile(filepath.Join(b.out, b.chartFile()))
	if err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(b.out, "SHA256SUMS"))
	if err != nil {
		return err
	}
	// https://helm.sh/docs/topics/provenance: Chart.yaml, a line of dots, and the digest.
	provenance := fmt.Sprintf("%s\n...\nfiles:\n  %s: %s\n", about, b.chartFile(), digest(chart))
	for _, f := range []struct {
		name string
		in   string
		args []string
	}{
		{"SHA256SUMS.asc", string(sums), []string{"--armor", "--local-user", b.key, "--detach-sign"}},
		{b.chartFile() + ".prov", provenance,
			[]string{"--local-user", b.key, "--digest-algo", "SHA512", "--clear-sign"}},
		{"ingot-release.asc", "", []string{"--armor", "--export-options", "export-minimal", "--export", b.key}},
	} {
		text, err := b.gpg(ctx, strings.NewReader(f.in), f.args...)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if err := os.WriteFile(filepath.Join(b.out, f.name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
