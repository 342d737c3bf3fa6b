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
		}, Health{Status: Passed, TemperatureCelsius: new(37), PercentageUsed: new(3), AvailableSpare: new(100),
			PowerOnHours: new(uint64(1000)), UnsafeShutdowns: new(uint64(0)), MediaErrors: new(uint64(1))}},
		{"nvme, worn", "nvme", func(d *fake.Disk) fake.Drive {
			return &fake.NVMe{Disks: []*fake.Disk{d}, Critical: 1 | 8, Used: 120}
		}, Health{Status: Failing,
			Warnings:       []string{"available spare is below its threshold", "the medium is read-only"},
			PercentageUsed: new(120), AvailableSpare: new(100), PowerOnHours: new(uint64(0)),
			UnsafeShutdowns: new(uint64(0)), MediaErrors: new(uint64(0))}},
		{"ata", "sata", func(d *fake.Disk) fake.Drive {
			return &fake.ATA{Disk: d, Celsius: 41, Hours: 9000, Bad: 8, Used: 12}
		},
			Health{Status: Passed, TemperatureCelsius: new(41), PowerOnHours: new(uint64(9000)),
				ReallocatedSectors: new(uint64(8)), PendingSectors: new(uint64(0)), PercentageUsed: new(12)}},
		{"ata, failing", "sata", func(d *fake.Disk) fake.Drive { return &fake.ATA{Disk: d, Failing: true} },
			Health{Status: Failing, Warnings: []string{"SMART expects the drive to fail"}, TemperatureCelsius: new(0),
				PowerOnHours: new(uint64(0)), ReallocatedSectors: new(uint64(0)), PendingSectors: new(uint64(0)),
				PercentageUsed: new(0)}},
		{"scsi", "scsi", func(d *fake.Disk) fake.Drive {
			return &fake.SCSI{Disk: d, Celsius: 30, Used: 7, Minutes: 6000, Defects: 4}
		}, Health{Status: Passed, TemperatureCelsius: new(30), PercentageUsed: new(7), PowerOnHours: new(uint64(100)),
			ReallocatedSectors: new(uint64(4)), MediaErrors: new(uint64(2))}},
		{"scsi, failing", "scsi", func(d *fake.Disk) fake.Drive {
			return &fake.SCSI{Disk: d, Failing: true, Celsius: 30}
		},
			Health{Status: Failing, Warnings: []string{"the device expects to fail (5d/10)"},
				TemperatureCelsius: new(30), PercentageUsed: new(0), PowerOnHours: new(uint64(0)),
				ReallocatedSectors: new(uint64(0)), MediaErrors: new(uint64(2))}},
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
