package passthru

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// ATA commands and their subcommands (ACS-4).
const (
	ataReadLogExt       = 0x2f
	ataSmart            = 0xb0
	ataSanitize         = 0xb4
	ataIdentify         = 0xec
	ataSetPassword      = 0xf1
	ataUnlock           = 0xf2
	ataErasePrepare     = 0xf3
	ataEraseUnit        = 0xf4
	ataDisablePassword  = 0xf6
	smartReadData       = 0xd0
	smartReturnStatus   = 0xda
	smartSignature      = 0xc24f00 // LBA mid and high of every SMART command
	smartExceeded       = 0x2cf400 // their value when the drive predicts a failure
	sanitizeStatusExt   = 0x00
	sanitizeCryptoExt   = 0x11
	sanitizeBlockExt    = 0x12
	sanitizeOverwrExt   = 0x14
	sanitizeKeyCrypto   = 0x43727970 // "Cryp": keys against accidental commands
	sanitizeKeyBlock    = 0x426b4572 // "BkEr"
	sanitizeKeyOverwr   = 0x4f57 << 32
	statisticsLog       = 0x04
	statisticsSSD       = 0x07
	ataQuick            = time.Minute
	eraseLimit          = 12 * time.Hour // at least: an erase that times out is ended by a reset
	ataNoData, ataIn    = 3, 4
	ataOut              = 5
	ataErr, ataFault    = 0x01, 0x20
	identifyWords       = 256
	ataAbort            = 0x04
	sanitizeReasonMask  = 0xff
	sanitizeCountDone   = 0x8000
	sanitizeCountBusy   = 0x4000
	sanitizeCountFrozen = 0x2000
)

// Password is the user password that is set during an ATA security erase. It is the same for every drive and no secret:
// a drive that an interrupted erase left locked must be released by the next one.
const Password = "ingot"

// passwords are tried on a locked drive: ours, and those that hdparm's NULL and ironic-python-agent leave.
var passwords = []string{Password, "", "NULL"}

// ATAError is the error of an ATA command that the device rejected.
type ATAError struct {
	Command, Status, Register uint8
}

func (e ATAError) Error() string {
	what := "see ACS-4"
	if e.Register&ataAbort != 0 {
		what = "aborted"
	}
	return fmt.Sprintf("ATA command 0x%02x ended with status 0x%02x, error 0x%02x (%s)", e.Command, e.Status,
		e.Register, what)
}

// ata is an open SATA drive.
type ata struct {
	*Device
	id identity
}

// identity holds the used fields of IDENTIFY DEVICE (ACS-4, 7.13).
type identity struct {
	model, serial, firmware       string
	rotating                      bool
	security                      Security
	eraseTime, enhancedTime       time.Duration
	sanitize                      bool
	crypto, block, overwrite      bool
	trim, trimZeros               bool
	smart, smartOn, logs, trusted bool
}

func parseIdentity(b []byte) (identity, error) {
	if len(b) < 2*identifyWords {
		return identity{}, fmt.Errorf("IDENTIFY DEVICE gave %d bytes", len(b))
	}
	word := func(i int) uint16 { return binary.LittleEndian.Uint16(b[2*i:]) }
	bit := func(i, n int) bool { return word(i)>>n&1 == 1 }
	str := func(from, to int) string {
		s := slices.Clone(b[2*from : 2*to])
		for i := 0; i+1 < len(s); i += 2 {
			s[i], s[i+1] = s[i+1], s[i]
		}
		return text(s)
	}
	if b[510] == 0xa5 { // the integrity word is present
		var sum byte
		for _, c := range b[:512] {
			sum += c
		}
		if sum != 0 {
			return identity{}, errors.New("IDENTIFY DEVICE has a wrong checksum")
		}
	}
	valid := word(83)>>14 == 1 // words 82 to 84 are valid
	sanitize := bit(59, 12)
	return identity{serial: str(10, 20), firmware: str(23, 27), model: str(27, 47), rotating: word(217) != 1,
		security: Security{Supported: bit(128, 0), Enabled: bit(128, 1), Locked: bit(128, 2), Frozen: bit(128, 3),
			CountExpired: bit(128, 4), Enhanced: bit(128, 5)},
		eraseTime: eraseTime(word(89)), enhancedTime: eraseTime(word(90)), sanitize: sanitize,
		crypto: sanitize && bit(59, 13), overwrite: sanitize && bit(59, 14), block: sanitize && bit(59, 15),
		trim: bit(169, 0), trimZeros: bit(169, 0) && bit(69, 14) && bit(69, 5), smart: valid && bit(82, 0),
		smartOn: bit(85, 0), logs: valid && bit(84, 5), trusted: word(48)>>14 == 1 && bit(48, 0)}, nil
}

