package passthru

import (
	"context"
	"errors"
)

// Health is what a device says of its own state. A nil number is one that the device does not tell.
type Health struct {
	Status             string   `json:"status"`             // "passed", "failing" or "unknown"
	Warnings           []string `json:"warnings,omitempty"` // what speaks against it, in words
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

// ReadHealth asks a device how it is. A device that can't tell (virtio, a RAID volume) gives an error that is
// errors.ErrUnsupported.
func ReadHealth(ctx context.Context, door Door, device string) (Health, error) {
	d, err := Open(ctx, door, device, Options{})
	if err != nil {
		return Health{}, err
	}
	return d.Health(ctx)
}

// Health asks the device how it is; see ReadHealth.
func (d *Device) Health(ctx context.Context) (Health, error) {
	if d.health == nil {
		return Health{}, errors.ErrUnsupported
	}
	return d.health(ctx)
}
