package fake

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// NVMe is an NVMe drive's firmware, after NVM Express Base 2.0. Its sanitize and format capabilities are set in the
// fields.
type NVMe struct {
	Firmware
	Disks      []*Disk // its namespaces, from number 1 on
	Sanitize   []string
	Format     []string // "user" and "crypto"
	EraseAll   bool     // a format erases all namespaces
	Opal       *Opal
	ModelName  string
	SerialNo   string
	Critical   byte // of the health log
	Kelvin     uint16
	Used       byte
	Hours      uint64
	MediaFault uint64
	// Pause is called in the middle of a format, with half of it done; nil does not pause.
	Pause func()

	mu         sync.Mutex
	run        *erasing
	state      uint16 // SSTAT
	action     uint32
	formatLeft int
	boots      int
}

var nvmeActions = map[uint32]string{2: "block", 3: "overwrite", 4: "crypto"}

func (v *NVMe) scsi([]byte, bool, []byte) (uint8, []byte, int, error) {
	return 0, nil, 0, unix.ENOTTY
}

func (v *NVMe) powerCut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.boots++
	v.formatLeft = 0
	if v.Opal != nil {
		v.Opal.powerCut()
	}
}

func (v *NVMe) nvme(opcode uint8, nsid uint32, cdw [6]uint32, data []byte) (uint32, uint16, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	const (
		badOpcode, badField, badNamespace = 0x4001, 0x4002, 0x400b
		failedBefore, inProgress          = 0x401c, 0x401d
	)
	le := binary.LittleEndian
	switch opcode {
	case 0x06:
		clear(data)
		switch cdw[0] & 0xff {
		case 1:
			copy(data[4:24], pad(v.SerialNo, 20))
			copy(data[24:64], pad(v.ModelName, 40))
			copy(data[64:72], pad("1.0", 8))
			var oacs uint16
			if v.Opal != nil {
				oacs |= 1
			}
			if len(v.Format) > 0 {
				oacs |= 2
			}
			le.PutUint16(data[256:], oacs)
			var sanicap uint32
			for bit, what := range []string{"crypto", "block", "overwrite"} {
				if slices.Contains(v.Sanitize, what) {
					sanicap |= 1 << bit
				}
			}
			le.PutUint32(data[328:], sanicap)
			le.PutUint32(data[516:], uint32(len(v.Disks)))
			if v.EraseAll {
				data[524] |= 2
			}
			if slices.Contains(v.Format, "crypto") {
				data[524] |= 4
			}
			return 0, 0, nil
		case 0:
			if nsid == 0 || int(nsid) > len(v.Disks) {
				return 0, badNamespace, nil
			}
			if v.run != nil {
				return 0, inProgress, nil
			}
			d := v.Disks[nsid-1]
			blocks := uint64(d.spec.Size) / uint64(d.spec.SectorSize)
			for at := range 3 {
				le.PutUint64(data[8*at:], blocks)
			}
			data[32] = 0x80 | byte(v.formatLeft)
			data[33] = 1
			for d.spec.SectorSize>>data[130] > 1 {
				data[130]++
			}
			return 0, 0, nil
		}
		return 0, badField, nil
	case 0x02:
		clear(data)
		switch cdw[0] & 0xff {
		case 0x02:
			data[0], data[3], data[4], data[5] = v.Critical, 100, 10, v.Used
			le.PutUint16(data[1:], v.Kelvin)
			le.PutUint64(data[128:], v.Hours)
			le.PutUint64(data[160:], v.MediaFault)
			return 0, 0, nil
		case 0x81:
			if len(v.Sanitize) == 0 {
				return 0, 0x4109, nil // invalid log page
			}
			v.getOn()
			le.PutUint16(data, 0xffff)
			if v.run != nil {
				le.PutUint16(data, v.run.fraction())
			}
			le.PutUint16(data[2:], v.state)
			le.PutUint32(data[4:], v.action)
			for at, s := range map[int]uint32{8: 3600, 12: 60, 16: 2} {
				le.PutUint32(data[at:], s)
			}
			return 0, 0, nil
		}
		return 0, 0x4109, nil
	case 0x84:
		if len(v.Sanitize) == 0 {
			return 0, badOpcode, nil
		}
		if v.run != nil {
			return 0, inProgress, nil
		}
		name := nvmeActions[cdw[0]&7]
		if !slices.Contains(v.Sanitize, name) {
			return 0, badField, nil
		}
		v.action, v.state = cdw[0], 2
		v.run = v.begin(name, name != "overwrite")
		for _, d := range v.Disks {
			d.refuse.Store(true)
		}
		return 0, 0, nil
	case 0x80:
		return v.format(nsid, cdw[0])
	case 0x81, 0x82:
		if v.Opal == nil {
			return 0, badOpcode, nil
		}
		if cdw[0]>>24 != 1 || int(cdw[1]) != len(data) ||
			!v.Opal.transfer(opcode == 0x81, uint16(cdw[0]>>8), data, func() { v.erase(v.Disks, true, 1) }) {
			return 0, badField, nil
		}
		return 0, 0, nil
	}
	return 0, badOpcode, nil
}

// getOn advances the sanitize in progress; mu is held.
func (v *NVMe) getOn() {
	if v.run == nil {
		return
	}
	over, failed := v.tick(v.run, v.Disks)
	if !over {
		return
	}
	v.run, v.state = nil, 0x101
	if failed {
		v.state = 3
		return // the disks stay blocked until another sanitize
	}
	for _, d := range v.Disks {
		d.refuse.Store(false)
	}
}

func (v *NVMe) format(nsid, cdw10 uint32) (uint32, uint16, error) {
	if len(v.Format) == 0 {
		return 0, 0x4001, nil
	}
	if v.run != nil {
		return 0, 0x401d, nil
	}
	ses := cdw10 >> 9 & 7
	if ses == 2 && !slices.Contains(v.Format, "crypto") || ses > 2 || cdw10&0xf != 0 {
		return 0, 0x4002, nil
	}
	disks := v.Disks
	switch {
	case nsid == 0xffffffff || ses != 0 && v.EraseAll:
	case nsid == 0 || int(nsid) > len(v.Disks):
		return 0, 0x400b, nil
	default:
		disks = v.Disks[nsid-1 : nsid]
	}
	v.erase(disks, ses == 2, 2)
	if v.Pause != nil {
		boots := v.boots
		v.formatLeft = 50
		v.mu.Unlock()
		v.Pause()
		v.mu.Lock()
		v.formatLeft = 0
		if v.boots != boots {
			return 0, 0, unix.EIO // the caller is gone
		}
	}
	if v.Fails > 0 {
		v.Fails--
		return 0, 0x4006, nil
	}
	v.erase(disks, ses == 2, 1)
	return 0, 0, nil
}

func pad(s string, n int) string {
	return fmt.Sprintf("%-*s", n, s)[:n]
}

var errNoATA = errors.New("this disk takes no NVMe commands")
