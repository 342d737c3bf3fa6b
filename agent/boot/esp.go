package boot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/ext4"
	"github.com/ingot-metal/ingot/images/fs/fat"
)

// Limits of the data taken from an image for its EFI system partition, which is held in memory.
const (
	maxESPFile  = 24 << 20
	maxESPTotal = 32 << 20
	maxESPFiles = 500
	maxText     = 1 << 20
)

// esp is the content of an EFI system partition.
type esp struct {
	files  []fat.File
	total  int64
	label  string
	serial uint32 // 0: any
	// GUIDs by which the image's files refer to its partitions, or "".
	rootGUID, espGUID string
	from              string // source of the boot loader, for the log
}

// makeESP fills the EFI system partition of a disk that was partitioned for a partition image, from the image itself:
// nothing of the image is run or mounted. A repeated run has the same result. It returns the UUID of the root file
// system.
func makeESP(ctx context.Context, m machine, p *disk.Pending, a arch, log *slog.Logger) (root string, err error) {
	x := p.Division()
	part, ok := x.Partition(disk.RoleRoot)
	if !ok {
		return "", errors.New("the disk has no root partition")
	}
	dev, err := p.Open(ctx, m)
	if err != nil {
		return "", err
	}
	defer disk.Close(dev, &err)
	fs, err := ext4.Open(disk.Section(dev, part.Start, part.Size), part.Size)
	if err != nil {
		return "", step.Fail("use a partition image with an ext2, ext3 or ext4 file system, or a whole-disk image", err)
	}
	e, err := espOf(fs, a)
	if err != nil {
		return "", err
	}
	for role, guid := range map[string]string{disk.RoleRoot: e.rootGUID, disk.RoleESP: e.espGUID} {
		if guid == "" {
			continue
		}
		if err := x.SetGUID(role, guid); err != nil {
			return "", step.Fail("correct /etc/fstab and the kernel's command line in the image", err)
		}
	}
	if err := x.PutESP(ctx, dev, e.files, e.label, e.serial); err != nil {
		return "", err
	}
	log.Info("EFI system partition made", "disk", p.Disk.Name, "loader", e.from, "files", len(e.files), "bytes",
		e.total)
	return fs.Info().UUID, nil
}

const remedyLoader = "use a partition image with a boot loader for UEFI (shim and GRUB, in /boot/efi or as the packages install them), or a whole-disk image"

// espOf reads what is needed to boot the system in fs.
func espOf(fs *ext4.FS, a arch) (*esp, error) {
	e := &esp{label: "EFI-PART"}
	if err := e.copyDir(fs, "/boot/efi", "", 0); err != nil && !errors.Is(err, ext4.ErrNone) {
		return nil, step.Fail(remedyLoader, fmt.Errorf("read the image's /boot/efi: %w", err))
	}
	e.from = "/boot/efi of the image"
	vendor := vendorOf(fs)
	if !e.hasLoader(a) {
		if err := e.fromPackages(fs, a, vendor); err != nil {
			return nil, err
		}
	}
	e.fallback(a)

	config := ""
	for _, c := range []string{"/boot/grub/grub.cfg", "/boot/grub2/grub.cfg"} {
		ok, err := fs.Has(c)
		if err != nil {
			return nil, fmt.Errorf("read the image: %w", err)
		}
		if ok {
			config = c
			break
		}
	}
	if dirs := e.grubDirs(a, vendor); len(dirs) > 0 {
		if config == "" && e.find("grub.cfg") == nil {
			return nil, step.Failf(
				"make the boot loader's configuration in the image (update-grub), or use a whole-disk image",
				"the image has GRUB, but neither /boot/grub/grub.cfg nor /boot/grub2/grub.cfg")
		}
		for _, d := range dirs {
			if config != "" {
				e.put(d+"/grub.cfg",
					fmt.Appendf(nil, "search.fs_uuid %s root\nset prefix=($root)%s\nconfigfile $prefix/grub.cfg\n",
						fs.Info().UUID, path.Dir(config)))
			}
		}
	}
	if e.total > maxESPTotal || len(e.files) > maxESPFiles {
		return nil, step.Failf("take files out of /boot/efi of the image that don't belong to the boot loader",
			"the image's boot loader has %d bytes in %d files; %d MiB in %d are allowed", e.total, len(e.files),
			maxESPTotal>>20, maxESPFiles)
	}
	e.names(fs, config)
	return e, nil
}

