// Package dialect says how kinds of switches are spoken with: prompts, commands and patterns, which are data (files),
// and the few things that are done with them.
//
// A Port says which VLANs a port is to carry, a Shown which it has by its switch. Whatever of a stranger's becomes part
// of a command went through Canonical, and what a switch shows is parsed by patterns without backtracking.
package dialect

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/scrapli/scrapligo/platform"
	"gopkg.in/yaml.v3"
)

// files are the dialects: a new one is a new file.
//
//go:embed files/*.yaml
var files embed.FS

// Port says which VLANs one port of a switch, or one LAG of it, is to carry.
type Port struct {
	Interface string
	// VLAN is the one VLAN of an access port; 0: a trunk, or a member of a LAG.
	VLAN int
	// Native is the VLAN of a trunk's untagged frames, which it carries if Untagged is set and drops otherwise; Tagged
	// are those of tagged ones.
	Native   int
	Untagged bool
	Tagged   []int
	// Channel is the number of the LAG that the port is a member of; the LAG's own Port says what it carries.
	Channel int
}

func (p Port) String() string {
	switch {
	case p.Channel > 0:
		return fmt.Sprintf("a member of LAG %d", p.Channel)
	case p.VLAN > 0:
		return fmt.Sprintf("in VLAN %d", p.VLAN)
	}
	return fmt.Sprintf("a trunk of VLANs %s with native VLAN %d", shortList(p.Allowed()), p.Native)
}

// Allowed are the VLANs of a trunk. A switch drops the frames of the native one if that is not among them.
func (p Port) Allowed() []int {
	if !p.Untagged {
		return p.Tagged
	}
	all := append(slices.Clone(p.Tagged), p.Native)
	slices.Sort(all)
	return all
}

// VLANs are those that the switch must have.
func (p Port) VLANs() []int {
	all := slices.Concat([]int{p.VLAN, p.Native}, p.Tagged)
	return slices.DeleteFunc(all, func(v int) bool { return v == 0 })
}

// pattern is a regular expression of a dialect; it never matches when the dialect has none.
type pattern struct{ re *regexp.Regexp }

func (p *pattern) UnmarshalYAML(n *yaml.Node) (err error) {
	p.re, err = regexp.Compile(n.Value)
	return err
}

// text is a text of a dialect with places for a port's values.
type text struct{ t *template.Template }

func (t *text) UnmarshalYAML(n *yaml.Node) (err error) {
	t.t, err = template.New("").Option("missingkey=error").Parse(n.Value)
	return err
}

// fill puts a port's values in.
func (t text) fill(p Port) (string, error) {
	var b bytes.Buffer
	err := t.t.Execute(&b, map[string]any{"Interface": p.Interface, "VLAN": p.VLAN, "Native": p.Native,
		"Allowed": shortList(p.Allowed()), "Channel": p.Channel})
	return b.String(), err
}

// Dialect is how one kind of switches is spoken with.
type Dialect struct {
	About    string    `yaml:"about"`
	Terminal yaml.Node `yaml:"terminal"` // scrapligo's definition of a platform

	Interfaces []struct {
		Match pattern `yaml:"match"`
		Name  string  `yaml:"name"`
	} `yaml:"interfaces"`
	Channel text `yaml:"channel"`

	VLANs struct {
		Command string  `yaml:"command"`
		Active  pattern `yaml:"active"`
	} `yaml:"vlans"`
	Read struct {
		Command  text    `yaml:"command"`
		Section  text    `yaml:"section"`
		Routed   pattern `yaml:"routed"`
		Shutdown pattern `yaml:"shutdown"`
		Mode     pattern `yaml:"mode"`
		Access   pattern `yaml:"access"`
		Native   pattern `yaml:"native"`
		Allowed  pattern `yaml:"allowed"`
		Channel  pattern `yaml:"channel"`
	} `yaml:"read"`
	Configure struct {
		Leave  text `yaml:"leave"`
		Access text `yaml:"access"`
		Trunk  text `yaml:"trunk"`
		Member text `yaml:"member"`
	} `yaml:"configure"`
	Save struct {
		Command string  `yaml:"command"`
		Done    pattern `yaml:"done"`
	} `yaml:"save"`

	platform []byte // Terminal, as scrapligo reads it
}

// Platform is scrapligo's definition of the terminal.
func (d *Dialect) Platform() []byte { return d.platform }

