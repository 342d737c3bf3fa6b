package ramdisk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/u-root/u-root/pkg/cpio"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/proto/drive"
)

// box is a machine with a folder for its root, which remembers what it was to load.
type box struct {
	root           string
	refuse         error
	kernel, initrd []byte
	hasInitrd      bool
	cmdline        string
}

func newBox(t *testing.T, kib int) *box {
	t.Helper()
	b := &box{root: t.TempDir()}
	if err := errors.Join(os.MkdirAll(filepath.Join(b.root, "proc"), 0o755),
		os.WriteFile(filepath.Join(b.root, "proc/meminfo"),
			fmt.Appendf(nil, "MemTotal: 1 kB\nMemAvailable:   %d kB\n", kib), 0o644)); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *box) Root() string { return b.root }

func (b *box) LoadKernel(_ context.Context, kernel, initrd *os.File, cmdline string) error {
	if b.refuse != nil {
		return b.refuse
	}
	// By offset: where the files stand must not matter.
	all := func(f *os.File) []byte {
		data, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40))
		if err != nil {
			panic(err)
		}
		return data
	}
	b.kernel, b.cmdline = all(kernel), cmdline
	if initrd != nil {
		b.hasInitrd, b.initrd = true, all(initrd)
	}
	return nil
}

var kernel, ramdisk = bytes.Repeat([]byte("kernel"), 300_000), bytes.Repeat([]byte("ramdisk"), 300_000)

func sum(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

func serve(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/k":
			w.Write(kernel)
		case "/r":
			w.Write(ramdisk)
		case "/empty":
		case "/iso":
			http.ServeContent(w, r, "", time.Time{},
				bytes.NewReader(
					iso(t, "set default=0\nmenuentry 'Live' {\n linux /live/vmlinuz boot=live quiet\n initrd /live/initrd\n}\n")))
		case "/odd-iso":
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(iso(t, "configfile (hd7,gpt3)/$x/y\n")))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func iso(t *testing.T, config string) []byte {
	t.Helper()
	img, err := drive.ISO(
		[]drive.File{{Path: "boot/grub/grub.cfg", Data: []byte(config)}, {Path: "live/vmlinuz", Data: kernel},
			{Path: "live/initrd", Data: ramdisk}}, time.Unix(1e9, 0))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// The kernel of an ISO image's loader is loaded, and an unknown configuration is left to the firmware.
func TestLoadISO(t *testing.T) {
	url := serve(t)
	b := newBox(t, 1<<20)
	r, err := run(t, b, net.HardwareAddr{2, 0, 0, 0, 0, 1}, map[string]any{"boot_iso": url + "/iso?sig=secret"})
	if err != nil || !r.Loaded || !bytes.Equal(b.kernel, kernel) || !bytes.Equal(b.initrd, ramdisk) ||
		b.cmdline != "boot=live quiet" && !strings.HasSuffix(b.cmdline, " boot=live quiet") {
		t.Errorf("%+v, %v: kernel of %d bytes, initrd of %d, %q", r, err, len(b.kernel), len(b.initrd), b.cmdline)
	}
	for _, path := range []string{"/odd-iso", "/k"} {
		b = newBox(t, 1<<20)
		if r, err := run(t, b, nil, map[string]any{"boot_iso": url + path + "?sig=secret"}); err != nil || r.Loaded ||
			!strings.HasPrefix(r.Reason, "the ISO image ") || strings.Contains(r.Reason, "secret") || b.kernel != nil {
			t.Errorf("%s: %+v, %v", path, r, err)
		}
	}
	b = newBox(t, 2000)
	if r, err := run(t, b, nil, map[string]any{"boot_iso": url + "/iso"}); err != nil || r.Loaded ||
		!strings.Contains(r.Reason, "does not fit") {
		t.Errorf("with little memory: %+v, %v", r, err)
	}
}

func run(t *testing.T, b *box, bootIF net.HardwareAddr, args map[string]any) (Result, error) {
	t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	out, err := LoadStep(b, bootIF)(t.Context(),
		&step.Call{Args: raw, Log: slog.New(slog.DiscardHandler), Facts: &step.Facts{}, Report: func(step.Progress) {}})
	r, _ := out.Result.(Result)
	if left, _ := filepath.Glob(filepath.Join(b.root, "tmp/*")); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
	return r, err
}

func TestLoad(t *testing.T) {
	url, mac := serve(t), net.HardwareAddr{2, 0, 0, 0, 0, 1}
	b := newBox(t, 1<<20)
	r, err := run(t, b, mac,
		map[string]any{"kernel": url + "/k?sig=secret", "ramdisk": url + "/r", "kernel_checksum": sum(kernel),
			"ramdisk_checksum": sum(ramdisk), "kernel_append_params": " console=ttyS0  a=b ",
			"configdrive": map[string]any{"meta_data": map[string]any{"hostname": "worker"}},
			"instance":    "the-node"})
	if err != nil || !r.Loaded {
		t.Fatalf("%+v, %v", r, err)
	}
	if !bytes.Equal(b.kernel, kernel) || b.cmdline != "console=ttyS0 a=b BOOTIF=01-02-00-00-00-00-01" ||
		r.Cmdline != b.cmdline {
		t.Errorf("kernel of %d bytes, %q", len(b.kernel), b.cmdline)
	}
	seed, ok := bytes.CutSuffix(b.initrd, ramdisk)
	if !ok || len(seed) == 0 || len(seed)%512 != 0 {
		t.Fatalf("the initrd has %d bytes, and the ramdisk is not its end", len(b.initrd))
	}
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(seed)))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, rec := range records {
		if strings.HasSuffix(rec.Name, "/meta_data.json") {
			data, _ := io.ReadAll(io.NewSectionReader(rec.ReaderAt, 0, int64(rec.FileSize)))
			found = strings.Contains(string(data), `"hostname":"worker"`) && strings.Contains(string(data), "the-node")
		}
	}
	if !found {
		t.Error("the config drive is not in front of the ramdisk")
	}
	if strings.Contains(r.Kernel, "secret") || r.Bytes != int64(len(b.kernel)+len(b.initrd)) {
		t.Errorf("result %+v", r)
	}
}

