package passthru

import (
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/machine/fake"
)

// FuzzParsers passes every parser the output of broken or hostile devices: none may panic, and results are within their
// limits.
func FuzzParsers(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0x70, 0, 2, 0, 0, 0, 0, 10, 0, 0, 0, 0, 4, 0x1b, 0, 0x80, 0x40, 0})
	f.Add([]byte{0x72, 1, 0, 0x1d, 0, 0, 0, 14, 9, 12, 1, 0, 0x40, 0, 0, 0xff, 0, 0xff, 0, 0, 0, 0x50})
	f.Add([]byte{0x72, 2, 4, 0x1b, 0, 0, 0, 8, 2, 6, 0, 0, 0x80, 0x10, 0, 0})
	f.Add([]byte{0xf8, 0xa8, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xa8, 0, 0, 0, 0, 0, 0, 0xff, 3, 0xf0, 0x81, 0x49, 0x82, 0x10,
		1, 0xf1, 0xf9, 0xf0, 0, 0, 0, 0xf1})
	f.Add([]byte{0x2f, 0, 0, 7, 0, 0, 3, 3, 0x5d, 0x10, 30})
	f.Add([]byte{0xd7, 0xff, 0xe3, 0xff, 0xff, 0xff, 0xbf})
	// The answers of the models, as they come.
	m := fake.NewMachine(f.TempDir())
	d := m.Add(fake.DiskSpec{Name: "nvme0n1", Bus: "nvme", Size: diskSize})
	s := m.Add(fake.DiskSpec{Name: "sda", Bus: "sata", Size: diskSize})
	o := &fake.Opal{MSID: "MSID"}
	m.Attach("nvme0n1",
		&fake.NVMe{Disks: []*fake.Disk{d}, Sanitize: all, Format: []string{"user"}, Opal: o, ModelName: "M"})
	m.Attach("sda", &fake.ATA{Disk: s, Sanitize: all, ModelName: "M"})
	for _, c := range []struct {
		opcode uint8
		nsid   uint32
		cdw    [6]uint32
		size   int
	}{{6, 0, [6]uint32{1}, 4096}, {6, 1, [6]uint32{}, 4096}, {2, 1, [6]uint32{0x81}, 512}, {2, 1, [6]uint32{2}, 512},
		{0x82, 0, [6]uint32{1<<24 | 1<<8, 512}, 512}} {
		b := make([]byte, c.size)
		if _, status, err := m.NVMeAdmin(f.Context(), "/dev/nvme0n1", c.opcode, c.nsid, c.cdw, b,
			time.Second); err != nil || status != 0 {
			f.Fatal(status, err)
		}
		f.Add(b)
	}
	b := make([]byte, 512)
	if _, _, _, err := m.SCSI(f.Context(), "/dev/sda",
		[]byte{0x85, 4 << 1, 0x0e, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xec, 0}, false, b, time.Second); err != nil {
		f.Fatal(err)
	}
	f.Add(b)

	f.Fuzz(func(t *testing.T, b []byte) {
		for _, size := range []int{len(b), 512, 4096} { // devices fill whole buffers; a test's bytes are mostly shorter
			p := make([]byte, size)
			copy(p, b)
			_, _ = parseController(p)
			if n, err := parseNamespace(p); err == nil &&
				(n.blockSize < 512 || n.formatLeft < -1 || n.formatLeft > 100) {
				t.Errorf("namespace %+v", n)
			}
			if l, err := parseSanitizeLog(p); err == nil && (l.percent < -1 || l.percent > 100 || l.action > 7) {
				t.Errorf("sanitize log %+v", l)
			}
			var h Health
			_, _ = parseNVMeHealth(p)
			parseSmartData(p, &h)
			parseSSDStatistics(p, &h)
			for page := range uint8(0x40) {
				for _, e := range parseLogPage(p, page) {
					h.note(page, e)
				}
			}
			_, _ = parseIdentity(p)
			if s, ok := parseSense(p); ok && s.ata != nil {
				if st := parseSanitizeState(*s.ata); st.percent < 0 || st.percent > 99 {
					t.Errorf("sanitize state %+v", st)
				}
			}
			if st, _, _ := sanitizeSense(p); st.Percent < -1 || st.Percent > 99 || st.Done {
				t.Errorf("sanitize sense %+v", st)
			}
			_ = parseProvisioning(p)
			_, _ = parseDiscovery(p)
			if body, _, err := parsePacket(p); err == nil {
				_, _ = parseTokens(body)
			}
			if tokens, err := parseTokens(p); err == nil {
				_ = methodStatus(tokens)
				_, _, _ = syncSession(tokens)
				_, _ = cell(tokens, 3)
			}
		}
	})
}
