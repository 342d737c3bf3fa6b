package bootentry

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Limits of a script; a generated one needs a hundredth of them.
const (
	maxSteps  = 200_000
	maxValue  = 16 << 10
	maxVars   = 4096
	maxCalls  = 16
	maxMenu   = 2000
	maxMounts = 64
	maxEnv    = 64 << 10 // of variables
)

// shell runs GRUB's scripts as far as they affect the started system.
type shell struct {
	d      *disk
	env    map[string]string
	funcs  map[string][]stmt
	args   []string // $1 and following
	menu   []*item
	image  *image // loaded by linux and initrd
	steps  int
	calls  int
	mounts []mount
	file   string // running file, for messages
}

// mount is a btrfs subvolume mounted on a directory.
type mount struct {
	vol         int
	dir, subvol string
}

// item is an entry of the menu.
type item struct {
	title, id string
	file      string
	line      int
	sub       bool
	hidden    bool // selectable by its key only
	args      []string
	body      []stmt
	bls       *blsEntry
}

type image struct {
	kernel  File
	initrds []File
	cmdline string
}

// errBoot ends a script at the point where GRUB starts something. errReturn ends a function.
var (
	errBoot   = errors.New("boot")
	errReturn = errors.New("return")
)

// grub finds GRUB's configuration and runs it. A configuration on the EFI system partition comes first if firmware
// starts that one.
func (d *disk) grub() (*Entry, error) {
	type place struct {
		vol  int
		file string
	}
	var places []place
	for i, v := range d.vols {
		if !v.ESP || !d.m.UEFI || v.FS == nil {
			continue
		}
		dirs, err := fs.ReadDir(v.FS, "EFI")
		if err != nil || len(dirs) > 1000 {
			continue
		}
		for _, e := range dirs {
			if file := "EFI/" + e.Name() + "/grub.cfg"; d.isFile(i, file) {
				places = append(places, place{i, file})
			}
		}
		// Firmware starts EFI/BOOT only without an entry: the vendor's own directory comes first.
		slices.SortStableFunc(places, func(a, b place) int {
			boot := func(p place) int {
				if strings.HasPrefix(strings.ToUpper(p.file), "EFI/BOOT/") {
					return 1
				}
				return 0
			}
			return boot(a) - boot(b)
		})
	}
	for i, v := range d.vols {
		for _, file := range []string{"boot/grub/grub.cfg", "boot/grub2/grub.cfg", "grub/grub.cfg", "grub2/grub.cfg"} {
			if !v.ESP && d.isFile(i, file) {
				places = append(places, place{i, file})
			}
		}
		// Ubuntu and Debian install into a btrfs subvolume that is not the default.
		for _, file := range []string{"@/boot/grub/grub.cfg", "@rootfs/boot/grub/grub.cfg"} {
			if !v.ESP && !slices.ContainsFunc(places, func(p place) bool { return p.vol == i }) && d.isFile(i, file) {
				places = append(places, place{i, file})
			}
		}
	}
	var first error
	for _, p := range places {
		e, err := d.runGRUB(p.vol, p.file)
		if err == nil {
			return e, nil
		}
		first = cmp.Or(first, err)
		if d.ctx.Err() != nil {
			break
		}
	}
	first = cmp.Or(first, fs.ErrNotExist)
	return nil, first
}

// runGRUB runs a configuration as a GRUB with this prefix does, and then the entry that is the default.
func (d *disk) runGRUB(vol int, file string) (*Entry, error) {
	dev := "(" + d.vols[vol].device() + ")"
	s := &shell{d: d, funcs: map[string][]stmt{}, env: map[string]string{
		"root": d.vols[vol].device(), "prefix": dev + "/" + path.Dir(file), "config_directory": dev + "/" +
			path.Dir(file), "config_file": dev + "/" + file,
		"cmdpath": dev + "/" + path.Dir(file), "grub_platform": "pc", "grub_cpu": "i386", "lang": "", "0": "",
		"feature_menuentry_id": "y", "feature_platform_search_hint": "y", "feature_default_font_path": "y",
		"feature_timeout_style": "y", "feature_all_video_module": "y", "feature_chainloader_bpb": "y",
		"feature_ntldr": "y", "feature_200_final": "y", "feature_nativedisk_cmd": "y",
	}}
	if d.m.UEFI {
		s.env["grub_platform"] = "efi"
		s.env["grub_cpu"] = cmp.Or(map[string]string{"amd64": "x86_64", "386": "i386"}[d.m.Arch], d.m.Arch)
	}
	e, err := s.boot(vol, file)
	if err != nil {
		return nil, fmt.Errorf("partition %d: %w", d.vols[vol].Number, err)
	}
	return e, nil
}

