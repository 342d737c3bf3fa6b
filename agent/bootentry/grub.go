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

// Bounds of a script: a generated one needs a hundredth.
const (
	maxSteps  = 200_000
	maxValue  = 16 << 10
	maxVars   = 4096
	maxCalls  = 16
	maxMenu   = 2000
	maxMounts = 64
	maxEnv    = 64 << 10 // of variables
)

// shell runs GRUB's scripts as far as they decide what is started.
type shell struct {
	d      *disk
	env    map[string]string
	funcs  map[string][]stmt
	args   []string // $1 and following
	menu   []*item
	image  *image // what linux and initrd have loaded
	steps  int
	calls  int
	mounts []mount
	file   string // that is being run, for messages
}

// mount is a subvolume of btrfs that stands for a folder.
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
	hidden    bool // found by its key alone
	args      []string
	body      []stmt
	bls       *blsEntry
}

type image struct {
	kernel  File
	initrds []File
	cmdline string
}

// errBoot ends a script: it has come to the point where GRUB starts something. errReturn ends a function.
var (
	errBoot   = errors.New("boot")
	errReturn = errors.New("return")
)

// grub finds GRUB's configuration and runs it. The one on the EFI system partition comes first where that is what starts.
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
		// EFI/BOOT is what firmware starts without an entry: the vendor's own comes first.
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
		// Ubuntu and Debian have their system in a subvolume of btrfs that is not the default.
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
		if first == nil {
			first = err
		}
		if d.ctx.Err() != nil {
			break
		}
	}
	if first == nil {
		first = fs.ErrNotExist
	}
	return nil, first
}

// runGRUB runs a configuration as GRUB does that has it in its prefix, and the entry that it makes the default.
func (d *disk) runGRUB(vol int, file string) (*Entry, error) {
	dev := "(" + d.vols[vol].device() + ")"
	s := &shell{d: d, funcs: map[string][]stmt{}, env: map[string]string{
		"root": d.vols[vol].device(), "prefix": dev + "/" + path.Dir(file), "config_directory": dev + "/" + path.Dir(file), "config_file": dev + "/" + file,
		"cmdpath": dev + "/" + path.Dir(file), "grub_platform": "pc", "grub_cpu": "i386", "lang": "", "0": "",
		"feature_menuentry_id": "y", "feature_platform_search_hint": "y", "feature_default_font_path": "y", "feature_timeout_style": "y",
		"feature_all_video_module": "y", "feature_chainloader_bpb": "y", "feature_ntldr": "y", "feature_200_final": "y", "feature_nativedisk_cmd": "y",
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
	return &Entry{From: "grub.cfg", Config: config, Title: title, Kernel: s.image.kernel, Initrds: s.image.initrds, Cmdline: s.image.cmdline}, nil
}

// choose gives the default entry of the menu, and what is left of the variable for a submenu. What can't be found is the first one.
func (s *shell) choose() (*item, string) {
	want, rest := s.env["default"], ""
	for i := 0; i < len(want); i++ {
		if want[i] != '>' {
			continue
		}
		if i+1 < len(want) && want[i+1] == '>' {
			i++ // doubled: a part of the name
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
	var linux []string
	for _, name := range e.initrds {
		t, err := s.expandText(name)
		if err != nil {
			return nil, err
		}
		linux = append(linux, strings.Fields(t)...)
	}
	filled := *e
	filled.initrds = linux
	out, err := s.d.blsOf(&filled, "grub.cfg and BLS", options, strings.Fields(s.env["early_initrd"]))
	if err == nil && e.linux != "" {
		out.Cmdline = strings.TrimSpace("BOOT_IMAGE=(" + s.d.vols[e.vol].device() + ")" + e.linux + " " + out.Cmdline)
	}
	return out, err
}

// expandText fills in the variables of an entry's line: $kernelopts, $tuned_params.
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
		return fmt.Errorf("%s, %w", file, err) // the line is told
	}
	before := s.file
	s.file = file
	err = s.run(list)
	if err == nil { // else the end is where it is
		s.file = before
		if s.calls == 1 {
			s.file = file
		}
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

// lineError says where a script was left.
type lineError struct {
	file string
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("%s, line %d: %v", e.file, e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// expand fills in variables. Outside of quotes a value is cut into words, and an empty one is none.
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
			fields := strings.Fields(text)
			for i, f := range fields {
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
	switch {
	case name == "@" || name == "*":
		return strings.Join(s.args, " ")
	case name == "#":
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
	for !it.hidden && at > 0 && s.menu[at-1].hidden { // those don't count
		at--
	}
	s.menu = slices.Insert(s.menu, at, it)
	s.status(true)
	return nil
}

// Commands that decide nothing. Those that are to bring up a display or a module succeed.
var idle = map[string]bool{
	"insmod": true, "rmmod": true, "terminal_input": true, "terminal_output": true, "terminal": true, "serial": true, "loadfont": true, "echo": true,
	"export": true, "true": true, ":": true, "background_image": true, "background_color": true, "play": true, "sleep": true, "clear": true, "password": true,
	"password_pbkdf2": true, "save_env": true, "keymap": true, "cutmem": true, "badram": true, "videoinfo": true, "gettext": true, "hdparm": true, "cat": true, "ls": true,
	"efi-watchdog": true, "usb_keyboard": true, "nativedisk": true, "set_background": true, "lsefi": true, "lsmod": true, "tpm_record_pcrs": true, "wrmsr": true,
}

func (s *shell) command(w []string) error {
	if body, ok := s.funcs[w[0]]; ok {
		if s.calls++; s.calls > maxCalls {
			return errors.New("too many functions in each other")
		}
		args := s.args
		s.args = w[1:]
		s.status(true)
		err := s.run(body)
		s.args = args
		s.calls--
		if errors.Is(err, errReturn) {
			return nil
		}
		return err
	}
	if name, value, ok := strings.Cut(w[0], "="); ok && len(w) == 1 && variableName.MatchString(name) {
		s.status(true)
		return s.set(name, value)
	}
	if idle[w[0]] {
		s.status(true)
		return nil
	}
	switch w[0] {
	case "set":
		s.status(true)
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
		s.status(true)
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
	case "hwmatch": // graphics cards that can't keep their mode: a matter of looks
		s.status(true)
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
	case "regexp":
		return errors.New("regexp is not understood here")
	case "cryptomount":
		return errors.New("its files lie in an encrypted volume")
	case "chainloader":
		return errors.New("another boot loader is started (chainloader)")
	case "devicetree":
		return errors.New("a device tree is loaded, which is not done here")
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

// test is [ ... ].
func (s *shell) test(a []string) (bool, error) {
	t := &tester{s: s, a: a}
	v, err := t.or()
	if err == nil && len(t.a) > 0 {
		err = fmt.Errorf("the condition [ %s ] is not understood here", strings.Join(a, " "))
	}
	return v, err
}

type tester struct {
	s     *shell
	a     []string
	depth int
}

func (t *tester) or() (bool, error) {
	if t.depth++; t.depth > maxNested {
		return false, errors.New("a condition with too many parts in each other")
	}
	defer func() { t.depth-- }()
	v, err := t.and()
	for err == nil && len(t.a) > 0 && t.a[0] == "-o" {
		t.a = t.a[1:]
		var w bool
		w, err = t.and()
		v = v || w
	}
	return v, err
}

func (t *tester) and() (bool, error) {
	v, err := t.unary()
	for err == nil && len(t.a) > 0 && t.a[0] == "-a" {
		t.a = t.a[1:]
		var w bool
		w, err = t.unary()
		v = v && w
	}
	return v, err
}

func (t *tester) unary() (bool, error) {
	if len(t.a) == 0 {
		return false, nil
	}
	if len(t.a) >= 3 {
		if v, ok, err := t.s.compare(t.a[0], t.a[1], t.a[2]); ok || err != nil {
			t.a = t.a[3:]
			return v, err
		}
	}
	op := t.a[0]
	switch {
	case op == "!":
		if t.depth++; t.depth > maxNested {
			return false, errors.New("a condition with too many parts in each other")
		}
		defer func() { t.depth-- }()
		t.a = t.a[1:]
		v, err := t.unary()
		return !v, err
	case op == "(":
		t.a = t.a[1:]
		v, err := t.or()
		if err == nil && (len(t.a) == 0 || t.a[0] != ")") {
			err = errors.New("a condition with ( but without )")
		}
		if err == nil {
			t.a = t.a[1:]
		}
		return v, err
	case len(op) == 2 && op[0] == '-' && len(t.a) >= 2:
		arg := t.a[1]
		switch op[1] {
		case 'n':
			t.a = t.a[2:]
			return arg != "", nil
		case 'z':
			t.a = t.a[2:]
			return arg == "", nil
		case 'e', 'f', 's', 'd':
			t.a = t.a[2:]
			vol, name, err := t.s.resolve(arg)
			if err != nil {
				return false, nil
			}
			fi := t.s.d.stat(vol, name)
			switch {
			case fi == nil:
				return false, nil
			case op[1] == 's':
				return fi.Size() > 0, nil
			case op[1] == 'f':
				return !fi.IsDir(), nil
			case op[1] == 'd':
				return fi.IsDir(), nil
			}
			return true, nil
		}
	}
	t.a = t.a[1:]
	return op != "", nil
}

func (s *shell) compare(a, op, b string) (v, ok bool, err error) {
	switch op {
	case "=", "==":
		return a == b, true, nil
	case "!=":
		return a != b, true, nil
	case "-eq", "-ne", "-lt", "-le", "-gt", "-ge":
		x, err1 := strconv.ParseInt(cmp.Or(a, "0"), 0, 64)
		y, err2 := strconv.ParseInt(cmp.Or(b, "0"), 0, 64)
		if err1 != nil || err2 != nil {
			return false, true, fmt.Errorf("%q and %q are compared as numbers", a, b)
		}
		c := cmp.Compare(x, y)
		return map[string]bool{"-eq": c == 0, "-ne": c != 0, "-lt": c < 0, "-le": c <= 0, "-gt": c > 0, "-ge": c >= 0}[op], true, nil
	case "-nt", "-ot", "-pgt", "-plt", "<", ">":
		return false, true, fmt.Errorf("the comparison %s is not understood here", op)
	}
	return false, false, nil
}

var (
	deviceName = regexp.MustCompile(`^hd(\d+)(?:,(?:gpt|msdos)?(\d+))?$`)
	errDevice  = errors.New("no such device on this disk")
)

// device finds a volume by GRUB's name for it. Names count disks as the firmware does: the first is taken for the one that was
// started from.
func (s *shell) device(name string) (int, error) {
	switch {
	case strings.HasPrefix(name, "lvm"):
		return -1, fmt.Errorf("its files lie in LVM (%s), which is not read here", name)
	case strings.HasPrefix(name, "cryptouuid/"), strings.HasPrefix(name, "crypto"):
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

// mountSubvolume is btrfs-mount-subvol ($root) /boot/grub2/x86_64-efi @/boot/grub2/x86_64-efi, which SUSE's GRUB has.
func (s *shell) mountSubvolume(w []string) error {
	if len(w) != 4 || clean(w[2]) == "." || len(s.mounts) >= maxMounts {
		return fmt.Errorf("%s is not understood here", strings.Join(w, " "))
	}
	vol, err := s.device(strings.Trim(w[1], "()"))
	if err != nil {
		return err
	}
	s.mounts = slices.Insert(s.mounts, 0, mount{vol, clean(w[2]), clean(w[3])})
	s.status(true)
	return nil
}

// blockList is a file by its place on the volume, in sectors: SUSE keeps variables before the begin of btrfs, which can't be written to otherwise.
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

// loadEnv reads a block of variables that GRUB and the system leave for each other.
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

// search finds a volume by its file system's UUID or label, or a file on it. On failure the variable keeps its value, as in GRUB: it was
// set by the name of a device before.
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
		if hit {
			s.status(true)
			if variable == "" {
				return nil
			}
			return s.set(variable, v.device())
		}
	}
	s.status(false)
	return nil
}

// include runs another configuration: source in place, the others as a menu of their own, which is then the one that counts.
func (s *shell) include(w []string) error {
	if len(w) < 2 {
		if w[0] == "normal" {
			w = append(w, s.env["prefix"]+"/grub.cfg")
		} else {
			return fmt.Errorf("%s without a file", w[0])
		}
	}
	vol, name, err := s.resolve(w[1])
	if err != nil {
		return err
	}
	if !s.d.isFile(vol, name) {
		if w[0] == "source" || w[0] == "." {
			s.status(false)
			return nil
		}
		return fmt.Errorf("%s is not on the disk", w[1])
	}
	if w[0] == "source" || w[0] == "." {
		s.status(true)
		return s.source(vol, name)
	}
	s.menu, s.image, s.args = nil, nil, nil
	delete(s.env, "default")
	dev := "(" + s.d.vols[vol].device() + ")"
	for k, v := range map[string]string{"config_file": dev + "/" + name, "config_directory": dev + "/" + path.Dir(name)} {
		if err := s.set(k, v); err != nil {
			return err
		}
	}
	if err := s.source(vol, name); err != nil {
		return err
	}
	s.file = name
	return errBoot // GRUB shows that menu now and does not come back
}

// linux is the command that loads a kernel. Its words are quoted as GRUB hands them to the kernel.
func (s *shell) linux(w []string) error {
	if len(w) < 2 {
		return errors.New("linux without a file")
	}
	vol, name, err := s.resolve(w[1])
	if err != nil {
		return err
	}
	f, err := s.d.kernelFile(vol, name)
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
	s.status(true)
	return nil
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
		vol, name, err := s.resolve(a)
		if err != nil {
			return err
		}
		f, err := s.d.kernelFile(vol, name)
		if err != nil {
			return err
		}
		s.image.initrds = append(s.image.initrds, f)
	}
	s.status(true)
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
		if err != nil {
			if errors.Is(err, errDevice) {
				continue
			}
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
