package inventory

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/machine/passthru"
)

// TestDiskHealth: a healthy drive, failing ones, one that can't tell, and one that does not answer, which costs its own
// part alone.
func TestDiskHealth(t *testing.T) {
	m := fake.NewMachine(t.TempDir())
	good := m.Add(fake.DiskSpec{Name: "nvme0n1", Size: 8 << 30, Bus: "nvme", Serial: "GOOD"})
	worn := m.Add(fake.DiskSpec{Name: "nvme1n1", Size: 8 << 30, Bus: "nvme", Serial: "WORN"})
	sata := m.Add(fake.DiskSpec{Name: "sda", Size: 8 << 30, Bus: "sata", Serial: "SATA"})
	m.Add(fake.DiskSpec{Name: "vda", Size: 8 << 30, Serial: "VIRTIO"})
	m.Attach("nvme0n1", &fake.NVMe{Disks: []*fake.Disk{good}, SerialNo: "GOOD", Kelvin: 273 + 31, Used: 3})
	m.Attach("nvme1n1", &fake.NVMe{Disks: []*fake.Disk{worn}, SerialNo: "WORN", Critical: 1 << 2, Kelvin: 273 + 40,
		Used: 104})
	m.Attach("sda", &fake.ATA{Disk: sata, SerialNo: "SATA", Failing: true, Bad: 77})
	r, err := Collect(t.Context(), m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]DiskHealth{}
	for _, h := range r.DiskHealth {
		got[h.Serial] = h
	}
	g := got["GOOD"]
	if g.Status != passthru.Passed || g.Name != "/dev/nvme0n1" || g.TemperatureCelsius == nil ||
		*g.TemperatureCelsius != 31 || g.PercentageUsed == nil || *g.PercentageUsed != 3 {
		t.Errorf("a healthy drive: %+v", g)
	}
	if w := got["WORN"]; w.Status != passthru.Failing || len(w.Warnings) == 0 {
		t.Errorf("a worn drive: %+v", w)
	}
	if s := got["SATA"]; s.Status != passthru.Failing || s.ReallocatedSectors == nil || *s.ReallocatedSectors != 77 {
		t.Errorf("a failing SATA drive: %+v", s)
	}
	if _, ok := got["VIRTIO"]; ok || len(got) != 3 {
		t.Errorf("health of %d disks: %+v", len(got), got)
	}
	for _, e := range r.Errors {
		if strings.Contains(e, "disk health") {
			t.Errorf("error %q", e)
		}
	}

	all, err := diskHealth(t.Context(), deaf{m}, r.Inventory.Disks, &r.Firmware)
	if err == nil || len(all) != 0 || !strings.Contains(err.Error(), "/dev/sda") {
		t.Errorf("drives that do not answer: %+v, %v", all, err)
	}
}

// deaf is a machine whose disks take no commands.
type deaf struct{ *fake.Machine }

func (deaf) NVMeAdmin(context.Context, string, uint8, uint32, [6]uint32, []byte,
	time.Duration) (uint32, uint16, error) {
	return 0, 0, errIO
}

func (deaf) SCSI(context.Context, string, []byte, bool, []byte, time.Duration) (uint8, []byte, int, error) {
	return 0, nil, 0, errIO
}

var errIO = errors.New("input/output error")
