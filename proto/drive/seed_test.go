package drive

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/u-root/u-root/pkg/cpio"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

const object = `{"meta_data": {"hostname": "node-1"}, "user_data": "#!/bin/sh\n", "vendor_data": {"x": 1}}`

// unpack reads an archive by other code than made it.
func unpack(t testing.TB, b []byte) map[string]string {
	t.Helper()
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(b)))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, r := range records {
		if r.Mode&cpio.S_IFMT == cpio.S_IFDIR {
			got[r.Name+"/"] = ""
			continue
		}
		data, err := io.ReadAll(io.NewSectionReader(r.ReaderAt, 0, int64(r.FileSize)))
		if err != nil {
			t.Fatal(err)
		}
		if r.Mode != cpio.S_IFREG|0o600 {
			t.Errorf("%s has mode %o: others may read it", r.Name, r.Mode)
		}
		got[r.Name] = string(data)
	}
	return got
}

func TestSeedOfAnObject(t *testing.T) {
	b, err := Seed(json.RawMessage(object), "the-node", noon)
	if err != nil || len(b)%512 != 0 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	got := unpack(t, b)
	const dir = "var/lib/cloud/seed/config_drive/"
	want := map[string]string{
		dir + "openstack/latest/meta_data.json": `{"hostname":"node-1","uuid":"the-node"}`,
		dir + "openstack/latest/user_data":      "#!/bin/sh\n", dir + "openstack/latest/vendor_data2.json": `{"x": 1}`,
	}
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s = %q, want %q", name, got[name], text)
		}
	}
	for _, name := range []string{"var/", "var/lib/", "var/lib/cloud/", "var/lib/cloud/seed/", dir, dir + "openstack/",
		dir + "openstack/latest/"} {
		if _, ok := got[name]; !ok {
			t.Errorf("there is no folder %s in %v", name, slices.Sorted(maps.Keys(got)))
		}
	}
	files, err := FilesOfISO([]byte(got["config-2.iso"]))
	if err != nil || len(files) != 3 {
		t.Errorf("the image has %d files, %v", len(files), err)
	}
	// Without an id, and with none given, it gets one.
	if b, err = Seed(json.RawMessage(`{}`), "", noon); err != nil ||
		!strings.Contains(unpack(t, b)[dir+"openstack/latest/meta_data.json"], `"uuid":"`) {
		t.Errorf("an empty object: %v", err)
	}
}

func TestSeedOfAnImage(t *testing.T) {
	img, err := ISO(
		[]File{{Path: "openstack/latest/meta_data.json", Data: []byte(`{"uuid":"x"}`)},
			{Path: "openstack/content/0000", Data: []byte("file")}},
		noon)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := json.Marshal(base64.StdEncoding.EncodeToString(img))
	b, err := Seed(text, "ignored", noon)
	if err != nil {
		t.Fatal(err)
	}
	got := unpack(t, b)
	if got["config-2.iso"] != string(img) || got["var/lib/cloud/seed/config_drive/openstack/content/0000"] != "file" ||
		got["var/lib/cloud/seed/config_drive/openstack/latest/meta_data.json"] != `{"uuid":"x"}` {
		t.Errorf("got %v", slices.Sorted(maps.Keys(got)))
	}
	// A FAT is handed on as it is.
	fat := make([]byte, 64<<10)
	fat[0], fat[510], fat[511] = 0xeb, 0x55, 0xaa
	text, _ = json.Marshal(base64.StdEncoding.EncodeToString(fat))
	if b, err = Seed(text, "", noon); err != nil || unpack(t, b)["config-2.iso"] != string(fat) {
		t.Errorf("FAT: %v", err)
	}
}

func TestSeedRefuses(t *testing.T) {
	for name, raw := range map[string]string{"nothing": "", "null": "null", "number": "7", "list": "[]", "empty": `""`,
		"URL": `"http://x/y"`, "no base64": `"***"`, "base64 of something else": `"aGVsbG8gd29ybGQ="`,
		"unknown key": `{"metadata": {}}`, "meta_data no object": `{"meta_data": 1}`} {
		if _, err := Seed(json.RawMessage(raw), "", noon); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	big, _ := json.Marshal(map[string]any{"user_data": strings.Repeat("x", MaxSize)})
	if _, err := Seed(big, "", noon); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
}

// TestFilesOfBounds holds that an image beyond any limit is refused.
func TestFilesOfBounds(t *testing.T) {
	many, large := fstest.MapFS{}, &fstest.MapFile{Data: make([]byte, MaxSize/2+1)}
	for i := range MaxFiles + 1 {
		many[fmt.Sprintf("%d/x", i%100)+fmt.Sprint(i)] = &fstest.MapFile{}
	}
	folders := fstest.MapFS{}
	for i := range 2 * MaxFiles {
		folders[fmt.Sprintf("%d/%d", i%50, i)] = &fstest.MapFile{Mode: fs.ModeDir}
	}
	for name, img := range map[string]fs.FS{
		"many files": many, "many folders": folders, "deep": fstest.MapFS{"1/2/3/4/5/6/7/8/9/10": {}},
		"large": fstest.MapFS{"a": large, "b": large},
	} {
		if files, err := FilesOf(img); !errors.Is(err, errBomb) {
			t.Errorf("%s: %d files, %v", name, len(files), err)
		}
	}
	delete(many, "0/x0")
	if files, err := FilesOf(many); err != nil || len(files) != MaxFiles {
		t.Errorf("as many as there may be: %d files, %v", len(files), err)
	}
}

// FuzzSeed holds that with any input the archive has no name outside of its directory.
func FuzzSeed(f *testing.F) {
	f.Add([]byte(object))
	f.Add([]byte(`"aGVsbG8="`))
	img, err := ISO([]File{{Path: "a/b", Data: []byte("c")}}, noon)
	if err != nil {
		f.Fatal(err)
	}
	text, _ := json.Marshal(base64.StdEncoding.EncodeToString(img))
	f.Add(text)
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := Seed(raw, "x", noon)
		if err != nil {
			return
		}
		for name := range unpack(t, b) {
			if strings.Contains("/"+name+"/", "/../") || !strings.HasPrefix(name, "var/") && name != "config-2.iso" {
				t.Fatalf("name %q", name)
			}
		}
	})
}
