package publish

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"aead.dev/minisign"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
)

// falling is a folder on a machine that may lose its power after each step. What was done since the last sync may have
// reached the disk or not, each of it.
type falling struct {
	onDisk
	t       *testing.T
	dir     string
	durable map[string]string
	pending []func(map[string]string)
	steps   []string
	states  map[string]map[string]string // that the disk may be in afterwards, by their text
}

func newFalling(t *testing.T, dir string) *falling {
	f := &falling{t: t, dir: dir, durable: files(t, dir), states: map[string]map[string]string{}}
	f.fall()
	return f
}

// fall notes every state that the folder may be found in now.
func (f *falling) fall() {
	for reached := range 1 << len(f.pending) {
		state := maps.Clone(f.durable)
		for i, change := range f.pending {
			if reached&(1<<i) != 0 {
				change(state)
			}
		}
		f.states[fmt.Sprint(state)] = state
	}
}

func (f *falling) step(what, path string, change func(map[string]string)) {
	f.steps = append(f.steps, what+" "+filepath.Base(path))
	f.pending = append(f.pending, change)
	f.fall()
}

func (f *falling) write(path string, b []byte) error {
	f.step("write", path, func(s map[string]string) { s[filepath.Base(path)] = string(b) })
	return f.onDisk.write(path, b)
}

func (f *falling) remove(path string) error {
	f.step("remove", path, func(s map[string]string) { delete(s, filepath.Base(path)) })
	return f.onDisk.remove(path)
}

func (f *falling) sync(path string) error {
	if path != f.dir {
		f.t.Errorf("sync of %s", path)
	}
	for _, change := range f.pending {
		change(f.durable)
	}
	f.pending = nil
	f.steps = append(f.steps, "sync")
	f.fall()
	return f.onDisk.sync(path)
}

// signer is a key of each kind.
type signer struct {
	mini, ec       Signer
	miniKey, ecKey index.Key
}

