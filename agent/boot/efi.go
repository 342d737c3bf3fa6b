package boot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"unicode/utf16"

	"github.com/google/uuid"
	"github.com/u-root/u-root/pkg/efivarfs"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/images/gpt"
)

// vars gives access to the firmware's variables.
type vars struct{ efivarfs.EFIVar }

const (
	globalVariable = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
	// attributes of boot variables: persistent, and visible both to the firmware and to the system
	bootAttributes = efivarfs.AttributeNonVolatile | efivarfs.AttributeBootserviceAccess |
		efivarfs.AttributeRuntimeAccess
	loadActive = 0x1
)

var bootName = regexp.MustCompile(`^Boot([0-9A-F]{4})$`)

func global(name string) efivarfs.VariableDescriptor {
	return efivarfs.VariableDescriptor{Name: name, GUID: uuid.MustParse(globalVariable)}
}

// read returns a variable's value; nil if it does not exist.
func (v vars) read(name string) ([]byte, error) {
	_, b, err := v.Get(global(name))
	if errors.Is(err, efivarfs.ErrVarNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the firmware variable %s: %w", name, err)
	}
	return b, nil
}

// write sets a variable and reads it back: some firmware reports success and keeps the old value.
func (v vars) write(name string, value []byte) error {
	if err := v.Set(global(name), bootAttributes, value); err != nil {
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
	if err := v.Remove(global(name)); err != nil {
		return fmt.Errorf("delete the firmware variable %s: %w", name, err)
	}
	return nil
}

// entries returns the numbers and values of all boot entries.
func (v vars) entries() (map[uint16][]byte, error) {
	list, err := v.List()
	if err != nil {
		return nil, fmt.Errorf("list the firmware's variables: %w", err)
	}
	out := map[uint16][]byte{}
	for _, e := range list {
		m := bootName.FindStringSubmatch(e.Name)
		if m == nil || e != global(e.Name) {
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

// install creates a boot entry as the first of the boot order, replacing earlier ones of the same label, and returns
// its number.
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
	// Old entries are removed first: that makes room in a full NVRAM.
	for n, b := range all {
		// Ironic removes by label too. Another label for the same file is a duplicate as well.
		if description(b) != label && !sameTarget(b, option) {
			continue
		}
		if err := v.remove(entryName(n)); err != nil {
			return 0, err
		}
		delete(all, n)
		order = slices.DeleteFunc(order, func(o uint16) bool { return o == n })
	}
	// A number in BootOrder without a variable is not free: firmware may hide entries of its own.
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
	return n, v.write("BootOrder", newOrder)
}

// sameTarget reports whether two load options start the same file of the same partition.
func sameTarget(a, b []byte) bool {
	pa, pb := devicePath(a), devicePath(b)
	return len(pa) > 0 && bytes.Equal(pa, pb)
}

// devicePath returns the device path of a load option; nil if malformed.
func devicePath(option []byte) []byte {
	if len(option) < 6 {
		return nil
	}
	n := int(binary.LittleEndian.Uint16(option[4:]))
	_, path, ok := cutUTF16(option[6:])
	if !ok || len(path) < n {
		return nil
	}
	return path[:n]
}

// description returns the label of a load option; empty if malformed.
func description(option []byte) string {
	if len(option) < 6 {
		return ""
	}
	s, _, ok := cutUTF16(option[6:])
	if !ok {
		return ""
	}
	return s
}

// cutUTF16 returns the text before a zero and what follows the zero; without one, all of it.
func cutUTF16(b []byte) (text string, behind []byte, ok bool) {
	var u []uint16
	for ; len(b) >= 2 && !ok; b = b[2:] {
		c := binary.LittleEndian.Uint16(b)
		if ok = c == 0; !ok {
			u = append(u, c)
		}
	}
	return string(utf16.Decode(u)), b, ok
}

// loadOption returns an EFI_LOAD_OPTION (UEFI 2.10, section 3.1.3) that starts a file in a partition of a GPT, or of an
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

// node returns a device path node: type, subtype, length with header, data. UEFI 2.10, section 10.3.
func node(kind, sub byte, data []byte) []byte {
	return append([]byte{kind, sub, byte(4 + len(data)), byte((4 + len(data)) >> 8)}, data...)
}

// hardDrive returns the node of a partition: section 10.3.5.1.
func hardDrive(p disk.Partition, signature uint32) ([]byte, error) {
	id, kind := make([]byte, 16), []byte{1, 1} // MBR; the signature is the disk's, four bytes long
	if p.GUID != "" {
		g, err := gpt.ParseGUID(p.GUID)
		if err != nil {
			return nil, err
		}
		id, kind = g[:], []byte{2, 2} // GPT; it is a GUID
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

func utf16z(s string) []byte { return utf16Bytes(s + "\x00") }

func utf16Bytes(s string) (b []byte) {
	for _, u := range utf16.Encode([]rune(s)) {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return b
}
