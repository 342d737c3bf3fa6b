package call

import (
	"cmp"
	"maps"
	"net/http"
	"slices"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// Answers describe the bodies of answers, by status: values as rest.SchemaOf takes them. Nil is no body; Anything is
// any JSON. An empty Answers is that of a route that only ever refuses.
type Answers map[int]any

// Anything is a body of which nothing is known but that it is JSON.
var Anything = &rest.Schema{}

// None answers with no body.
func None(status int) Answers { return Answers{status: nil} }

// OK answers with a body.
func OK(body any) Answers { return Answers{http.StatusOK: body} }

// Body describes the body of an action: an object with no other members.
func Body(needed []string, members Args) *rest.Schema {
	return &rest.Schema{Types: []string{"object"}, Closed: true, Required: needed, Props: members}
}

// Args are arguments of a query.
type Args map[string]*rest.Schema

// What arguments of a query are.
var (
	Text   = &rest.Schema{Types: []string{"string"}}
	Truth  = &rest.Schema{Types: []string{"boolean"}}
	Flag   = &rest.Schema{Types: []string{"boolean", "string"}} // one of the words that are taken for a boolean, too
	Number = &rest.Schema{Types: []string{"integer"}}
	Texts  = &rest.Schema{Types: []string{"array"}, Items: Text}
)

// With returns these arguments and others.
func (a Args) With(others ...Args) Args {
	all := maps.Clone(a)
	for _, o := range others {
		maps.Copy(all, o)
	}
	return all
}

// Dated returns arguments that are texts, or the kinds that are given for some, with the version that brought each.
func Dated(since map[string]rest.Version, kinds Args) Args {
	a := Args{}
	for name, v := range since {
		kind := cmp.Or(kinds[name], Text)
		a[name] = kind.From(v)
	}
	return a
}

// Names returns the names, in order.
func (a Args) Names() []string { return slices.Sorted(maps.Keys(a)) }
