package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Set is a complete selection of modules: each dependency is a member or part of the kernel.
type Set struct {
	Modules []Module // by name
	Builtin []string // requested and part of the kernel
	Absent  []string // requested as optional and missing in the package
}

// Select chooses modules by name, with all their dependencies. A name that ends in "?" is optional; the error lists all
// others that are neither a module nor part of the kernel. Soft dependencies (softdep) are included if they exist.
func (t *Tree) Select(names []string) (Set, error) {
	builtin := map[string]bool{}
	for _, f := range t.Builtin {
		builtin[nameOf(f)] = true
	}
	// Soft dependencies may be aliases (crc32c for any implementation); patterns for devices are not needed here.
	byAlias := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(t.Modules)) {
		for _, a := range t.Modules[name].Aliases {
			if !strings.ContainsAny(a, "*?[:") {
				byAlias[canonical(a)] = append(byAlias[canonical(a)], name)
			}
		}
	}
	var s Set
	var errs []error
	chosen := map[string]bool{}
	var add func(name, from string)
	add = func(name, from string) {
		if chosen[name] || builtin[name] {
			return
		}
		m, ok := t.Modules[name]
		if !ok {
			errs = append(errs, fmt.Errorf("module %s needs %s, which %s does not have", from, name, t.Package))
			return
		}
		chosen[name] = true
		for _, d := range m.Depends {
			add(d, name)
		}
		for _, d := range slices.Concat(m.Pre, m.Post) {
			if d = canonical(d); t.Modules[d].Name != "" {
				add(d, name)
			} else if !builtin[d] {
				for _, other := range byAlias[d] {
					add(other, name)
				}
			}
		}
	}
	for _, n := range names {
		name, optional := strings.CutSuffix(n, "?")
		name = canonical(name)
		switch {
		case t.Modules[name].Name != "":
			add(name, name)
		case builtin[name]:
			s.Builtin = append(s.Builtin, name)
		case optional:
			s.Absent = append(s.Absent, name)
		default:
			errs = append(errs, fmt.Errorf("kernel package %s has no module %s", t.Package, name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		s.Modules = append(s.Modules, t.Modules[name])
	}
	return s, errors.Join(errs...)
}

// Dep returns modules.dep: each module's file and the files it needs, in reverse load order.
func (s Set) Dep() []byte {
	byName := map[string]Module{}
	for _, m := range s.Modules {
		byName[m.Name] = m
	}
	var b bytes.Buffer
	for _, m := range s.Modules {
		var order []string // in load order
		seen := map[string]bool{m.Name: true}
		var visit func(Module)
		visit = func(m Module) {
			for _, d := range m.Depends {
				if dep, ok := byName[d]; ok && !seen[d] {
					seen[d] = true
					visit(dep)
					order = append(order, dep.File)
				}
			}
		}
		visit(m)
		slices.Reverse(order)
		fmt.Fprintf(&b, "%s:", m.File)
		for _, f := range order {
			fmt.Fprintf(&b, " %s", f)
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// Alias returns modules.alias: the module for each device alias or kernel request.
func (s Set) Alias() []byte {
	var b bytes.Buffer
	b.WriteString("# Aliases extracted from modules themselves.\n")
	for _, m := range s.Modules {
		for _, a := range m.Aliases {
			fmt.Fprintf(&b, "alias %s %s\n", a, m.Name)
		}
	}
	return b.Bytes()
}

// Softdep returns modules.softdep: modules to load along with a module. Aliases are replaced by the members that have
// them, so that a reader need not look them up.
func (s Set) Softdep() []byte {
	byAlias := map[string][]string{}
	for _, m := range s.Modules {
		for _, a := range m.Aliases {
			byAlias[canonical(a)] = append(byAlias[canonical(a)], m.Name)
		}
	}
	var b bytes.Buffer
	b.WriteString("# Soft dependencies extracted from modules themselves.\n")
	for _, m := range s.Modules {
		if len(m.Pre)+len(m.Post) == 0 {
			continue
		}
		fmt.Fprintf(&b, "softdep %s", m.Name)
		for _, list := range []struct {
			when  string
			names []string
		}{{"pre:", m.Pre}, {"post:", m.Post}} {
			if len(list.names) == 0 {
				continue
			}
			fmt.Fprintf(&b, " %s", list.when)
			for _, n := range list.names {
				fmt.Fprintf(&b, " %s", strings.Join(append([]string{n}, byAlias[canonical(n)]...), " "))
			}
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// Firmware lists the firmware files that the modules may load, each once.
func (s Set) Firmware() []string {
	var out []string
	for _, m := range s.Modules {
		out = append(out, m.Firmware...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// LoadOrder returns the modules with each after its dependencies.
func (s Set) LoadOrder() []Module {
	byName := map[string]Module{}
	for _, m := range s.Modules {
		byName[m.Name] = m
	}
	var out []Module
	seen := map[string]bool{}
	var visit func(Module)
	visit = func(m Module) {
		if seen[m.Name] {
			return
		}
		seen[m.Name] = true
		for _, d := range slices.Concat(m.Depends, m.Pre) {
			if dep, ok := byName[canonical(d)]; ok {
				visit(dep)
			}
		}
		out = append(out, m)
	}
	for _, m := range s.Modules {
		visit(m)
	}
	return out
}
