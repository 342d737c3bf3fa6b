package smbios

import (
	"encoding/binary"
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// structure puts one together: size bytes of formatted part with some bytes set, and strings.
func structure(kind, size byte, set map[int]any, texts ...string) []byte {
	b := make([]byte, size)
	b[0], b[1] = kind, size
	for at, v := range set {
		switch v := v.(type) {
		case int:
			b[at] = byte(v)
		case uint16:
			binary.LittleEndian.PutUint16(b[at:], v)
		case uint32:
			binary.LittleEndian.PutUint32(b[at:], v)
		case uint64:
			binary.LittleEndian.PutUint64(b[at:], v)
		case string:
			copy(b[at:], v)
		}
	}
	for _, t := range texts {
		b = append(append(b, t...), 0)
	}
	if len(texts) == 0 {
		b = append(b, 0)
	}
	return append(b, 0)
}

// server is a table like those of two-socket servers, with what vendors do to such tables.
func server() []byte {
	return slices.Concat(
		structure(0, 0x1a,
			map[int]any{4: 1, 5: 2, 8: 3, 9: 0xff, 0x14: 2, 0x15: 11, 0x16: 6, 0x17: 0x46, 0x18: uint16(32)},
			"Dell Inc.", "2.11.2", "04/21/2021"),
		structure(1, 0x1b,
			map[int]any{4: 1, 5: 2, 7: 3, 8: "\x44\x45\x4c\x4c\x42\x00\x10\x35\x80\x51\xb4\xc0\x4f\x4d\x37\x32",
				0x19: 4, 0x1a: 9}, "Dell Inc.", "PowerEdge R640", "  B51M72 ", "SKU=NotProvided"),
		structure(2, 0x0f, map[int]any{4: 1, 5: 2, 7: 3}, "Dell Inc.", "0H28RR", ".B51M72.\x01"),
		structure(3, 0x16, map[int]any{4: 1, 5: 0x80 | 23, 7: 2, 0x11: 1, 0x15: 3}, "Dell Inc.", "B51M72", "rack"),
		structure(4, 0x30,
			map[int]any{4: 1, 5: 3, 7: 2, 8: "\x54\x06\x05\x00\xff\xfb\xeb\xbf", 0x10: 3, 0x12: uint16(10400),
				0x14: uint16(4000), 0x16: uint16(2100), 0x18: 0x41, 0x23: 0xff, 0x24: 0xff, 0x25: 0xff,
				0x2a: uint16(320), 0x2c: uint16(320), 0x2e: uint16(640)},
			"CPU1", "Intel", "Intel(R) Xeon(R)"),
		structure(4, 0x1a, map[int]any{4: 1, 5: 3, 0x18: 0}, "CPU2"),
		structure(9, 0x11, map[int]any{4: 1, 7: 4, 9: uint16(3), 0x0d: uint16(0), 0x0f: 0x5e, 0x10: 0x00},
			"PCIe Slot 3"),
		structure(9, 0x11, map[int]any{4: 1, 7: 3, 9: uint16(4), 0x0d: uint16(0xffff), 0x0f: 0xff, 0x10: 0xff},
			"PCIe Slot 4"),
		structure(11, 5, map[int]any{4: 2}, "Dell System", "5[0000]"),
		structure(16, 0x17,
			map[int]any{4: 3, 5: 3, 6: 6, 7: uint32(0x80000000), 0x0d: uint16(24), 0x0f: uint64(3 << 40)}),
		structure(17, 0x5c,
			map[int]any{8: uint16(72), 0x0a: uint16(64), 0x0c: uint16(0x7fff), 0x0e: 9, 0x10: 1, 0x12: 26,
				0x15: uint16(2666), 0x17: 2, 0x18: 3, 0x1a: 4, 0x1b: 2, 0x1c: uint32(64 << 10), 0x20: uint16(0xffff),
				0x58: uint32(2400)}, "A1",
			"Hynix Semiconductor", "12345678", "HMA"),
		structure(17, 0x28, map[int]any{8: uint16(0xffff), 0x0a: uint16(0xffff), 0x0c: uint16(0), 0x10: 1}, "A2"),
		structure(17, 0x15, map[int]any{0x0c: uint16(0x8000 | 2048), 0x10: 1}, "ROM"),
		structure(17, 0x15, map[int]any{0x0c: uint16(0xffff), 0x10: 1}, "unknown"),
		structure(38, 0x10, map[int]any{4: 1, 5: 0x20}),
		structure(41, 0x0b, map[int]any{4: 1, 5: 0x80 | 5, 6: 1, 7: uint16(0), 9: 0x19, 0x0a: 0x01},
			"Integrated NIC 1"),
		structure(41, 0x0b, map[int]any{4: 1, 5: 3, 6: 1, 7: uint16(0), 9: 3, 0x0a: 0}, "Video"),
		structure(127, 4, nil),
		structure(17, 0x15, map[int]any{0x0c: uint16(9999)}), // after the end
	)
}

const serverSays = `{
	"bios": {"Vendor": "Dell Inc.", "Version": "2.11.2", "Release Date": "04/21/2021", "ROM Size": "32 MB", "BIOS Revision": "2.11", "Firmware Revision": "6.70"},
	"system": {"Manufacturer": "Dell Inc.", "Product Name": "PowerEdge R640", "Serial Number": "B51M72", "SKU Number": "SKU=NotProvided",
		"UUID": "4c4c4544-0042-3510-8051-b4c04f4d3732"},
	"baseboard": [{"Manufacturer": "Dell Inc.", "Product Name": "0H28RR", "Serial Number": ".B51M72."}],
	"chassis": [{"Manufacturer": "Dell Inc.", "Type": "Rack Mount Chassis", "Serial Number": "B51M72", "Height": "1 U", "SKU Number": "rack"}],
	"cpu": [{"Socket Designation": "CPU1", "Type": "Central Processor", "Manufacturer": "Intel", "ID": "54 06 05 00 FF FB EB BF", "Version": "Intel(R) Xeon(R)",
		"External Clock": "10400 MHz", "Max Speed": "4000 MHz", "Current Speed": "2100 MHz", "Status": "Populated, Enabled", "Core Count": 320, "Core Enabled": 320,
		"Thread Count": 640},
		{"Socket Designation": "CPU2", "Type": "Central Processor", "ID": "00 00 00 00 00 00 00 00", "Status": "Unpopulated"}],
	"slots": [{"Designation": "PCIe Slot 3", "Current Usage": "In Use", "ID": 3, "Bus Address": "0000:5e:00.0"},
		{"Designation": "PCIe Slot 4", "Current Usage": "Available", "ID": 4}],
	"oem_strings": ["Dell System", "5[0000]"],
	"memory": {"Location": "System Board Or Motherboard", "Use": "System Memory", "Error Correction Type": "Multi-bit ECC", "Maximum Capacity": "3 TB",
		"Number Of Devices": 24, "devices": [
		{"Total Width": "72 bits", "Data Width": "64 bits", "Size": "64 GB", "Form Factor": "DIMM", "Locator": "A1", "Type": "DDR4", "Speed": "2666 MT/s",
			"Manufacturer": "Hynix Semiconductor", "Serial Number": "12345678", "Part Number": "HMA", "Rank": 2, "Configured Memory Speed": "2400 MT/s"},
		{"Size": "No Module Installed", "Locator": "A2"}, {"Size": "2 MB", "Locator": "ROM"}, {"Locator": "unknown"}]},
	"ipmi": {"Interface Type": "KCS (Keyboard Control Style)", "Specification Version": "2.0"},
	"onboard": [{"Reference Designation": "Integrated NIC 1", "Type": "Ethernet", "Status": "Enabled", "Type Instance": 1, "Bus Address": "0000:19:00.1"},
		{"Reference Designation": "Video", "Type": "Video", "Status": "Disabled", "Type Instance": 1, "Bus Address": "0000:03:00.0"}]
}`

func TestDescribe(t *testing.T) {
	b, err := json.Marshal(Describe(Parse(server())))
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(serverSays), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Describe (-want +got):\n%s", diff)
	}
}

