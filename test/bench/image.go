package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	mib   = 1 << 20
	block = 64 << 10 // the grain in which data is counted
)

// image is a disk image in all the forms that are compared.
type image struct {
	raw   string // path of the raw disk
	size  int64
	data  int64  // bytes in blocks that are not zero
	dir   string // what the server serves
	files map[string]file
	spans []span // of data
}

type span struct{ off, n int64 }

// file is one form of the image.
type file struct {
	name, sha256 string
	bytes        int64 // to fetch
}

// takeImage takes a raw whole-disk image that is there. It is copied: some of it is changed later.
func takeImage(dir, name, from string) (*image, error) {
	im := &image{raw: filepath.Join(dir, name+".raw"), dir: filepath.Join(dir, "www"), files: map[string]file{}}
	if err := os.MkdirAll(im.dir, 0o755); err != nil {
		return nil, err
	}
	if err := run("cp", "--sparse=always", from, im.raw); err != nil {
		return nil, err
	}
	st, err := os.Stat(im.raw)
	if err != nil {
		return nil, err
	}
	im.size = st.Size()
	return im, im.measure()
}

// makeImage makes a whole-disk image as people deploy them: a table, an ext4 file system with real files (those of the
// Go tree and of this machine's /usr/share, which pack like those of an operating system), and as much free room again.
func makeImage(dir, name string, size, data int64) (*image, error) {
	im := &image{raw: filepath.Join(dir, name+".raw"), size: size, dir: filepath.Join(dir, "www"),
		files: map[string]file{}}
	if err := os.MkdirAll(im.dir, 0o755); err != nil {
		return nil, err
	}
	tree := filepath.Join(dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return nil, err
	}
	defer os.RemoveAll(tree)
	goroot, err := output("go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	if err := gather(tree, data, filepath.Join(goroot, "pkg"), filepath.Join(goroot, "src"), "/usr/bin", "/usr/lib",
		"/usr/share"); err != nil {
		return nil, err
	}
	if err := os.Truncate(touch(im.raw), size); err != nil {
		return nil, err
	}
	if err := run("sh", "-c", fmt.Sprintf("printf 'label: gpt\\nstart=2048\\n' | sfdisk -q %s", im.raw)); err != nil {
		return nil, err
	}
	blocks := (size - 2*mib) / 4096
	if err := run("mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-d", tree, "-E", fmt.Sprintf("offset=%d", mib),
		im.raw, fmt.Sprint(blocks)); err != nil {
		return nil, err
	}
	return im, im.measure()
}

// gather links files until there is so much of them.
func gather(tree string, want int64, from ...string) error {
	n := 0
	for _, root := range from {
		err := filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() || want <= 0 {
				return nil // what can't be read is left out
			}
			st, err := e.Info()
			if err != nil || st.Size() == 0 {
				return nil
			}
			sub := filepath.Join(tree, fmt.Sprint(n/500))
			if err := os.MkdirAll(sub, 0o755); err != nil {
				return err
			}
			n++
			if err := copyFile(filepath.Join(sub, fmt.Sprint(n)), path); err != nil {
				return err
			}
			want -= (st.Size() + 4095) / 4096 * 4096
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return nil // not for us
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

func touch(path string) string {
	if f, err := os.Create(path); err == nil {
		f.Close()
	}
	return path
}

// measure finds the data.
func (im *image) measure() error {
	f, err := os.Open(im.raw)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, block)
	zero := make([]byte, block)
	im.data, im.spans = 0, nil
	for off := int64(0); off < im.size; off += block {
		n, err := io.ReadFull(f, buf[:min(block, im.size-off)])
		if err != nil {
			return err
		}
		if bytes.Equal(buf[:n], zero[:n]) {
			continue
		}
		im.data += int64(n)
		if l := len(im.spans); l > 0 && im.spans[l-1].off+im.spans[l-1].n == off {
			im.spans[l-1].n += int64(n)
		} else {
			im.spans = append(im.spans, span{off, int64(n)})
		}
	}
	return nil
}

// pack makes the forms of the image: those that are named, or all.
func (im *image) pack(ingot, base string, forms ...string) error {
	for _, form := range []struct {
		name string
		cmd  []string
	}{
		{"qcow2", []string{"qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", "-o", "compression_type=zstd",
			im.raw, filepath.Join(im.dir, base+".qcow2")}},
		{"plain.qcow2", []string{"qemu-img", "convert", "-f", "raw", "-O", "qcow2", im.raw,
			filepath.Join(im.dir, base+".plain.qcow2")}},
		{"zst", []string{"zstd", "-q", "-3", "-T0", "-f", im.raw, "-o", filepath.Join(im.dir, base+".zst")}},
		{"ingot", []string{ingot, "image", "publish", im.raw, "-o", im.dir, "--name", base}},
		{"lz4.ingot", []string{ingot, "image", "publish", im.raw, "-o", im.dir, "--name", base + ".lz4",
			"--compression", "lz4"}},
	} {
		if len(forms) > 0 && !slices.Contains(forms, form.name) {
			continue
		}
		if err := run(form.cmd[0], form.cmd[1:]...); err != nil {
			return err
		}
		f := file{name: base + "." + form.name}
		path := filepath.Join(im.dir, f.name)
		sum, n, err := sumFile(path)
		if err != nil {
			return err
		}
		f.sha256, f.bytes = sum, n
		im.files[form.name] = f
	}
	return os.Symlink(im.raw, filepath.Join(im.dir, base+".raw"))
}

func sumFile(path string) (string, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), n, err
}

