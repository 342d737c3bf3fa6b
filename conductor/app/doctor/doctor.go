// Package doctor looks at an installation of the conductor from outside, whether it runs or not, and says of each thing
// that it needs that it is well, or what to do about it. It changes nothing.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/conductor/app/doctor/firewall"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/observe/shortage"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/postgres"
)

// Status says how something is.
type Status string

// Statuses. With a fault the conductor does not start, or not all of it works; a warning is for soon.
const (
	OK      Status = "ok"
	Warning Status = "warning"
	Fault   Status = "fault"
)

// Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// Patient is the installation.
type Patient struct {
	Config config.Config
	// ConfigFault is the error of the configuration, nil if it has none.
	ConfigFault error
	// Address is the conductor's on the provisioning network; invalid without one. AddressFault says why it can't be
	// found.
	Address      netip.Addr
	AddressFault error
	// Chains are those of the host's firewall; ChainsFault says why they can't be found.
	Chains      []firewall.Chain
	ChainsFault error
	// Running says that an ingotd uses the data directory.
	Running bool
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// checks lists all checks in the order of the report. Each returns one finding or more, without the name.
var checks = []struct {
	name string
	run  func(ctx context.Context, p Patient) []Finding
}{
	{"configuration", checkConfig},
	{"data directory", checkDir},
	{"permissions", checkPermissions},
	{"keys", checkKeys},
	{"database", checkDatabase},
	{"CA", checkCA},
	{"certificates", checkCertificates},
	{"clock", checkClock},
	{"ports", checkPorts},
	{"firewall", checkFirewall},
	{"network", checkWire},
	{"boot files", checkBootFiles},
	{"switches", checkSwitches},
	{"clouds", checkClouds},
	{"free space", checkSpace},
	{"limits", checkLimits},
}

// Examine makes all checks.
func Examine(ctx context.Context, p Patient) []Finding {
	if p.Now == nil {
		p.Now = time.Now
	}
	var out []Finding
	for _, c := range checks {
		for _, f := range c.run(ctx, p) {
			f.Check = c.name
			out = append(out, f)
		}
	}
	return out
}

func ok(format string, args ...any) []Finding {
	return []Finding{{Status: OK, Detail: fmt.Sprintf(format, args...)}}
}

func finding(s Status, remedy, format string, args ...any) []Finding {
	return []Finding{{Status: s, Detail: fmt.Sprintf(format, args...), Remedy: remedy}}
}

func checkConfig(_ context.Context, p Patient) []Finding {
	if p.ConfigFault != nil {
		return finding(Fault,
			"correct the configuration file, the environment (INGOT_...) or the flags; ingotd --help lists the keys",
			"%v", p.ConfigFault)
	}
	return ok("it can be used")
}

func checkDir(_ context.Context, p Patient) []Finding {
	dir := p.Config.DataDir
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return finding(Warning, "nothing, if ingotd was never started; else mount or restore it, or set data_dir",
			"%s does not exist", dir)
	case err != nil:
		return finding(Fault, "let the conductor's user search the folders above it", "%v", err)
	case !info.IsDir():
		return finding(Fault, "set data_dir to a folder", "%s is no folder", dir)
	}
	if info.Mode().Perm()&0o007 != 0 {
		return finding(Fault, "chmod o= "+dir, "%s is open to all users (mode %04o)", dir, info.Mode().Perm())
	}
	if unix.Access(dir, unix.W_OK|unix.X_OK) != nil {
		return finding(Fault, "run this as the conductor's user, or give the folder to that user: chown -R USER "+dir,
			"%s can't be written to by this user", dir)
	}
	return ok("%s", dir)
}

