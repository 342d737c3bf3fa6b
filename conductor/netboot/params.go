package netboot

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
)

// maxCommandLine is the kernel's limit on x86 (COMMAND_LINE_SIZE), without the terminating zero.
const maxCommandLine = 2047

// paramForm is the grammar of one word of a kernel command line: no character that has a meaning in iPXE's scripts
// (space, $, {, &, |, #, quotes) or that ends a line.
var paramForm = regexp.MustCompile(`^[A-Za-z0-9_.,:/=@%+-]+$`)

// source is the origin of parameters, which decides what they may set.
type source int

const (
	configured source = iota // by who runs the conductor: may open a shell or debug
	ofNode                   // driver_info of a node
)

// Parameters that decide what runs in the ramdisk, or which CA it trusts.
var reserved = []string{"init", "rdinit", "initrd", "bootif"}

// checkParams holds parameters against the grammar.
func checkParams(params string, from source) error {
	for w := range strings.FieldsSeq(params) {
		if !paramForm.MatchString(w) {
			return fmt.Errorf("kernel parameter %q has characters other than letters, digits and _.,:/=@%%+-", w)
		}
		key, _, _ := strings.Cut(strings.ToLower(w), "=")
		// ingot.bond says which links are one; the agent takes nothing else from it.
		free := key == "ingot.bond" || from == configured && (w == "ingot.shell=1" || w == "ingot.debug=1")
		if !free && strings.HasPrefix(key, "ingot.") {
			return fmt.Errorf("kernel parameter %q: keys beginning with ingot. are set by the conductor alone", w)
		}
		if slices.Contains(reserved, key) {
			return fmt.Errorf("kernel parameter %q: %s is set by the conductor alone", w, key)
		}
	}
	return nil
}

// Group is a port group of a node, with the addresses of its ports.
type Group struct {
	*node.Portgroup
	Members []string
}

// bondOptions are the properties of a port group that mean something to the agent, with the prefix bond_ or without.
var bondOptions = []string{"miimon", "updelay", "downdelay", "min_links", "lacp_rate", "xmit_hash_policy"}

// bondParams writes, for port groups whose ports can't be used alone (standalone_ports_supported is false), the boot
// parameters that make the agent bond them. Groups with ports that work alone are left to the installed system. Invalid
// values are left out.
func bondParams(groups []Group) []string {
	var out []string
	for _, g := range groups {
		if g.StandalonePortsSupported || len(g.Members) == 0 {
			continue
		}
		members := slices.Sorted(slices.Values(g.Members))
		p := fmt.Sprintf("ingot.bond=bond%d,mode=%s,members=%s", len(out), cmp.Or(g.Mode, "active-backup"),
			strings.Join(members, "+"))
		if g.Address != "" {
			p += ",address=" + g.Address
		}
		for _, name := range bondOptions {
			for _, key := range []string{name, "bond_" + name} {
				if v, ok := g.Properties[key]; ok {
					p += fmt.Sprintf(",%s=%v", name, v)
					break
				}
			}
		}
		if paramForm.MatchString(p) {
			out = append(out, p)
		}
	}
	return out
}

// currentConfig returns the configuration with the CA fingerprints that are valid now.
func (s *Server) currentConfig() Config {
	c := s.cfg
	if c.Trust != nil {
		c.CA, c.NextCA = c.Trust()
	}
	return c
}

// kernelParams are those of the ramdisk's command line that are no secrets. own are the node's parameters; %default% in
// them stands for the configured ones, and without own parameters the configured ones hold, as clients of Ironic know
// it.
func kernelParams(c Config, own string) ([]string, error) {
	params := c.KernelParams
	if strings.TrimSpace(own) != "" {
		if err := checkParams(own, ofNode); err != nil {
			return nil, err
		}
		words := strings.Fields(own)
		for i, w := range words {
			if w == "%default%" {
				words[i] = c.KernelParams
			}
		}
		params = strings.Join(words, " ")
	}
	return append([]string{"console=tty0", "console=ttyS0,115200n8"}, strings.Fields(params)...), nil
}

// maxOthers bounds the other conductors that boot parameters name; the agent takes eight in all.
const maxOthers = 3

// conductors are those that the agent may ask, this one first.
func (c Config) conductors() string {
	all := []string{c.Conductor}
	if c.Others != nil {
		for _, o := range c.Others() {
			if len(all) <= maxOthers && goodConductor(o) && !slices.Contains(all, o) {
				all = append(all, o)
			}
		}
	}
	return strings.Join(all, ",")
}

// agentParams have the agent enrol with a token.
func agentParams(c Config, token string) []string {
	words := []string{"ingot.conductor=" + c.conductors(), "ingot.ca=" + c.CA, "ingot.token=" + token}
	if c.NextCA != "" {
		words = append(words, "ingot.ca.next="+c.NextCA)
	}
	return words
}

func tooLong(size int) error {
	return fmt.Errorf(
		"the ramdisk's kernel command line would have %d bytes, more than the kernel's %d: shorten kernel_append_params",
		size, maxCommandLine)
}

// commandLine puts the ramdisk's command line together.
func commandLine(c Config, token, mac, own string, bonds ...string) (string, error) {
	words, err := kernelParams(c, own)
	if err != nil {
		return "", err
	}
	words = append(words, agentParams(c, token)...)
	if mac != "" {
		words = append(words, "BOOTIF=01-"+strings.ReplaceAll(mac, ":", "-"))
	}
	line := strings.Join(append(words, bonds...), " ")
	if len(line) > maxCommandLine && c.Others != nil {
		c.Others = nil // this conductor suffices
		return commandLine(c, token, mac, own, bonds...)
	}
	if len(line) > maxCommandLine {
		return "", tooLong(len(line))
	}
	return line, nil
}
