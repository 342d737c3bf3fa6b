package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/passthru"
)

// DiskHealth is a disk's own health data (SMART, or NVMe's health log). Disks without such data are not listed.
type DiskHealth struct {
	Name   string `json:"name"`
	Serial string `json:"serial"`
	passthru.Health
}

// healthLimit is the time limit for a disk's answers: a hanging disk must not delay the inspection.
const healthLimit = 15 * time.Second

// diskHealth reads all disks concurrently, and adds the versions of their firmware. On a machine without access to disk
// commands the versions come from sysfs.
func diskHealth(ctx context.Context, m machine, disks []disk.Disk, firmware *[]FirmwareVersion) ([]DiskHealth, error) {
	transport, ok := m.(passthru.Transport)
	type answer struct {
		version string
		health  passthru.Health
		err     error
	}
	answers := make([]answer, len(disks))
	var wg sync.WaitGroup
	for i, d := range disks {
		answers[i] = answer{version: diskFirmware(m.Root(), d.Name), err: errors.ErrUnsupported}
		if !ok {
			continue
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, healthLimit)
			defer cancel()
			a := &answers[i]
			a.err = guard(func() error {
				dev, err := passthru.Open(ctx, transport, d.Name, passthru.Options{})
				if err != nil {
					return err
				}
				a.version = cmp.Or(dev.Firmware, a.version)
				a.health, err = dev.Health(ctx)
				return err
			})
		})
	}
	wg.Wait()
	var all []DiskHealth
	var errs []error
	for i, a := range answers {
		if a.version != "" {
			*firmware = append(*firmware, FirmwareVersion{"disk", disks[i].Name, a.version})
		}
		switch {
		case a.err == nil:
			all = append(all, DiskHealth{Name: disks[i].Name, Serial: disks[i].Serial, Health: a.health})
		case !errors.Is(a.err, errors.ErrUnsupported):
			errs = append(errs, fmt.Errorf("disk %s: %w", disks[i].Name, a.err))
		}
	}
	return all, errors.Join(errs...)
}
