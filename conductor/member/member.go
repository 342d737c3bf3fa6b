// Package member says whose a node is when several conductors share a database.
//
// A conductor's own row in the database, its beats and its fencing are package postgres's. This one has the description
// that each gives of itself, and places a node that no conductor owns: rendezvous hashing among those that live,
// serve its conductor group and have its hardware type, weighted, so that a conductor that comes or goes moves no more
// nodes than its share. By the same hash the conductors on one network take turns in answering machines that boot.
package member

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store/postgres"
)

// About describes a conductor to the others.
type About struct {
	Agents string   `json:"agents"`          // host:port at which agents reach it
	Peer   string   `json:"peer,omitempty"`  // and other conductors; "": they can't
	Group  string   `json:"group,omitempty"` // conductor group that it serves; "" is that of nodes without one
	Types  []string `json:"types"`           // hardware types
	Weight float64  `json:"weight"`          // share of the nodes, against the others' weights
	// Boot is the network whose machines it answers over DHCP; nil: none, or it is of a program that does not take
	// turns.
	Boot *Segment `json:"boot,omitempty"`
	// Leaving says that it drains because its process is about to end.
	Leaving bool `json:"leaving,omitempty"`
}

// Segment is a network on which conductors take turns in answering DHCP.
type Segment struct {
	Mode    string `json:"mode"`    // netboot.dhcp
	Network string `json:"network"` // its prefix
}

// Text is About as it is stored.
func (a About) Text() string {
	b, err := json.Marshal(a)
	if err != nil {
		return "{}" // texts and numbers; NaN is refused by the configuration
	}
	return string(b)
}

// Conductor is a conductor as it was seen last.
type Conductor struct {
	About
	Name     string
	Alive    bool
	Draining bool      // it takes no new nodes
	LastBeat time.Time // by the database's clock
	Joined   time.Time
}

// Store knows the rows of the conductors.
type Store interface {
	Conductors() []postgres.Member
	Lives(name string) bool
	Check() error
}

// Conductors answers questions about the conductors of a database. Safe for concurrent use.
type Conductors struct {
	Store
	self string

	mu    sync.Mutex
	about map[string]About // by text, decoded
}

// New makes Conductors of the one with the name self.
func New(self string, st Store) *Conductors {
	return &Conductors{Store: st, self: self, about: map[string]About{}}
}

// All returns the conductors by name, those that are gone among them.
func (c *Conductors) All() []Conductor {
	rows := c.Conductors()
	out := make([]Conductor, len(rows))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, m := range rows {
		a, ok := c.about[m.Doc]
		if !ok {
			// One that can't be read is of a later program; it owns what it has, and is given nothing.
			if err := json.Unmarshal([]byte(m.Doc), &a); err != nil {
				a = About{}
			}
			c.about[m.Doc] = a
		}
		out[i] = Conductor{About: a, Name: m.Name, Alive: m.State != postgres.Gone,
			Draining: m.State == postgres.Draining, LastBeat: m.LastBeat, Joined: m.Joined}
	}
	if len(c.about) > 4*len(rows)+16 {
		clear(c.about)
	}
	return out
}

// Find returns a conductor by name.
func (c *Conductors) Find(name string) (Conductor, bool) {
	all := c.All()
	i := slices.IndexFunc(all, func(m Conductor) bool { return m.Name == name })
	if i < 0 {
		return Conductor{}, false
	}
	return all[i], true
}

// Takes reports whether the conductor of a name lives and takes nodes, that is, does not drain.
func (c *Conductors) Takes(name string) bool {
	return slices.ContainsFunc(c.Conductors(), func(m postgres.Member) bool {
		return m.Name == name && m.State == postgres.Up
	})
}

// Others reports whether there is another conductor that takes nodes.
func (c *Conductors) Others() bool {
	return slices.ContainsFunc(c.Conductors(), func(m postgres.Member) bool {
		return m.Name != c.self && m.State == postgres.Up
	})
}

// Remains reports whether another conductor lives that is not about to end.
func (c *Conductors) Remains() bool {
	return slices.ContainsFunc(c.All(), func(m Conductor) bool { return m.Name != c.self && m.Alive && !m.Leaving })
}

// Owner names the living conductor whose a node is to be that no living conductor owns; "" when there is none for its
// group and hardware type.
func (c *Conductors) Owner(n *node.Node) string {
	return Owner(c.All(), n.UUID, n.ConductorGroup, n.Driver)
}

// Owner is Conductors.Owner among those given. One that drains is chosen only where no other can have the node: better
// that one than none.
func Owner(among []Conductor, nodeUUID, group, driver string) string {
	if name := best(among, nodeUUID, group, driver, false); name != "" {
		return name
	}
	return best(among, nodeUUID, group, driver, true)
}

// best is the conductor with the highest score among those that drain, or do not.
func best(among []Conductor, nodeUUID, group, driver string, draining bool) string {
	best, name := math.Inf(-1), ""
	for _, m := range among {
		if !m.Alive || m.Draining != draining || m.Group != group || m.Weight <= 0 ||
			!slices.Contains(m.Types, driver) {
			continue
		}
		if s := score(m.Name, nodeUUID, m.Weight); s > best {
			best, name = s, m.Name
		}
	}
	return name
}

// doubt is how much older than the newest beat a conductor's last one is when it counts as silent: it has missed two.
// Long before it is taken for dead the others answer machines in its place, which does no harm if it lives.
const doubt = 5 * time.Second

// Turns returns the order in which the conductors of a segment answer, as they are now: how many of them come before
// this one for a machine or an address, or -1 for all if this one drains and another answers.
func (c *Conductors) Turns(on Segment) func(key string) int { return Turns(c.All(), c.self, on) }

// Turns is Conductors.Turns of the one with the name self among those given.
func Turns(among []Conductor, self string, on Segment) func(key string) int {
	var newest time.Time
	for _, m := range among {
		// That of one that is gone may be of before the database's clock was set back.
		if m.Alive && m.LastBeat.After(newest) {
			newest = m.LastBeat
		}
	}
	var others []string
	leaves := false
	for _, m := range among {
		switch {
		case m.Name == self:
			leaves = m.Draining
		case m.Alive && !m.Draining && m.Boot != nil && *m.Boot == on && newest.Sub(m.LastBeat) <= doubt:
			others = append(others, m.Name)
		}
	}
	if leaves && len(others) > 0 {
		return func(string) int { return -1 }
	}
	return func(key string) (before int) {
		mine := score(self, key, 1)
		for _, name := range others {
			if s := score(name, key, 1); s > mine || s == mine && name < self {
				before++
			}
		}
		return before
	}
}

// Home names the conductor where something with a key is at home that any of them can have: all of them choose the same
// one, and choose anew only when it comes to an end, drains, or another joins that is better. "" is none: all that can
// be asked are to be skipped.
func (c *Conductors) Home(key string, skip func(name string) bool) string {
	best, home := 0., ""
	for _, m := range c.All() {
		if !m.Alive || m.Draining || m.Peer == "" || skip(m.Name) {
			continue
		}
		if s := score(m.Name, key, 1); s > best {
			best, home = s, m.Name
		}
	}
	return home
}

// score is high for the conductor that a node is to have. Of all conductors each has the highest for a share of the
// nodes as large as its share of the weights.
func score(name, nodeUUID string, weight float64) float64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s", name, nodeUUID)
	x := h.Sum64() // whose high bits hardly depend on the last bytes
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	x ^= x >> 31
	u := (float64(x>>11) + 0.5) / (1 << 53) // in (0, 1)
	return -weight / math.Log(u)
}