func TestLoadOfLess(t *testing.T) {
	url := serve(t)
	b := newBox(t, 1<<20)
	if r, err := run(t, b, nil, map[string]any{"kernel": url + "/k"}); err != nil || !r.Loaded || b.hasInitrd ||
		b.cmdline != "" {
		t.Errorf("a kernel alone: %+v, %v, initrd %v", r, err, b.hasInitrd)
	}
	if r, err := run(t, b, nil, map[string]any{"kernel": url + "/k", "configdrive": map[string]any{}}); err != nil ||
		!r.Loaded || len(b.initrd) == 0 {
		t.Errorf("with a config drive: %+v, %v", r, err)
	}
}

// What the machine can't do is left to its firmware.
func TestNotLoaded(t *testing.T) {
	url := serve(t)
	b := newBox(t, 1<<20)
	b.refuse = errors.New("the kernel is locked down")
	if r, err := run(t, b, nil, map[string]any{"kernel": url + "/k"}); err != nil || r.Loaded ||
		r.Reason != "the kernel is locked down" {
		t.Errorf("%+v, %v", r, err)
	}
	for kib, what := range map[int]string{
		2000: "the kernel", copies * (len(kernel) + len(ramdisk)/2) >> 10: "the ramdisk"} {
		b = newBox(t, kib)
		if r, err := run(t, b, nil, map[string]any{"kernel": url + "/k", "ramdisk": url + "/r"}); err != nil ||
			r.Loaded || !strings.HasPrefix(r.Reason, what+" does not fit") || b.kernel != nil {
			t.Errorf("with %d KiB: %+v, %v", kib, r, err)
		}
	}
}

func TestLoadFails(t *testing.T) {
	url := serve(t)
	for name, c := range map[string]struct {
		args map[string]any
		want string
	}{
		"no kernel there": {map[string]any{"kernel": url + "/none"}, "404"},
		"empty":           {map[string]any{"kernel": url + "/empty"}, "is empty"},
		"wrong digest of kernel": {map[string]any{"kernel": url + "/k", "kernel_checksum": sum(ramdisk)},
			"the kernel from " + url + "/k has digest"},
		"wrong digest": {
			map[string]any{"kernel": url + "/k", "ramdisk": url + "/r", "ramdisk_checksum": sum(kernel)},
			"the ramdisk from " + url + "/r has digest"},
		"odd digest":        {map[string]any{"kernel": url + "/k", "kernel_checksum": "md5:00"}, "not sha256"},
		"digest of nothing": {map[string]any{"kernel": url + "/k", "ramdisk_checksum": sum(kernel)}, "no ramdisk"},
		"parameters": {map[string]any{"kernel": url + "/k", "kernel_append_params": `a="b c"`},
			"kernel parameter"},
		"config drive":     {map[string]any{"kernel": url + "/k", "configdrive": "aGVsbG8="}, "config drive"},
		"not a URL":        {map[string]any{"kernel": "/etc/shadow"}, "fetch the kernel"},
		"neither":          {map[string]any{}, "neither a kernel"},
		"both":             {map[string]any{"kernel": url + "/k", "boot_iso": url + "/iso"}, "booted as it is"},
		"no ISO there":     {map[string]any{"boot_iso": url + "/none"}, "404"},
		"unknown argument": {map[string]any{"kernel": url + "/k", "x": 1}, "x"},
	} {
		b := newBox(t, 1<<20)
		_, err := run(t, b, nil, c.args)
		var se *step.Error
		if err == nil || !strings.Contains(err.Error(), c.want) || b.kernel != nil {
			t.Errorf("%s: %v", name, err)
		} else if !errors.As(err, &se) || se.Remedy == "" {
			t.Errorf("%s: no remedy with %v", name, err)
		}
	}
}
