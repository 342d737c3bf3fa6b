package inventory

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
)

// Network functions, commands and parameters of Get LAN Configuration (table 23-4) of IPMI v2.0, revision 1.1.
const (
	netFnApp, netFnTransport = 0x06, 0x0c
	getChannelInfo           = 0x42
	getLANConfig             = 0x02

	paramIP, paramMAC                 = 3, 5
	paramStaticIPv6, paramDynamicIPv6 = 56, 59
	mediumLAN                         = 4
	lastChannel                       = 11
)

// bmcLimit is the time limit for all BMC commands: a hanging controller must not delay the inspection.
const bmcLimit = 6 * time.Second

var errNoLAN = errors.New("the BMC has no network channel with an address")

// bmc reads the BMC's own addresses. A machine without a BMC is not an error.
func bmc(ctx context.Context, m machine, inv *Inventory) error {
	ctx, cancel := context.WithTimeout(ctx, bmcLimit)
	defer cancel()
	var last error
	found := false
	for ch := byte(1); ch <= lastChannel && inv.BMCAddress == nil; ch++ {
		info, err := ask(ctx, m, netFnApp, getChannelInfo, ch)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("the BMC does not answer: %w", errors.Join(err, last))
		case err != nil:
			last = err // most channels don't exist
		case len(info) >= 2 && info[1]&0x7f == mediumLAN:
			found = true
			last = errors.Join(last, lan(ctx, m, ch, inv))
		}
	}
	if found && inv.BMCAddress == nil && inv.BMCV6Address == nil {
		// ironic-python-agent's value for a BMC without network configuration.
		inv.BMCAddress = text("0.0.0.0")
		return errNoLAN
	}
	if !found {
		return fmt.Errorf("%w: %v", errNoLAN, last)
	}
	return nil
}

// lan reads the addresses of one channel.
func lan(ctx context.Context, m machine, ch byte, inv *Inventory) error {
	if b, err := ask(ctx, m, netFnTransport, getLANConfig, ch, paramMAC, 0, 0); err == nil && len(b) >= 7 {
		inv.BMCMAC = text(net.HardwareAddr(b[1:7]).String())
	}
	b, err := ask(ctx, m, netFnTransport, getLANConfig, ch, paramIP, 0, 0)
	if err == nil && len(b) >= 5 {
		if a := netip.AddrFrom4([4]byte(b[1:5])); !a.IsUnspecified() {
			inv.BMCAddress = text(a.String())
		}
	}
	for _, p := range []byte{paramStaticIPv6, paramDynamicIPv6} {
		for set := byte(0); set < 4; set++ {
			b, err := ask(ctx, m, netFnTransport, getLANConfig, ch, p, set, 0)
			// revision, set selector, source, address, prefix length, status (0: in use)
			if err != nil || len(b) < 21 {
				break
			}
			a := netip.AddrFrom16([16]byte(b[3:19]))
			if b[20] == 0 && !a.IsUnspecified() && !a.IsLinkLocalUnicast() && inv.BMCV6Address == nil {
				inv.BMCV6Address = text(a.String())
			}
		}
	}
	return err
}

// ask sends a command and returns the answer after its completion code.
func ask(ctx context.Context, m machine, netFn, command byte, data ...byte) ([]byte, error) {
	b, err := m.IPMI(ctx, netFn, command, data)
	if err != nil {
		return nil, err
	}
	if len(b) == 0 {
		return nil, errors.New("the BMC's answer is empty")
	}
	if b[0] != 0 {
		return nil, fmt.Errorf("the BMC refuses command %#02x/%#02x with completion code %#02x", netFn, command, b[0])
	}
	return b[1:], nil
}
