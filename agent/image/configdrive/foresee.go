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

// Foresee returns the size of the config drive that a later step of the same plan will write to a disk with such
// sectors; 0 if there is none. It builds the drive, so that its faults are known while the disk still has its old
// system. A drive from a URL is kept for the later step, as a second download might differ.
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
			debug.FreeOSMemory() // the image comes next, and needs the memory
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

// built builds a config drive, or takes the kept one of the same arguments, which can be taken once.
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

// OddLabel returns why an instance may not find the config drive that Build returned, if it is a given file system; ""
// if it will be found.
func OddLabel(payload []byte) string {
	label := ""
	if iso9660.Is(payload) {
		label = strings.TrimRight(string(payload[16*iso9660.Sector+40:][:32]), " \x00")
	} else if fs, err := readable(payload); err == nil && fs != nil {
		label, _ = fs.Label() // an unreadable label counts as none
	}
	if strings.EqualFold(label, Label) || strings.EqualFold(label, "cidata") { // that of cloud-init's NoCloud
		return ""
	}
	return fmt.Sprintf("the config drive's file system is labelled %q, not %q: most systems won't find it", label,
		Label)
}
