package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/test/compat/bench"
)

// signedReports gives documents that a conductor's book has kept, and its key's file.
func signedReports(t *testing.T, reports string) (docs []string, key string) {
	t.Helper()
	dir := t.TempDir()
	k, err := erasure.OpenKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	b := &erasure.Book{Key: k, Conductor: "c1", Store: keptFiles(func(kept erasure.Kept) error {
		docs = append(docs, filepath.Join(dir, kept.ID+".json"))
		return os.WriteFile(docs[len(docs)-1], kept.Document, 0o644)
	})}
	if err := b.Take(t.Context(), "1be26c0b-03f2-4d2e-ae87-c02d7f33c123", "rack1",
		[]byte(`{"erasures": `+reports+`}`)); err != nil {
		t.Fatal(err)
	}
	return docs, filepath.Join(dir, erasure.PublicFile)
}

type keptFiles func(erasure.Kept) error

func (k keptFiles) KeepErasure(_ context.Context, e erasure.Kept) error { return k(e) }

func TestEraseVerify(t *testing.T) {
	u := &user{t: t}
	docs, key := signedReports(t, `[
		{"id": "GOOD", "disk": {"name": "/dev/sda", "serial": "S1", "size": 1000204886016}, "method": "overwrite", "level": "clear", "result": "erased", "samples": {"read": 190, "markers": 65, "old": 60, "kept": []}},
		{"id": "BAD", "disk": {"name": "/dev/sdb"}, "method": "nvme_format_crypto", "level": "none", "result": "failed", "error": "it lied", "samples": {"read": 190, "markers": 65, "kept": [0]}},
		{"id": "ODD", "result": "erased", "samples": {"kept": [4096]}}]`)
	if out := u.ok("erase", "verify", docs[0], "--key", key); !strings.Contains(out,
		"good, by the key that was given") || !strings.Contains(out, "65 markers") ||
		!strings.Contains(out, "clear (NIST SP 800-88)") || !strings.Contains(out, "S1") {
		t.Errorf("verify says %s", out)
	}
	if out := u.ok("erase", "verify", docs[0]); !strings.Contains(out, "give --key") {
		t.Errorf("without a key it says %s", out)
	}
	if out := u.ok("erase", "verify", docs[0], "-o", "json"); !strings.Contains(out, `"key_given": false`) {
		t.Errorf("as JSON it says %s", out)
	}
	u.fails([]string{"erase", "verify", docs[1], "--key", key}, "was not erased", "it lied")
	u.fails([]string{"erase", "verify", docs[2], "--key", key}, "contradicts itself")
	_, other := signedReports(t, `[]`)
	u.fails([]string{"erase", "verify", docs[0], "--key", other}, "signature does not fit", "it was signed by key")
	b, err := os.ReadFile(docs[0])
	if err != nil {
		t.Fatal(err)
	}
	forged := filepath.Join(t.TempDir(), "forged.json")
	if err := os.WriteFile(forged, []byte(strings.Replace(string(b), `"S1"`, `"S2"`, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	u.fails([]string{"erase", "verify", forged}, "was changed after it was signed")
	u.fails([]string{"erase", "verify", key}, "not a signed report")
	u.fails([]string{"erase", "verify", docs[0], "--key", docs[0]}, "--key", "not a PEM file")
	u.fails([]string{"erase", "verify"}, "wants one file")
}

// TestEraseList: reports that the conductor keeps are listed, fetched and verified.
func TestEraseList(t *testing.T) {
	c := bench.Start(t, nil)
	u := &user{t: t, url: c.URL}
	u.ok(words("node create rack1 --driver fake-hardware")...)
	if out := u.ok("erase", "list", "rack1"); !strings.Contains(out, "no disk of rack1 was erased") {
		t.Errorf("an empty list says %s", out)
	}
	n, err := c.Store.Node(t.Context(), "rack1")
	if err != nil {
		t.Fatal(err)
	}
	key, err := erasure.OpenKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := &erasure.Book{Key: key, Store: c.Store, Conductor: "bench"}
	if err := b.Take(t.Context(), n.UUID, n.Name,
		[]byte(`{"erasures": [{"id": "A", "disk": {"name": "/dev/sda", "serial": "S<1>"}, "method": "overwrite", "level": "clear", "result": "erased"}]}`)); err != nil {
		t.Fatal(err)
	}
	out := u.ok("erase", "list", "rack1")
	lines := strings.Split(out, "\n")
	if !strings.Contains(out, "overwrite") || !strings.Contains(out, "S<1>") || len(lines) < 2 {
		t.Fatalf("the list says %s", out)
	}
	id := strings.Fields(lines[1])[0]
	file := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(file, []byte(u.ok("erase", "show", "rack1", id)), 0o644); err != nil {
		t.Fatal(err)
	}
	public := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(public, key.PEM(), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := u.ok("erase", "verify", file, "--key", public); !strings.Contains(out, "rack1") ||
		!strings.Contains(out, "S<1>") {
		t.Errorf("verify says %s", out)
	}
	u.fails([]string{"erase", "show", "rack1", "nothing"}, "could not be found")
	u.fails([]string{"erase", "list", "nobody"}, "could not be found")
}
