package bootentry

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// blsEntry is an entry of the Boot Loader Specification, type 1 or 2.
type blsEntry struct {
	id      string // file name without .conf, and without a counter of tries
	file    string
	vol     int
	title   string
	version string
	sortKey string
	machine string
	linux   string
	initrds []string
	options string
	arch    string
	other   string // kind of an entry other than Linux: "efi", "uki"
	uki     *uki   // of type 2
	spent   bool   // all its boot attempts failed
}

var triesLeft = regexp.MustCompile(`\+(\d+)(?:-\d+)?$`)

func newEntry(vol int, file, suffix string) *blsEntry {
	e := &blsEntry{vol: vol, file: file, id: strings.TrimSuffix(path.Base(file), suffix)}
	if m := triesLeft.FindStringSubmatch(e.id); m != nil {
		e.id = strings.TrimSuffix(e.id, m[0])
		n, err := strconv.Atoi(m[1])
		e.spent = err == nil && n == 0
	}
	return e
}

// parseBLS parses an entry's file. Unknown keys are ignored, as the specification requires.
func parseBLS(vol int, file string, text []byte) *blsEntry {
	e := newEntry(vol, file, ".conf")
	single := map[string]*string{"title": &e.title, "version": &e.version, "sort-key": &e.sortKey,
		"machine-id": &e.machine, "linux": &e.linux, "architecture": &e.arch}
	var options []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		at := strings.IndexAny(line, " \t")
		if at < 0 || line[0] == '#' {
			continue
		}
		key, value := line[:at], strings.TrimSpace(line[at:])
		switch key {
		case "initrd":
			if len(e.initrds) <= maxInitrds {
				e.initrds = append(e.initrds, strings.Fields(value)...)
			}
		case "options":
			options = append(options, value)
		case "efi", "uki", "uki-url", "devicetree", "devicetree-overlay":
			e.other = key
		default:
			if into := single[key]; into != nil {
				*into = value
			}
		}
	}
	e.options = strings.Join(options, " ")
	return e
}

// entriesIn reads all entries of type 1 in a directory.
func (d *disk) entriesIn(vol int, dir string) ([]*blsEntry, error) {
	var out []*blsEntry
	for _, name := range d.list(vol, dir, ".conf") {
		b, err := d.read(vol, path.Join(dir, name), 64<<10)
		if err != nil {
			return nil, err
		}
		e := parseBLS(vol, path.Join(dir, name), b)
		if e.arch != "" && !strings.EqualFold(e.arch, d.m.efiName()) || e.linux == "" && e.other == "" {
			continue
		}
		out = append(out, e)
	}
	return out, nil
}

// compareVersions orders versions as the UAPI group's Version Format Specification and rpm do: digits by value, letters
// by bytes, a tilde before everything and before the end.
func compareVersions(a, b string) int {
	isDigit := func(c byte) bool { return c >= '0' && c <= '9' }
	isAlpha := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
	skip := func(s string) string {
		for s != "" && !isDigit(s[0]) && !isAlpha(s[0]) && !strings.ContainsRune("~-^.", rune(s[0])) {
			s = s[1:]
		}
		return s
	}
	for {
		a, b = skip(a), skip(b)
		for _, sign := range []byte("~") {
			x, y := a != "" && a[0] == sign, b != "" && b[0] == sign
			if x && y {
				a, b = a[1:], b[1:]
			} else if x {
				return -1
			} else if y {
				return 1
			}
		}
		if a == "" || b == "" {
			return cmp.Compare(len(a), len(b))
		}
		marked := false
		for _, sign := range []byte("-^.") {
			x, y := a[0] == sign, b[0] == sign
			if x && y {
				a, b, marked = a[1:], b[1:], true
				break
			} else if x {
				return -1
			} else if y {
				return 1
			}
		}
		if marked {
			continue
		}
		kind := isAlpha
		if isDigit(a[0]) || isDigit(b[0]) {
			kind = isDigit
		}
		span := func(s string) (string, string) {
			n := 0
			for n < len(s) && kind(s[n]) {
				n++
			}
			return s[:n], s[n:]
		}
		var x, y string
		x, a = span(a)
		y, b = span(b)
		if kind('0') {
			if c := cmp.Compare(min(len(x), 1), min(len(y), 1)); c != 0 {
				return c // any number, 0 included, is newer than none
			}
			x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			if c := cmp.Compare(len(x), len(y)); c != 0 {
				return c
			}
		}
		if c := strings.Compare(x, y); c != 0 {
			return c
		}
	}
}

// blsOf converts an entry of the specification to an Entry.
func (d *disk) blsOf(e *blsEntry, from, options string, extra []string) (*Entry, error) {
	if e.other != "" {
		return nil, fmt.Errorf("the entry %s has %q, which is not loaded from here", e.file, e.other)
	}
	out := &Entry{From: from, Config: e.file, Title: cmp.Or(e.title, e.id),
		Cmdline: strings.Join(strings.Fields(options), " ")}
	if e.uki != nil {
		out.Kernel, out.Initrds = e.uki.linux, e.uki.initrds
		return out, nil
	}
	var err error
	if out.Kernel, err = d.kernelFile(e.vol, e.linux); err != nil {
		return nil, fmt.Errorf("%s: %w", e.file, err)
	}
	for _, name := range append(slices.Clone(e.initrds), extra...) {
		f, err := d.kernelFile(e.vol, name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.file, err)
		}
		out.Initrds = append(out.Initrds, f)
	}
	return out, nil
}