func (s *shell) boot(vol int, file string) (*Entry, error) {
	if err := s.source(vol, file); err != nil && !errors.Is(err, errBoot) {
		return nil, err
	}
	config, title := s.file, ""
	for depth := 0; len(s.menu) > 0; depth++ {
		if depth > 4 {
			return nil, errors.New("too many menus in each other")
		}
		it, rest := s.choose()
		config, title = it.file, it.title
		if it.bls != nil {
			return s.startBLS(it)
		}
		s.menu, s.image, s.args, s.file = nil, nil, it.args, it.file
		s.env["chosen"], s.env["default"] = it.title, rest
		if err := s.run(it.body); err != nil && !errors.Is(err, errBoot) && !errors.Is(err, errReturn) {
			return nil, fmt.Errorf("menu entry %q: %w", it.title, err)
		}
		if s.image != nil && len(s.menu) == 0 {
			break
		}
	}
	if s.image == nil {
		if title != "" {
			return nil, fmt.Errorf("menu entry %q starts no Linux", title)
		}
		return nil, fmt.Errorf("%s has no menu entry and starts no Linux", file)
	}
	return &Entry{From: "grub.cfg", Config: config, Title: title, Kernel: s.image.kernel, Initrds: s.image.initrds,
		Cmdline: s.image.cmdline}, nil
}

// choose returns the menu's default entry, and the rest of the variable for a submenu. The first entry replaces one
// that does not exist.
func (s *shell) choose() (*item, string) {
	want, rest := s.env["default"], ""
	for i := 0; i < len(want); i++ {
		if want[i] != '>' {
			continue
		}
		if i+1 < len(want) && want[i+1] == '>' {
			i++ // doubled: part of the name
			continue
		}
		want, rest = want[:i], want[i+1:]
		break
	}
	want = strings.ReplaceAll(want, ">>", ">")
	if n, err := strconv.Atoi(want); err == nil && n >= 0 && n < len(s.menu) {
		return s.menu[n], rest
	}
	for _, it := range s.menu {
		if want != "" && (it.id == want || it.title == want) {
			return it, rest
		}
	}
	return s.menu[0], ""
}

func (s *shell) startBLS(it *item) (*Entry, error) {
	e := it.bls
	if e.linux != "" && !s.d.isFile(e.vol, e.linux) {
		if vol, err := s.device(s.env["root"]); err == nil && s.d.isFile(vol, e.linux) {
			moved := *e
			moved.vol, e = vol, &moved
		}
	}
	options, err := s.expandText(e.options)
	if err != nil {
		return nil, err
	}
	initrds, err := s.expandText(strings.Join(e.initrds, " "))
	if err != nil {
		return nil, err
	}
	filled := *e
	filled.initrds = strings.Fields(initrds)
	out, err := s.d.blsOf(&filled, "grub.cfg and BLS", options, strings.Fields(s.env["early_initrd"]))
	if err == nil && e.linux != "" {
		out.Cmdline = strings.TrimSpace("BOOT_IMAGE=(" + s.d.vols[e.vol].device() + ")" + e.linux + " " + out.Cmdline)
	}
	return out, err
}

// expandText expands the variables in an entry's line: $kernelopts, $tuned_params.
func (s *shell) expandText(text string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(text); {
		if text[i] != '$' {
			out.WriteByte(text[i])
			i++
			continue
		}
		j := i + 1
		brace := j < len(text) && text[j] == '{'
		if brace {
			j++
		}
		k := j
		for k < len(text) && nameByte(text[k], k == j) {
			k++
		}
		name := text[j:k]
		if brace {
			if k >= len(text) || text[k] != '}' {
				return "", fmt.Errorf("%q has a variable without an end", text)
			}
			k++
		}
		v, ok := s.env[name]
		if !ok && name == "kernelopts" {
			v = s.env["default_kernelopts"]
		}
		out.WriteString(v)
		if out.Len() > maxValue {
			return "", fmt.Errorf("the value of %s is too long", name)
		}
		i = k
	}
	return out.String(), nil
}

// source runs a file in this shell.
func (s *shell) source(vol int, file string) error {
	if s.calls++; s.calls > maxCalls {
		return errors.New("too many configurations in each other")
	}
	defer func() { s.calls-- }()
	b, err := s.d.read(vol, file, maxConfig)
	if err != nil {
		return err
	}
	list, err := parseScript(string(b))
	if err != nil {
		return fmt.Errorf("%s, %w", file, err) // the error already has the line
	}
	before := s.file
	s.file = file
	if err = s.run(list); err == nil && s.calls > 1 { // on error, the line where it occurred
		s.file = before
	}
	return err
}

