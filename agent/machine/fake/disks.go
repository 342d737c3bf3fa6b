package fake

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Device is an open disk. It is an alias of the same interface that package disk declares, so that neither needs the
// other.
type Device = interface {
	io.ReaderAt
	io.WriterAt
	Size() int64
	SectorSize() int
	Number() (major, minor uint32)
	Punch(off, n int64) error
	Sync() error
	RereadPartitions() error
	Close() error
}

// DiskSpec describes a disk. Size is in bytes; zero values mean virtio, 512-byte sectors, non-rotational.
type DiskSpec struct {
	Name       string // "vda"
	Size       int64
	SectorSize int
	Bus        string // "virtio", "nvme", "sata" or "scsi"
	Serial     string
	// as the kernel's wwid without its prefix: "5000c500a1b2c3d4" or, for nvme, "eui.0025385b21404321"
	WWN        string
	Model      string
	Vendor     string
	Rotational bool
	ReadOnly   bool
	Removable  bool
	NoPunch    bool // the device does not promise zeros
	LyingPunch bool // it reports zeroing without doing it
	NoDiscard  bool // it can't discard
	Forgets    bool // discarded data reads as zero; else it is unchanged
	Fill       byte // initial value of every byte
	Record     bool // keep the data of every operation, for Replay
}

// Disks is a machine's disks in memory, each with a volatile write cache, and the sysfs tree that describes them.
type Disks struct {
	dir string

	mu    sync.Mutex
	disks map[string]*Disk

	drives drives
}

// NewDisks returns an empty machine whose sysfs tree goes below dir, an empty directory.
func NewDisks(dir string) *Disks {
	return &Disks{dir: dir, disks: map[string]*Disk{}}
}

// Root is the directory that contains sys.
func (m *Disks) Root() string { return m.dir }

// Settle returns at once: all devices exist.
func (m *Disks) Settle(ctx context.Context) error { return context.Cause(ctx) }

// Add adds a disk to the machine. It panics if the sysfs tree can't be made, which is a fault of the test.
func (m *Disks) Add(s DiskSpec) *Disk {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.SectorSize = cmp.Or(s.SectorSize, 512)
	s.Bus = cmp.Or(s.Bus, "virtio")
	d := &Disk{spec: s, minor: uint32(16 * len(m.disks)), now: pages{}, stable: pages{}}
	m.disks["/dev/"+s.Name] = d
	if err := d.describe(m.dir, len(m.disks)); err != nil {
		panic(fmt.Sprintf("fake disk %s: %v", s.Name, err))
	}
	return d
}

// Remove removes a disk from the machine.
func (m *Disks) Remove(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.disks, "/dev/"+name)
	link := filepath.Join(m.dir, "sys/block", name)
	if real, err := filepath.EvalSymlinks(link); err == nil {
		os.RemoveAll(filepath.Dir(real))
	}
	os.Remove(link)
}

// Disk returns a disk by its kernel name, or nil.
func (m *Disks) Disk(name string) *Disk {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.disks["/dev/"+name]
}

// OpenExclusive opens a disk by its path in /dev. Like a kernel it refuses a second open with EBUSY.
func (m *Disks) OpenExclusive(ctx context.Context, path string) (Device, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	m.mu.Lock()
	d := m.disks[path]
	m.mu.Unlock()
	if d == nil {
		return nil, &os.PathError{Op: "open exclusively", Path: path, Err: unix.ENOENT}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spec.ReadOnly {
		return nil, &os.PathError{Op: "open exclusively", Path: path, Err: unix.EROFS}
	}
	if d.open {
		return nil, &os.PathError{Op: "open exclusively", Path: path, Err: unix.EBUSY}
	}
	d.open = true
	return &handle{disk: d, path: path}, nil
}

const pageSize = 4096

// pages holds the content that differs from the fill byte, by MiB. A page is never changed, only replaced, so that
// disks can share pages and compare them quickly.
type pages map[int64]*block

// block holds the pages of one MiB, nil for missing ones.
type block [blockPages][]byte

const blockPages = 256

// zeros is a punched page, zeroBlock a MiB of them; both are shared by disks and never changed.
var (
	zeros     = make([]byte, pageSize)
	zeroBlock = func() *block {
		b := &block{}
		for i := range b {
			b[i] = zeros
		}
		return b
	}()
)

func (p pages) page(i int64) []byte {
	if b := p[i/blockPages]; b != nil {
		return b[i%blockPages]
	}
	return nil
}

func (p pages) set(i int64, page []byte) {
	switch b := p[i/blockPages]; {
	case b == nil && page == nil:
		return
	case b == nil:
		p[i/blockPages] = &block{}
	case b == zeroBlock:
		p[i/blockPages] = new(*zeroBlock)
	}
	p[i/blockPages][i%blockPages] = page
}

func (p pages) clone() pages {
	c := make(pages, len(p))
	for k, b := range p {
		if b != zeroBlock {
			b = new(*b)
		}
		c[k] = b
	}
	return c
}

// Op is one operation that reached a disk. Data of a punched range is nil.
type Op struct {
	Kind string // "write", "punch" or "sync"
	Off  int64
	Len  int64
	Data []byte
}

// Disk is one disk: its visible content, its durable content, and the writes in between.
type Disk struct {
	spec  DiskSpec
	minor uint32

	mu      sync.Mutex
	open    bool
	now     pages
	stable  pages
	fill    []byte
	under   pages // content where neither now nor stable has a page
	cached  []Op  // not flushed yet
	history []Op
	landed  int64
	fail    func(kind string, off, n int64) error
	refuse  atomic.Bool // its firmware blocks access to the data: locked, or being sanitized
}

// Fail makes an operation ("read", "write", "punch", "discard", "sync") fail with the error that f returns; nil lets it
// pass.
func (d *Disk) Fail(f func(kind string, off, n int64) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = f
}

// History returns all operations so far, with their data if the disk was made with Record.
func (d *Disk) History() []Op {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Op(nil), d.history...)
}

