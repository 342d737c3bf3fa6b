package passthru

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// Opcodes of the NVMe admin command set (NVM Express Base 2.0, figure 138).
const (
	nvmeGetLogPage      = 0x02
	nvmeIdentify        = 0x06
	nvmeFormat          = 0x80
	nvmeSecuritySend    = 0x81
	nvmeSecurityReceive = 0x82
	nvmeSanitize        = 0x84
)

const (
	nvmeAllNamespaces = 0xffffffff
	nvmeLogSMART      = 0x02
	nvmeLogSanitize   = 0x81
	nvmeQuick         = time.Minute
	formatLimit       = 12 * time.Hour // a user data erase of a large disk can take hours
)

// Sanitize actions (figure 303) and their bits in SANICAP (figure 275).
const (
	sanitizeBlock     = 2
	sanitizeOverwrite = 3
	sanitizeCrypto    = 4
)

// NVMeStatus is an NVMe device's error status.
type NVMeStatus uint16

func (s NVMeStatus) Error() string {
	code := uint16(s) & 0x7ff
	name := cmp.Or(map[uint16]string{
		0x001: "invalid command opcode", 0x002: "invalid field in command", 0x006: "internal error",
		0x00b: "invalid namespace or format", 0x00c: "command sequence error", 0x01c: "sanitize failed",
		0x01d: "sanitize in progress", 0x020: "namespace is write protected", 0x084: "format in progress",
		0x10a: "invalid format", 0x10b: "firmware activation requires a reset", 0x115: "operation denied",
		0x124: "sanitize prohibited while a persistent memory region is enabled",
	}[code], "see the specification")
	return fmt.Sprintf("NVMe status 0x%03x (%s)", code, name)
}

const (
	nvmeSanitizeFailed     = NVMeStatus(0x01c)
	nvmeSanitizeInProgress = NVMeStatus(0x01d)
	nvmeFormatInProgress   = NVMeStatus(0x084)
)

func (s NVMeStatus) is(t NVMeStatus) bool { return s&0x7ff == t }

// nvme is an open NVMe namespace.
type nvme struct {
	*Device
	nsid uint32
	ctrl controller
	ns   namespace
	also []string
}

// controller holds the used fields of Identify Controller (figure 275).
type controller struct {
	serial, model, firmware   string
	format, security          bool // OACS
	formatAll, eraseAll       bool // FNA: a format, or a secure erase, affects all namespaces
	cryptoFormat, noBroadcast bool
	sanitize                  [8]bool // by action
	namespaces                uint32
}

func parseController(b []byte) (controller, error) {
	if len(b) < 4096 {
		return controller{}, fmt.Errorf("identify controller gave %d bytes", len(b))
	}
	le := binary.LittleEndian
	c := controller{serial: text(b[4:24]), model: text(b[24:64]), firmware: text(b[64:72]),
		namespaces: le.Uint32(b[516:])}
	oacs, fna, sanicap := le.Uint16(b[256:]), b[524], le.Uint32(b[328:])
	c.security, c.format = oacs&1 != 0, oacs&2 != 0
	c.formatAll, c.eraseAll, c.cryptoFormat, c.noBroadcast = fna&1 != 0, fna&2 != 0, fna&4 != 0, fna&8 != 0
	c.sanitize[sanitizeCrypto], c.sanitize[sanitizeBlock], c.sanitize[sanitizeOverwrite] = sanicap&1 != 0,
		sanicap&2 != 0, sanicap&4 != 0
	return c, nil
}

// namespace holds the used fields of Identify Namespace (NVM Command Set 1.0, figure 97).
type namespace struct {
	blocks       uint64
	format       uint8 // index of the LBA format in use, with its upper bits
	metaAtEnd    bool
	protection   uint8
	piFirst      bool
	blockSize    int64
	formatLeft   int // remaining percent of a format; -1 if unknown
	readsZeros   bool
	deallocation bool
}

func parseNamespace(b []byte) (namespace, error) {
	if len(b) < 4096 {
		return namespace{}, fmt.Errorf("identify namespace gave %d bytes", len(b))
	}
	le := binary.LittleEndian
	n := namespace{blocks: le.Uint64(b), format: b[26]&0xf | b[26]>>5&3<<4, metaAtEnd: b[26]&0x10 != 0,
		protection: b[29] & 7, piFirst: b[29]&8 != 0, formatLeft: -1, readsZeros: b[33]&7 == 1,
		deallocation: b[33]&8 != 0}
	if b[32]&0x80 != 0 {
		n.formatLeft = min(int(b[32]&0x7f), 100)
	}
	lbads := b[128+4*int(n.format)+2]
	if lbads < 9 || lbads > 16 {
		return namespace{}, fmt.Errorf("identify namespace says blocks of 2^%d bytes", lbads)
	}
	n.blockSize = 1 << lbads
	return n, nil
}

