package node

import (
	"strconv"
	"strings"
	"time"
)

// Pool is a policy that keeps some of the available nodes warm: booted into the agent, so that a deployment needs no
// firmware.
type Pool struct {
	Head
	Description string `json:",omitzero"`
	// Which nodes it is for. Nil and empty are any; a pointer to "" is the group without a name.
	ConductorGroup *string `json:",omitzero"`
	ResourceClass  string  `json:",omitzero"`
	// How many of them are to be warm: one of both is set, or none for a pool that keeps none warm.
	Count   int `json:",omitzero"`
	Percent int `json:",omitzero"` // of the nodes that it is for, those in use included, rounded up
	// What must never be exceeded by those that are on because they are warm, or on their way; zero is no limit.
	MaxOn    int `json:",omitzero"` // machines
	MaxWatts int `json:",omitzero"`
	// WattsPerNode is the power of a node without watts in its properties.
	WattsPerNode int `json:",omitzero"`
	// Image is instance_info of the image that is written ahead: image_source and its digest. Empty: none.
	Image map[string]any `json:",omitzero"`
}

// Unique implements Resource: two pools for the same nodes would not know which of both is meant.
func (p *Pool) Unique() map[string]string { return some("match", p.Match()) }

// Match writes which nodes a pool is for.
func (p *Pool) Match() string {
	group := "any conductor group"
	if p.ConductorGroup != nil {
		group = "conductor group " + strconv.Quote(*p.ConductorGroup)
	}
	if p.ResourceClass == "" {
		return group + ", any resource class"
	}
	return group + ", resource class " + strconv.Quote(p.ResourceClass)
}

// Matches reports whether a pool is for nodes like n, in any state.
func (p *Pool) Matches(n *Node) bool {
	return (p.ConductorGroup == nil || *p.ConductorGroup == n.ConductorGroup) &&
		(p.ResourceClass == "" || p.ResourceClass == n.ResourceClass)
}

// Before reports whether p takes precedence over q for a node that both match: the more specific one does, a resource
// class before a group.
func (p *Pool) Before(q *Pool) bool {
	said := func(p *Pool) int {
		v := 0
		if p.ResourceClass != "" {
			v += 2
		}
		if p.ConductorGroup != nil {
			v++
		}
		return v
	}
	return said(p) > said(q)
}

// PoolMember is a pool's record of a node in it. The zero value is a node that no pool has touched.
type PoolMember struct {
	NodeUUID string `json:"-"`
	Pool     string `json:",omitzero"` // UUID of the pool that turned it on last
	// Asked is when the pool requested it to be warm; zero when it has not, or the node is not warm any more.
	Asked time.Time `json:",omitzero"`
	// Since is when it was first seen warm after that; zero: it has not been yet.
	Since time.Time `json:",omitzero"`
	// Parting holds the first signs that it stopped being warm, while that is not certain yet.
	Parting string `json:",omitzero"`
	// Left: the pool turned it on, it is not warm, and it is to be turned off or made warm again.
	Left bool `json:",omitzero"`
	// Cooled is when the pool last requested it to be turned off.
	Cooled time.Time `json:",omitzero"`

	// How often in a row it failed to become or stay warm, when last, and why. It is forgotten when the node has been
	// warm for a while.
	Failures int       `json:",omitzero"`
	FailedAt time.Time `json:",omitzero"`
	Reason   string    `json:",omitzero"`

	// The same for the image that is to be written ahead.
	Staging       time.Time `json:",omitzero"` // when it was requested; zero: not, or it is done
	StageFailures int       `json:",omitzero"`
	StageFailedAt time.Time `json:",omitzero"`
	StageReason   string    `json:",omitzero"`
}

// Touched reports whether the record holds anything.
func (m PoolMember) Touched() bool {
	m.NodeUUID = ""
	return m != PoolMember{}
}

// SameDigest compares digests, of which one may lack the name of its algorithm.
func SameDigest(a, b string) bool {
	bare := func(s string) string { return s[strings.IndexByte(s, ':')+1:] }
	if strings.Contains(a, ":") && strings.Contains(b, ":") {
		return strings.EqualFold(a, b)
	}
	return a != "" && strings.EqualFold(bare(a), bare(b))
}