// Written returns the number of written bytes, without punched ranges.
func (d *Disk) Written() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.landed
}

// ReadAt reads the visible content without opening the disk.
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.read(d.now, p, off)
}

// WriteAt changes the disk durably without opening it.
func (d *Disk) WriteAt(p []byte, off int64) (int, error) {
	d.Lay(bytes.Clone(p), off)
	return len(p), nil
}

// Lay is WriteAt for bytes that are never changed afterwards: the disk keeps them, possibly shared with other disks.
func (d *Disk) Lay(p []byte, off int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.put(d.now, off, p)
	d.put(d.stable, off, p)
}

// Differs compares the visible content from off on with p, and returns the offset in p of the first different page, or
// -1.
func (d *Disk) Differs(p []byte, off int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := int64(0); n < int64(len(p)); {
		i, in := (off+n)/pageSize, (off+n)%pageSize
		part := p[n:min(int64(len(p)), n+pageSize-in)]
		if off+n+int64(len(part)) > d.spec.Size {
			return n
		}
		if page := d.look(d.now, i)[in:]; &page[0] != &part[0] && !bytes.Equal(page[:len(part)], part) {
			return n
		}
		n += int64(len(part))
	}
	return -1
}

// PowerCut loses the volatile cache, except for the operations that keep accepts, in order, and closes the disk.
func (d *Disk) PowerCut(keep func(i int, op Op) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, op := range d.cached {
		if keep != nil && keep(i, op) {
			d.apply(d.stable, op)
		}
	}
	d.cached = nil
	d.open = false
	d.now = d.stable.clone()
}

// Replay applies operations to a fresh disk of the same kind and returns it. All operations are durable.
func (d *Disk) Replay(ops []Op) *Disk {
	r := &Disk{spec: d.spec, minor: d.minor, now: pages{}, fill: d.blank()}
	for _, op := range ops {
		r.apply(r.now, op)
	}
	r.stable = r.now.clone()
	return r
}

// Same reports whether both disks have the same visible content between two offsets. Both must be that large.
func (d *Disk) Same(other *Disk, from, to int64) bool {
	if d == other {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	other.mu.Lock()
	defer other.mu.Unlock()
	same := bytes.Equal(d.blank(), other.blank())
	for off := from; off < to; {
		k := off / pageSize / blockPages
		end := min(to, (k+1)*blockPages*pageSize)
		if same && d.now[k] == other.now[k] && d.under[k] == other.under[k] {
			off = end
			continue
		}
		for off < end {
			i, in := off/pageSize, off%pageSize
			n := min(pageSize-in, end-off)
			a, b := d.look(d.now, i), other.look(other.now, i)
			if &a[0] != &b[0] && !bytes.Equal(a[in:in+n], b[in:in+n]) {
				return false
			}
			off += n
		}
	}
	return true
}

func (d *Disk) read(from pages, p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		at := off + int64(n)
		if at >= d.spec.Size {
			return n, io.EOF
		}
		in := at % pageSize
		part := p[n:min(len(p), n+int(pageSize-in), n+int(d.spec.Size-at))]
		copy(part, d.look(from, at/pageSize)[in:])
		n += len(part)
	}
	return n, nil
}

// blank returns a page of a disk without writes.
func (d *Disk) blank() []byte {
	if d.fill == nil {
		d.fill = bytes.Repeat([]byte{d.spec.Fill}, pageSize)
	}
	return d.fill
}

