package lab

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/initramfs/kernel"
	"github.com/ingot-metal/ingot/test/kit"
)

// aKernel returns a Debian kernel, downloaded if need be.
func aKernel(t *testing.T) string {
	t.Helper()
	kit.NeedPrograms(t, "apt-get", "dpkg-deb")
	cache, err := kernel.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	deb, err := kernel.Fetch(t.Context(), "linux-image-cloud-amd64", cache, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	tree, err := kernel.Open(t.Context(), deb, cache)
	if err != nil {
		t.Fatal(err)
	}
	return tree.Vmlinuz()
}

// The trial boot waits for a message that a kernel prints when its processor works: emulation proves it.
func TestProbe(t *testing.T) {
	kit.NeedPrograms(t, "qemu-system-x86_64")
	k := aKernel(t)
	// kvmLimit is for hardware; a busy host emulates more slowly.
	if err := probe(t.Context(), 5*time.Minute, k, "-accel", "tcg", "-cpu", "qemu64"); err != nil {
		t.Errorf("trial boot with emulation: %v", err)
	}
	none := filepath.Join(t.TempDir(), "vmlinuz")
	if err := os.WriteFile(none, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := probe(t.Context(), 2*time.Second, none, "-accel", "tcg"); err == nil {
		t.Error("zeros booted")
	}
}

// Whether KVM works depends on the host; that the answer comes in time (or as soon after it as a busy host gets there),
// with a reason, does not.
func TestChooseAccel(t *testing.T) {
	kit.NeedPrograms(t, "qemu-system-x86_64")
	start := time.Now()
	accel, why := chooseAccel(t.Context(), Options{Accel: Auto, ProbeKernel: aKernel(t)})
	if took := time.Since(start); took > kvmLimit+time.Minute {
		t.Errorf("took %s", took)
	}
	if (accel != TCG && accel != KVM) || (accel == TCG && !strings.Contains(why, "KVM does not work here (")) {
		t.Errorf("chooseAccel = %q, %q", accel, why)
	}
	t.Logf("%s: %s", accel, why)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, o := range []Options{{Accel: Auto}, {Accel: TCG, ProbeKernel: "x"},
		{Accel: Auto, ProbeKernel: "/nonexistent"}} {
		if accel, why := chooseAccel(ctx, o); accel != TCG || why == "" {
			t.Errorf("chooseAccel(%+v) = %q, %q", o, accel, why)
		}
	}
}