// copyDir adds a directory with its content.
func (e *esp) copyDir(fs *ext4.FS, from, to string, depth int) error {
	if depth > 8 {
		return fmt.Errorf("too many folders in each other")
	}
	list, err := fs.List(from)
	if err != nil {
		return err
	}
	for _, f := range list {
		name := path.Join(to, f.Name)
		if f.Dir {
			if err := e.copyDir(fs, from+"/"+f.Name, name, depth+1); err != nil {
				return err
			}
			continue
		}
		if len(e.files) >= maxESPFiles || e.total+f.Size > maxESPTotal {
			return fmt.Errorf("more than %d files or %d MiB", maxESPFiles, maxESPTotal>>20)
		}
		b, err := fs.Read(from+"/"+f.Name, maxESPFile)
		if err != nil {
			return err
		}
		e.put(name, b)
	}
	return nil
}

// put adds a file, or replaces one of the same name; FAT names are case-insensitive.
func (e *esp) put(name string, data []byte) {
	if f := e.at(name); f != nil {
		e.total += int64(len(data)) - int64(len(f.Data))
		f.Data = data
		return
	}
	e.files = append(e.files, fat.File{Path: name, Data: data})
	e.total += int64(len(data))
}

func (e *esp) at(name string) *fat.File {
	return e.first(func(f fat.File) bool { return strings.EqualFold(f.Path, name) })
}

func (e *esp) first(is func(fat.File) bool) *fat.File {
	if i := slices.IndexFunc(e.files, is); i >= 0 {
		return &e.files[i]
	}
	return nil
}

// find returns the first file of that base name.
func (e *esp) find(base string) *fat.File {
	return e.first(func(f fat.File) bool { return strings.EqualFold(path.Base(f.Path), base) })
}

func (e *esp) hasLoader(a arch) bool {
	return e.at("EFI/BOOT/"+a.fallback()) != nil ||
		slices.ContainsFunc(a.loaders(), func(l string) bool { return e.find(l) != nil })
}

// fromPackages takes shim and GRUB from the paths of Debian's and Ubuntu's packages: images are usually built without
// the step that copies them to /boot/efi.
func (e *esp) fromPackages(fs *ext4.FS, a arch, vendor string) error {
	first := func(names ...string) ([]byte, string, error) {
		for _, n := range names {
			b, err := fs.Read(n, maxESPFile)
			if errors.Is(err, ext4.ErrNone) {
				continue
			}
			if err != nil {
				return nil, "", fmt.Errorf("read the image: %w", err)
			}
			return b, n, nil
		}
		return nil, "", nil
	}
	grub, name, err := first("/usr/lib/grub/"+a.grub+"-signed/grub"+a.suffix+".efi.signed",
		"/usr/lib/grub/"+a.grub+"/monolithic/grub"+a.suffix+".efi")
	if err != nil {
		return err
	}
	if grub == nil {
		return step.Failf(remedyLoader,
			"the image has no boot loader for UEFI on %s, neither in /boot/efi nor in /usr/lib/grub/%s-signed", a.name,
			a.grub)
	}
	shim, shimName, err := first("/usr/lib/shim/shim"+a.suffix+".efi.signed", "/usr/lib/shim/shim"+a.suffix+".efi")
	if err != nil {
		return err
	}
	manager, _, err := first("/usr/lib/shim/mm"+a.suffix+".efi.signed", "/usr/lib/shim/mm"+a.suffix+".efi")
	if err != nil {
		return err
	}
	e.from = name
	dir := "EFI/" + vendor + "/"
	e.put(dir+"grub"+a.suffix+".efi", grub)
	start := "grub" + a.suffix + ".efi"
	if shim != nil {
		e.from = shimName + " and " + name
		start = "shim" + a.suffix + ".efi"
		e.put(dir+start, shim)
		if manager != nil {
			e.put(dir+"mm"+a.suffix+".efi", manager)
		}
	}
	e.put(dir+a.csv(), utf16File(fmt.Sprintf("%s,%s,,This is the boot entry for %s\r\n", start, vendor, vendor)))
	return nil
}

