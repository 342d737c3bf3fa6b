package boot

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/ingot-metal/ingot/agent/disk"
)

// vars is the folder of the firmware's variables (efivarfs): one file each, four bytes of attributes, then the value.
type vars struct {
	dir          string
	setImmutable func(file string, on bool) error
}

const (
	globalVariable = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
	// attributes of boot variables: kept, and visible before and after the firmware hands over
	bootAttributes = 0x7
	loadActive     = 0x1
)

var bootName = regexp.MustCompile(`^Boot([0-9A-F]{4})-` + globalVariable + `$`)

func (v vars) file(name string) string { return filepath.Join(v.dir, name+"-"+globalVariable) }

// read gives a variable's value; nil when there is none.
func (v vars) read(name string) ([]byte, error) {
	b, err := os.ReadFile(v.file(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the firmware variable %s: %w", name, err)
	}
	if len(b) < 4 {
		return nil, fmt.Errorf("read the firmware variable %s: it has no attributes", name)
	}
	return b[4:], nil
}

// write sets a variable and reads it back: some firmware says yes and keeps the old value.
func (v vars) write(name string, value []byte) error {
	file := v.file(name)
	if err := v.mutable(file); err != nil {
		return fmt.Errorf("write the firmware variable %s: %w", name, err)
	}
	data := append(binary.LittleEndian.AppendUint32(nil, bootAttributes), value...)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("write the firmware variable %s: %w", name, err)
	}
	// One write is one SetVariable; efivarfs takes the whole value from it, also when it is shorter than the old one. A
	// plain folder in its place (tests) needs the rest cut off, which efivarfs does not know.
	_, err = f.Write(data)
	if err == nil {
		_ = f.Truncate(int64(len(data)))
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write the firmware variable %s: %w", name, err)
	}
	got, err := v.read(name)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, value) {
		return fmt.Errorf("the firmware did not keep the variable %s: it reads back as %d other bytes", name, len(got))
	}
	return nil
}

// remove deletes a variable.
func (v vars) remove(name string) error {
	file := v.file(name)
	if err := v.mutable(file); err != nil {
		return fmt.Errorf("delete the firmware variable %s: %w", name, err)
	}
	if err := os.Remove(file); err != nil {
		return fmt.Errorf("delete the firmware variable %s: %w", name, err)
	}
	return nil
}

// mutable takes off the flag with which efivarfs guards variables.
func (v vars) mutable(file string) error {
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return v.setImmutable(file, false)
}

// entries gives the numbers and values of all boot entries.
func (v vars) entries() (map[uint16][]byte, error) {
	list, err := os.ReadDir(v.dir)
	if err != nil {
		return nil, fmt.Errorf("list the firmware's variables: %w", err)
	}
	out := map[uint16][]byte{}
	for _, e := range list {
		m := bootName.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		n, err := strconv.ParseUint(m[1], 16, 16)
		if err != nil {
			continue
		}
		b, err := v.read("Boot" + m[1])
		if err != nil {
			return nil, err
		}
		out[uint16(n)] = b
	}
	return out, nil
}

func entryName(n uint16) string { return fmt.Sprintf("Boot%04X", n) }

// install makes a boot entry that comes first, in place of earlier ones of the same label, and gives its number.
func (v vars) install(label string, option []byte) (uint16, error) {
	all, err := v.entries()
	if err != nil {
		return 0, err
	}
	rawOrder, err := v.read("BootOrder")
	if err != nil {
		return 0, err
	}
	var order []uint16
	for ; len(rawOrder) >= 2; rawOrder = rawOrder[2:] {
		order = append(order, binary.LittleEndian.Uint16(rawOrder))
	}
	// Old ones first: a full NVRAM has room again then.
	for n, b := range all {
		// Ironic removes by label too. Another label for the very same file is a duplicate as well.
		if description(b) != label && !sameTarget(b, option) {
			continue
		}
		if err := v.remove(entryName(n)); err != nil {
			return 0, err
		}
		delete(all, n)
		order = slices.DeleteFunc(order, func(o uint16) bool { return o == n })
	}
	// A number that BootOrder still names without a variable behind it is not free: firmware may hide entries of its
	// own.
	n := uint16(0)
	for ; all[n] != nil || slices.Contains(order, n); n++ {
		if n == 0xffff {
			return 0, errors.New("the firmware has no free boot entry")
		}
	}
	if err := v.write(entryName(n), option); err != nil {
		return 0, err
	}
	newOrder := binary.LittleEndian.AppendUint16(nil, n)
	for _, o := range order {
		newOrder = binary.LittleEndian.AppendUint16(newOrder, o)
	}
	if err := v.write("BootOrder", newOrder); err != nil {
		return 0, err
	}
	return n, nil
}