func newSigner(t *testing.T) signer {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	pub, key, err := minisign.GenerateKey(rand.Reader)
	must(err)
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	der, err := x509.MarshalPKIXPublicKey(&ec.PublicKey)
	must(err)
	s := signer{mini: minisigner{key}, ec: cosigner{ec}}
	s.miniKey, err = index.ParseKey(pub.String())
	must(err)
	s.ecKey, err = index.ParseKey(string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	must(err)
	return s
}

func sign(t *testing.T, x string, by ...Signer) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, s := range by {
		var err error
		if all[s.Suffix()], err = s.Sign([]byte(x)); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// reads reads a directory as a node with these keys does: the index, and the fault of its signatures.
func reads(state map[string]string, keys []index.Key) (x string, err error) {
	x, there := state["test.ingot"]
	if !there {
		return "", os.ErrNotExist
	}
	err = errUnsigned
	for _, suffix := range index.SignatureSuffixes {
		if s, ok := state["test.ingot"+suffix]; ok {
			if err = index.VerifySignature([]byte(x), []byte(s), keys); err == nil {
				return x, nil
			}
		}
	}
	return x, err
}

var errUnsigned = errors.New("it is not signed")

func folderOf(t *testing.T, state map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, b := range state {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestReplacedAtEachMoment: whenever a signed image is replaced, and wherever that is broken off, there is an index
// with a signature that holds for it; and the next publication gets from there to where it wants. What is not signed is
// never found with a wrong signature.
func TestReplacedAtEachMoment(t *testing.T) {
	a, b := newSigner(t), newSigner(t)
	for _, c := range []struct {
		name     string
		old, now []Signer
		none     bool // there is no old index
		keys     [][]index.Key
		unsigned bool // an index without a signature may be found: one of the two has none
	}{
		{name: "minisign", old: []Signer{a.mini}, now: []Signer{a.mini}, keys: [][]index.Key{{a.miniKey}}},
		{name: "cosign", old: []Signer{a.ec}, now: []Signer{a.ec}, keys: [][]index.Key{{a.ecKey}}},
		{name: "both", old: []Signer{a.mini, a.ec}, now: []Signer{a.mini, a.ec},
			keys: [][]index.Key{{a.miniKey}, {a.ecKey}, {a.ecKey, a.miniKey}}},
		{name: "another key", old: []Signer{a.mini}, now: []Signer{b.mini},
			keys: [][]index.Key{{a.miniKey, b.miniKey}}},
		{name: "another kind", old: []Signer{a.mini}, now: []Signer{a.ec}, keys: [][]index.Key{{a.miniKey, a.ecKey}}},
		{name: "the other kind", old: []Signer{a.ec}, now: []Signer{a.mini}, keys: [][]index.Key{{a.miniKey, a.ecKey}}},
		{name: "one kind more", old: []Signer{a.mini}, now: []Signer{a.mini, a.ec}, keys: [][]index.Key{{a.miniKey}}},
		{name: "one kind less", old: []Signer{a.mini, a.ec}, now: []Signer{a.ec}, keys: [][]index.Key{{a.ecKey}}},
		{name: "signed for the first time", now: []Signer{a.mini}, keys: [][]index.Key{{a.miniKey}}, unsigned: true},
		{name: "not signed any more", old: []Signer{a.mini}, keys: [][]index.Key{{a.miniKey}}, unsigned: true},
		{name: "new", none: true, now: []Signer{a.mini, a.ec}, keys: [][]index.Key{{a.miniKey}, {a.ecKey}}},
		{name: "new, beside somebody's signature", none: true, old: []Signer{a.mini, a.ec}, now: []Signer{a.ec},
			keys: [][]index.Key{{a.ecKey}, {a.miniKey, a.ecKey}}},
	} {
		start := map[string]string{"test.ingot": "old"}
		for suffix, s := range sign(t, "old", c.old...) {
			start["test.ingot"+suffix] = string(s)
		}
		if c.none {
			delete(start, "test.ingot")
		}
		// From where a crash has left it, the same is tried again, and then something else.
		begin := []map[string]string{start}
		for round, x := range []string{"new", "new", "newer"} {
			signatures := sign(t, x, c.now...)
			after := map[string]map[string]string{}
			for _, state := range begin {
				dir := folderOf(t, state)
				f := newFalling(t, dir)
				if err := Dir(dir).replace(f, "test", []byte(x), signatures); err != nil {
					t.Fatal(err)
				}
				for text, s := range f.states {
					after[text] = s
					for _, keys := range c.keys {
						x, err := reads(s, keys)
						switch {
						case err == nil, errors.Is(err, os.ErrNotExist) && c.none, errors.Is(err, errUnsigned) &&
							c.unsigned:
						default:
							t.Errorf("%s, round %d, %v: index %q: %v", c.name, round, f.steps, x, err)
						}
					}
				}
				want := map[string]string{"test.ingot": x}
				for suffix, s := range signatures {
					want["test.ingot"+suffix] = string(s)
				}
				if got := files(t, dir); !maps.Equal(got, want) || len(f.pending) > 0 {
					t.Errorf("%s, round %d: %d files in the end, %d of them as they should be; %d steps may be lost",
						c.name, round, len(got), len(want), len(f.pending))
				}
			}
			begin = nil
			for _, s := range after {
				begin = append(begin, s)
			}
		}
	}
}

// TestFolderWithBrackets: a folder's name is no pattern.
func TestFolderWithBrackets(t *testing.T) {
	for _, name := range []string{"a[b]", "a[b"} {
		dir := filepath.Join(t.TempDir(), name)
		publish(t, disk(mib, 1), dir, Options{})
		left := filepath.Join(dir, ".ingot-left")
		if err := os.WriteFile(left, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-2 * time.Hour)
		if err := os.Chtimes(left, old, old); err != nil {
			t.Fatal(err)
		}
		publish(t, disk(mib, 1), dir, Options{})
		if _, err := os.Stat(left); err == nil {
			t.Errorf("%s: what was left is still there", name)
		}
	}
}

// TestTooManySignatures: what crashes have left, or somebody has put there, does not grow without end. Then there is
// none for a moment.
func TestTooManySignatures(t *testing.T) {
	a := newSigner(t)
	for _, left := range []string{strings.Repeat("x", index.MaxSignature+1), "1\n\n2\n\n3\n\n4\n\n5\n\n6\n\n7\n\n8\n"} {
		dir := folderOf(t, map[string]string{"test.ingot": "old", "test.ingot.sig": left})
		f := newFalling(t, dir)
		if err := Dir(dir).replace(f, "test", []byte("new"), sign(t, "new", a.ec)); err != nil {
			t.Fatal(err)
		}
		for _, s := range f.states {
			if s["test.ingot"] == "old" && s["test.ingot.sig"] != "" && s["test.ingot.sig"] != left {
				t.Errorf("the old index has the signature %.50q", s["test.ingot.sig"])
			}
		}
		if x, err := reads(files(t, dir), []index.Key{a.ecKey}); x != "new" || err != nil {
			t.Errorf("%s, %v", x, err)
		}
	}
}

// TestPublishedTwiceAtOnce: of two publications of one name one is there in the end, index and signature.
func TestPublishedTwiceAtOnce(t *testing.T) {
	a, dir := newSigner(t), t.TempDir()
	if err := Dir(dir).make("test"); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for i := range 20 {
				x := fmt.Sprint("index ", n, i)
				if err := Dir(dir).finish("test", []byte(x), sign(t, x, a.mini)); err != nil {
					t.Error(err)
				}
				unlock, err := Dir(dir).lock()
				if err != nil {
					t.Error(err)
					continue
				}
				if x, err := reads(files(t, dir), []index.Key{a.miniKey}); err != nil {
					t.Errorf("%s: %v", x, err)
				}
				unlock()
			}
		})
	}
	all.Wait()
}

// TestSourceIsNoImage: what changed while it was read replaces nothing.
func TestSourceIsNoImage(t *testing.T) {
	a, dir := newSigner(t), t.TempDir()
	publish(t, disk(mib, 1), dir, Options{Sign: []Signer{a.mini}})
	before := files(t, dir)
	changed := errors.New("it was changed")
	if _, err := Image(t.Context(), input(disk(mib, 2)), Dir(dir),
		Options{Name: "test", Unchanged: func() error { return changed }}); !errors.Is(err, changed) {
		t.Errorf("published: %v", err)
	}
	after := files(t, dir)
	for name, b := range before {
		if after[name] != b {
			t.Errorf("%s was touched", name)
		}
	}
	// A removed signature is reported.
	if r := publish(t, disk(mib, 2), dir, Options{}); !r.Unsigned {
		t.Error("the missing signature is not reported")
	}
	if r := publish(t, disk(mib, 2), dir, Options{}); r.Unsigned {
		t.Error("there was no signature")
	}
}

// TestFoldersInTheWay are found before an image is read for hours.
func TestFoldersInTheWay(t *testing.T) {
	for _, name := range []string{"test.ingot", "test.ingot.minisig", "test.ingot.sig"} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := Image(t.Context(), input(disk(mib, 1)), Dir(dir), Options{Name: "test"})
		var refused *images.Error
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), filepath.Join(dir, name)+" is a folder") ||
			len(files(t, dir)) > 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A refused image creates no directory.
	dir := filepath.Join(t.TempDir(), "new")
	if _, err := Image(t.Context(), input(bytes.Repeat([]byte("hello "), 100)), Dir(dir),
		Options{Name: "test"}); err == nil {
		t.Error("a text is no image")
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("there is a folder")
	}
}
