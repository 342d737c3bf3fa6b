package inventory

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/proto/lldp"
	"github.com/ingot-metal/ingot/test/kit"
)

// bare is a machine with files only, without BMC, addresses and disk commands.
type bare struct{ root string }

func (b bare) Root() string                           { return b.root }
func (bare) Addresses(string) ([]netip.Prefix, error) { return nil, nil }
func (bare) Settle(context.Context) error             { return nil }
func (bare) IPMI(context.Context, byte, byte, []byte) ([]byte, error) {
	return nil, os.ErrNotExist
}

// report returns the collected report of a machine, as JSON.
func report(t *testing.T, m machine) []byte {
	t.Helper()
	r, err := Collect(t.Context(), m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

// unpack lays a capture out in a folder.
func unpack(t *testing.T, r io.Reader) string {
	t.Helper()
	root := t.TempDir()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return root
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, filepath.Clean("/"+h.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, path)
		default:
			var b []byte
			if b, err = io.ReadAll(tr); err == nil {
				err = os.WriteFile(path, b, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestRackServer is the whole inventory of a large machine.
func TestRackServer(t *testing.T) {
	root := t.TempDir()
	plant(t, root, "rack-server.tree")
	kit.Golden(t, "rack-server.json", report(t, bare{root}))
}

// TestCaptureGivesTheSame holds that a capture has all that the inventory reads: taken of a server's tree, of a virtual
// machine's, and of the machine that the test runs on.
func TestCaptureGivesTheSame(t *testing.T) {
	server, virtual := t.TempDir(), qemu(t)
	plant(t, server, "rack-server.tree")
	for name, root := range map[string]string{"server": server, "virtual": virtual.Root(), "this": "/"} {
		var a bytes.Buffer
		if err := Capture(root, &a); err != nil && root != "/" {
			t.Errorf("%s: %v", name, err)
		}
		copied := unpack(t, &a)
		var want, got map[string]any
		if err := errors.Join(json.Unmarshal(report(t, bare{root}), &want),
			json.Unmarshal(report(t, bare{copied}), &got)); err != nil {
			t.Fatal(err)
		}
		if root == "/" {
			for _, m := range []map[string]any{want, got} {
				delete(m["inventory"].(map[string]any)["cpu"].(map[string]any), "frequency") // it changes all the time
				// a virtual machine's memory may grow and shrink (virtio-mem, balloon)
				for _, r := range m["numa_topology"].(map[string]any)["ram"].([]any) {
					delete(r.(map[string]any), "size_kb")
				}
				if memory, ok := m["inventory"].(map[string]any)["memory"].(map[string]any); ok {
					delete(memory, "total")
				}
				// what only root may read is missing in the copy
				delete(m, "errors")
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: the copy gives another inventory (-machine +copy):\n%s", name, diff)
		}
	}
}

func TestTPM(t *testing.T) {
	for name, c := range map[string]struct {
		tree map[string]string
		want TPM
	}{
		"none": {nil, TPM{}},
		"1.2": {map[string]string{"sys/class/tpm/tpm0/device/caps": "Manufacturer: 0x49465800\n"},
			TPM{Present: true, Version: "1.2", Device: "/dev/tpm0"}},
		"2.0": {map[string]string{"sys/class/tpm/tpm0/tpm_version_major": "2\n"},
			TPM{Present: true, Version: "2.0", Device: "/dev/tpm0"}},
		"no driver": {map[string]string{"sys/firmware/acpi/tables/TPM2": "TPM2"},
			TPM{Present: true, Version: "2.0"}},
		"old, no driver": {map[string]string{"sys/firmware/acpi/tables/TCPA": "TCPA"},
			TPM{Present: true, Version: "1.2"}},
	} {
		root := t.TempDir()
		for file, content := range c.tree {
			path := filepath.Join(root, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
				os.WriteFile(path, []byte(content), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if got := tpm(root); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// connected is a machine whose switches are heard, and whose network cards can be asked.
type connected struct {
	*fake.Machine
	heard  map[string][]lldp.TLV
	want   []string
	waited time.Duration
}

func (c *connected) Neighbours(_ context.Context, want []string, limit time.Duration) map[string][]lldp.TLV {
	c.want, c.waited = want, limit
	return c.heard
}

func (c *connected) LinkFirmware(name string) (string, error) {
	if name == "eth0" {
		return "0x80000a2c, 1.2", nil
	}
	return "", errors.New("no such device")
}

func TestNeighboursAndFirmware(t *testing.T) {
	m := &connected{Machine: qemu(t), heard: map[string][]lldp.TLV{"eth0": {
		{Type: 1, Value: []byte{4, 0x11, 0x22, 0x33, 0xaa, 0xbb, 0xcc}}, {Type: 2, Value: []byte("\x05Ethernet7")},
		{Type: 3, Value: []byte{0, 120}}}}}
	m.BMC = func(netFn, command byte, data []byte) ([]byte, error) {
		if netFn == netFnApp && command == getDeviceID {
			return []byte{0, 0x20, 1, 0x06, 0x45, 2}, nil
		}
		return lanBMC(netFn, command, data)
	}
	out, err := InspectStep(m, nil)(t.Context(), call(t, `{"lldp_timeout": 30}`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(out.Result)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Inventory struct {
			Interfaces []struct {
				Name string
				LLDP any
			}
		}
		Raw      any               `json:"lldp_raw"`
		Parsed   map[string]any    `json:"parsed_lldp"`
		Firmware []FirmwareVersion `json:"firmware_versions"`
		Errors   []string
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	pairs := []any{[]any{1., "04112233aabbcc"}, []any{2., "0545746865726e657437"}, []any{3., "0078"}}
	if diff := cmp.Diff(map[string]any{"eth0": pairs, "eth1": []any{}}, got.Raw); diff != "" {
		t.Errorf("lldp_raw (-want +got):\n%s", diff)
	}
	if i := got.Inventory.Interfaces; !cmp.Equal(i[0].LLDP, any(pairs)) || i[1].LLDP != nil {
		t.Errorf("interfaces %+v", i)
	}
	if diff := cmp.Diff(
		map[string]any{"eth0": map[string]any{"switch_chassis_id": "11:22:33:aa:bb:cc", "switch_port_id": "Ethernet7",
			"ttl": 120.}}, got.Parsed); diff != "" {
		t.Errorf("parsed_lldp (-want +got):\n%s", diff)
	}
	if want := []string{"eth0"}; !cmp.Equal(m.want, want) || m.waited != 30*time.Second {
		t.Errorf("waited %v for %v, want 30s for %v", m.waited, m.want, want)
	}
	want := []FirmwareVersion{{"bios", "", "0.0.0"}, {"bmc", "", "6.45"}, {"nic", "eth0", "0x80000a2c, 1.2"}}
	if diff := cmp.Diff(want, got.Firmware[:min(3, len(got.Firmware))]); diff != "" {
		t.Errorf("firmware (-want +got):\n%s", diff)
	}
	// One card that can't be asked costs its own line, and is named.
	if !strings.Contains(strings.Join(got.Errors, "\n"), "firmware versions: interface eth1: no such device") {
		t.Errorf("errors %q", got.Errors)
	}
	for _, bad := range []string{`{"lldp_timeout": -1}`, `{"lldp_timeout": 91}`} {
		if _, err := InspectStep(m, nil)(t.Context(), call(t, bad)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func call(t *testing.T, args string) *step.Call {
	t.Helper()
	return &step.Call{Args: json.RawMessage(args), Facts: &step.Facts{}, Report: func(step.Progress) {}, Log: discard}
}

func TestInfiniBand(t *testing.T) {
	hw, _ := net.ParseMAC("80:00:02:08:fe:80:00:00:00:00:00:00:7c:fe:90:03:00:29:26:52")
	mac, client := infiniBand(hw)
	if mac.String() != "7c:fe:90:29:26:52" || client != "ff:00:00:00:00:00:02:00:00:02:c9:00:7c:fe:90:03:00:29:26:52" {
		t.Errorf("infiniBand = %s, %s", mac, client)
	}
}

// TestMachineWithoutSMBIOS is known by its device tree, and a machine without either has no words for what it is not.
func TestMachineWithoutSMBIOS(t *testing.T) {
	m := bare{t.TempDir()}
	log := slog.New(slog.DiscardHandler)
	if got, err := systemVendor(m.root, log); err != nil || got != (SystemVendor{}) {
		t.Errorf("a machine without either: %+v, %v", got, err)
	}
	for name, text := range map[string]string{"model": "SuperServer-64\x00", "serial-number": "0042\x00",
		"compatible": "acme,super-64\x00acme,soc\x00"} {
		path := filepath.Join(m.root, "sys/firmware/devicetree/base", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var archive bytes.Buffer
	if err := Capture(m.root, &archive); err != nil {
		t.Fatal(err)
	}
	want := SystemVendor{ProductName: "SuperServer-64", SerialNumber: "0042", Manufacturer: "acme"}
	for _, root := range []string{m.root, unpack(t, &archive)} {
		if got, err := systemVendor(root, log); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}
