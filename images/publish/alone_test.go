//go:build !race

package publish

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/test/kit"
)

// The tests here take long with the race detector and have nothing for it: what runs at the same time in them does so
// in others, too.

// TestZerosAreNotStored: neither a chunk nor a block list that is all zeros has an object, also of a disk with several
// lists.
func TestZerosAreNotStored(t *testing.T) {
	const size = 4<<30 + 5*mib
	e := &fakeExtents{
		size: size, all: []images.Extent{{Off: 0, Len: mib, Data: bytes.Repeat([]byte{1}, mib)},
			{Off: mib, Len: size - mib}}}
	dir := t.TempDir()
	if err := Dir(dir).make("test"); err != nil {
		t.Fatal(err)
	}
	x, stored, err := assemble(t.Context(), e, Dir(dir),
		Options{Compress: encoder(3, 1), Workers: 2, Meter: new(Meter)})
	if err != nil {
		t.Fatal(err)
	}
	if len(x.Lists) != 2 || x.Lists[0].Len == 0 || x.Lists[1].Len != 0 || x.Data() != index.ChunkSize ||
		stored.objects.Load() != 2 {
		t.Errorf("lists %v, %d bytes of data, %d objects", x.Lists, x.Data(), stored.objects.Load())
	}
	if _, err := index.Parse(x.Marshal()); err != nil {
		t.Error(err)
	}
}

// TestKilledAndRunAgain kills a publication hard, again and again: there is never an index before all objects, and what
// it stored is used.
func TestKilledAndRunAgain(t *testing.T) {
	const variable = "INGOT_TEST_PUBLISH_INTO"
	img := disk(60*mib, 5)
	if dir := os.Getenv(variable); dir != "" {
		in := input(img)
		in.Stream = io.MultiReader(bytes.NewReader(img[:len(img)-mib]), os.Stdin) // the end of the image never comes
		_, err := Image(t.Context(), in, Dir(dir), Options{Name: "test", Level: 9, Workers: 1})
		t.Fatal("the publication was over before it was killed:", err)
	}
	dir := t.TempDir()
	count := func() int {
		n, _ := filepath.Glob(filepath.Join(dir, "objects", "??", "[0-9a-f]*"))
		return len(n)
	}
	for _, enough := range []int{1, 3, 5} {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), variable+"="+dir)
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer stdin.Close()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kit.Eventually(t, time.Minute, "objects", func() bool { return count() >= enough })
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if cmd.Wait(); !cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
			t.Fatal("the publication was over before it was killed")
		}
		if _, err := os.Stat(filepath.Join(dir, "test.ingot")); err == nil {
			t.Fatalf("there is an index after %d objects", count())
		}
	}
	there := count()
	r := publish(t, img, dir, Options{Level: 9})
	_, all := r.Index.Stored()
	if r.New > all-there || !bytes.Equal(referenceRead(t, dir, "test"), img) {
		t.Errorf("%d objects of %d were there, and %d are new", there, all, r.New)
	}
	// Leftovers are removed once they are too old to be in use.
	left := filepath.Join(dir, ".ingot-left")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(left, old, old); err != nil {
		t.Fatal(err)
	}
	publish(t, disk(mib, 1), dir, Options{Name: "other"})
	if _, err := os.Stat(left); err == nil {
		t.Error("a leftover of an earlier publication is still there")
	}
}

func says(password string) func() (string, error) {
	return func() (string, error) { return password, nil }
}

// TestLockedKeys reads a key that cosign's own library has locked. A locked one of minisign takes long, and is read in
// tools/cli.
func TestLockedKeys(t *testing.T) {
	locked := contents(t, "testdata/cosign.key")
	s, err := Cosign(locked, says("test password"))
	if err != nil {
		t.Fatal(err)
	}
	sig, err := s.Sign([]byte("index"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := index.ParseKey(string(contents(t, "testdata/cosign.pub")))
	if err != nil {
		t.Fatal(err)
	}
	if err := index.VerifySignature([]byte("index"), sig, []index.Key{key}); err != nil {
		t.Error(err)
	}
	boom := errors.New("no terminal")
	if _, err := Cosign(locked, func() (string, error) { return "", boom }); !errors.Is(err, boom) {
		t.Errorf("no password: %v", err)
	}
	for name, try := range map[string]func() (Signer, error){
		"a wrong password of cosign": func() (Signer, error) { return Cosign(locked, says("wrong")) },
		"no key":                     func() (Signer, error) { return Minisign([]byte("hello"), asked(t)) },
		"no PEM":                     func() (Signer, error) { return Cosign([]byte("hello"), asked(t)) },
		"a public key": func() (Signer, error) {
			return Cosign(contents(t, "testdata/cosign.pub"), asked(t))
		},
	} {
		_, err := try()
		var refused *images.Error
		if !errors.As(err, &refused) || refused.Remedy == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
