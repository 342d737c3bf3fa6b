package app

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ingot-metal/ingot/proto/steparg"
)

// TestManifestOfAnEarlierRelease: what it does not say of the agent's steps, this release's own table says; what it
// says stays, as does what is a site's.
func TestManifestOfAnEarlierRelease(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), []byte(`{"steps_digest":"d","steps":[
		{"interface":"deploy","step":"write_image","priority":{"deploy":81},
			"args":[{"name":"image_source","type":"string","required":true},{"name":"image_keys","type":"array"}]},
		{"interface":"deploy","step":"load_kernel","priority":{}},
		{"interface":"deploy","step":"prepare_instance_boot","from":["image","more"]},
		{"interface":"bios","step":"ours","priority":{"clean":5}}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	m, err := readManifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	write, kernel, prepare, ours := m.Steps[0], m.Steps[1], m.Steps[2], m.Steps[3]
	if write.When != steparg.WhenDisk || !slices.Equal(write.Provides, []string{"image"}) || !write.Repeatable ||
		write.Priority[steparg.Deploy] != 81 || !write.Args[0].Given || write.Args[1].Owner == "" {
		t.Errorf("write_image is %+v", write)
	}
	if kernel.When != steparg.WhenKexec || kernel.Priority[steparg.Deploy] <= 0 {
		t.Errorf("load_kernel is %+v", kernel)
	}
	if prepare.When != "" || len(prepare.From) != 2 {
		t.Errorf("prepare_instance_boot is %+v", prepare)
	}
	if ours.When != "" || ours.Priority[steparg.Clean] != 5 {
		t.Errorf("the site's step is %+v", ours)
	}
}
