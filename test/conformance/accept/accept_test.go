package accept

import (
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/conformance/ask"
	"github.com/ingot-metal/ingot/test/conformance/compare"
)

// TestTooMuchIsRefused: an entry covers one difference of one route, never a class of them, and says why.
func TestTooMuchIsRefused(t *testing.T) {
	for _, line := range []string{
		"GET /v1/nodes | status | 4xx | 400 | because it is so",
		"GET /v1/nodes | status | * | 400 | because it is so",
		"GET /v1/nodes | status | 400 | 400 | because it is so",
		"GET /v1/* | status | 404 | 400 | because it is so",
		"* | status | 404 | 400 | because it is so",
		"GET /v1/nodes, GET /v1/ports | body/next | * | * | because it is so",
		"GET /v1/nodes | * | 1 | 2 | because it is so",
		"GET /v1/nodes | body/nodes/* | 1 | 2 | because it is so",
		"GET /v1/nodes | status | 404 | 400 | ",
		"GET /v1/nodes | status | 404 | 400",
		"GET another address | status | 404 | 400 | because it is so",
	} {
		if l, err := Read(strings.NewReader(line)); err == nil {
			t.Errorf("%q was taken: %+v", line, l[0])
		}
	}
	l, err := Read(strings.NewReader("# why\n\nGET /v1/nodes | body/nodes | * | * | because it is so\n"))
	if err != nil || len(l) != 1 || l[0].Line != 3 {
		t.Fatalf("one good line gives %v, %v", l, err)
	}
	const line = "GET /v1/nodes | body/nodes | * | * | because it is so | "
	if l, err := Read(strings.NewReader(line + "seed 7, part 3\n")); err != nil || len(l.Rare()) != 1 ||
		l[0].Seed != 7 || l[0].Part != 3 {
		t.Errorf("a line with a seed gives %+v, %v", l, err)
	}
	if _, err := Read(strings.NewReader(line + "seed 7\n")); err == nil {
		t.Error("half a seed is taken")
	}
	if len(l.Rare()) != 0 {
		t.Error("a line without a seed is rare")
	}
	if e := l.Match(ask.Ask{Route: "GET /v1/nodes"}, compare.Difference{Field: "body/nodes", Shape: true}); e != nil {
		t.Error("an entry covers a missing member")
	}
	if e := l.Match(ask.Ask{Route: "GET /v1/nodes/{node}"}, compare.Difference{Field: "body/nodes"}); e != nil {
		t.Error("an entry covers another route")
	}
	if err := l.Check(100, true); err == nil || !strings.Contains(err.Error(), "matches nothing") {
		t.Errorf("an entry that matches nothing = %v", err)
	}
	for range 3 {
		if l.Match(ask.Ask{Route: "GET /v1/nodes"},
			compare.Difference{Field: "body/nodes", Want: "1", Got: "2"}) == nil {
			t.Error("an entry does not cover what it names")
		}
	}
	if err := l.Check(100, true); err == nil || !strings.Contains(err.Error(), "3 of 100") {
		t.Errorf("an entry for 3 of 100 requests = %v", err)
	}
	if err := l.Check(150, true); err != nil {
		t.Errorf("an entry for 2 in a hundred: %v", err)
	}
}

// TestLineForAnArgument: a line with an argument covers requests that have it, and no others.
func TestLineForAnArgument(t *testing.T) {
	for line, want := range map[string]string{
		"GET /v1/nodes?a= | body/nodes | 1 items | 0 items | because it is so":  "/v1/nodes?b=1&a=",
		"GET /v1/nodes?a | body/nodes | 1 items | 0 items | because it is so":   "/v1/nodes?b=1&a= /v1/nodes?a=1",
		"GET /v1/nodes?a=1 | body/nodes | 1 items | 0 items | because it is so": "/v1/nodes?a=1",
	} {
		l, err := Read(strings.NewReader(line))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, query := range []string{"", "?b=1&a=", "?a=1", "?b=a", "?ab=1"} {
			path := "/v1/nodes" + query
			if l.Match(ask.Ask{Route: "GET /v1/nodes", Path: path},
				compare.Difference{Field: "body/nodes", Want: "1 items", Got: "0 items"}) != nil {
				got = append(got, path)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q covers %s, want %s", line, got, want)
		}
	}
}

// TestLineForAnAddress: a line covers its route however the address is written; one for another address nothing else.
func TestLineForAnAddress(t *testing.T) {
	other := "GET /v1/nodes" + ask.OtherAddress
	for line, want := range map[string]string{"GET /v1/nodes": "GET /v1/nodes " + other, other: other} {
		l, err := Read(strings.NewReader(line + " | status | 404 | 400 | because it is so"))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, route := range []string{"GET /v1/nodes", other, "GET /v1/ports" + ask.OtherAddress} {
			if l.Match(ask.Ask{Route: route}, compare.Difference{Field: "status", Want: "404", Got: "400"}) != nil {
				got = append(got, route)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q covers %s, want %s", line, got, want)
		}
	}
}
