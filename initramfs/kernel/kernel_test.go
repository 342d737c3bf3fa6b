package kernel

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ingot-metal/ingot/test/kit"
)

func TestParseModinfo(t *testing.T) {
	info := "license=GPL\x00\x00alias=pci:v00008086d*\x00alias=fs-vfat\x00alias=fs-vfat\x00depends=fat,nls-base\x00softdep=pre: crc32c post: late-one other\x00" +
		"firmware=a/b.bin\x00name=x\x00alias=\x00broken"
	m := Module{Name: "x"}
	m.parse([]byte(info))
	want := Module{
		Name: "x", Depends: []string{"fat", "nls_base"}, Pre: []string{"crc32c"}, Post: []string{"late-one", "other"},
		Aliases: []string{"fs-vfat", "pci:v00008086d*"}, Firmware: []string{"a/b.bin"},
	}
	if d := cmp.Diff(want, m); d != "" {
		t.Error(d)
	}
}

func TestParseModuleRefuses(t *testing.T) {
	if _, err := parseModule("kernel/x.ko", []byte("no ELF")); err == nil ||
		!strings.Contains(err.Error(), "kernel/x.ko") {
		t.Errorf("error = %v", err)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseModule("kernel/x.ko", self); err == nil || !strings.Contains(err.Error(), "no .modinfo") {
		t.Errorf("error = %v", err)
	}
}

func FuzzParseModule(f *testing.F) {
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = parseModule("kernel/x.ko", data)
		var m Module
		m.parse(data)
	})
}

func tree() *Tree {
	t := &Tree{Package: "linux-image-test",
		Builtin: []string{"kernel/fs/ext4/ext4.ko", "kernel/crypto/sha256-generic.ko"}, Modules: map[string]Module{}}
	for _, m := range []Module{
		{Name: "raid456", Depends: []string{"async_pq", "md_mod"}},
		{Name: "async_pq", Depends: []string{"async_tx", "xor"}},
		{Name: "async_tx"}, {Name: "xor"}, {Name: "md_mod"},
		{Name: "xfs", Pre: []string{"crc32c"}, Aliases: []string{"fs-xfs"}},
		{Name: "crc32c_a", Aliases: []string{"crc32c", "crypto-crc32c"}},
		{Name: "crc32c_b", Aliases: []string{"crc32c", "cpu:type:x86,*"}},
		{Name: "r8169", Pre: []string{"realtek", "gone"}},
		{Name: "realtek", Post: []string{"md-mod"}},
		{Name: "broken", Depends: []string{"missing"}},
	} {
		m.File = "kernel/" + strings.ReplaceAll(m.Name, "_", "-") + ".ko"
		t.Modules[m.Name] = m
	}
	return t
}

func names(s Set) []string {
	var out []string
	for _, m := range s.Modules {
		out = append(out, m.Name)
	}
	return out
}

func TestSelect(t *testing.T) {
	for _, tc := range []struct{ ask, modules, builtin, absent []string }{
		{ask: []string{"md-mod"}, modules: []string{"md_mod"}},
		{ask: []string{"raid456", "xor"}, modules: []string{"async_pq", "async_tx", "md_mod", "raid456", "xor"}},
		{ask: []string{"xfs"}, modules: []string{"crc32c_a", "crc32c_b", "xfs"}},
		{ask: []string{"r8169"}, modules: []string{"md_mod", "r8169", "realtek"}},
		{ask: []string{"ext4", "ahci?"}, builtin: []string{"ext4"}, absent: []string{"ahci"}},
	} {
		s, err := tree().Select(tc.ask)
		if err != nil {
			t.Errorf("Select(%v): %v", tc.ask, err)
		}
		if !slices.Equal(names(s), tc.modules) || !slices.Equal(s.Builtin, tc.builtin) ||
			!slices.Equal(s.Absent, tc.absent) {
			t.Errorf("Select(%v) = %v, built in %v, absent %v", tc.ask, names(s), s.Builtin, s.Absent)
		}
	}
	_, err := tree().Select([]string{"floppy", "broken", "zip"})
	for _, want := range []string{"no module floppy", "broken needs missing", "no module zip"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want one with %q", err, want)
		}
	}
}

func TestIndices(t *testing.T) {
	s, err := tree().Select([]string{"raid456", "xfs", "r8169"})
	if err != nil {
		t.Fatal(err)
	}
	kit.Golden(t, "indices.golden", slices.Concat(s.Dep(), s.Alias(), s.Softdep()))
}

// debFile makes a package with the given members.
func debFile(t *testing.T, members ...string) string {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	for i := 0; i < len(members); i += 2 {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n%s", members[i], 0, 0, 0, "100644", len(members[i+1]),
			members[i+1])
		if len(members[i+1])%2 == 1 {
			b.WriteByte('\n')
		}
	}
	file := filepath.Join(t.TempDir(), "k.deb")
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestOpenRefuses(t *testing.T) {
	empty := string(make([]byte, 1024)) // a tar archive without members
	for name, tc := range map[string]struct{ deb, want string }{
		"no kernel": {debFile(t, "debian-binary", "2.0\n", "control.tar", empty, "data.tar", empty),
			"not a kernel package"},
		"no data":             {debFile(t, "debian-binary", "2.0\n", "control.tar", empty), "no data archive"},
		"unknown compression": {debFile(t, "control.tar", empty, "data.tar.lrz", "x"), ".lrz is not known"},
		"damaged xz": {debFile(t, "control.tar", empty, "data.tar.xz", "this is not xz at all"),
			"data.tar.xz"},
		"missing": {"/nowhere/k.deb", "/nowhere"},
	} {
		if _, err := Open(t.Context(), tc.deb, t.TempDir()); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error = %v, want one with %q", name, err, tc.want)
		}
	}
	whole := debFile(t, "control.tar", empty, "data.tar", empty)
	if err := os.Truncate(whole, 700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), whole, t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), io.ErrUnexpectedEOF.Error()) {
		t.Errorf("cut short: error = %v", err)
	}
}

func FuzzReadDeb(f *testing.F) {
	f.Add([]byte("!<arch>\ndebian-binary   0           0     0     100644  4         `\n2.0\ncontrol.tar     0           0     0     100644  2         `\nxx"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(t.TempDir(), "k.deb")
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		_ = readDeb(file, func(_ string, _ *tar.Header, r io.Reader) error {
			_, err := io.Copy(io.Discard, io.LimitReader(r, 1<<20))
			return err
		})
	})
}
