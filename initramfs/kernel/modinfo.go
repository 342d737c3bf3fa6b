package kernel

import (
	"bytes"
	"debug/elf"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Module is one kernel module of a package.
type Module struct {
	Name     string   `json:"name"`
	File     string   `json:"file"` // below lib/modules/<release>
	Size     int64    `json:"size"`
	Depends  []string `json:"depends,omitempty"`
	Pre      []string `json:"pre,omitempty"`  // softdep: to load before it if present
	Post     []string `json:"post,omitempty"` // softdep: to load after it
	Aliases  []string `json:"aliases,omitempty"`
	Firmware []string `json:"firmware,omitempty"`
}

// parseModule reads the .modinfo section of a module.
func parseModule(file string, data []byte) (Module, error) {
	m := Module{Name: nameOf(file), File: file, Size: int64(len(data))}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return m, fmt.Errorf("read module %s: %w", file, err)
	}
	s := f.Section(".modinfo")
	if s == nil {
		return m, fmt.Errorf("read module %s: it has no .modinfo section", file)
	}
	info, err := s.Data()
	if err != nil {
		return m, fmt.Errorf("read module %s: %w", file, err)
	}
	m.parse(info)
	return m, nil
}

// parse reads key=value strings, each ended by a zero byte.
func (m *Module) parse(info []byte) {
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		key, value, ok := strings.Cut(string(entry), "=")
		if !ok || value == "" {
			continue
		}
		switch key {
		case "depends":
			for d := range strings.SplitSeq(value, ",") {
				m.Depends = append(m.Depends, canonical(d))
			}
		case "softdep":
			list := &m.Pre
			for w := range strings.FieldsSeq(value) {
				switch w {
				case "pre:":
					list = &m.Pre
				case "post:":
					list = &m.Post
				default:
					*list = append(*list, w)
				}
			}
		case "alias":
			m.Aliases = append(m.Aliases, value)
		case "firmware":
			m.Firmware = append(m.Firmware, value)
		}
	}
	slices.Sort(m.Aliases)
	m.Aliases = slices.Compact(m.Aliases)
}

// nameOf returns the module's name from its file's: kernel/drivers/net/virtio-net.ko is virtio_net.
func nameOf(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return canonical(name)
}

func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }
