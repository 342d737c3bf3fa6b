package standalone

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/image/configdrive"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/test/kit"
)

// wantOld fails when what dirty made was written to.
func wantOld(t *testing.T, file string) {
	t.Helper()
	if off := changed(t, file); off >= 0 {
		t.Errorf("the disk was touched in the MiB from byte %d on", off)
	}
}

// changed returns the MiB in which what dirty made was written to, by its offset, or -1.
func changed(t *testing.T, file string) int {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	old, got := bytes.Repeat([]byte{0xa5}, mib), make([]byte, mib)
	for off := 0; ; off += mib {
		n, err := io.ReadFull(f, got)
		if !bytes.Equal(got[:n], old[:n]) {
			return off
		}
		switch {
		case err == io.EOF && off > 0, err == io.ErrUnexpectedEOF:
			return -1
		case err != nil:
			t.Fatalf("the disk can't be read at byte %d: %v", off, err)
		}
	}
}

func TestBadConfigDriveLeavesTheDisk(t *testing.T) {
	img := mbrImage(4 * mib)
	path, file := dirty(t, 80*mib, false)
	iso, _, err := configdrive.Build(t.Context(), []byte(`{"meta_data": {}}`), 512, time.Now(), configdrive.Servers{})
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(iso)
	z.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	defer gone.Close()
	text := base64.StdEncoding.EncodeToString(iso)
	for name, content := range map[string][]byte{
		"a misspelt name":   []byte(`{"meta_dta": {}}`),
		"a list":            []byte(`[1, 2]`),
		"nothing":           {},
		"YAML":              []byte("meta_data:\n  hostname: web-1\n"),
		"random bytes":      bytes.Repeat([]byte{0x91, 0x00, 0xfe}, 1000),
		"cut base64":        []byte(text[:len(text)-len(text)/3-1]),
		"cut gzip":          packed.Bytes()[:packed.Len()/2],
		"a cut image":       iso[:len(iso)-4096],
		"a URL of nothing":  nil,
		"a folder of files": []byte("openstack/latest/meta_data.json"),
	} {
		arg := gone.URL + "/drive"
		if content != nil {
			arg = writeFile(t, "drive", content)
		}
		raw, err := ReadConfigDrive(arg)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		o := Options{Image: serve(t, img), Digest: digest(img), Disk: path, ConfigDrive: raw}
		_, werr := Write(t.Context(), o, nil, silent)
		_, eerr := Examine(t.Context(), o, nil)
		rerr := Rehearse(t.Context(), o, nil) // before the question
		var f *Failure
		if !errors.As(werr, &f) || f.Left != Untouched || eerr == nil || rerr == nil || werr.Error() != eerr.Error() ||
			rerr.Error() != eerr.Error() ||
			!strings.HasPrefix(werr.Error(), "config drive: ") || step.AsError(werr).Remedy == "" {
			t.Errorf("%s: Write says %v, Examine %v, Rehearse %v", name, werr, eerr, rerr)
		}
	}
	wantOld(t, file)
}

// TestConfigDriveIsFetchedOnce: the checked config drive is written, even if the server changes it later.
func TestConfigDriveIsFetchedOnce(t *testing.T) {
	img := mbrImage(4 * mib)
	path, _ := dirty(t, 80*mib, false)
	iso, _, err := configdrive.Build(t.Context(), []byte(`{"meta_data": {}}`), 512, time.Now(), configdrive.Servers{})
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) > 1 {
			http.NotFound(w, r)
			return
		}
		w.Write(iso)
	}))
	defer s.Close()
	raw, _ := json.Marshal(s.URL + "/drive")
	o := Options{Image: serve(t, img), Digest: digest(img), Disk: path, ConfigDrive: raw}
	if _, err := Write(t.Context(), o, nil, silent); err != nil || asked.Load() != 1 {
		t.Errorf("fetched %d times: %v", asked.Load(), err)
	}
}

