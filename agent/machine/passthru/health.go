package passthru

import (
	"context"
	"errors"
)

// Health is a device's own health data. A nil number is unknown to the device.
type Health struct {
	Status             string   `json:"status"`             // "passed", "failing" or "unknown"
	Warnings           []string `json:"warnings,omitempty"` // faults, for people
	TemperatureCelsius *int     `json:"temperature_celsius,omitempty"`
	PercentageUsed     *int     `json:"percentage_used,omitempty"` // of the endurance; can exceed 100
	AvailableSpare     *int     `json:"available_spare,omitempty"` // percent
	PowerOnHours       *uint64  `json:"power_on_hours,omitempty"`
	ReallocatedSectors *uint64  `json:"reallocated_sectors,omitempty"`
	PendingSectors     *uint64  `json:"pending_sectors,omitempty"`
	MediaErrors        *uint64  `json:"media_errors,omitempty"` // errors that could not be corrected
	UnsafeShutdowns    *uint64  `json:"unsafe_shutdowns,omitempty"`
}

// Values of Health.Status.
const (
	Passed  = "passed"
	Failing = "failing"
	Unknown = "unknown"
)

// ReadHealth reads a device's health data. A device without such data (virtio, a RAID volume) returns an error that is
// errors.ErrUnsupported.
func ReadHealth(ctx context.Context, t Transport, device string) (Health, error) {
	d, err := Open(ctx, t, device, Options{})
	if err != nil {
		return Health{}, err
	}
	return d.Health(ctx)
}

// Health reads the device's health data; see ReadHealth.
func (d *Device) Health(ctx context.Context) (Health, error) {
	if d.health == nil {
		return Health{}, errors.ErrUnsupported
	}
	return d.health(ctx)
}
