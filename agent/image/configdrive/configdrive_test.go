package configdrive

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	backend "github.com/diskfs/go-diskfs/backend/file"
	diskfs "github.com/diskfs/go-diskfs/filesystem/iso9660"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/iso9660"
	"github.com/ingot-metal/ingot/proto/drive"
	"github.com/ingot-metal/ingot/test/kit"
)

const mib = 1 << 20

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

const object = `{"meta_data": {"uuid": "11111111-2222-4333-8444-555555555555", "hostname": "node-1", "big": 12345678901234567890},
 "user_data": "#cloud-config\nhostname: node-1\n", "network_data": {"links": []}, "vendor_data": {"x": 1}}`

var wantFiles = map[string]string{
	"openstack/latest/meta_data.json":    `{"big":12345678901234567890,"hostname":"node-1","uuid":"11111111-2222-4333-8444-555555555555"}`,
	"openstack/latest/user_data":         "#cloud-config\nhostname: node-1\n",
	"openstack/latest/network_data.json": `{"links": []}`,
	"openstack/latest/vendor_data2.json": `{"x": 1}`,
}

func build(t testing.TB, raw string, sector int) []byte {
	t.Helper()
	b, _, err := Build(t.Context(), json.RawMessage(raw), sector, noon, Servers{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func saved(t *testing.T, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "drive")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	kit.NeedPrograms(t, name)
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestISOIsWhatToolsExpect(t *testing.T) {
	img := build(t, object, 512)
	if !bytes.Equal(img, build(t, object, 512)) {
		t.Error("the same input gave different bytes")
	}
	path := saved(t, img)
	if out := run(t, "isoinfo", "-d", "-i", path); !strings.Contains(out, "Volume id: config-2") ||
		!strings.Contains(out, "Joliet with UCS level 3") ||
		!strings.Contains(out, "Rock Ridge signatures version 1 found") {
		t.Errorf("isoinfo -d:\n%s", out)
	}
	for name, want := range wantFiles {
		for _, tree := range []string{"-R", "-J"} {
			if out := run(t, "isoinfo", tree, "-x", "/"+name, "-i", path); out != want {
				t.Errorf("isoinfo %s %s = %q, want %q", tree, name, out, want)
			}
		}
	}
	listing := run(t, "isoinfo", "-R", "-l", "-i", path)
	if !strings.Contains(listing, "-r--r--r--") ||
		!strings.Contains(listing, "dr-xr-xr-x   3    0    0            2048") {
		t.Errorf("isoinfo -l:\n%s", listing)
	}
	if out := run(t, "blkid", "-p", "-o", "export", path); !strings.Contains(out, "TYPE=iso9660") ||
		!strings.Contains(out, "LABEL=config-2") {
		t.Errorf("blkid: %s", out)
	}

	// A reader of somebody else's.
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fs, err := diskfs.Read(backend.New(f, true), int64(len(img)), 0, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range wantFiles {
		got, err := fs.ReadFile(name)
		if err != nil || string(got) != want {
			t.Errorf("go-diskfs: %s = %q, %v", name, got, err)
		}
	}
}

func TestFATIsWhatToolsExpect(t *testing.T) {
	img := build(t, object, 4096)
	path := saved(t, img)
	run(t, "fsck.fat", "-n", path)
	if out := run(t, "blkid", "-p", "-o", "export", path); !strings.Contains(out, "TYPE=vfat") ||
		!strings.Contains(strings.ToLower(out), "label=config-2") {
		t.Errorf("blkid: %s", out)
	}
	for name, want := range wantFiles {
		if out := run(t, "mtype", "-i", path, "::/"+name); out != want {
			t.Errorf("mtype %s = %q, want %q", name, out, want)
		}
	}
	if sector := binary.LittleEndian.Uint16(img[11:]); sector != 4096 {
		t.Errorf("sectors of %d bytes", sector)
	}
	// Larger than one-sector clusters can hold.
	big := strings.Repeat("0123456789abcdef", 30*mib/16)
	raw, _ := json.Marshal(map[string]any{"user_data": big})
	path = saved(t, build(t, string(raw), 4096))
	run(t, "fsck.fat", "-n", path)
	if out := run(t, "mtype", "-i", path, "::/openstack/latest/user_data"); out != big {
		t.Error("30 MiB of user data did not survive")
	}
}

func TestManyFilesAndNames(t *testing.T) {
	var in []file
	for i := range 90 {
		in = append(in, file{Path: fmt.Sprintf("openstack/content/a-rather-long-file-name-with-number-%03d.tar.gz", i),
			Data: []byte(fmt.Sprint("content ", i))})
	}
	in = append(in, file{Path: "openstack/latest/ü.txt", Data: []byte("umlaut")}, file{Path: "README", Data: nil},
		file{Path: "a.b.c", Data: []byte("dots")}, file{Path: "A.b.c", Data: []byte("case")})
	for _, sector := range []int{512, 4096} {
		if sector == 4096 { // FAT does not tell A from a
			in = in[:len(in)-1]
		}
		img, _, err := makeFS(in, sector, noon)
		if err != nil {
			t.Fatal(err)
		}
		path := saved(t, img)
		if sector == 4096 {
			run(t, "fsck.fat", "-n", path)
			for _, f := range in[:90] {
				if out := run(t, "mtype", "-i", path, "::/"+f.Path); out != string(f.Data) {
					t.Errorf("mtype %s = %q", f.Path, out)
				}
			}
			continue
		}
		for _, f := range []file{in[0], in[89], in[91], in[92], in[93]} {
			if out := run(t, "isoinfo", "-R", "-x", "/"+f.Path, "-i", path); out != string(f.Data) {
				t.Errorf("isoinfo %s = %q, want %q", f.Path, out, f.Data)
			}
		}
		back, err := drive.FilesOfISO(img)
		if err != nil || len(back) != len(in) {
			t.Fatalf("read back %d of %d files: %v", len(back), len(in), err)
		}
		got := map[string]string{}
		for _, f := range back {
			got[f.Path] = string(f.Data)
		}
		for _, f := range in {
			if got[f.Path] != string(f.Data) {
				t.Errorf("read back %s = %q, want %q", f.Path, got[f.Path], f.Data)
			}
		}
	}
}

// TestForeignISO reads what genisoimage makes, with and without Rock Ridge and Joliet.
func TestForeignISO(t *testing.T) {
	dir := t.TempDir()
	for name, content := range wantFiles {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, opts := range [][]string{{"-r"}, {"-J"}, {"-r", "-J"}, {"-iso-level", "4"}} {
		out := filepath.Join(t.TempDir(), "x.iso")
		run(t, "genisoimage", append(append([]string{"-quiet", "-V", "config-2", "-o", out}, opts...), dir)...)
		img, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		files, err := drive.FilesOfISO(img)
		if err != nil || len(files) != len(wantFiles) {
			t.Errorf("%v: %d files, %v", opts, len(files), err)
		}
		for _, f := range files {
			if wantFiles[f.Path] != string(f.Data) {
				t.Errorf("%v: %s = %q", opts, f.Path, f.Data)
			}
		}
		// On large sectors it is rebuilt.
		fat, format, err := Build(t.Context(), quoted(base64.StdEncoding.EncodeToString(img)), 4096, noon, Servers{})
		if err != nil || format != "vfat" {
			t.Fatalf("%v: rebuild: %s, %v", opts, format, err)
		}
		if out := run(t, "mtype", "-i", saved(t, fat),
			"::/openstack/latest/user_data"); out != wantFiles["openstack/latest/user_data"] {
			t.Errorf("%v: rebuilt user_data = %q", opts, out)
		}
	}
}

func quoted(s string) json.RawMessage {
	b, _ := json.Marshal(s)
	return b
}

func zipped(b []byte) []byte {
	var out bytes.Buffer
	z, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	z.Write(b)
	z.Close()
	return out.Bytes()
}

func TestEveryWayToHandInAnISO(t *testing.T) {
	iso := build(t, object, 512)
	b64 := base64.StdEncoding.EncodeToString
	var lines strings.Builder
	for s := b64(zipped(iso)); s != ""; s = s[min(76, len(s)):] {
		lines.WriteString(s[:min(76, len(s))] + "\r\n")
	}
	body := map[string][]byte{"/iso": iso, "/gz": zipped(iso), "/b64": []byte(lines.String())}
	tries := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/gz" && tries == 0 {
			tries++
			http.Error(w, "later", http.StatusServiceUnavailable)
			return
		}
		if body[r.URL.Path] == nil {
			http.NotFound(w, r)
			return
		}
		w.Write(body[r.URL.Path])
	}))
	defer srv.Close()
	for name, s := range map[string]string{
		"base64 of gzip": b64(zipped(iso)), "base64 of plain": b64(iso), "wrapped": lines.String(),
		"not padded": strings.TrimRight(b64(zipped(iso)), "="), "URL of ISO": srv.URL + "/iso",
		"URL of gzip": srv.URL + "/gz", "URL of base64": srv.URL + "/b64?token=secret",
	} {
		got, format, err := Build(t.Context(), quoted(s), 512, noon, Servers{})
		if err != nil || format != "iso9660" || !bytes.Equal(got, iso) {
			t.Errorf("%s: %d bytes, %s, %v", name, len(got), format, err)
		}
	}
	_, _, err := Build(t.Context(),
		quoted("http://user:hunter2@"+strings.TrimPrefix(srv.URL, "http://")+"/none?sig=topsecret"), 512, noon,
		Servers{})
	if err == nil || !strings.Contains(err.Error(), "404") || strings.Contains(err.Error(), "hunter2") ||
		strings.Contains(err.Error(), "topsecret") {
		t.Errorf("URL that is not there: %v", err)
	}
}

func TestBuildRefuses(t *testing.T) {
	b64 := base64.StdEncoding.EncodeToString
	iso := build(t, object, 512)
	const bomb = 80 * mib
	for name, raw := range map[string]json.RawMessage{
		"nothing": nil, "null": json.RawMessage("null"), "number": json.RawMessage("5"), "array": json.RawMessage("[]"),
		"unknown key":             json.RawMessage(`{"metadata": {}}`),
		"meta_data no object":     json.RawMessage(`{"meta_data": "x"}`),
		"network_data no object":  json.RawMessage(`{"network_data": []}`),
		"not base64":              quoted("*** not base64 ***"),
		"base64 of nothing known": quoted(b64([]byte("hello world"))),
		"truncated gzip":          quoted(b64(zipped(iso)[:500])),
		"bomb":                    quoted(b64(zipped(make([]byte, bomb)))),
	} {
		_, _, err := Build(t.Context(), raw, 512, noon, Servers{})
		var se *step.Error
		if !errors.As(err, &se) || se.Remedy == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUserDataAndInstanceID(t *testing.T) {
	files, err := drive.Files(json.RawMessage(`{"user_data": {"ignition": {"version": "3.0.0"}}, "vendor_data": null}`),
		"")
	if err != nil || len(files) != 2 {
		t.Fatalf("%v, %v", files, err)
	}
	if string(files[1].Data) != `{"ignition": {"version": "3.0.0"}}` {
		t.Errorf("user_data = %s", files[1].Data)
	}
	var meta map[string]string
	if err := json.Unmarshal(files[0].Data, &meta); err != nil || len(meta["uuid"]) != 36 {
		t.Errorf("meta_data = %s", files[0].Data)
	}
}

func FuzzReadISO(f *testing.F) {
	f.Add(build(f, object, 512)[16*iso9660.Sector:])
	f.Fuzz(func(t *testing.T, b []byte) {
		files, err := drive.FilesOfISO(append(make([]byte, 16*iso9660.Sector), b...))
		if err != nil {
			return
		}
		for _, x := range files {
			if strings.Contains(x.Path, "..") && strings.Contains(x.Path, "/../") {
				t.Fatalf("path %q", x.Path)
			}
		}
		if _, err := makeFAT(files, 4096, noon); err == nil {
			return
		}
	})
}

func FuzzBuild(f *testing.F) {
	f.Add(object)
	f.Add(`"aGVsbG8="`)
	f.Fuzz(func(t *testing.T, raw string) {
		if strings.Contains(raw, "http") {
			return
		}
		Build(context.Background(), json.RawMessage(raw), 512, noon, Servers{})
	})
}

// pendingDisk is a disk after write_image.
func pendingDisk(t *testing.T, size int64, sector int) (*fake.Disks, *fake.Disk, *step.Facts) {
	t.Helper()
	m := fake.NewDisks(t.TempDir())
	f := m.Add(fake.DiskSpec{Name: "vda", Serial: "s", Size: size, SectorSize: sector, Fill: 0xa5})
	f.WriteAt(make([]byte, mib), 0)
	disks, err := disk.List(t.Context(), m.Root())
	if err != nil {
		t.Fatal(err)
	}
	head := make([]byte, mib)
	head[510], head[511] = 0x55, 0xaa
	head[446+4] = 0x83
	binary.LittleEndian.PutUint32(head[446+8:], 2048)
	binary.LittleEndian.PutUint32(head[446+12:], 4096)
	p, err := disk.NewPending(disks[0], head, nil, 3*mib, 3*mib)
	if err != nil {
		t.Fatal(err)
	}
	facts := &step.Facts{}
	disk.SetPending(facts, p)
	return m, f, facts
}

func call(facts *step.Facts, args string) *step.Call {
	return &step.Call{Args: json.RawMessage(args), Log: slog.New(slog.DiscardHandler), Facts: facts,
		Report: func(step.Progress) {}}
}

func TestStepWritesTheDriveAndItsPartition(t *testing.T) {
	for _, size := range []int64{100 * mib, 8 * mib} { // with room for 64 MiB, and without
		m, f, facts := pendingDisk(t, size, 512)
		var start int64
		for range 2 { // a step may be run twice
			out, err := WriteStep(m)(t.Context(), call(facts, `{"configdrive": `+object+`}`))
			if err != nil {
				t.Fatal(err)
			}
			r := out.Result.(Result)
			if r.Partition != 2 || r.Format != "iso9660" || start != 0 && r.Start != start {
				t.Errorf("result = %+v", r)
			}
			start = r.Start
		}
		done, err := disk.Commit(t.Context(), facts, m, nil)
		if err != nil {
			t.Fatal(err)
		}
		part := done.Partitions[1]
		if want := map[bool]int64{true: 64 * mib, false: mib}[size == 100*mib]; part.Size != want ||
			part.Start != start {
			t.Errorf("partition %+v, want %d bytes at %d", part, want, start)
		}
		got := make([]byte, part.Size)
		if _, err := f.ReadAt(got, part.Start); err != nil {
			t.Fatal(err)
		}
		if out := run(t, "isoinfo", "-R", "-x", "/openstack/latest/user_data", "-i",
			saved(t, got)); out != wantFiles["openstack/latest/user_data"] {
			t.Errorf("user_data on the disk = %q", out)
		}
		if bytes.Contains(got, bytes.Repeat([]byte{0xa5}, 512)) {
			t.Error("old data shows behind the config drive")
		}
	}
}

func TestStepFailures(t *testing.T) {
	m, f, facts := pendingDisk(t, 8*mib, 512)
	step1 := WriteStep(m)
	if _, err := step1(t.Context(), call(&step.Facts{}, `{"configdrive": {}}`)); err == nil ||
		!strings.Contains(err.Error(), "no image has been written") {
		t.Errorf("without an image: %v", err)
	}
	if _, err := step1(t.Context(), call(facts, `{}`)); err == nil {
		t.Error("without a config drive: no error")
	}
	big, _ := json.Marshal(map[string]any{"configdrive": map[string]any{"user_data": strings.Repeat("x", 4*mib+mib/4)}})
	if _, err := step1(t.Context(), call(facts, string(big))); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("no room on the disk: %v", err)
	}
	f.Fail(func(kind string, off, n int64) error {
		if kind == "sync" {
			return errors.New("medium error")
		}
		return nil
	})
	if _, err := step1(t.Context(), call(facts, `{"configdrive": {}}`)); err == nil ||
		!strings.Contains(err.Error(), "medium error") || !strings.Contains(err.Error(), "/dev/vda") {
		t.Errorf("a fault of the disk: %v", err)
	}
}

func TestTruncatedISO(t *testing.T) {
	iso := build(t, object, 512)
	asArg := func(b []byte) json.RawMessage {
		raw, err := json.Marshal(base64.StdEncoding.EncodeToString(b))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for _, sector := range []int{512, 4096} {
		if _, _, err := Build(t.Context(), asArg(iso), sector, noon, Servers{}); err != nil {
			t.Errorf("all of it, sectors of %d: %v", sector, err)
		}
		if _, _, err := Build(t.Context(), asArg(append(bytes.Clone(iso), make([]byte, 150*iso9660.Sector)...)), sector,
			noon, Servers{}); err != nil {
			t.Errorf("padded, sectors of %d: %v", sector, err)
		}
		if _, _, err := Build(t.Context(), asArg(iso[:len(iso)-1]), sector, noon, Servers{}); err == nil ||
			!strings.Contains(err.Error(), "truncated") {
			t.Errorf("one byte less, sectors of %d: %v", sector, err)
		}
	}
}

// TestForesee: the writer of the image gets the size of the later config drive, or its fault, and one from a URL is
// fetched once.
func TestForesee(t *testing.T) {
	asked := 0
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		switch r.URL.Path {
		case "/object":
			w.Write([]byte(" \n" + object))
		case "/large":
			w.Header().Set("Content-Length", fmt.Sprint(2*MaxSize))
			w.Write([]byte("some of it"))
		default:
			http.NotFound(w, r)
		}
	}))
	defer srv.Close()
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
	args := func(drive any, ca string) json.RawMessage {
		raw, err := json.Marshal(map[string]any{"configdrive": drive, "image_ca": ca})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	foresee := func(facts *step.Facts, raw json.RawMessage) (int64, error) {
		c := call(facts, `{}`)
		c.Later = []step.Planned{{Interface: "deploy", Name: "inject_files"},
			{Interface: "deploy", Name: "write_configdrive", Args: raw}}
		return Foresee(t.Context(), c, 512)
	}
	if n, err := Foresee(t.Context(), call(&step.Facts{}, `{}`), 512); n != 0 || err != nil {
		t.Errorf("without a config drive: %d, %v", n, err)
	}
	if n, err := foresee(&step.Facts{}, json.RawMessage(`{"configdrive": `+object+`}`)); n != int64(
		len(build(t, object, 512))) || err != nil {
		t.Errorf("an object: %d, %v", n, err)
	}
	for _, c := range []struct {
		raw         json.RawMessage
		err, remedy string
	}{
		{args("bm90IGEgZHJpdmU=", ""), "config drive: ", "ISO 9660"},
		{json.RawMessage(`{"drive": 1}`), "config drive: ", "arguments"},
		{args(srv.URL+"/gone", ca), "404", "correct the config drive's URL, or put the config drive there"},
		{args(srv.URL+"/large", ca), drive.ErrTooLarge.Error(), "make it smaller"},
		{args(srv.URL+"/object", ""), "unknown authority", "image_ca"},
		{args("http://", ""), "config drive's URL", "http or https URL"},
	} {
		if _, err := foresee(&step.Facts{}, c.raw); err == nil || !strings.Contains(err.Error(), c.err) ||
			!strings.Contains(step.AsError(err).Remedy, c.remedy) {
			t.Errorf("%s: %v (%s)", c.raw, err, step.AsError(err).Remedy)
		}
	}

	asked = 0
	m, _, facts := pendingDisk(t, 100*mib, 512)
	raw := args(srv.URL+"/object", ca)
	n, err := foresee(facts, raw)
	if err != nil {
		t.Fatal(err)
	}
	for want := range 2 { // kept for one run
		out, err := WriteStep(m)(t.Context(), call(facts, string(raw)))
		if err != nil {
			t.Fatal(err)
		}
		if r := out.Result.(Result); r.Bytes != n || asked != want+1 {
			t.Errorf("run %d: %+v, %d bytes were foreseen, asked %d times", want, r, n, asked)
		}
	}
	// Of other arguments, or for another disk, it is not the same drive.
	for sector, raw := range map[int]json.RawMessage{512: args(srv.URL+"/object?v=2", ca),
		4096: args(srv.URL+"/object", ca)} {
		if _, err := foresee(facts, args(srv.URL+"/object", ca)); err != nil {
			t.Fatal(err)
		}
		before := asked
		var a writeArgs
		if err := json.Unmarshal(raw, &a); err != nil {
			t.Fatal(err)
		}
		if _, _, err := a.built(t.Context(), call(facts, `{}`), sector); err != nil || asked != before+1 {
			t.Errorf("sectors of %d: asked %d times more, %v", sector, asked-before, err)
		}
	}
}

// TestOddLabel: a finished image that most systems would not find is taken, but not without a word.
func TestOddLabel(t *testing.T) {
	iso, fat := build(t, object, 512), build(t, object, 4096)
	other := bytes.Clone(iso)
	copy(other[16*iso9660.Sector+40:], "MY-CONFIG ")
	seed := bytes.Clone(iso)
	copy(seed[16*iso9660.Sector+40:], "cidata    ")
	for name, c := range map[string]struct {
		payload []byte
		want    string
	}{"ISO": {iso, ""}, "FAT": {fat, ""}, "NoCloud": {seed, ""}, "other": {other, `"MY-CONFIG", not "config-2"`}} {
		if got := OddLabel(c.payload); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q", name, got)
		}
		m, _, facts := pendingDisk(t, 100*mib, 512)
		raw, _ := json.Marshal(map[string]string{"configdrive": base64.StdEncoding.EncodeToString(c.payload)})
		out, err := WriteStep(m)(t.Context(), call(facts, string(raw)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := out.Result.(Result).Warning; (got == "") != (c.want == "") {
			t.Errorf("%s: warned %q", name, got)
		}
	}
}
