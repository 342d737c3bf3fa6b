package passthru

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
)

const diskSize = 128 << 10

// rig is a machine with one disk full of data.
type rig struct {
	*fake.Machine
	disk *fake.Disk
	path string
}

func newRig(t *testing.T, bus string, rotational bool) *rig {
	t.Helper()
	name := map[string]string{"nvme": "nvme0n1", "sata": "sda", "scsi": "sda", "virtio": "vda"}[bus]
	m := fake.NewMachine(t.TempDir())
	d := m.Add(fake.DiskSpec{Name: name, Bus: bus, Size: diskSize, Serial: "S1", Model: "M1", Vendor: "MAKER",
		Rotational: rotational, Fill: 'x'})
	return &rig{m, d, "/dev/" + name}
}

// left returns how many bytes of the disk still hold the old content.
func (r *rig) left(t *testing.T, d *fake.Disk) int {
	t.Helper()
	b := make([]byte, diskSize)
	if _, err := d.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("xxxxxxxx")) * 8
}

func (r *rig) open(t *testing.T, opt Options) *Device {
	t.Helper()
	d, err := Open(t.Context(), r, r.path, opt)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func method(t *testing.T, d *Device, name string) Method {
	t.Helper()
	i := slices.IndexFunc(d.Methods(), func(m Method) bool { return m.Name == name })
	if i < 0 {
		t.Fatalf("%s has no method %s but %v", d.Path, name, names(d))
	}
	return d.Methods()[i]
}

func names(d *Device) (out []string) {
	for _, m := range d.Methods() {
		out = append(out, m.Name+":"+string(m.Level))
	}
	return out
}

// erase runs a method to its end.
func erase(t *testing.T, m Method) (seen []Status, err error) {
	t.Helper()
	if err := m.Start(t.Context()); err != nil {
		return nil, err
	}
	err = m.Wait(t.Context(), time.Millisecond, func(s Status) { seen = append(seen, s) })
	return seen, err
}

// drive is a model with all that its kind can do; reset changes it before it is plugged in.
type kind struct {
	bus        string
	rotational bool
	drive      func(r *rig) (fake.Drive, *fake.Firmware)
	methods    []string
}

var all = []string{"crypto", "block", "overwrite"}

func kinds() map[string]kind {
	ata := func(r *rig) (fake.Drive, *fake.Firmware) {
		d := &fake.ATA{Disk: r.disk, ModelName: "ATA DISK", SerialNo: "SN1", Sanitize: all, Enhanced: true,
			Opal: &fake.Opal{MSID: strings.Repeat("M", 32), PSID: "LABEL"}}
		return d, &d.Firmware
	}
	return map[string]kind{
		"nvme": {"nvme", false, func(r *rig) (fake.Drive, *fake.Firmware) {
			d := &fake.NVMe{Disks: []*fake.Disk{r.disk}, ModelName: "NVME DISK", SerialNo: "SN1", Sanitize: all,
				Format: []string{"user", "crypto"}, Opal: &fake.Opal{MSID: "short", PSID: "LABEL", Slow: 1}}
			return d, &d.Firmware
		}, []string{"nvme_sanitize_crypto:purge", "nvme_sanitize_block:purge", "nvme_format_crypto:purge",
			"nvme_format_user_data:purge", "nvme_sanitize_overwrite:purge", "opal_revert:purge"}},
		"ssd": {"sata", false, ata,
			[]string{"ata_sanitize_crypto:purge", "ata_sanitize_block:purge", "opal_revert:purge",
				"ata_sanitize_overwrite:purge", "ata_secure_erase_enhanced:clear", "ata_secure_erase:clear"}},
		"disk": {"sata", true, ata,
			[]string{"ata_sanitize_crypto:purge", "ata_sanitize_block:purge", "opal_revert:purge",
				"ata_secure_erase_enhanced:purge", "ata_sanitize_overwrite:purge", "ata_secure_erase:clear"}},
		"fixed": {"sata", true, func(r *rig) (fake.Drive, *fake.Firmware) {
			d := &fake.ATA{Disk: r.disk, Sanitize: all, Fixed: true, NoLock: true}
			return d, &d.Firmware
		}, []string{"ata_sanitize_crypto:purge", "ata_sanitize_block:purge", "ata_sanitize_overwrite:purge"}},
		"sas": {"scsi", true, func(r *rig) (fake.Drive, *fake.Firmware) {
			d := &fake.SCSI{Disk: r.disk, ModelName: "SAS DISK", SerialNo: "SN1", Sanitize: all,
				Opal: &fake.Opal{MSID: "MSID", PSID: "LABEL"}}
			return d, &d.Firmware
		}, []string{"scsi_sanitize_crypto:purge", "scsi_sanitize_block:purge", "scsi_sanitize_overwrite:purge",
			"opal_revert:purge"}},
		"plain": {"sata", true, func(r *rig) (fake.Drive, *fake.Firmware) {
			d := &fake.ATA{Disk: r.disk, NoLock: true}
			return d, &d.Firmware
		}, nil},
		"old": {"scsi", true, func(r *rig) (fake.Drive, *fake.Firmware) {
			d := &fake.SCSI{Disk: r.disk, Silent: true}
			return d, &d.Firmware
		}, nil},
	}
}

func (k kind) plug(t *testing.T) (*rig, fake.Drive, *fake.Firmware) {
	r := newRig(t, k.bus, k.rotational)
	d, f := k.drive(r)
	r.Attach(strings.TrimPrefix(r.path, "/dev/"), d)
	return r, d, f
}

// Every method that a device offers takes every byte of the old data away, and says what it leaves.
func TestErase(t *testing.T) {
	for name, k := range kinds() {
		r, _, _ := k.plug(t)
		if got := names(r.open(t, Options{})); !slices.Equal(got, k.methods) {
			t.Errorf("%s: methods %q, want %q", name, got, k.methods)
		}
		for _, m := range k.methods {
			m, _, _ := strings.Cut(m, ":")
			t.Run(name+"/"+m, func(t *testing.T) {
				r, _, _ := k.plug(t)
				mt := method(t, r.open(t, Options{}), m)
				seen, err := erase(t, mt)
				if err != nil {
					t.Fatal(err)
				}
				if n := r.left(t, r.disk); n != 0 {
					t.Errorf("%d bytes of the old data are left", n)
				}
				if !seen[len(seen)-1].Done {
					t.Errorf("ended with %+v", seen[len(seen)-1])
				}
				if mt.Resumes && len(seen) < 2 {
					t.Errorf("no progress was told: %+v", seen)
				}
				for i, s := range seen[:len(seen)-1] {
					if s.Done || i > 0 && s.Percent < seen[i-1].Percent {
						t.Errorf("progress %+v", seen)
					}
				}
				first := make([]byte, 4096)
				if _, err := r.disk.ReadAt(first, 0); err != nil {
					t.Fatal(err)
				}
				if zeros := bytes.Count(first, []byte{0}) == len(first); !zeros && !mt.LeavesNoise {
					t.Error("the method said that it leaves one value all over, and left noise")
				}
				dev, err := r.OpenExclusive(t.Context(), r.path)
				if err != nil {
					t.Fatal(err)
				}
				defer dev.Close()
				if _, err := dev.ReadAt(first, 0); err != nil {
					t.Errorf("read after the erase: %v", err)
				}
			})
		}
	}
}

// A device that fails says so, and the next try succeeds. One that lies is not found out here: package erase reads
// back.
func TestEraseFails(t *testing.T) {
	for name, k := range kinds() {
		for _, m := range k.methods {
			m, _, _ := strings.Cut(m, ":")
			if m == "opal_revert" {
				continue
			}
			t.Run(name+"/"+m, func(t *testing.T) {
				r, _, f := k.plug(t)
				f.Fails = 1
				_, err := erase(t, method(t, r.open(t, Options{}), m))
				if !errors.Is(err, ErrFailed) {
					t.Fatalf("a failed erase ended with %v", err)
				}
				if step.AsError(err).Remedy == "" {
					t.Errorf("no remedy in %v", err)
				}
				if r.left(t, r.disk) == 0 {
					t.Fatal("the model did not fail")
				}
				d := r.open(t, Options{})
				if m, ok, err := d.Running(t.Context()); ok || err != nil {
					t.Errorf("Running = %s, %v, %v after a failure", m.Name, ok, err)
				}
				if err := d.Release(t.Context()); err != nil {
					t.Error(err)
				}
				if _, err := erase(t, method(t, d, m)); err != nil {
					t.Fatal(err)
				}
				if n := r.left(t, r.disk); n != 0 {
					t.Errorf("%d bytes of the old data are left", n)
				}
			})
		}
	}
}

// A sanitize continues after a power cut or an end of the agent; the next agent finds it and waits for it.
func TestSanitizeGoesOn(t *testing.T) {
	for name, k := range kinds() {
		for _, m := range k.methods {
			m, _, _ := strings.Cut(m, ":")
			if !strings.Contains(m, "sanitize") {
				continue
			}
			t.Run(name+"/"+m, func(t *testing.T) {
				r, _, f := k.plug(t)
				f.Steps = 5
				mt := method(t, r.open(t, Options{}), m)
				if err := mt.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				if st, err := mt.Progress(t.Context()); err != nil || st.Done {
					t.Fatalf("Progress = %+v, %v", st, err)
				}
				if err := mt.Start(t.Context()); err == nil {
					t.Error("a second erase was started on top of the first")
				}
				r.PowerCut()
				d := r.open(t, Options{})
				again, ok, err := d.Running(t.Context())
				if !ok || err != nil {
					t.Fatalf("Running = %v, %v", ok, err)
				}
				if err := again.Wait(t.Context(), time.Millisecond, nil); err != nil {
					t.Fatal(err)
				}
				if n := r.left(t, r.disk); n != 0 {
					t.Errorf("%d bytes of the old data are left", n)
				}
				if _, ok, err := d.Running(t.Context()); ok || err != nil {
					t.Errorf("Running = %v, %v when it is over", ok, err)
				}
			})
		}
	}
}

// The erases that are one command: they run beside the caller, are cut short by the power, and can be started again.
func TestCommandCutShort(t *testing.T) {
	for name, m := range map[string]string{"nvme": "nvme_format_user_data", "disk": "ata_secure_erase_enhanced",
		"ssd": "ata_secure_erase"} {
		t.Run(m, func(t *testing.T) {
			r, drive, _ := kinds()[name].plug(t)
			inside, goOn := make(chan struct{}), make(chan struct{})
			pause := func() { close(inside); <-goOn }
			switch d := drive.(type) {
			case *fake.NVMe:
				d.Pause = pause
			case *fake.ATA:
				d.Pause = pause
			}
			mt := method(t, r.open(t, Options{}), m)
			if err := mt.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-inside
			st, err := mt.Progress(t.Context())
			if err != nil || st.Done || name == "nvme" && st.Percent != 50 || name != "nvme" && !st.Estimated {
				t.Errorf("Progress = %+v, %v in the middle", st, err)
			}
			if name == "nvme" {
				if again, ok, err := r.open(t, Options{}).Running(t.Context()); !ok || err != nil {
					t.Errorf("Running = %v, %v, %v in the middle of a format", again.Name, ok, err)
				}
			}
			r.PowerCut()
			switch d := drive.(type) {
			case *fake.NVMe:
				d.Pause = nil
			case *fake.ATA:
				d.Pause = nil
				if enabled, locked := d.State(); !enabled || !locked {
					t.Errorf("after the power cut: password %v, locked %v", enabled, locked)
				}
			}
			close(goOn)
			if err := mt.Wait(t.Context(), time.Millisecond, nil); !errors.Is(err, ErrFailed) {
				t.Errorf("the erase that was cut short ended with %v", err)
			}
			d := r.open(t, Options{})
			if err := d.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			dev, err := r.OpenExclusive(t.Context(), r.path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := dev.ReadAt(make([]byte, 4096), 0); err != nil {
				t.Errorf("the released disk can't be read: %v", err)
			}
			dev.Close()
			if _, err := erase(t, method(t, d, m)); err != nil {
				t.Fatal(err)
			}
			if n := r.left(t, r.disk); n != 0 {
				t.Errorf("%d bytes of the old data are left", n)
			}
		})
	}
}

func TestATASecurity(t *testing.T) {
	t.Run("frozen", func(t *testing.T) {
		r := newRig(t, "sata", true)
		a := &fake.ATA{Disk: r.disk, Frozen: true, Enhanced: true, SanitizeFrozen: true, Sanitize: all}
		r.Attach("sda", a)
		d := r.open(t, Options{})
		if !d.Security.Frozen {
			t.Error("not seen as frozen")
		}
		for _, m := range d.Methods() {
			if m.Blocked == nil || !strings.Contains(step.AsError(m.Blocked).Remedy, "suspend") {
				t.Errorf("%s: Blocked = %v", m.Name, m.Blocked)
			}
			if err := m.Start(t.Context()); err == nil {
				t.Errorf("%s was started", m.Name)
			}
		}
		if n := r.left(t, r.disk); n != diskSize {
			t.Errorf("%d bytes are left", n)
		}
		r.PowerCut() // this machine's firmware does not freeze
		for _, m := range r.open(t, Options{}).Methods() {
			if m.Blocked != nil {
				t.Errorf("%s: Blocked = %v after a power cycle", m.Name, m.Blocked)
			}
		}
	})
	for _, known := range []string{Password, "", "NULL"} {
		t.Run("locked by us or our like: "+known, func(t *testing.T) {
			r := newRig(t, "sata", true)
			a := &fake.ATA{Disk: r.disk}
			r.Attach("sda", a)
			a.Lock(known)
			r.PowerCut()
			if err := r.open(t, Options{}).Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if enabled, locked := a.State(); enabled || locked {
				t.Errorf("released: password %v, locked %v", enabled, locked)
			}
			if r.left(t, r.disk) != diskSize {
				t.Error("the release erased something")
			}
		})
	}
	t.Run("locked by a stranger", func(t *testing.T) {
		r := newRig(t, "sata", true)
		a := &fake.ATA{Disk: r.disk}
		r.Attach("sda", a)
		a.Lock("stranger")
		r.PowerCut()
		d := r.open(t, Options{})
		if err := d.Release(t.Context()); err == nil || step.AsError(err).Remedy == "" {
			t.Errorf("Release = %v", err)
		}
		if _, err := erase(t, method(t, d, "ata_secure_erase")); err == nil {
			t.Error("erased with a stranger's password")
		}
		if err := r.open(t, Options{}).Release(t.Context()); err == nil ||
			!strings.Contains(err.Error(), "power cycle") {
			t.Errorf("Release = %v when no more passwords are taken", err)
		}
	})
	t.Run("the password stays", func(t *testing.T) {
		r := newRig(t, "sata", true)
		a := &fake.ATA{Disk: r.disk, Keeps: true}
		r.Attach("sda", a)
		_, err := erase(t, method(t, r.open(t, Options{}), "ata_secure_erase"))
		if !errors.Is(err, ErrFailed) {
			t.Errorf("ended with %v", err)
		}
		if enabled, _ := a.State(); enabled {
			t.Error("the drive was left with a password")
		}
	})
}

func TestOpal(t *testing.T) {
	for _, c := range []struct {
		name   string
		opal   fake.Opal
		psid   string
		want   string // in the error; empty: it works
		remedy string
	}{
		{name: "unowned", opal: fake.Opal{}},
		{name: "unowned, locking active", opal: fake.Opal{Locks: true}, want: "has an owner", remedy: "PSID"},
		{name: "owned", opal: fake.Opal{Owner: "secret", Locks: true}, want: "has an owner", remedy: "PSID"},
		{name: "owned, locking inactive", opal: fake.Opal{Owner: "secret"}, want: "not authorized", remedy: "PSID"},
		{name: "owned, PSID", opal: fake.Opal{Owner: "secret", Locks: true}, psid: "la-be-l"},
		{name: "owned, locking inactive, PSID", opal: fake.Opal{Owner: "secret"}, psid: "LABEL"},
		{name: "wrong PSID", opal: fake.Opal{Owner: "secret", Locks: true}, psid: "LABLE", want: "not authorized",
			remedy: "label"},
		{name: "blocked", opal: fake.Opal{Blocks: true}, want: "blocked", remedy: "Block SID"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, "scsi", false)
			o := c.opal
			o.MSID, o.PSID, o.Slow = "FACTORY-PASSWORD-OF-MORE-THAN-15", "LABEL", 2
			r.Attach("sda", &fake.SCSI{Disk: r.disk, Opal: &o})
			r.PowerCut()
			d := r.open(t, Options{PSID: c.psid})
			_, err := erase(t, method(t, d, "opal_revert"))
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if n := r.left(t, r.disk); n != 0 {
					t.Errorf("%d bytes of the old data are left", n)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(step.AsError(err).Remedy, c.remedy) {
				t.Errorf("ended with %v", err)
			}
			if r.left(t, r.disk) != diskSize {
				t.Error("something was erased")
			}
		})
	}
}

// A sanitize, and a format where the controller says so, is not of one namespace alone.
func TestNamespaces(t *testing.T) {
	for _, eraseAll := range []bool{false, true} {
		m := fake.NewMachine(t.TempDir())
		one := m.Add(fake.DiskSpec{Name: "nvme0n1", Bus: "nvme", Size: diskSize, Fill: 'x'})
		two := m.Share("nvme0n1",
			fake.DiskSpec{Name: "nvme0n2", Bus: "nvme", Size: diskSize, SectorSize: 4096, Fill: 'x'})
		v := &fake.NVMe{Disks: []*fake.Disk{one, two}, Sanitize: all, Format: []string{"user"}, EraseAll: eraseAll}
		m.Attach("nvme0n1", v)
		m.Attach("nvme0n2", v)
		r := &rig{m, two, "/dev/nvme0n2"}
		d := r.open(t, Options{})
		if got := method(t, d, "nvme_sanitize_block").Also; !slices.Equal(got, []string{"/dev/nvme0n1"}) {
			t.Errorf("Also of a sanitize = %q", got)
		}
		f := method(t, d, "nvme_format_user_data")
		if _, err := erase(t, f); err != nil {
			t.Fatal(err)
		}
		if n := r.left(t, two); n != 0 {
			t.Errorf("%d bytes left in the namespace", n)
		}
		spared := r.left(t, one) == diskSize
		if spared == eraseAll || (len(f.Also) == 1) != eraseAll {
			t.Errorf("erases all: %v; the other namespace was spared: %v, Also = %q", eraseAll, spared, f.Also)
		}
	}
}

func TestNoLanguage(t *testing.T) {
	r := newRig(t, "virtio", false)
	d := r.open(t, Options{})
	if d.Kind != None || len(d.Methods()) != 0 {
		t.Errorf("a virtio disk is %s with %v", d.Kind, names(d))
	}
	if _, err := ReadHealth(t.Context(), r, r.path); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("ReadHealth = %v", err)
	}
	if _, ok, err := d.Running(t.Context()); ok || err != nil {
		t.Errorf("Running = %v, %v", ok, err)
	}
	if err := d.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A context that ends, ends the waiting and not the erase.
func TestWaitEnds(t *testing.T) {
	r, _, f := kinds()["nvme"].plug(t)
	f.Steps = 3
	m := method(t, r.open(t, Options{}), "nvme_sanitize_crypto")
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := m.Wait(ctx, time.Millisecond, func(Status) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Wait = %v", err)
	}
	if err := m.Wait(t.Context(), time.Millisecond, nil); err != nil {
		t.Error(err)
	}
}
