package erase

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingot-metal/ingot/agent/step"
)

// PstoreArgs declares the arguments of erase_pstore: none.
var PstoreArgs = []step.Arg{}

// PstoreStep clears the kernel's persistent store, in which a crashed kernel saves its log to the firmware's memory: it
// can hold data of an earlier user. A machine without such a store has nothing to erase. It may be run again.
func PstoreStep(m interface{ Root() string }) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, _ struct{}) (step.Outcome, error) {
		dir := filepath.Join(m.Root(), "sys/fs/pstore")
		removed := []string{}
		done := step.Outcome{Result: map[string]any{"removed": &removed}}
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			c.Log.Info("the kernel has no persistent store")
			return done, nil
		}
		// An unmounted store looks like an empty directory.
		mounts, err := os.ReadFile(filepath.Join(m.Root(), "proc/self/mounts"))
		if err != nil {
			return step.Outcome{}, fmt.Errorf("read the mounts: %w", err)
		}
		if !strings.Contains(string(mounts), " /sys/fs/pstore pstore ") {
			return step.Outcome{},
				step.Failf("use a ramdisk that mounts the kernel's persistent store",
					"the kernel's persistent store is not mounted")
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return step.Outcome{}, fmt.Errorf("read the persistent store: %w", err)
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return step.Outcome{}, err
			}
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return step.Outcome{},
					step.Fail("clear the firmware's memory in its setup",
						fmt.Errorf("remove %s from the persistent store: %w", e.Name(), err))
			}
			removed = append(removed, e.Name())
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			return step.Outcome{},
				step.Failf("clear the firmware's memory in its setup",
					"%d records are still in the persistent store (%v)", len(left), err)
		}
		c.Log.Info("persistent store emptied", "records", len(removed))
		return done, nil
	})
}
