// Package firewall finds the rules of this host that decide which packets its programs get.
//
// It asks the kernel for the chains of nftables at the hook input, over netlink; iptables' are among them, but for
// those of its legacy form, which has a file in /proc. What the rules say it does not know: that takes a firewall.
//
// Messages are those of linux/netfilter/nfnetlink.h and nf_tables.h.
package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

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

const (
	getChain    = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN
	newChain    = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWCHAIN
	headerBytes = unix.SizeofNlMsghdr
	familyBytes = 4 // struct nfgenmsg
	localIn     = 1 // NF_INET_LOCAL_IN
)

// Find lists the chains that could drop a packet: those that drop by themselves, and those with rules. A kernel without
// nftables has none. Only root may ask.
func Find() ([]Chain, error) {
	chains, err := ask()
	if err != nil {
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

func ask() (chains []Chain, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
		return nil, err
	}
	request := make([]byte, headerBytes+familyBytes) // of all families
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], getChain)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	for b := make([]byte, 1<<16); ; {
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			return nil, err
		}
		more, done, err := read(b[:n])
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // a kernel without nftables
			return nil, nil
		}
		if chains = append(chains, more...); done || err != nil {
			return chains, err
		}
	}
}

// read reads messages of the kernel. done reports that the last one was among them.
func read(b []byte) (chains []Chain, done bool, err error) {
	for len(b) >= headerBytes {
		size, kind := int(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint16(b[4:])
		if size < headerBytes || size > len(b) {
			return chains, true, errors.New("the kernel's answer is cut off")
		}
		body := b[headerBytes:size]
		switch kind {
		case unix.NLMSG_DONE:
			return chains, true, nil
		case unix.NLMSG_ERROR:
			if len(body) < 4 {
				return chains, true, errors.New("the kernel's answer is cut off")
			}
			return chains, true, unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
		case newChain:
			if c, ok := chain(body); ok {
				chains = append(chains, c)
			}
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return chains, false, nil
}

// chain reads a chain; ok is false for one that packets to this host do not pass.
func chain(body []byte) (c Chain, ok bool) {
	if len(body) < familyBytes {
		return c, false
	}
	families := map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}
	family, known := families[body[0]]
	c.Family = family
	kind := ""
	attributes(body[familyBytes:], func(number uint16, value []byte) {
		text := strings.TrimRight(string(value), "\x00")
		switch number {
		case unix.NFTA_CHAIN_TABLE:
			c.Table = text
		case unix.NFTA_CHAIN_NAME:
			c.Name = text
		case unix.NFTA_CHAIN_TYPE:
			kind = text
		case unix.NFTA_CHAIN_POLICY:
			c.Drops = len(value) == 4 && binary.BigEndian.Uint32(value) == 0
		case unix.NFTA_CHAIN_USE:
			if len(value) == 4 {
				c.Rules = int(binary.BigEndian.Uint32(value))
			}
		case unix.NFTA_CHAIN_HOOK:
			attributes(value, func(number uint16, value []byte) {
				ok = ok || number == unix.NFTA_HOOK_HOOKNUM && len(value) == 4 &&
					binary.BigEndian.Uint32(value) == localIn
			})
		}
	})
	return c, ok && known && kind == "filter"
}

// attributes calls f for each attribute.
func attributes(b []byte, f func(number uint16, value []byte)) {
	const header, flags = 4, unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
	for len(b) >= header {
		size := int(binary.NativeEndian.Uint16(b))
		if size < header || size > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&^flags, b[header:size])
		b = b[min(len(b), (size+3)&^3):]
	}
}
