// Package made has what tests need that takes long to make: programs, ramdisks and images. Each is made once in a run
// of all tests, by whichever process needs it first, and shared by all test processes; it lies below build/test/made.
//
// A run is named by the environment's INGOT_RUN (see test/run). Without it, as in a plain `go test`, a thing is made
// anew once in each process, which takes little where its own inputs have not changed.
package made

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/images/build"
	ramdisk "github.com/ingot-metal/ingot/initramfs/build"
	"github.com/ingot-metal/ingot/initramfs/kernel"
	"github.com/ingot-metal/ingot/test/kit/cloud"
)

// Things that can be made.
const (
	Programs      = "programs"       // ingot, ingotd, ingot-agent
	RamdiskLab    = "ramdisk-lab"    // what the virtual rack boots
	RamdiskShell  = "ramdisk-shell"  // the same with a shell
	RamdiskServer = "ramdisk-server" // for servers: distribution kernel, all drivers
	RamdiskFull   = "ramdisk-full"   // the lab's with the distribution kernel, bonding and VLANs
	Tiny          = "tiny"           // the tiny system, with a qcow2
	Tiny4096      = "tiny-4096"      // for disks with sectors of 4096 bytes
	TinyFull      = "tiny-full"      // with the kernel for real hardware
	Debian        = "debian"         // Debian 12 for virtual machines, as `make demo` makes it
	DebianFull    = "debian-full"    // with the kernel for real hardware
	Debian4096    = "debian-4096"    // for disks with sectors of 4096 bytes
	OpenStack     = "openstack"      // the programs of OpenStack and their tables, in the cache of package cloud
)

// Names lists all things, those that others are made of first.
func Names() []string {
	return []string{Programs, RamdiskLab, RamdiskShell, RamdiskServer, RamdiskFull, Tiny, Tiny4096, TinyFull, Debian,
		DebianFull, Debian4096, OpenStack}
}

// Program returns the path of ingot, ingotd or ingot-agent. With INGOT_PROGRAMS in the environment it is one of that
// folder, and nothing is made.
func Program(t testing.TB, name string) string {
	t.Helper()
	if dir := os.Getenv("INGOT_PROGRAMS"); dir != "" {
		return filepath.Join(dir, name)
	}
	return filepath.Join(get(t, Programs), name)
}

// Ramdisk returns the folder of a ramdisk.
func Ramdisk(t testing.TB, name string) string {
	t.Helper()
	return get(t, name)
}

// Image returns an image.
func Image(t testing.TB, name string) *build.Result {
	t.Helper()
	dir := get(t, name)
	r, err := build.Load(dir)
	if err != nil {
		t.Fatalf("read image %s: %v", name, err)
	}
	return r
}

func get(t testing.TB, name string) string {
	t.Helper()
	dir, err := Make(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// thing is this process's state of one of Names.
type thing struct {
	sync.Mutex
	done bool // made, or found, by this process
}

var own = struct {
	sync.Mutex
	things map[string]*thing
}{things: map[string]*thing{}}

// Make makes a thing unless this run has it already, and returns its folder. Other processes that need it wait.
func Make(ctx context.Context, name string) (string, error) {
	if !slices.Contains(Names(), name) {
		return "", fmt.Errorf("%s: no such thing to make; there are %v", name, Names())
	}
	source, err := ramdisk.FindSource()
	if err != nil {
		return "", err
	}
	place := filepath.Join(source, "build", "test", "made")
	dir := filepath.Join(place, name)
	if name == Debian {
		dir = filepath.Join(source, "build", "images", "debian") // the demo's
	}
	own.Lock()
	mine := own.things[name]
	if mine == nil {
		mine = &thing{}
		own.things[name] = mine
	}
	own.Unlock()
	mine.Lock()
	defer mine.Unlock()
	if mine.done {
		return dir, nil
	}
	if err := os.MkdirAll(place, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(place, name+".run"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	run := os.Getenv("INGOT_RUN")
	if made, err := os.ReadFile(lock.Name()); err == nil && run != "" && string(made) == run {
		mine.done = true
		return dir, nil
	}
	if err := fill(ctx, name, source, dir); err != nil {
		return "", fmt.Errorf("make %s: %w", name, err)
	}
	if err := os.WriteFile(lock.Name(), []byte(run), 0o644); err != nil {
		return "", err
	}
	mine.done = true
	return dir, nil
}

func fill(ctx context.Context, name, source, dir string) error {
	switch name {
	case Programs:
		return programs(ctx, source, dir)
	case OpenStack:
		return cloud.Fetch(ctx, slog.New(slog.DiscardHandler))
	case Tiny, Tiny4096, TinyFull:
		_, err := build.Tiny(ctx,
			build.Options{Out: dir, Kernel: map[string]string{TinyFull: kernel.Full}[name], Qcow2: name == Tiny,
				Sector: map[string]int{Tiny4096: 4096}[name]})
		return err
	case Debian, DebianFull, Debian4096:
		_, err := build.Debian(ctx,
			build.Options{Out: dir, Kernel: map[string]string{DebianFull: kernel.Full}[name],
				Sector: map[string]int{Debian4096: 4096}[name]})
		return err
	}
	o := map[string]ramdisk.Options{
		RamdiskLab:    {Profile: "lab"},
		RamdiskShell:  {Profile: "lab", Shell: true},
		RamdiskServer: {Profile: "server"},
		// The cloud kernel has neither SATA nor e1000.
		RamdiskFull: {Profile: "lab", Kernel: kernel.Full, Modules: []string{"xhci_pci", "bonding", "8021q",
			"target_core_iblock", "iscsi_target_mod"}},
	}[name]
	bin, err := Make(ctx, Programs)
	if err != nil {
		return err
	}
	o.Out, o.Source, o.Agent = dir, source, filepath.Join(bin, "ingot-agent")
	_, err = ramdisk.Build(ctx, o)
	return err
}

// programs builds the three programs; the agent as the ramdisk's builder does, for it goes into the ramdisks.
func programs(ctx context.Context, source, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"-o", dir + "/", "./tools/cmd/ingot", "./conductor/cmd/ingotd"},
		{"-tags", "grpcnotrace", "-ldflags", "-s -w -buildid= -X main.version=dev", "-o", dir + "/",
			"./agent/cmd/ingot-agent"},
	} {
		cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-buildvcs=false"}, args...)...)
		cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0", "GOGC=400") // the compiler's; see test/run
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
	}
	return nil
}
