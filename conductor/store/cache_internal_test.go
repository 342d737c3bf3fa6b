package store

import (
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// TestPresent: a node counts as present only from a time since which no write can have changed it, until its next
// commit begins.
func TestPresent(t *testing.T) {
	at := time.UnixMicro(1)
	v := func(version uint64) *node.Node { return &node.Node{UUID: "a", Version: version, CreatedAt: at} }
	wrote := func(version uint64) []written { return []written{{"a", v(version), 1}} }
	seen := stamp{"a", 1, 1}
	for _, c := range []struct {
		name string
		do   func(c *cache)
		want uint64 // version that is present; 0: none
	}{
		{"nothing", func(*cache) {}, 0},
		{"read", func(c *cache) { c.put(v(1), 1, c.now()) }, 1},
		{"read while a commit is under way", func(c *cache) { c.settling(nil); c.put(v(1), 1, c.now()) }, 0},
		{"read before a commit began", func(c *cache) { e := c.now(); c.settling(wrote(2)); c.put(v(1), 1, e) }, 0},
		{"read before a commit, kept after it", func(c *cache) {
			e := c.now()
			c.settling(wrote(2))
			c.settled(wrote(2))
			c.drop()
			c.put(v(1), 1, e)
		}, 0},
		{"overtaken", func(c *cache) {
			e := c.now()
			c.settling(wrote(2))
			c.settled(wrote(2))
			c.put(v(1), 1, e)
		}, 2},
		{"being committed", func(c *cache) { c.put(v(1), 1, c.now()); c.settling(wrote(2)) }, 0},
		{"another is being committed", func(c *cache) { c.put(v(1), 1, c.now()); c.settling([]written{{"b", nil, 0}}) },
			1},
		{"failed", func(c *cache) { c.put(v(1), 1, c.now()); c.settling(wrote(2)); c.settled(nil) }, 0},
		{"failed, looked up again", func(c *cache) {
			c.put(v(1), 1, c.now())
			c.settling(wrote(2))
			c.settled(nil)
			c.confirm(seen, c.now())
		}, 1},
		{"looked up while a commit is under way", func(c *cache) {
			c.put(v(1), 1, c.now())
			c.settling(wrote(2))
			c.confirm(seen, c.now())
		}, 0},
		{"looked up before a commit that failed", func(c *cache) {
			c.put(v(1), 1, c.now())
			e := c.now()
			c.settling(wrote(2))
			c.settled(nil)
			c.confirm(seen, e)
		}, 0},
		{"another version was seen", func(c *cache) {
			c.put(v(1), 1, c.now())
			c.settling(wrote(2))
			c.settled(nil)
			c.confirm(stamp{"a", 2, 1}, c.now())
		}, 0},
		{"written twice at once", func(c *cache) {
			ws := append(wrote(2), wrote(3)...)
			c.settling(ws)
			c.settled(ws)
		}, 3},
		{"written and deleted at once", func(c *cache) {
			ws := append(wrote(2), written{uuid: "a"})
			c.settling(ws)
			c.settled(ws)
		}, 0},
		{"deleted and made anew at once", func(c *cache) {
			c.put(v(7), 1, c.now())
			ws := append([]written{{uuid: "a"}}, wrote(1)...)
			c.settling(ws)
			c.settled(ws)
		}, 1},
		{"grown too large to be kept", func(c *cache) {
			c.put(v(1), 1, c.now())
			ws := []written{{"a", v(2), maxCachedNode + 1}}
			c.settling(ws)
			c.settled(ws)
		}, 0},
	} {
		for _, alone := range []bool{true, false} {
			kept := newCache(0, alone)
			c.do(kept)
			n, _ := kept.latest("a")
			got, want := uint64(0), c.want
			if n != nil {
				got = n.Version
			}
			if !alone {
				want = 0
			}
			if got != want {
				t.Errorf("%s (alone %v): version %d is present, want %d", c.name, alone, got, want)
			}
			size := 0
			for _, e := range kept.nodes {
				size += e.size
			}
			if kept.size != size {
				t.Errorf("%s: counts %d bytes, has %d", c.name, kept.size, size)
			}
		}
	}
}

// TestUnusedNodesAreForgotten: a sweep keeps what was read or written since the last one.
func TestUnusedNodesAreForgotten(t *testing.T) {
	c := newCache(0, false)
	for _, id := range []string{"a", "b"} {
		c.put(&node.Node{UUID: id, Version: 1}, 100, c.now())
	}
	c.sweep()
	if n, _ := c.get(stamp{uuid: "a", version: 1, created: micros(time.Time{})}); n == nil {
		t.Fatal("a node that was just read is forgotten")
	}
	c.sweep()
	if !c.has("a") || c.has("b") || c.size != 100 {
		t.Errorf("kept a: %v, b: %v, %d bytes", c.has("a"), c.has("b"), c.size)
	}
	c.sweep()
	if c.has("a") || c.size != 0 {
		t.Errorf("an unused node is kept, %d bytes", c.size)
	}
}
