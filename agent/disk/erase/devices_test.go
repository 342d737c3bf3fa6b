package erase

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
)

const diskSize = 8 << 20

// runDevices runs a step of this package in fake time and gives its reports, those of a failure too.
func runDevices(t *testing.T, m machine, f func(machine) step.Func, args string) (reports []*Report, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		reports, err = runPlain(t.Context(), m, f, args)
	})
	return reports, err
}

func runPlain(ctx context.Context, m machine, f func(machine) step.Func, args string) ([]*Report, error) {
	out, err := f(m)(ctx,
		&step.Call{Args: json.RawMessage(args), Log: slog.New(slog.DiscardHandler), Facts: &step.Facts{},
			Report: func(step.Progress) {}})
	result := out.Result
	if err != nil {
		result = step.AsError(err).Result
	}
	r, _ := result.(map[string]any)
	reports, _ := r["erasures"].([]*Report)
	return reports, err
}

// dirty adds a disk full of data that must be unreadable after the erase.
func dirty(m *fake.Machine, name, bus string, change func(*fake.DiskSpec)) *fake.Disk {
	spec := fake.DiskSpec{Name: name, Bus: bus, Size: diskSize, Serial: "serial-" + name, Model: "MODEL"}
	if change != nil {
		change(&spec)
	}
	d := m.Add(spec)
	secret := bytes.Repeat([]byte("a customer's secret "), 4096/20+1)[:4096]
	for off := int64(0); off < spec.Size; off += 4096 {
		copy(secret, fmt.Sprintf("block %12d", off))
		put(d, secret, off)
	}
	return d
}

func leftOf(t testing.TB, d *fake.Disk) int {
	b := contents(t, d, diskSize)
	return bytes.Count(b, []byte("customer's secret")) + bytes.Count(b, []byte("WHO READS IT AFTERWARDS"))
}

func TestErasesByTheStrongestMethod(t *testing.T) {
	all := []string{"crypto", "block", "overwrite"}
	for _, c := range []struct {
		name, bus string
		spec      func(*fake.DiskSpec)
		drive     func(d *fake.Disk) fake.Drive
		args      string
		method    string
		level     Level
	}{
		{"no holes", "virtio", func(s *fake.DiskSpec) { s.NoPunch = true }, nil, ``, "overwrite", Clear},
		{"large sectors", "virtio", func(s *fake.DiskSpec) { s.NoPunch, s.SectorSize = true, 4096 }, nil,
			`{"verify_all": true}`, "overwrite", Clear},
		{"write zeroes", "virtio", nil, nil, ``, "write_zeroes", Clear},
		{"asked for", "virtio", nil, nil, `{"methods": ["overwrite"]}`, "overwrite", Clear},
		{"discard", "virtio", func(s *fake.DiskSpec) { s.Forgets = true }, nil, `{"methods": ["discard"]}`, "discard",
			None},
		{"NVMe, all", "nvme", nil, func(d *fake.Disk) fake.Drive {
			return &fake.NVMe{Disks: []*fake.Disk{d}, Sanitize: all, Format: []string{"user", "crypto"}}
		}, ``, "nvme_sanitize_crypto", Purge},
		{"NVMe, format", "nvme", nil, func(d *fake.Disk) fake.Drive {
			return &fake.NVMe{Disks: []*fake.Disk{d}, Format: []string{"user"}}
		}, ``, "nvme_format_user_data", Purge},
		{"NVMe, none", "nvme", nil, func(d *fake.Disk) fake.Drive { return &fake.NVMe{Disks: []*fake.Disk{d}} }, ``,
			"write_zeroes", Clear},
		{"SATA, sanitize", "sata", nil, func(d *fake.Disk) fake.Drive {
			return &fake.ATA{Disk: d, Sanitize: all, Enhanced: true}
		}, ``, "ata_sanitize_crypto", Purge},
		{"SATA, security", "sata", nil, func(d *fake.Disk) fake.Drive { return &fake.ATA{Disk: d} }, ``,
			"ata_secure_erase", Clear},
		{"SATA, frozen", "sata", nil, func(d *fake.Disk) fake.Drive { return &fake.ATA{Disk: d, Frozen: true} },
			`{"continue_if_secure_erase_failed": true}`, "write_zeroes", Clear},
		{"SAS", "scsi", nil, func(d *fake.Disk) fake.Drive { return &fake.SCSI{Disk: d, Sanitize: all} }, ``,
			"scsi_sanitize_crypto", Purge},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := fake.NewMachine(t.TempDir())
			name := map[string]string{"virtio": "vda", "nvme": "nvme0n1"}[c.bus]
			if name == "" {
				name = "sda"
			}
			d := dirty(m, name, c.bus, c.spec)
			if c.drive != nil {
				m.Attach(name, c.drive(d))
			}
			reports, err := runDevices(t, m, DevicesStep, c.args)
			if err != nil {
				t.Fatal(err)
			}
			r := reports[0]
			if r.Method != c.method || r.Level != c.level || r.Result != "erased" || r.Disk.Serial != "serial-"+name ||
				r.Answer == "" {
				t.Errorf("report = %+v", r)
			}
			if n := leftOf(t, d); n != 0 {
				t.Errorf("%d blocks are left", n)
			}
			s := r.Samples
			if s.Markers < 50 || s.Old < 50 || s.Read < s.Markers+s.Old || s.Offsets[0] != 0 ||
				s.Offsets[len(s.Offsets)-1] != diskSize-4096 || len(s.Kept) > 0 ||
				s.Zero+s.Uniform+s.Noise != s.Read {
				t.Errorf("samples = %+v", s)
			}
			if strings.Contains(c.args, "verify_all") != s.All {
				t.Errorf("read all: %v", s.All)
			}
		})
	}
}

