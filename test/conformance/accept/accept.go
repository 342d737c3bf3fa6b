// Package accept reads the list of differences that are taken as they are.
//
// A line is ROUTE | FIELD | IRONIC | INGOT | REASON. It names one route, one field or header, what each of the two says
// there (* is anything, but not of a status), and why that is so. A route with "?name" or "?name=value" behind it is
// that of the requests with this argument only. A line also covers its route where the address is written in another
// way; with "another address" behind the route it is for such requests only. No line can cover a member that is missing
// or too much. What few seeds show has one of those as a sixth column, "seed N, part P", with which it is asked for
// again.
package accept

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/ingot-metal/ingot/test/conformance/ask"
	"github.com/ingot-metal/ingot/test/conformance/compare"
)

// Entry is a line.
type Entry struct {
	Line                                 int
	Route, Arg, Field, Want, Got, Reason string
	Seed                                 uint64       // that shows it; 0: every ten do
	Part                                 int          // for which the seed is
	Matched                              atomic.Int64 // requests so far
}

// List is all lines.
type List []*Entry

var (
	status = regexp.MustCompile(`^[1-5]\d\d$`)
	route  = regexp.MustCompile(`^[A-Z]+ /[^*, ]*( another address)?$`)
	field  = regexp.MustCompile(`^(status|header [A-Z][A-Za-z-]+|body[^*]*)$`)
)

// Read reads a list; it gives all faults of all lines at once.
func Read(r io.Reader) (List, error) {
	var l List
	var errs []error
	sc := bufio.NewScanner(r)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		e, err := parse(line)
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", n, err))
			continue
		}
		e.Line = n
		l = append(l, e)
	}
	return l, errors.Join(append(errs, sc.Err())...)
}

func parse(line string) (*Entry, error) {
	c := strings.Split(line, " | ")
	if len(c) != 5 && len(c) != 6 {
		return nil, errors.New("a line is ROUTE | FIELD | IRONIC | INGOT | REASON, and perhaps | seed N, part P")
	}
	e := &Entry{Field: c[1], Want: c[2], Got: c[3], Reason: c[4]}
	if len(c) == 6 {
		n, err := fmt.Sscanf(c[5]+"\n", "seed %d, part %d\n", &e.Seed, &e.Part)
		if n != 2 || err != nil || e.Seed == 0 {
			return nil, fmt.Errorf("%q is not: seed N, part P", c[5])
		}
	}
	e.Route, e.Arg, _ = strings.Cut(c[0], "?")
	switch {
	case !route.MatchString(e.Route):
		return nil, fmt.Errorf("%q is not one route", e.Route)
	case !field.MatchString(e.Field):
		return nil, fmt.Errorf("%q is not one field or header", e.Field)
	case e.Field == "status" && (!status.MatchString(e.Want) || !status.MatchString(e.Got) || e.Want == e.Got):
		return nil, fmt.Errorf("%s and %s are not two single statuses", e.Want, e.Got)
	case len(strings.Fields(e.Reason)) < 3:
		return nil, errors.New("the reason is missing")
	}
	return e, nil
}

// Match counts, also when several compare at once, and gives the entry that covers a difference in the answers to a
// request, or nil.
func (l List) Match(a ask.Ask, d compare.Difference) *Entry {
	if d.Shape {
		return nil
	}
	for _, e := range l {
		if e.Covers(a) && e.Field == d.Field && (e.Want == "*" || e.Want == d.Want) &&
			(e.Got == "*" || e.Got == d.Got) {
			e.Matched.Add(1)
			return e
		}
	}
	return nil
}

// has reports whether a request has an argument, name or name=value; "" is none.
func has(path, arg string) bool {
	_, query, _ := strings.Cut(path, "?")
	return arg == "" || slices.ContainsFunc(strings.Split(query, "&"), func(q string) bool {
		return q == arg || strings.HasPrefix(q, arg+"=")
	})
}

// mostShare is how many of a hundred requests an entry may cover.
const mostShare = 2

// Unmatched returns the entries that matched nothing so far.
func (l List) Unmatched() (unmatched []*Entry) {
	for _, e := range l {
		if e.Matched.Load() == 0 {
			unmatched = append(unmatched, e)
		}
	}
	return unmatched
}

// Rare returns the entries that matched nothing so far and have a seed that shows them.
func (l List) Rare() []*Entry {
	return slices.DeleteFunc(l.Unmatched(), func(e *Entry) bool { return e.Seed == 0 })
}

// Covers reports whether an entry is for a request.
func (e *Entry) Covers(a ask.Ask) bool {
	return (e.Route == a.Route || e.Route == strings.TrimSuffix(a.Route, ask.OtherAddress)) && has(a.Path, e.Arg)
}

// Check finds the entries that matched nothing (if all is true) or too much.
func (l List) Check(requests int, all bool) error {
	var errs []error
	if all {
		for _, e := range l.Unmatched() {
			errs = append(errs, fmt.Errorf("line %d (%s %s) matches nothing: remove it", e.Line, e.Route, e.Field))
		}
	}
	for _, e := range l {
		if int(e.Matched.Load())*100 > requests*mostShare {
			errs = append(errs,
				fmt.Errorf("line %d (%s %s) matches %d of %d requests, more than %d in a hundred", e.Line, e.Route,
					e.Field, e.Matched.Load(), requests, mostShare))
		}
	}
	return errors.Join(errs...)
}
