// Package packages installs Ingot's packages where nothing else is installed, and starts what is in them.
//
// The packages are those that tools/package makes, for this machine's architecture. The root directory is Debian's
// essential system, without systemd: a program in the place of systemctl writes down what it is asked to do.
package packages

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// source is the folder of Ingot's source.
const source = "../.."

// makePackages makes packages in a folder.
func makePackages(t *testing.T, out string, args ...string) {
	t.Helper()
	kit.Run(t, "go", append([]string{"-C", filepath.Join(source, "tools/package"), "run", ".",
		"-source", absolute(t, source), "-arch", runtime.GOARCH,
		"-ramdisk", filepath.Join(out, "no-ramdisk"), "-out", out}, args...)...)
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	a, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

var shared struct {
	sync.Mutex
	made map[string]bool
}

// packages is the folder with the packages of this source.
func packages(t *testing.T) string {
	t.Helper()
	return once(t, "first")
}

// later is the folder with those of a later version, and with the ramdisk of simulated machines.
func later(t *testing.T) string {
	t.Helper()
	return once(t, "later", "-version", "v9.9.9", "-ramdisk", simulatedRamdisk(t))
}

var ramdiskFiles = []string{"manifest.json", "vmlinuz", "initramfs.cpio.zst"}

// simulatedRamdisk is the folder of a ramdisk whose kernel and initramfs are a few bytes.
func simulatedRamdisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := (fleet.Site{Dir: dir}).Write(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "ramdisk")
}

// once makes packages once for all tests.
func once(t *testing.T, name string, args ...string) string {
	t.Helper()
	dir := absolute(t, source+"/build/test/packages/"+name)
	shared.Lock()
	defer shared.Unlock()
	if !shared.made[name] {
		makePackages(t, dir, args...)
		if shared.made == nil {
			shared.made = map[string]bool{}
		}
		shared.made[name] = true
	}
	return dir
}

// one is the only file with a name.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("files %s in %s: %v (%v), want one", pattern, dir, found, err)
	}
	return found[0]
}

// TestTwoBuildsGiveTheSameBytes: neither the clock, nor the time zone, nor the modes of new files are in the packages.
func TestTwoBuildsGiveTheSameBytes(t *testing.T) {
	dir := packages(t)
	t.Setenv("TZ", "Pacific/Auckland")
	t.Setenv("HOSTNAME", "another")
	again := t.TempDir()
	makePackages(t, again)
	sums := read(t, filepath.Join(dir, "SHA256SUMS"))
	if got := read(t, filepath.Join(again, "SHA256SUMS")); got != sums {
		t.Errorf("checksums of the first build:\n%s\nof the second:\n%s", sums, got)
	}
	if n := strings.Count(sums, "\n"); n != 10 {
		t.Errorf("SHA256SUMS has %d lines, want 10: deb and rpm of ingotd, ingot and ingot-lab, SBOM of ingotd and ingot, an "+
			"image and a chart\n%s", n, sums)
	}
	checkSums(t, again)
}

