package configdrive

import (
	"bytes"
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/iso9660"
)

// Foresee gives the size of the config drive that a later step of the same plan is to write to a disk with such
// sectors; 0 when there is none. It builds the drive, so that what is wrong with it is known while the disk still has
// its old system. One from a URL is kept for the later step: another answer might be a different one.
func Foresee(ctx context.Context, c *step.Call, sector int) (int64, error) {
	for _, p := range c.Later {
		if p.Interface != "deploy" || p.Name != "write_configdrive" {
			continue
		}
		c.Report(step.Progress{Phase: "build config drive"})
		var a writeArgs
		if err := (&step.Call{Args: p.Args}).Decode(&a); err != nil {
			return 0, fmt.Errorf("config drive: %w", err)
		}
		payload, format, err := a.built(ctx, c, sector)
		if err != nil {
			return 0, err
		}
		if IsURL(a.ConfigDrive) {
			c.Facts.Set(keptKey{}, &kept{a, sector, payload, format})
		} else if len(payload) > 1<<20 {
			debug.FreeOSMemory() // the image comes next, and has its own use for memory
		}
		return int64(len(payload)), nil
	}
	return 0, nil
}

type keptKey struct{}

// kept is a config drive that was fetched before it is written.
type kept struct {
	args    writeArgs
	sector  int
	payload []byte
	format  string
}

// built builds a config drive, or takes the one that was kept of the same arguments. What is kept is there once.
func (a writeArgs) built(ctx context.Context, c *step.Call, sector int) (payload []byte, format string, err error) {
	k, _ := c.Facts.Get(keptKey{}).(*kept)
	c.Facts.Set(keptKey{}, (*kept)(nil))
	if k != nil && k.sector == sector && bytes.Equal(k.args.ConfigDrive, a.ConfigDrive) && k.args.CA == a.CA {
		return k.payload, k.format, nil
	}
	if payload, format, err = Build(ctx, a.ConfigDrive, sector, time.Now(), Servers{CA: a.CA, Log: c.Log}); err != nil {
		return nil, "", fmt.Errorf("config drive: %w", err)
	}
	return payload, format, nil
}

// OddLabel says why an instance may not find the config drive that Build gave, when it is a file system of somebody's
// own; "" when nothing speaks against it.
func OddLabel(payload []byte) string {
	label := ""
	if iso9660.Is(payload) {
		label = strings.TrimRight(string(payload[16*iso9660.Sector+40:][:32]), " \x00")
	} else if fs, err := readable(payload); err == nil && fs != nil {
		label, _ = fs.Label() // one that can't be read is none
	}
	if strings.EqualFold(label, Label) || strings.EqualFold(label, "cidata") { // that of cloud-init's NoCloud
		return ""
	}
	return fmt.Sprintf("the config drive's file system is labelled %q, not %q: most systems won't find it", label,
		Label)
}
