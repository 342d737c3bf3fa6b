// Package firewall finds the rules of this host that decide which packets its programs get.
//
// It asks the kernel for the chains of nftables at the hook input; iptables' are among them, but for those of its
// legacy form, which has a file in /proc. What the rules say it does not know: that takes a firewall.
package firewall

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Chain is a list of rules that packets to this host pass.
type Chain struct {
	Family string // ip, ip6, inet
	Table  string
	Name   string
	Drops  bool // what no rule decides about is dropped
	Rules  int
}

// String names the chain as nft does, and says what it does.
func (c Chain) String() string {
	s := fmt.Sprintf("%s %s %s: rules %d", c.Family, c.Table, c.Name, c.Rules)
	if c.Drops {
		s += ", all else is dropped"
	}
	return s
}

// Find lists the chains that could drop a packet: those that drop by themselves, and those with rules. A kernel without
// nftables has none. Only root may ask.
func Find() ([]Chain, error) {
	chains, err := ask()
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		// a kernel without nftables
	case err != nil:
		return nil, fmt.Errorf("ask the kernel for its firewall: %w", err)
	}
	legacy, err := os.ReadFile("/proc/net/ip_tables_names")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if slices.Contains(strings.Fields(string(legacy)), "filter") {
		chains = append(chains, Chain{Family: "ip", Table: "filter", Name: "INPUT (iptables-legacy)", Rules: 1})
	}
	return slices.DeleteFunc(chains, func(c Chain) bool { return !c.Drops && c.Rules == 0 }), nil
}

// families that packets to a host's programs are of.
var families = map[nftables.TableFamily]string{
	nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
}

func ask() (chains []Chain, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	all, err := c.ListChains()
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		family, known := families[n.Table.Family]
		if !known || n.Type != nftables.ChainTypeFilter || n.Hooknum == nil || *n.Hooknum != *nftables.ChainHookInput {
			continue
		}
		rules, err := c.GetRules(n.Table, n)
		if err != nil {
			return nil, err
		}
		chains = append(chains, Chain{Family: family, Table: n.Table.Name, Name: n.Name, Rules: len(rules),
			Drops: n.Policy != nil && *n.Policy == nftables.ChainPolicyDrop})
	}
	return chains, nil
}
