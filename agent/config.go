package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/ingot-metal/ingot/agent/machine/netup"
	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
)

// Secret is text that must not appear in a log.
type Secret string

// String hides the secret.
func (Secret) String() string { return "***" }

// LogValue hides the secret from slog.
func (Secret) LogValue() slog.Value { return slog.StringValue("***") }

// Config holds the boot parameters, from the kernel's command line and the file beside it (package segment).
type Config struct {
	// Conductors are host:port of the conductors' listeners for agents, with an IPv6 address in brackets, or mdns: one
	// is looked for by multicast DNS. The agent asks them in this order; any of them knows whose the node is.
	Conductors []string
	// SHA-256 of the conductor's CA certificate (DER); zero if the ramdisk has the CA built in
	CA     [sha256.Size]byte
	NextCA [sha256.Size]byte // of the next CA, during a rotation; else zero
	Token  Secret            // one-time boot token
	BootIF net.HardwareAddr  // the interface the firmware booted from, nil if unknown
	Debug  bool
	Bonds  []netup.Bond // bonded links
	VLANs  []netup.VLAN // tagged networks
}

// multicastDNS in place of a conductor's address has the agent look for one.
const multicastDNS = "mdns"

// ParseCmdline parses the kernel's command line. Other programs' words are ignored. The error lists all faults of the
// agent's own words.
func ParseCmdline(cmdline string) (Config, error) {
	var c Config
	var errs []error
	for _, w := range strings.Fields(cmdline) {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "ingot.conductor":
			c.Conductors = strings.Split(value, ",")
			if err := checkConductors(c.Conductors); err != nil {
				errs = append(errs, fmt.Errorf("ingot.conductor=%s: %w", value, err))
			}
		case "ingot.token":
			c.Token = Secret(value)
		case "ingot.bond":
			b, err := netup.ParseBond(value)
			if err != nil {
				errs = append(errs, fmt.Errorf("ingot.bond=%s: %w", value, err))
				continue
			}
			c.Bonds = append(c.Bonds, b)
		case "ipa-enable-vlan-interfaces":
			v, err := netup.ParseVLANs(value)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s=%s: %w", key, value, err))
				continue
			}
			c.VLANs = append(c.VLANs, v...)
		case "ingot.debug":
			c.Debug = value == "1"
		case "ingot.ca", "ingot.ca.next":
			b, err := hex.DecodeString(value)
			if err != nil || len(b) != len(c.CA) {
				errs = append(errs,
					fmt.Errorf("%s=%s is not the SHA-256 of a certificate (64 hexadecimal digits)", key, value))
				continue
			}
			if key == "ingot.ca" {
				copy(c.CA[:], b)
			} else {
				copy(c.NextCA[:], b)
			}
		case "BOOTIF":
			mac, err := parseBootIF(value)
			if err != nil {
				// Written by PXE firmware, not by an operator: it can be ignored.
				continue
			}
			c.BootIF = mac
		}
	}
	return c, errors.Join(errs...)
}

func checkConductors(all []string) error {
	if len(all) > agentv1.MaxConductors {
		return fmt.Errorf("%d conductors, more than the %d allowed", len(all), agentv1.MaxConductors)
	}
	for _, c := range all {
		if err := agentv1.CheckAddress(c); err != nil && c != multicastDNS {
			return fmt.Errorf("neither HOST:PORT nor mdns: %w", err)
		}
	}
	return nil
}

// Validate lists the settings that are missing for a session with a conductor.
func (c Config) Validate() error {
	var errs []error
	if len(c.Conductors) == 0 {
		errs = append(errs, errors.New("the kernel's command line names no conductor (ingot.conductor=HOST:PORT or mdns)"))
	}
	if c.Token == "" {
		errs = append(errs, errors.New("the kernel's command line has no boot token (ingot.token=...)"))
	}
	return errors.Join(errs...)
}

// parseBootIF parses pxelinux's form, 01-52-54-00-12-34-56: hardware type, then the address.
func parseBootIF(s string) (net.HardwareAddr, error) {
	s = strings.ReplaceAll(s, ":", "-")
	if len(s) == len("01-52-54-00-12-34-56") {
		s = s[3:]
	}
	return net.ParseMAC(s)
}
