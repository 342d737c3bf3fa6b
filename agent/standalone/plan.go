package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/oci"
)

// Target is the disk that would be written.
type Target struct {
	Disk  disk.Disk `json:"disk"`
	Holds string    `json:"holds"` // its content now, for people; empty: both its ends are zero
}

// LookAt checks the options and inspects the disk, which must be unused and not hold the image.
func LookAt(ctx context.Context, o Options) (Target, error) {
	m, err := o.target(ctx)
	if err != nil {
		return Target{}, err
	}
	t := Target{Disk: m.disk}
	dev, err := m.OpenExclusive(ctx, m.disk.Name)
	if err != nil {
		return t, notOpened(err)
	}
	defer dev.Close() // only read
	if t.Holds, err = holds(dev); err != nil {
		return t, fmt.Errorf("read %s: %w", o.Disk, err)
	}
	return t, nil
}

// holds describes the content of a disk by its first and last MiB, where the signatures of tables, file systems, arrays
// and volume groups are.
func holds(dev disk.Device) (string, error) {
	buf := disk.Aligned(disk.HeadSize)
	part := buf[:min(int64(len(buf)), dev.Size())]
	if _, err := dev.ReadAt(part, 0); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	switch format, content := images.Detect(buf); format {
	case images.Raw:
		return "a partition table (" + string(content) + ")", nil
	case images.FileSystem, images.ISO9660:
		return string(content), nil
	case images.NotAnImage:
	default:
		return "an image file in " + string(format) + " format", nil
	}
	used := !index.IsZero(part)
	if end := dev.Size() - int64(len(part)); !used && end > 0 {
		if _, err := dev.ReadAt(part, end); err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		used = !index.IsZero(part)
	}
	if used {
		return "data of a kind that is not known", nil
	}
	return "", nil
}

// Plan describes what Write would do.
type Plan struct {
	Target
	Image       string `json:"image"`
	Format      string `json:"format"`
	Compression string `json:"compression"`
	Table       string `json:"table"`
	VirtualSize int64  `json:"virtual_size"` // -1: known only once it is unpacked
	// -1: unknown to the server; of a published image, the total of its chunks
	FileSize    int64    `json:"file_size"`
	Trust       string   `json:"trust"`
	ConfigDrive string   `json:"config_drive"` // format and size; empty: none
	BootEntry   bool     `json:"boot_entry"`
	Notes       []string `json:"notes"`
}

// Rehearse does all that Write does before it touches the disk, with the same refusals: the image's server, its
// signature, the digest of an index, its table and the space on the disk. The digest of an unpublished image is known
// only after it has been fetched completely. Of an image from a pipe, which can be read only once, only the config
// drive is checked.
func Rehearse(ctx context.Context, o Options, log *slog.Logger) error {
	m, err := o.target(ctx)
	if err != nil {
		return err
	}
	if isPipe(o.Image) {
		_, err := o.drive(ctx, m.disk.LogicalSectors)
		return inFlags(err)
	}
	m.seen.dry = true
	_, err = m.write(ctx, o, log, func(string, step.Progress) {})
	if errors.Is(err, errDry) {
		return nil
	}
	if err == nil {
		return errors.New("the rehearsal ended without coming to the disk")
	}
	return inFlags(err)
}

// isPipe reports whether an image can be read only once.
func isPipe(image string) bool {
	path, local := localImage(image)
	if !local {
		return false
	}
	_, again := storageOf(path)
	return !again && isThere(path)
}

// Examine returns what Write would do, or its refusal. It writes nothing.
func Examine(ctx context.Context, o Options, log *slog.Logger) (*Plan, error) {
	t, err := LookAt(ctx, o)
	if err != nil {
		return nil, err
	}
	drive, err := o.drive(ctx, t.Disk.LogicalSectors)
	if err != nil {
		return nil, inFlags(err)
	}
	var beside int64
	if drive != nil {
		o.ConfigDrive, beside = drive.arg, int64(drive.size)
	}
	if err := Rehearse(ctx, o, nil); err != nil {
		return nil, err
	}
	p := &Plan{Target: t, Image: shown(o.Image), Trust: o.trust(), BootEntry: o.BootEntry}
	if err := p.lookAtImage(ctx, o, beside, log); err != nil {
		return nil, inFlags(err)
	}
	if drive != nil {
		if drive.note != "" {
			p.Notes = append(p.Notes, drive.note)
		}
		p.ConfigDrive = fmt.Sprintf("%s, %s", drive.format, size(uint64(drive.size)))
	}
	return p, nil
}

// shown returns an image's path, or its URL without secrets.
func shown(image string) string {
	if _, local := localImage(image); local {
		return image
	}
	u, err := url.Parse(image)
	if err != nil {
		return "a URL that can't be understood"
	}
	return fetch.Redact(u)
}

// trust describes, for people, how the image is verified.
func (o Options) trust() string {
	var by []string
	switch {
	case o.Digest != "":
		by = append(by, o.Digest)
	case o.Checksum != "":
		by = append(by, "a digest from a file of checksums")
	case oci.IsReference(o.Image):
		if ref, err := oci.ParseReference(o.Image); err == nil && ref.Pinned() {
			by = append(by, "the digest in its reference")
		}
	}
	if len(o.Keys) > 0 {
		by = append(by, "a signature")
	}
	if len(by) == 0 {
		return "nothing: the image is not verified"
	}
	return strings.Join(by, " and ")
}
