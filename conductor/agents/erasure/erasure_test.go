package erasure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

type memory map[string]Kept

func (m memory) KeepErasure(_ context.Context, k Kept) error {
	if _, ok := m[k.ID]; !ok {
		m[k.ID] = k
	}
	return nil
}

func TestSignedReports(t *testing.T) {
	dir := t.TempDir()
	key, err := OpenKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := OpenKey(dir)
	if err != nil || !bytes.Equal(again.PEM(), key.PEM()) {
		t.Fatalf("opened again, it is another key: %v", err)
	}
	if fi, err := os.Stat(filepath.Join(dir, KeyFile)); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the private key: %v, %v", fi, err)
	}
	public, err := os.ReadFile(filepath.Join(dir, PublicFile))
	if err != nil {
		t.Fatal(err)
	}
	k, err := ParseKey(public)
	if err != nil {
		t.Fatal(err)
	}
	kept := memory{}
	b := &Book{Key: key, Store: kept, Conductor: "c1", Now: func() time.Time { return time.Unix(1e9, 0) }}
	result := `{"devices": [], "erasures": [
		{"format": "ingot-erasure-1", "id": "A", "disk": {"name": "/dev/sda", "serial": "S<1>&", "size": 1000204886016}, "method": "overwrite", "level": "clear", "result": "erased"},
		{"format": "ingot-erasure-1", "id": "B", "method": "x", "level": "none", "result": "failed", "error": "medium error"}]}`
	for range 2 { // results may come twice
		if err := b.Take(t.Context(), "node-1", "rack1", []byte(result)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Take(t.Context(), "node-2", "rack2", []byte(`{"erasures": [{"id": "A"}]}`)); err != nil ||
		len(kept) != 3 {
		t.Fatalf("%d reports are kept, want 3: %v", len(kept), err)
	}
	for _, other := range []string{`{"erasures": "none"}`, `{"erasures": [1, {"id": ""}]}`, `nothing`, ``} {
		if err := b.Take(t.Context(), "node-1", "", []byte(other)); err != nil || len(kept) != 3 {
			t.Errorf("result %s: %v", other, err)
		}
	}
	var doc []byte
	for _, e := range kept {
		if bytes.Contains(e.Document, []byte("/dev/sda")) {
			doc = e.Document
		}
	}
	v, err := Verify(doc, k)
	if err != nil {
		t.Fatal(err)
	}
	if v.Report.Disk.Serial != "S<1>&" || v.Report.Level != "clear" || v.Statement.NodeUUID != "node-1" ||
		v.Statement.NodeName != "rack1" ||
		!v.Statement.Received.Equal(time.Unix(1e9, 0)) || !v.Known {
		t.Errorf("verified: %+v", v)
	}
	// However it is printed, it is the same.
	var indented bytes.Buffer
	if err := json.Indent(&indented, doc, "", "    "); err != nil {
		t.Fatal(err)
	}
	plain := strings.ReplaceAll(indented.String(), `\u003c`, "<")
	if v, err := Verify([]byte(plain), nil); err != nil || v.Known {
		t.Errorf("indented, without a key: %+v, %v", v, err)
	}
	// Every character of the statement counts.
	at := bytes.Index(doc, []byte(`"statement"`)) + len(`"statement":`)
	end := bytes.Index(doc, []byte(`,"key_id"`))
	for i := at; i < end; i++ {
		bad := bytes.Clone(doc)
		if bad[i] ^= 1; json.Valid(bad) {
			if _, err := Verify(bad, nil); !errors.Is(err, ErrSignature) {
				t.Fatalf("changed at byte %d: %v", i, err)
			}
		}
	}
	other, err := OpenKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := ParseKey(other.PEM())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(doc, wrong); !errors.Is(err, ErrSignature) ||
		!strings.Contains(err.Error(), "was signed by key") {
		t.Errorf("another key: %v", err)
	}
	for _, junk := range []string{``, `{}`, `[]`, `{"format":"ingot-signed-erasure-1"}`,
		`{"format":"ingot-signed-erasure-1","public_key":"AAAA","statement":{}}`} {
		if _, err := Verify([]byte(junk), nil); err == nil {
			t.Errorf("%s was verified", junk)
		}
	}
}

func FuzzVerify(f *testing.F) {
	key, err := OpenKey(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	doc, err := key.Sign(Statement{NodeUUID: "n", Report: json.RawMessage(`{"id":"A"}`)})
	if err != nil {
		f.Fatal(err)
	}
	public, err := ParseKey(key.PEM())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(doc)
	f.Add([]byte(`{"format":"ingot-signed-erasure-1"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, err := Verify(b, public); err == nil && (v.Statement.NodeUUID != "n" || v.Report.ID != "A") {
			t.Errorf("forged: %s", b)
		}
	})
}