// eraseTime decodes words 89 and 90: units of two minutes, in 8 or 15 bits.
func eraseTime(w uint16) time.Duration {
	if w&0x8000 == 0 {
		w &= 0xff
	}
	return time.Duration(w&0x7fff) * 2 * time.Minute
}

// send sends an ATA command in a SCSI one (SAT-4, 12.2.2.3) and returns its result registers, if the answer has them.
func (a *ata) send(ctx context.Context, t taskfile, protocol uint8, data []byte,
	limit time.Duration) (taskfile, error) {
	cdb := make([]byte, 16)
	cdb[0], cdb[1] = 0x85, protocol<<1
	if t.extended() {
		cdb[1] |= 1
	}
	// Without data the registers are wanted back; else blocks move, as many as count says, from the device or to it.
	cdb[2] = map[uint8]byte{ataNoData: 0x20, ataIn: 0x0e, ataOut: 0x06}[protocol]
	binary.BigEndian.PutUint16(cdb[3:], t.feature)
	binary.BigEndian.PutUint16(cdb[5:], t.count)
	for i, shift := range []int{24, 0, 32, 8, 40, 16} {
		cdb[7+i] = byte(t.lba >> shift)
	}
	cdb[13], cdb[14] = t.device, t.command
	status, raw, n, err := a.transport.SCSI(ctx, a.Path, cdb, protocol == ataOut, data, limit)
	if err != nil {
		return taskfile{}, err
	}
	s, _ := parseSense(raw)
	if s.ata != nil && s.ata.command&(ataErr|ataFault) != 0 && status == scsiCheckCondition {
		return *s.ata, ATAError{t.command, s.ata.command, uint8(s.ata.feature)}
	}
	if status == scsiCheckCondition && s.key != senseRecovered && s.key != 0 || status != scsiGood &&
		status != scsiCheckCondition {
		return taskfile{}, SenseError{status, s.key, s.asc, s.ascq}
	}
	if protocol == ataIn && n < len(data) {
		return taskfile{}, fmt.Errorf("ATA command 0x%02x gave %d of %d bytes", t.command, n, len(data))
	}
	if protocol == ataNoData && s.ata == nil {
		return taskfile{}, fmt.Errorf("ATA command 0x%02x: the controller does not return the registers", t.command)
	}
	if s.ata == nil {
		return taskfile{}, nil
	}
	return *s.ata, nil
}

// extended reports whether a command has 48-bit registers.
func (t taskfile) extended() bool { return t.command == ataSanitize || t.command == ataReadLogExt }

func (a *ata) identify(ctx context.Context) error {
	buf := make([]byte, 512)
	if _, err := a.send(ctx, taskfile{command: ataIdentify, count: 1}, ataIn, buf, ataQuick); err != nil {
		return err
	}
	id, err := parseIdentity(buf)
	if err != nil {
		return err
	}
	a.id, a.Security = id, &id.security
	return nil
}

