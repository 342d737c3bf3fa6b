// Package signoflife defines the signs by which a deployed operating system shows that it has started: it calls a
// one-time address (phone_home), asks for an address (dhcp), opens a TCP port (port:22), or prints a text on its
// console (console:login:). Any one of the requested signs counts.
//
// The one-time address reaches the system in its config drive. Its token is computed from the node, the job and a key,
// so that it need not be stored, and the same plan made twice has the same token.
package signoflife

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Kind is a way of showing that a system has started.
type Kind string

// Kinds.
const (
	PhoneHome Kind = "phone_home"
	DHCP      Kind = "dhcp"
	Port      Kind = "port"
	Console   Kind = "console"
)

// Sign is one sign that is waited for.
type Sign struct {
	Kind Kind
	Port int    // of a Port
	Text string // of a Console
}

func (s Sign) String() string {
	switch s.Kind {
	case Port:
		return "port:" + strconv.Itoa(s.Port)
	case Console:
		return "console:" + s.Text
	}
	return string(s.Kind)
}

// None is the setting that requires no sign, whatever a wider setting says.
const None = "none"

const (
	maxSigns = 8
	maxText  = 100
)

// Parse reads a setting: a list of signs, or one as text. None, an empty text and an empty list require nothing.
func Parse(v any) ([]Sign, error) {
	var list []string
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		list = []string{v}
	case []string:
		list = v
	case []any:
		for _, item := range v {
			text, ok := item.(string)
			if !ok {
				return nil, fmt.Errorf("%v is not a sign of life: %s", item, known)
			}
			list = append(list, text)
		}
	default:
		return nil, fmt.Errorf("%v is neither a sign of life nor a list of them: %s", v, known)
	}
	if len(list) == 1 && (strings.TrimSpace(list[0]) == "" || list[0] == None) {
		return nil, nil
	}
	if len(list) > maxSigns {
		return nil, fmt.Errorf("%d signs of life are more than the %d that are watched for at once", len(list),
			maxSigns)
	}
	var signs []Sign
	seen := map[Sign]bool{}
	for _, text := range list {
		s, err := parse(text)
		if err != nil {
			return nil, err
		}
		if !seen[s] {
			seen[s] = true
			signs = append(signs, s)
		}
	}
	return signs, nil
}

const known = "use phone_home, dhcp, port:NUMBER or console:TEXT"

func parse(text string) (Sign, error) {
	kind, rest, has := strings.Cut(text, ":")
	switch s := (Sign{Kind: Kind(kind)}); s.Kind {
	case PhoneHome, DHCP:
		if has {
			return s, fmt.Errorf("sign of life %q: %s takes nothing behind it", text, kind)
		}
		return s, nil
	case Port:
		n, err := strconv.ParseUint(rest, 10, 16)
		if err != nil || n == 0 {
			return s, fmt.Errorf("sign of life %q: %q is not a TCP port", text, rest)
		}
		s.Port = int(n)
		return s, nil
	case Console:
		s.Text = rest
		if strings.TrimSpace(rest) == "" || len(rest) > maxText ||
			strings.ContainsFunc(rest, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return s, fmt.Errorf(
				"sign of life %q: the text on the console is at most %d characters of one line, and not empty", text,
				maxText)
		}
		return s, nil
	}
	return Sign{}, fmt.Errorf("%q is not a sign of life: %s", text, known)
}

// Has reports whether a kind is among the signs.
func Has(signs []Sign, k Kind) bool {
	return slices.ContainsFunc(signs, func(s Sign) bool { return s.Kind == k })
}

// Texts are the signs as they are written in a setting.
func Texts(signs []Sign) []string {
	out := make([]string, len(signs))
	for i, s := range signs {
		out[i] = s.String()
	}
	return out
}
