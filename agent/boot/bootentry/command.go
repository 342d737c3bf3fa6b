package bootentry

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Commands without influence on the started system. Those that initialize a display or load a module succeed.
var idle = map[string]bool{
	"insmod": true, "rmmod": true, "terminal_input": true, "terminal_output": true, "terminal": true, "serial": true,
	"loadfont": true, "echo": true, "export": true, "true": true, ":": true, "background_image": true,
	"background_color": true, "play": true, "sleep": true, "clear": true, "password": true, "password_pbkdf2": true,
	"save_env": true, "keymap": true, "cutmem": true, "badram": true, "videoinfo": true, "gettext": true,
	"hdparm": true, "cat": true, "ls": true, "efi-watchdog": true, "usb_keyboard": true, "nativedisk": true,
	"set_background": true, "lsefi": true, "lsmod": true, "tpm_record_pcrs": true, "wrmsr": true,
}

// refused are commands of which nothing can be made here, and why.
var refused = map[string]string{
	"regexp": "regexp is not understood here", "cryptomount": "its files lie in an encrypted volume",
	"chainloader": "another boot loader is started (chainloader)",
	"devicetree":  "a device tree is loaded, which is not done here",
}

// command runs a command. It has succeeded if it does not say otherwise.
func (s *shell) command(w []string) error {
	s.status(true)
	if body, ok := s.funcs[w[0]]; ok {
		if s.calls++; s.calls > maxCalls {
			return errors.New("too many functions in each other")
		}
		args := s.args
		s.args = w[1:]
		err := s.run(body)
		s.args = args
		s.calls--
		if errors.Is(err, errReturn) {
			return nil
		}
		return err
	}
	if name, value, ok := strings.Cut(w[0], "="); ok && len(w) == 1 && variableName.MatchString(name) {
		return s.set(name, value)
	}
	if idle[w[0]] {
		return nil
	}
	if why := refused[w[0]]; why != "" {
		return errors.New(why)
	}
	switch w[0] {
	case "set":
		if len(w) < 2 {
			return nil
		}
		name, value, ok := strings.Cut(w[1], "=")
		if !ok || len(w) > 2 {
			return fmt.Errorf("set %s is not understood here", strings.Join(w[1:], " "))
		}
		return s.set(name, value)
	case "unset":
		for _, n := range w[1:] {
			delete(s.env, n)
		}
		return nil
	case "false":
		s.status(false)
		return nil
	case "[", "test":
		args := w[1:]
		if w[0] == "[" {
			if len(args) == 0 || args[len(args)-1] != "]" {
				return errors.New("a [ without ]")
			}
			args = args[:len(args)-1]
		}
		ok, err := s.test(args)
		s.status(ok)
		return err
	case "load_env":
		return s.loadEnv(w[1:])
	case "btrfs-mount-subvol":
		return s.mountSubvolume(w)
	case "search", "search.fs_uuid", "search.fs_label", "search.file":
		return s.search(w)
	case "source", ".", "configfile", "normal":
		return s.include(w)
	case "blscfg", "bls_import":
		return s.blscfg()
	case "increment", "decrement":
		return s.count(w)
	case "hwmatch": // graphics cards that can't keep their mode: display only
		return s.set("match", "0")
	case "return":
		s.status(len(w) < 2 || w[1] == "0")
		return errReturn
	case "setparams":
		s.args = w[1:]
		return nil
	case "fwsetup":
		if len(w) == 2 && w[1] == "--is-supported" {
			s.status(s.d.m.UEFI)
			return nil
		}
	case "linux", "linuxefi", "linux16":
		return s.linux(w)
	case "initrd", "initrdefi", "initrd16":
		return s.initrd(w)
	case "boot":
		if s.image == nil {
			return errors.New("boot without a kernel")
		}
		return errBoot
	}
	return fmt.Errorf("the command %q is not known here", w[0])
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (s *shell) count(w []string) error {
	if len(w) != 2 {
		return fmt.Errorf("%s without a variable", w[0])
	}
	n, err := strconv.Atoi(s.env[w[1]])
	s.status(err == nil)
	if err != nil {
		return nil
	}
	if w[0] == "increment" {
		n++
	} else if n > 0 {
		n--
	}
	return s.set(w[1], strconv.Itoa(n))
}

var (
	deviceName = regexp.MustCompile(`^hd(\d+)(?:,(?:gpt|msdos)?(\d+))?$`)
	errDevice  = errors.New("no such device on this disk")
)

// device finds a volume by GRUB's name for it. Names number disks in the firmware's order: the first is assumed to be
// the boot disk.
func (s *shell) device(name string) (int, error) {
	if strings.HasPrefix(name, "lvm") {
		return -1, fmt.Errorf("its files lie in LVM (%s), which is not read here", name)
	}
	if strings.HasPrefix(name, "cryptouuid/") || strings.HasPrefix(name, "crypto") {
		return -1, errors.New("its files lie in an encrypted volume")
	}
	m := deviceName.FindStringSubmatch(name)
	if m == nil || m[1] != "0" {
		return -1, fmt.Errorf("%w: %s", errDevice, name)
	}
	n, _ := strconv.Atoi(m[2])
	for i, v := range s.d.vols {
		if v.Number == n {
			return i, nil
		}
	}
	return -1, fmt.Errorf("%w: %s", errDevice, name)
}

// resolve finds the volume of a path, which may begin with a device in parentheses.
func (s *shell) resolve(name string) (vol int, file string, err error) {
	dev := s.env["root"]
	if strings.HasPrefix(name, "(") {
		i := strings.IndexByte(name, ')')
		if i < 0 {
			return -1, "", fmt.Errorf("%q is no path", name)
		}
		dev, name = name[1:i], name[i+1:]
	}
	if vol, err = s.device(dev); err != nil {
		return -1, "", err
	}
	name = clean(name)
	for _, m := range s.mounts {
		if rest, ok := strings.CutPrefix(name+"/", m.dir+"/"); ok && m.vol == vol {
			return vol, clean(m.subvol + "/" + rest), nil
		}
	}
	return vol, name, nil
}

// mountSubvolume is SUSE's command btrfs-mount-subvol: ($root) /boot/grub2/x86_64-efi @/boot/grub2/x86_64-efi.
func (s *shell) mountSubvolume(w []string) error {
	if len(w) != 4 || clean(w[2]) == "." || len(s.mounts) >= maxMounts {
		return fmt.Errorf("%s is not understood here", strings.Join(w, " "))
	}
	vol, err := s.device(strings.Trim(w[1], "()"))
	if err != nil {
		return err
	}
	s.mounts = slices.Insert(s.mounts, 0, mount{vol, clean(w[2]), clean(w[3])})
	return nil
}

// blockList is a file given by its sectors on the volume: SUSE keeps variables before the start of btrfs, which GRUB
// can't write to.
var blockList = regexp.MustCompile(`^\([^()]*\)(\d{1,9})\+(\d{1,3})$`)

func (d *disk) blocks(vol int, first, count string) ([]byte, error) {
	at, err1 := strconv.ParseInt(first, 10, 64)
	n, err2 := strconv.Atoi(count)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if n > maxEnv/512 || d.vols[vol].Raw == nil {
		return nil, fmt.Errorf("sectors %s+%s of partition %d can't be read here", first, count, d.vols[vol].Number)
	}
	b := make([]byte, n*512)
	if k, err := d.vols[vol].Raw.ReadAt(b, at*512); k < len(b) {
		return nil, fmt.Errorf("read sectors %s+%s of partition %d: %w", first, count, d.vols[vol].Number, err)
	}
	return b, nil
}

// loadEnv reads a block of variables that GRUB and the system share.
func (s *shell) loadEnv(w []string) error {
	file := s.env["prefix"] + "/grubenv"
	var only []string
	for i := 0; i < len(w); i++ {
		switch {
		case w[i] == "-f" || w[i] == "--file":
			if i++; i < len(w) {
				file = w[i]
			}
		case strings.HasPrefix(w[i], "--file="):
			file = w[i][7:]
		case strings.HasPrefix(w[i], "-"):
		default:
			only = append(only, w[i])
		}
	}
	s.status(false)
	vol, name, err := s.resolve(file)
	if err != nil {
		return nil
	}
	var b []byte
	if m := blockList.FindStringSubmatch(file); m != nil {
		b, err = s.d.blocks(vol, m[1], m[2])
	} else {
		b, err = s.d.read(vol, name, maxEnv)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	text, ok := strings.CutPrefix(string(b), "# GRUB Environment Block\n")
	if !ok {
		return nil
	}
	text = strings.ReplaceAll(text, "\\\n", "")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok || !variableName.MatchString(k) || len(only) > 0 && !slices.Contains(only, k) {
			continue
		}
		if err := s.set(k, strings.ReplaceAll(v, `\\`, `\`)); err != nil {
			return err
		}
	}
	s.status(true)
	return nil
}

// search finds a volume by its file system's UUID or label, or a file on it. On failure the variable keeps its value,
// as in GRUB: it was set to a device name before.
func (s *shell) search(w []string) error {
	kind := strings.TrimPrefix(strings.TrimPrefix(w[0], "search"), ".")
	name, variable := "", ""
	var rest []string
	for i := 1; i < len(w); i++ {
		switch a := w[i]; {
		case a == "-u", a == "--fs-uuid":
			kind = "fs_uuid"
		case a == "-l", a == "--label", a == "--fs-label":
			kind = "fs_label"
		case a == "-f", a == "--file":
			kind = "file"
		case a == "-s":
			variable = "root"
			if i+1 < len(w) && variableName.MatchString(w[i+1]) && i+2 < len(w) {
				i++
				variable = w[i]
			}
		case a == "--set":
			variable = "root"
			if i+2 < len(w) && !strings.HasPrefix(w[i+1], "-") {
				i++
				variable = w[i]
			}
		case strings.HasPrefix(a, "--set="):
			variable = a[6:]
		case a == "--hint" || a == "-h":
			i++
		case strings.HasPrefix(a, "--hint"), a == "--no-floppy", a == "-n", a == "--efidisk-only":
		case strings.HasPrefix(a, "-"):
			return fmt.Errorf("search with %s is not understood here", a)
		default:
			rest = append(rest, a)
		}
	}
	if strings.HasPrefix(w[0], "search.") && len(rest) > 1 {
		variable = rest[1]
	}
	if len(rest) > 0 {
		name = rest[0]
	}
	if name == "" {
		return errors.New("search without a name")
	}
	for i, v := range s.d.vols {
		hit := false
		switch kind {
		case "fs_uuid":
			hit = v.FS != nil && v.UUID != "" && strings.EqualFold(v.UUID, name)
		case "fs_label":
			hit = v.FS != nil && v.Label == name
		case "file":
			hit = s.d.stat(i, name) != nil
		default:
			return errors.New("search without a kind is not understood here")
		}
		if hit && variable != "" {
			return s.set(variable, v.device())
		}
		if hit {
			return nil
		}
	}
	s.status(false)
	return nil
}

// include runs another configuration: source in place, the other commands as a separate menu, which then replaces the
// current one.
func (s *shell) include(w []string) error {
	if len(w) < 2 && w[0] == "normal" {
		w = append(w, s.env["prefix"]+"/grub.cfg")
	}
	if len(w) < 2 {
		return fmt.Errorf("%s without a file", w[0])
	}
	vol, name, err := s.resolve(w[1])
	if err != nil {
		return err
	}
	there, inPlace := s.d.isFile(vol, name), w[0] == "source" || w[0] == "."
	switch {
	case inPlace && there:
		return s.source(vol, name)
	case inPlace:
		s.status(false)
		return nil
	case !there:
		return fmt.Errorf("%s is not on the disk", w[1])
	}
	s.menu, s.image, s.args = nil, nil, nil
	delete(s.env, "default")
	dev := "(" + s.d.vols[vol].device() + ")"
	for k, v := range map[string]string{"config_file": dev + "/" + name, "config_directory": dev + "/" +
		path.Dir(name)} {
		if err := s.set(k, v); err != nil {
			return err
		}
	}
	if err := s.source(vol, name); err != nil {
		return err
	}
	s.file = name
	return errBoot // GRUB shows that menu now and does not return
}

// linux is the command that loads a kernel. Its words are quoted as GRUB passes them to the kernel.
func (s *shell) linux(w []string) error {
	if len(w) < 2 {
		return errors.New("linux without a file")
	}
	f, err := s.kernelFile(w[1])
	if err != nil {
		return err
	}
	words := []string{"BOOT_IMAGE=" + w[1]}
	for _, a := range w[2:] {
		quote := strings.ContainsAny(a, " \t")
		a = strings.NewReplacer(`\`, `\\`, `'`, `\'`, `"`, `\"`).Replace(a)
		if quote {
			a = `"` + a + `"`
		}
		words = append(words, a)
	}
	s.image = &image{kernel: f, cmdline: strings.Join(words, " ")}
	return nil
}

func (s *shell) kernelFile(path string) (File, error) {
	vol, name, err := s.resolve(path)
	if err != nil {
		return File{}, err
	}
	return s.d.kernelFile(vol, name)
}

func (s *shell) initrd(w []string) error {
	if s.image == nil {
		return errors.New("initrd without a kernel")
	}
	if len(w)-1 > maxInitrds {
		return errors.New("too many initial ramdisks")
	}
	s.image.initrds = nil
	for _, a := range w[1:] {
		if strings.HasPrefix(a, "newc:") || strings.HasPrefix(a, "--") {
			return fmt.Errorf("initrd %s is not understood here", a)
		}
		f, err := s.kernelFile(a)
		if err != nil {
			return err
		}
		s.image.initrds = append(s.image.initrds, f)
	}
	return nil
}

// blscfg adds the entries of the Boot Loader Specification to the menu, newest first, as Fedora's GRUB does.
func (s *shell) blscfg() error {
	var tried []string
	for _, dev := range []string{s.env["boot"], s.env["root"]} {
		if dev == "" || slices.Contains(tried, dev) {
			continue
		}
		tried = append(tried, dev)
		vol, err := s.device(strings.Trim(dev, "()"))
		if errors.Is(err, errDevice) {
			continue
		}
		if err != nil {
			return err
		}
		for _, dir := range []string{s.env["blsdir"], "/loader/entries", "/boot/loader/entries"} {
			if dir == "" {
				continue
			}
			list, err := s.d.entriesIn(vol, dir)
			if err != nil {
				return err
			}
			if len(list) == 0 {
				continue
			}
			slices.SortStableFunc(list, func(a, b *blsEntry) int { return compareVersions(b.id, a.id) })
			for _, e := range list {
				if err := s.add(&item{title: cmp.Or(e.title, e.id), id: e.id, file: e.file, bls: e}); err != nil {
					return err
				}
			}
			return nil
		}
	}
	s.status(false)
	return nil
}