// TestALyingDiskIsCaught: the disk answers success and keeps all, or a part, of what it has.
func TestALyingDiskIsCaught(t *testing.T) {
	for _, c := range []struct {
		name, bus string
		spec      func(*fake.DiskSpec)
		drive     func(d *fake.Disk) fake.Drive
		args      string
	}{
		{"holes", "virtio", func(s *fake.DiskSpec) { s.LyingPunch = true }, nil, ``},
		{"discard", "virtio", nil, nil, `{"methods": ["discard"]}`},
		{"sanitize", "nvme", nil, func(d *fake.Disk) fake.Drive {
			return &fake.NVMe{Disks: []*fake.Disk{d}, Sanitize: []string{"crypto"}, Firmware: fake.Firmware{Lies: true}}
		}, ``},
		{"format", "nvme", nil, func(d *fake.Disk) fake.Drive {
			return &fake.NVMe{Disks: []*fake.Disk{d}, Format: []string{"user"}, Firmware: fake.Firmware{Lies: true}}
		}, ``},
		{"security erase", "sata", nil, func(d *fake.Disk) fake.Drive {
			return &fake.ATA{Disk: d, Firmware: fake.Firmware{Lies: true}}
		}, ``},
		{"SCSI sanitize", "scsi", nil, func(d *fake.Disk) fake.Drive {
			return &fake.SCSI{Disk: d, Sanitize: []string{"block"}, Firmware: fake.Firmware{Lies: true}}
		}, ``},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := fake.NewMachine(t.TempDir())
			name := map[string]string{"virtio": "vda", "nvme": "nvme0n1", "sata": "sda", "scsi": "sda"}[c.bus]
			d := dirty(m, name, c.bus, c.spec)
			if c.drive != nil {
				m.Attach(name, c.drive(d))
			}
			reports, err := runDevices(t, m, DevicesStep, c.args)
			if err == nil || !strings.Contains(err.Error(), "/dev/"+name) ||
				!strings.Contains(err.Error(), "still hold what was there before") {
				t.Fatalf("a disk that lies: %v", err)
			}
			r := reports[0]
			if r.Result != "failed" || r.Level != None || r.Error == "" || len(r.Samples.Kept) < 100 {
				t.Errorf("report = %+v", r)
			}
			if leftOf(t, d) == 0 {
				t.Error("the disk did not lie: the test proves nothing")
			}
		})
	}
}