// ReadCommand shows a port's configuration.
func (d *Dialect) ReadCommand(name string) (string, error) {
	return d.Read.Command.fill(Port{Interface: name})
}

// ChannelName is the name of the LAG of a number.
func (d *Dialect) ChannelName(number int) (string, error) {
	return d.Channel.fill(Port{Channel: number})
}

// Saved reports whether the answer to the command that saves says that it is done.
func (d *Dialect) Saved(answer string) bool { return d.Save.Done.re.MatchString(answer) }

// parseDialect reads a dialect and makes sure that nothing is missing in it.
func parseDialect(b []byte) (*Dialect, error) {
	d := new(Dialect)
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(d); err != nil {
		return nil, err
	}
	r, c := &d.Read, &d.Configure
	for name, t := range map[string]text{"channel": d.Channel, "read.command": r.Command, "read.section": r.Section,
		"configure.leave": c.Leave, "configure.access": c.Access, "configure.trunk": c.Trunk,
		"configure.member": c.Member} {
		if t.t == nil {
			return nil, fmt.Errorf("%s is missing", name)
		}
		if _, err := t.fill(Port{}); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	for name, p := range map[string]pattern{"vlans.active": d.VLANs.Active, "read.routed": r.Routed,
		"read.shutdown": r.Shutdown, "read.mode": r.Mode, "read.access": r.Access, "read.native": r.Native,
		"read.allowed": r.Allowed, "read.channel": r.Channel, "save.done": d.Save.Done} {
		if p.re == nil {
			return nil, fmt.Errorf("%s is missing", name)
		}
	}
	if len(d.Interfaces) == 0 || d.VLANs.Command == "" || d.Save.Command == "" {
		return nil, errors.New("interfaces, vlans.command or save.command is missing")
	}
	var err error
	if d.platform, err = yaml.Marshal(map[string]any{"platform-type": "", "default": &d.Terminal}); err != nil {
		return nil, err
	}
	if _, err := platform.NewPlatform(d.platform, "localhost"); err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	return d, nil
}

// Names lists the dialects.
func Names() []string { return slices.Sorted(maps.Keys(all)) }

// Find returns a dialect; nil if there is none of that name.
func Find(name string) *Dialect { return all[name] }

// all are those that come with the program.
var all = func() map[string]*Dialect {
	entries, err := files.ReadDir("files")
	if err != nil {
		panic("dialect: " + err.Error())
	}
	found := map[string]*Dialect{}
	for _, f := range entries {
		b, err := files.ReadFile(path.Join("files", f.Name()))
		if err != nil {
			panic("dialect: " + err.Error())
		}
		d, err := parseDialect(b)
		if err != nil {
			panic("dialect: " + f.Name() + ": " + err.Error())
		}
		found[strings.TrimSuffix(f.Name(), ".yaml")] = d
	}
	return found
}()

// Canonical is a port's name as the switch's configuration has it; ok is false when it is no name of a port. Whatever
// becomes part of a command went through here.
func (d *Dialect) Canonical(name string) (full string, ok bool) {
	for _, i := range d.Interfaces {
		if m := i.Match.re.FindStringSubmatchIndex(name); m != nil && m[0] == 0 && m[1] == len(name) {
			return string(i.Match.re.ExpandString(nil, i.Name, name, m)), true
		}
	}
	return "", false
}

// Shown is a port as the configuration of its switch has it.
type Shown struct {
	present, routed, shutdown bool
	mode                      string
	access, native, channel   int
	allowed                   []int
	all                       bool // VLANs are allowed
}

// Parse finds a port's configuration in what the switch shows.
func (d *Dialect) Parse(name, shown string) (Shown, error) {
	section, err := d.Read.Section.fill(Port{Interface: regexp.QuoteMeta(name)})
	if err != nil {
		return Shown{}, err
	}
	re, err := regexp.Compile(section)
	if err != nil {
		return Shown{}, err
	}
	at := re.FindStringIndex(shown)
	if at == nil {
		return Shown{}, nil
	}
	if re.MatchString(shown[at[1]:]) {
		return Shown{}, errors.New("it shows the port twice")
	}
	body := shown[at[1]:]
	r := &d.Read
	h := Shown{present: true, routed: r.Routed.re.MatchString(body), shutdown: r.Shutdown.re.MatchString(body),
		mode: "access", access: 1, native: 1, all: true}
	if m := r.Mode.re.FindStringSubmatch(body); m != nil {
		h.mode = m[1]
	}
	for p, to := range map[*pattern]*int{&r.Access: &h.access, &r.Native: &h.native, &r.Channel: &h.channel} {
		if m := p.re.FindStringSubmatch(body); m != nil {
			if *to, err = strconv.Atoi(m[1]); err != nil {
				return Shown{}, err
			}
		}
	}
	for _, m := range r.Allowed.re.FindAllStringSubmatch(body, -1) {
		h.all = false
		if m[1] == "none" {
			continue
		}
		more, err := ParseVLANs(m[1])
		if err != nil {
			return Shown{}, err
		}
		h.allowed = append(h.allowed, more...)
	}
	slices.Sort(h.allowed)
	h.allowed = slices.Compact(h.allowed)
	return h, nil
}

// Is reports whether a port is configured as it is to be.
func (h Shown) Is(p Port) bool {
	switch {
	case !h.present || h.routed || h.shutdown || h.channel != p.Channel:
		return false
	case p.Channel > 0:
		return true
	case p.VLAN > 0:
		return h.mode == "access" && h.access == p.VLAN
	}
	return h.mode == "trunk" && h.native == p.Native && !h.all && slices.Equal(h.allowed, p.Allowed())
}

func (h Shown) String() string {
	switch {
	case !h.present:
		return "not there"
	case h.shutdown:
		return "shut down"
	case h.routed:
		return "a routed port"
	case h.channel > 0:
		return fmt.Sprintf("a member of LAG %d", h.channel)
	case h.mode == "access":
		return fmt.Sprintf("in VLAN %d", h.access)
	case h.mode == "trunk" && h.all:
		return "a trunk of all VLANs"
	case h.mode == "trunk":
		return Port{Native: h.native, Tagged: h.allowed}.String()
	}
	return "in mode " + Plain(h.mode)
}

// Commands make a port so, line by line; was is its configuration before.
func (d *Dialect) Commands(p Port, was Shown) ([]string, error) {
	var parts []text
	if was.channel > 0 && was.channel != p.Channel {
		parts = append(parts, d.Configure.Leave)
	}
	switch {
	case p.Channel > 0:
		parts = append(parts, d.Configure.Member)
	case p.VLAN > 0:
		parts = append(parts, d.Configure.Access)
	default:
		parts = append(parts, d.Configure.Trunk)
	}
	var lines []string
	for _, t := range parts {
		s, err := t.fill(p)
		if err != nil {
			return nil, err
		}
		lines = append(lines, strings.Split(strings.TrimSpace(s), "\n")...)
	}
	return lines, nil
}

// ActiveVLANs are the VLANs that the switch shows as active.
func (d *Dialect) ActiveVLANs(shown string) map[int]bool {
	all := map[int]bool{}
	for _, m := range d.VLANs.Active.re.FindAllStringSubmatch(shown, -1) {
		if v, err := strconv.Atoi(m[1]); err == nil {
			all[v] = true
		}
	}
	return all
}

// ParseVLANs reads a list such as 10,20-22.
func ParseVLANs(s string) ([]int, error) {
	all := map[int]bool{}
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			to = from
		}
		a, errA := strconv.Atoi(from)
		b, errB := strconv.Atoi(to)
		if errA != nil || errB != nil || a < 1 || b > 4094 || a > b {
			return nil, fmt.Errorf("%q is no list of VLANs such as 10,20-22 with numbers from 1 to 4094", Plain(s))
		}
		for v := a; v <= b; v++ {
			all[v] = true
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// shortList writes VLANs as a switch takes them: sorted numbers, ranges with a hyphen.
func shortList(vlans []int) string {
	var b strings.Builder
	for i := 0; i < len(vlans); {
		last := i
		for last+1 < len(vlans) && vlans[last+1] == vlans[last]+1 {
			last++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(vlans[i]))
		if last > i {
			b.WriteString("-" + strconv.Itoa(vlans[last]))
		}
		i = last + 1
	}
	return b.String()
}

// Plain makes text of a stranger's fit for an error: short, one line, printable.
func Plain(s string) string {
	const most = 160
	var b strings.Builder
	for _, r := range strings.TrimSpace(s) {
		switch {
		case b.Len() >= most:
			return b.String() + "..."
		case r == '\n' || r == '\t':
			b.WriteByte(' ')
		case r < ' ' || r > '~':
			b.WriteByte('?')
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
