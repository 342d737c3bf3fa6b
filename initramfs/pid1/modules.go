package pid1

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/u-root/u-root/pkg/kmodule"
	"golang.org/x/sys/unix"
)

// alias is one line of modules.alias: a pattern for modaliases and its module.
type alias struct{ pattern, module string }

// Modules maps devices to modules and loads them with their dependencies. Safe for concurrent use.
type Modules struct {
	aliases map[string][]alias  // by the text up to the first colon, where most modaliases differ
	loose   []alias             // patterns that have a wildcard before any colon
	soft    map[string][]string // modules.softdep: modules to load before a module, if present
	names   map[string]bool
	probe   func(name string) error

	mu   sync.Mutex
	done map[string]error // attempted loads and their errors
}

// OpenModules reads the index below root for the running kernel. A ramdisk without modules has an empty index.
func OpenModules(root string) (*Modules, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("ask for the kernel's release: %w", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	m, err := readModules(filepath.Join(root, "lib/modules", release))
	if err != nil || len(m.names) == 0 {
		return m, err
	}
	// The list of loaded modules is not read: loading one again returns EEXIST, which the prober takes for success, and
	// a loaded module outside the index would make the prober refuse them all.
	p, err := kmodule.NewProber(kmodule.ProbeOpts{RootDir: root, KVer: release, IgnoreProcMods: true})
	if err != nil {
		return nil, fmt.Errorf("read the modules' dependencies: %w", err)
	}
	m.probe = func(name string) error { return p.Probe(name, "") }
	return m, nil
}

func readModules(dir string) (*Modules, error) {
	m := &Modules{aliases: map[string][]alias{}, soft: map[string][]string{}, names: map[string]bool{},
		done: map[string]error{}}
	for file, read := range map[string]func(line string){"modules.dep": m.addFile, "modules.alias": m.addAlias,
		"modules.softdep": m.addSoft} {
		if err := eachLine(filepath.Join(dir, file), read); err != nil {
			return m, err
		}
	}
	return m, nil
}

func (m *Modules) addFile(line string) {
	if file, _, ok := strings.Cut(line, ":"); ok {
		m.names[moduleName(file)] = true
	}
}

func (m *Modules) addAlias(line string) {
	f := strings.Fields(line)
	if len(f) != 3 || f[0] != "alias" {
		return
	}
	a := alias{f[1], canonical(f[2])}
	if bus, _, ok := strings.Cut(a.pattern, ":"); ok && !strings.ContainsAny(bus, "*?[") {
		m.aliases[bus] = append(m.aliases[bus], a)
	} else {
		m.loose = append(m.loose, a)
	}
}

func (m *Modules) addSoft(line string) {
	f := strings.Fields(line)
	if len(f) < 4 || f[0] != "softdep" {
		return
	}
	pre := false
	for _, w := range f[2:] {
		switch {
		case strings.HasSuffix(w, ":"):
			pre = w == "pre:"
		case pre:
			m.soft[canonical(f[1])] = append(m.soft[canonical(f[1])], canonical(w))
		}
	}
}

// Match returns the modules for a modalias or a name requested by the kernel, each once.
func (m *Modules) Match(name string) []string {
	var out []string
	bus, _, _ := strings.Cut(name, ":")
	for _, list := range [][]alias{m.aliases[bus], m.loose} {
		for _, a := range list {
			if !slices.Contains(out, a.module) && glob(a.pattern, name) {
				out = append(out, a.module)
			}
		}
	}
	if c := canonical(name); len(out) == 0 && m.names[c] {
		out = append(out, c)
	}
	return out
}

// Has reports whether the ramdisk has a module of that name.
func (m *Modules) Has(name string) bool { return m.names[canonical(name)] }

// Load loads a module by name, after its dependencies, once: a second call returns the first result.
func (m *Modules) Load(name string) error {
	name = canonical(name)
	for _, s := range m.soft[name] {
		if m.names[s] && s != name {
			_ = m.Load(s) // soft: it may fail
		}
	}
	m.mu.Lock()
	err, was := m.done[name]
	m.mu.Unlock()
	if was {
		return err
	}
	if m.probe == nil || !m.names[name] {
		return fmt.Errorf("load module %s: %w", name, os.ErrNotExist)
	}
	if err = m.probe(name); err != nil {
		err = fmt.Errorf("load module %s: %w", name, err)
	}
	m.mu.Lock()
	m.done[name] = err
	m.mu.Unlock()
	return err
}

// LoadFor loads the modules for a modalias. A missing module is not an error: most devices need none.
func (m *Modules) LoadFor(modalias string) (loaded []string, err error) {
	var errs []error
	for _, name := range m.Match(modalias) {
		if err := m.Load(name); err == nil {
			loaded = append(loaded, name)
		} else if !errors.Is(err, unix.ENODEV) { // by design, the answer of a driver that found no device
			errs = append(errs, err)
		}
	}
	return loaded, errors.Join(errs...)
}

// Modprobe implements the kernel's /sbin/modprobe when this program is called by that name: `modprobe -q -- fs-vfat`.
func Modprobe(args []string) error {
	m, err := OpenModules("/")
	if err != nil {
		return err
	}
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			continue
		}
		if _, err := m.LoadFor(a); err != nil {
			return err
		}
	}
	return nil
}

func eachLine(file string, each func(string)) error {
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the module index: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			each(line)
		}
	}
	return nil
}

// moduleName returns the module's name from its file's: kernel/drivers/net/virtio-net.ko.zst is virtio_net.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(strings.TrimSpace(file)), ".ko")
	return canonical(name)
}

// canonical returns a module's name with underscores, as in the kernel.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }

// glob matches the shell patterns of modules.alias: *, ? and [..] with ranges. To path.Match a slash is not like other
// characters, so that there is none here.
func glob(pattern, s string) bool {
	ok, _ := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(s, "/", "\x00"))
	return ok // a pattern that is none matches nothing
}
