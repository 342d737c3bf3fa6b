package main

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/conformance/ask"
	"github.com/ingot-metal/ingot/test/conformance/ironic"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// TestEveryRouteInEveryWay counts the requests in ten parts of the deck: every route of the table with each of its
// versions, identifiers, values, operations, arguments and headers, in every state of its node, and by every role; and
// that the state afterwards is requested.
func TestEveryRouteInEveryWay(t *testing.T) {
	routes, err := description(t.Context(), alone(t, ironic.None, made.Program(t, "ingotd")))
	if err != nil {
		t.Fatal(err)
	}
	played, states, methods := map[string]int{}, map[string]int{}, map[string]int{}
	changes, looks, requests, fewest := 0, 0, 0, 1<<30
	for part := range ask.Parts {
		seed, n := uint64(part+1), 0
		for _, scene := range ask.Scenes(routes, "", seed, part) {
			n += len(scene)
			for i, a := range scene {
				methods[a.Method]++
				if a.Card.Class == "" {
					continue
				}
				played[a.Card.Route.String()+" "+a.Card.Class+" "+a.Card.Value]++
				states[a.Card.Route.String()+" "+a.State]++
				if a.Wait != "" && strings.Contains(a.Card.Route.Path, "}") &&
					a.Card.Route.Path != "/v1/drivers/{driver}" {
					changes++
					if i+1 < len(scene) && scene[i+1].Method == "GET" && scene[i+1].Card.Class == "" {
						looks++
					}
				}
			}
		}
		requests, fewest = requests+n, min(fewest, n)
	}
	t.Logf("%d routes, %d cards, %d requests in ten parts, at least %d in one", len(routes), len(ask.Deck(routes)),
		requests,
		fewest)
	if fewest < 2000 {
		t.Errorf("a part has %d requests, want 2000", fewest)
	}
	for _, c := range ask.Deck(routes) {
		if played[c.Route.String()+" "+c.Class+" "+c.Value] == 0 {
			t.Errorf("%s: %s %q is never asked for", c.Route, c.Class, c.Value)
		}
	}
	for _, r := range routes {
		for _, s := range ask.States {
			if strings.Contains(r.Path, "{node}") && states[r.String()+" "+s] == 0 {
				t.Errorf("%s is never asked for in state %s", r, s)
			}
		}
	}
	for _, m := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"} {
		if methods[m] == 0 {
			t.Errorf("%s is never asked for", m)
		}
	}
	if looks*10 < changes*8 { // drivers have no state
		t.Errorf("after %d of %d changes somebody looks what came of it", looks, changes)
	}
	for _, auth := range []string{ask.HTTPBasic, ask.Keystone} {
		asked := map[string]int{}
		for part := range ask.Parts {
			for _, scene := range ask.Scenes(routes, auth, 1, part) {
				for _, a := range scene {
					if a.Role != "" {
						asked[a.Card.Route.String()+" "+a.Role]++
					}
				}
			}
		}
		for _, r := range routes {
			for _, role := range ask.Roles(auth) {
				if asked[r.String()+" "+role] == 0 {
					t.Errorf("%s: %s never asks for %s", auth, role, r)
				}
			}
		}
	}
}

// TestSameSeedSameRequests: requests come from the seed.
func TestSameSeedSameRequests(t *testing.T) {
	routes, err := description(t.Context(), alone(t, ironic.None, made.Program(t, "ingotd")))
	if err != nil {
		t.Fatal(err)
	}
	for _, auth := range []string{"", ask.HTTPBasic, ask.Keystone} {
		scenes := ask.Scenes(routes, auth, 5, 0)
		if !reflect.DeepEqual(scenes, ask.Scenes(routes, auth, 5, 0)) {
			t.Errorf("%q: the scenes are others the second time", auth)
		}
		other := ask.Scenes(routes, auth, 6, 0)
		for i, scene := range scenes {
			if cards := cardsOf(scene); len(cards) > 2 && reflect.DeepEqual(cards, cardsOf(other[i])) {
				t.Errorf("%q: scene %d has its cards in the same order for another seed", auth, i)
			}
		}
		if reflect.DeepEqual(scenes, ask.Scenes(routes, auth, 5, 1)) {
			t.Errorf("%q: the scenes are the same for another part", auth)
		}
	}
}

func cardsOf(scene []ask.Ask) (cards []ask.Card) {
	for _, a := range scene {
		if a.Card.Class != "" {
			cards = append(cards, a.Card)
		}
	}
	return cards
}

// TestRolesAreThere: the roles that requests name are those of the servers.
func TestRolesAreThere(t *testing.T) {
	for _, auth := range ways[1:] {
		s := alone(t, auth, made.Program(t, "ingotd"))
		var names []string
		for name := range s.Roles {
			names = append(names, name)
		}
		want := append(ask.Roles(string(auth)), "")
		slices.Sort(names)
		slices.Sort(want)
		if fmt.Sprint(names) != fmt.Sprint(want) {
			t.Errorf("%s: the roles are %v, want %v", auth, names, want)
		}
	}
}
