package erase

import (
	"crypto/rand"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
)

// Level is how well a disk was sanitized, in the words of NIST SP 800-88.
type Level string

// The levels.
const (
	None  Level = "none"  // nothing that the publication calls sanitizing
	Clear Level = "clear" // keeps off whoever reads the disk through its interface
	Purge Level = "purge" // keeps off a laboratory too
)

// reportFormat names what a Report looks like, and its version.
const reportFormat = "ingot-erasure-1"

// Report is what was done to one disk, and what proves it. The conductor signs it and keeps it with the node.
type Report struct {
	Format string  `json:"format"`
	ID     string  `json:"id"`
	Step   string  `json:"step"`
	Disk   Subject `json:"disk"`
	// "nvme_sanitize_crypto", "overwrite", "metadata", ...; "" when none was begun
	Method string    `json:"method"`
	Level  Level     `json:"level"`            // what was reached: none unless Result is "erased"
	Answer string    `json:"answer"`           // what the disk said of it
	Result string    `json:"result"`           // "erased" or "failed"
	Error  string    `json:"error,omitempty"`  // why it failed
	Passed []Attempt `json:"passed,omitempty"` // stronger methods that were not taken, and why
	With   []string  `json:"with,omitempty"`   // other disks that the same command erased
	// bytes that an overwrite that was cut off had done: read, and written where they were not zero
	Resumed  int64     `json:"resumed,omitempty"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	Samples  Samples   `json:"samples"`
}

// Subject is the disk as it named itself.
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

// Attempt is a method that was not taken, or that failed.
type Attempt struct {
	Method string `json:"method"`
	Why    string `json:"why"`
}

// Samples is what was read back after the erase.
type Samples struct {
	Size    int     `json:"size"`    // bytes of each
	Markers int     `json:"markers"` // markers that were written before, seen to be there, and had to be gone after
	Old     int     `json:"old"`     // places with content of before that had to be gone after
	Read    int     `json:"read"`    // places read after the erase, those of markers and old content among them
	Zero    int     `json:"zero"`    // of which were zero
	Uniform int     `json:"uniform"` // ... one other byte all over
	Noise   int     `json:"noise"`   // ... anything else: new, unknown content
	Kept    []int64 `json:"kept"`    // offsets where a marker or old content was still to be read: the disk lied
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

// target is a disk that is worked on.
type target struct {
	disk   disk.Disk
	dev    disk.Device
	own    *owned
	inside []region
	report *Report
	proof  *proof
	resume int64 // how far an overwrite was that was cut off
	fault  error // why it can't be erased
}
