package config

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Help returns the output of `ingotd --help`.
func Help() string {
	var b strings.Builder
	fmt.Fprintf(&b, `ingotd is Ingot's conductor: power, network boot, state, and the Bare Metal API.

  --config FILE       configuration (YAML); %s if it exists
  --data-dir DIR      short for --set data_dir=DIR
  --listen HOST:PORT  short for --set api.listen=HOST:PORT
  --log-level LEVEL   short for --set log_level=LEVEL
  --set KEY=VALUE     set any key; may be repeated
  --new-installation  start without any node when the database is lost or can't be used; its remains are moved aside
  --print-config      print the configuration as it would be used, and exit
  --print-example     print a configuration file with all keys and defaults, commented out, and exit
  --version           print the version, and exit

Each key can also be set by an environment variable: INGOT_NETBOOT_INTERFACE sets netboot.interface.
Lists are separated by commas. The keys, with their defaults:
`, DefaultFile)
	c := Default()
	for _, sec := range c.sections() {
		fmt.Fprintf(&b, "\n%s\n", sec.title)
		for _, line := range wrapped(sec.text, 100) {
			fmt.Fprintf(&b, "  %s\n", line)
		}
		for _, s := range sec.settings {
			fmt.Fprintf(&b, "\n  %s", s.key)
			if v := s.shown(); v != "" && v != "[]" {
				fmt.Fprintf(&b, " = %s", v)
			}
			b.WriteString("\n")
			for _, line := range wrapped(s.described(), 100) {
				fmt.Fprintf(&b, "      %s\n", line)
			}
		}
	}
	return b.String()
}

// Example is a configuration file with every key, its text and its default, all commented out.
func Example() string {
	var b strings.Builder
	b.WriteString("## Configuration of ingotd. Each key is shown with its default: remove the # in front of it, and of the\n" +
		"## section above it, to set it. `ingotd --print-config` shows the values in use.\n")
	c := Default()
	var open []string // sections that the last key stands in
	for _, sec := range c.sections() {
		fmt.Fprintf(&b, "\n## %s\n", sec.title)
		for _, line := range wrapped(sec.text, 100) {
			fmt.Fprintf(&b, "## %s\n", line)
		}
		for _, s := range sec.settings {
			path := strings.Split(s.key, ".")
			path, name := path[:len(path)-1], path[len(path)-1]
			b.WriteString("\n")
			for i, p := range path {
				if i < len(open) && open[i] == p {
					continue
				}
				open = append(open[:i:i], p)
				fmt.Fprintf(&b, "#%s%s:\n", strings.Repeat("  ", i), p)
			}
			open = open[:len(path):len(path)]
			indent := strings.Repeat("  ", len(path))
			for _, line := range wrapped(s.described(), 100-len(indent)) {
				fmt.Fprintf(&b, "#%s# %s\n", indent, line)
			}
			value := cmp.Or(s.shown(), `""`)
			if strings.Contains(value, ":") && value[0] != '[' {
				value = fmt.Sprintf("%q", value)
			}
			fmt.Fprintf(&b, "#%s%s: %s\n", indent, name, value)
		}
	}
	return b.String()
}

// described is the setting's text with the values that are allowed.
func (s setting) described() string {
	if s.rule == nil || s.rule.String() == "" {
		return s.text
	}
	return fmt.Sprintf("%s (%s)", s.text, s.rule)
}

// shown is the value of the setting as it is written in a file.
func (s setting) shown() string {
	switch v := reflect.ValueOf(s.field).Elem().Interface().(type) {
	case []string:
		quoted := make([]string, len(v))
		for i, word := range v {
			if quoted[i] = word; strings.ContainsAny(word, ":$") {
				quoted[i] = fmt.Sprintf("%q", word)
			}
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	case time.Duration:
		return duration(v)
	default:
		return fmt.Sprint(v)
	}
}

// duration writes 1h0m0s as 1h.
func duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// wrapped breaks a text into lines of at most width bytes.
func wrapped(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// Effective is a setting as it is in use.
type Effective struct{ Section, Key, Value, Default, Text string }

// Effective lists all settings with their values, without secrets.
func (c Config) Effective() (out []Effective) {
	d := Default()
	defaults := d.settings()
	for _, sec := range c.sections() {
		for _, s := range sec.settings {
			out = append(out, Effective{sec.title, s.key, s.shown(), defaults[len(out)].shown(), s.described()})
		}
	}
	return out
}
