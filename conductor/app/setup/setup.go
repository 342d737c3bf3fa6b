// Package setup makes the configuration of a new conductor from a few answers: of a person at a terminal, or of flags.
//
// It proposes an answer to each question from what it found on the host, and writes nothing before all is answered and
// the result is a configuration that ingotd accepts. A configuration that has settings is replaced only on request.
package setup

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/config"
)

// Interface is a network interface of this host, with what was found on its network.
type Interface struct {
	Name    string
	Address netip.Prefix // the first IPv4 address; invalid without one
	Up      bool
	DHCP    []string // sentences about the DHCP servers that answered
	Gives   bool     // one of them gives addresses
	Unknown string   // why it is not known which answer; empty: it is known
}

// Finding is the result of a check with the configuration that is to be written.
type Finding struct {
	Check, Detail, Remedy string
	Well                  bool
}

// Host is the machine that setup runs on.
type Host struct {
	Interfaces func(ctx context.Context) ([]Interface, error)
	// Examine looks at ports, space and files with a configuration.
	Examine func(ctx context.Context, cfg config.Config) []Finding
	// Toward returns the address from which packets to another one are sent.
	Toward func(netip.Addr) (netip.Addr, error)
	// Reach asks a web server for an answer, whichever.
	Reach func(ctx context.Context, url string) error
	// Exists reports whether a file or folder is there.
	Exists func(path string) bool
	// User and Group are those of ingotd, which can be given files; -1 without such a user, or where this is not root.
	User, Group int
	// Start is the command that starts ingotd.
	Start string
}

// Answers are the answers. Empty ones are asked for, or else are those that setup proposes.
type Answers struct {
	File       string // to write
	DataDir    string
	Interface  string // of the provisioning network; "none"
	BMC        string // network of the machines' controllers; "none"
	Advertise  string // HOST:PORT by which agents reach this conductor, where there is no such interface
	DHCP       string // server, proxy, off
	RangeStart string
	RangeEnd   string
	Auth       string // none, http_basic, keystone
	User       string // of http_basic
	Keystone   Keystone
	Listen     string // HOST:PORT of the API
	TLSCert    string // "none"
	TLSKey     string
	Images     string
	Force      bool
}

// none stands for no interface, and for no certificate.
const none = "none"

// run is one setup.
type run struct {
	in   *bufio.Reader // nil: questions are not asked
	out  io.Writer
	host Host
	Answers
	unasked  map[string]bool // flags that were given, and that no question was about yet
	password string          // that was made
	users    string          // the file with users
	address  netip.Addr      // of this host, on the provisioning network

	controllers netip.Prefix // the network of the machines' controllers
	local       netip.Addr   // from which this host reaches it
	unreachable error        // why it does not
}

// Run makes the configuration. Without in it asks nothing.
func Run(ctx context.Context, a Answers, in io.Reader, out io.Writer, host Host) error {
	r := &run{out: out, host: host, Answers: a}
	if in != nil {
		r.in = bufio.NewReader(in)
	}
	var err error
	if r.File, err = filepath.Abs(r.File); err != nil { // it names others
		return err
	}
	if err := absolute(r.DataDir); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if err := r.mayWrite(); err != nil {
		return err
	}
	r.unasked = map[string]bool{"dhcp": r.DHCP != "", "range-start": r.RangeStart != "", "range-end": r.RangeEnd != "",
		"advertise": r.Advertise != "", "tls-key": r.TLSKey != "", "images-dir": r.Images != "",
		"user": r.User != "", "keystone-url": r.Keystone.URL != "", "keystone-user": r.Keystone.User != "",
		"keystone-password-file": r.Keystone.PasswordFile != ""}
	if err := r.ask(ctx); err != nil {
		return err
	}
	for _, flag := range slices.Sorted(maps.Keys(r.unasked)) {
		if r.unasked[flag] {
			return fmt.Errorf("--%s does not go with the other answers, such as --interface %s and --auth %s: leave it out, or "+
				"change them", flag, r.Interface, r.Auth)
		}
	}
	cfg, text, err := r.compose()
	if err != nil {
		return err
	}
	r.examine(ctx, cfg)
	if ok, err := r.confirm(); err != nil || !ok {
		return err
	}
	if err := r.write(text); err != nil {
		return err
	}
	r.next()
	return nil
}

// question asks for an answer that its flag did not give, and proposes one. right says what is wrong with an answer.
func (r *run) question(to *string, flag, text, proposal string, right func(string) error) error {
	r.unasked[flag] = false
	for {
		asked := *to == "" && r.in != nil
		if asked {
			fmt.Fprintf(r.out, "%s [%s]: ", text, proposal)
			line, err := r.in.ReadString('\n')
			if errors.Is(err, io.EOF) {
				return errors.New("the questions ended without all answers: nothing was written")
			}
			if err != nil {
				return fmt.Errorf("read the answer to %q: %w", text, err)
			}
			*to = strings.TrimSpace(line)
		}
		if *to == "" {
			*to = proposal
		}
		err := right(*to)
		if err == nil {
			return nil
		}
		if !asked {
			return fmt.Errorf("--%s: %w", flag, err)
		}
		fmt.Fprintf(r.out, "  %v\n", err)
		*to = ""
	}
}

