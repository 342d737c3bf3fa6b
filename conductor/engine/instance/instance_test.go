package instance

import "testing"

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"http://u:p@h/i?token=x#f": "http://h/i",
		"debian.raw":               "debian.raw",
	} {
		if got := Redact(in); got != want {
			t.Errorf("Redact(%q) = %q, want %q", in, got, want)
		}
	}
	if got := Capability("x:y, boot_mode:uefi", "boot_mode"); got != "uefi" {
		t.Errorf("capability from text = %q", got)
	}
	if got := Capability(map[string]any{"boot_mode": "bios"}, "boot_mode"); got != "bios" {
		t.Errorf("capability from an object = %q", got)
	}
}
