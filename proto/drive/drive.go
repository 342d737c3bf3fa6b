// Package drive builds config drives, for both sides: the agent writes one to a disk, and both pass one to a workload
// that runs from memory.
//
// A config drive is given as an object with meta_data, user_data, network_data and vendor_data, which becomes
// OpenStack's layout (openstack/latest/...), or as a finished image in base64, gzipped or not. The files become an ISO
// 9660 image with Rock Ridge and Joliet names, or an archive (newc cpio) that a kernel unpacks beside an initramfs.
// Sizes are bytes. Everything is bounded and stays in memory: it holds the tenant's secrets. Nothing here reads from a
// network or handles FAT.
package drive

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/images/fs/iso9660"
)

// Label is the name of a config drive's file system, and of its partition.
const Label = "config-2"

// MaxSize is the largest config drive, as in Ironic.
const MaxSize = 64 << 20

// ErrTooLarge says that a config drive is larger than MaxSize.
var ErrTooLarge = fmt.Errorf("larger than %d MiB", MaxSize>>20)

// MaxFiles is the maximum number of files on a config drive.
const MaxFiles = iso9660.MaxFiles

// File is a file on a config drive.
type File = iso9660.File

// ISO returns the image of a config drive.
func ISO(files []File, now time.Time) ([]byte, error) { return iso9660.Make(files, Label, now) }

// FilesOfISO returns the files of a tenant's ISO 9660 image.
func FilesOfISO(img []byte) ([]File, error) {
	f, err := iso9660.OpenJoliet(bytes.NewReader(img))
	if err != nil {
		return nil, err
	}
	return FilesOf(f)
}

// FilesOf returns the files of a tenant's image. Directories are read to a depth of eight. The number of directories
// and files and their total size are limited, against loops and bombs.
func FilesOf(img fs.FS) ([]File, error) {
	var files []File
	total, folders := int64(0), 0
	var walk func(dir string, depth int) error
	walk = func(dir string, depth int) error {
		list, err := fs.ReadDir(img, dir)
		if err != nil {
			return err
		}
		if folders++; depth > 8 || folders+len(list) > 2*MaxFiles {
			return errBomb
		}
		for _, e := range list {
			name := path.Join(dir, e.Name())
			if e.IsDir() {
				if err := walk(name, depth+1); err != nil {
					return err
				}
				continue
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			// Files may share their data, so that a small image could have many large ones.
			if total += info.Size(); total > MaxSize || len(files) >= MaxFiles {
				return errBomb
			}
			f, err := img.Open(name)
			if err != nil {
				return err
			}
			data := make([]byte, info.Size())
			if _, err := io.ReadFull(f, data); err != nil {
				return fmt.Errorf("read %s: %w", name, err)
			}
			files = append(files, File{Path: name, Data: data})
		}
		return nil
	}
	return files, walk(".", 0)
}

var errBomb = errors.New("the image has too many files or folders, or more in them than it is large")

// Files returns OpenStack's layout of a config drive object. Without an instance id cloud-init refuses the whole drive:
// a meta_data without one gets the given one, or a random one if that is empty.
func Files(raw json.RawMessage, instance string) ([]File, error) {
	var o struct {
		MetaData    json.RawMessage `json:"meta_data"`
		UserData    json.RawMessage `json:"user_data"`
		NetworkData json.RawMessage `json:"network_data"`
		VendorData  json.RawMessage `json:"vendor_data"`
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&o); err != nil {
		return nil, err
	}
	meta := map[string]any{}
	if given(o.MetaData) {
		d := json.NewDecoder(bytes.NewReader(o.MetaData))
		d.UseNumber()
		if err := d.Decode(&meta); err != nil || meta == nil {
			return nil, errors.New("meta_data is not an object")
		}
	}
	if id, _ := meta["uuid"].(string); id == "" {
		instance = cmp.Or(instance, uuid.NewString())
		meta["uuid"] = instance
	}
	b, err := json.Marshal(meta)
	if err != nil {
		return nil, fmt.Errorf("meta_data: %w", err)
	}
	const dir = "openstack/latest/"
	files := []File{{Path: dir + "meta_data.json", Data: b}}
	if given(o.NetworkData) {
		if o.NetworkData[0] != '{' {
			return nil, errors.New("network_data is not an object")
		}
		files = append(files, File{Path: dir + "network_data.json", Data: o.NetworkData})
	}
	if given(o.UserData) {
		data := []byte(o.UserData) // an object stays JSON, as in Ironic
		if o.UserData[0] == '"' {
			var s string
			if err := json.Unmarshal(o.UserData, &s); err != nil {
				return nil, errors.New("user_data is not a JSON string")
			}
			data = []byte(s)
		}
		files = append(files, File{Path: dir + "user_data", Data: data})
	}
	if given(o.VendorData) {
		if o.VendorData[0] != '{' {
			return nil, errors.New("vendor_data is not an object")
		}
		// vendor_data2 is the name used by Ironic's and Nova's builders; cloud-init reads both.
		files = append(files, File{Path: dir + "vendor_data2.json", Data: o.VendorData})
	}
	return files, nil
}

func given(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// Unwrap returns the image in the given content: base64 or not, gzip or not; isImage detects an image. It is decoded
// twice, the first time only for its size, so that no more memory is used than the image needs.
func Unwrap(content []byte, isImage func([]byte) bool) ([]byte, error) {
	if !isGzip(content) && isImage(content) {
		if len(content) > MaxSize {
			return nil, ErrTooLarge
		}
		return content, nil
	}
	size, err := io.Copy(io.Discard, unpacked(content))
	if err == nil && size > MaxSize {
		return nil, ErrTooLarge
	}
	out := make([]byte, size)
	if err == nil {
		_, err = io.ReadFull(unpacked(content), out)
	}
	var bad base64.CorruptInputError
	switch {
	case errors.As(err, &bad):
		return nil, errors.New("neither base64 nor an ISO 9660 or FAT image")
	case errors.Is(err, gzip.ErrHeader):
		return nil, errors.New("its gzip header is damaged")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errors.New("it is truncated")
	case err != nil:
		return nil, errors.New("its gzip stream is damaged")
	case !isImage(out):
		return nil, errors.New("neither an ISO 9660 nor a FAT image")
	}
	return out, nil
}

// unpacked decodes base64, gzip, or both, up to one byte more than allowed.
func unpacked(content []byte) io.Reader {
	var r io.Reader = bytes.NewReader(content)
	if !isGzip(content) {
		// The standard alphabet with line breaks, padded or not.
		r = base64.NewDecoder(base64.RawStdEncoding, &plain{content})
	}
	b := bufio.NewReader(r)
	if magic, err := b.Peek(3); err != nil || !isGzip(magic) {
		return io.LimitReader(b, MaxSize+1)
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return failing{err}
	}
	return io.LimitReader(z, MaxSize+1)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// plain reads base64 without ignored characters.
type plain struct{ rest []byte }

func (p *plain) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) && len(p.rest) > 0 {
		run := p.rest[:min(len(p.rest), len(b)-n)]
		skip := 0
		if i := bytes.IndexAny(run, " \t\r\n="); i >= 0 {
			run, skip = run[:i], 1
		}
		n += copy(b[n:], run)
		p.rest = p.rest[len(run)+skip:]
	}
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

func isGzip(b []byte) bool { return bytes.HasPrefix(b, []byte("\x1f\x8b\x08")) }
