package machine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/nbd"
)

// badDisk is a disk whose writes from an offset on are not what they seem.
type badDisk struct {
	fake.Device
	from  int64
	write func(d fake.Device, p []byte, off int64) (int, error)
}

func (b badDisk) WriteAt(p []byte, off int64) (int, error) {
	if off < b.from || b.write == nil {
		return b.Device.WriteAt(p, off)
	}
	return b.write(b.Device, p, off)
}

// nbdRig is a machine with this test's disks, connected through QEMU's NBD driver and a real virtio driver.
type nbdRig struct {
	t     *testing.T
	disks map[string]*fake.Disk
	args  []string
}

const faultDiskSize = 5 << 30

// add puts a disk into the machine, known by its serial number.
func (r *nbdRig) add(serial string, from int64,
	write func(d fake.Device, p []byte, off int64) (int, error)) *fake.Disk {
	r.t.Helper()
	m := fake.NewDisks(r.t.TempDir())
	d := m.Add(fake.DiskSpec{Name: "vda", Serial: serial, Size: faultDiskSize, Fill: 0xa5})
	dev, err := m.OpenExclusive(r.t.Context(), "/dev/vda")
	if err != nil {
		r.t.Fatal(err)
	}
	uri := nbd.Serve(r.t, badDisk{dev, from, write})
	if r.disks == nil {
		r.disks = map[string]*fake.Disk{}
	}
	r.disks[serial] = d
	// Writes go through, flushes come from the guest alone.
	r.args = append(r.args, "-drive", "if=none,format=raw,cache=none,discard=unmap,werror=report,rerror=report,id="+
		serial+",file="+kit.Quote(uri),
		"-device", "virtio-blk-pci,drive="+serial+",serial="+serial)
	return d
}

func (r *nbdRig) boot(d *desk, more ...string) string {
	r.t.Helper()
	vm := agentOf(r.t, made.RamdiskLab, d, slices.Concat(nic(), r.args, more)...)
	vm.Timeout *= 2
	return kit.Boot(r.t, vm)
}

// notBootable says that firmware finds nothing on a disk.
func notBootable(t *testing.T, what string, d *fake.Disk) {
	t.Helper()
	head := make([]byte, 1<<20)
	if _, err := d.ReadAt(head, 0); err != nil {
		t.Fatal(err)
	}
	if head[510] == 0x55 && head[511] == 0xaa || bytes.HasPrefix(head[512:], []byte("EFI PART")) {
		t.Errorf("%s: the disk looks bootable", what)
	}
}

// onto is a plan that writes the tiny system to the disk with a serial number and commits it.
func onto(write func(map[string]any) node.PlanStep, id, serial string, verify bool) node.Plan {
	return plan(id, node.PhaseDeploy,
		write(map[string]any{"root_device": map[string]string{"serial": serial}, "verify": verify}), prepareBoot)
}

// TestDiskFaults writes an image onto disks that fail in all ways, in a real machine: each write fails and says which
// disk, none leaves anything bootable, also when the cache is lost; a slow disk is fine; and once a disk is mended the
// same machine can write to it.
func TestDiskFaults(t *testing.T) {
	write := tinyServer(t)

	r := &nbdRig{t: t}
	const mib = 1 << 20
	// Faults are in the image's middle: both ends of the disk are read back all the time.
	const end = 60 * mib
	failing := func(kind string, from int64, err error) func(string, int64, int64) error {
		return func(k string, off, n int64) error {
			if k == kind && off+n > from && off < end {
				return err
			}
			return nil
		}
	}
	r.add("eio", 0, nil).Fail(failing("write", 40*mib, unix.EIO))
	r.add("enospc", 0, nil).Fail(failing("write", 45*mib, unix.ENOSPC))
	r.add("readeio", 0, nil).Fail(failing("read", 40*mib, unix.EIO))
	flush := r.add("noflush", 0, nil)
	var flushes atomic.Int64
	flush.Fail(func(kind string, _, _ int64) error {
		if kind == "sync" && flushes.Add(1) > 1 { // the first is that of the old table's end
			return unix.EIO
		}
		return nil
	})
	r.add("lying", 40*mib, func(d fake.Device, p []byte, off int64) (int, error) {
		if off >= end {
			return d.WriteAt(p, off)
		}
		return len(p), nil
	})
	r.add("half", 40*mib, func(d fake.Device, p []byte, off int64) (int, error) {
		if off >= end {
			return d.WriteAt(p, off)
		}
		if _, err := d.WriteAt(p[:len(p)/1024*512], off); err != nil {
			return 0, err
		}
		return len(p), nil
	})
	slow := r.add("slow", 0, func(d fake.Device, p []byte, off int64) (int, error) {
		time.Sleep(5 * time.Millisecond)
		return d.WriteAt(p, off)
	})

	bad := []string{"eio", "enospc", "readeio", "noflush", "lying", "half"}
	var plans []node.Plan
	for _, s := range bad {
		plans = append(plans, onto(write, "bad-"+s, s, s == "lying" || s == "half" || s == "readeio"))
	}
	plans = append(plans, onto(write, "slow", "slow", false), onto(write, "mended", "noflush", true))
	d := newDesk(t, plans...)
	d.keepGoing = true
	d.before = func(p node.Plan) {
		if p.ID == "mended" {
			flush.Fail(nil)
		}
	}
	console := r.boot(d)
	for i, s := range bad {
		if i >= len(d.ended) || d.ended[i].PlanID != "bad-"+s || d.ended[i].Done {
			t.Fatalf("plan on disk %s: ended %+v\nconsole:\n%s", s, d.ended, console)
		}
		res := d.steps["bad-"+s]["write_image"]
		t.Logf("%s: %s — %s", s, res.Error, res.Remedy)
		if res.Outcome != node.OutcomeFailed || res.Remedy == "" || !strings.Contains(res.Error, "/dev/vd") ||
			strings.Contains(res.Error, "old partition table") {
			t.Errorf("disk %s: %+v", s, res)
		}
		if s == "noflush" {
			continue // it has been mended
		}
		notBootable(t, s, r.disks[s])
		r.disks[s].PowerCut(nil)
		notBootable(t, s+", and its cache lost", r.disks[s])
	}
	for _, p := range d.ended[len(bad):] {
		if !p.Done {
			t.Errorf("plan %s: %+v", p.PlanID, d.steps[p.PlanID])
		}
	}
	if len(d.ended) != len(plans) {
		t.Errorf("%d of %d plans ended", len(d.ended), len(plans))
	}
	// All that is committed is flushed. A disk that is byte for byte like one that boots, boots.
	slow.PowerCut(nil)
	flush.PowerCut(nil)
	piece, same := make([]byte, 1<<20), make([]byte, 1<<20)
	for _, part := range []struct{ from, to int64 }{{0, 128 * mib}, {faultDiskSize - 16*mib, faultDiskSize}} {
		for off := part.from; off < part.to; off += mib {
			if _, err := slow.ReadAt(piece, off); err != nil {
				t.Fatal(err)
			}
			if _, err := flush.ReadAt(same, off); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(piece, same) {
				t.Errorf("the slow disk differs from the mended one in the MiB at byte %d", off)
			}
		}
	}
	bootsTiny(t, "mended", flush)
}

