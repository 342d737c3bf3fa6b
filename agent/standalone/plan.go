package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/ingot-metal/ingot/agent/configdrive"
	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/images"
)

// Target is the disk that would be written.
type Target struct {
	Disk  disk.Disk `json:"disk"`
	Holds string    `json:"holds"` // what is on it now, in words; empty: nothing that is known
}

// LookAt looks at the disk at a path. It must not be in use.
func LookAt(ctx context.Context, path string) (Target, error) {
	m, err := openMachine(ctx, path)
	if err != nil {
		return Target{}, err
	}
	t := Target{Disk: m.disk}
	dev, err := m.OpenExclusive(ctx, m.disk.Name)
	if err != nil {
		return t, inUse(err)
	}
	defer dev.Close() // only read
	head := disk.Aligned(disk.HeadSize)
	n, err := dev.ReadAt(head[:min(int64(len(head)), dev.Size())], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return t, fmt.Errorf("read %s: %w", path, err)
	}
	switch format, content := images.Detect(head[:n]); format {
	case images.Raw:
		t.Holds = "a partition table (" + string(content) + ")"
	case images.FileSystem, images.ISO9660:
		t.Holds = string(content)
	case images.NotAnImage:
	default:
		t.Holds = "an image file in " + string(format) + " format"
	}
	return t, nil
}

// Plan is what Write would do.
type Plan struct {
	Target
	Image       string   `json:"image"`
	Format      string   `json:"format"`
	Compression string   `json:"compression"`
	Table       string   `json:"table"`
	VirtualSize int64    `json:"virtual_size"` // -1: known only once it is unpacked
	FileSize    int64    `json:"file_size"`    // -1: the server does not say; of a published image what all its chunks have
	Trust       string   `json:"trust"`
	ConfigDrive string   `json:"config_drive"` // format and size; empty: none
	BootEntry   bool     `json:"boot_entry"`
	Notes       []string `json:"notes"`
}

// maxIndex bounds an index that is read to look at it.
const maxIndex = 64 << 20

// Examine finds out what Write would do, and whether it would be refused. It writes nothing. The digest is not checked: for that the whole
// image would have to be fetched.
func Examine(ctx context.Context, o Options, log *slog.Logger) (*Plan, error) {
	t, err := LookAt(ctx, o.Disk)
	if err != nil {
		return nil, err
	}
	p := &Plan{Target: t, Image: o.Image, Trust: o.trust(), BootEntry: o.BootEntry}
	if err := p.lookAtImage(ctx, o, log); err != nil {
		return nil, err
	}
	if len(o.ConfigDrive) > 0 {
		payload, format, err := configdrive.Build(ctx, o.ConfigDrive, t.Disk.LogicalSectors, time.Now())
		if err != nil {
			return nil, fmt.Errorf("config drive: %w", err)
		}
		p.ConfigDrive = fmt.Sprintf("%s, %s", format, size(uint64(len(payload))))
	}
	return p, nil
}

func (o Options) trust() string {
	switch {
	case o.Digest != "":
		return o.Digest
	case o.Checksum != "":
		return "a digest from a file of checksums"
	case len(o.Keys) > 0:
		return "a signature"
	case o.Unverified:
		return "none: the image is not verified"
	}
	return ""
}
