package discover

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
)

// mostTargets bounds one discovery: a /16.
const mostTargets = 1 << 16

// Target is an address to ask.
type Target struct {
	Address string
	// Fingerprint is of the certificate that was accepted, in hexadecimal digits; "": any.
	Fingerprint string
}

// Parse returns the targets of a word: an address or host name, with a port or without, a network (192.0.2.0/24), or a
// range (192.0.2.10-192.0.2.50).
func Parse(word string) ([]Target, error) {
	if p, err := netip.ParsePrefix(word); err == nil {
		return network(p)
	}
	if first, last, ok := strings.Cut(word, "-"); ok {
		from, err1 := netip.ParseAddr(first)
		to, err2 := netip.ParseAddr(last)
		if err1 == nil && err2 == nil {
			return between(word, from, to)
		}
	}
	if strings.Contains(word, "/") || strings.ContainsAny(word, " @?#%") {
		return nil, fmt.Errorf("%q is neither an address, a network nor a range of addresses", word)
	}
	if a, err := netip.ParseAddr(word); err == nil && a.Is6() {
		word = "[" + word + "]"
	}
	return []Target{{Address: word}}, nil
}

func network(p netip.Prefix) ([]Target, error) {
	p = p.Masked()
	if p.Addr().BitLen()-p.Bits() > 16 {
		return nil, fmt.Errorf("%s has more than %d addresses: name a smaller network", p, mostTargets)
	}
	var all []Target
	for a := p.Addr(); p.Contains(a); a = a.Next() {
		all = append(all, targetOf(a))
	}
	if p.Addr().Is4() && len(all) > 2 { // without those of the network itself and of broadcasts
		all = all[1 : len(all)-1]
	}
	return all, nil
}

func between(word string, from, to netip.Addr) ([]Target, error) {
	if from.BitLen() != to.BitLen() || to.Less(from) {
		return nil, fmt.Errorf("%q is not a range of addresses: the first is not before the last", word)
	}
	var all []Target
	for a := from; a.IsValid() && !to.Less(a); a = a.Next() {
		if all = append(all, targetOf(a)); len(all) > mostTargets {
			return nil, fmt.Errorf("%s has more than %d addresses: name a smaller range", word, mostTargets)
		}
	}
	return all, nil
}

func targetOf(a netip.Addr) Target {
	if a.Is6() {
		return Target{Address: "[" + a.String() + "]"}
	}
	return Target{Address: a.String()}
}

// ReadTargets reads targets from a file: a word of Parse at the beginning of each line, and after it, if the line has
// one, a fingerprint. So the table that a discovery prints can be read again. Lines that begin with # are comments, and
// so is the table's head.
func ReadTargets(data []byte) (all []Target, err error) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for i := 1; lines.Scan(); i++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") || words[0] == "ADDRESS" {
			continue
		}
		some, err := Parse(words[0])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i, err)
		}
		if len(words) > 1 && isFingerprint(words[1]) && len(some) == 1 {
			some[0].Fingerprint = words[1]
		}
		if all = append(all, some...); len(all) > mostTargets {
			return nil, fmt.Errorf("line %d: there are more than %d addresses: make several lists", i, mostTargets)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the list: %w", err)
	}
	return all, nil
}

func isFingerprint(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32
}
