package fake

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"
)

// ATA is a SATA drive's firmware, after ACS-4, under the translation of SAT-4.
type ATA struct {
	Firmware
	Disk      *Disk
	ModelName string
	SerialNo  string
	Sanitize  []string // "crypto", "block", "overwrite"
	NoLock    bool     // has no security feature
	Enhanced  bool     // can erase in enhanced mode
	Freezes   bool     // the machine's firmware freezes the drive at each boot
	Frozen    bool
	// SanitizeFrozen: by SANITIZE FREEZE LOCK EXT, until the next power cycle.
	SanitizeFrozen bool
	// Keeps: the erase reports success, but the password stays.
	Keeps   bool
	Opal    *Opal
	Failing bool
	Celsius byte
	Hours   uint32
	Bad     uint16 // reallocated sectors
	Used    byte   // percent of endurance
	// Fixed: returns sense data of fixed format, as some controllers do.
	Fixed bool
	// Pause is called in the middle of a security erase, with half of it done.
	Pause func()

	mu       sync.Mutex
	password []byte // nil: none is set
	locked   bool
	expired  bool
	tries    int
	prepared bool
	run      *erasing
	done     bool
	failed   bool
	boots    int
}

// Lock sets a password and locks the drive, as after a foreign password and a power cycle.
func (a *ATA) Lock(password string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.password = append(make([]byte, 0, 32), password...)[:32]
	a.lock(true)
}

// State reports whether the drive has a password, and whether it is locked.
func (a *ATA) State() (enabled, locked bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.password != nil, a.locked
}

func (a *ATA) lock(on bool) {
	a.locked = on
	a.Disk.refuse.Store(on)
}

func (a *ATA) powerCut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.boots++
	a.tries, a.expired, a.prepared = 5, false, false
	a.Frozen, a.SanitizeFrozen = a.Freezes, false
	if a.password != nil {
		a.lock(true)
	}
	if a.Opal != nil {
		a.Opal.powerCut()
	}
}

func (a *ATA) nvme(uint8, uint32, [6]uint32, []byte) (uint32, uint16, error) {
	return 0, 0, errNoATA
}

// registers are a command's result registers.
type registers struct {
	status, fault, device byte
	count                 uint16
	lba                   uint64
}

func (a *ATA) scsi(cdb []byte, out bool, data []byte) (uint8, []byte, int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch cdb[0] {
	case 0xa2, 0xb5:
		if a.Opal == nil {
			return 2, fixedSense(5, 0x20, 0, -1), 0, nil
		}
		return a.Opal.scsi(cdb, data, func() { a.erase([]*Disk{a.Disk}, true, 1) })
	case 0x85:
	default:
		return 2, fixedSense(5, 0x20, 0, -1), 0, nil
	}
	be := binary.BigEndian
	in := registers{count: be.Uint16(cdb[5:]), lba: uint64(cdb[8]) | uint64(cdb[10])<<8 | uint64(cdb[12])<<16 |
		uint64(cdb[7])<<24 |
		uint64(cdb[9])<<32 | uint64(cdb[11])<<40}
	protocol := cdb[1] >> 1 & 0xf
	r, ok := a.command(cdb[14], be.Uint16(cdb[3:]), in, protocol, data)
	if !ok {
		r.status, r.fault = 0x51, 4 // aborted
		return 2, a.sense(0x0b, r), 0, nil
	}
	r.status = 0x50
	if cdb[2]&0x20 != 0 { // the registers are requested
		return 2, a.sense(1, r), len(data), nil
	}
	return 0, nil, len(data), nil
}