// TestDiskPowerCut cuts the power in the middle of a write, with everything lost that was not flushed: with INGOT_FULL
// at several moments of it. The disk never looks bootable; the next machine with that disk writes it whole. In
// agent/image the power is cut at all moments.
func TestDiskPowerCut(t *testing.T) {
	write := tinyServer(t)
	r := &nbdRig{t: t}
	disk := r.add("cut", 0, nil)
	cuts := []int64{10 << 20} // bytes written, of some 25 MiB
	if os.Getenv("INGOT_FULL") != "" {
		cuts = []int64{4 << 20, 10 << 20, 20 << 20}
	}
	for i, after := range cuts {
		socket := filepath.Join(t.TempDir(), "monitor")
		var n atomic.Int64
		var once sync.Once
		cut := make(chan struct{})
		disk.Fail(func(kind string, off, size int64) error {
			if kind == "write" && off < faultDiskSize/2 && n.Add(size) >= after {
				once.Do(func() {
					go func() {
						defer close(cut)
						quitMachine(socket)
					}()
				})
				<-cut // however slowly the machine is ended, it gets no further meanwhile
			}
			return nil
		})
		d := newDesk(t, onto(write, fmt.Sprintf("cut-%d", i), "cut", false))
		r.boot(d, "-qmp", "unix:"+socket+",server=on,wait=off")
		if len(d.ended) != 0 {
			t.Fatalf("the plan ended before the power was cut: %+v", d.ended)
		}
		// A disk may keep any part of what it was not told to flush.
		disk.PowerCut(func(i int, _ fake.Op) bool { return i%3 == 0 })
		notBootable(t, fmt.Sprintf("power cut after %d bytes", after), disk)
	}
	disk.Fail(nil)
	d := newDesk(t, onto(write, "whole", "cut", true))
	console := r.boot(d)
	if len(d.ended) != 1 || !d.ended[0].Done {
		t.Fatalf("after the power cuts: %+v\n%s", d.results, console)
	}
	disk.PowerCut(nil)
	bootsTiny(t, "after power cuts", disk)
}

// bootsTiny boots the system on a disk.
func bootsTiny(t *testing.T, what string, disk *fake.Disk) {
	t.Helper()
	uri := nbd.Serve(t, readOnly{disk})
	kit.Boot(t, kit.VM{Until: `INGOT-TINY up=`, Timeout: osLimit, Args: []string{
		"-drive", "if=none,format=raw,cache=none,id=d0,file=" + kit.Quote(uri), "-device",
		"virtio-blk-pci,drive=d0,bootindex=1,serial=d0"}})
	t.Logf("%s: it boots", what)
}

// readOnly is a disk as its owner sees it, without opening it; what the booted system writes is kept.
type readOnly struct{ *fake.Disk }

func (readOnly) Size() int64                { return faultDiskSize }
func (readOnly) Sync() error                { return nil }
func (r readOnly) Punch(off, n int64) error { _, err := r.WriteAt(make([]byte, n), off); return err }

// quitMachine ends a machine as a power cut does, by QEMU's monitor at a socket.
func quitMachine(socket string) {
	_ = monitor(socket, "quit")
}
