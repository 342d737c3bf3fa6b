package kit

import (
	"net"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
	"time"
)

func TestTempDisk(t *testing.T) {
	fi, err := os.Stat(TempDisk(t, 5<<20))
	if err != nil || fi.Size() != 5<<20 {
		t.Fatalf("disk = %v, %v, want 5 MiB", fi, err)
	}
}

func TestEventually(t *testing.T) {
	n := 0
	Eventually(t, time.Second, "the third call", func() bool { n++; return n == 3 })
}

func TestWatchAcrossWrites(t *testing.T) {
	w := &watch{found: make(chan struct{})}
	w.until = regexp.MustCompile("log[i]n:")
	for _, s := range []string{"debian lo", "gi", "n: "} {
		if _, err := w.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-w.found:
	default:
		t.Error("a match over three writes was not seen")
	}
	if w.String() != "debian login: " {
		t.Errorf("text = %q", w)
	}
}

func TestOfSlowness(t *testing.T) {
	for message, want := range map[string]bool{
		"rcu: INFO: rcu_preempt self-detected stall on CPU":                                                               true,
		"rcu: \t0-....: (5249 ticks this GP) idle=1a6c/1/0x4000000000000000 softirq=70/70 fqs=2624":                       true,
		"watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [swapper/0:1]":                                                 true,
		"BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 31s!":                                      true,
		"clocksource: timekeeping watchdog on CPU0: Marking clocksource 'tsc' as unstable because the skew is too large:": true,
		"hrtimer: interrupt took 12345678 ns":                                                                             true,
		"perf: interrupt took too long (2535 > 2500), lowering":                                                           true,
		"..MP-BIOS bug: 8254 timer not connected to IO-APIC":                                                              true,
		"APIC calibration not consistent with PM-Timer: 131ms instead of 100ms":                                           true,
		"blk_update_request: I/O error, dev vda, sector 2048":                                                             false,
		"nvme nvme0: I/O 12 QID 1 timeout, aborting":                                                                      false,
		"virtio_net virtio0: Device is broken":                                                                            false,
		"e1000e 0000:00:03.0 eth0: Detected Hardware Unit Hang:":                                                          false,
		"ACPI BIOS Error (bug): Could not resolve symbol, rcu: was not":                                                   false,
		"BUG: kernel NULL pointer dereference, address: 0000000000000008":                                                 false,
		"INFO: task mount:77 blocked for more than 120 seconds.":                                                          false,
	} {
		if got := OfSlowness(message); got != want {
			t.Errorf("OfSlowness(%q) = %v", message, got)
		}
	}
}

func TestFreeAddr(t *testing.T) {
	seen := map[string]bool{}
	for range 20 {
		addr := FreeAddr(t)
		l, err := net.Listen("tcp", addr)
		if err != nil || seen[addr] {
			t.Fatalf("%s: %v; given before: %v", addr, err, seen[addr])
		}
		defer l.Close()
		seen[addr] = true
	}
}

func TestLoop(t *testing.T) {
	dev := Loop(t, TempDisk(t, 1<<20))
	if err := os.WriteFile(dev, []byte("hello"), 0); err != nil {
		t.Error(err)
	}
}

// TestMountPoint holds that a file system ends when it is unmounted, also when somebody has made a mount namespace in
// between.
func TestMountPoint(t *testing.T) {
	NeedRoot(t)
	NeedPrograms(t, "mkfs.ext4", "losetup", "unshare")
	disk := TempDisk(t, 16<<20)
	Run(t, "mkfs.ext4", "-q", disk)
	dev, dir := Loop(t, disk), MountPoint(t)
	Run(t, "mount", dev, dir)
	other := exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo there; exec cat")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer in.Close()
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	Run(t, "umount", dir)
	f, err := os.OpenFile(dev, os.O_RDONLY|syscall.O_EXCL, 0)
	if err != nil {
		t.Fatalf("the file system is still there: %v", err)
	}
	f.Close()
}
