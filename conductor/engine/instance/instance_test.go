package instance

import "testing"

func TestText(t *testing.T) {
	if got := Capability("x:y, boot_mode:uefi", "boot_mode"); got != "uefi" {
		t.Errorf("capability from text = %q", got)
	}
	if got := Capability(map[string]any{"boot_mode": "bios"}, "boot_mode"); got != "bios" {
		t.Errorf("capability from an object = %q", got)
	}
}