// changed makes a copy of the image with one in so many of its blocks rewritten, as an upgrade of packages does.
func (im *image) changed(raw string, percent float64) (*image, int64, error) {
	if err := run("cp", "--sparse=always", im.raw, raw); err != nil {
		return nil, 0, err
	}
	f, err := os.OpenFile(raw, os.O_RDWR, 0)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	src := rand.NewChaCha8([32]byte{3})
	r := rand.New(src)
	buf := make([]byte, block)
	var n int64
	want := int64(float64(im.data) * percent / 100)
	// Long runs, as an upgrade of packages makes them: of a Debian's upgrade by which this was modelled, 1.4 times as
	// much lay in chunks of 4 MiB that had changed as in blocks of 64 KiB.
	for n < want {
		s := im.spans[r.IntN(len(im.spans))]
		if s.off < 4*mib || s.n < 2*block {
			continue
		}
		at := s.off + r.Int64N(s.n/block)*block
		for run := 32 + r.Int64N(128); run > 0 && n < want && at+block <= s.off+s.n; run-- {
			if _, err := f.ReadAt(buf, at); err != nil {
				return nil, 0, err
			}
			for i := 0; i < len(buf); i += 512 { // as well packed as before
				src.Read(buf[i : i+16])
			}
			if _, err := f.WriteAt(buf, at); err != nil {
				return nil, 0, err
			}
			n += block
			at += block
		}
	}
	next := &image{raw: raw, size: im.size, dir: im.dir, files: map[string]file{}}
	if err := next.measure(); err != nil {
		return nil, 0, err
	}
	diff, err := differing(im.raw, raw, im.size)
	return next, diff, err
}

// differing is how many bytes are in blocks that are not the same.
func differing(a, b string, size int64) (int64, error) {
	fa, err := os.Open(a)
	if err != nil {
		return 0, err
	}
	defer fa.Close()
	fb, err := os.Open(b)
	if err != nil {
		return 0, err
	}
	defer fb.Close()
	ba, bb := make([]byte, block), make([]byte, block)
	var n int64
	for off := int64(0); off < size; off += block {
		part := min(block, size-off)
		if _, err := fa.ReadAt(ba[:part], off); err != nil {
			return 0, err
		}
		if _, err := fb.ReadAt(bb[:part], off); err != nil {
			return 0, err
		}
		if !bytes.Equal(ba[:part], bb[:part]) {
			n += part
		}
	}
	return n, nil
}

// same compares the beginning of a device with the raw image, past the page cache.
func (im *image) same(dev string) error {
	f, err := os.Open(im.raw)
	if err != nil {
		return err
	}
	defer f.Close()
	fd, err := unix.Open(dev, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dev, err)
	}
	d := os.NewFile(uintptr(fd), dev)
	defer d.Close()
	want, got := make([]byte, 4*mib), aligned(4*mib)
	defer unix.Munmap(got)
	for off := int64(0); off < im.size; off += int64(len(got)) {
		part := min(int64(len(got)), im.size-off)
		if _, err := f.ReadAt(want[:part], off); err != nil {
			return err
		}
		if _, err := d.ReadAt(got[:part], off); err != nil {
			return err
		}
		// The table may differ: its backup belongs at the disk's end.
		from := int64(0)
		if off == 0 {
			from = 34 * 512
		}
		to := part
		if off+part == im.size {
			to -= 33 * 512
		}
		if !bytes.Equal(got[from:to], want[from:to]) {
			return fmt.Errorf("%s is not the image, somewhere from byte %d on", dev, off)
		}
	}
	return nil
}