// fallback adds the loader that firmware starts without an entry, if missing: a copy of shim with GRUB beside it, or of
// GRUB.
func (e *esp) fallback(a arch) {
	name := "EFI/BOOT/" + a.fallback()
	if e.at(name) != nil {
		return
	}
	shim, grub := e.find("shim"+a.suffix+".efi"), e.find("grub"+a.suffix+".efi")
	switch {
	case shim != nil && grub != nil:
		s, g := shim.Data, grub.Data // put invalidates the pointers
		e.put(name, s)
		e.put("EFI/BOOT/grub"+a.suffix+".efi", g)
	case grub != nil:
		e.put(name, grub.Data)
	}
}

var grubPrefix = regexp.MustCompile(`\x00(?:\([^)\x00]{0,40}\))?/(EFI/[A-Za-z0-9._-]{1,40})\x00`)

// grubDirs returns every directory where a GRUB of the system partition may look for its configuration: its own, and
// the one compiled into it.
func (e *esp) grubDirs(a arch, vendor string) []string {
	var dirs []string
	add := func(d string) {
		if !slices.ContainsFunc(dirs, func(o string) bool { return strings.EqualFold(o, d) }) {
			dirs = append(dirs, d)
		}
	}
	for _, f := range e.files {
		base := strings.ToLower(path.Base(f.Path))
		if base != "grub"+a.suffix+".efi" && !strings.EqualFold(base, a.fallback()) {
			continue
		}
		if base == "grub"+a.suffix+".efi" || bytes.Contains(f.Data, []byte("grub")) && grubPrefix.Match(f.Data) {
			add(path.Dir(f.Path))
		}
		for _, m := range grubPrefix.FindAllSubmatch(f.Data, 4) {
			add(string(m[1]))
		}
	}
	if len(dirs) > 0 {
		add("EFI/" + vendor)
	}
	return dirs
}

var plainName = regexp.MustCompile(`^[a-z0-9._-]{1,30}$`)

// vendorOf returns the name of the system's directory on the system partition.
func vendorOf(fs *ext4.FS) string {
	for _, name := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		b, err := fs.Read(name, maxText)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "ID="); ok {
				if v = strings.ToLower(strings.Trim(v, `"'`)); plainName.MatchString(v) && v != "boot" {
					return v
				}
			}
		}
	}
	return "linux"
}

var (
	rootPartUUID = regexp.MustCompile(
		`\broot=PARTUUID=([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})\b`)
	guid      = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	fatSerial = regexp.MustCompile(`^([0-9a-fA-F]{4})-([0-9a-fA-F]{4})$`)
)

// names finds the identifiers of the partitions in /etc/fstab and on the kernel's command line, so that the system
// finds them again.
func (e *esp) names(fs *ext4.FS, config string) {
	if b, err := fs.Read("/etc/fstab", maxText); err == nil {
		for line := range strings.Lines(string(b)) {
			fields := strings.Fields(line)
			if len(fields) < 2 || fields[1] != "/" && fields[1] != "/boot/efi" {
				continue
			}
			kind, v, _ := strings.Cut(fields[0], "=")
			v = strings.Trim(v, `"`)
			switch {
			case kind == "PARTUUID" && guid.MatchString(v) && fields[1] == "/":
				e.rootGUID = strings.ToUpper(v)
			case kind == "PARTUUID" && guid.MatchString(v):
				e.espGUID = strings.ToUpper(v)
			case fields[1] == "/": // the file system itself keeps its label and UUID
			case kind == "UUID" && fatSerial.MatchString(v):
				m := fatSerial.FindStringSubmatch(v)
				n, _ := strconv.ParseUint(m[1]+m[2], 16, 32)
				e.serial = uint32(n)
			case kind == "LABEL" && len(v) > 0 && len(v) <= 11 &&
				!strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r > '~' }):
				e.label = v
			}
		}
	}
	if e.rootGUID == "" && config != "" {
		b, _ := fs.Read(config, maxText) // what can't be read says nothing
		if m := rootPartUUID.FindSubmatch(b); m != nil {
			e.rootGUID = strings.ToUpper(string(m[1]))
		}
	}
	if e.espGUID == e.rootGUID {
		e.espGUID = ""
	}
}

// utf16File encodes text for a CSV of shim's fallback program.
func utf16File(s string) []byte {
	return append([]byte{0xff, 0xfe}, utf16Bytes(s)...)
}
