package image

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/image/configdrive"
	"github.com/ingot-metal/ingot/agent/image/sink"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
)

// layoutArgs are for images of one file system, under the names of Ironic's instance_info.
var layoutArgs = []step.Arg{
	{Name: "image_type", Type: "string", Enum: []string{"whole-disk", "partition"},
		Description: "whole-disk or partition: required kind of the image; default: decided by its content"},
	{Name: "root_gb", Type: "integer", Min: step.Limit(0),
		Description: "size of the root partition for a partition image; 0: the rest of the disk"},
	{Name: "swap_mb", Type: "integer", Min: step.Limit(0),
		Description: "size of a swap partition beside a partition image"},
	{Name: "ephemeral_gb", Type: "integer", Min: step.Limit(0),
		Description: "size of an ephemeral partition beside a partition image"},
	{Name: "ephemeral_format", Type: "string", Enum: []string{"ext4", "vfat"}, Description: "ext4 or vfat"},
	{Name: "preserve_ephemeral", Type: "boolean",
		Description: "keep the content of the ephemeral partition, which must have the place that the last deployment gave it"},
}

// place decides the place of the image: the whole disk, or the root partition of a disk that is partitioned for it. The
// returned device has the image's offsets. The disk is not touched.
func (p *pass) place(info images.Info) (disk.Device, error) {
	p.division = nil
	if !slices.Contains([]string{"", "whole-disk", "partition"}, p.args.Type) {
		return nil, step.Failf("set image_type to whole-disk or partition, or leave it out", "image_type is %q",
			p.args.Type)
	}
	if !info.Partition {
		if p.args.Type == "partition" {
			return nil, step.Failf("leave out image_type, or give the image of a single file system",
				"image_type is partition, but the image holds %s", info.Head)
		}
		return p.dev, nil
	}
	if p.args.Type == "whole-disk" {
		return nil, info.WholeDisk()
	}
	if err := disk.CanDivide(p.machine); err != nil {
		return nil, fmt.Errorf("the image is not of a whole disk: it holds %s without a partition table: %w", info.Head,
			err)
	}
	x, err := disk.Divide(p.dev, p.disk, p.args.Layout)
	if err != nil {
		return nil, err
	}
	p.division = x
	return x.Root(), nil
}

// begin makes the old system unbootable, after all checks of the new image.
func (p *pass) begin(ctx context.Context, s *sink.Sink, start []byte, size int64) error {
	if p.division == nil {
		// A disk that is partitioned here has space for it.
		if err := disk.CheckRoom(start, size, p.disk, configdrive.Label, p.drive); err != nil {
			return err
		}
		return s.Begin(ctx, start, size)
	}
	if err := p.division.Begin(ctx, start, size); err != nil {
		var known *step.Error
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.As(err, &known) {
			return err
		}
		return sink.Fault(fmt.Errorf("divide %s: %w", p.disk.Name, err))
	}
	return s.Begin(ctx, start, size)
}

// held returns the data for the commit.
func (p *pass) held(s *sink.Sink) (*disk.Pending, error) {
	if p.division == nil {
		return s.Pending()
	}
	return p.division.Pending(s.Size()), nil
}