func (a *ATA) sense(key byte, r registers) []byte {
	if a.Fixed {
		s := fixedSense(key, 0, 0x1d, -1)
		s[3], s[4], s[5], s[6] = r.fault, r.status, r.device, byte(r.count)
		if r.count > 0xff {
			s[8] |= 0x40
		}
		if r.lba > 0xffffff {
			s[8] |= 0x20
		}
		s[9], s[10], s[11] = byte(r.lba), byte(r.lba>>8), byte(r.lba>>16)
		return s
	}
	s := make([]byte, 22)
	s[0], s[1], s[3], s[7] = 0x72, key, 0x1d, 14
	d := s[8:]
	d[0], d[1], d[2], d[3] = 9, 12, 1, r.fault
	binary.BigEndian.PutUint16(d[4:], r.count)
	for i, shift := range []int{24, 0, 32, 8, 40, 16} {
		d[6+i] = byte(r.lba >> shift)
	}
	d[12], d[13] = r.device, r.status
	return s
}

// fixedSense returns sense data of fixed format; progress below zero is none.
func fixedSense(key, asc, ascq byte, progress int) []byte {
	s := make([]byte, 18)
	s[0], s[2], s[7], s[12], s[13] = 0x70, key, 10, asc, ascq
	if progress >= 0 {
		s[15] = 0x80
		binary.BigEndian.PutUint16(s[16:], uint16(progress))
	}
	return s
}

func (a *ATA) command(command byte, feature uint16, in registers, protocol byte, data []byte) (registers, bool) {
	const none, fromDevice, toDevice = 3, 4, 5
	needs := map[byte]byte{0xec: fromDevice, 0x2f: fromDevice, 0xf1: toDevice, 0xf2: toDevice, 0xf4: toDevice,
		0xf6: toDevice, 0xf3: none, 0xf5: none, 0xb4: none}
	if want, ok := needs[command]; ok && (protocol != want || want != none && len(data) != 512) {
		return registers{}, false
	}
	if command != 0xf4 && command != 0xf3 && command != 0xec {
		a.prepared = false
	}
	security := command >= 0xf1 && command <= 0xf6
	if security && (a.NoLock || a.Frozen || a.run != nil) ||
		a.run != nil && command != 0xb4 && command != 0xec && command != 0xb0 && command != 0x2f {
		return registers{}, false
	}
	switch command {
	case 0xec:
		copy(data, a.identify())
	case 0xf1: // set password
		if !a.locked && data[0]&1 == 0 {
			a.password = slices.Clone(data[2:34])
		}
		return registers{}, !a.locked
	case 0xf2: // unlock
		if a.password == nil || a.expired {
			return registers{}, false
		}
		if !bytes.Equal(a.password, data[2:34]) {
			if a.tries--; a.tries <= 0 {
				a.expired = true
			}
			return registers{}, false
		}
		a.lock(false)
	case 0xf6: // disable password
		if a.locked || a.password == nil || !bytes.Equal(a.password, data[2:34]) {
			return registers{}, false
		}
		a.password = nil
	case 0xf3:
		a.prepared = true
	case 0xf4:
		return registers{}, a.eraseUnit(data)
	case 0xf5:
		a.Frozen = true
	case 0xb4:
		return a.sanitize(feature, in)
	case 0xb0:
		return a.smart(byte(feature), in, data)
	case 0x2f:
		if byte(in.lba) != 4 || byte(in.lba>>8) != 7 {
			return registers{}, false
		}
		clear(data)
		data[0], data[2] = 1, 7
		data[8], data[15] = a.Used, 0xe0
	default:
		return registers{}, false
	}
	return registers{}, true
}

func (a *ATA) eraseUnit(data []byte) bool {
	if !a.prepared || a.password == nil || !bytes.Equal(a.password, data[2:34]) || data[0]&2 != 0 && !a.Enhanced {
		return false
	}
	a.prepared = false
	noise := data[0]&2 != 0
	disks := []*Disk{a.Disk}
	a.erase(disks, noise, 2)
	if a.Pause != nil {
		boots := a.boots
		a.mu.Unlock()
		a.Pause()
		a.mu.Lock()
		if a.boots != boots {
			return false
		}
	}
	if a.Fails > 0 {
		a.Fails--
		return false
	}
	a.erase(disks, noise, 1)
	if !a.Keeps {
		a.password = nil
		a.lock(false)
	}
	return true
}

