package passthru

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// Operation codes (SPC-5, SBC-4).
const (
	scsiTestUnitReady = 0x00
	scsiRequestSense  = 0x03
	scsiInquiry       = 0x12
	scsiSanitize      = 0x48
	scsiLogSense      = 0x4d
	scsiSecurityIn    = 0xa2
	scsiReportOpcodes = 0xa3
	scsiSecurityOut   = 0xb5
	scsiReadDefects   = 0xb7
)

// Service actions of SANITIZE.
const (
	scsiOverwrite   = 1
	scsiBlockErase  = 2
	scsiCryptoErase = 3
)

const scsiQuick = time.Minute

type scsi struct{ *Device }

// read sends a command that returns data, and returns the received part.
func (s scsi) read(ctx context.Context, cdb []byte, size int) ([]byte, error) {
	buf := make([]byte, size)
	status, raw, n, err := s.transport.SCSI(ctx, s.Path, cdb, false, buf, scsiQuick)
	if err != nil {
		return nil, err
	}
	if err := senseError(status, raw); err != nil {
		return nil, err
	}
	return buf[:n], nil
}

// senseError returns nil for a successful command.
func senseError(status uint8, raw []byte) error {
	if status == scsiGood {
		return nil
	}
	s, _ := parseSense(raw)
	if status == scsiCheckCondition && s.key == senseRecovered {
		return nil
	}
	return SenseError{status, s.key, s.asc, s.ascq}
}

func (d *Device) openSCSI(ctx context.Context) error {
	s := scsi{d}
	// Twelve bytes more than needed; some firmware only accepts 36 or more.
	inq, err := s.read(ctx, []byte{scsiInquiry, 0, 0, 0, 36, 0}, 36)
	if err != nil {
		return fmt.Errorf("inquire: %w", err)
	}
	if len(inq) < 36 {
		return fmt.Errorf("inquire: %d bytes came", len(inq))
	}
	d.Model, d.Firmware = text(inq[16:32]), text(inq[32:36])
	d.health, d.running = s.readHealth, s.findRunning
	pages, _ := s.vitalData(ctx, 0x00) // a device without it is too old for the rest
	if slices.Contains(pages, 0x80) {
		if b, err := s.vitalData(ctx, 0x80); err == nil {
			d.Serial = text(b)
		}
	}
	if slices.Contains(pages, 0xb2) {
		if b, err := s.vitalData(ctx, 0xb2); err == nil {
			d.Discard = parseProvisioning(b)
		}
	}
	for _, m := range []struct {
		name   string
		action uint8
	}{{"scsi_sanitize_crypto", scsiCryptoErase}, {"scsi_sanitize_block", scsiBlockErase},
		{"scsi_sanitize_overwrite", scsiOverwrite}} {
		ok, err := s.supports(ctx, scsiSanitize, m.action)
		if err != nil {
			return err
		}
		if ok {
			d.methods = append(d.methods, s.sanitizeMethod(m.name, m.action))
		}
	}
	if s.hasProtocol(ctx, tcgProtocol) {
		if err := d.addOpal(ctx, s.security, nil); err != nil {
			return err
		}
	}
	d.sortMethods()
	return nil
}

// vitalData reads a vital product data page, without its header.
func (s scsi) vitalData(ctx context.Context, page uint8) ([]byte, error) {
	b, err := s.read(ctx, []byte{scsiInquiry, 1, page, 0, 252, 0}, 252)
	if err != nil {
		return nil, fmt.Errorf("read vital product data page 0x%02x: %w", page, err)
	}
	if len(b) < 4 || b[1] != page {
		return nil, fmt.Errorf("read vital product data page 0x%02x: something else came", page)
	}
	return b[4:min(len(b), 4+int(binary.BigEndian.Uint16(b[2:])))], nil
}

// parseProvisioning parses page B2h after its header (SBC-4, 6.6.7): whether blocks can be unmapped, and how they read
// then.
func parseProvisioning(b []byte) Discard {
	if len(b) < 2 {
		return Discard{}
	}
	can := b[1]&0xe0 != 0 // UNMAP, or WRITE SAME with the UNMAP bit
	return Discard{Supported: can, Zeros: can && b[1]>>2&7 == 1}
}