// look returns a page of this disk in from.
func (d *Disk) look(from pages, i int64) []byte {
	for _, p := range []pages{from, d.under} {
		if pg := p.page(i); pg != nil {
			return pg
		}
	}
	return d.blank()
}

// put writes p, which is never changed afterwards: whole pages of it are used without a copy.
func (d *Disk) put(into pages, off int64, p []byte) {
	for len(p) > 0 {
		i, in := off/pageSize, off%pageSize
		n := min(pageSize-in, int64(len(p)))
		if n == pageSize {
			into.set(i, p[:n:n])
		} else {
			pg := bytes.Clone(d.look(into, i))
			copy(pg[in:], p[:n])
			into.set(i, pg)
		}
		off, p = off+n, p[n:]
	}
}

func (d *Disk) zero(into pages, off, n int64) {
	for end := off + n; off < end; {
		i, in := off/pageSize, off%pageSize
		part := min(pageSize-in, end-off)
		blank := d.spec.Fill == 0 && d.under == nil
		switch {
		case part < pageSize:
			d.put(into, off, zeros[:part])
		case i%blockPages == 0 && end-off >= blockPages*pageSize:
			part = blockPages * pageSize
			if into[i/blockPages] = zeroBlock; blank {
				delete(into, i/blockPages)
			}
		case blank:
			into.set(i, nil)
		default:
			into.set(i, zeros)
		}
		off += part
	}
}

func (d *Disk) apply(into pages, op Op) {
	switch {
	case op.Kind == "write":
		d.put(into, op.Off, op.Data)
	case op.Kind == "punch" && !d.spec.LyingPunch, op.Kind == "discard" && d.spec.Forgets:
		d.zero(into, op.Off, op.Len)
	}
}

// record records an operation that changes the disk; the caller holds mu.
func (d *Disk) record(op Op) {
	if op.Data != nil {
		op.Data = append([]byte(nil), op.Data...)
	}
	d.apply(d.now, op)
	d.cached = append(d.cached, op)
	if !d.spec.Record {
		op.Data = nil
	}
	d.history = append(d.history, op)
}

type handle struct {
	disk   *Disk
	path   string
	closed bool // guarded by the disk's mutex
}

// check requires that the caller holds the disk's mutex.
func (h *handle) check(kind string, off, n int64) error {
	if h.closed {
		return &os.PathError{Op: kind, Path: h.path, Err: os.ErrClosed}
	}
	sector := int64(h.disk.spec.SectorSize)
	if off%sector != 0 || n%sector != 0 {
		return &os.PathError{Op: fmt.Sprintf("%s %d bytes at %d of", kind, n, off), Path: h.path, Err: unix.EINVAL}
	}
	if off < 0 || n < 0 || off+n > h.disk.spec.Size {
		return &os.PathError{Op: kind + " past the end of", Path: h.path, Err: unix.ENOSPC}
	}
	if h.disk.refuse.Load() && kind != "reread" {
		return &os.PathError{Op: kind, Path: h.path, Err: unix.EIO}
	}
	if f := h.disk.fail; f != nil {
		if err := f(kind, off, n); err != nil {
			return &os.PathError{Op: kind, Path: h.path, Err: err}
		}
	}
	return nil
}

func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	d := h.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	n := min(int64(len(p)), max(0, d.spec.Size-off))
	if err := h.check("read", off, n); err != nil {
		return 0, err
	}
	return d.read(d.now, p, off)
}

func (h *handle) WriteAt(p []byte, off int64) (int, error) {
	d := h.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := h.check("write", off, int64(len(p))); err != nil {
		return 0, err
	}
	d.landed += int64(len(p))
	d.record(Op{Kind: "write", Off: off, Len: int64(len(p)), Data: p})
	return len(p), nil
}

func (h *handle) Punch(off, n int64) error {
	return h.release("punch", h.disk.spec.NoPunch, off, n)
}

func (h *handle) Discard(off, n int64) error {
	return h.release("discard", h.disk.spec.NoDiscard, off, n)
}

func (h *handle) release(kind string, unsupported bool, off, n int64) error {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if unsupported {
		return fmt.Errorf("%s blocks of %s: %w", kind, h.path, errors.ErrUnsupported)
	}
	if err := h.check(kind, off, n); err != nil {
		return err
	}
	h.disk.record(Op{Kind: kind, Off: off, Len: n})
	return nil
}

func (h *handle) Sync() error {
	d := h.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := h.check("sync", 0, 0); err != nil {
		return err
	}
	for _, op := range d.cached {
		d.apply(d.stable, op)
	}
	d.cached = nil
	d.history = append(d.history, Op{Kind: "sync"})
	return nil
}

