package store

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestChangedFields holds the comparison of documents to one that decodes them.
func TestChangedFields(t *testing.T) {
	doc := func(n *node.Node) []byte {
		b, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	yes := true
	a := doc(&node.Node{Name: "a", Extra: map[string]any{"k": `"}],{["\\`, "l": []any{1, map[string]any{"m": "}"}}},
		Traits: []string{"T"}, Description: "<&>"})
	b := doc(&node.Node{Name: "b", Extra: map[string]any{"k": `"}],{["\\`, "l": []any{1, map[string]any{"m": "]"}}},
		AutomatedClean: &yes, Description: "<&>", Job: &node.Job{ID: "j"}})
	for _, c := range []struct{ before, after []byte }{
		{a, a}, {a, b}, {b, a}, {doc(&node.Node{}), b}, {a, doc(&node.Node{})},
		{[]byte(`{}`), []byte(`{"driver_info":{"a":1}}`)},
		{[]byte(`{"driver_info":{"a":1},"instance_info":{}}`), []byte(`{"instance_info":{"x":"y"}}`)},
		{[]byte(`{"driver_info":{"a":1}}`), []byte(`{"driver_info":{"a":2},"job":{"driver_info":3}}`)},
		{[]byte(`{}`), []byte(`{}`)},
	} {
		var x, y map[string]json.RawMessage
		if err := json.Unmarshal(c.before, &x); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(c.after, &y); err != nil {
			t.Fatal(err)
		}
		var want []string
		for key, name := range shownFields {
			if string(x[key]) != string(y[key]) {
				want = append(want, name)
			}
		}
		got := changedFields(c.before, c.after)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("changedFields(%s, %s) = %v, want %v", c.before, c.after, got, want)
		}
	}
	for _, cut := range [][]byte{nil, []byte(`{`), []byte(`{"`), []byte(`{"a`), []byte(`{"a"`), []byte(`{"a":`),
		[]byte(`{"a":"\`), []byte(`{"a":{"b`)} {
		if k, _, _ := nextMember(cut); k != nil {
			t.Errorf("nextMember(%s) = %s", cut, k)
		}
	}
}