func (d *Device) openATA(ctx context.Context) error {
	a := &ata{Device: d}
	if err := a.identify(ctx); err != nil {
		return fmt.Errorf("identify the drive: %w", err)
	}
	d.Model, d.Serial, d.Firmware = a.id.model, a.id.serial, a.id.firmware
	d.Discard = Discard{Supported: a.id.trim, Zeros: a.id.trimZeros}
	d.health, d.running, d.release = a.readHealth, a.findRunning, a.unlock
	var frozen error
	if a.id.sanitize {
		st, err := a.sanitizeState(ctx)
		if err != nil && !errors.Is(err, ErrFailed) {
			return err
		}
		if st.frozen {
			frozen = step.Failf(thaw, "the drive's sanitize commands are frozen until its next power cycle")
		}
	}
	add := func(able bool, m Method) {
		if able {
			d.methods = append(d.methods, m)
		}
	}
	add(a.id.crypto, a.sanitizeMethod("ata_sanitize_crypto", sanitizeCryptoExt, frozen))
	add(a.id.block, a.sanitizeMethod("ata_sanitize_block", sanitizeBlockExt, frozen))
	if a.id.trusted {
		if err := d.addOpal(ctx, a.security, nil); err != nil {
			return err
		}
	}
	s := a.id.security
	add(s.Supported && s.Enhanced, a.secureErase("ata_secure_erase_enhanced", true))
	add(a.id.overwrite, a.sanitizeMethod("ata_sanitize_overwrite", sanitizeOverwrExt, frozen))
	add(s.Supported, a.secureErase("ata_secure_erase", false))
	d.sortMethods()
	return nil
}

const thaw = "suspend and resume the machine once, or switch it off and on with the drive plugged in after the firmware has started; or switch " +
	"off the freezing of drives in the firmware's setup; or let another method be taken"

// sanitizeState is the answer to SANITIZE STATUS EXT (ACS-4, 7.36.7).
type sanitizeState struct {
	busy, done, frozen bool
	percent            int
}

func (a *ata) sanitizeState(ctx context.Context) (sanitizeState, error) {
	r, err := a.send(ctx, taskfile{command: ataSanitize, feature: sanitizeStatusExt}, ataNoData, nil, ataQuick)
	var refused ATAError
	if errors.As(err, &refused) && r.lba&sanitizeReasonMask == 1 {
		return sanitizeState{},
			step.Fail("clean again: a drive whose sanitize failed accepts nothing but another; if it fails again, replace the disk",
				fmt.Errorf("%w: %w", ErrFailed, err))
	}
	if err != nil {
		return sanitizeState{}, fmt.Errorf("read the sanitize status: %w", err)
	}
	return parseSanitizeState(r), nil
}

func parseSanitizeState(r taskfile) sanitizeState {
	progress := int(r.lba & 0xffff)
	if r.short { // the bits are lost, but the progress is not: all ones without a sanitize
		busy := progress != 0xffff
		return sanitizeState{busy: busy, done: !busy && r.count > 0xff, percent: percentOf(progress)}
	}
	return sanitizeState{busy: r.count&sanitizeCountBusy != 0, done: r.count&sanitizeCountDone != 0,
		frozen: r.count&sanitizeCountFrozen != 0, percent: percentOf(progress)}
}

func percentOf(progress int) int { return min(max(progress, 0)*100>>16, 99) }

func (a *ata) sanitizeMethod(name string, feature uint16, blocked error) Method {
	key := map[uint16]uint64{sanitizeCryptoExt: sanitizeKeyCrypto, sanitizeBlockExt: sanitizeKeyBlock,
		sanitizeOverwrExt: sanitizeKeyOverwr}[feature]
	return Method{
		Name: name, Level: Purge, LeavesNoise: feature != sanitizeOverwrExt, Blocked: blocked, Resumes: true,
		start: func(ctx context.Context) error {
			t := taskfile{command: ataSanitize, feature: feature, lba: key}
			if feature == sanitizeOverwrExt {
				t.count = 1 // one pass of zeros
			}
			_, err := a.send(ctx, t, ataNoData, nil, ataQuick)
			return err
		},
		progress: func(ctx context.Context) (Status, error) {
			st, err := a.sanitizeState(ctx)
			switch {
			case err != nil:
				return Status{}, err
			case st.busy:
				return Status{Percent: st.percent}, nil
			case st.done:
				return Status{Percent: 100, Done: true}, nil
			}
			return Status{}, step.Failf("clean again; if it happens again, replace the disk",
				"%w: it neither runs nor has it ended well", ErrFailed)
		},
	}
}

