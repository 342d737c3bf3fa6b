// Package vswitch is a switch in user space: it forwards Ethernet frames by VLAN between its ports, and is configured
// over SSH in the command line of Cisco NX-OS or Arista EOS.
//
// It knows of both command lines what ports, VLANs and LAGs need, written from the vendors' guides and not from
// conductor/network/switches, whose counterpart it is in tests. Faults are part of it: it can lose sessions, refuse,
// lie and never stop talking.
package vswitch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Dialect is the command line of a switch.
type Dialect string

// Dialects.
const (
	NXOS Dialect = "cisco_nxos"
	EOS  Dialect = "arista_eos"
)

// Port is how a port or a LAG is configured.
type Port struct {
	Mode           string // "access" or "trunk"
	Access, Native int
	Allowed        []int // nil: all
	Channel        int   // LAG that it is a member of
	Shutdown       bool
	Routed         bool
	Description    string
}

func (p Port) clone() *Port { p.Allowed = slices.Clone(p.Allowed); return &p }

// Fault says how a command goes wrong.
type Fault int

// Faults.
const (
	None       Fault = iota
	Refuse           // it is answered with an error
	Ignore           // it is answered as if it had been carried out
	CutBefore        // the session ends instead
	CutAfter         // the session ends when it has been carried out
	Hang             // there is no answer
	Flood            // the answer does not end
	Leak             // it is refused, and the refusal has the password and escape sequences in it
	Scramble         // the answer has escape sequences and control characters in it
	HugeAnswer       // 1 MiB of lines comes before the right answer
)

// Switch is a switch. Safe for concurrent use.
type Switch struct {
	name     string
	dialect  Dialect
	user     string
	password string
	// Enable is the password of the command enable; "" for none, and for NX-OS none is needed.
	Enable string
	// Chassis is the switch's address in LLDP.
	Chassis [6]byte
	// Seen is called for each frame that leaves a port; may be nil. The frame is the callee's to read only.
	Seen func(port string, frame []byte)

	mu       sync.Mutex
	vlans    map[int]string // name, by number
	suspend  map[int]bool
	ports    map[string]*Port
	saved    map[string]*Port
	fault    func(line string) Fault
	lines    []string // all commands, of all sessions
	sessions int      // that were begun
	open     int
	most     int // sessions at the same time

	plugs map[string]func(frame []byte)
	macs  map[place]string // port, by where an address was seen
}

type place struct {
	vlan int
	mac  [6]byte
}

// New makes a switch with ports of these names, all in VLAN 1.
func New(name string, d Dialect, user, password string, ports ...string) *Switch {
	s := &Switch{name: name, dialect: d, user: user, password: password, vlans: map[int]string{1: "default"},
		suspend: map[int]bool{}, ports: map[string]*Port{}, saved: map[string]*Port{},
		plugs: map[string]func([]byte){}, macs: map[place]string{}}
	for _, p := range ports {
		s.ports[p] = &Port{Mode: "access", Access: 1, Native: 1}
	}
	s.save()
	return s
}

func (s *Switch) save() {
	s.saved = map[string]*Port{}
	for name, p := range s.ports {
		s.saved[name] = p.clone()
	}
}

// AddVLANs makes VLANs.
func (s *Switch) AddVLANs(vlans ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range vlans {
		s.vlans[v] = fmt.Sprintf("VLAN%04d", v)
	}
}

// Set configures a port from outside, as an operator does.
func (s *Switch) Set(name string, p Port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports[name] = p.clone()
	s.macs = map[place]string{}
}

// Port returns a port's configuration.
func (s *Switch) Port(name string) Port { return s.of(s.ports, name) }

// Saved returns what a port will be after a restart of the switch.
func (s *Switch) Saved(name string) Port { return s.of(s.saved, name) }

func (s *Switch) of(all map[string]*Port, name string) Port {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := all[name]; p != nil {
		return *p.clone()
	}
	return Port{}
}

// SetFault has f decide what goes wrong with each command; nil: nothing.
func (s *Switch) SetFault(f func(line string) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Lines returns all commands so far, and how many sessions there were, and at most at the same time.
func (s *Switch) Lines() (lines []string, sessions, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lines), s.sessions, s.most
}