func TestInstalledMB(t *testing.T) {
	if got, want := InstalledMB(Parse(server())), uint64(64<<10+2); got != want {
		t.Errorf("InstalledMB = %d, want %d", got, want)
	}
}

func TestPorts(t *testing.T) {
	want := []Port{{Number: 3, Label: "PCIe Slot 3", Bus: 0x5e},
		{Onboard: true, Number: 1, Kind: 5, Label: "Integrated NIC 1", Bus: 0x19, Function: 1}}
	if diff := cmp.Diff(want, Ports(Parse(server()))); diff != "" {
		t.Errorf("Ports (-want +got):\n%s", diff)
	}
}

// TestCutOff holds that any beginning of a table gives the structures that are whole in it.
func TestCutOff(t *testing.T) {
	table := server()
	all := len(Parse(table))
	last := 0
	for n := range table {
		got := len(Parse(table[:n]))
		if got < last || got > all {
			t.Fatalf("%d bytes of %d give %d structures, fewer bytes gave %d", n, len(table), got, last)
		}
		last = got
		Describe(Parse(table[:n]))
	}
	if all != 18 {
		t.Errorf("%d structures, want 18", all)
	}
}

func FuzzDescribe(f *testing.F) {
	f.Add(server())
	f.Add([]byte{17, 4, 0, 0, 0, 0, 127, 4, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		all := Parse(b)
		InstalledMB(all)
		Ports(all)
		if _, err := json.Marshal(Describe(all)); err != nil {
			t.Error(err)
		}
	})
}
