package seal

import (
	"bytes"
	"path/filepath"
	"testing"
)

func TestSealer(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	s, err := New(key)
	if err != nil {
		t.Fatal(err)
	}
	sealed := s.Seal("of a", []byte("secret"))
	if bytes.Contains(sealed, []byte("secret")) {
		t.Fatalf("Seal = %q", sealed)
	}
	if plain, err := s.Open("of a", sealed); err != nil || string(plain) != "secret" {
		t.Errorf("Open = %q, %v", plain, err)
	}
	if _, err := s.Open("of b", sealed); err == nil {
		t.Error("a seal was opened for another purpose")
	}
	other, err := New(bytes.Repeat([]byte{8}, 32))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Open("of a", sealed); err == nil {
		t.Error("a seal was opened with another key")
	}
	for i := range sealed {
		damaged := bytes.Clone(sealed)
		damaged[i] ^= 1
		if _, err := s.Open("of a", damaged); err == nil {
			t.Errorf("a seal with byte %d changed was opened", i)
		}
		if _, err := s.Open("of a", sealed[:i]); err == nil {
			t.Errorf("a seal cut to %d bytes was opened", i)
		}
	}
	if _, err := New(key[:31]); err == nil {
		t.Error("a key of 31 bytes was taken")
	}
}

func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if _, err := KeyFile(path, false); err == nil {
		t.Error("a key was made though there is data")
	}
	key, err := KeyFile(path, true)
	if err != nil || len(key) != 32 {
		t.Fatalf("KeyFile = %x, %v", key, err)
	}
	if again, err := KeyFile(path, true); err != nil || !bytes.Equal(again, key) {
		t.Errorf("the second time KeyFile = %x, %v, want %x", again, err, key)
	}
}
