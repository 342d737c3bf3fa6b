// Package inspect looks at an image file from end to end and says what it is and whether it can be deployed, and if
// not, why.
//
// It opens the file as the agent does, by images.Open, reads all of it, unpacks every piece, and hashes the file on the
// way. So a file that it finds fit is fit for the agent, apart from what only the machine can say: the size of its disk
// and its sectors, and its firmware.
//
// Offsets and sizes are bytes. Inspect gives an error only when the file could not be read, as a qcow2 can't from a
// pipe; what is wrong with the image is in the Report.
package inspect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
)

// Options say what is wanted to be known.
type Options struct {
	Digests  []string // algorithms; nil: SHA-256
	DiskSize int64    // of the disk that it is meant for; 0: any
	Quick    bool     // only the file's beginning and its tables: no digests, and damage further on is not found
}

// Report is what was found out.
type Report struct {
	Deployable  bool              `json:"deployable"`
	Kind        string            `json:"kind,omitempty"`   // whole-disk, partition or published
	Reason      string            `json:"reason,omitempty"` // why it can't be deployed
	Remedy      string            `json:"remedy,omitempty"`
	Notes       []string          `json:"notes,omitempty"` // what is worth knowing, but in nobody's way
	Format      string            `json:"format,omitempty"`
	Details     []string          `json:"details,omitempty"` // of the format
	Compression string            `json:"compression,omitempty"`
	FileSize    int64             `json:"file_size"`
	VirtualSize int64             `json:"virtual_size,omitempty"` // of the disk
	DataSize    int64             `json:"data_size,omitempty"`    // of blocks of 64 KiB that are not zero
	Extents     int               `json:"extents,omitempty"`      // pieces of data that follow each other on the disk
	Content     string            `json:"content,omitempty"`      // what the disk begins with
	Table       *Table            `json:"table,omitempty"`
	Digests     map[string]string `json:"digests,omitempty"` // of the file
	Quick       bool              `json:"quick,omitempty"`
	Published   *Published        `json:"published,omitempty"`
}

// Published is what the index of a published image says.
type Published struct {
	Chunks      int    `json:"chunks"`
	ZeroChunks  int    `json:"zero_chunks"`
	Objects     int    `json:"objects"`
	StoredBytes int64  `json:"stored_bytes"`
	Compression string `json:"compression"` // zstd or lz4
	DiskSHA256  string `json:"disk_sha256"`
	Source      string `json:"source,omitempty"`
}

// maxSize is the largest disk that is believed in when nobody says how large it is.
const maxSize = 64 << 40

const block = 64 << 10

// partitionNote is what a partition image needs and only the deployment finds out: a boot loader is looked for when the
// image is on the disk.
const partitionNote = "it is a file system without a partition table: machines that boot by UEFI alone can use it, and it needs a boot loader inside, " +
	"or the deployment fails once the old system is gone (docs/reference/image-formats.md, \"Partition images\")"

// Inspect reads an image. The input's stream is read to its end unless Options say Quick.
func Inspect(ctx context.Context, in images.Input, o Options) (*Report, error) {
	r := &Report{FileSize: in.Size, Quick: o.Quick}
	if o.Digests == nil {
		o.Digests = []string{images.SHA256}
	}
	file := &file{r: in.Stream, ctx: ctx}
	if !o.Quick {
		file.hashes = map[string]hash.Hash{}
		for _, a := range o.Digests {
			file.hashes[a] = images.Digest{Algo: a}.New()
		}
	}
	in.Stream = file
	err := r.look(in, o)
	var refused *images.Error
	switch {
	case file.failed != nil:
		return nil, file.failed
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && r.Format == string(images.QCow2) && in.At == nil && in.Again == nil:
		return nil, err // its tables are out of reach: nothing is known of the image
	case errors.As(err, &refused):
		r.refuse(refused.Remedy, "%v", err)
	case err != nil:
		return nil, err
	}
	if o.Quick {
		return r, nil
	}
	// The rest, so that the digest is over the whole file: it identifies a file that is refused, too.
	if _, err := io.Copy(io.Discard, file); err != nil {
		return nil, err
	}
	r.FileSize = file.n
	r.Digests = map[string]string{}
	for a, h := range file.hashes {
		r.Digests[a] = hex.EncodeToString(h.Sum(nil))
	}
	return r, nil
}

func (r *Report) refuse(remedy, format string, args ...any) {
	r.Deployable, r.Reason, r.Remedy = false, fmt.Sprintf(format, args...), remedy
}

func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