// Plug connects a port: what the switch sends goes to receive, what Send gets comes in.
func (s *Switch) Plug(name string, receive func(frame []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plugs[name] = receive
}

// Send is a frame that comes in at a port.
func (s *Switch) Send(name string, frame []byte) {
	if len(frame) < 14 || [5]byte(frame[:5]) == [5]byte{0x01, 0x80, 0xc2, 0, 0} { // LLDP and the like end here
		return
	}
	s.mu.Lock()
	in := s.ports[s.carrier(name)]
	if in == nil || in.Shutdown || in.Routed || s.ports[name].Shutdown {
		s.mu.Unlock()
		return
	}
	vlan, inner := in.classify(frame)
	if vlan == 0 || s.vlans[vlan] == "" || s.suspend[vlan] {
		s.mu.Unlock()
		return
	}
	var to, from place
	to.vlan, from.vlan = vlan, vlan
	copy(to.mac[:], inner[0:6])
	copy(from.mac[:], inner[6:12])
	here := s.carrier(name)
	s.macs[from] = here
	known := s.macs[to]
	type delivery struct {
		port    string
		frame   []byte
		receive func([]byte)
	}
	var out []delivery
	done := map[string]bool{here: true}
	for _, plugged := range slices.Sorted(maps.Keys(s.plugs)) {
		c := s.carrier(plugged)
		if done[c] || known != "" && known != c || s.ports[plugged] == nil || s.ports[plugged].Shutdown {
			continue // one member of a LAG carries it
		}
		if p := s.ports[c]; p != nil && !p.Shutdown && !p.Routed {
			if f := p.dress(vlan, inner); f != nil {
				out, done[c] = append(out, delivery{plugged, f, s.plugs[plugged]}), true
			}
		}
	}
	s.mu.Unlock()
	for _, d := range out {
		if s.Seen != nil {
			s.Seen(d.port, d.frame)
		}
		d.receive(d.frame)
	}
}

// carrier is the LAG of a port that is in one, else the port.
func (s *Switch) carrier(name string) string {
	if p := s.ports[name]; p != nil && p.Channel > 0 {
		return s.channel(p.Channel)
	}
	return name
}

func (s *Switch) channel(n int) string {
	if s.dialect == EOS {
		return fmt.Sprintf("Port-Channel%d", n)
	}
	return fmt.Sprintf("port-channel%d", n)
}

// classify finds a frame's VLAN and takes its tag off; 0 when the port does not take it.
func (p *Port) classify(frame []byte) (vlan int, inner []byte) {
	tag := 0
	if frame[12] == 0x81 && frame[13] == 0 && len(frame) >= 18 {
		tag = int(frame[14])<<8&0xf00 | int(frame[15])
		inner = slices.Concat(frame[:12], frame[16:])
	} else {
		inner = slices.Clone(frame)
	}
	switch {
	case p.Mode == "trunk" && tag != 0 && p.allows(tag):
		return tag, inner
	case p.Mode == "trunk" && tag == 0 && p.allows(p.Native):
		return p.Native, inner
	case p.Mode == "access" && tag == 0:
		return p.Access, inner
	}
	return 0, nil
}

// dress makes a frame of a VLAN one that leaves the port; nil when it does not.
func (p *Port) dress(vlan int, inner []byte) []byte {
	switch {
	case p.Mode == "access" && p.Access == vlan, p.Mode == "trunk" && p.Native == vlan && p.allows(vlan):
		return slices.Clone(inner)
	case p.Mode == "trunk" && p.allows(vlan):
		return slices.Concat(inner[:12], []byte{0x81, 0, byte(vlan >> 8), byte(vlan)}, inner[12:])
	}
	return nil
}

func (p *Port) allows(vlan int) bool { return p.Allowed == nil || slices.Contains(p.Allowed, vlan) }

// shown is a port as `show running-config interface` has it.
func (s *Switch) shown(name string) string {
	p := s.ports[name]
	var b strings.Builder
	indent := "   "
	if s.dialect == NXOS {
		indent = "  "
		fmt.Fprintf(&b, "\n!Command: show running-config interface %s\n!Time: Mon Dec 19 05:46:28 2022\n\n"+
			"version 9.3(10) Bios:version  \n\n", name)
	}
	fmt.Fprintf(&b, "interface %s\n", name)
	say := func(format string, args ...any) { fmt.Fprintf(&b, indent+format+"\n", args...) }
	if p.Description != "" {
		say("description %s", p.Description)
	}
	if p.Routed {
		say("no switchport")
	}
	if p.Mode == "trunk" {
		say("switchport mode trunk")
	}
	if p.Access != 1 {
		say("switchport access vlan %d", p.Access)
	}
	if p.Native != 1 {
		say("switchport trunk native vlan %d", p.Native)
	}
	if p.Allowed != nil {
		list := vlanList(p.Allowed)
		first, more := list, ""
		if s.dialect == NXOS && len(list) > 60 { // wraps
			cut := strings.LastIndexByte(list[:60], ',')
			first, more = list[:cut], list[cut+1:]
		}
		say("switchport trunk allowed vlan %s", first)
		if more != "" {
			say("switchport trunk allowed vlan add %s", more)
		}
	}
	if p.Channel > 0 {
		say("channel-group %d mode active", p.Channel)
	}
	if p.Shutdown {
		say("shutdown")
	} else if s.dialect == NXOS {
		say("no shutdown")
	}
	return b.String()
}

// vlanTable is the answer to `show vlan brief`.
func (s *Switch) vlanTable() string {
	var b strings.Builder
	b.WriteString("\nVLAN Name                             Status    Ports\n" +
		"---- -------------------------------- --------- -------------------------------\n")
	for _, v := range slices.Sorted(maps.Keys(s.vlans)) {
		state := "active"
		if s.suspend[v] {
			state = "suspended"
		}
		fmt.Fprintf(&b, "%-4d %-32s %-9s\n", v, s.vlans[v], state)
	}
	return b.String()
}

func vlanList(vlans []int) string {
	if len(vlans) == 0 {
		return "none"
	}
	var parts []string
	for i := 0; i < len(vlans); i++ {
		j := i
		for j+1 < len(vlans) && vlans[j+1] == vlans[j]+1 {
			j++
		}
		if part := fmt.Sprint(vlans[i]); j > i {
			parts = append(parts, fmt.Sprintf("%s-%d", part, vlans[j]))
		} else {
			parts = append(parts, part)
		}
		i = j
	}
	return strings.Join(parts, ",")
}
