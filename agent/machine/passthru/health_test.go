package passthru

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/agent/machine/fake"
)

func TestHealth(t *testing.T) {
	for _, c := range []struct {
		name, bus string
		drive     func(*fake.Disk) fake.Drive
		want      Health
	}{
		{"nvme", "nvme", func(d *fake.Disk) fake.Drive {
			return &fake.NVMe{Disks: []*fake.Disk{d}, Kelvin: 310, Used: 3, Hours: 1000, MediaFault: 1}
		}, Health{Status: Passed, TemperatureCelsius: ptr(37), PercentageUsed: ptr(3), AvailableSpare: ptr(100),
			PowerOnHours: ptr(uint64(1000)), UnsafeShutdowns: ptr(uint64(0)), MediaErrors: ptr(uint64(1))}},
		{"nvme, worn", "nvme", func(d *fake.Disk) fake.Drive {
			return &fake.NVMe{Disks: []*fake.Disk{d}, Critical: 1 | 8, Used: 120}
		}, Health{Status: Failing,
			Warnings:       []string{"available spare is below its threshold", "the medium is read-only"},
			PercentageUsed: ptr(120), AvailableSpare: ptr(100), PowerOnHours: ptr(uint64(0)),
			UnsafeShutdowns: ptr(uint64(0)), MediaErrors: ptr(uint64(0))}},
		{"ata", "sata", func(d *fake.Disk) fake.Drive {
			return &fake.ATA{Disk: d, Celsius: 41, Hours: 9000, Bad: 8, Used: 12}
		},
			Health{Status: Passed, TemperatureCelsius: ptr(41), PowerOnHours: ptr(uint64(9000)),
				ReallocatedSectors: ptr(uint64(8)), PendingSectors: ptr(uint64(0)), PercentageUsed: ptr(12)}},
		{"ata, failing", "sata", func(d *fake.Disk) fake.Drive { return &fake.ATA{Disk: d, Failing: true} },
			Health{Status: Failing, Warnings: []string{"SMART expects the drive to fail"}, TemperatureCelsius: ptr(0),
				PowerOnHours: ptr(uint64(0)), ReallocatedSectors: ptr(uint64(0)), PendingSectors: ptr(uint64(0)),
				PercentageUsed: ptr(0)}},
		{"scsi", "scsi", func(d *fake.Disk) fake.Drive {
			return &fake.SCSI{Disk: d, Celsius: 30, Used: 7, Minutes: 6000, Defects: 4}
		}, Health{Status: Passed, TemperatureCelsius: ptr(30), PercentageUsed: ptr(7), PowerOnHours: ptr(uint64(100)),
			ReallocatedSectors: ptr(uint64(4)), MediaErrors: ptr(uint64(2))}},
		{"scsi, failing", "scsi", func(d *fake.Disk) fake.Drive {
			return &fake.SCSI{Disk: d, Failing: true, Celsius: 30}
		},
			Health{Status: Failing, Warnings: []string{"the device expects to fail (5d/10)"},
				TemperatureCelsius: ptr(30), PercentageUsed: ptr(0), PowerOnHours: ptr(uint64(0)),
				ReallocatedSectors: ptr(uint64(0)), MediaErrors: ptr(uint64(2))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.bus, false)
			r.Attach(r.path[len("/dev/"):], c.drive(r.disk))
			got, err := ReadHealth(t.Context(), r, r.path)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("ReadHealth (-want +got):\n%s", d)
			}
		})
	}
	r := newRig(t, "scsi", false)
	r.Attach("sda", &fake.SCSI{Disk: r.disk, Silent: true})
	if _, err := ReadHealth(t.Context(), r, r.path); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("ReadHealth of a silent disk = %v", err)
	}
}