func (a *ATA) sanitize(feature uint16, in registers) (registers, bool) {
	if len(a.Sanitize) == 0 {
		return registers{}, false
	}
	keys := map[uint16]struct {
		what string
		key  uint64
	}{0x11: {"crypto", 0x43727970}, 0x12: {"block", 0x426b4572}, 0x14: {"overwrite", 0x4f5700000000}}
	if feature == 0 {
		if a.run != nil {
			over, failed := a.tick(a.run, []*Disk{a.Disk})
			if over {
				a.run, a.done, a.failed = nil, !failed, failed
				a.Disk.refuse.Store(failed || a.locked)
			}
		}
		if a.failed {
			return registers{lba: 1}, false
		}
		r := registers{lba: 0xffff}
		switch {
		case a.run != nil:
			r.count, r.lba = 0x4000, uint64(a.run.fraction())
		case a.done:
			r.count = 0x8000
		}
		if a.SanitizeFrozen {
			r.count |= 0x2000
		}
		return r, true
	}
	if feature == 0x20 {
		if in.lba != 0x46724c6b || a.run != nil {
			return registers{}, false
		}
		a.SanitizeFrozen = true
		return registers{lba: 0xffff, count: 0x2000}, true
	}
	k, ok := keys[feature]
	if !ok || in.lba != k.key || !slices.Contains(a.Sanitize, k.what) || a.SanitizeFrozen || a.run != nil || a.locked {
		return registers{}, false
	}
	a.failed, a.done = false, false
	a.run = a.begin(k.what, feature != 0x14)
	a.Disk.refuse.Store(true)
	return registers{count: 0x4000}, true
}

func (a *ATA) smart(feature byte, in registers, data []byte) (registers, bool) {
	if in.lba&0xffff00 != 0xc24f00 {
		return registers{}, false
	}
	switch feature {
	case 0xda:
		if a.Failing {
			return registers{lba: 0x2cf400}, true
		}
		return registers{lba: 0xc24f00}, true
	case 0xd0:
		clear(data)
		for i, v := range [][2]uint64{{5, uint64(a.Bad)}, {9, uint64(a.Hours)}, {194, uint64(a.Celsius) | 0x2d0011<<16},
			{197, 0}} {
			at := data[2+12*i:]
			at[0], at[3] = byte(v[0]), 100
			for b := range 6 {
				at[5+b] = byte(v[1] >> (8 * b))
			}
		}
		return registers{}, true
	}
	return registers{}, false
}

func (a *ATA) identify() []byte {
	b := make([]byte, 512)
	word := func(i int, v uint16) { binary.LittleEndian.PutUint16(b[2*i:], v) }
	str := func(i int, s string, n int) {
		s = pad(s, n)
		for k := 0; k < n; k += 2 {
			b[2*i+k], b[2*i+k+1] = s[k+1], s[k]
		}
	}
	str(10, a.SerialNo, 20)
	str(23, "FW 1.0", 8)
	str(27, a.ModelName, 40)
	var w59, w128 uint16
	for bit, what := range []string{"crypto", "overwrite", "block"} {
		if slices.Contains(a.Sanitize, what) {
			w59 |= 1<<12 | 1<<(13+bit)
		}
	}
	word(59, w59)
	word(83, 0x4000)
	word(84, 0x4020)
	word(82, 1)
	word(85, 1)
	if a.Opal != nil {
		word(48, 0x4001)
	}
	if !a.NoLock {
		w128 |= 1
		word(89, 30)
		if a.Enhanced {
			w128 |= 1 << 5
			word(90, 0x8000|1)
		}
	}
	for bit, on := range map[int]bool{1: a.password != nil, 2: a.locked, 3: a.Frozen, 4: a.expired} {
		if on {
			w128 |= 1 << bit
		}
	}
	word(128, w128)
	word(217, 1)
	if a.Disk.spec.Rotational {
		word(217, 7200)
	}
	b[510] = 0xa5
	var sum byte
	for _, c := range b {
		sum += c
	}
	b[511] = -sum
	return b
}
