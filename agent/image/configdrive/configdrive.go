// Package configdrive builds config drives, the small disks labelled config-2 from which cloud-init and others read an
// instance's identity, and writes them to the end of a disk that is being deployed.
//
// A config drive is given as an object with meta_data, user_data, network_data and vendor_data, or as a finished ISO
// 9660 or FAT image: in base64, gzipped or not, or at a URL. Objects become OpenStack's layout (openstack/latest/...)
// on an ISO 9660 file system with Rock Ridge and Joliet names. Linux can't mount that from a disk with sectors of 4096
// bytes: there the same files go onto a FAT.
//
// Both file systems are written by our own code, in memory; code shared with the conductor is in proto/drive. Tenants'
// data is parsed with bounds on everything, and never logged.
package configdrive

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/iso9660"
	"github.com/ingot-metal/ingot/proto/drive"
)

// Label is the name of the partition and of the file system on it.
const Label = drive.Label

// MaxSize is the largest config drive, as in Ironic.
const MaxSize = drive.MaxSize

// WriteArgs declares the arguments of write_configdrive.
var WriteArgs = []step.Arg{
	{Name: "configdrive", Type: "any", Required: true, Given: true, Secret: true,
		Description: "object with meta_data, user_data, network_data, vendor_data; or base64 of an ISO 9660 or FAT image, gzipped or not; or the http(s) URL of any of these"},
	{Name: "image_ca", Type: "string", Owner: "driver_info",
		Description: "certificates in PEM form that must have signed the server's, for a URL"},
}

type writeArgs struct {
	ConfigDrive json.RawMessage `json:"configdrive"`
	CA          string          `json:"image_ca"`
}

// machine is the part of the machine that this package uses.
type machine interface {
	Root() string
	OpenExclusive(ctx context.Context, path string) (disk.Device, error)
}

// Result of write_configdrive.
type Result struct {
	Partition int    `json:"partition"`
	Format    string `json:"format"` // "iso9660" or "vfat"
	Bytes     int64  `json:"bytes"`
	Start     int64  `json:"start"`
	Warning   string `json:"warning,omitempty"` // reason why the instance may not find it
}

// WriteStep writes a config drive after the image that write_image wrote, and its partition into the table that will be
// committed. If stopped, the disk has no partition table; a repeated run writes the same place again.
func WriteStep(m machine) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, args writeArgs) (step.Outcome, error) {
		p, err := disk.PendingOf(c.Facts)
		if err != nil {
			return step.Outcome{}, err
		}
		c.Report(step.Progress{Phase: "build config drive"})
		payload, format, err := args.built(ctx, c, p.Disk.LogicalSectors)
		if err != nil {
			return step.Outcome{}, err
		}
		c.Report(step.Progress{Phase: "write config drive", Total: uint64(len(payload))})
		part, err := put(ctx, m, p, payload)
		if err != nil {
			return step.Outcome{}, fmt.Errorf("write config drive to %s: %w", p.Disk.Name, err)
		}
		c.Report(step.Progress{Phase: "write config drive", Bytes: uint64(len(payload)), Total: uint64(len(payload))})
		c.Log.Info("config drive written", "disk", p.Disk.Name, "partition", part.Number, "bytes", len(payload),
			"format", format)
		r := Result{Partition: part.Number, Format: format, Bytes: int64(len(payload)), Start: part.Start,
			Warning: OddLabel(payload)}
		if r.Warning != "" {
			c.Log.Warn(r.Warning, "disk", p.Disk.Name)
		}
		return step.Outcome{Result: r}, nil
	})
}

// put finds or reserves space for the payload, writes it, zeros the rest, flushes, and reads it back.
func put(ctx context.Context, m machine, p *disk.Pending, payload []byte) (part disk.Partition, err error) {
	dev, err := p.Open(ctx, m)
	if err != nil {
		return part, err
	}
	defer disk.Close(dev, &err)
	part, stale, err := p.ReserveOn(dev, Label, MaxSize, int64(len(payload)))
	if err != nil {
		return part, err
	}
	return part, write(ctx, dev, part, stale, payload)
}

