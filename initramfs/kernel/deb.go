package kernel

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// errStop ends the reading of an archive early.
var errStop = errors.New("stop")

// readDeb passes each file of the package's control and data archives to each; errStop skips the rest of that archive.
func readDeb(file string, each func(archive string, h *tar.Header, r io.Reader) error) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("open package: %w", err)
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	magic := make([]byte, 8)
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != "!<arch>\n" {
		return fmt.Errorf("%s is not a Debian package", file)
	}
	found := 0
	for {
		var h [60]byte
		if _, err := io.ReadFull(r, h[:]); err == io.EOF {
			break
		} else if err != nil {
			return fmt.Errorf("package %s is cut short: %w", file, err)
		}
		name := strings.TrimSuffix(strings.TrimSpace(string(h[:16])), "/")
		size, err := strconv.ParseInt(strings.TrimSpace(string(h[48:58])), 10, 63)
		if err != nil || size < 0 || string(h[58:]) != "`\n" {
			return fmt.Errorf("package %s: member %q has a damaged header", file, name)
		}
		member := &io.LimitedReader{R: r, N: size}
		if archive, kind, ok := strings.Cut(name, ".tar"); ok && (archive == "control" || archive == "data") {
			found++
			if err := readTar(member, kind,
				func(h *tar.Header, r io.Reader) error { return each(archive, h, r) }); err != nil {
				return fmt.Errorf("package %s: unpack %s: %w", file, name, err)
			}
		}
		if _, err := io.Copy(io.Discard, member); err != nil {
			return fmt.Errorf("package %s is cut short: %w", file, err)
		}
		if member.N > 0 {
			return fmt.Errorf("package %s is cut short in %s: %w", file, name, io.ErrUnexpectedEOF)
		}
		if size%2 == 1 {
			if _, err := r.Discard(1); err != nil && err != io.EOF {
				return fmt.Errorf("package %s is cut short: %w", file, err)
			}
		}
	}
	if found < 2 {
		return fmt.Errorf("%s is not a Debian package: it has no control or no data archive", file)
	}
	return nil
}

func readTar(r io.Reader, kind string, each func(*tar.Header, io.Reader) error) error {
	switch kind {
	case "":
	case ".xz":
		x, err := xz.NewReader(r)
		if err != nil {
			return err
		}
		r = x
	case ".zst":
		z, err := zstd.NewReader(r)
		if err != nil {
			return err
		}
		defer z.Close()
		r = z
	case ".gz":
		g, err := gzip.NewReader(r)
		if err != nil {
			return err
		}
		r = g
	default:
		return fmt.Errorf("compression %s is not known", kind)
	}
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := each(h, t); errors.Is(err, errStop) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
