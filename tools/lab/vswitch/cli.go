package vswitch

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// shell is one session's command line.
type shell struct {
	s      *Switch
	level  string // "exec", "enable", "config", "if"
	ifname string
	asks   bool // for the password of enable
}

// prompt is shown when the switch waits for a command.
func (c *shell) prompt() string {
	if c.asks {
		return "Password: "
	}
	end := map[string]string{"exec": ">", "enable": "#", "config": "(config)#", "if": "(config-if)#"}[c.level]
	if c.s.dialect == NXOS {
		return c.s.name + end + " "
	}
	if c.level == "if" {
		end = "(config-if-" + strings.NewReplacer("Ethernet", "Et", "Port-Channel", "Po").Replace(c.ifname) + ")#"
	}
	return c.s.name + end
}

// invalid is the answer to what is no command.
func (c *shell) invalid() string {
	if c.s.dialect == NXOS {
		return "                         ^\n% Invalid command at '^' marker.\n"
	}
	return "% Invalid input\n"
}

var (
	physical = regexp.MustCompile(`^Ethernet\d+(/\d+)*$`)
	lag      = regexp.MustCompile(`^[Pp]ort-[Cc]hannel(\d+)$`)
)

// run carries out a command and returns the answer; over ends the session. The switch is locked.
func (c *shell) run(line string) (answer string, over bool) {
	s := c.s
	f := strings.Fields(line)
	if c.asks {
		c.asks = false
		if line != s.Enable {
			return "% Bad secret\n", false
		}
		c.level = "enable"
		return "", false
	}
	if len(f) == 0 {
		return "", false
	}
	words := strings.Join(f, " ")
	switch {
	case words == "exit" && (c.level == "exec" || c.level == "enable"):
		return "", true
	case words == "exit" && c.level == "if":
		c.level = "config"
	case words == "exit", words == "end" && c.level != "exec":
		c.level = "enable"
	case words == "enable" && c.level == "exec":
		if s.Enable != "" {
			c.asks = true
		} else {
			c.level = "enable"
		}
	case f[0] == "terminal" && len(f) == 3 && (f[1] == "length" || f[1] == "width"):
		if _, err := strconv.Atoi(f[2]); err != nil {
			return c.invalid(), false
		}
	case c.level == "exec":
		return c.invalid(), false
	case words == "configure terminal":
		c.level = "config"
		if s.dialect == NXOS {
			return "Enter configuration commands, one per line. End with CNTL/Z.\n", false
		}
	case words == "show vlan brief" || words == "show vlan":
		return s.vlanTable(), false
	case f[0] == "show" && len(f) == 4 && f[1] == "running-config" &&
		(f[2] == "interface" && s.dialect == NXOS || f[2] == "interfaces" && s.dialect == EOS):
		if s.ports[f[3]] == nil {
			return c.invalid(), false
		}
		return s.shown(f[3]), false
	case words == "copy running-config startup-config" && s.dialect == NXOS:
		s.save()
		return "[########################################] 100%\nCopy complete, now saving to disk (please wait)...\n" +
			"Copy complete.\n", false
	case words == "write memory" && s.dialect == EOS, words == "copy running-config startup-config":
		s.save()
		return "Copy completed successfully.\n", false
	case f[0] == "interface" && len(f) == 2 && (c.level == "config" || c.level == "if"):
		if m := lag.FindStringSubmatch(f[1]); m != nil {
			n, _ := strconv.Atoi(m[1])
			f[1] = s.channel(n)
			if s.ports[f[1]] == nil {
				s.ports[f[1]] = &Port{Mode: "access", Access: 1, Native: 1}
			}
		}
		if s.ports[f[1]] == nil {
			return c.invalid(), false
		}
		c.level, c.ifname = "if", f[1]
	case c.level == "if":
		if fault := s.configure(s.ports[c.ifname], c.ifname, words, f); fault != "" {
			return fault, false
		}
		s.macs = map[place]string{}
	default:
		return c.invalid(), false
	}
	return "", false
}

// configure carries out a command about a port; fault is the answer to one that can't be.
func (s *Switch) configure(p *Port, name, words string, f []string) (fault string) {
	c := shell{s: s}
	list := func(from int) ([]int, bool) {
		if len(f) != from+1 {
			return nil, false
		}
		if f[from] == "none" {
			return []int{}, true
		}
		return parseList(f[from])
	}
	one := func(from int) (int, bool) {
		l, ok := list(from)
		if !ok || len(l) != 1 {
			return 0, false
		}
		return l[0], true
	}
	ok := true
	var n int
	switch {
	case words == "switchport":
		p.Routed = false
	case words == "no switchport":
		p.Routed = true
	case words == "shutdown" || words == "no shutdown":
		p.Shutdown = words == "shutdown"
	case words == "switchport mode access", words == "switchport mode trunk":
		p.Mode = f[2]
	case strings.HasPrefix(words, "switchport access vlan "):
		if n, ok = one(3); ok {
			p.Access = n
		}
	case strings.HasPrefix(words, "switchport trunk native vlan "):
		if n, ok = one(4); ok {
			p.Native = n
		}
	case strings.HasPrefix(words, "switchport trunk allowed vlan "):
		var l []int
		if l, ok = list(4); ok {
			p.Allowed = l
		}
	case words == "no channel-group" && physical.MatchString(name):
		if p.Channel > 0 && s.dialect == NXOS {
			p.Shutdown = true // NX-OS shuts a port down that leaves a LAG
		}
		p.Channel = 0
	case f[0] == "channel-group" && physical.MatchString(name) && len(f) >= 4:
		force := s.dialect == NXOS && f[2] == "force"
		if force {
			f = slices.Delete(f, 2, 3)
		}
		n, err := strconv.Atoi(f[1])
		if err != nil || n < 1 || n > 4096 || len(f) != 4 || f[2] != "mode" || f[3] != "active" {
			return c.invalid()
		}
		to := s.ports[s.channel(n)]
		if to == nil {
			to = &Port{Mode: "access", Access: 1, Native: 1}
			s.ports[s.channel(n)] = to
		}
		if s.dialect == NXOS && !force && (p.Mode != to.Mode || p.Access != to.Access) {
			return "command failed: port not compatible [Ethernet Layer]\n"
		}
		p.Channel = n
	default:
		return c.invalid()
	}
	if !ok {
		return c.invalid()
	}
	return ""
}

// parseList reads a list of VLANs.
func parseList(text string) ([]int, bool) {
	var all []int
	for part := range strings.SplitSeq(text, ",") {
		var a, b int
		if n, err := fmt.Sscanf(part, "%d-%d", &a, &b); n < 1 || n == 1 && err == nil {
			return nil, false
		} else if n == 1 {
			b = a
		}
		if a < 1 || b > 4094 || a > b {
			return nil, false
		}
		for v := a; v <= b; v++ {
			all = append(all, v)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), true
}
