package packages

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
)

// releaser is a copy of this source with a repository of its own, and a key that is good for nothing else.
type releaser struct {
	t              *testing.T
	tree, out, key string
	program        string // tools/package
}

func newReleaser(t *testing.T) *releaser {
	t.Helper()
	kit.NeedPrograms(t, "gpg", "gpgconf", "rpm", "rpmkeys")
	// Not t.TempDir: the names of gpg's sockets have to be short.
	home, err := os.MkdirTemp("", "gpg")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GNUPGHOME", home)
	t.Cleanup(func() {
		if out, err := exec.Command("gpgconf", "--homedir", home, "--kill", "all").CombinedOutput(); err != nil {
			t.Errorf("end gpg's agent: %v\n%s", err, out)
		}
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	r := &releaser{t: t, tree: filepath.Join(t.TempDir(), "tree"), out: filepath.Join(t.TempDir(), "release")}
	r.key = newKey(t, "Release test <release@ingot.example>")
	r.program = filepath.Join(t.TempDir(), "package")
	kit.Run(t, "go", "-C", source+"/tools/package", "build", "-o", r.program, ".")
	kit.Run(t, "sh", "-c", `mkdir "$2" && cd "$1" && git ls-files -z -co --exclude-standard |
xargs -0 sh -c 'for f; do [ ! -f "$f" ] || printf "%s\0" "$f"; done' sh | tar -c --null -T - | tar -x -C "$2"
cd "$2" && sed -i 's/^## Unreleased: .*/## Unreleased: 7.9.0\n\n## 7.8.9/' CHANGELOG.md && git init -q && git add -A`, "sh", absolute(t, source), r.tree)
	r.git("commit", "-q", "-m", "release")
	return r
}

func newKey(t *testing.T, name string) (fingerprint string) {
	t.Helper()
	kit.Run(t, "gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", name, "rsa3072", "sign", "1d")
	keys := kit.Run(t, "gpg", "--with-colons", "--list-keys", name)
	m := regexp.MustCompile(`(?m)^fpr:+([0-9A-F]{40}):`).FindStringSubmatch(keys)
	if m == nil {
		t.Fatal("gpg made no key")
	}
	return m[1]
}

func (r *releaser) git(args ...string) {
	r.t.Helper()
	kit.Run(r.t, "git", append([]string{"-C", r.tree, "-c", "user.name=a", "-c", "user.email=a@b.example"}, args...)...)
}

// run makes a release, or the first checks alone, and returns what it says.
func (r *releaser) run(key string, more ...string) (string, error) {
	out, err := exec.Command(r.program, append([]string{"-source", r.tree, "-out", r.out, "-arch", runtime.GOARCH,
		"-ramdisk", filepath.Join(r.tree, "build/ramdisk/server"), "-release", key}, more...)...).CombinedOutput()
	return string(out), err
}

// TestRelease makes a release with a key of its own. What can't be a release is refused, with what to do; all files are
// signed; and one changed byte is found, in any of them.
func TestRelease(t *testing.T) {
	r := newReleaser(t)
	refused := func(key, want string) {
		t.Helper()
		if out, err := r.run(key, "-show-version"); err == nil || !strings.Contains(out, want) {
			t.Errorf("a release: %v\n%swant %q", err, out, want)
		}
	}
	refused(r.key, "tag it")
	r.git("tag", "nightly-1")
	refused(r.key, "tag it")
	r.git("tag", "-a", "-m", "x", "v7.8.10")
	refused(r.key, `no heading "## 7.8.10"`)
	r.git("tag", "-d", "v7.8.10")
	r.git("tag", "-a", "-m", "release", "v7.8.9")
	refused(strings.Repeat("A", 40), "no secret key")
	extra := filepath.Join(r.tree, "extra.go")
	if err := os.WriteFile(extra, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(r.key, "the tree has changes")
	if err := os.Remove(extra); err != nil {
		t.Fatal(err)
	}
	if out, err := r.run(r.key); err == nil || !strings.Contains(out, "run make ramdisk") {
		t.Errorf("a release without a ramdisk: %v\n%s", err, out)
	}
	ramdisk := filepath.Join(r.tree, "build/ramdisk/server") // git ignores it, as it does in a clone
	if err := os.MkdirAll(ramdisk, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range ramdiskFiles {
		if err := os.WriteFile(filepath.Join(ramdisk, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := r.run(r.key); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	verifyRelease(t, r)
}

// verifyRelease checks a release as docs/howto/install.md says, with nothing but its public key.
func verifyRelease(t *testing.T, r *releaser) {
	t.Helper()
	home, err := os.MkdirTemp("", "gpg")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GNUPGHOME", home)
	t.Cleanup(func() {
		_ = exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run()
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	public := filepath.Join(r.out, "ingot-release.asc")
	kit.Run(t, "gpg", "--batch", "--quiet", "--import", public)
	check := func() error {
		cmd := exec.Command("sh", "-c", "gpg --batch --verify SHA256SUMS.asc SHA256SUMS && sha256sum --strict --check SHA256SUMS")
		cmd.Dir = r.out
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}
	if err := check(); err != nil {
		t.Fatalf("the release does not verify: %v", err)
	}
	listed := read(t, filepath.Join(r.out, "SHA256SUMS"))
	files, err := os.ReadDir(r.out)
	if err != nil {
		t.Fatal(err)
	}
	database := t.TempDir()
	kit.Run(t, "rpmkeys", "--dbpath", database, "--import", public)
	chart := ""
	for _, f := range files {
		name := f.Name()
		switch {
		case name == "SHA256SUMS.asc" || name == "ingot-release.asc":
			continue
		case strings.HasSuffix(name, ".prov"):
			continue
		case strings.HasSuffix(name, ".tgz"):
			chart = filepath.Join(r.out, name)
		case strings.HasSuffix(name, ".rpm"):
			out := kit.Run(t, "rpmkeys", "--dbpath", database, "-Kv", filepath.Join(r.out, name))
			if !strings.Contains(out, "Signature") {
				t.Errorf("%s is not signed:\n%s", name, out)
			}
		}
		if name != "SHA256SUMS" && !strings.Contains(listed, "  "+name+"\n") {
			t.Errorf("SHA256SUMS lacks %s", name)
		}
		flip(t, filepath.Join(r.out, name))
		if err := check(); err == nil {
			t.Errorf("a changed byte in %s is not found", name)
		}
		flip(t, filepath.Join(r.out, name))
	}
	keyring := filepath.Join(home, "ring.gpg")
	kit.Run(t, "gpg", "--batch", "--output", keyring, "--export")
	kit.Run(t, tool(t, "helm"), "-verify", keyring, chart)
	flip(t, chart)
	if out, err := exec.Command(tool(t, "helm"), "-verify", keyring, chart).CombinedOutput(); err == nil {
		t.Errorf("Helm does not find the changed byte:\n%s", out)
	}
	flip(t, chart)
	// A signature by another key is not the release's.
	other := newKey(t, "Somebody else <release@ingot.example>")
	kit.Run(t, "gpg", "--batch", "--quiet", "--yes", "--armor", "--local-user", other, "--detach-sign",
		filepath.Join(r.out, "SHA256SUMS"))
	only := filepath.Join(home, "only.gpg")
	kit.Run(t, "gpg", "--batch", "--output", only, "--export", r.key)
	if out, err := exec.Command("gpgv", "--keyring", only, filepath.Join(r.out, "SHA256SUMS.asc"),
		filepath.Join(r.out, "SHA256SUMS")).CombinedOutput(); err == nil {
		t.Errorf("a signature by another key is taken:\n%s", out)
	}
}

// flip changes a byte in the middle of a file, and back when it is called again.
func flip(t *testing.T, file string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, st.Size()/2); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, st.Size()/2); err != nil {
		t.Fatal(err)
	}
}