// TestNoRoomForTheConfigDrive has images whose tables leave no room for a config drive. They are refused while the old
// system is there, in every form, and a dry run says the same.
func TestNoRoomForTheConfigDrive(t *testing.T) {
	four := mbrImage(6 * mib)
	for i := range 4 {
		e := four[446+16*i:]
		e[4] = 0xa5
		binary.LittleEndian.PutUint32(e[8:], uint32(2048*(1+i)))
		binary.LittleEndian.PutUint32(e[12:], 2048)
	}
	for name, c := range map[string]struct {
		img  []byte
		size int
		data int // of the user
		want string
	}{
		"a disk of the image's size":   {mbrImage(4 * mib), 4 * mib, 1000, "no room"},
		"four primary partitions":      {four, 24 * mib, 1000, "all four primary partitions"},
		"a drive larger than the room": {mbrImage(4 * mib), 6 * mib, mib + mib/16, "no room"},
	} {
		path, file := dirty(t, c.size, false)
		sum, _ := published(t, t.TempDir(), "img", c.img)
		pipe := func() string { // can be read once
			path := filepath.Join(t.TempDir(), "pipe")
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
			go os.WriteFile(path, c.img, 0) // never read completely
			return path
		}
		var z bytes.Buffer
		w, err := gzip.NewWriterLevel(&z, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		w.Write(c.img)
		w.Close()
		drive, _ := json.Marshal(map[string]string{"user_data": strings.Repeat("x", c.data)})
		for form, image := range map[string]string{"raw": serve(t, c.img), "gzip": serve(t, z.Bytes()),
			"published": sum, "pipe": ""} {
			o := Options{Image: image, Unverified: true, Disk: path, ConfigDrive: drive}
			if form == "pipe" {
				o.Image = pipe()
			}
			_, eerr := Examine(t.Context(), o, nil)
			if form == "pipe" {
				o.Image = pipe()
			}
			_, werr := Write(t.Context(), o, nil, silent)
			var f *Failure
			if !errors.As(werr, &f) || f.Left != Untouched || !strings.Contains(werr.Error(), c.want) ||
				!strings.Contains(werr.Error(), "config-2") ||
				eerr == nil || eerr.Error() != werr.Error() || step.AsError(werr).Remedy == "" {
				t.Errorf("%s, %s: Write says %v, Examine %v", name, form, werr, eerr)
			}
			if form != "raw" {
				continue
			}
			wantOld(t, file)
			o.ConfigDrive = nil // so that nothing else is refused
			if _, err := Examine(t.Context(), o, nil); err != nil {
				t.Errorf("%s, without a config drive: %v", name, err)
			}
		}
		wantOld(t, file)
	}
}

// TestOddLabelIsReported has a config drive that most systems won't find, for a write and a dry run.
func TestOddLabelIsReported(t *testing.T) {
	img := mbrImage(4 * mib)
	path, _ := dirty(t, 80*mib, false)
	iso, _, err := configdrive.Build(t.Context(), []byte(`{"meta_data": {}}`), 512, time.Now(), configdrive.Servers{})
	if err != nil {
		t.Fatal(err)
	}
	copy(iso[16*2048+40:], "MY-CONFIG ")
	raw, err := ReadConfigDrive(writeFile(t, "drive", iso))
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Image: serve(t, img), Digest: digest(img), Disk: path, ConfigDrive: raw}
	p, err := Examine(t.Context(), o, nil)
	if err != nil || !strings.Contains(strings.Join(p.Notes, " "), "MY-CONFIG") {
		t.Errorf("dry run: %+v, %v", p, err)
	}
	r, err := Write(t.Context(), o, nil, silent)
	if err != nil || !strings.Contains(strings.Join(r.Notes, " "), "MY-CONFIG") {
		t.Errorf("write: %+v, %v", r, err)
	}
}

// TestFaultsOfChecksumFiles: a fault of a checksum file is reported as such, and not as one of the image.
func TestFaultsOfChecksumFiles(t *testing.T) {
	img := mbrImage(4 * mib)
	path, file := dirty(t, 16*mib, false)
	gone := httptest.NewServer(http.NotFoundHandler())
	defer gone.Close()
	sums := serve(t, []byte("d41d8cd98f00b204e9800998ecf8427e  image\n"))
	for url, want := range map[string]string{
		gone.URL:       "correct the checksum file's URL, or put the checksum file there",
		"https://[::1": "correct the checksum file's URL",
		sums:           "--sha256",
	} {
		_, err := Write(t.Context(), Options{Image: serve(t, img), Checksum: url, Disk: path}, nil, silent)
		if remedy := step.AsError(err).Remedy; err == nil || !strings.Contains(remedy, want) ||
			strings.Contains(remedy, "conductor") || strings.Contains(remedy, "--image") {
			t.Errorf("%s: %v (%s)", url, err, remedy)
		}
	}
	wantOld(t, file)
}