// TestAPartThatIsKeptIsCaught: one thirtieth of the disk stays as it was, wherever that is.
func TestAPartThatIsKeptIsCaught(t *testing.T) {
	by := int64(300 << 10)
	if raceEnabled {
		by = diskSize / 4
	}
	for at := int64(0); at < diskSize; at += by {
		for _, want := range []content{anything, oneByte, zeros} {
			s := newSparse(diskSize, 512)
			put(s, bytes.Repeat([]byte("a customer's secret, "), diskSize/21), 0)
			p, err := newProof(s, defaultSamples)
			if err == nil {
				err = p.mark(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			kept := make([]byte, min(256<<10, diskSize-at))
			if _, err := s.ReadAt(kept, at); err != nil {
				t.Fatal(err)
			}
			put(s, make([]byte, diskSize), 0)
			if got, err := p.check(t.Context(), want); err != nil || got.Zero != got.Read {
				t.Fatalf("erased: %+v, %v", got, err)
			}
			put(s, kept, at)
			if got, err := p.check(t.Context(), want); err == nil || len(got.Kept) == 0 {
				t.Errorf("kept from byte %d on: %+v, %v", at, got, err)
			}
		}
	}
}

func TestOneOfSeveralFails(t *testing.T) {
	m := fake.NewMachine(t.TempDir())
	var disks []*fake.Disk
	for i := range 6 {
		d := dirty(m, fmt.Sprintf("vd%c", 'a'+i), "virtio",
			func(s *fake.DiskSpec) { s.NoPunch = true; s.ReadOnly = i == 4 })
		if i == 2 {
			d.Fail(func(kind string, off, n int64) error {
				if kind == "write" && off > 4<<20 && n > 4096 {
					return errors.New("medium error")
				}
				return nil
			})
		}
		disks = append(disks, d)
	}
	reports, err := runDevices(t, m, DevicesStep, `{"skip_block_devices": [{"serial": "serial-vdf"}]}`)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"3 of 5 done", "/dev/vdc", "medium error", "/dev/vde", "read-only"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	for i, want := range []string{"erased", "erased", "failed", "erased", "failed"} {
		if r := reports[i]; r.Result != want || (want == "failed") != (r.Error != "") ||
			(want == "failed") != (r.Level == None) {
			t.Errorf("report of disk %d: %+v", i, r)
		}
		if want == "erased" && leftOf(t, disks[i]) != 0 {
			t.Errorf("disk %d was not erased", i)
		}
	}
	if leftOf(t, disks[5]) == 0 {
		t.Error("a disk that was to be left alone was erased")
	}
	reports, err = runDevices(t, m, DevicesStep,
		`{"skip_block_devices": [{"serial": "serial-vdf"}, {"serial": "serial-vdc"}], "skip_read_only": true}`)
	if err != nil || len(reports) != 3 {
		t.Errorf("with both left out: %v, %v", reports, err)
	}
}

// TestPowerCutWhileOverwriting: the second run goes on where the first one was, looks at what that had done, and trusts
// no note further.
func TestPowerCutWhileOverwriting(t *testing.T) {
	for _, forged := range []bool{false, true} {
		m := fake.NewMachine(t.TempDir())
		d := dirty(m, "vda", "virtio", func(s *fake.DiskSpec) { s.NoPunch = true })
		dev, err := m.OpenExclusive(t.Context(), "/dev/vda")
		if err != nil {
			t.Fatal(err)
		}
		// The half that was done, flushed and noted, or only noted.
		if !forged {
			if err := overwriteHalf(dev); err != nil {
				t.Fatal(err)
			}
		} else if err := putNote(dev, diskSize/2); err != nil {
			t.Fatal(err)
		}
		m.PowerCut()
		reports, err := runDevices(t, m, DevicesStep, ``)
		if err != nil {
			t.Fatal(err)
		}
		if r := reports[0]; r.Resumed != diskSize/2 || r.Result != "erased" {
			t.Errorf("report = %+v", r)
		}
		if !zero(contents(t, d, diskSize)) {
			t.Errorf("forged %v: the disk is not zero", forged)
		}
	}
}

func overwriteHalf(dev fake.Device) error {
	if _, err := dev.WriteAt(make([]byte, diskSize/2), 0); err != nil {
		return err
	}
	if err := dev.Sync(); err != nil {
		return err
	}
	return putNote(dev, diskSize/2)
}

// TestPowerCutAnywhere cuts the power after each operation of an erase in turn; the next run erases the disk. That the
// kernel looks at the partitions afterwards is none of them: the erase is done then.
func TestPowerCutAnywhere(t *testing.T) {
	m := fake.NewMachine(t.TempDir())
	d := dirty(m, "vda", "virtio", func(s *fake.DiskSpec) { s.NoPunch = true })
	for after := 0; ; after += 3 {
		n := 0
		d.Fail(func(kind string, _, _ int64) error {
			if kind == "reread" {
				return nil
			}
			if n++; n > after {
				return errors.New("the power is gone")
			}
			return nil
		})
		_, err := runDevices(t, m, DevicesStep, `{"samples": 8}`)
		d.Fail(nil)
		done := n <= after
		if (err == nil) != done {
			t.Fatalf("after %d operations: %v", after, err)
		}
		m.PowerCut()
		if done {
			break
		}
	}
	if !zero(contents(t, d, diskSize)) {
		t.Error("the disk is not zero")
	}
}

// TestPowerCutWhileSanitizing: the drive goes on by itself when the power is back; the step waits for it and then
// erases with proof.
func TestPowerCutWhileSanitizing(t *testing.T) {
	m := fake.NewMachine(t.TempDir())
	d := dirty(m, "nvme0n1", "nvme", nil)
	drive := &fake.NVMe{Disks: []*fake.Disk{d}, Sanitize: []string{"block"}, Firmware: fake.Firmware{Steps: 20}}
	m.Attach("nvme0n1", drive)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		asked := 0
		_, err := DevicesStep(m)(ctx,
			&step.Call{Log: slog.New(slog.DiscardHandler), Facts: &step.Facts{}, Report: func(p step.Progress) {
				if p.Bytes > 0 {
					if asked++; asked == 5 {
						cancel()
					}
				}
			}})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled: %v", err)
		}
	})
	if leftOf(t, d) == 0 {
		t.Fatal("the sanitize was over before the power went: the test proves nothing")
	}
	m.PowerCut()
	reports, err := runDevices(t, m, DevicesStep, ``)
	if err != nil || reports[0].Method != "nvme_sanitize_block" || reports[0].Result != "erased" || leftOf(t, d) != 0 {
		t.Errorf("after the power cut: %+v, %v", reports, err)
	}
}

