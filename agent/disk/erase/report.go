package erase

import (
	"crypto/rand"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
)

// Level is a level of sanitization by NIST SP 800-88.
type Level string

// The levels.
const (
	None  Level = "none"  // no sanitization by that publication
	Clear Level = "clear" // protects against reading through the disk's interface
	Purge Level = "purge" // protects against a laboratory too
)

// reportFormat is the name and version of a Report's format.
const reportFormat = "ingot-erasure-1"

// Report documents the erase of one disk and its proof. The conductor signs it and stores it with the node.
type Report struct {
	Format string  `json:"format"`
	ID     string  `json:"id"`
	Step   string  `json:"step"`
	Disk   Subject `json:"disk"`
	// "nvme_sanitize_crypto", "overwrite", "metadata", ...; "" if none was started
	Method string    `json:"method"`
	Level  Level     `json:"level"`            // level reached: none unless Result is "erased"
	Answer string    `json:"answer"`           // the disk's response
	Result string    `json:"result"`           // "erased" or "failed"
	Error  string    `json:"error,omitempty"`  // why it failed
	Passed []Attempt `json:"passed,omitempty"` // stronger methods that were not used, and why
	With   []string  `json:"with,omitempty"`   // other disks that the same command erased
	// bytes done by an interrupted overwrite: read, and written only where not zero
	Resumed  int64     `json:"resumed,omitempty"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	Samples  Samples   `json:"samples"`
}

// Subject is the disk as it identified itself.
type Subject struct {
	Name     string `json:"name"`
	Serial   string `json:"serial"`
	WWN      string `json:"wwn"`
	Vendor   string `json:"vendor,omitempty"`
	Model    string `json:"model"`
	Firmware string `json:"firmware,omitempty"`
	ByPath   string `json:"by_path,omitempty"`
	Size     int64  `json:"size"`
	Sector   int    `json:"sector_size"`
}

// Attempt is a method that was not used, or that failed.
type Attempt struct {
	Method string `json:"method"`
	Why    string `json:"why"`
}

// Samples summarizes the reads after the erase.
type Samples struct {
	Size    int     `json:"size"`    // bytes of each
	Markers int     `json:"markers"` // markers written and verified before the erase
	Old     int     `json:"old"`     // places with old content that must be gone
	Read    int     `json:"read"`    // places read after the erase, including those above
	Zero    int     `json:"zero"`    // of which zero
	Uniform int     `json:"uniform"` // ... another byte repeated
	Noise   int     `json:"noise"`   // ... other, unknown content
	Kept    []int64 `json:"kept"`    // offsets with a remaining marker or old content: the disk lied
	Offsets []int64 `json:"offsets"` // all places, in ascending order
	All     bool    `json:"all"`     // every byte of the disk was read back
}

func (t *target) newReport(stepName string, now time.Time) *Report {
	d := t.disk
	r := &Report{Format: reportFormat, ID: rand.Text(), Step: stepName, Level: None, Result: "failed",
		Started: now.UTC(),
		Disk: Subject{Name: d.Name, Serial: d.Serial, WWN: d.Identity().WWN, Vendor: d.Vendor, Model: d.Model,
			ByPath: d.ByPath, Size: d.Size, Sector: d.LogicalSectors}}
	if t.own != nil {
		r.Disk.Firmware = t.own.Firmware
	}
	return r
}

// target is a disk in work.
type target struct {
	disk   disk.Disk
	dev    disk.Device
	own    *owned
	inside []region
	report *Report
	proof  *proof
	resume int64 // progress of an interrupted overwrite
	fault  error // why it can't be erased
}
