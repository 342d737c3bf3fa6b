package ramdisk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// readInventory reads from a ramdisk's message only as much as identifies the node. Any host may send one: so one that
// is larger than an ordinary body without authentication is read only while a node waits for it, and one at a time.
func (s *Handlers) readInventory(ctx context.Context, c *call.Call, id string) (map[string]any, error) {
	head, err := io.ReadAll(io.LimitReader(c.Parts, limit.AnonymousBody+1))
	if err != nil {
		return nil, call.BodyError(err)
	}
	from := io.Reader(bytes.NewReader(head))
	if len(head) > limit.AnonymousBody {
		if err := s.awaited(ctx, id); err != nil {
			return nil, err
		}
		select {
		case s.reading <- struct{}{}:
			defer func() { <-s.reading }()
		default:
			return nil, call.Busy("Another inventory is being read; try again in a moment.")
		}
		from = io.MultiReader(from, c.Parts)
	} else if len(bytes.TrimSpace(head)) == 0 {
		return map[string]any{}, nil
	}
	v, err := extract(from)
	var bad *jsonError
	switch {
	case errors.As(err, &bad):
		return nil, rest.BadRequest("The body is not JSON that can be used here: %v", bad)
	case err != nil:
		return nil, call.BodyError(err)
	}
	c.Body = v
	b, rerr := c.Object("data")
	if rerr != nil {
		return nil, rerr
	}
	return b, nil
}

// awaited refuses inventories that no node waits for.
func (s *Handlers) awaited(ctx context.Context, id string) error {
	if id != "" {
		_, err := s.ramdiskNode(ctx, id, nil, []node.State{node.InspectWait})
		return err
	}
	waiting := node.InspectWait
	ns, err := s.store.Nodes(ctx, store.Query{Provision: &waiting, Limit: 1})
	if err == nil && len(ns) == 0 {
		return unknownNode()
	}
	return err
}

// jsonError is a fault of the text that is read.
type jsonError struct{ text string }

func (e *jsonError) Error() string { return e.text }

// Bounds of the stored part of an inventory.
const (
	maxKept  = 1 << 20
	maxDepth = 25
)

// wanted are the members that are kept, by the names on the way to them; "" is any element of a list.
var wanted = [][]string{
	{"inventory", "interfaces", "", "mac_address"}, {"inventory", "bmc_address"}, {"inventory", "bmc_v6address"},
}

// extract reads a JSON text and returns its value without the members that are not wanted.
func extract(r io.Reader) (any, error) {
	x := &extractor{dec: json.NewDecoder(r)}
	v, err := x.value(nil, true)
	if err != nil {
		return nil, err
	}
	if _, err := x.dec.Token(); !errors.Is(err, io.EOF) {
		if err == nil {
			err = &jsonError{"there is more after its end"}
		}
		return nil, asJSON(err)
	}
	return v, nil
}

type extractor struct {
	dec  *json.Decoder
	kept int
}

// charge counts stored values.
func (x *extractor) charge(text int) error {
	const value = 48 // about what one takes besides its text
	if x.kept += value + text; x.kept > maxKept {
		return &jsonError{fmt.Sprintf("its addresses take more than %d bytes", maxKept)}
	}
	return nil
}

// asJSON distinguishes faults of the text from those of the connection.
func asJSON(err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return &jsonError{err.Error()}
	}
	return err
}

func (x *extractor) value(at []string, keep bool) (any, error) {
	t, err := x.dec.Token()
	if err != nil {
		return nil, asJSON(err)
	}
	if len(at) > maxDepth {
		return nil, &jsonError{fmt.Sprintf("it is nested deeper than %d levels", maxDepth)}
	}
	d, ok := t.(json.Delim)
	if !ok {
		if !keep {
			return nil, nil
		}
		text, _ := t.(string)
		return t, x.charge(len(text))
	}
	object := map[string]any{}
	list := []any{}
	for x.dec.More() {
		next := append(slices.Clip(at), "")
		if d == '{' {
			k, err := x.dec.Token()
			if err != nil {
				return nil, asJSON(err)
			}
			next[len(at)] = k.(string) // the decoder takes no other keys
		}
		kept := keep && useful(next)
		v, err := x.value(next, kept)
		switch {
		case err != nil:
			return nil, err
		case !kept:
		case d == '{':
			object[next[len(at)]] = v
		default:
			list = append(list, v)
		}
		if kept {
			if err := x.charge(len(next[len(at)])); err != nil {
				return nil, err
			}
		}
	}
	if _, err := x.dec.Token(); err != nil { // its end
		return nil, asJSON(err)
	}
	switch {
	case !keep:
		return nil, nil
	case d == '{':
		return object, nil
	}
	return list, nil
}

// useful reports whether a path leads to a wanted value, or is on the way to one.
func useful(at []string) bool {
	return slices.ContainsFunc(wanted, func(w []string) bool {
		n := min(len(w), len(at))
		return slices.Equal(w[:n], at[:n])
	})
}