func checkSums(t *testing.T, dir string) {
	t.Helper()
	kit.Run(t, "sh", "-c", `cd "$1" && sha256sum --quiet --strict --check SHA256SUMS`, "sh", dir)
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// versions are what git describe prints, with the versions of the packages, oldest first.
var versions = [][2]string{
	{"0aff1e2", "0.1.0~git20261128103000.0aff1e2"},
	{"291c9053-dirty", "0.1.0~git20261128103000.291c9053.dirty"},
	{"v0.1.0", "0.1.0"},
	{"v0.1.0-dirty", "0.1.0+0.dirty"},
	{"v0.1.0-3-gabcdef0", "0.1.0+3.gabcdef0"},
	{"v0.1.0-12-gabcdef0-dirty", "0.1.0+12.gabcdef0.dirty"},
	{"v0.1.1", "0.1.1"},
	{"v0.10.0", "0.10.0"},
}

// TestPackagesForAnotherArchitecture: those for arm64 say so, and have programs for it.
func TestPackagesForAnotherArchitecture(t *testing.T) {
	if os.Getenv("INGOT_FULL") == "" {
		return // to compile all for another architecture takes minutes
	}
	kit.NeedPrograms(t, "rpm")
	const other = "arm64"
	dir := t.TempDir()
	makePackages(t, dir, "-arch", other)
	checkSums(t, dir)
	for _, name := range []string{"ingot", "ingotd"} {
		deb := one(t, dir, name+"_*_"+other+".deb")
		if got := kit.Run(t, "dpkg-deb", "--field", deb, "Architecture"); got != other+"\n" {
			t.Errorf("the architecture of %s is %q", deb, got)
		}
		unpacked := t.TempDir()
		kit.Run(t, "dpkg-deb", "-x", deb, unpacked)
		program, err := elf.Open(filepath.Join(unpacked, "usr/bin", name))
		if err != nil {
			t.Fatal(err)
		}
		if program.Machine != elf.EM_AARCH64 {
			t.Errorf("%s is for %v", name, program.Machine)
		}
		program.Close()
		rpm := one(t, dir, name+"-[0-9]*.aarch64.rpm")
		arch := kit.Run(t, "rpm", "-qp", "--nosignature", "--queryformat", "%{ARCH}", rpm)
		if arch != "aarch64" {
			t.Errorf("the rpm of %s is for %q", name, arch)
		}
	}
}

// TestVersions: dpkg and rpm take a later commit for newer.
func TestVersions(t *testing.T) {
	kit.NeedPrograms(t, "rpm")
	program := filepath.Join(t.TempDir(), "package")
	kit.Run(t, "go", "-C", filepath.Join(source, "tools/package"), "build", "-o", program, ".")
	tree := t.TempDir()
	const name = "CHANGELOG" + ".md" // the test's own, so that test/affected does not take it for that of the source
	log := filepath.Join(tree, name)
	if err := os.WriteFile(log, []byte("# Changes\n\n## Unreleased: 0.1.0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1795861800")
	version := func(described string) (string, error) {
		out, err := exec.Command(program, "-source", tree, "-show-version", "-version", described).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	for i, v := range versions {
		if got, err := version(v[0]); err != nil || got != v[1] {
			t.Errorf("version of %s is %q (%v), want %q", v[0], got, err, v[1])
		}
		if i == 0 {
			continue
		}
		older := versions[i-1][1]
		kit.Run(t, "dpkg", "--compare-versions", older, "lt", v[1])
		if got := kit.Run(t, "rpm", "--eval", "%{lua: print(rpm.vercmp('"+older+"', '"+v[1]+"'))}"); got != "-1\n" {
			t.Errorf("rpm compares %s with %s as %q, want -1", older, v[1], got)
		}
	}
	for _, bad := range []string{"unknown", "v1", "main", "v0.1.0-rc1; rm -rf"} {
		if got, err := version(bad); err == nil || !strings.Contains(got, "git describe") {
			t.Errorf("version of %q is %q (%v), want an error", bad, got, err)
		}
	}
	if err := os.WriteFile(log, []byte("# Changes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := version("0aff1e2"); err == nil || !strings.Contains(got, name) {
		t.Errorf("without a heading in the change log the version is %q (%v)", got, err)
	}
}

// TestLintian: Debian's checker of packages finds no error.
func TestLintian(t *testing.T) {
	kit.NeedPrograms(t, "lintian")
	dir := packages(t)
	args := []string{"--allow-root", "--fail-on", "error,warning", "--suppress-tags",
		// deb-systemd-invoke can't disable a unit.
		"maintainer-script-calls-systemctl"}
	kit.Run(t, "lintian", append(args, one(t, dir, "ingotd_*.deb"), one(t, dir, "ingot_*.deb"),
		one(t, dir, "ingot-lab_*.deb"))...)
}

// TestRPM: rpm reads the packages, and finds files, owners and scripts as they should be.
func TestRPM(t *testing.T) {
	kit.NeedPrograms(t, "rpm")
	dir := packages(t)
	server, client := one(t, dir, "ingotd-*.rpm"), one(t, dir, "ingot-[0-9]*.rpm")
	kit.Run(t, "rpm", "--checksig", "--nosignature", server, client)
	query := func(file string, what ...string) string {
		return kit.Run(t, "rpm", append(append([]string{"-qp", "--nosignature"}, what...), file)...)
	}
	for file, want := range map[string][]string{
		server: {"Name        : ingotd", "License     : Apache-2.0", "Build Host  : localhost"},
		client: {"Name        : ingot\n", "License     : Apache-2.0", "Build Host  : localhost"},
	} {
		about := query(file, "-i")
		for _, w := range want {
			if !strings.Contains(about, w) {
				t.Errorf("rpm -qip %s lacks %q:\n%s", file, w, about)
			}
		}
	}
	owners := query(server, "--queryformat", "[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILEFLAGS:fflags}\n]")
	for _, want := range []string{
		"/usr/bin/ingotd -rwxr-xr-x root:root", "/etc/ingot drwxr-x--- root:ingot",
		"/etc/ingot/ingotd.yaml -rw-r----- root:ingot cn", // a configuration, which an upgrade does not replace
		"/var/lib/ingot drwx------ ingot:ingot", "/usr/lib/systemd/system/ingotd.service -rw-r--r-- root:root",
		"/usr/lib/systemd/system/ingotd.socket -rw-r--r-- root:root", "/usr/share/man/man8/ingotd.8.gz -rw-r--r-- root:root",
	} {
		if !strings.Contains(owners, want) {
			t.Errorf("files of the rpm lack %q:\n%s", want, owners)
		}
	}
	list := query(client, "-l")
	for _, want := range []string{"/usr/bin/ingot\n", "/usr/share/man/man1/ingot-node.1.gz\n",
		"/usr/share/bash-completion/completions/ingot\n", "/usr/share/zsh/site-functions/_ingot\n",
		"/usr/share/fish/vendor_completions.d/ingot.fish\n"} {
		if !strings.Contains(list, want) {
			t.Errorf("files of the client's rpm lack %q:\n%s", want, list)
		}
	}
	scripts := query(server, "--scripts")
	for _, section := range []string{"preinstall", "postinstall", "preuninstall", "postuninstall"} {
		_, script, ok := strings.Cut(scripts, section+" scriptlet (using /bin/sh):\n")
		if !ok {
			t.Errorf("the rpm has no %s script:\n%s", section, scripts)
			continue
		}
		for _, next := range []string{"preinstall", "postinstall", "preuninstall", "postuninstall"} {
			script, _, _ = strings.Cut(script, next+" scriptlet")
		}
		file := filepath.Join(t.TempDir(), section)
		if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
		kit.Run(t, "sh", "-n", file)
	}
	if s := query(client, "--scripts"); s != "" {
		t.Errorf("the client's rpm has scripts:\n%s", s)
	}
}

// TestHardening: systemd's own measure of what a service may do, from 0 (nothing) to 10.
func TestHardening(t *testing.T) {
	kit.NeedPrograms(t, "systemd-analyze")
	unit := filepath.Join(source, "tools/package/files/ingotd.service")
	out := kit.Run(t, "systemd-analyze", "security", "--offline=true", "--no-pager", unit)
	m := regexp.MustCompile(`Overall exposure level for ingotd.service: ([0-9.]+)`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("systemd-analyze reports no level:\n%s", out)
	}
	level, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	if level > 1.9 {
		t.Errorf("exposure level %.1f, want at most 1.9:\n%s", level, out)
	}
}

// TestUnitsAreRead: systemd knows every line of the units. What it reports beside that, such as a program that is not
// here, does not matter.
func TestUnitsAreRead(t *testing.T) {
	kit.NeedPrograms(t, "systemd-analyze")
	for _, name := range []string{"ingotd.service", "ingotd.socket"} {
		unit := filepath.Join(t.TempDir(), name)
		verify := func(text string) string {
			t.Helper()
			if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			out, _ := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
			var about []string
			for line := range strings.Lines(string(out)) {
				if strings.HasPrefix(line, unit+":") { // with the number of a line
					about = append(about, line)
				}
			}
			return strings.Join(about, "")
		}
		text := read(t, filepath.Join(source, "tools/package/files", name))
		if out := verify(text); out != "" {
			t.Errorf("systemd does not understand %s:\n%s", name, out)
		}
		if verify(strings.Replace(text, "[Install]", "Sandbox=yes\n[Install]", 1)) == "" {
			t.Error("an unknown line is not found")
		}
	}
}

// TestRamdiskPackage: the files that make ramdisk wrote, where ingotd setup looks for them, for all architectures.
func TestRamdiskPackage(t *testing.T) {
	out := later(t)
	unpacked := t.TempDir()
	kit.Run(t, "dpkg-deb", "-x", one(t, out, "ingot-ramdisk_*_all.deb"), unpacked)
	for _, name := range ramdiskFiles {
		file := filepath.Join(unpacked, "usr/lib/ingot/ramdisk", name)
		if st, err := os.Stat(file); err != nil || st.Mode() != 0o644 {
			t.Errorf("%s: %v (%v), want a file for all to read", name, st, err)
		} else if want := read(t, filepath.Join(simulatedRamdisk(t), name)); read(t, file) != want {
			t.Errorf("%s has %q, want %q", name, read(t, file), want)
		}
	}
	kit.NeedPrograms(t, "rpm")
	list := kit.Run(t, "rpm", "-qlp", "--nosignature", one(t, out, "ingot-ramdisk-*.noarch.rpm"))
	if !strings.Contains(list, "/usr/lib/ingot/ramdisk/manifest.json\n") {
		t.Errorf("the rpm has:\n%s", list)
	}
	checkSums(t, out)
}

// TestLabPackage brings what tools/deps.sh installs for the lab, but for a program that only the demo runs.
func TestLabPackage(t *testing.T) {
	dir := packages(t)
	_, group, _ := strings.Cut(read(t, source+"/tools/deps.sh"), "\n\tlab)\n")
	group, _, ok := strings.Cut(group, ";;")
	want := []string{"ingot", "ingotd"}
	for line := range strings.Lines(group) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "need" && f[1] != "openssh-client" {
			want = append(want, f[1])
		}
	}
	depends := kit.Run(t, "dpkg-deb", "--field", one(t, dir, "ingot-lab_*_all.deb"), "Depends")
	got := strings.Split(strings.TrimSpace(depends), ", ")
	slices.Sort(want)
	slices.Sort(got)
	if !ok || !slices.Equal(got, want) {
		t.Errorf("the package depends on %v, want %v", got, want)
	}
	kit.NeedPrograms(t, "rpm")
	needs := kit.Run(t, "rpm", "-qp", "--nosignature", "--requires", one(t, dir, "ingot-lab-*.noarch.rpm"))
	for _, name := range []string{"ingot\n", "ingotd\n", "qemu-system-x86\n", "iproute\n"} {
		if !strings.Contains(needs, name) {
			t.Errorf("the rpm does not need %q:\n%s", name, needs)
		}
	}
}

// TestUnitInTheHowTo: docs/howto/upgrade.md shows the service as it is packaged.
func TestUnitInTheHowTo(t *testing.T) {
	page := filepath.Join(source, "docs/howto/upgrade.md")
	text := read(t, page)
	const begin, end = "```ini\n# /usr/lib/systemd/system/ingotd.service\n", "```\n"
	head, rest, ok := strings.Cut(text, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no block that begins with %q", page, begin)
	}
	kit.Document(t, page, head+begin+read(t, filepath.Join(source, "tools/package/files/ingotd.service"))+end+tail)
}

// TestBillOfMaterials: the SBOM names what the compiler wrote into the program.
func TestBillOfMaterials(t *testing.T) {
	dir := packages(t)
	for _, name := range []string{"ingot", "ingotd"} {
		var bill struct {
			BOMFormat, SpecVersion string
			Metadata               struct {
				Component struct{ Name, Version string }
			}
			Components []struct{ Name, Version, PURL string }
		}
		text := read(t, one(t, dir, name+"_*.cdx.json"))
		if err := json.Unmarshal([]byte(text), &bill); err != nil {
			t.Fatal(err)
		}
		if bill.BOMFormat != "CycloneDX" || bill.SpecVersion != "1.6" || bill.Metadata.Component.Name != name {
			t.Errorf("the SBOM of %s is of %q %q %q", name, bill.BOMFormat, bill.SpecVersion, bill.Metadata.Component.Name)
		}
		unpacked := t.TempDir()
		kit.Run(t, "dpkg-deb", "-x", one(t, dir, name+"_*.deb"), unpacked)
		program := filepath.Join(unpacked, "usr/bin", name)
		if got := read(t, filepath.Join(unpacked, "usr/share/doc", name, "sbom.cdx.json")); got != text {
			t.Errorf("the SBOM in the package %s is not the one beside it", name)
		}
		var modules []string
		for line := range strings.Lines(kit.Run(t, "go", "version", "-m", program)) {
			if f := strings.Fields(line); len(f) >= 3 && f[0] == "dep" {
				modules = append(modules, f[1]+" "+f[2])
			}
		}
		var listed []string
		for _, c := range bill.Components {
			if c.Name != "std" {
				listed = append(listed, c.Name+" "+c.Version)
			}
			if c.PURL != "pkg:golang/"+c.Name+"@"+strings.ReplaceAll(c.Version, "+", "%2B") {
				t.Errorf("purl of %s %s is %s", c.Name, c.Version, c.PURL)
			}
		}
		slices.Sort(modules)
		slices.Sort(listed)
		if len(modules) < 10 || !slices.Equal(modules, listed) {
			t.Errorf("modules of %s:\n%q\nin the SBOM:\n%q", name, modules, listed)
		}
		static(t, program)
		page := kit.Run(t, "man", "--warnings=w", "-l",
			one(t, unpacked, "usr/share/man/man*/"+name+".[18].gz"))
		want := map[string]string{"ingot": "ingot node create NAME", "ingotd": "  --set KEY=VALUE"}[name]
		if !strings.Contains(page, want) {
			t.Errorf("the manual page of %s lacks %q:\n%s", name, want, page)
		}
	}
}

// static checks that a program needs no library.
func static(t *testing.T, program string) {
	t.Helper()
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if libs, err := f.ImportedLibraries(); err == nil && len(libs) > 0 {
		t.Errorf("%s needs %v", program, libs)
	}
}
