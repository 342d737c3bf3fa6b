package main

import (
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// bill is a CycloneDX 1.6 bill of materials (https://cyclonedx.org/docs/1.6/json), as far as we fill it.
type bill struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Version    int         `json:"version"`
	Metadata   metadata    `json:"metadata"`
	Components []component `json:"components"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Ref     string `json:"bom-ref,omitempty"`
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	URL     string `json:"purl,omitempty"`
}

// bills writes what each program of an architecture is made of, from what the compiler wrote into it.
func (b *build) bills(arch string) error {
	for name := range programs {
		info, err := buildinfo.ReadFile(b.file(arch, name))
		if err != nil {
			return err
		}
		out := bill{Format: "CycloneDX", Spec: "1.6", Version: 1, Metadata: metadata{b.when.Format(time.RFC3339),
			component{"program", "application", name, b.program, ""}}}
		add := func(path, version string) {
			purl := "pkg:golang/" + modulePath(path) + "@" + url.QueryEscape(version)
			out.Components = append(out.Components, component{purl, "library", path, version, purl})
		}
		add("std", strings.TrimPrefix(info.GoVersion, "go"))
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			add(m.Path, m.Version)
		}
		slices.SortFunc(out.Components, func(a, b component) int { return cmp.Compare(a.URL, b.URL) })
		text, err := json.MarshalIndent(out, "", "  ")
		if err != nil {
			return err
		}
		text = append(text, '\n')
		for _, file := range []string{b.file(arch, name+".cdx.json"),
			filepath.Join(b.out, fmt.Sprintf("%s_%s_%s.cdx.json", name, b.version, arch))} {
			if err := os.WriteFile(file, text, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// modulePath is a module's path in a package URL, whose parts are escaped one by one.
func modulePath(path string) string {
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}
