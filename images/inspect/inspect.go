// Package inspect reads an image file from end to end and reports its format, and whether it can be deployed, or why
// not.
//
// It opens the file as the agent does, with images.Open, reads and decodes all of it, and hashes the file on the way.
// So a file that passes is accepted by the agent, except for properties of the machine: the size of its disk and its
// sectors, and its firmware.
//
// Offsets and sizes are bytes. Inspect returns an error only if the file could not be read, as a qcow2 can't from a
// pipe; faults of the image are in the Report.
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

// Options select what to inspect.
type Options struct {
	Digests  []string // algorithms; nil: SHA-256
	DiskSize int64    // of the intended disk; 0: any
	Quick    bool     // only the file's beginning and its tables: no digests, no damage further on
}

// Report is the result of an inspection.
type Report struct {
	Deployable  bool              `json:"deployable"`
	Kind        string            `json:"kind,omitempty"`   // whole-disk, partition or published
	Reason      string            `json:"reason,omitempty"` // why it can't be deployed
	Remedy      string            `json:"remedy,omitempty"`
	Notes       []string          `json:"notes,omitempty"` // worth knowing, but no obstacle
	Format      string            `json:"format,omitempty"`
	Details     []string          `json:"details,omitempty"` // of the format
	Compression string            `json:"compression,omitempty"`
	FileSize    int64             `json:"file_size"`
	VirtualSize int64             `json:"virtual_size,omitempty"` // of the disk
	DataSize    int64             `json:"data_size,omitempty"`    // of blocks of 64 KiB that are not zero
	Extents     int               `json:"extents,omitempty"`      // contiguous pieces of data on the disk
	Content     string            `json:"content,omitempty"`      // content of the disk's beginning
	Table       *Table            `json:"table,omitempty"`
	Digests     map[string]string `json:"digests,omitempty"` // of the file
	Quick       bool              `json:"quick,omitempty"`
	Published   *Published        `json:"published,omitempty"`
}

// Published holds the properties in a published image's index.
type Published struct {
	Chunks      int    `json:"chunks"`
	ZeroChunks  int    `json:"zero_chunks"`
	Objects     int    `json:"objects"`
	StoredBytes int64  `json:"stored_bytes"`
	Compression string `json:"compression"` // zstd or lz4
	DiskSHA256  string `json:"disk_sha256"`
	Source      string `json:"source,omitempty"`
}

// maxSize is the largest accepted disk if its size is unknown.
const maxSize = 64 << 40

const block = 64 << 10

// partitionNote is a requirement of a partition image that only the deployment can check: a boot loader is looked for
// when the image is on the disk.
const partitionNote = "it is a file system without a partition table: machines that boot by UEFI alone can use it, and it needs a boot loader inside, " +
	"or the deployment fails once the old system is gone (docs/reference/image-formats.md, \"Partition images\")"

// Inspect reads an image. The input's stream is read to its end unless Quick is set.
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
		return nil, err // its tables can't be read: nothing is known of the image
	case errors.As(err, &refused):
		r.refuse(refused.Remedy, "%v", err)
	case err != nil:
		return nil, err
	}
	if o.Quick {
		return r, nil
	}
	// The rest is read for the digest over the whole file, which identifies a refused file too.
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
		r.note("its %s data has no checksum: only the digest detects damage", info.Compression)
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

// published reads the index of a published image. Its objects are elsewhere.
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

// file is the image file during the read: it is hashed, and its own read error is kept apart from faults of the image.
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
