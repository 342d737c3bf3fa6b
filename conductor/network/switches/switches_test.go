package switches

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/network/switches/dialect"
	"github.com/ingot-metal/ingot/test/kit/switched"
	"github.com/ingot-metal/ingot/tools/lab/vswitch"
)

// leaf is a switch of the lab and its row of the table.
type leaf struct {
	*vswitch.Switch
	conf *Config
}

// names are those of a port and a LAG in each dialect.
var names = map[vswitch.Dialect]struct{ port, lag string }{
	vswitch.NXOS: {"Ethernet1/%d", "port-channel%d"}, vswitch.EOS: {"Ethernet%d", "Port-Channel%d"},
}

func port(d vswitch.Dialect, n int) string { return fmt.Sprintf(names[d].port, n) }
func lag(d vswitch.Dialect, n int) string  { return fmt.Sprintf(names[d].lag, n) }

const password, enable = "s3cr3t-of-the-switch", "s3cr3t-of-enable"

// newLeaf starts a switch with ports 1 to 8, of which Ingot owns 1 to 6 and the LAGs 10 and 11.
func newLeaf(t *testing.T, d vswitch.Dialect) *leaf {
	t.Helper()
	var ports []string
	for n := range 8 {
		ports = append(ports, port(d, n+1))
	}
	s := vswitch.New("leaf-1", d, "ingot", password, ports...)
	s.AddVLANs(100, 101, 201, 202, 211, 212, 213, 999)
	address, public := switched.Serve(t, s)
	dir := t.TempDir()
	file := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	c := &Config{Address: address, Dialect: string(d), IDs: []string{"00:1C:73:00:00:01"}, HostKey: public,
		Username: "ingot", PasswordFile: file("password", password), Save: true,
		Ports: []string{port(d, 1) + "-6"}, Channels: "10-11"}
	if d == vswitch.EOS {
		s.Enable, c.EnablePasswordFile = enable, file("enable", enable)
	}
	if err := c.check("leaf-1"); err != nil {
		t.Fatal(err)
	}
	return &leaf{s, c}
}

// open makes what Ingot has of the switch.
func (l *leaf) open() *Switch {
	s := newSwitch(l.conf, slog.New(slog.DiscardHandler))
	s.pause = 10 * time.Millisecond
	return s
}

func each(t *testing.T, f func(t *testing.T, d vswitch.Dialect)) {
	for _, d := range []vswitch.Dialect{vswitch.NXOS, vswitch.EOS} {
		t.Run(string(d), func(t *testing.T) { t.Parallel(); f(t, d) })
	}
}

// TestPortsAreWhatTheyAreToBe: access, trunk and LAG, from each to each, and again without a change; each is saved.
func TestPortsAreWhatTheyAreToBe(t *testing.T) {
	each(t, func(t *testing.T, d vswitch.Dialect) {
		l := newLeaf(t, d)
		s := l.open()
		forms := map[string][]dialect.Port{
			"access": {{Interface: port(d, 1), VLAN: 201}},
			"other":  {{Interface: port(d, 1), VLAN: 999}},
			"trunk":  {{Interface: port(d, 1), Native: 999, Tagged: []int{211, 212, 213}}},
			"lag": {{Interface: lag(d, 10), Native: 201, Untagged: true, Tagged: []int{211}},
				{Interface: port(d, 1), Channel: 10}},
			"lag2": {{Interface: lag(d, 11), VLAN: 202}, {Interface: port(d, 1), Channel: 11}},
		}
		for from := range forms {
			for to := range forms {
				for _, form := range []string{from, to, to} {
					if err := s.Apply(t.Context(), forms[form]); err != nil {
						t.Fatalf("from %s to %s: %v", from, to, err)
					}
				}
				for _, want := range forms[to] {
					for _, is := range []vswitch.Port{l.Port(want.Interface), l.Saved(want.Interface)} {
						if fault := differs(is, want); fault != "" {
							t.Fatalf("from %s to %s: %s is %+v: %s", from, to, want.Interface, is, fault)
						}
					}
				}
			}
		}
		var before []string
		for range 2 {
			before, _, _ = l.Lines()
			if err := s.Apply(t.Context(), forms["access"]); err != nil {
				t.Fatal(err)
			}
		}
		if lines, _, _ := l.Lines(); slices.Contains(lines[len(before):], "configure terminal") {
			t.Errorf("a port that is right already was configured again: %q", lines[len(before):])
		}
	})
}

