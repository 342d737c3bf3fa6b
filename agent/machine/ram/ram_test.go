package ram

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFiles(t *testing.T) {
	root := t.TempDir()
	f := NewFiles(root)
	file, err := f.New("kernel")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("k"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(root, "tmp")); err != nil || len(left) != 0 {
		t.Errorf("the folder shows %v, %v", left, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := file.WriteString("k"); err == nil {
		t.Error("the file is still open")
	}
}

func TestAvailable(t *testing.T) {
	for text, want := range map[string]int64{"MemTotal: 9 kB\nMemAvailable:   7 kB\n": 7 << 10, "MemTotal: 9 kB\n": -1,
		"MemAvailable: x kB\n": -1, "MemAvailable: -1 kB\n": -1, "": -1} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "proc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "proc/meminfo"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		n, err := Available(root)
		if (err != nil) != (want < 0) || err == nil && n != want {
			t.Errorf("%q: %d, %v; want %d", text, n, err, want)
		}
	}
}
