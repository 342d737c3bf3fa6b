// Package rule has the rules for values of settings.
package rule

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Rule bounds the values of one setting.
type Rule interface {
	// Fault returns the fault of a value of the setting's type, or "".
	Fault(value any) string
	// String says which values are allowed, for the documentation; empty where the text says it.
	String() string
}

// OneOf lists all values.
type OneOf []string

// Fault implements Rule.
func (o OneOf) Fault(value any) string {
	for _, allowed := range o {
		if value == allowed {
			return ""
		}
	}
	return fmt.Sprintf("%q is none of %s", value, strings.Join(shown(o), ", "))
}

func (o OneOf) String() string { return "one of " + strings.Join(shown(o), ", ") }

// Positive allows durations above zero.
type Positive struct{}

// Fault implements Rule.
func (Positive) Fault(value any) string {
	if value.(time.Duration) > 0 {
		return ""
	}
	return fmt.Sprintf("%v is not a positive duration", value)
}

func (Positive) String() string { return "more than 0s" }

// Hours is the shortest duration.
type Hours int

// Fault implements Rule.
func (h Hours) Fault(value any) string {
	if value.(time.Duration) >= time.Duration(h)*time.Hour {
		return ""
	}
	return fmt.Sprintf("%v is less than %dh", value, h)
}

func (h Hours) String() string { return fmt.Sprintf("at least %dh", int(h)) }

// AtLeast is the least number.
type AtLeast int

// Fault implements Rule.
func (least AtLeast) Fault(value any) string {
	if value.(int) >= int(least) {
		return ""
	}
	return fmt.Sprintf("%d is less than %d", value, least)
}

func (least AtLeast) String() string { return "at least " + strconv.Itoa(int(least)) }

type between struct{ least, most int }

// Between allows numbers from least to most.
func Between(least, most int) Rule { return between{least, most} }

// Fault implements Rule.
func (b between) Fault(value any) string {
	if n := value.(int); n >= b.least && n <= b.most {
		return ""
	}
	return fmt.Sprintf("%d is not between %d and %d", value, b.least, b.most)
}

func (b between) String() string { return fmt.Sprintf("%d to %d", b.least, b.most) }

// HostPort is whether HOST:PORT must be given.
type HostPort bool

// Fault implements Rule.
func (needed HostPort) Fault(value any) string {
	s := value.(string)
	if _, _, err := net.SplitHostPort(s); err != nil && (s != "" || bool(needed)) {
		return fmt.Sprintf("%q is not host:port", s)
	}
	return ""
}

func (HostPort) String() string { return "" }

// UUIDs allows a list of NAME=UUID.
type UUIDs struct{}

// Fault implements Rule.
func (UUIDs) Fault(value any) string {
	for _, pair := range value.([]string) {
		if _, id, ok := strings.Cut(pair, "="); !ok || len(id) != 36 || uuid.Validate(id) != nil {
			return fmt.Sprintf("%q is not GROUP=UUID", pair)
		}
	}
	return ""
}

func (UUIDs) String() string { return "each GROUP=UUID" }

// IPv4 allows an IPv4 address, or a list of them; none is allowed, too.
type IPv4 struct{}

// Fault implements Rule.
func (IPv4) Fault(value any) string {
	list, ok := value.([]string)
	if !ok {
		list = []string{value.(string)}
	}
	for _, s := range list {
		if a, err := netip.ParseAddr(s); s != "" && (err != nil || !a.Is4()) {
			return fmt.Sprintf("%q is not an IPv4 address", s)
		}
	}
	return ""
}

func (IPv4) String() string { return "" }

func shown(words []string) []string {
	var out []string
	for _, w := range words {
		if w == "" {
			out = append(out, "empty")
			continue
		}
		out = append(out, w)
	}
	return out
}