// findRunning finds a running sanitize. A security erase in progress blocks all other commands: Open has waited for its
// end.
func (a *ata) findRunning(ctx context.Context) (Method, bool, error) {
	if !a.id.sanitize {
		return Method{}, false, nil
	}
	st, err := a.sanitizeState(ctx)
	if errors.Is(err, ErrFailed) {
		return Method{}, false, nil
	}
	if err != nil || !st.busy {
		return Method{}, false, err
	}
	// The drive does not report which one runs. The content afterwards is unknown too.
	return a.sanitizeMethod("ata_sanitize", sanitizeBlockExt, nil), true, nil
}

// password returns the 512 bytes of security commands (ACS-4, table 121): only the user's password.
func password(p string, control uint16) []byte {
	b := make([]byte, 512)
	binary.LittleEndian.PutUint16(b, control)
	copy(b[2:34], p)
	return b
}

const enhancedErase = 2 // in the control word of ERASE UNIT

func (a *ata) secret(ctx context.Context, command uint8, p string, control uint16, limit time.Duration) error {
	_, err := a.send(ctx, taskfile{command: command, count: 1}, ataOut, password(p, control), limit)
	return err
}

// unlock releases a drive that an interrupted erase left with a password.
func (a *ata) unlock(ctx context.Context) error {
	if err := a.identify(ctx); err != nil {
		return err
	}
	s := a.id.security
	if !s.Enabled || !s.Locked && s.Frozen {
		return nil // no password, or unlocked by its owner
	}
	if s.CountExpired {
		return step.Failf("switch the machine off and on, then clean again",
			"%s is locked and takes no more passwords until its next power cycle", a.Path)
	}
	if s.Frozen {
		return step.Failf(thaw, "%s is locked and frozen", a.Path)
	}
	var last error
	for _, p := range passwords {
		if s.Locked {
			if last = a.secret(ctx, ataUnlock, p, 0, ataQuick); last != nil {
				if _, ok := errors.AsType[ATAError](last); ok {
					continue
				}
				return last
			}
		}
		// An unlocked drive still has the password, and would be locked after the next power cycle.
		if last = a.secret(ctx, ataDisablePassword, p, 0, ataQuick); last == nil {
			break
		}
	}
	if err := a.identify(ctx); err != nil {
		return err
	}
	if a.id.security.Locked {
		return step.Failf(
			"unlock it with the password it was locked with (hdparm --security-unlock), revert it by its PSID if it has one, or replace it",
			"%s is locked with a password that is not known here: %w", a.Path, last)
	}
	return nil
}

// secureErase is SECURITY ERASE UNIT. If interrupted, the drive is locked with Password and half erased; Release and
// Start repair that.
func (a *ata) secureErase(name string, enhanced bool) Method {
	m := Method{Name: name, Level: Clear, LeavesNoise: enhanced, Estimate: a.id.eraseTime}
	var control uint16
	if enhanced {
		control, m.Estimate = enhancedErase, a.id.enhancedTime
		if a.id.rotating { // for flash, NIST rates the security erase as Clear at most
			m.Level = Purge
		}
	}
	s := a.id.security
	switch {
	case s.Frozen:
		m.Blocked = step.Failf(thaw, "the firmware has frozen the drive's security")
	case s.CountExpired:
		m.Blocked = step.Failf("switch the machine off and on, then clean again",
			"the drive takes no more passwords until its next power cycle")
	}
	var call background
	var begun time.Time
	m.start = func(ctx context.Context) error {
		if err := a.unlock(ctx); err != nil {
			return err
		}
		if a.id.security.Enabled {
			return step.Failf(
				"remove the drive's password (hdparm --security-disable), or revert it by its PSID if it has one",
				"the drive has a password that is not known here")
		}
		if a.id.security.Frozen {
			return step.Failf(thaw, "the firmware has frozen the drive's security")
		}
		if err := a.secret(ctx, ataSetPassword, Password, 0, ataQuick); err != nil {
			return fmt.Errorf("set a password: %w", err)
		}
		if _, err := a.send(ctx, taskfile{command: ataErasePrepare}, ataNoData, nil, ataQuick); err != nil {
			return errors.Join(fmt.Errorf("prepare: %w", err), a.unlock(ctx))
		}
		begun = time.Now()
		limit := max(eraseLimit, 2*m.Estimate)
		return call.start(ctx, func(ctx context.Context) error {
			return a.secret(ctx, ataEraseUnit, Password, control, limit)
		})
	}
	m.progress = func(ctx context.Context) (Status, error) {
		over, err := call.ended()
		if err != nil {
			err = step.Fail("clean again; if it happens again, replace the disk", fmt.Errorf("%w: %w", ErrFailed, err))
			return Status{}, errors.Join(err, a.unlock(ctx))
		}
		if !over {
			st := Status{Percent: -1}
			if m.Estimate > 0 {
				st = Status{Percent: int(min(time.Since(begun)*100/m.Estimate, 99)), Estimated: true}
			}
			return st, nil
		}
		if err := a.identify(ctx); err != nil {
			return Status{}, err
		}
		if a.id.security.Enabled { // a completed erase removes the password
			return Status{}, errors.Join(step.Failf("clean again; if it happens again, replace the disk",
				"%w: it still has its password", ErrFailed), a.unlock(ctx))
		}
		return Status{Percent: 100, Done: true}, nil
	}
	return m
}