// sanitizeLog is log page 81h (figure 267).
type sanitizeLog struct {
	percent   int
	state     uint8 // 0 never, 1 done, 2 in progress, 3 failed, 4 done with all deallocated
	untouched bool  // no write since the last sanitize
	action    uint8
	estimates [8]time.Duration // by action
}

const (
	sanitizeDone    = 1
	sanitizeBusy    = 2
	sanitizeFailed  = 3
	sanitizeDoneAll = 4
)

func parseSanitizeLog(b []byte) (sanitizeLog, error) {
	if len(b) < 32 {
		return sanitizeLog{}, fmt.Errorf("the sanitize log has %d bytes", len(b))
	}
	le := binary.LittleEndian
	status := le.Uint16(b[2:])
	l := sanitizeLog{percent: -1, state: uint8(status & 7), untouched: status&0x100 != 0,
		action: uint8(le.Uint32(b[4:]) & 7)}
	if l.state == sanitizeBusy {
		l.percent = int(le.Uint16(b)) * 100 >> 16
	}
	for action, at := range map[int]int{sanitizeOverwrite: 8, sanitizeBlock: 12, sanitizeCrypto: 16} {
		if s := le.Uint32(b[at:]); s != 0xffffffff {
			l.estimates[action] = time.Duration(s) * time.Second
		}
	}
	return l, nil
}

func (n *nvme) admin(ctx context.Context, opcode uint8, nsid uint32, cdw [6]uint32, data []byte,
	limit time.Duration) error {
	_, status, err := n.transport.NVMeAdmin(ctx, n.Path, opcode, nsid, cdw, data, limit)
	if err != nil {
		return err
	}
	if status != 0 {
		return NVMeStatus(status)
	}
	return nil
}

func (n *nvme) log(ctx context.Context, page uint8, data []byte) error {
	return n.admin(ctx, nvmeGetLogPage, nvmeAllNamespaces, [6]uint32{uint32(len(data)/4-1)<<16 | uint32(page)}, data,
		nvmeQuick)
}

func (n *nvme) identify(ctx context.Context) error {
	buf := make([]byte, 4096)
	err := n.admin(ctx, nvmeIdentify, 0, [6]uint32{1}, buf, nvmeQuick)
	if err != nil {
		return fmt.Errorf("identify the controller: %w", err)
	}
	n.ctrl, err = parseController(buf)
	return err
}

func (n *nvme) identifyNamespace(ctx context.Context) (namespace, error) {
	buf := make([]byte, 4096)
	if err := n.admin(ctx, nvmeIdentify, n.nsid, [6]uint32{}, buf, nvmeQuick); err != nil {
		return namespace{}, fmt.Errorf("identify the namespace: %w", err)
	}
	return parseNamespace(buf)
}

func (n *nvme) sanitizeLog(ctx context.Context) (sanitizeLog, error) {
	buf := make([]byte, 512)
	if err := n.log(ctx, nvmeLogSanitize, buf); err != nil {
		return sanitizeLog{}, fmt.Errorf("read the sanitize log: %w", err)
	}
	return parseSanitizeLog(buf)
}

func (d *Device) openNVMe(ctx context.Context) error {
	n := &nvme{Device: d}
	var err error
	if n.nsid, n.also, err = namespaceOf(d.transport.Root(), d.Path); err != nil {
		return err
	}
	if err := n.identify(ctx); err != nil {
		return err
	}
	if n.ns, err = n.identifyNamespace(ctx); err != nil {
		// During a sanitize, or after a failed one, some devices reject all commands for namespaces; the rest is known.
		var st NVMeStatus
		if !errors.As(err, &st) ||
			!(st.is(nvmeSanitizeInProgress) || st.is(nvmeSanitizeFailed) || st.is(nvmeFormatInProgress)) {
			return err
		}
	}
	d.Model, d.Serial, d.Firmware = n.ctrl.model, n.ctrl.serial, n.ctrl.firmware
	d.Discard = Discard{Supported: true, Zeros: n.ns.readsZeros}
	d.health, d.running = n.readHealth, n.findRunning
	return n.listMethods(ctx)
}