func (s *shell) run(list []stmt) error {
	for _, st := range list {
		if s.steps++; s.steps > maxSteps {
			return errors.New("the script does not come to an end")
		}
		if s.steps%256 == 0 && s.d.ctx.Err() != nil {
			return s.d.ctx.Err()
		}
		if err := s.one(st); err != nil {
			return err
		}
	}
	return nil
}

func (s *shell) status(ok bool) {
	s.env["?"] = "1"
	if ok {
		s.env["?"] = "0"
	}
}

func (s *shell) one(st stmt) error {
	switch st := st.(type) {
	case ifStmt:
		for i, c := range st.conds {
			if err := s.run(c); err != nil {
				return err
			}
			if s.env["?"] == "0" {
				return s.run(st.bodies[i])
			}
		}
		s.status(true)
		return s.run(st.other)
	case forStmt:
		words, err := s.expand(st.words)
		if err != nil {
			return err
		}
		for _, w := range words {
			if strings.ContainsAny(w, "*?") {
				return fmt.Errorf("a for over files (%q) is not understood here", w)
			}
			if err := s.set(st.name, w); err != nil {
				return err
			}
			if err := s.run(st.body); err != nil {
				return err
			}
		}
		return nil
	case funcStmt:
		if len(s.funcs) >= maxVars {
			return errors.New("too many functions")
		}
		s.funcs[st.name] = st.body
		s.status(true)
		return nil
	case menuStmt:
		return s.entry(st)
	case command:
		words, err := s.expand(st.words)
		if err == nil && len(words) > 0 {
			err = s.command(words)
		}
		if err != nil && !errors.Is(err, errBoot) && !errors.Is(err, errReturn) {
			var at *lineError
			if !errors.As(err, &at) {
				err = &lineError{s.file, st.line, err}
			}
		}
		return err
	}
	return fmt.Errorf("a statement of kind %T", st)
}

// lineError adds the line of a script to an error.
type lineError struct {
	file string
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("%s, line %d: %v", e.file, e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// expand expands variables. Outside of quotes a value is split into words, and an empty value is dropped.
func (s *shell) expand(words []word) ([]string, error) {
	var out []string
	total := 0
	for _, w := range words {
		cur, have := "", false
		for _, p := range w {
			text := p.text
			if p.variable {
				text = s.value(p.text)
			}
			if total += len(text) + 1; total > 4*maxValue {
				return nil, errors.New("a command that is too long")
			}
			if !p.variable || p.quoted {
				cur += text
				have = have || p.quoted || text != ""
				continue
			}
			for i, f := range strings.Fields(text) {
				if i > 0 || cur != "" && text[0] == ' ' {
					out = append(out, cur)
					cur = ""
				}
				cur += f
				have = true
			}
		}
		if have {
			out = append(out, cur)
		}
	}
	return out, nil
}

func (s *shell) value(name string) string {
	if name == "@" || name == "*" {
		return strings.Join(s.args, " ")
	}
	if name == "#" {
		return strconv.Itoa(len(s.args))
	}
	if n, err := strconv.Atoi(name); err == nil && n > 0 {
		if n <= len(s.args) {
			return s.args[n-1]
		}
		return ""
	}
	return s.env[name]
}

func (s *shell) set(name, value string) error {
	if len(value) > maxValue || len(s.env) > maxVars || len(name) > 200 {
		return fmt.Errorf("variable %.40q takes too much room", name)
	}
	s.env[name] = value
	return nil
}

// entry adds an entry to the menu.
func (s *shell) entry(st menuStmt) error {
	words, err := s.expand(st.words)
	if err != nil {
		return err
	}
	it := &item{file: s.file, line: st.line, sub: st.sub, hidden: st.hidden, body: st.body}
	for i := 0; i < len(words); i++ {
		w := words[i]
		switch {
		case w == "--id" || w == "--class" || w == "--users" || w == "--hotkey" || w == "--source":
			if i++; i < len(words) && w == "--id" {
				it.id = words[i]
			}
		case strings.HasPrefix(w, "--id="):
			it.id = w[5:]
		case strings.HasPrefix(w, "--"):
		default:
			it.args = append(it.args, w)
		}
	}
	if len(it.args) > 0 {
		it.title = it.args[0]
	}
	return s.add(it)
}

func (s *shell) add(it *item) error {
	if len(s.menu) >= maxMenu {
		return errors.New("too many menu entries")
	}
	at := len(s.menu)
	for !it.hidden && at > 0 && s.menu[at-1].hidden { // hidden entries don't count
		at--
	}
	s.menu = slices.Insert(s.menu, at, it)
	s.status(true)
	return nil
}