func checkDatabase(ctx context.Context, p Patient) []Finding {
	dir := p.Config.DataDir
	if _, err := os.Stat(dir); err != nil && p.Config.Store.Server() == "" {
		return ok("there is none yet")
	}
	if p.Config.Store.Server() != "" {
		return checkServer(ctx, p)
	}
	err := store.Check(ctx, dir, p.Config.Store.Bytes())
	var unusable *store.UnusableError
	if errors.As(err, &unusable) {
		return finding(Fault, unusable.Remedy(), "%s", unusable.What())
	}
	if err != nil {
		return finding(Fault, "see what is wrong with the file, its disk or the key", "%v", err)
	}
	return ok("every page is good, and it is this installation's")
}

// checkServer looks at a PostgreSQL database, as a start of ingotd would.
func checkServer(ctx context.Context, p Patient) []Finding {
	password, err := postgres.ReadPassword(p.Config.Store.PasswordFile)
	if err != nil {
		return finding(Fault, "make the file readable for the conductor's user", "%v", err)
	}
	s, err := postgres.Parse(p.Config.Store.Server(), password)
	if err == nil {
		err = s.Check(ctx)
	}
	if err != nil {
		return finding(Fault, "ask the administrator of the database", "%v", err)
	}
	return ok("%s answers, and can be written to", s)
}

func checkClock(ctx context.Context, p Patient) []Finding {
	now := p.Now()
	newest, err := store.NewestIn(ctx, p.Config.DataDir)
	if err == nil && newest.Sub(now) > time.Minute {
		return finding(Fault, "set the clock (NTP)", "it says %s, and the database has records of %s",
			now.UTC().Format(time.RFC3339), newest.UTC().Format(time.RFC3339))
	}
	var tx unix.Timex
	if state, err := unix.Adjtimex(&tx); err == nil && state == unix.TIME_ERROR {
		return finding(Warning, "run an NTP client (chrony, systemd-timesyncd)",
			"no program keeps it right; it says %s", now.UTC().Format(time.RFC3339))
	}
	return ok("%s", now.UTC().Format(time.RFC3339))
}

// leastSpace is too little room to work with, lowSpace little.
const (
	leastSpace = 128 << 20
	lowSpace   = 1 << 30
)

// checkSpace looks at the file system of the data directory, and at that of the images where it is another one.
func checkSpace(_ context.Context, p Patient) []Finding {
	dir := p.Config.DataDir
	out := spaceFor(dir, "soon no change can be stored")
	if images := p.Config.Netboot.ImagesDir; p.Address.IsValid() && images != "" && device(images) != device(dir) {
		out = append(out, spaceFor(images, "few images have room")...)
	}
	return out
}

// spaceFor looks for room in a folder, or where it would be made.
func spaceFor(dir, shortOf string) []Finding {
	free, err := shortage.Free(existing(dir))
	remedy := "make room on the file system of " + dir
	switch {
	case err != nil:
		return finding(Fault, remedy, "%v", err)
	case free < leastSpace:
		return finding(Fault, remedy, "%d MiB are free for %s, less than %d: %s", free>>20, dir, leastSpace>>20, shortOf)
	case free < lowSpace:
		return finding(Warning, remedy, "%d MiB are free for %s", free>>20, dir)
	}
	return ok("%d MiB for %s", free>>20, dir)
}

// existing is a folder, or the first one above it that is there.
func existing(dir string) string {
	for {
		_, err := os.Stat(dir)
		above := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || above == dir {
			return dir
		}
		dir = above
	}
}

// device is the number of the file system that a folder is in, or would be.
func device(dir string) uint64 {
	var st unix.Stat_t
	if unix.Stat(existing(dir), &st) != nil {
		return 0
	}
	return st.Dev
}

// fewFiles is a limit that a few hundred nodes and callers can come to.
const fewFiles = 4096

func checkLimits(context.Context, Patient) []Finding {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return finding(Fault, "look at the limits of this user", "%v", err)
	}
	if lim.Max < fewFiles {
		return finding(Warning,
			fmt.Sprintf("raise the hard limit: LimitNOFILE=%d in the service, or ulimit -Hn", shortage.MostFiles),
			"%d files may be open at once for this user", lim.Max)
	}
	return ok("%d open files", lim.Max)
}