// oneOf wants one of some words.
func oneOf(words ...string) func(string) error {
	return func(s string) error {
		for _, w := range words {
			if s == w {
				return nil
			}
		}
		return fmt.Errorf("%q is not one of %s", s, strings.Join(words, ", "))
	}
}

func (r *run) ask(ctx context.Context) error {
	all, err := r.host.Interfaces(ctx)
	if err != nil {
		return err
	}
	show(r.out, all)
	names, proposed := []string{none}, none
	for _, i := range all {
		names = append(names, i.Name)
	}
	for _, i := range all { // without a DHCP server it is more likely to be a network of machines than the office's
		if i.Address.IsValid() && i.Up && (proposed == none || !i.Gives) {
			proposed = i.Name
			if !i.Gives {
				break
			}
		}
	}
	if r.in == nil && len(all) > 1 && r.Interface == "" {
		return errors.New("name the interface of the provisioning network: --interface NAME, or none")
	}
	if err := r.question(&r.Interface, "interface", "Interface of the provisioning network, or none", proposed,
		func(s string) error {
			if err := oneOf(names...)(s); err != nil {
				return err
			}
			for _, i := range all {
				if i.Name == s && !i.Address.IsValid() {
					return fmt.Errorf("%s has no IPv4 address: give it one first", s)
				}
			}
			return nil
		}); err != nil {
		return err
	}
	var on Interface
	for _, i := range all {
		if i.Name == r.Interface {
			on = i
		}
	}
	r.address = on.Address.Addr()
	if err := r.askControllers(); err != nil {
		return err
	}
	if err := r.askNetwork(on, all); err != nil {
		return err
	}
	if err := r.askAPI(); err != nil {
		return err
	}
	if r.Interface == none && !r.servesControllers() {
		return nil
	}
	return r.question(&r.Images, "images-dir", "Folder with images to serve", r.DataDir+"/images", absolute)
}

// askNetwork asks what belongs to the provisioning network.
func (r *run) askNetwork(on Interface, all []Interface) error {
	if r.Interface == none {
		proposed := "127.0.0.1:6386"
		if r.servesControllers() {
			proposed, all = netip.AddrPortFrom(r.local, 6386).String(), nil
		}
		for _, i := range all {
			if i.Address.IsValid() && i.Up {
				proposed = netip.AddrPortFrom(i.Address.Addr(), 6386).String()
				break
			}
		}
		return r.question(&r.Advertise, "advertise", "Address by which agents reach this conductor", proposed, hostPort)
	}
	proposed := "server"
	if on.Gives {
		proposed = "proxy"
	}
	if err := r.question(&r.DHCP, "dhcp", "DHCP: server (this is the only one), proxy (beside another) or off", proposed,
		oneOf("server", "proxy", "off")); err != nil {
		return err
	}
	if r.DHCP != "server" {
		return nil
	}
	first, last := half(on.Address)
	inside := func(s string) error {
		a, err := netip.ParseAddr(s)
		if err != nil || !on.Address.Masked().Contains(a) {
			return fmt.Errorf("%q is no address in %s", s, on.Address.Masked())
		}
		if a == on.Address.Addr() {
			return fmt.Errorf("%s is this host's own address", s)
		}
		return nil
	}
	if err := r.question(&r.RangeStart, "range-start", "First address for machines", first.String(),
		inside); err != nil {
		return err
	}
	return r.question(&r.RangeEnd, "range-end", "Last address for machines", last.String(),
		func(s string) error {
			if err := inside(s); err != nil {
				return err
			}
			from, to, own := netip.MustParseAddr(r.RangeStart), netip.MustParseAddr(s), on.Address.Addr()
			if to.Less(from) {
				return fmt.Errorf("%s lies before the first address, %s", to, from)
			}
			if from.Less(own) && own.Less(to) {
				return fmt.Errorf("%s to %s has this host's own address, %s, in it", from, to, own)
			}
			return nil
		})
}

// half is the half of a network that the host's own address is not in, without the addresses that no host may have.
// Both are invalid for a network that has no room.
func half(p netip.Prefix) (first, last netip.Addr) {
	if !p.Addr().Is4() || p.Bits() > 29 {
		return first, last
	}
	b, own := p.Masked().Addr().As4(), p.Addr().As4()
	network, size := binary.BigEndian.Uint32(b[:]), uint32(1)<<(32-p.Bits()-1)
	if binary.BigEndian.Uint32(own[:])-network < size {
		return ipv4(network + size), ipv4(network + 2*size - 2)
	}
	return ipv4(network + 1), ipv4(network + size - 1)
}

func ipv4(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}
