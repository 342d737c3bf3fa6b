package vswitch

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// frame is a broadcast of a machine; vlan 0: without a tag.
func frame(machine byte, vlan int) []byte {
	head := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x52, 0x54, 0, 0, 0, machine}
	if vlan > 0 {
		head = append(head, 0x81, 0, byte(vlan>>8), byte(vlan))
	}
	return append(head, append([]byte{8, 0}, make([]byte, 46)...)...)
}

// TestFramesStayInTheirVLAN: what comes in at a port leaves where its VLAN is, with the tag that belongs there, by one
// member of a LAG, and nowhere else.
func TestFramesStayInTheirVLAN(t *testing.T) {
	names := []string{"Ethernet1", "Ethernet2", "Ethernet3", "Ethernet4", "Ethernet5", "Ethernet6", "Ethernet7"}
	s := New("s", EOS, "u", "p", names...)
	s.AddVLANs(10, 20, 30, 999)
	s.suspend[30] = true
	for name, p := range map[string]Port{
		"Ethernet1": {Mode: "access", Access: 10, Native: 1}, "Ethernet2": {Mode: "access", Access: 10, Native: 1},
		"Ethernet3": {Mode: "access", Access: 20, Native: 1},
		"Ethernet4": {Mode: "trunk", Access: 1, Native: 999, Allowed: []int{10, 20, 30}},
		"Ethernet5": {Mode: "access", Access: 1, Channel: 1}, "Ethernet6": {Mode: "access", Access: 1, Channel: 1},
		"Port-Channel1": {Mode: "access", Access: 20, Native: 1},
		"Ethernet7":     {Mode: "access", Access: 10, Native: 1, Shutdown: true},
	} {
		s.Set(name, p)
	}
	got := map[string][]byte{}
	for _, name := range names {
		s.Plug(name, func(f []byte) { got[name] = f })
	}
	for _, c := range []struct {
		in   string
		vlan int            // tag of the frame
		out  map[string]int // tags of the frames, by port
	}{
		{"Ethernet1", 0, map[string]int{"Ethernet2": 0, "Ethernet4": 10}},
		{"Ethernet3", 0, map[string]int{"Ethernet4": 20, "Ethernet5": 0}},
		{"Ethernet4", 10, map[string]int{"Ethernet1": 0, "Ethernet2": 0}},
		{"Ethernet4", 20, map[string]int{"Ethernet3": 0, "Ethernet5": 0}},
		{"Ethernet4", 0, nil},  // the native VLAN is not allowed
		{"Ethernet4", 30, nil}, // suspended
		{"Ethernet4", 40, nil},
		{"Ethernet6", 0, map[string]int{"Ethernet3": 0, "Ethernet4": 20}},
		{"Ethernet1", 20, nil}, // no tags at an access port
		{"Ethernet7", 0, nil},
	} {
		clear(got)
		s.Send(c.in, frame(byte(len(c.in)+c.vlan), c.vlan))
		for name, f := range got {
			want, ok := c.out[name]
			if !ok || !bytes.Equal(f, frame(byte(len(c.in)+c.vlan), want)) {
				t.Errorf("in at %s with tag %d: %x leaves at %s", c.in, c.vlan, f[:18], name)
			}
		}
		if len(got) != len(c.out) {
			t.Errorf("in at %s with tag %d: leaves at %v, want %v", c.in, c.vlan, slices.Sorted(maps.Keys(got)), c.out)
		}
	}
	// An address that was seen gets its frames at its port alone, until it is seen elsewhere.
	clear(got)
	s.Send("Ethernet1", frame(1, 0))
	clear(got)
	to := frame(2, 0)
	copy(to, frame(1, 0)[6:12])
	s.Send("Ethernet2", to)
	if _, ok := got["Ethernet1"]; !ok || len(got) != 1 {
		t.Errorf("a frame to Ethernet1 leaves at %v", slices.Sorted(maps.Keys(got)))
	}
}

// TestCommandLines: what each kind of switch takes, refuses and shows.
func TestCommandLines(t *testing.T) {
	for _, c := range []struct {
		d     Dialect
		lines []string
		want  string // in the last answer
	}{
		{NXOS, []string{"configure terminal", "interface Ethernet1", "switchport access vlan 10", "end",
			"show running-config interface Ethernet1"}, "  switchport access vlan 10\n"},
		{NXOS, []string{"configure terminal", "interface Ethernet1", "channel-group 5 force mode active", "end",
			"show running-config interface Ethernet1"}, "  channel-group 5 mode active\n  no shutdown\n"},
		{NXOS, []string{"configure terminal", "interface Ethernet1", "channel-group 5 force mode active",
			"no channel-group", "end", "show running-config interface Ethernet1"}, "  shutdown\n"},
		{NXOS, []string{"configure terminal", "interface Ethernet9"}, "% Invalid command"},
		{NXOS, []string{"write memory"}, "% Invalid command"},
		{NXOS, []string{"configure terminal", "interface Ethernet1", "switchport trunk allowed vlan " +
			strings.Repeat("10,12,", 20) + "14", "end", "show running-config interface Ethernet1"}, "vlan 10,12,14\n"},
		{EOS, []string{"configure terminal"}, "% Invalid input"}, // not enabled
		{EOS, []string{"enable", "configure terminal", "interface Ethernet1", "channel-group 5 force mode active"},
			"% Invalid input"},
		{EOS, []string{"enable", "configure terminal", "interface Ethernet1", "switchport trunk allowed vlan none",
			"switchport mode trunk", "end", "show running-config interfaces Ethernet1"}, "   switchport mode trunk\n"},
		{EOS, []string{"enable", "write memory"}, "Copy completed successfully."},
		{EOS, []string{"enable", "show vlan brief"}, "1    default                          active"},
	} {
		s := New("s", c.d, "u", "p", "Ethernet1")
		sh := &shell{s: s, level: map[Dialect]string{NXOS: "enable", EOS: "exec"}[c.d]}
		answer := ""
		for _, line := range c.lines {
			answer, _ = s.answer(sh, line)
		}
		if !strings.Contains(answer, c.want) {
			t.Errorf("%s %q = %q, want %q in it", c.d, c.lines, answer, c.want)
		}
	}
}

// TestMachineAtASocket: frames of a machine go through, and it hears by LLDP where it is.
func TestMachineAtASocket(t *testing.T) {
	s := New("leaf-9", EOS, "u", "p", "Ethernet1", "Ethernet2")
	s.Chassis = [6]byte{0, 0x1c, 0x73, 0, 0, 9}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.ServeSocket(ctx, "Ethernet1", l) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	out := make(chan []byte, 1)
	s.Plug("Ethernet2", func(f []byte) { out <- f })
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	f := frame(1, 0)
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(f))), f...)); err != nil {
		t.Fatal(err)
	}
	if got := <-out; !bytes.Equal(got, f) {
		t.Errorf("%x came through, want %x", got, f)
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(conn, said); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\x88\xcc", "\x02\x07\x04\x00\x1c\x73\x00\x00\x09", "\x05Ethernet1", "leaf-9"} {
		if !bytes.Contains(said, []byte(want)) {
			t.Errorf("LLDP %s lacks %q", fmt.Sprintf("%x", said), want)
		}
	}
}