// differs says what is wrong with a port of the switch.
func differs(is vswitch.Port, want dialect.Port) string {
	switch {
	case is.Shutdown || is.Routed:
		return "it is down or routed"
	case is.Channel != want.Channel:
		return "another LAG"
	case want.Channel > 0:
	case want.VLAN > 0 && (is.Mode != "access" || is.Access != want.VLAN):
		return "another VLAN"
	case want.VLAN == 0 && (is.Mode != "trunk" || is.Native != want.Native ||
		!slices.Equal(is.Allowed, want.Allowed())):
		return "another trunk"
	}
	return ""
}

// TestForeignPortsAreNotTouched: a port or a LAG that the table does not give to Ingot is refused without a
// session, and
// so is a name that would be another command.
func TestForeignPortsAreNotTouched(t *testing.T) {
	each(t, func(t *testing.T, d vswitch.Dialect) {
		l := newLeaf(t, d)
		s := l.open()
		for _, name := range []string{port(d, 7), lag(d, 12), "", "mgmt0", port(d, 1) + "\nreload", "Vlan1"} {
			err := s.Apply(t.Context(), []dialect.Port{{Interface: port(d, 1), VLAN: 201}, {Interface: name,
				VLAN: 201}})
			if err == nil || !strings.Contains(err.Error(), "not one that Ingot may configure") {
				t.Errorf("%q: %v", name, err)
			}
		}
		if lines, sessions, _ := l.Lines(); sessions != 0 {
			t.Errorf("%d sessions, with %q", sessions, lines)
		}
	})
}

// TestNeighboursAreLeftAlone: no command is about a port other than the one asked for, and no VLAN is made.
func TestNeighboursAreLeftAlone(t *testing.T) {
	each(t, func(t *testing.T, d vswitch.Dialect) {
		l := newLeaf(t, d)
		l.Set(port(d, 7), vswitch.Port{Mode: "trunk", Native: 1, Access: 1, Description: "uplink#"})
		before := l.Port(port(d, 7))
		if err := l.open().Apply(t.Context(), []dialect.Port{{Interface: port(d, 2), VLAN: 201}}); err != nil {
			t.Fatal(err)
		}
		err := l.open().Apply(t.Context(), []dialect.Port{{Interface: port(d, 2), VLAN: 777}})
		if err == nil || !strings.Contains(err.Error(), "no active VLAN 777") {
			t.Errorf("a VLAN that the switch lacks: %v", err)
		}
		lines, _, _ := l.Lines()
		for _, line := range lines {
			if f := strings.Fields(line); f[0] == "interface" && f[1] != port(d, 2) || f[0] == "vlan" {
				t.Errorf("command %q", line)
			}
		}
		if now := l.Port(port(d, 7)); !slices.Equal(now.Allowed, before.Allowed) || now.Mode != before.Mode {
			t.Errorf("the neighbour was %+v and is %+v", before, now)
		}
		if p := l.Port(port(d, 2)); p.Access != 201 {
			t.Errorf("after the refusal the port is %+v", p)
		}
	})
}

