package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSourcesOf(t *testing.T) {
	dir := t.TempDir()
	list, deb822 := filepath.Join(dir, "a.list"), filepath.Join(dir, "b.sources")
	for file, text := range map[string]string{
		list: "# deb http://old/debian bookworm main\n" +
			"deb [arch=amd64 signed-by=/k.gpg] http://one/debian bookworm main contrib # ours\n" +
			"deb-src http://one/debian bookworm main\n" +
			"deb http://others/apt sdk-bookworm main\ndeb http://others/docker bookworm stable\n",
		deb822: "Types: deb deb-src\n# a comment\nURIs: http://two/debian\n http://three/debian\nSuites: bookworm bookworm-updates trixie\n" +
			"Components: main non-free\nSigned-By: /usr/share/keyrings/x.gpg\n\n" +
			"Types: deb\nURIs: http://off/debian\nSuites: bookworm\nComponents: main\nEnabled: no\n\n" +
			"Types: deb\nURIs: http://key/debian\nSuites: bookworm-security\nComponents: main\nSigned-By:\n -----BEGIN PGP\n .\n abc\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := sourcesOf([]string{list, deb822}, "bookworm")
	if err != nil {
		t.Fatal(err)
	}
	want := `deb [arch=amd64 signed-by=/k.gpg] http://one/debian bookworm main
deb [signed-by=/usr/share/keyrings/x.gpg] http://three/debian bookworm main
deb [signed-by=/usr/share/keyrings/x.gpg] http://three/debian bookworm-updates main
deb [signed-by=/usr/share/keyrings/x.gpg] http://two/debian bookworm main
deb [signed-by=/usr/share/keyrings/x.gpg] http://two/debian bookworm-updates main
deb http://key/debian bookworm-security main
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := sourcesOf([]string{list}, "trixie"); err == nil || !strings.Contains(err.Error(), "name a file") {
		t.Errorf("error = %v", err)
	}
}

func TestPatchGRUBRefuses(t *testing.T) {
	p := partition{start: mib, size: mib}
	jump := make([]byte, sector)
	jump[0x66] = 0xEB
	for name, tc := range map[string]struct{ boot, core []byte }{
		"other boot sector": {make([]byte, sector), make([]byte, 4096)},
		"core too small":    {jump, make([]byte, 100)},
		"core too large":    {jump, make([]byte, 2*mib)},
	} {
		if err := patchGRUB(tc.boot, tc.core, p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
