package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/u-root/u-root/pkg/efivarfs"

	"github.com/ingot-metal/ingot/agent/boot"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/test/kit"
)

// Both machines serve the agent and all its steps.
var (
	_ Machine = linux.Machine{}
	_ system  = linux.Machine{}
	_ Machine = &fake.Machine{}
	_ system  = &fake.Machine{}
)

func TestTable(t *testing.T) {
	table := Steps(linux.Machine{}, nil)
	if err := step.Check(table); err != nil {
		t.Fatal(err)
	}
	for phase, want := range map[step.Phase]string{
		step.Deploy: "deploy.write_image 80, deploy.write_configdrive 70, deploy.prepare_instance_boot 60, deploy.load_kernel 50, deploy.load_ramdisk 50",
		step.Clean:  "deploy.erase_devices_metadata 99", step.Inspect: "inspect.inspect 100",
		step.Rescue: "rescue.rescue 100",
	} {
		var got []string
		for _, s := range table {
			if p := s.Priority[phase]; p > 0 {
				got = append(got, fmt.Sprintf("%s %d", s.Title(), p))
			}
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s = %v, want %s", phase, got, want)
		}
	}
	// The digest is made from the table alone, so that a ramdisk's manifest made elsewhere is the live
	// agent's.
	a, _ := step.Describe(table)
	b, _ := step.Describe(Steps(fake.NewMachine(t.TempDir()), nil))
	if a.Digest != b.Digest {
		t.Error("the digest depends on the machine")
	}
}

// gptImage makes a whole-disk image of 40 MiB with an ESP, whose boot loader is in place, and a root partition.
func gptImage(t *testing.T, fallback bool) []byte {
	t.Helper()
	kit.NeedPrograms(t, "sfdisk", "mformat", "mmd", "mcopy")
	dir := t.TempDir()
	esp := filepath.Join(dir, "esp")
	if err := os.WriteFile(esp, make([]byte, 20<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "mformat", "-i", esp, "::")
	loader := filepath.Join(dir, "loader")
	if err := os.WriteFile(loader, []byte("MZ"), 0o644); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "mmd", "-i", esp, "::/EFI", "::/EFI/debian", "::/EFI/BOOT")
	kit.Run(t, "mcopy", "-i", esp, loader, "::/EFI/debian/shimx64.efi")
	if fallback {
		kit.Run(t, "mcopy", "-i", esp, loader, "::/EFI/BOOT/BOOTX64.EFI")
	}
	img := filepath.Join(dir, "img")
	if err := os.WriteFile(img, make([]byte, 40<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "table")
	if err := os.WriteFile(script, []byte("label: gpt\nstart=2048, size=40960, type=uefi\nstart=43008, type=linux\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "sh", "-c", "sfdisk -q "+img+" < "+script)
	data, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	e, err := os.ReadFile(esp)
	if err != nil {
		t.Fatal(err)
	}
	copy(data[1<<20:], e)
	for i := range data[22<<20 : 30<<20] {
		data[22<<20+i] = byte(i * 7)
	}
	return data
}

// deploy runs the deployment steps on m with an image.
func deploy(t *testing.T, m *fake.Machine, img []byte) (step.End, map[string]json.RawMessage) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "disk.raw", time.Unix(1, 0), bytes.NewReader(img))
	}))
	defer srv.Close()
	sum := sha256.Sum256(img)
	args, err := json.Marshal(map[string]any{"image_source": srv.URL + "/disk.raw", "image_os_hash_algo": "sha256",
		"image_os_hash_value": hex.EncodeToString(sum[:])})
	if err != nil {
		t.Fatal(err)
	}
	drive := json.RawMessage(`{"configdrive":{"meta_data":{"hostname":"n1"},"user_data":"#cloud-config\n"}}`)
	rec := &results{out: map[string]json.RawMessage{}}
	r := &step.Runner{Table: Steps(m, nil)}
	end := r.Run(t.Context(), nil, []step.Planned{
		{Interface: "deploy", Name: "write_image", Args: args},
		{Interface: "deploy", Name: "write_configdrive", Args: drive},
		{Interface: "deploy", Name: "prepare_instance_boot"},
	}, rec)
	return end, rec.out
}

