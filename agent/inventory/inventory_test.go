package inventory

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/test/kit"
)

// plant makes the files and links that a tree file lists.
func plant(t *testing.T, root, tree string) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", tree))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unescape := func(text string) string {
		out, err := strconv.Unquote(`"` + strings.ReplaceAll(text, `"`, `\"`) + `"`)
		if err != nil {
			t.Fatalf("%s: %v: %s", tree, err, text)
		}
		return out
	}
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		line := s.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		name, to, isLink := strings.Cut(line, " -> ")
		if !isLink {
			name, to, _ = strings.Cut(line, " = ")
		}
		path := filepath.Join(root, strings.TrimSuffix(name, " ="))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if isLink {
			err = os.Symlink(to, path)
		} else {
			err = os.WriteFile(path, []byte(unescape(to)), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

var discard = slog.New(slog.DiscardHandler)

// qemu is a QEMU machine with two disks and a BMC.
func qemu(t *testing.T) *fake.Machine {
	t.Helper()
	m := fake.NewMachine(t.TempDir())
	m.Add(fake.DiskSpec{Name: "vda", Size: 8 << 30, Serial: "DISK-A"})
	m.Add(fake.DiskSpec{Name: "nvme0n1", Size: 16 << 30, Bus: "nvme", Serial: "DISK-B", Model: "QEMU NVMe Ctrl",
		WWN: "eui.0025385b21404321"})
	plant(t, m.Root(), "qemu-q35.tree")
	m.Nets = map[string][]netip.Prefix{"eth0": {
		netip.MustParsePrefix("fe80::5054:ff:feaa:1/64"), netip.MustParsePrefix("192.0.2.10/24"),
		netip.MustParsePrefix("2001:db8::10/64"),
	}}
	m.BMC = lanBMC
	return m
}

// lanBMC has one LAN channel, number 1.
func lanBMC(netFn, command byte, data []byte) ([]byte, error) {
	switch {
	case netFn == netFnApp && command == getChannelInfo && data[0] == 1:
		return []byte{0, 1, mediumLAN, 1, 0x80, 0xf2, 0x1b, 0, 0, 0}, nil
	case netFn == netFnTransport && command == getLANConfig && data[0] == 1 && data[1] == paramIP:
		return []byte{0, 0x11, 198, 51, 100, 7}, nil
	case netFn == netFnTransport && command == getLANConfig && data[1] == paramMAC:
		return []byte{0, 0x11, 0x52, 0x54, 0, 0xbb, 0, 1}, nil
	case netFn == netFnTransport && command == getLANConfig && data[1] == paramDynamicIPv6 && data[2] == 0:
		a := netip.MustParseAddr("2001:db8::b1").As16()
		return append(append([]byte{0, 0x11, 0, 1}, a[:]...), 64, 0), nil
	}
	return []byte{0xcc}, nil
}

func TestCollect(t *testing.T) {
	m := qemu(t)
	mac, _ := net.ParseMAC("52:54:00:aa:00:01")
	var result []byte
	c := &step.Call{Facts: &step.Facts{}, Report: func(step.Progress) {}, Log: discard}
	out, err := InspectStep(m, mac)(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if result, err = json.MarshalIndent(out.Result, "", "  "); err != nil {
		t.Fatal(err)
	}
	// The temporary folder must not show.
	if bytes.Contains(result, []byte(m.Root())) {
		t.Errorf("the root folder's name is in the inventory:\n%s", result)
	}
	kit.Golden(t, "qemu-q35.json", append(result, '\n'))
}

// TestNames holds that the JSON names are those of ironic-python-agent, and which there are beside them.
func TestNames(t *testing.T) {
	r, err := Collect(t.Context(), qemu(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(r.Inventory)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	names := func(v any) string {
		var out []string
		for k := range v.(map[string]any) {
			out = append(out, k)
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	for what, c := range map[string]struct {
		v    any
		want string
	}{
		"inventory": {got, "bmc_address bmc_mac bmc_v6address boot cpu disks hostname interfaces memory system_vendor"},
		"interface": {got["interfaces"].([]any)[0],
			"biosdevname client_id driver has_carrier ipv4_address ipv6_address lldp mac_address name pci_address product speed_mbps vendor"},
		"disk": {got["disks"].([]any)[0],
			"by_path hctl logical_sectors model name physical_sectors rotational serial size tran vendor wwn wwn_vendor_extension wwn_with_extension"},
		"cpu":      {got["cpu"], "architecture count cpus flags frequency model_name socket_count"},
		"memory":   {got["memory"], "physical_mb total"},
		"system":   {got["system_vendor"], "firmware manufacturer product_name serial_number"},
		"firmware": {got["system_vendor"].(map[string]any)["firmware"], "build_date vendor version"},
		"boot":     {got["boot"], "current_boot_mode firmware_bits pxe_interface secure_boot setup_mode"},
	} {
		if n := names(c.v); n != c.want {
			t.Errorf("%s has %s, want %s", what, n, c.want)
		}
	}
}

// TestArrays holds that an array of ours is a disk, in place of those it is made of, which a deployment would not touch
// either.
func TestArrays(t *testing.T) {
	m := qemu(t)
	for name, text := range map[string]string{"partition": "1", "start": "2048", "size": "8388608"} {
		for _, p := range []string{"vda/vda1", "nvme0n1/nvme0n1p1"} {
			file := filepath.Join(m.Root(), "sys/block", p, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755),
				os.WriteFile(file, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
	}
	inspect := func(hints string) *Report {
		t.Helper()
		c := &step.Call{Facts: &step.Facts{}, Report: func(step.Progress) {}, Log: discard,
			Args: json.RawMessage(`{"root_device": ` + hints + `}`)}
		out, err := InspectStep(mirrored{m}, nil)(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return out.Result.(*Report)
	}
	r := inspect(`null`)
	if len(r.SoftwareRAID) != 1 || len(r.Inventory.Disks) != 3 || len(r.Inventory.Disks[0].MemberOf) != 1 ||
		len(r.DiskHealth) != 0 {
		t.Fatalf("arrays %+v, disks %+v", r.SoftwareRAID, r.Inventory.Disks)
	}
	a := r.SoftwareRAID[0]
	if c, ok := r.RootDisk.(disk.Choice); !ok || c.Disk.Name != "/dev/md0" || c.Disk.Serial != a.UUID ||
		a.Volume != "root" || a.Level != "1" || a.Size != 4<<30 || len(a.Members) != 2 {
		t.Errorf("the root disk is %+v, the array %+v", r.RootDisk, a)
	}
	if r := inspect(`{"serial": "DISK-A"}`); r.RootDisk != nil {
		t.Errorf("a member became the root disk: %+v", r.RootDisk)
	}
}

// mirrored is a machine whose partitions are members of a mirror, as raid.create_configuration makes it.
type mirrored struct{ *fake.Machine }

func (m mirrored) ReadRaw(ctx context.Context, path string, p []byte, off int64) error {
	number := map[string]byte{"/dev/vda1": 0, "/dev/nvme0n1p1": 1}
	n, ok := number[path]
	if !ok {
		return m.Machine.ReadRaw(ctx, path, p, off)
	}
	clear(p)
	if off != 0 {
		return nil
	}
	s := p[4096:]
	le := binary.LittleEndian
	le.PutUint32(s, 0xa92b4efc)
	le.PutUint32(s[4:], 1)
	copy(s[16:], "0123456789abcdef") // the array's UUID
	copy(s[32:], "ingot:root")
	le.PutUint32(s[72:], 1) // level
	le.PutUint64(s[80:], 4<<30/512)
	le.PutUint32(s[92:], 2) // members
	le.PutUint64(s[128:], 2048)
	le.PutUint64(s[136:], 4<<30/512)
	le.PutUint64(s[144:], 8)
	le.PutUint32(s[160:], uint32(n))
	s[168] = n + 1 // the member's UUID
	le.PutUint64(s[200:], 1)
	le.PutUint32(s[220:], 2) // roles
	le.PutUint16(s[258:], 1)
	var sum uint64
	for i := 0; i < 260; i += 4 {
		sum += uint64(le.Uint32(s[i:]))
	}
	le.PutUint32(s[216:], uint32(sum)+uint32(sum>>32))
	return nil
}

func TestEmptyMachine(t *testing.T) {
	m := fake.NewMachine(t.TempDir())
	r, err := Collect(t.Context(), m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Inventory.Disks == nil || r.Inventory.Interfaces == nil || r.Inventory.BMCAddress != nil ||
		len(r.Errors) == 0 {
		t.Errorf("an empty machine gives %+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Collect(ctx, m, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a stopped inspection gives %v", err)
	}
}

func TestBMC(t *testing.T) {
	for name, c := range map[string]struct {
		bmc  func(byte, byte, []byte) ([]byte, error)
		addr string
		fail bool
	}{
		"one":     {lanBMC, "198.51.100.7", false},
		"none":    {nil, "", false},
		"mute":    {func(byte, byte, []byte) ([]byte, error) { return nil, errors.New("timeout") }, "", true},
		"refuses": {func(byte, byte, []byte) ([]byte, error) { return []byte{0xc1}, nil }, "", true},
		"empty":   {func(byte, byte, []byte) ([]byte, error) { return nil, nil }, "", true},
		"no config": {func(n, c byte, d []byte) ([]byte, error) {
			if c == getLANConfig {
				return []byte{0, 0x11, 0, 0, 0, 0}, nil
			}
			return lanBMC(n, c, d)
		}, "0.0.0.0", true},
	} {
		m := fake.NewMachine(t.TempDir())
		m.BMC = c.bmc
		var inv Inventory
		err := bmc(t.Context(), m, &inv)
		got := ""
		if inv.BMCAddress != nil {
			got = *inv.BMCAddress
		}
		if got != c.addr || (err != nil) != c.fail {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.addr)
		}
	}
}

func TestIdentify(t *testing.T) {
	id, err := Identify(qemu(t).Root())
	if err != nil {
		t.Fatal(err)
	}
	if id.UUID != "4c4c4544-0042-3510-8051-b4c04f4d3732" || id.Serial != "LAB-0001" || id.BootMode != "uefi" ||
		id.BootID == "" ||
		!slices.Equal(id.MACs, []string{"52:54:00:aa:00:01", "52:54:00:aa:00:02"}) || id.Uptime() <= 0 {
		t.Errorf("Identify = %+v", id)
	}
	if _, err := Identify(t.TempDir()); err == nil {
		t.Error("a machine without boot id passes")
	}
}