// namespaceOf reads from sysfs the number of a block device's namespace, and the other namespaces of the same device.
func namespaceOf(root, device string) (nsid uint32, also []string, err error) {
	name := filepath.Base(device)
	real, err := filepath.EvalSymlinks(filepath.Join(root, "sys/block", name))
	if err != nil {
		return 0, nil, err
	}
	b, err := os.ReadFile(filepath.Join(real, "nsid"))
	if err != nil {
		return 0, nil, fmt.Errorf("read which namespace %s is: %w", name, err)
	}
	id, err := strconv.ParseUint(strings.TrimSpace(string(b)), 0, 32)
	if err != nil {
		return 0, nil, fmt.Errorf("read which namespace %s is: %w", name, err)
	}
	// With multipath all namespaces of a subsystem are in its directory, otherwise in their controller's.
	others, _ := filepath.Glob(filepath.Join(filepath.Dir(real), "nvme*n*"))
	for _, o := range others {
		if base := filepath.Base(o); base != name && isBlock(o) {
			also = append(also, "/dev/"+base)
		}
	}
	return uint32(id), also, nil
}

func isBlock(dir string) bool {
	hidden, _ := os.ReadFile(filepath.Join(dir, "hidden"))
	_, err := os.Stat(filepath.Join(dir, "size"))
	return err == nil && strings.TrimSpace(string(hidden)) != "1"
}

func (n *nvme) listMethods(ctx context.Context) error {
	var log sanitizeLog
	if n.ctrl.sanitize != [8]bool{} {
		var err error
		if log, err = n.sanitizeLog(ctx); err != nil {
			return err
		}
	}
	add := func(action uint8) {
		if n.ctrl.sanitize[action] {
			n.methods = append(n.methods, n.sanitizeMethod(action, log.estimates[action]))
		}
	}
	// A crypto erase takes seconds, a block erase minutes, an overwrite hours; a format is the controller's promise for
	// one namespace.
	add(sanitizeCrypto)
	add(sanitizeBlock)
	if n.ctrl.format {
		if n.ctrl.cryptoFormat {
			n.methods = append(n.methods, n.formatMethod("nvme_format_crypto", 2, true))
		}
		n.methods = append(n.methods, n.formatMethod("nvme_format_user_data", 1, true))
	}
	add(sanitizeOverwrite)
	if err := n.addOpal(ctx); err != nil {
		return err
	}
	n.sortMethods()
	return nil
}

var sanitizeNames = map[uint8]string{
	sanitizeCrypto: "nvme_sanitize_crypto", sanitizeBlock: "nvme_sanitize_block",
	sanitizeOverwrite: "nvme_sanitize_overwrite",
}

func (n *nvme) sanitizeMethod(action uint8, estimate time.Duration) Method {
	return Method{
		Name: sanitizeNames[action], Level: Purge, Also: n.also, Estimate: estimate, Resumes: true,
		// A block erase leaves the medium's erased value, which need not be uniform; an overwrite leaves its pattern.
		LeavesNoise: action != sanitizeOverwrite,
		start: func(ctx context.Context) error {
			cdw10 := uint32(action)
			if action == sanitizeOverwrite {
				cdw10 |= 1 << 4 // one pass, of the zeros in double word 11
			}
			return n.admin(ctx, nvmeSanitize, 0, [6]uint32{cdw10}, nil, nvmeQuick)
		},
		progress: func(ctx context.Context) (Status, error) {
			log, err := n.sanitizeLog(ctx)
			if err != nil {
				return Status{}, err
			}
			switch log.state {
			case sanitizeBusy:
				return Status{Percent: log.percent}, nil
			case sanitizeDone, sanitizeDoneAll:
				return Status{Percent: 100, Done: true}, nil
			case sanitizeFailed:
				return Status{},
					step.Fail("clean again: a device whose sanitize failed accepts nothing but another; if it fails again, replace the disk",
						fmt.Errorf("%w: sanitize status %d", ErrFailed, log.state))
			}
			return Status{}, step.Failf("clean again; if it happens again, the disk's firmware is at fault",
				"%w: it says that it never was sanitized", ErrFailed)
		},
	}
}

