package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/conductor/app/doctor"
	"github.com/ingot-metal/ingot/conductor/app/doctor/firewall"
	"github.com/ingot-metal/ingot/conductor/config"
)

// oneLine makes a line of a list of faults with its heading.
var oneLine = strings.NewReplacer(":\n", ": ", "\n", "; ")

// errFaults ends the doctor when it found faults, which it has printed already.
var errFaults = errors.New("there are faults, see above")

// examine checks an installation and prints the findings. It fails when there are faults.
func examine(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	c, _ := find([]string{"doctor"})
	fl := c.flags(stderr)
	var sets []string
	file := fl.String("config", "", "the conductor's configuration `file`")
	dir := fl.String("data-dir", "", "short for --set data_dir=`DIR`")
	fl.Func("set", "set any `KEY=VALUE` of the configuration; may be repeated",
		func(s string) error { sets = append(sets, s); return nil })
	asJSON := fl.Bool("json", false,
		"print a list of objects with check, status (ok, warning, fault), detail and remedy")
	if done, err := parse(fl, args); done || err != nil {
		return err
	}
	if fl.NArg() > 0 {
		return fmt.Errorf("ingotd doctor takes no arguments, only flags; %q is none", fl.Arg(0))
	}
	var load []string
	if *file != "" {
		load = append(load, "--config", *file)
	}
	if *dir != "" {
		load = append(load, "--data-dir", *dir)
	}
	for _, s := range sets {
		load = append(load, "--set", s)
	}
	p := doctor.Patient{}
	p.Config, _, p.ConfigFault = config.Load(load, environ, io.Discard)
	p.Chains, p.ChainsFault = firewall.Find() // as root, if this is
	if err := doctor.BecomeOwner(p.Config.DataDir); err != nil {
		return err
	}
	p.Running = inUse(p.Config.DataDir)
	p.Address, p.AddressFault = provisioningAddress(p.Config)
	findings := doctor.Examine(ctx, p)
	faults := false
	for _, f := range findings {
		faults = faults || f.Status == doctor.Fault
	}
	if *asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(findings); err != nil {
			return err
		}
	} else {
		for _, f := range findings {
			mark := map[doctor.Status]string{doctor.OK: "OK", doctor.Warning: "WARNING",
				doctor.Fault: "FAULT"}[f.Status]
			fmt.Fprintf(stdout, "%-8s %-15s %s\n", mark, f.Check, oneLine.Replace(f.Detail))
			if f.Remedy != "" {
				fmt.Fprintf(stdout, "%-24s to do: %s\n", "", f.Remedy)
			}
		}
	}
	if faults {
		return errFaults
	}
	return nil
}

// inUse reports whether a process has the lock on a data directory. It creates no file, and takes no lock: an ingotd
// that starts meanwhile would find it.
func inUse(dir string) bool {
	f, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	other := wholeFile()
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, other)
	return err == nil && other.Type != unix.F_UNLCK
}