// TestManyPortsAreOneSession: what comes while a session is open shares the next one, and there is one at a time.
func TestManyPortsAreOneSession(t *testing.T) {
	each(t, func(t *testing.T, d vswitch.Dialect) {
		l := newLeaf(t, d)
		s := l.open()
		var all sync.WaitGroup
		for n := range 6 {
			all.Go(func() {
				for _, v := range []int{201, 202} {
					if err := s.Apply(t.Context(), []dialect.Port{{Interface: port(d, n+1), VLAN: v}}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		_, sessions, most := l.Lines()
		if most != 1 || sessions > 6 {
			t.Errorf("%d sessions, up to %d at a time", sessions, most)
		}
		for n := range 6 {
			if p := l.Port(port(d, n+1)); p.Access != 202 {
				t.Errorf("port %d is %+v", n+1, p)
			}
		}
	})
}

// TestFaultsOfASwitch: whatever the switch does, Apply returns nil only when the switch shows the port as it is to be,
// the error says what happened, and it names no secret.
func TestFaultsOfASwitch(t *testing.T) {
	type faults func() func(line string) vswitch.Fault // anew for each switch
	on := func(prefix string, f vswitch.Fault, times int) faults {
		return func() func(line string) vswitch.Fault {
			left := times
			return func(line string) vswitch.Fault {
				if left == 0 || !strings.HasPrefix(line, prefix) {
					return vswitch.None
				}
				left--
				return f
			}
		}
	}
	const access, show, always = "switchport access vlan", "show running-config", -1
	for _, c := range []struct {
		name  string
		fault faults
		want  string // in the error; "": it works
	}{
		{"session lost before a command", on(access, vswitch.CutBefore, always), "the switch ended the session"},
		{"session lost after each command", on(access, vswitch.CutAfter, always), ""},
		{"session lost once", on(access, vswitch.CutBefore, 1), ""},
		{"session lost once after a command", on(access, vswitch.CutAfter, 1), ""},
		{"session lost while it saves", on("copy", vswitch.CutBefore, 1), ""},
		{"refusal", on(access, vswitch.Refuse, always), "refuses the command \"switchport access vlan 201\""},
		{"refusal of the mode", on("configure", vswitch.Refuse, always), "configuration"},
		{"lie about a command", on(access, vswitch.Ignore, always), "but the switch shows it in VLAN 1"},
		{"silence", on(access, vswitch.Hang, always), "takes longer than"},
		{"endless answer", on(show, vswitch.Flood, always), "more than 4 MiB"},
		{"huge answer", on(show, vswitch.HugeAnswer, 1), ""},
		{"control characters", on(show, vswitch.Scramble, always), ""},
		{"secrets in the answer", on(access, vswitch.Leak, always), "******"},
		{"no saving", on("copy", vswitch.Refuse, always), "save the configuration"},
		{"no saving, as told", on("copy", vswitch.Ignore, always), "save the configuration"},
		{"nothing shown", on(show, vswitch.Ignore, always), "not there"},
	} {
		each(t, func(t *testing.T, d vswitch.Dialect) {
			t.Run(c.name, func(t *testing.T) {
				l := newLeaf(t, d)
				l.conf.Timeout = 10 * time.Second
				if c.want == "takes longer than" {
					l.conf.Timeout = time.Second
				}
				fault := c.fault()
				l.SetFault(func(line string) vswitch.Fault {
					return fault(strings.Replace(line, "write memory", "copy", 1))
				})
				err := l.open().Apply(t.Context(), []dialect.Port{{Interface: port(d, 3), VLAN: 201}})
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(),
					c.want)) {
					t.Fatalf("Apply = %v, want %q", err, c.want)
				}
				p := l.Port(port(d, 3))
				if err == nil && (p.Access != 201 || l.Saved(port(d, 3)).Access != 201) {
					t.Errorf("reported done, but the port is %+v", p)
				}
				if err == nil {
					return
				}
				if s := err.Error(); strings.Contains(s, password) || strings.Contains(s, enable) || len(s) > 600 ||
					strings.ContainsAny(s, "\x1b\x00\x07\r") || !strings.Contains(s, "switch leaf-1") {
					t.Errorf("the error is %q", s)
				}
				l.SetFault(nil)
				if err := l.open().Apply(t.Context(), []dialect.Port{{Interface: port(d, 3), VLAN: 201}}); err != nil {
					t.Errorf("afterwards: %v", err)
				}
				if l.Saved(port(d, 3)).Access != 201 {
					t.Error("afterwards it is not saved")
				}
			})
		})
	}
}

// TestExamine: what a switch lacks is found by reading alone, and whatever it does, in time.
func TestExamine(t *testing.T) {
	each(t, func(t *testing.T, d vswitch.Dialect) {
		l := newLeaf(t, d)
		if err := l.conf.own(port(d, 9)); err != nil { // which the switch has not
			t.Fatal(err)
		}
		table := &Table{Switches: map[string]*Config{"leaf-1": l.conf}}
		table.Networks.Provisioning, table.Networks.Cleaning = Network{VLAN: 100}, &Network{VLAN: 101}
		table.Networks.Quarantine = Network{VLAN: 999}
		table.Networks.Tenants = map[string]Network{"a": {VLAN: 300}, "b": {Native: 999, tagged: []int{211, 301}}}
		h := table.Examine(t.Context())[0]
		if lacks := strings.Join(h.Lacks, " "); h.Err != nil || h.Ports != 6 || len(h.Lacks) != 3 ||
			!strings.HasPrefix(lacks, "VLAN 300 VLAN 301 port "+port(d, 9)+" (") {
			t.Errorf("found %+v", h)
		}
		lines, sessions, _ := l.Lines()
		if sessions != 1 || slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "conf") }) {
			t.Errorf("in %d sessions it said %q", sessions, lines)
		}
		l.conf.Timeout = time.Second
		l.SetFault(func(string) vswitch.Fault { return vswitch.Hang })
		if h := table.Examine(t.Context())[0]; h.Err == nil || !strings.Contains(h.Err.Error(), "takes longer than") {
			t.Errorf("of a switch that is silent: %+v", h)
		}
	})
}