// supports reports whether the device has a command with a service action (SPC-5, 6.35). A device that does not answer
// does not support it.
func (s scsi) supports(ctx context.Context, opcode, action uint8) (bool, error) {
	b, err := s.read(ctx, []byte{scsiReportOpcodes, 0x0c, 2, opcode, 0, action, 0, 0, 0, 64, 0, 0}, 64)
	if _, ok := errors.AsType[SenseError](err); ok {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return len(b) >= 2 && b[1]&7 == 3, nil // as in the standard; 5 would be vendor-specific
}

func (s scsi) sanitizeMethod(name string, action uint8) Method {
	return Method{
		Name: name, Level: Purge, LeavesNoise: action != scsiOverwrite, Resumes: true,
		start: func(ctx context.Context) error {
			const immediate = 0x80
			cdb := []byte{scsiSanitize, immediate | action, 0, 0, 0, 0, 0, 0, 0, 0}
			var data []byte
			if action == scsiOverwrite {
				data = []byte{1, 0, 0, 4, 0, 0, 0, 0} // once, with the pattern of four zero bytes
				cdb[8] = byte(len(data))
			}
			status, raw, _, err := s.transport.SCSI(ctx, s.Path, cdb, true, data, scsiQuick)
			if err != nil {
				return err
			}
			return senseError(status, raw)
		},
		progress: s.sanitizeProgress,
	}
}

// sanitizeProgress reads the progress with REQUEST SENSE, and then the final status with TEST UNIT READY.
func (s scsi) sanitizeProgress(ctx context.Context) (Status, error) {
	raw, err := s.read(ctx, []byte{scsiRequestSense, 0, 0, 0, 252, 0}, 252)
	if err != nil {
		return Status{}, err
	}
	if st, known, err := sanitizeSense(raw); known {
		return st, err
	}
	for range 4 { // a unit attention is reported once, and hides the status
		status, raw, _, err := s.transport.SCSI(ctx, s.Path, make([]byte, 6), false, nil, scsiQuick)
		if err != nil {
			return Status{}, err
		}
		if status == scsiGood {
			return Status{Percent: 100, Done: true}, nil
		}
		if st, known, err := sanitizeSense(raw); known {
			return st, err
		}
		if sn, ok := parseSense(raw); !ok || sn.key != 6 {
			return Status{}, senseError(status, raw)
		}
	}
	return Status{}, errors.New("the device reports one event after the other")
}

// sanitizeSense returns the state of a sanitize in sense data, if present.
func sanitizeSense(raw []byte) (Status, bool, error) {
	s, ok := parseSense(raw)
	switch {
	case !ok:
		return Status{}, false, nil
	case s.key == senseNotReady && s.asc == 0x04 && s.ascq == 0x1b:
		if s.progress < 0 {
			return Status{Percent: -1}, true, nil
		}
		return Status{Percent: percentOf(s.progress)}, true, nil
	case s.key == senseMedium && s.asc == 0x31 && s.ascq == 0x03:
		return Status{}, true,
			step.Fail("clean again: a device whose sanitize failed accepts nothing but another; if it fails again, replace the disk",
				fmt.Errorf("%w: %w", ErrFailed, SenseError{scsiCheckCondition, s.key, s.asc, s.ascq}))
	}
	return Status{}, false, nil
}

func (s scsi) findRunning(ctx context.Context) (Method, bool, error) {
	raw, err := s.read(ctx, []byte{scsiRequestSense, 0, 0, 0, 252, 0}, 252)
	if err != nil {
		return Method{}, false, err
	}
	sn, _ := parseSense(raw)
	if sn.key != senseNotReady || sn.asc != 0x04 || sn.ascq != 0x1b {
		return Method{}, false, nil
	}
	return Method{Name: "scsi_sanitize", Level: Purge, LeavesNoise: true, Resumes: true, progress: s.sanitizeProgress},
		true, nil
}

// parameter is one entry of a log page.
type parameter struct {
	code  uint16
	value []byte
}

// parseLogPage splits a log page (SPC-5, 7.3). Truncated parameters are left out.
func parseLogPage(b []byte, page uint8) []parameter {
	if len(b) < 4 || b[0]&0x3f != page {
		return nil
	}
	b = b[4:min(len(b), 4+int(binary.BigEndian.Uint16(b[2:])))]
	var all []parameter
	for len(b) >= 4 {
		n := 4 + int(b[3])
		if n > len(b) {
			break
		}
		all = append(all, parameter{binary.BigEndian.Uint16(b), b[4:n]})
		b = b[n:]
	}
	return all
}

// readHealth reads log pages. Each may be missing; if all are, the device has no health data.
func (s scsi) readHealth(ctx context.Context) (Health, error) {
	h := Health{Status: Unknown}
	heard := false
	for _, page := range []uint8{0x2f, 0x0d, 0x11, 0x15, 0x03} {
		b, err := s.read(ctx, []byte{scsiLogSense, 0, 0x40 | page, 0, 0, 0, 0, 0x02, 0, 0}, 512)
		if _, ok := errors.AsType[SenseError](err); ok {
			continue
		}
		if err != nil {
			return h, err
		}
		for _, p := range parseLogPage(b, page) {
			heard = true
			h.note(page, p)
		}
	}
	// The list of defects grown in use, for disks. Flash has none.
	if b, err := s.read(ctx, []byte{scsiReadDefects, 0x0d, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0}, 8); err == nil &&
		len(b) == 8 {
		if size := map[uint8]uint32{0: 4, 3: 8, 4: 8, 5: 8}[b[1]&7]; size != 0 && b[1]&0x08 != 0 {
			heard = true
			h.ReallocatedSectors = new(uint64(binary.BigEndian.Uint32(b[4:]) / size))
		}
	}
	if !heard {
		return h, fmt.Errorf("the device has no health data: %w", errors.ErrUnsupported)
	}
	return h, nil
}

func (h *Health) note(page uint8, p parameter) {
	v := p.value
	switch {
	case page == 0x2f && p.code == 0 && len(v) >= 3: // informational exceptions
		h.Status = Passed
		if v[0] == 0x5d {
			h.Status, h.Warnings = Failing,
				append(h.Warnings, fmt.Sprintf("the device expects to fail (%02x/%02x)", v[0], v[1]))
		} else if v[0] != 0 {
			h.Warnings = append(h.Warnings, fmt.Sprintf("the device warns (%02x/%02x)", v[0], v[1]))
		}
		if v[2] != 0 && v[2] != 0xff && h.TemperatureCelsius == nil {
			h.TemperatureCelsius = new(int(v[2]))
		}
	case page == 0x0d && p.code == 0 && len(v) >= 2 && v[1] != 0xff:
		h.TemperatureCelsius = new(int(v[1]))
	case page == 0x11 && p.code == 1 && len(v) >= 4:
		h.PercentageUsed = new(int(v[3]))
	case page == 0x15 && p.code == 0 && len(v) >= 4: // background scan: minutes
		h.PowerOnHours = new(uint64(binary.BigEndian.Uint32(v)) / 60)
	case page == 0x03 && p.code == 6 && len(v) <= 8: // uncorrected read errors
		var raw [8]byte
		copy(raw[8-len(v):], v)
		h.MediaErrors = new(binary.BigEndian.Uint64(raw[:]))
	}
}
