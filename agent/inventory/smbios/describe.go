package smbios

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Fields are the values of one structure, under dmidecode's names. Values are strings, numbers or lists of strings.
type Fields map[string]any

// Description holds the fields of the tables. The first three are ironic-python-agent's dmi.
type Description struct {
	BIOS       Fields   `json:"bios"`
	CPU        []Fields `json:"cpu"`
	Memory     Fields   `json:"memory"` // with "devices", a list of Fields
	System     Fields   `json:"system"`
	Baseboard  []Fields `json:"baseboard"`
	Chassis    []Fields `json:"chassis"`
	Slots      []Fields `json:"slots"`
	Onboard    []Fields `json:"onboard"`
	OEMStrings []string `json:"oem_strings"`
	IPMI       Fields   `json:"ipmi"`
}

// put sets a field unless its value is empty.
func (f Fields) put(name, value string) {
	if value != "" {
		f[name] = value
	}
}

// unit sets a number with its unit, unless it is zero.
func (f Fields) unit(name string, n int, unit string) {
	if n != 0 {
		f[name] = fmt.Sprintf("%d %s", n, unit)
	}
}

// name returns the specification's name of a number.
func name(names []string, n int) string {
	if n < 0 || n >= len(names) {
		return ""
	}
	return names[n]
}

var (
	chassisTypes = []string{"", "Other", "Unknown", "Desktop", "Low Profile Desktop", "Pizza Box", "Mini Tower",
		"Tower", "Portable", "Laptop", "Notebook", "Hand Held", "Docking Station", "All In One", "Sub Notebook",
		"Space-saving", "Lunch Box", "Main Server Chassis", "Expansion Chassis", "Sub Chassis", "Bus Expansion Chassis",
		"Peripheral Chassis", "RAID Chassis", "Rack Mount Chassis", "Sealed-case PC", "Multi-system", "CompactPCI",
		"AdvancedTCA", "Blade", "Blade Enclosing", "Tablet", "Convertible", "Detachable", "IoT Gateway", "Embedded PC",
		"Mini PC", "Stick PC"}
	cpuTypes = []string{"", "Other", "Unknown", "Central Processor", "Math Processor", "DSP Processor",
		"Video Processor"}
	cpuStates   = []string{"Unknown", "Enabled", "Disabled By User", "Disabled By BIOS", "Idle", "", "", "Other"}
	arrayPlaces = []string{"", "Other", "Unknown", "System Board Or Motherboard", "ISA Add-on Card", "EISA Add-on Card",
		"PCI Add-on Card", "MCA Add-on Card", "PCMCIA Add-on Card", "Proprietary Add-on Card", "NuBus"}
	arrayUses = []string{"", "Other", "Unknown", "System Memory", "Video Memory", "Flash Memory", "Non-volatile RAM",
		"Cache Memory"}
	arrayECC = []string{"", "Other", "Unknown", "None", "Parity", "Single-bit ECC", "Multi-bit ECC", "CRC"}
	memForms = []string{"", "Other", "Unknown", "SIMM", "SIP", "Chip", "DIP", "ZIP", "Proprietary Card", "DIMM",
		"TSOP", "Row Of Chips", "RIMM", "SODIMM", "SRIMM", "FB-DIMM", "Die", "CAMM"}
	memTypes = []string{"", "Other", "Unknown", "DRAM", "EDRAM", "VRAM", "SRAM", "RAM", "ROM", "Flash", "EEPROM",
		"FEPROM", "EPROM", "CDRAM", "3DRAM", "SDRAM", "SGRAM", "RDRAM", "DDR", "DDR2", "DDR2 FB-DIMM", "", "", "",
		"DDR3", "FBD2", "DDR4", "LPDDR", "LPDDR2", "LPDDR3", "LPDDR4", "Logical non-volatile device", "HBM", "HBM2",
		"DDR5", "LPDDR5", "HBM3"}
	slotUses     = []string{"", "Other", "Unknown", "Available", "In Use", "Unavailable"}
	onboardTypes = []string{"", "Other", "Unknown", "Video", "SCSI Controller", "Ethernet", "Token Ring", "Sound",
		"PATA Controller", "SATA Controller", "SAS Controller", "Wireless LAN", "Bluetooth", "WWAN", "eMMC",
		"NVMe Controller", "UFS Controller"}
	ipmiTypes = []string{"Unknown", "KCS (Keyboard Control Style)", "SMIC (Server Management Interface Chip)",
		"BT (Block Transfer)", "SSIF (SMBus System Interface)"}
)