func (h *handle) Size() int64              { return h.disk.spec.Size }
func (h *handle) SectorSize() int          { return h.disk.spec.SectorSize }
func (h *handle) Number() (uint32, uint32) { return 254, h.disk.minor }

func (h *handle) RereadPartitions() error {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	return h.check("reread", 0, 0)
}

func (h *handle) Close() error {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if h.closed {
		return os.ErrClosed
	}
	h.closed = true
	h.disk.open = false
	return nil
}

// describe writes the disk's sysfs tree. n, from 1 on, makes addresses unique.
func (d *Disk) describe(root string, n int) error {
	s := d.spec
	pci := fmt.Sprintf("sys/devices/pci0000:00/0000:00:%02x.0", n+3)
	files := map[string]string{
		"size":                      fmt.Sprint(s.Size / 512),
		"ro":                        bit(s.ReadOnly),
		"removable":                 bit(s.Removable),
		"dev":                       fmt.Sprintf("254:%d", d.minor),
		"queue/logical_block_size":  fmt.Sprint(s.SectorSize),
		"queue/physical_block_size": fmt.Sprint(s.SectorSize),
		"queue/rotational":          bit(s.Rotational),
	}
	var block, device, bus string
	switch s.Bus {
	case "virtio":
		device = fmt.Sprintf("%s/virtio%d", pci, n)
		block, bus = device+"/block/"+s.Name, "virtio"
		files["serial"] = s.Serial
		files["device/vendor"] = "0x1af4"
	case "nvme":
		device = fmt.Sprintf("%s/nvme/nvme%d", pci, n-1)
		block, bus = device+"/"+s.Name, "nvme"
		files["device/model"], files["device/serial"], files["device/transport"] = s.Model, s.Serial, "pcie"
		files["nsid"] = "1"
		if s.WWN != "" {
			files["wwid"] = s.WWN
		}
	case "sata", "scsi":
		above := fmt.Sprintf("virtio%d", n)
		if s.Bus == "sata" {
			above = fmt.Sprintf("ata%d", n)
			files["device/../../../ata_port/"+above+"/port_no"] = "1"
		}
		device = fmt.Sprintf("%s/%s/host%d/target%d:0:0/%d:0:0:0", pci, above, n, n, n)
		block, bus = device+"/block/"+s.Name, "scsi"
		vendor := s.Vendor
		if s.Bus == "sata" {
			vendor = "ATA"
		}
		files["device/vendor"], files["device/model"] = fmt.Sprintf("%-8s", vendor), fmt.Sprintf("%-16s", s.Model)
		files["device/type"] = "0"
		if s.Serial != "" {
			files["device/vpd_pg80"] = "\x00\x80\x00" + string(rune(len(s.Serial))) + s.Serial
		}
		if s.WWN != "" {
			files["device/wwid"] = "naa." + s.WWN
		}
	default:
		return fmt.Errorf("unknown bus %q", s.Bus)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(root, block, name)
		if rest, ok := strings.CutPrefix(name, "device/"); ok {
			path = filepath.Join(root, device, rest)
		}
		end := "\n"
		if strings.Contains(name, "vpd_") {
			end = ""
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(files[name]+end), 0o644)); err != nil {
			return err
		}
	}
	links := map[string]string{
		"sys/block/" + s.Name: block,
		block + "/device":     device,
		device + "/subsystem": "sys/bus/" + bus,
	}
	for from, to := range links {
		from, to = filepath.Join(root, from), filepath.Join(root, to)
		os.Remove(from) // of a previous disk in this slot
		rel, err := filepath.Rel(filepath.Dir(from), to)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(from), 0o755), os.MkdirAll(to, 0o755),
			os.Symlink(rel, from)); err != nil {
			return err
		}
	}
	return nil
}

func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// ReadRaw reads from a disk that may be open elsewhere.
func (m *Disks) ReadRaw(ctx context.Context, path string, p []byte, off int64) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	d := m.disks[path]
	m.mu.Unlock()
	if d == nil {
		return &os.PathError{Op: "open", Path: path, Err: unix.ENOENT}
	}
	_, err := d.ReadAt(p, off)
	return err
}

// Target is an exported disk. It is an alias of what package export declares.
type Target = struct {
	Name, Disk, Initiator, User, Password string
	Port                                  int
}

// Export fails: the machine in memory has no target.
func (m *Disks) Export(_ context.Context, t Target) (func() error, error) {
	return nil, fmt.Errorf("export %s: %w", t.Disk, errors.ErrUnsupported)
}

// LoadModule fails: the machine in memory has no md driver.
func (m *Disks) LoadModule(_ context.Context, name string) error {
	return fmt.Errorf("load the kernel module %s: %w", name, errors.ErrUnsupported)
}