// readHealth reads SMART data (ACS-4, 7.48) and, for flash, the device statistics.
func (a *ata) readHealth(ctx context.Context) (Health, error) {
	h := Health{Status: Unknown}
	if !a.id.smart {
		return h, fmt.Errorf("the drive has no SMART: %w", errors.ErrUnsupported)
	}
	if !a.id.smartOn {
		h.Warnings = append(h.Warnings, "SMART is switched off")
		return h, nil
	}
	r, err := a.send(ctx, taskfile{command: ataSmart, feature: smartReturnStatus, lba: smartSignature}, ataNoData, nil,
		ataQuick)
	switch {
	case err != nil:
		return h, fmt.Errorf("ask SMART: %w", err)
	case r.lba&0xffff00 == smartSignature:
		h.Status = Passed
	case r.lba&0xffff00 == smartExceeded:
		h.Status, h.Warnings = Failing, append(h.Warnings, "SMART expects the drive to fail")
	}
	data := make([]byte, 512)
	if _, err := a.send(ctx, taskfile{command: ataSmart, feature: smartReadData, lba: smartSignature, count: 1}, ataIn,
		data, ataQuick); err == nil {
		parseSmartData(data, &h)
	}
	if a.id.logs && !a.id.rotating {
		if _, err := a.send(ctx, taskfile{command: ataReadLogExt, lba: statisticsLog | statisticsSSD<<8, count: 1},
			ataIn, data, ataQuick); err == nil {
			parseSSDStatistics(data, &h)
		}
	}
	return h, nil
}

// parseSmartData parses the attributes of SMART READ DATA on which vendors agree. They are convention, not standard.
func parseSmartData(b []byte, h *Health) {
	if len(b) < 362 {
		return
	}
	for i := range 30 {
		at := b[2+12*i:]
		var raw [8]byte
		copy(raw[:6], at[5:11])
		n := binary.LittleEndian.Uint64(raw[:])
		switch at[0] {
		case 5:
			h.ReallocatedSectors = new(n)
		case 9:
			h.PowerOnHours = new(n & 0xffffffff) // some vendors use the upper bits for minutes or milliseconds
		case 187:
			h.MediaErrors = new(n & 0xffff)
		case 190, 194:
			if t := int(int8(at[5])); h.TemperatureCelsius == nil || at[0] == 194 {
				h.TemperatureCelsius = new(t)
			}
		case 197:
			h.PendingSectors = new(n)
		}
	}
	if h.PendingSectors != nil && *h.PendingSectors > 0 {
		h.Warnings = append(h.Warnings, fmt.Sprintf("%d sectors can't be read", *h.PendingSectors))
	}
}

// parseSSDStatistics parses device statistics page 07h (ACS-4, 9.5.9).
func parseSSDStatistics(b []byte, h *Health) {
	if len(b) < 16 || b[2] != statisticsSSD || bytes.Equal(b[8:16], make([]byte, 8)) {
		return
	}
	if b[15]&0xc0 == 0xc0 { // supported, and valid
		h.PercentageUsed = new(int(b[8]))
	}
}