// TestNamespacesAreErasedTogether: a sanitize is the whole subsystem's. It is used when all of it is to be erased, and
// not otherwise.
func TestNamespacesAreErasedTogether(t *testing.T) {
	for _, skip := range []bool{false, true} {
		m := fake.NewMachine(t.TempDir())
		one := dirty(m, "nvme0n1", "nvme", nil)
		two := m.Share("nvme0n1",
			fake.DiskSpec{Name: "nvme0n2", Bus: "nvme", Size: diskSize, Serial: "serial-nvme0n1",
				WWN: "eui.0000000000000002", Model: "MODEL", Fill: 'x'})
		drive := &fake.NVMe{Disks: []*fake.Disk{one, two}, Sanitize: []string{"block"}}
		m.Attach("nvme0n1", drive)
		m.Attach("nvme0n2", drive)
		args := `{}`
		if skip {
			args = `{"skip_block_devices": [{"name": "/dev/nvme0n2"}], "continue_if_secure_erase_failed": true}`
		}
		reports, err := runDevices(t, m, DevicesStep, args)
		if err != nil {
			t.Fatal(err)
		}
		kept := bytes.Contains(contents(t, two, diskSize), []byte("xxxxxxxxxxxx"))
		switch {
		case skip && (len(reports) != 1 || reports[0].Method != "write_zeroes" || !kept ||
			!strings.Contains(reports[0].Passed[0].Why, "/dev/nvme0n2")):
			t.Errorf("with one left alone: %+v, kept %v", reports[0], kept)
		case !skip && (len(reports) != 2 || reports[0].Method != "nvme_sanitize_block" ||
			reports[1].Result != "erased" || kept || !slices.Equal(reports[0].With, []string{"/dev/nvme0n2"})):
			t.Errorf("both: %+v %+v, kept %v", reports[0], reports[1], kept)
		}
		if leftOf(t, one) != 0 {
			t.Error("the first was not erased")
		}
	}
}

