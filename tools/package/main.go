// Package makes Ingot's packages: deb and rpm with the programs, their units, manual pages and completions, a container
// image, a Helm chart, a list of what is in them (SBOM) and their checksums. It is a module of its own, so that the
// product does not depend on nfpm.
//
// The programs are compiled here, for each architecture. The same commit gives the same bytes: all times are the
// commit's. What the packages contain is the table in contents.go, and texts are in files/.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "package:", err)
		os.Exit(1)
	}
}

// build is one run.
type build struct {
	source  string // folder of Ingot's source
	out     string
	work    string // temporary files
	ramdisk string // folder that `ingot ramdisk build` wrote
	program string // version of the programs, as of `git describe`
	version string // that of the packages
	when    time.Time
	arches  []string
	key     string // that a release is signed with, as gpg knows it; empty: this is no release
	signRPM func(io.Reader) ([]byte, error)
}

func run(ctx context.Context, args []string) (err error) {
	fl := flag.NewFlagSet("package", flag.ContinueOnError)
	b := build{}
	fl.StringVar(&b.source, "source", ".", "`folder` of Ingot's source")
	fl.StringVar(&b.out, "out", "build/packages", "`folder` to write; what it has of former packages is removed")
	fl.StringVar(&b.ramdisk, "ramdisk", "build/ramdisk/server", "`folder` of a ramdisk to pack, if it exists")
	fl.StringVar(&b.program, "version", "", "`version`, as of git describe (default: that of the commit)")
	show := fl.Bool("show-version", false, "print the version that packages have, and do nothing else")
	fl.StringVar(&b.key, "release", "", "make a release, signed with this `key`, a fingerprint that gpg knows")
	arches := fl.String("arch", "amd64,arm64", "`architectures`, with commas between them")
	if err := fl.Parse(args); err != nil {
		return err
	}
	for _, path := range []*string{&b.source, &b.out, &b.ramdisk} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	b.arches = strings.Split(*arches, ",")
	if b.work, err = os.MkdirTemp("", "ingot-package-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.work)) }()
	if err := b.identify(ctx); err != nil {
		return err
	}
	if b.key != "" {
		if err := b.mayRelease(ctx); err != nil {
			return err
		}
	}
	if *show {
		fmt.Println(b.version)
		return nil
	}
	if b.key != "" {
		if err := b.complete(); err != nil {
			return err
		}
		b.signRPM = b.signer(ctx)
	}
	return b.make(ctx)
}

// make makes everything.
func (b *build) make(ctx context.Context) error {
	if err := b.empty(); err != nil {
		return err
	}
	for _, arch := range b.arches {
		if err := b.compile(ctx, arch); err != nil {
			return err
		}
	}
	if err := b.texts(ctx); err != nil {
		return err
	}
	for _, arch := range b.arches {
		if err := b.bills(arch); err != nil {
			return err
		}
		if err := b.pack(arch); err != nil {
			return err
		}
	}
	if err := b.packLab(); err != nil {
		return err
	}
	if err := b.packRamdisk(); err != nil {
		return err
	}
	if err := b.image(); err != nil {
		return err
	}
	if err := b.chart(); err != nil {
		return err
	}
	if err := b.sums(); err != nil || b.key == "" {
		return err
	}
	return b.sign(ctx)
}

// identify finds the version and the time of the commit. SOURCE_DATE_EPOCH overrides the time
// (https://reproducible-builds.org/specs/source-date-epoch).
func (b *build) identify(ctx context.Context) error {
	seconds := os.Getenv("SOURCE_DATE_EPOCH")
	if seconds == "" {
		var err error
		if seconds, err = b.output(ctx, "git", "log", "-1", "--format=%ct"); err != nil {
			return err
		}
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH %q is not a number of seconds", seconds)
	}
	b.when = time.Unix(n, 0).UTC()
	if b.program == "" {
		if b.program, err = b.output(ctx, "git", "describe", "--always", "--dirty"); err != nil {
			return err
		}
	}
	log, err := os.ReadFile(filepath.Join(b.source, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	b.version, err = packageVersion(b.program, string(log), b.when)
	return err
}

var (
	tagged  = regexp.MustCompile(`^v(\d+\.\d+\.\d+)(?:-(\d+)-(g[0-9a-f]+))?(-dirty)?$`)
	bare    = regexp.MustCompile(`^([0-9a-f]{7,40})(-dirty)?$`)
	heading = regexp.MustCompile(`(?m)^## Unreleased: (\d+\.\d+\.\d+)$`)
)

// packageVersion makes a version for packages of one from git: 1.2.0 of the tag v1.2.0, 1.2.0+3.gabcdef three commits
// later, and before the first tag 0.1.0~git20261128103000.abcdef, which is older than the 0.1.0 that the change log
// announces.
func packageVersion(described, changes string, when time.Time) (string, error) {
	dirty := func(s string) string { return strings.ReplaceAll(s, "-", ".") }
	if m := tagged.FindStringSubmatch(described); m != nil {
		version := m[1]
		if m[2] != "" {
			version += "+" + m[2] + "." + m[3]
		} else if m[4] != "" {
			version += "+0"
		}
		return version + dirty(m[4]), nil
	}
	m := bare.FindStringSubmatch(described)
	if m == nil {
		return "", fmt.Errorf("version %q is neither a tag such as v1.2.0, as git describe prints it, nor a commit", described)
	}
	h := heading.FindStringSubmatch(changes)
	if h == nil {
		return "", errors.New("CHANGELOG.md has no heading such as \"## Unreleased: 0.1.0\", and there is no tag")
	}
	return fmt.Sprintf("%s~git%s.%s%s", h[1], when.Format("20060102150405"), m[1], dirty(m[2])), nil
}

// empty makes the folder for the result, without what an earlier run wrote there.
func (b *build) empty() error {
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return err
	}
	for _, pattern := range []string{"ingot*", "SHA256SUMS*"} {
		old, err := filepath.Glob(filepath.Join(b.out, pattern))
		if err != nil {
			return err
		}
		for _, file := range old {
			if err := os.Remove(file); err != nil {
				return err
			}
		}
	}
	return nil
}

// programs are Ingot's, with the packages that their main functions are in.
var programs = map[string]string{"ingot": "./tools/cmd/ingot", "ingotd": "./conductor/cmd/ingotd"}

// compile compiles the programs for an architecture.
func (b *build) compile(ctx context.Context, arch string) error {
	for name, pkg := range programs {
		// The version control's own stamp is left out: it differs between a clone and an archive of the same source.
		if _, err := b.output(ctx, "env", "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=", "go", "build",
			"-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid= -X main.version="+b.program,
			"-o", b.file(arch, name), pkg); err != nil {
			return err
		}
	}
	return nil
}

// texts has the programs write what is made from their tables: manual pages, completions, the example configuration.
func (b *build) texts(ctx context.Context) error {
	host := runtime.GOARCH
	if !slices.Contains(b.arches, host) {
		if err := b.compile(ctx, host); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(b.file("man"), 0o755); err != nil {
		return err
	}
	ingot, ingotd := b.file(host, "ingot"), b.file(host, "ingotd")
	if _, err := b.output(ctx, "env", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", b.when.Unix()), ingot, "manual",
		b.file("man")); err != nil {
		return err
	}
	for file, command := range map[string][]string{
		"ingot.bash": {ingot, "completion", "bash"}, "ingot.zsh": {ingot, "completion", "zsh"},
		"ingot.fish": {ingot, "completion", "fish"}, "ingotd.example.yaml": {ingotd, "--print-example"},
		"ingotd.help": {ingotd, "--help"},
	} {
		text, err := b.output(ctx, command[0], command[1:]...)
		if err != nil {
			return err
		}
		if err := os.WriteFile(b.file(file), []byte(text+"\n"), 0o644); err != nil {
			return err
		}
	}
	help, err := os.ReadFile(b.file("ingotd.help"))
	if err != nil {
		return err
	}
	return os.WriteFile(b.file("man", "ingotd.8"), ingotdPage(string(help), b.when), 0o644)
}

// sums writes the checksums of all files.
func (b *build) sums() error {
	var lines []string
	err := filepath.WalkDir(b.out, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "SHA256SUMS" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%x  %s\n", sha256.Sum256(data), d.Name()))
		fmt.Printf("%6.1f MiB  %s\n", float64(len(data))/(1<<20), path)
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(lines, func(a, b string) int { return cmp.Compare(a[66:], b[66:]) })
	return os.WriteFile(filepath.Join(b.out, "SHA256SUMS"), []byte(strings.Join(lines, "")), 0o644)
}

// file is the path of a temporary file.
func (b *build) file(parts ...string) string {
	return filepath.Join(append([]string{b.work}, parts...)...)
}

// output runs a program in the source's folder and returns what it prints, without the last line break.
func (b *build) output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = b.source
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, errs.String())
	}
	return strings.TrimRight(string(out), "\n"), nil
}