// results keeps what steps answered.
type results struct{ out map[string]json.RawMessage }

func (*results) StepStarted(int, step.Planned)             {}
func (*results) Progress(int, step.Planned, step.Progress) {}
func (r *results) StepFinished(_ int, p step.Planned, res step.Result) {
	if res.Err == nil {
		r.out[p.Name], _ = json.Marshal(res.Outcome.Result)
	}
}

func uefiMachine(t *testing.T, vars bool) (*fake.Machine, *fake.Disk) {
	t.Helper()
	m := fake.NewMachine(t.TempDir())
	d := m.Add(fake.DiskSpec{Name: "vda", Size: 5 << 30, Serial: "A", Fill: 0xee})
	if vars {
		m.EFI = &fake.Variables{}
	}
	if err := os.MkdirAll(filepath.Join(m.Root(), "sys/firmware/efi"), 0o755); err != nil {
		t.Fatal(err)
	}
	return m, d
}

// TestDeployUEFI walks all steps of a deployment on a machine in memory, boot entry included.
func TestDeployUEFI(t *testing.T) {
	m, d := uefiMachine(t, true)
	end, out := deploy(t, m, gptImage(t, false))
	if !end.Done {
		t.Fatalf("ended with %+v: %v", end, end.Err)
	}
	var r boot.Result
	if err := json.Unmarshal(out["prepare_instance_boot"], &r); err != nil {
		t.Fatal(err)
	}
	if !r.Committed || r.BootMode != "uefi" || r.Warning != "" || r.BootEntry == nil ||
		r.BootEntry.Loader != `\EFI\debian\shimx64.efi` || r.BootEntry.Name != "Boot0000" {
		t.Errorf("result %s", out["prepare_instance_boot"])
	}
	attributes, order, err := m.EFI.Get(efivarfs.VariableDescriptor{Name: "BootOrder",
		GUID: uuid.MustParse("8be4df61-93ca-11d2-aa0d-00e098032b8c")})
	if err != nil || attributes != 7 || !slices.Equal(order, []byte{0, 0}) {
		t.Errorf("BootOrder = %v, %v, %v", attributes, order, err)
	}
	head := make([]byte, 1024)
	if _, err := d.ReadAt(head, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	if string(head[512:520]) != "EFI PART" || head[510] != 0x55 {
		t.Error("the table is not on the stable medium")
	}
}

// TestNoVariables holds what happens where firmware shows no variables: a warning with a fallback loader, else a
// failure.
func TestNoVariables(t *testing.T) {
	m, _ := uefiMachine(t, false)
	end, out := deploy(t, m, gptImage(t, true))
	if !end.Done || !strings.Contains(string(out["prepare_instance_boot"]), "fallback loader") {
		t.Errorf("with a fallback loader: %+v, %s", end, out["prepare_instance_boot"])
	}
	m, _ = uefiMachine(t, false)
	end, _ = deploy(t, m, gptImage(t, false))
	if end.Done || end.Err == nil || end.Err.Remedy == "" {
		t.Errorf("without one: %+v", end)
	}
}

func TestDeployBIOS(t *testing.T) {
	m := fake.NewMachine(t.TempDir())
	m.Add(fake.DiskSpec{Name: "vda", Size: 5 << 30, Serial: "A"})
	end, out := deploy(t, m, gptImage(t, false))
	if !end.Done || !strings.Contains(string(out["prepare_instance_boot"]), `"boot_entry":null,"boot_mode":"bios"`) {
		t.Errorf("%+v %s", end, out["prepare_instance_boot"])
	}
	// Commit without anything written.
	r := &step.Runner{Table: Steps(m, nil)}
	end = r.Run(context.Background(), nil, []step.Planned{{Interface: "deploy", Name: "prepare_instance_boot"}},
		&results{out: map[string]json.RawMessage{}})
	if end.Err == nil || end.Err.Remedy == "" {
		t.Errorf("prepare_instance_boot alone: %+v", end)
	}
}