func TestAFrozenDiskFails(t *testing.T) {
	m := fake.NewMachine(t.TempDir())
	d := dirty(m, "sda", "sata", nil)
	m.Attach("sda", &fake.ATA{Disk: d, Frozen: true})
	reports, err := runDevices(t, m, DevicesStep, ``)
	if err == nil || !strings.Contains(err.Error(), "frozen") || step.AsError(err).Remedy == "" {
		t.Errorf("a frozen disk: %v", err)
	}
	if reports[0].Result != "failed" || leftOf(t, d) == 0 {
		t.Errorf("report = %+v", reports[0])
	}
}

func TestAFailedEraseFails(t *testing.T) {
	m := fake.NewMachine(t.TempDir())
	d := dirty(m, "nvme0n1", "nvme", nil)
	m.Attach("nvme0n1",
		&fake.NVMe{Disks: []*fake.Disk{d}, Sanitize: []string{"block"}, Firmware: fake.Firmware{Fails: 1}})
	reports, err := runDevices(t, m, DevicesStep, ``)
	if err == nil || reports[0].Result != "failed" || !strings.Contains(reports[0].Answer, "failed") {
		t.Errorf("a sanitize that fails: %v, %+v", err, reports[0])
	}
	if _, err := runDevices(t, m, DevicesStep, ``); err != nil || leftOf(t, d) != 0 {
		t.Errorf("and again: %v", err)
	}
}

func TestExpress(t *testing.T) {
	m := fake.NewMachine(t.TempDir())
	fast := dirty(m, "nvme0n1", "nvme", nil)
	m.Attach("nvme0n1", &fake.NVMe{Disks: []*fake.Disk{fast}, Sanitize: []string{"block"}, Format: []string{"crypto"}})
	slow := dirty(m, "sda", "sata", nil)
	m.Attach("sda", &fake.ATA{Disk: slow})
	reports, err := runDevices(t, m, ExpressStep, ``)
	if err != nil {
		t.Fatal(err)
	}
	if r := reports[0]; r.Method != "nvme_format_crypto" || r.Level != Purge || leftOf(t, fast) != 0 {
		t.Errorf("NVMe: %+v", r)
	}
	if r := reports[1]; r.Method != "metadata" || r.Level != None || r.Result != "erased" || leftOf(t, slow) == 0 ||
		!zero(contents(t, slow, 1<<20)) {
		t.Errorf("SATA: %+v", r)
	}
}

func TestEraseRefusesMethods(t *testing.T) {
	m := fake.NewMachine(t.TempDir())
	dirty(m, "vda", "virtio", func(s *fake.DiskSpec) { s.NoPunch = true })
	for args, want := range map[string]string{
		`{"methods": ["nvme_sanitize_crypto"]}`: "none of the methods",
		`{"methods": ["write_zeroes"]}`:         "no method is left",
	} {
		if _, err := runDevices(t, m, DevicesStep, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
