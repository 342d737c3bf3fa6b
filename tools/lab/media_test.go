package lab_test

import (
	"bytes"
	"encoding/binary"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/images/fs/fat"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/vmedia"
	"github.com/ingot-metal/ingot/tools/lab/site"
)

// tinyProgram is a program for UEFI that does as tinyGuest begins, and halts.
func tinyProgram(t *testing.T, place string) []byte {
	t.Helper()
	code := append([]byte{
		0x48, 0x8d, 0x35, 16, 0, 0, 0, // lea rsi, [rip+16]
		0xac,       // lodsb
		0x84, 0xc0, // test al, al
		0x74, 8, // jz 20
		0xba, 0xf8, 3, 0, 0, // mov edx, 0x3f8
		0xee,       // out dx, al
		0xeb, 0xf3, // jmp 7
		0xf4,       // hlt
		0xeb, 0xfd, // jmp 20
	}, "HELLO from the "+place+"\r\n\x00"...)
	var out bytes.Buffer
	put := func(v ...any) {
		for _, x := range v {
			if err := binary.Write(&out, binary.LittleEndian, x); err != nil {
				t.Fatal(err)
			}
		}
	}
	pad := func(n int) { out.Write(make([]byte, n-out.Len())) }
	put([]byte("MZ"))
	pad(0x3c)
	put(uint32(0x40), []byte("PE\x00\x00"))
	const optional = 112 + 16*8
	put(uint16(0x8664), uint16(1), [3]uint32{}, uint16(optional), uint16(0x22)) // x86-64, one section
	begin := out.Len()
	put(uint16(0x20b), [2]byte{}, uint32(512), uint32(0), uint32(0), uint32(0x1000), uint32(0x1000), // entry, code
		uint64(0x400000), uint32(0x1000), uint32(512), [4]uint32{}, // base, alignment in memory and file, versions
		uint32(0x2000), uint32(512), uint32(0), uint16(10), uint16(0), // sizes of image and headers; for EFI
		[4]uint64{}, uint32(0), uint32(16))
	pad(begin + optional)
	put([]byte(".text\x00\x00\x00"), uint32(len(code)), uint32(0x1000), uint32(512), uint32(512), [3]uint32{},
		uint32(0x60000020))
	pad(512)
	put(code)
	pad(1024)
	return out.Bytes()
}

// tinyISO is a CD that a BIOS and UEFI start (El Torito), with as little as they need.
func tinyISO(t *testing.T) []byte {
	t.Helper()
	esp, err := fat.Make([]fat.File{{Path: "EFI/BOOT/BOOTX64.EFI", Data: tinyProgram(t, "disc by UEFI")}},
		fat.Options{Sector: 512, Time: time.Unix(1e9, 0)})
	if err != nil {
		t.Fatal(err)
	}
	const sector = 2048
	efi := esp.Bytes()
	iso := make([]byte, 21*sector+len(efi))
	copy(iso[16*sector:], "\x01CD001\x01")
	copy(iso[17*sector:], "\x00CD001\x01EL TORITO SPECIFICATION")
	iso[17*sector+0x47] = 19
	copy(iso[18*sector:], "\xffCD001\x01")
	catalog := iso[19*sector:]
	copy(catalog, "\x01")
	copy(catalog[28:], "\xaa\x55\x55\xaa") // its words' sum is 0
	entry := func(at, sectors, block int) {
		catalog[at] = 0x88
		binary.LittleEndian.PutUint16(catalog[at+6:], uint16(sectors))
		binary.LittleEndian.PutUint32(catalog[at+8:], uint32(block))
	}
	entry(32, 1, 20)
	copy(catalog[64:], "\x91\xef\x01")
	entry(96, len(efi)/512, 21)
	copy(iso[20*sector:], tinyGuest("disc"))
	copy(iso[21*sector:], efi)
	return append(iso, make([]byte, 1<<20)...) // beyond what firmware reads
}