func (r *Report) look(in images.Input, o Options) error {
	start := make([]byte, 4096)
	n, err := io.ReadFull(in.Stream, start)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return err
	}
	start = start[:n]
	in.Stream = io.MultiReader(bytes.NewReader(start), in.Stream)
	if index.IsIndex(start) {
		return r.published(in.Stream, o)
	}
	limit := cmp.Or(o.DiskSize, maxSize)
	e, info, err := images.Open(in, images.Limits{Size: limit})
	r.Format, r.Compression, r.Content, r.Details = string(info.Format), string(info.Compression), string(info.Head),
		info.Details
	if err != nil {
		if info.Format == images.NotAnImage {
			r.Format = ""
		}
		return err
	}
	defer e.Close()
	r.Deployable, r.VirtualSize = true, max(0, e.Size())
	if r.Kind = "whole-disk"; info.Partition {
		r.Kind = "partition"
		r.note("%s", partitionNote)
	}
	if info.Unchecked {
		r.note("its %s data has no check sum: only the digest tells damage", info.Compression)
	}
	if info.Twice {
		where := "the server answers no range requests"
		if info.Compression != images.Plain {
			where = "they lie inside " + string(info.Compression)
		}
		r.note("the tables of the %s image had to be fetched by reading the file twice, up to the last of them: %s",
			info.Format, where)
	}
	if o.Quick {
		r.table(info, e.Size())
		return nil
	}
	if err := r.walk(e); err != nil {
		return err
	}
	r.table(info, r.VirtualSize)
	return nil
}

// walk reads every extent.
func (r *Report) walk(e images.Extents) error {
	buf := make([]byte, 1<<20)
	var data, end, last int64
	var final [512]byte // of the disk
	known := e.Size() >= 0
	if !known {
		r.VirtualSize = 0
	}
	for {
		x, err := e.Next(buf)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if x.Decode != nil {
			x.Data = buf[:x.Len]
			if err := x.Decode(x.Data); err != nil {
				return err
			}
		}
		for at := 0; at < len(x.Data); at += block {
			b := x.Data[at:min(at+block, len(x.Data))]
			if index.IsZero(b) {
				continue
			}
			off := x.Off + int64(at)
			if data += int64(len(b)); off != last || r.Extents == 0 {
				r.Extents++
			}
			last = off + int64(len(b))
		}
		if x.Off+x.Len > end {
			end = x.Off + x.Len
			clear(final[:])
			if n := len(x.Data); n >= len(final) {
				copy(final[:], x.Data[n-len(final):])
			}
		}
	}
	r.DataSize = data
	if !known {
		r.VirtualSize = end
	}
	err := CheckEnd(final[:])
	if err != nil {
		r.Format = string(images.VHD)
	}
	return err
}

// table reads the partition table, and refuses one that the agent would refuse.
func (r *Report) table(info images.Info, size int64) {
	if info.Partition {
		return
	}
	t, err := CheckTable(info.Start, size)
	r.Table = t
	var refused *images.Error
	if errors.As(err, &refused) {
		r.refuse(refused.Remedy, "%v", err)
		return
	}
	if !slices.ContainsFunc(t.Partitions, func(p Partition) bool { return p.ESP }) {
		r.note("it has no EFI system partition: it boots from BIOS alone")
	}
	if t.SectorSize == 4096 {
		r.note("it fits disks with sectors of 4096 bytes alone")
	}
}

// published looks at the index of a published image. Its objects are elsewhere.
func (r *Report) published(stream io.Reader, o Options) error {
	b, err := io.ReadAll(io.LimitReader(stream, index.MaxIndex+1))
	if err != nil {
		return err
	}
	r.Format, r.Kind = string(images.Published), "published"
	x, err := index.Parse(b)
	if err != nil {
		return err
	}
	r.Deployable, r.VirtualSize, r.DataSize, r.Content = true, x.Size, x.Data(), string(x.Head)
	p := &Published{Chunks: len(x.Chunks), DiskSHA256: hex.EncodeToString(x.SHA256[:]), Source: x.Source,
		Compression: "zstd"}
	if x.LZ4 {
		p.Compression = "lz4"
	}
	p.StoredBytes, p.Objects = x.Stored()
	for _, c := range x.Chunks {
		if c.Len == 0 {
			p.ZeroChunks++
		}
	}
	r.Published = p
	r.note("this is the index alone: its %d objects were not fetched", p.Objects)
	if x.Head != "" && x.Head != images.GPT && x.Head != images.MBR {
		r.note("%s", partitionNote)
	}
	if o.DiskSize > 0 && x.Size > o.DiskSize {
		r.refuse("use a smaller image or a larger disk", "the image is larger than the disk: %d bytes, the disk has %d",
			x.Size, o.DiskSize)
	}
	return nil
}

// file is the image file as it is read: hashed, and with the one error that is not the image's fault kept apart.
type file struct {
	r      io.Reader
	ctx    context.Context
	hashes map[string]hash.Hash
	n      int64
	failed error
}

func (f *file) Read(p []byte) (int, error) {
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := f.r.Read(p)
	f.n += int64(n)
	for _, h := range f.hashes {
		h.Write(p[:n])
	}
	switch err {
	case nil, io.EOF:
	case io.ErrUnexpectedEOF:
		f.failed = fmt.Errorf("the file was cut off after %d bytes on its way: %w", f.n, err)
	default:
		f.failed = err
	}
	return n, err
}
