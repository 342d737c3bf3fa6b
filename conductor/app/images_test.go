package app

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestImageFiles: files are listed as machines get them: those in folders by their path, and neither hidden ones nor
// what leads out of the folder.
func TestImageFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("image"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"debian.raw", "rocky/9/disk.qcow2", ".part", ".tmp/disk.raw"} {
		write(name)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "passwd")); err != nil {
		t.Fatal(err)
	}
	names := func(of string) (all []string) {
		t.Helper()
		got, err := imageFiles(of)()
		if err != nil || got.Images == nil {
			t.Fatalf("images of %s: %v, %v", of, got, err)
		}
		for _, f := range got.Images {
			if f.Size != 5 || f.Modified.IsZero() {
				t.Errorf("%+v", f)
			}
			all = append(all, f.Name)
		}
		return all
	}
	if got, want := names(dir), []string{"debian.raw", "rocky/9/disk.qcow2"}; !slices.Equal(got, want) {
		t.Errorf("images are %q, want %q", got, want)
	}
	if got := names(filepath.Join(dir, "none")); got != nil {
		t.Errorf("images of a folder that is not there are %q", got)
	}
	for i := range mostImages {
		write(fmt.Sprintf("many/%d", i))
	}
	if got, err := imageFiles(dir)(); err != nil || len(got.Images) != mostImages || !got.More {
		t.Errorf("%d of many images, more: %v, %v", len(got.Images), got.More, err)
	}
	if imageFiles("") != nil {
		t.Error("without a folder there are images")
	}
}
