package fake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Drive is the model of a disk's firmware, which handles commands that bypass the block layer. NVMe, ATA and SCSI
// implement it.
type Drive interface {
	nvme(opcode uint8, nsid uint32, cdw [6]uint32, data []byte) (result uint32, status uint16, err error)
	scsi(cdb []byte, out bool, data []byte) (status uint8, sense []byte, n int, err error)
	powerCut()
}

// drives are the models behind a machine's disks, by path.
type drives struct {
	mu sync.Mutex
	m  map[string]Drive
}

// Attach gives a disk ("nvme0n1") a firmware. Without one, its disk has no commands, like virtio's.
func (m *Disks) Attach(name string, d Drive) {
	m.drives.mu.Lock()
	defer m.drives.mu.Unlock()
	if m.drives.m == nil {
		m.drives.m = map[string]Drive{}
	}
	m.drives.m["/dev/"+name] = d
}

func (m *Disks) drive(ctx context.Context, device string) (Drive, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	m.drives.mu.Lock()
	defer m.drives.mu.Unlock()
	if d := m.drives.m[device]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("%s: %w", device, errors.ErrUnsupported)
}

// NVMeAdmin sends an admin command, like agent/machine/linux.
func (m *Disks) NVMeAdmin(ctx context.Context, device string, opcode uint8, nsid uint32, cdw [6]uint32, data []byte,
	_ time.Duration) (uint32, uint16, error) {
	d, err := m.drive(ctx, device)
	if err != nil {
		return 0, 0, fmt.Errorf("send NVMe admin command 0x%02x to %s: %w", opcode, device, err)
	}
	return d.nvme(opcode, nsid, cdw, data)
}

// SCSI sends a command, like agent/machine/linux.
func (m *Disks) SCSI(ctx context.Context, device string, cdb []byte, out bool, data []byte,
	_ time.Duration) (uint8, []byte, int, error) {
	d, err := m.drive(ctx, device)
	if err != nil {
		return 0, nil, 0, fmt.Errorf("send SCSI command 0x%02x to %s: %w", cdb[0], device, err)
	}
	return d.scsi(cdb, out, data)
}

// PowerCut cuts the power of the whole machine: write caches are lost, and every drive's firmware restarts.
func (m *Disks) PowerCut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drives.mu.Lock()
	defer m.drives.mu.Unlock()
	for _, d := range m.disks {
		d.PowerCut(nil)
	}
	for _, d := range m.drives.m {
		d.powerCut()
	}
}

// Firmware describes a drive's behaviour beyond its kind. The zero value is an honest drive.
type Firmware struct {
	// Steps is the number of progress queries until an erase is done; zero means 3.
	Steps int
	// Lies: reports the erase, and keeps the data.
	Lies bool
	// Fails: that many further erases fail half done.
	Fails int
}

// erasing is an erase in progress. Each query of its progress advances it by one step.
type erasing struct {
	what        string
	steps, left int
	noise       bool
}

func (f *Firmware) begin(what string, noise bool) *erasing {
	n := cmp.Or(f.Steps, 3)
	return &erasing{what: what, steps: n, left: n, noise: noise}
}

// tick advances an erase by a step, and changes the disks as the real one would.
func (f *Firmware) tick(e *erasing, disks []*Disk) (over, failed bool) {
	if e.left > 0 {
		e.left--
	}
	if f.Fails > 0 && e.left <= e.steps/2 {
		f.Fails--
		f.erase(disks, e.noise, 2)
		return true, true
	}
	if e.left > 0 {
		return false, false
	}
	f.erase(disks, e.noise, 1)
	return true, false
}

// fraction returns the progress of the erase, of 65536.
func (e *erasing) fraction() uint16 { return uint16((e.steps - e.left) * 65536 / (e.steps + 1)) }

// erase replaces the first 1/part of each disk.
func (f *Firmware) erase(disks []*Disk, noise bool, part int64) {
	if f.Lies {
		return
	}
	for _, d := range disks {
		d.Replace(noise, d.spec.Size/part)
	}
}

// Replace replaces the first n bytes of the disk, cache included, by zeros, or by noise as under a new key.
func (d *Disk) Replace(noise bool, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cached = nil
	if !noise {
		d.zero(d.now, 0, n)
	}
	rng := rand.NewChaCha8([32]byte{byte(d.minor), 1})
	for off := int64(0); noise && off < n; off += pageSize {
		var page [pageSize]byte
		_, _ = rng.Read(page[:])
		d.put(d.now, off, page[:min(pageSize, n-off)])
	}
	d.stable = d.now.clone()
}

// Share adds a disk as another namespace of a disk's NVMe controller.
func (m *Disks) Share(with string, s DiskSpec) *Disk {
	d := m.Add(s)
	own, err := filepath.EvalSymlinks(filepath.Join(m.dir, "sys/block", s.Name))
	if err == nil {
		var other string
		if other, err = filepath.EvalSymlinks(filepath.Join(m.dir, "sys/block", with)); err == nil {
			to := filepath.Join(filepath.Dir(other), s.Name)
			link := filepath.Join(m.dir, "sys/block", s.Name)
			n, _, _ := strings.Cut(strings.TrimPrefix(s.Name[strings.LastIndexByte(s.Name, 'n'):], "n"), "p")
			rel, _ := filepath.Rel(filepath.Dir(link), to)
			err = errors.Join(os.Rename(own, to), os.Remove(link), os.Symlink(rel, link),
				os.WriteFile(filepath.Join(to, "nsid"), []byte(n+"\n"), 0o644))
		}
	}
	if err != nil {
		panic(fmt.Sprintf("fake disk %s: %v", s.Name, err))
	}
	return d
}