func write(ctx context.Context, dev disk.Device, part disk.Partition, stale []disk.Partition, payload []byte) error {
	z := disk.NewZeroer(dev)
	for _, s := range stale {
		if err := z.Zero(ctx, s.Start,
			min(s.Size, disk.HeadSize)/int64(dev.SectorSize())*int64(dev.SectorSize())); err != nil {
			return fmt.Errorf("empty the image's own partition %d, which is too small: %w", s.Number, err)
		}
	}
	sector := dev.SectorSize()
	if rest := len(payload) % sector; rest != 0 {
		payload = append(payload[:len(payload):len(payload)], make([]byte, sector-rest)...)
	}
	const piece = 1 << 20
	for off := 0; off < len(payload); off += piece {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := dev.WriteAt(payload[off:min(off+piece, len(payload))], part.Start+int64(off)); err != nil {
			return err
		}
	}
	// Data of an earlier system in the rest of the partition could be taken for another file system or an array member.
	if err := z.Zero(ctx, part.Start+int64(len(payload)), part.Size-int64(len(payload))); err != nil {
		return err
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	buf := disk.Aligned(piece)
	for off := 0; off < len(payload); off += piece {
		want := payload[off:min(off+piece, len(payload))]
		if _, err := dev.ReadAt(buf[:len(want)], part.Start+int64(off)); err != nil {
			return fmt.Errorf("read back: %w", err)
		}
		if !bytes.Equal(buf[:len(want)], want) {
			return step.Failf("replace the disk: it does not keep what is written",
				"byte %d reads back different from what was written", part.Start+int64(off))
		}
	}
	return nil
}

const remedyDrive = "correct the config drive: an object with meta_data, user_data, network_data and vendor_data, or an ISO 9660 or FAT image of at most 64 MiB in base64"

// Build builds the file system of a config drive for a disk with the given sector size, and returns its kind.
func Build(ctx context.Context, raw json.RawMessage, sector int, now time.Time,
	from Servers) (payload []byte, format string, err error) {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0 || bytes.Equal(raw, []byte("null")):
		return nil, "", step.Failf(remedyDrive, "none is given")
	case raw[0] == '{':
		return makeObject(raw, sector, now)
	case raw[0] != '"':
		return nil, "", step.Failf(remedyDrive, "neither an object nor a string")
	}
	text, err := unquote(raw)
	if err != nil {
		return nil, "", err
	}
	if isURL(text) {
		if text, err = from.fetch(ctx, string(text)); err != nil {
			return nil, "", err
		}
		if object := bytes.TrimSpace(text); bytes.HasPrefix(object, []byte("{")) {
			return makeObject(object, sector, now)
		}
	}
	if payload, err = drive.Unwrap(text, isImage); err != nil {
		return nil, "", withRemedy(err)
	}
	var files []file
	fs, err := readable(payload)
	switch {
	case err != nil:
		return nil, "", step.Fail(remedyDrive, err)
	case fs == nil && cutOff(payload):
		return nil, "", step.Failf("make or fetch the config drive again",
			"the ISO 9660 image is truncated: it has %d bytes, fewer than its volume", len(payload))
	case fs == nil && sector <= iso9660.Sector:
		return payload, "iso9660", nil
	case fs != nil && fs.Sector() >= sector:
		return payload, "vfat", nil
	case fs != nil:
		files, err = drive.FilesOf(fs)
		if err != nil {
			return nil, "", errRebuild(sector, err)
		}
	default:
		files, err = drive.FilesOfISO(payload)
		if err != nil {
			return nil, "", errRebuild(sector, err)
		}
	}
	return makeFS(files, sector, now)
}

// cutOff reports whether an ISO 9660 image is shorter than the volume size in its primary volume descriptor.
func cutOff(iso []byte) bool {
	d := iso[16*iso9660.Sector:]
	blocks, size := binary.LittleEndian.Uint32(d[80:]), binary.LittleEndian.Uint16(d[128:])
	return d[0] == 1 && uint64(blocks)*uint64(size) > uint64(len(iso))
}

func errRebuild(sector int, err error) error {
	return step.Fail(remedyDrive, fmt.Errorf("rebuild it for sectors of %d bytes: %w", sector, err))
}

// unquote returns a JSON string's bytes. A large one has no escapes and is not copied.
func unquote(raw json.RawMessage) ([]byte, error) {
	if n := len(raw); n >= 2 && raw[n-1] == '"' && !bytes.ContainsAny(raw[1:n-1], "\\\"") {
		return bytes.TrimSpace(raw[1 : n-1]), nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, step.Failf(remedyDrive, "not a JSON string")
	}
	return bytes.TrimSpace([]byte(text)), nil
}

type file = drive.File

func makeObject(raw json.RawMessage, sector int, now time.Time) ([]byte, string, error) {
	files, err := drive.Files(raw, "") // the conductor adds the node's id; this is for other callers of the step
	if err != nil {
		return nil, "", withRemedy(err)
	}
	return makeFS(files, sector, now)
}

func makeFS(files []file, sector int, now time.Time) ([]byte, string, error) {
	make, format := drive.ISO, "iso9660"
	if sector > iso9660.Sector {
		make, format = func(f []file, t time.Time) ([]byte, error) { return makeFAT(f, sector, t) }, "vfat"
	}
	payload, err := make(files, now)
	if err != nil {
		return nil, "", err
	}
	if len(payload) > MaxSize {
		return nil, "", errTooLarge()
	}
	return payload, format, nil
}

func errTooLarge() error {
	return step.Fail("make it smaller: put large data where the instance can fetch it", drive.ErrTooLarge)
}

// withRemedy adds the remedy to an error of a config drive.
func withRemedy(err error) error {
	if errors.Is(err, drive.ErrTooLarge) {
		return errTooLarge()
	}
	return step.Fail(remedyDrive, err)
}

func isImage(b []byte) bool {
	if iso9660.Is(b) {
		return true
	}
	fs, _ := readable(b)
	return fs != nil
}