// Describe extracts the description from the structures.
func Describe(all []Structure) Description {
	d := Description{BIOS: Fields{}, CPU: []Fields{}, Memory: Fields{}, System: Fields{}, Baseboard: []Fields{},
		Chassis: []Fields{}, Slots: []Fields{}, Onboard: []Fields{}, OEMStrings: []string{}, IPMI: Fields{}}
	devices, places := []Fields{}, 0
	for _, s := range all {
		switch s.Type {
		case typeBIOS:
			d.BIOS = bios(s)
		case typeSystem:
			d.System = system(s)
		case typeBaseboard:
			d.Baseboard = append(d.Baseboard, board(s))
		case typeChassis:
			d.Chassis = append(d.Chassis, chassis(s))
		case typeProcessor:
			d.CPU = append(d.CPU, processor(s))
		case typeMemoryArray:
			if len(d.Memory) == 0 {
				d.Memory = array(s)
			}
			places += s.u16(0x0d)
		case typeMemoryDevice:
			devices = append(devices, memory(s))
		case typeSlot:
			d.Slots = append(d.Slots, slot(s))
		case typeOnboard:
			d.Onboard = append(d.Onboard, onboard(s))
		case typeOEMStrings:
			for i := range s.Strings {
				d.OEMStrings = append(d.OEMStrings, clean(s.Strings[i]))
			}
		case typeIPMI:
			d.IPMI.put("Interface Type", name(ipmiTypes, s.u8(0x04)))
			if v := s.u8(0x05); v != 0 {
				d.IPMI["Specification Version"] = fmt.Sprintf("%d.%d", v>>4, v&15)
			}
		}
	}
	if places > 0 {
		d.Memory["Number Of Devices"] = places
	}
	d.Memory["devices"] = devices
	return d
}

// fields are the texts of a structure, by the offsets of their numbers.
func (s Structure) fields(texts map[string]int) Fields {
	f := Fields{}
	for name, off := range texts {
		f.put(name, s.text(off))
	}
	return f
}

func bios(s Structure) Fields {
	f := s.fields(map[string]int{"Vendor": 0x04, "Version": 0x05, "Release Date": 0x08})
	if len(s.Data) > 0x09 {
		switch n := s.u8(0x09); {
		case n != 0xff:
			f["ROM Size"] = kilobytes(uint64(n+1) * 64)
		case len(s.Data) >= 0x1a: // extended: 14 bits, then the unit
			kb := uint64(s.u16(0x18)&0x3fff) << 10
			if s.u16(0x18)>>14 == 1 {
				kb <<= 10
			}
			f["ROM Size"] = kilobytes(kb)
		}
	}
	for field, off := range map[string]int{"BIOS Revision": 0x14, "Firmware Revision": 0x16} {
		if off+1 < len(s.Data) && s.u8(off) != 0xff && s.u8(off+1) != 0xff {
			f[field] = fmt.Sprintf("%d.%d", s.u8(off), s.u8(off+1))
		}
	}
	return f
}

func system(s Structure) Fields {
	f := s.fields(map[string]int{"Manufacturer": 0x04, "Product Name": 0x05, "Version": 0x06, "Serial Number": 0x07,
		"SKU Number": 0x19, "Family": 0x1a})
	if len(s.Data) >= 0x18 {
		f.put("UUID", uuid(s.Data[0x08:0x18]))
	}
	return f
}

// uuid prints the first three fields in little-endian byte order, as SMBIOS defines since 2.6. All ones or zeros mean
// no UUID.
func uuid(b []byte) string {
	if len(bytes.Trim(b, "\x00")) == 0 || !slices.ContainsFunc(b, func(c byte) bool { return c != 0xff }) {
		return ""
	}
	le := binary.LittleEndian
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", le.Uint32(b), le.Uint16(b[4:]), le.Uint16(b[6:]), b[8:10], b[10:16])
}

func board(s Structure) Fields {
	return s.fields(map[string]int{"Manufacturer": 0x04, "Product Name": 0x05, "Version": 0x06, "Serial Number": 0x07,
		"Asset Tag": 0x08, "Location In Chassis": 0x0a})
}

func chassis(s Structure) Fields {
	f := s.fields(map[string]int{"Manufacturer": 0x04, "Version": 0x06, "Serial Number": 0x07, "Asset Tag": 0x08,
		// After the contained elements, whose number and length come before them.
		"SKU Number": 0x15 + s.u8(0x13)*s.u8(0x14)})
	f.put("Type", name(chassisTypes, s.u8(0x05)&0x7f))
	f.unit("Height", s.u8(0x11), "U")
	return f
}