// TestOneRefusalIsOneNodes: what a switch refuses for one port fails that port's request alone.
func TestOneRefusalIsOneNodes(t *testing.T) {
	each(t, func(t *testing.T, d vswitch.Dialect) {
		l := newLeaf(t, d)
		s := l.open()
		var at string
		l.SetFault(func(line string) vswitch.Fault {
			if strings.HasPrefix(line, "interface ") {
				at = line
			}
			if at == "interface "+port(d, 2) && strings.HasPrefix(line, "switchport access") {
				return vswitch.Refuse
			}
			return vswitch.None
		})
		s.turn <- struct{}{} // until all wait
		errs := make([]error, 4)
		var all sync.WaitGroup
		for n := range errs {
			all.Go(func() { errs[n] = s.Apply(t.Context(), []dialect.Port{{Interface: port(d, n+1), VLAN: 201}}) })
		}
		for waits := 0; waits < len(errs); time.Sleep(time.Millisecond) {
			s.mu.Lock()
			waits = len(s.waiting)
			s.mu.Unlock()
		}
		<-s.turn
		all.Wait()
		for n, err := range errs {
			if (n == 1) != (err != nil) || (n != 1) != (l.Port(port(d, n+1)).Access == 201) {
				t.Errorf("port %d: %v, %+v", n+1, err, l.Port(port(d, n+1)))
			}
		}
		if _, sessions, _ := l.Lines(); sessions != 1 {
			t.Errorf("%d sessions", sessions)
		}
	})
}

// TestStrangers: a switch that shows another key gets no password, and a wrong password is said.
func TestStrangers(t *testing.T) {
	l := newLeaf(t, vswitch.NXOS)
	_, other, err := vswitch.NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	right := l.conf.HostKey
	for _, c := range []struct{ key, pass, want string }{
		{other, password, "another SSH key than host_key"}, {right, "wrong", "unable to authenticate"},
	} {
		l.conf.HostKey = c.key
		if err := l.conf.check("leaf-1"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(l.conf.PasswordFile, []byte(c.pass), 0o600); err != nil {
			t.Fatal(err)
		}
		err := l.open().Apply(t.Context(), []dialect.Port{{Interface: "Ethernet1/1", VLAN: 201}})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), password) {
			t.Errorf("Apply = %v, want %q", err, c.want)
		}
	}
	if _, sessions, _ := l.Lines(); sessions != 0 {
		t.Errorf("%d sessions", sessions)
	}
}

// TestEndOfACaller: a caller that gives up ends its session, and those that shared it go on in another one.
func TestEndOfACaller(t *testing.T) {
	l := newLeaf(t, vswitch.EOS)
	s := l.open()
	hangs := make(chan struct{}, 1)
	l.SetFault(func(line string) vswitch.Fault {
		if strings.HasPrefix(line, "switchport access") {
			select {
			case hangs <- struct{}{}:
				return vswitch.Hang
			default:
			}
		}
		return vswitch.None
	})
	ctx, cancel := context.WithCancel(t.Context())
	s.turn <- struct{}{}
	errs := make(chan error, 2)
	go func() { errs <- s.Apply(ctx, []dialect.Port{{Interface: "Ethernet1", VLAN: 201}}) }()
	time.Sleep(50 * time.Millisecond) // it is the first in line, and so the session's owner
	var second sync.WaitGroup
	second.Go(func() {
		if err := s.Apply(t.Context(), []dialect.Port{{Interface: "Ethernet2", VLAN: 202}}); err != nil {
			t.Error(err)
		}
	})
	time.Sleep(50 * time.Millisecond)
	<-s.turn
	for len(hangs) == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) && err != nil {
		t.Errorf("the one that gave up: %v", err)
	}
	second.Wait()
	if p := l.Port("Ethernet2"); p.Access != 202 {
		t.Errorf("the other one's port is %+v", p)
	}
}

// FuzzStrip: whatever a switch says and wherever its pieces are cut, what is handed on is printable text.
func FuzzStrip(f *testing.F) {
	f.Add("\x1b[31mred\x1b[0m \x1b]0;title\x07x\x08\x00\r\n", 3)
	f.Fuzz(func(t *testing.T, text string, cut int) {
		cut = min(max(cut, 0), len(text))
		var e escape
		for _, part := range []string{text[:cut], text[cut:]} {
			for _, c := range e.strip([]byte(part)) {
				if c < ' ' && c != '\n' && c != '\t' || c > '~' {
					t.Errorf("%q leaves %q", text, c)
				}
			}
		}
	})
}
