package pg

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// FakeClock has the server go by a clock of its own from its next start on, which SetClock sets: that of the host stays
// as it is. The clock is kept in a file, which the server's user must be able to read.
func (c *Cluster) FakeClock(file string) error {
	lib, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if err != nil || len(lib) == 0 {
		return errors.Join(errors.New("faketime is not installed: apt-get install faketime (make deps)"), err)
	}
	// For the server alone: its programs do not start with it.
	c.clock, c.Env = file, append(c.Env, "LD_PRELOAD="+lib[0], "FAKETIME_TIMESTAMP_FILE="+file, "FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1")
	return c.SetClock(0)
}

// SetClock sets the clock of FakeClock to so much after the true time, at once.
func (c *Cluster) SetClock(by time.Duration) error {
	if err := os.WriteFile(c.clock+".new", fmt.Appendf(nil, "%+.3f\n", by.Seconds()), 0o644); err != nil {
		return err
	}
	return os.Rename(c.clock+".new", c.clock)
}