func TestWriteProtected(t *testing.T) {
	kit.NeedRoot(t)
	img := mbrImage(4 * mib)
	_, file := dirty(t, 16*mib, false)
	loop := kit.Loop(t, file, "--read-only")
	o := Options{Image: serve(t, img), Digest: digest(img), Disk: loop}
	_, werr := Write(t.Context(), o, nil, silent)
	_, eerr := Examine(t.Context(), o, nil)
	for _, err := range []error{werr, eerr} {
		if err == nil || !strings.Contains(err.Error(), "write-protected") ||
			!strings.Contains(step.AsError(err).Remedy, "blockdev --setrw") {
			t.Errorf("a write-protected disk: %v (%s)", err, step.AsError(err).Remedy)
		}
	}
}

// refusing is a device that answers every write with an error, after n bytes.
type refusing struct {
	disk.Device
	n   int
	err error
}

func (r refusing) WriteAt([]byte, int64) (int, error) { return r.n, r.err }
func (r refusing) Punch(int64, int64) error           { return r.err }
func (r refusing) SectorSize() int                    { return 512 }

func TestWhatWasNotWrittenIsUntouched(t *testing.T) {
	for _, c := range []struct {
		n     int
		err   error
		write Left
		punch Left
	}{
		{0, unix.EPERM, Untouched, Untouched},
		{0, &os.PathError{Op: "write", Path: "/dev/x", Err: unix.EROFS}, Untouched, Untouched},
		{0, unix.EACCES, Untouched, Untouched},
		{0, unix.EBADF, Untouched, Untouched},
		{512, unix.EPERM, Doubtful, Untouched},
		{0, unix.EIO, Doubtful, Broken},
		{0, nil, Doubtful, Broken},
	} {
		w := watched{refusing{n: c.n, err: c.err}, &seen{}}
		w.WriteAt(bytes.Repeat([]byte{1}, 4096), 0)
		if got := w.seen.left(); got != c.write {
			t.Errorf("a write of %d bytes, %v: %s, want %s", c.n, c.err, got, c.write)
		}
		w.seen = &seen{}
		w.Punch(0, 4096)
		if got := w.seen.left(); got != c.punch {
			t.Errorf("a hole, %v: %s, want %s", c.err, got, c.punch)
		}
	}
}

func TestPlanKeepsSecrets(t *testing.T) {
	img := mbrImage(4 * mib)
	path, _ := dirty(t, 16*mib, false)
	o := Options{Image: strings.Replace(serve(t, img), "http://", "http://user:secret@", 1) + "?token=secret",
		Digest: digest(img), Disk: path}
	p, err := Examine(t.Context(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{p.Text(), string(asJSON)} {
		if strings.Contains(text, "secret") || !strings.Contains(text, "/image") {
			t.Errorf("told: %s", text)
		}
	}
}

// TestInUseThroughALoopDevice has the file of a mounted loop device for a disk, by itself and by another loop device.
func TestInUseThroughALoopDevice(t *testing.T) {
	kit.NeedRoot(t)
	img := mbrImage(4 * mib)
	_, file := dirty(t, 16*mib, false)
	one, two := kit.Loop(t, file), kit.Loop(t, file)
	fd, err := unix.Open(one, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0) // as a mount does
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Image: serve(t, img), Digest: digest(img)}
	for _, o.Disk = range []string{file, two, one} {
		_, werr := Write(t.Context(), o, nil, silent)
		_, eerr := Examine(t.Context(), o, nil)
		for _, err := range []error{werr, eerr} {
			if err == nil || !strings.Contains(err.Error(), one) ||
				!strings.Contains(step.AsError(err).Remedy, "release it") {
				t.Errorf("%s, with %s in use: %v (%s)", o.Disk, one, err, step.AsError(err).Remedy)
			}
		}
	}
	wantOld(t, file)
	unix.Close(fd)
	for _, o.Disk = range []string{file, two} {
		if _, err := Write(t.Context(), o, nil, silent); err != nil {
			t.Errorf("%s, with nothing in use: %v", o.Disk, err)
		}
	}
}

func TestRemedyOfWhatCannotBeOpened(t *testing.T) {
	for err, want := range map[error]string{
		unix.EBUSY: "lsblk", unix.EACCES: "as root", unix.EPERM: "as root", unix.EROFS: "write protection",
		unix.EIO: "",
	} {
		got := step.AsError(notOpened(&os.PathError{Op: "open", Path: "/dev/x", Err: err})).Remedy
		if !strings.Contains(got, want) || strings.Contains(got, "lsblk") != errors.Is(err, unix.EBUSY) {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
