package linux

import (
	"errors"
	"testing"
	"time"
	"unsafe"

	"os"
	"path/filepath"
)

// The kernel's structures have these sizes on every 64-bit machine.
func TestPassthruLayout(t *testing.T) {
	if n := unsafe.Sizeof(nvmeAdminCmd{}); n != 72 {
		t.Errorf("nvme_admin_cmd has %d bytes, want 72", n)
	}
	if n := unsafe.Sizeof(sgIOHeader{}); n != 88 {
		t.Errorf("sg_io_hdr has %d bytes, want 88", n)
	}
	h := sgIOHeader{}
	for name, c := range map[string][2]uintptr{
		"dxferp":  {unsafe.Offsetof(h.data), 16},
		"timeout": {unsafe.Offsetof(h.timeoutMs), 40},
		"status":  {unsafe.Offsetof(h.status), 64},
		"sb_len":  {unsafe.Offsetof(h.senseLen), 67},
		"resid":   {unsafe.Offsetof(h.residual), 72},
	} {
		if c[0] != c[1] {
			t.Errorf("%s of sg_io_hdr is at %d, want %d", name, c[0], c[1])
		}
	}
	if off := unsafe.Offsetof(nvmeAdminCmd{}.cdw10); off != 40 {
		t.Errorf("cdw10 of nvme_admin_cmd is at %d, want 40", off)
	}
}

// What is no disk says so in a way that callers can branch on.
func TestPassthruNoDisk(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := (Machine{}).NVMeAdmin(t.Context(), file, 6, 0, [6]uint32{1}, make([]byte, 4096),
		time.Second); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("NVMeAdmin on a file = %v, want ErrUnsupported", err)
	}
	if _, _, _, err := (Machine{}).SCSI(t.Context(), file, make([]byte, 6), false, nil, time.Second); !errors.Is(err,
		errors.ErrUnsupported) {
		t.Errorf("SCSI on a file = %v, want ErrUnsupported", err)
	}
	if _, _, _, err := (Machine{}).SCSI(t.Context(), file, make([]byte, 40), false, nil, time.Second); err == nil {
		t.Error("a command of 40 bytes was sent")
	}
}