// sameTarget tells whether two load options start the same file of the same partition.
func sameTarget(a, b []byte) bool {
	pa, pb := devicePath(a), devicePath(b)
	return len(pa) > 0 && bytes.Equal(pa, pb)
}

// devicePath is the device path of a load option; nil when it is none.
func devicePath(option []byte) []byte {
	if len(option) < 6 {
		return nil
	}
	n := int(binary.LittleEndian.Uint16(option[4:]))
	for b := option[6:]; len(b) >= 2; b = b[2:] {
		if b[0] == 0 && b[1] == 0 {
			if b = b[2:]; len(b) < n {
				return nil
			}
			return b[:n]
		}
	}
	return nil
}

// description is the label of a load option; empty when it is none.
func description(option []byte) string {
	if len(option) < 6 {
		return ""
	}
	var u []uint16
	for b := option[6:]; len(b) >= 2; b = b[2:] {
		c := binary.LittleEndian.Uint16(b)
		if c == 0 {
			return string(utf16.Decode(u))
		}
		u = append(u, c)
	}
	return ""
}

// loadOption makes an EFI_LOAD_OPTION (UEFI 2.10, section 3.1.3) that starts a file in a partition of a GPT, or of an
// MBR with a signature.
func loadOption(label, path string, p disk.Partition, signature uint32) ([]byte, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	hd, err := hardDrive(p, signature)
	if err != nil {
		return nil, err
	}
	devicePath := append(hd, node(4, 4, utf16z(path))...)
	devicePath = append(devicePath, 0x7f, 0xff, 4, 0)
	out := binary.LittleEndian.AppendUint32(nil, loadActive)
	out = binary.LittleEndian.AppendUint16(out, uint16(len(devicePath)))
	out = append(out, utf16z(label)...)
	return append(out, devicePath...), nil
}

// node is one device path node: type, subtype, length with header, data. UEFI 2.10, section 10.3.
func node(kind, sub byte, data []byte) []byte {
	return append([]byte{kind, sub, byte(4 + len(data)), byte((4 + len(data)) >> 8)}, data...)
}

// hardDrive is the node of a partition: section 10.3.5.1.
func hardDrive(p disk.Partition, signature uint32) ([]byte, error) {
	id, kind := make([]byte, 16), []byte{1, 1} // MBR; the signature is the disk's, four bytes long
	if p.GUID != "" {
		var err error
		if id, err = mixedGUID(p.GUID); err != nil {
			return nil, err
		}
		kind = []byte{2, 2} // GPT; it is a GUID
	} else if binary.LittleEndian.PutUint32(id, signature); signature == 0 {
		return nil, errors.New("the image's MBR has no disk signature by which a boot entry could name it")
	}
	le := binary.LittleEndian
	b := le.AppendUint32(nil, uint32(p.Number))
	b = le.AppendUint64(b, p.StartLBA)
	b = le.AppendUint64(b, p.Sectors)
	b = append(b, id...)
	return node(4, 1, append(b, kind...)), nil
}

// mixedGUID gives a GUID's sixteen bytes as EFI keeps them: three little-endian fields, then bytes in order.
func mixedGUID(s string) ([]byte, error) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != 16 {
		return nil, fmt.Errorf("the partition's GUID is not one: %q", s)
	}
	slices.Reverse(b[0:4])
	slices.Reverse(b[4:6])
	slices.Reverse(b[6:8])
	return b, nil
}

func utf16z(s string) []byte {
	var b []byte
	for _, u := range append(utf16.Encode([]rune(s)), 0) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return b
}