func (n *nvme) formatMethod(name string, ses uint32, noise bool) Method {
	var call background
	m := Method{Name: name, Level: Purge, LeavesNoise: noise}
	target := n.nsid
	if n.ctrl.eraseAll {
		m.Also = n.also
		if !n.ctrl.noBroadcast && len(n.also) > 0 {
			target = nvmeAllNamespaces
		}
	}
	m.start = func(ctx context.Context) error {
		ns, err := n.identifyNamespace(ctx)
		if err != nil {
			return err
		}
		// The namespace keeps its format: block size, metadata, protection.
		cdw10 := uint32(ns.format&0xf) | uint32(ns.protection)<<5 | ses<<9 | uint32(ns.format>>4)<<12
		if ns.metaAtEnd {
			cdw10 |= 1 << 4
		}
		if ns.piFirst {
			cdw10 |= 1 << 8
		}
		return call.start(ctx, func(ctx context.Context) error {
			return n.admin(ctx, nvmeFormat, target, [6]uint32{cdw10}, nil, formatLimit)
		})
	}
	m.progress = func(ctx context.Context) (Status, error) {
		done, err := call.ended()
		if err != nil {
			return Status{},
				step.Fail("clean again; if it happens again, replace the disk", fmt.Errorf("%w: %w", ErrFailed, err))
		}
		if done {
			return Status{Percent: 100, Done: true}, nil
		}
		ns, err := n.identifyNamespace(ctx)
		if err != nil || ns.formatLeft < 0 {
			return Status{Percent: -1}, nil // the command still runs; its end has the result
		}
		return Status{Percent: 100 - ns.formatLeft}, nil
	}
	return m
}

// findRunning detects a sanitize by the log page, a format by the namespace's format progress indicator.
func (n *nvme) findRunning(ctx context.Context) (Method, bool, error) {
	if n.ctrl.sanitize != [8]bool{} {
		log, err := n.sanitizeLog(ctx)
		if err != nil {
			return Method{}, false, err
		}
		if log.state == sanitizeBusy {
			return n.sanitizeMethod(log.action, log.estimates[log.action]), true, nil
		}
	}
	ns, err := n.identifyNamespace(ctx)
	var st NVMeStatus
	if errors.As(err, &st) && st.is(nvmeSanitizeFailed) {
		return Method{}, false, nil // nothing runs, and a new sanitize is needed
	}
	if err != nil || ns.formatLeft <= 0 {
		return Method{}, false, err
	}
	return Method{Name: "nvme_format", Level: Clear, LeavesNoise: true, // its kind is unknown
		progress: func(ctx context.Context) (Status, error) {
			ns, err := n.identifyNamespace(ctx)
			if err != nil {
				return Status{}, err
			}
			return Status{Percent: 100 - max(ns.formatLeft, 0), Done: ns.formatLeft <= 0}, nil
		}}, true, nil
}

// background is a command that returns only at its end, run in a goroutine. It can't be cancelled.
type background struct {
	mu   sync.Mutex
	done chan error // nil: nothing was started
	over bool
	err  error
}

func (b *background) start(ctx context.Context, send func(context.Context) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != nil && !b.over {
		return errors.New("it runs already")
	}
	done := make(chan error, 1)
	b.done, b.over, b.err = done, false, nil
	go func() { done <- send(context.WithoutCancel(ctx)) }()
	return nil
}

func (b *background) ended() (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done == nil {
		return false, errors.New("it was not started")
	}
	select {
	case b.err = <-b.done: // once
		b.over = true
	default:
	}
	return b.over, b.err
}

// text decodes a device's padded ASCII.
func text(b []byte) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7e {
			return ' '
		}
		return r
	}, string(b)))
}

// readHealth reads the SMART / health information log (figure 202).
func (n *nvme) readHealth(ctx context.Context) (Health, error) {
	buf := make([]byte, 512)
	if err := n.log(ctx, nvmeLogSMART, buf); err != nil {
		return Health{}, fmt.Errorf("read the health log: %w", err)
	}
	return parseNVMeHealth(buf)
}

func parseNVMeHealth(b []byte) (Health, error) {
	if len(b) < 512 {
		return Health{}, fmt.Errorf("the health log has %d bytes", len(b))
	}
	h := Health{Status: Passed}
	for bit, what := range []string{"available spare is below its threshold", "the temperature is out of its limits",
		"the medium has become unreliable", "the medium is read-only", "the backup of volatile memory has failed",
		"the persistent memory has become read-only or unreliable"} {
		if b[0]>>bit&1 == 1 {
			h.Status, h.Warnings = Failing, append(h.Warnings, what)
		}
	}
	le := binary.LittleEndian
	if kelvin := le.Uint16(b[1:]); kelvin != 0 {
		h.TemperatureCelsius = new(int(kelvin) - 273)
	}
	h.AvailableSpare, h.PercentageUsed = new(int(b[3])), new(int(b[5]))
	h.PowerOnHours, h.UnsafeShutdowns, h.MediaErrors = new(wide(b[128:])), new(wide(b[144:])), new(wide(b[160:]))
	return h, nil
}

// wide returns a 128-bit number, truncated to 64 bits if it overflows.
func wide(b []byte) uint64 {
	if binary.LittleEndian.Uint64(b[8:]) != 0 {
		return 1<<64 - 1
	}
	return binary.LittleEndian.Uint64(b)
}