func processor(s Structure) Fields {
	f := s.fields(map[string]int{"Socket Designation": 0x04, "Manufacturer": 0x07, "Version": 0x10,
		"Serial Number": 0x20, "Asset Tag": 0x21, "Part Number": 0x22})
	f.put("Type", name(cpuTypes, s.u8(0x05)))
	if len(s.Data) >= 0x10 {
		f["ID"] = strings.ToUpper(strings.TrimSpace(fmt.Sprintf("% x", s.Data[0x08:0x10])))
	}
	f.unit("External Clock", s.u16(0x12), "MHz")
	f.unit("Max Speed", s.u16(0x14), "MHz")
	f.unit("Current Speed", s.u16(0x16), "MHz")
	if st := s.u8(0x18); len(s.Data) > 0x18 {
		f["Status"] = "Unpopulated"
		if st&0x40 != 0 {
			f["Status"] = "Populated, " + name(cpuStates, st&7)
		}
	}
	// A byte of 255 refers to the word further back.
	for field, at := range map[string][2]int{"Core Count": {0x23, 0x2a}, "Core Enabled": {0x24, 0x2c},
		"Thread Count": {0x25, 0x2e}} {
		n := s.u8(at[0])
		if w := s.u16(at[1]); n == 0xff && w != 0 {
			n = w
		}
		if n != 0 {
			f[field] = n
		}
	}
	return f
}

func array(s Structure) Fields {
	f := Fields{}
	f.put("Location", name(arrayPlaces, s.u8(0x04)))
	f.put("Use", name(arrayUses, s.u8(0x05)))
	f.put("Error Correction Type", name(arrayECC, s.u8(0x06)))
	kb := s.u32(0x07)
	if kb == 0x80000000 {
		kb = s.u64(0x0f) >> 10
	}
	if kb != 0 {
		f["Maximum Capacity"] = kilobytes(kb)
	}
	return f
}

func memory(s Structure) Fields {
	f := s.fields(map[string]int{"Locator": 0x10, "Bank Locator": 0x11, "Manufacturer": 0x17, "Serial Number": 0x18,
		"Asset Tag": 0x19, "Part Number": 0x1a, "Firmware Version": 0x2b})
	f.unit("Total Width", bits(s.u16(0x08)), "bits")
	f.unit("Data Width", bits(s.u16(0x0a)), "bits")
	switch kb, known := s.memoryKB(); {
	case !known:
	case kb == 0:
		f["Size"] = "No Module Installed"
	default:
		f["Size"] = kilobytes(kb)
	}
	f.put("Form Factor", name(memForms, s.u8(0x0e)))
	f.put("Type", name(memTypes, s.u8(0x12)))
	f.unit("Speed", speed(s, 0x15, 0x54), "MT/s")
	if r := s.u8(0x1b) & 15; r != 0 {
		f["Rank"] = r
	}
	f.unit("Configured Memory Speed", speed(s, 0x20, 0x58), "MT/s")
	return f
}

// bits is a width; all ones mean unknown.
func bits(n int) int {
	if n == 0xffff {
		return 0
	}
	return n
}

// speed is a word, or, if that is all ones, a double word further back.
func speed(s Structure, word, double int) int {
	if n := s.u16(word); n != 0xffff {
		return n
	}
	return int(s.u32(double) &^ (1 << 31))
}

func slot(s Structure) Fields {
	f := s.fields(map[string]int{"Designation": 0x04})
	f.put("Current Usage", name(slotUses, s.u8(0x07)))
	f["ID"] = s.u16(0x09)
	place(f, s, 0x0d)
	return f
}

func onboard(s Structure) Fields {
	f := s.fields(map[string]int{"Reference Designation": 0x04})
	f.put("Type", name(onboardTypes, s.u8(0x05)&0x7f))
	f["Status"] = "Disabled"
	if s.u8(0x05)&0x80 != 0 {
		f["Status"] = "Enabled"
	}
	f["Type Instance"] = s.u8(0x06)
	place(f, s, 0x07)
	return f
}

func place(f Fields, s Structure, off int) {
	if off+4 <= len(s.Data) && s.u16(off) != 0xffff && s.u8(off+2) != 0xff {
		f["Bus Address"] = fmt.Sprintf("%04x:%02x:%02x.%x", s.u16(off), s.u8(off+2), s.u8(off+3)>>3, s.u8(off+3)&7)
	}
}

// kilobytes prints a size in the largest unit that has no remainder, as dmidecode does.
func kilobytes(kb uint64) string {
	units := []string{"kB", "MB", "GB", "TB", "PB"}
	i := 0
	for kb >= 1024 && kb%1024 == 0 && i < len(units)-1 {
		kb, i = kb>>10, i+1
	}
	return fmt.Sprintf("%d %s", kb, units[i])
}
