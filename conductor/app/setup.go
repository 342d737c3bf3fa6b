package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"strconv"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/ingot-metal/ingot/conductor/app/doctor"
	"github.com/ingot-metal/ingot/conductor/app/doctor/firewall"
	"github.com/ingot-metal/ingot/conductor/app/setup"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/netboot/probe"
)

// setUp makes the configuration of a new conductor.
func setUp(ctx context.Context, args, _ []string, stdout, stderr io.Writer) error {
	c, _ := find([]string{"setup"})
	fl := c.flags(stderr)
	var a setup.Answers
	for _, o := range []struct {
		to                    *string
		name, proposal, about string
	}{
		{&a.File, "config", config.DefaultFile, "`file` to write"},
		{&a.DataDir, "data-dir", config.Default().DataDir, "`folder` of the conductor's data"},
		{&a.Interface, "interface", "", "`name` of the provisioning network's interface, or none"},
		{&a.BMC, "bmc-network", "", "`network` of the machines' controllers, such as 10.1.0.0/24, or none"},
		{&a.Advertise, "advertise", "", "without such an interface, `HOST:PORT` by which agents reach this conductor"},
		{&a.DHCP, "dhcp", "", "`mode`: server, proxy or off"},
		{&a.RangeStart, "range-start", "", "first `address` for machines, with --dhcp server"},
		{&a.RangeEnd, "range-end", "", "last `address` for machines"},
		{&a.Auth, "auth", "", "http_basic, keystone or none, `how` clients authenticate"},
		{&a.User, "user", "", "`name` of the first user of http_basic, for whom a password is made"},
		{&a.Keystone.URL, "keystone-url", "", "`address` of Keystone, with --auth keystone"},
		{&a.Keystone.User, "keystone-user", "", "`name` of ingotd's user there, with the role service"},
		{&a.Keystone.PasswordFile, "keystone-password-file", "", "`file` with that user's password"},
		{&a.TLSCert, "tls-cert", "", "`file` with the certificate of the API in PEM, or none"},
		{&a.TLSKey, "tls-key", "", "`file` with its key"},
		{&a.Listen, "listen", "", "`HOST:PORT` of the API"},
		{&a.Images, "images-dir", "", "`folder` with images to serve"},
	} {
		fl.StringVar(o.to, o.name, o.proposal, o.about)
	}
	fl.BoolVar(&a.Force, "force", false, "replace a configuration that has settings")
	yes := fl.Bool("yes", false, "ask nothing: flags give answers, and the others are as setup proposes them")
	if done, err := parse(fl, args); done || err != nil {
		return err
	}
	if fl.NArg() > 0 {
		return fmt.Errorf("ingotd setup takes no arguments, only flags; %q is none", fl.Arg(0))
	}
	var in io.Reader
	if !*yes && term.IsTerminal(int(os.Stdin.Fd())) {
		in = os.Stdin
	}
	return setup.Run(ctx, a, in, stdout, thisHost(a.File))
}

// thisHost gives setup access to this machine.
func thisHost(file string) setup.Host {
	h := setup.Host{Interfaces: networkInterfaces, Examine: firstLook, Toward: toward, Reach: reach, Exists: exists,
		User: -1, Group: -1,
		Start: "ingotd --config " + file}
	if os.Geteuid() == 0 {
		if u, err := user.Lookup("ingot"); err == nil { // the packages' user; numbers, where this is a Unix
			uid, uidErr := strconv.Atoi(u.Uid)
			gid, gidErr := strconv.Atoi(u.Gid)
			if uidErr == nil && gidErr == nil {
				h.User, h.Group = uid, gid
			}
		}
	}
	unit := exists("/lib/systemd/system/ingotd.service") || exists("/etc/systemd/system/ingotd.service")
	if file == config.DefaultFile && unit {
		h.Start = "systemctl enable --now ingotd"
	}
	return h
}

// reach waits a few seconds for an answer. Who signed a certificate is for ingotd to check, with api.keystone.ca_file.
func reach(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(q)
	var unknown *tls.CertificateVerificationError
	if errors.As(err, &unknown) {
		return nil
	}
	if err != nil {
		return errors.Unwrap(err) // without the address, which is known
	}
	return resp.Body.Close()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// toward asks the routing table, by a socket that sends nothing.
func toward(to netip.Addr) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 623)))
	if err != nil {
		return netip.Addr{}, errors.Unwrap(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// networkInterfaces lists the Ethernet interfaces with the DHCP servers that answer on their networks.
func networkInterfaces(ctx context.Context) ([]setup.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	out := []setup.Interface{}
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 || len(i.HardwareAddr) != 6 {
			continue
		}
		found := setup.Interface{Name: i.Name, Up: i.Flags&net.FlagUp != 0 && i.Flags&net.FlagRunning != 0}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("read addresses of %s: %w", i.Name, err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
				found.Address = p
				break
			}
		}
		out = append(out, found)
	}
	var probes sync.WaitGroup
	for i := range out {
		if out[i].Up && out[i].Address.IsValid() {
			probes.Go(func() { lookForServers(ctx, &out[i]) })
		}
	}
	probes.Wait()
	return out, nil
}

// lookForServers adds the DHCP servers on the network of an interface.
func lookForServers(ctx context.Context, i *setup.Interface) {
	found, _, err := probe.Find(ctx, i.Name, i.Address.Addr(), probe.Wait)
	if err != nil {
		i.Unknown = err.Error()
		return
	}
	for _, s := range found {
		text := "DHCP server " + s.ID.String()
		if s.Gives {
			text, i.Gives = text+" gives addresses", true
		}
		if s.File != "" {
			text += fmt.Sprintf(", names the boot file %q", s.File)
		}
		i.DHCP = append(i.DHCP, text)
	}
	if len(found) == 0 {
		i.DHCP = []string{"no DHCP server answers"}
	}
}

// firstLook is the part of the doctor's checks that makes sense before the first start.
func firstLook(ctx context.Context, cfg config.Config) []setup.Finding {
	p := doctor.Patient{Config: cfg, Running: inUse(cfg.DataDir)}
	p.Chains, p.ChainsFault = firewall.Find()
	p.Address, p.AddressFault = provisioningAddress(cfg)
	var out []setup.Finding
	for _, f := range doctor.Examine(ctx, p) {
		switch f.Check {
		case "ports", "firewall", "network", "boot files", "free space":
			out = append(out, setup.Finding{Check: f.Check, Detail: oneLine.Replace(f.Detail), Remedy: f.Remedy,
				Well: f.Status == doctor.OK})
		}
	}
	return out
}