// An image that is inserted over Redfish boots the machine once, by a BIOS and by UEFI, where nothing boots from the
// network. What it does not read does not leave the server.
func TestVirtualMedia(t *testing.T) {
	kit.NeedFiles(t, "ovmf", "/usr/share/OVMF/OVMF_CODE_4M.fd")
	l := up(t, func(o *lab.Options) {
		o.BMC, o.Site.Netboot, o.Nodes[0].MemoryMiB = lab.Redfish, site.Off, 160
	})
	m := l.Nodes()[0]
	ln, err := l.Listen("tcp4", l.Host.String()+":8080")
	if err != nil {
		t.Fatal(err)
	}
	iso := tinyISO(t)
	files := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "tiny.iso", time.Unix(1e9, 0), bytes.NewReader(iso))
	})}
	go files.Serve(ln)
	defer files.Close()
	const system = "/redfish/v1/Systems/1"
	const drive = system + "/VirtualMedia/CD"
	ask, ctx := redfishOf(t, l, m), limit(t)
	says := func(from int64, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if err := m.WaitConsole(ctx, from, text); err != nil {
				t.Fatal(err)
			}
		}
	}
	reset := func(kind string) (from int64) {
		t.Helper()
		from = m.ConsoleSize()
		ask(204, "POST", system+"/Actions/ComputerSystem.Reset", `{"ResetType":"`+kind+`"}`)
		return from
	}
	insert := func() {
		t.Helper()
		ask(204, "POST", drive+"/Actions/VirtualMedia.InsertMedia", `{"Image":"http://`+ln.Addr().String()+`/tiny.iso"}`)
	}
	once := func(mode string) {
		t.Helper()
		ask(204, "PATCH", system, `{"Boot":{"BootSourceOverrideTarget":"Cd","BootSourceOverrideEnabled":"Once",`+
			`"BootSourceOverrideMode":"`+mode+`"}}`)
	}

	insert()
	once("Legacy")
	says(reset("On"), "firmware bios, boot cdrom", "HELLO from the disc")
	if s := m.Redfish().Image("CD").Stats(); s.Fetched == 0 || s.Fetched > int64(len(iso))/2 {
		t.Errorf("of %d bytes the controller read %+v", len(iso), s)
	}
	says(reset("ForceRestart"), "boot default", "HELLO from the disk")

	t.Log("the medium is changed while the machine runs, and there at its next start")
	ask(204, "POST", drive+"/Actions/VirtualMedia.EjectMedia", "")
	insert()
	once("UEFI")
	from := reset("ForceRestart")
	says(from, "firmware uefi, boot cdrom", "HELLO from the disc by UEFI")

	t.Log("a drive without a medium is followed by the disk")
	ask(204, "POST", drive+"/Actions/VirtualMedia.EjectMedia", "")
	once("Legacy")
	from = reset("ForceRestart")
	says(from, "boot cdrom", "HELLO from the disk")
	console, err := os.ReadFile(m.ConsoleLog)
	if err != nil || strings.Contains(string(console), "PXE") {
		t.Errorf("%v; a machine without network boot says %s", err, console)
	}
}

// Each of ten drives of a controller is one of the machine's.
func TestManyDrives(t *testing.T) {
	l := up(t, func(o *lab.Options) { o.BMC, o.Personality = lab.Redfish, "lenovo-xcc" })
	m := l.Nodes()[0]
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	if err := m.WaitConsole(limit(t), 0, "HELLO from the disk"); err != nil {
		t.Fatal(err)
	}
	medium := bytes.NewReader(tinyISO(t))
	for drive := range vmedia.Drives("lenovo-xcc") {
		if err := m.SetMedium(drive, medium); err != nil {
			t.Errorf("fill drive %d: %v", drive, err)
		}
	}
	if err := m.SetMedium(vmedia.Drives("lenovo-xcc"), medium); err == nil {
		t.Error("a drive that the machine does not have is filled")
	}
}
