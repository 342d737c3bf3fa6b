package config

import (
	"bytes"
	stdcmp "cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the documentation of the settings")

// TestSettingsAreTheFields: each field of the Config has one row in the list of settings, and each row a field, a text
// and a default of the right type.
func TestSettingsAreTheFields(t *testing.T) {
	var c Config
	rows := map[any]setting{}
	for _, s := range c.settings() {
		if _, twice := rows[s.field]; twice {
			t.Errorf("%s: its field has a row already", s.key)
		}
		rows[s.field] = s
		if s.value != nil && reflect.TypeOf(s.value) != reflect.TypeOf(s.field).Elem() {
			t.Errorf("%s: the default is a %T, the field a %v", s.key, s.value, reflect.TypeOf(s.field).Elem())
		}
		if !strings.HasSuffix(s.text, ".") {
			t.Errorf("%s: the text is no sentence: %s", s.key, s.text)
		}
	}
	var walk func(v reflect.Value, prefix string)
	walk = func(v reflect.Value, prefix string) {
		for i := range v.NumField() {
			key := prefix + v.Type().Field(i).Tag.Get("yaml")
			switch f := v.Field(i); {
			case key == "-":
			case f.Kind() == reflect.Struct:
				walk(f, key+".")
			case rows[f.Addr().Interface()].key != key:
				t.Errorf("the field %s has the row %q", key, rows[f.Addr().Interface()].key)
			default:
				delete(rows, f.Addr().Interface())
			}
		}
	}
	walk(reflect.ValueOf(&c).Elem(), "")
	for _, s := range rows {
		t.Errorf("%s: its field is not in the Config", s.key)
	}
}

// TestExampleIsTheDefault: the example file says nothing as it is, and the defaults once everything in it is set.
func TestExampleIsTheDefault(t *testing.T) {
	all := regexp.MustCompile(`(?m)^#`).ReplaceAllString(Example(), "")
	for name, text := range map[string]string{"as it is": Example(), "all set": all} {
		file := filepath.Join(t.TempDir(), "ingotd.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, _, err := Load([]string{"--config", file, "--set", "agents.advertise=127.0.0.1:6386"}, nil, &bytes.Buffer{})
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, text)
			continue
		}
		want := Default()
		want.Agents.Advertise = "127.0.0.1:6386"
		var a, b bytes.Buffer
		if got.Write(&a) != nil || want.Write(&b) != nil || a.String() != b.String() {
			t.Errorf("%s (-got +want):\n%s", name, cmp.Diff(a.String(), b.String()))
		}
	}
}

// pages are sections of the settings that have a page of their own, for the sake of its length.
var pages = map[string]string{"OpenStack": "configuration-openstack.md",
	"Pools": "configuration-planning.md", "Reservations": "configuration-planning.md"}

// TestDocumentation keeps the pages docs/reference/configuration*.md and the example beside them true to the list of
// settings.
func TestDocumentation(t *testing.T) {
	dir := filepath.Join("..", "..", "docs", "reference")
	hold(t, filepath.Join(dir, "ingotd.example.yaml"), Example())
	for _, name := range []string{"configuration.md", "configuration-openstack.md",
		"configuration-planning.md"} {
		page := filepath.Join(dir, name)
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		const begin = "<!-- settings: made by go test ./conductor/config -update -->\n"
		head, _, ok := strings.Cut(string(text), begin)
		if !ok {
			t.Fatalf("%s has no place for the settings", page)
		}
		hold(t, page, head+begin+settingsTables(name))
	}
}

// settingsTables are those of a page.
func settingsTables(page string) string {
	var b strings.Builder
	c := Default()
	for _, sec := range c.sections() {
		if stdcmp.Or(pages[sec.title], "configuration.md") != page {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n", sec.title)
		if sec.text != "" {
			b.WriteString(strings.Join(wrapped(sec.text, 120), "\n") + "\n\n")
		}
		b.WriteString("| key | default | meaning |\n|---|---|---|\n")
		for _, s := range byKind(sec.settings) {
			value := s.shown()
			if value != "" {
				value = "`" + value + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.key, value, s.described())
		}
	}
	return b.String()
}

// byKind puts two rows in place of those of all kinds of interfaces.
func byKind(all []setting) (rows []setting) {
	kind := regexp.MustCompile(`^hardware\.(enabled|default)_([a-z]+)_(interfaces?)$`)
	var kinds []string
	for _, s := range all {
		m := kind.FindStringSubmatch(s.key)
		if m == nil {
			rows = append(rows, s)
		} else if m[1] == "default" {
			kinds = append(kinds, m[2])
		}
	}
	if len(kinds) > 0 {
		var none []string
		empty := ""
		rows = append(rows,
			setting{key: "hardware.enabled_KIND_interfaces", field: &none,
				text: "Allowed interfaces, for each KIND: " + strings.Join(kinds, ", ") + "."},
			setting{key: "hardware.default_KIND_interface", field: &empty, text: "Default interface of a KIND."})
	}
	return rows
}

// hold compares a file with what it should be, or makes it so.
func hold(t *testing.T, file, want string) {
	t.Helper()
	have, err := os.ReadFile(file)
	if err == nil && string(have) == want {
		return
	}
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s differs from the list of settings: run go test ./conductor/config -update (-file +list):\n%s",
		filepath.Base(file), cmp.Diff(string(have), want))
}
