package access

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Role says how much a user may do where the role is held; each includes those before it.
type Role int

// Roles, from weak to strong. None is no role; in a rule it means that this grant does not exist.
const (
	None Role = iota
	Reader
	Member
	Manager
	Admin
)

// Actor is the user or program that sent a request. The zero value may do nothing.
type Actor struct {
	UserID   string
	UserName string
	// Domain is the user's, empty when it is the default one.
	Domain string

	// ProjectID and ProjectName are of the project that the roles are held in; empty for roles in the system.
	ProjectID   string
	ProjectName string
	// System: the roles are held in the whole system.
	System bool
	// Role is the strongest of those that imply one another; Service comes beside it.
	Role    Role
	Service bool
	// Trusted is a service of the project that the configuration names: it counts as a member of the system.
	Trusted bool

	// All: everything is allowed, because without authentication there are no roles.
	All bool
}

// Anybody returns the actor of requests where authentication is off.
func Anybody() *Actor { return &Actor{All: true} }

// roleOf returns the strongest role among the names that Keystone lists, and whether "service" is one of them.
func roleOf(names []string) (r Role, service bool) {
	for _, name := range names {
		switch strings.ToLower(name) {
		case "admin":
			r = max(r, Admin)
		case "manager":
			r = max(r, Manager)
		case "member":
			r = max(r, Member)
		case "reader":
			r = max(r, Reader)
		case "service":
			service = true
		}
	}
	return r, service
}

// String names the actor in histories and logs: "alice", "alice (project web)", "alice@corp (system)". Empty means no
// particular user.
func (a *Actor) String() string {
	if a == nil {
		return ""
	}
	name := cmp.Or(a.UserName, a.UserID)
	if name == "" {
		return ""
	}
	if a.Domain != "" {
		name += "@" + a.Domain
	}
	switch {
	case a.System:
		return name + " (system)"
	case a.ProjectName != "":
		return name + " (project " + a.ProjectName + ")"
	case a.ProjectID != "":
		return name + " (project " + a.ProjectID + ")"
	}
	return name
}

// Object says who owns and who leases an object, as IDs of projects. The zero value has neither owner nor lessee.
type Object struct{ Owner, Lessee string }

// Of returns the owner and the lessee of a node.
func Of(n *node.Node) Object { return Object{Owner: n.Owner, Lessee: n.Lessee} }

// May reports whether a rule lets the actor act on an object. An unknown rule permits nothing.
func (a *Actor) May(r Rule, o Object) bool {
	if a == nil {
		return false
	}
	if a.All {
		return true
	}
	d, ok := rules[r]
	if !ok {
		return false
	}
	least := func(grant, role Role) bool { return grant != None && role >= grant }
	if a.System {
		return least(d.system, a.Role) || d.systemService && a.Service || least(d.any, a.Role) || d.anyService &&
			a.Service
	}
	if a.ProjectID == "" {
		return false // a domain's role, or none
	}
	owner := o.Owner != "" && o.Owner == a.ProjectID
	lessee := o.Lessee != "" && o.Lessee == a.ProjectID
	return a.Trusted && least(d.system, Member) ||
		owner && (least(d.owner, a.Role) || d.ownerService && a.Service) ||
		lessee && least(d.lessee, a.Role) ||
		least(d.any, a.Role) || d.anyService && a.Service
}

// MayEver reports whether the rule lets the actor act on any object at all.
func (a *Actor) MayEver(r Rule) bool {
	return a != nil && (a.May(r, Object{Owner: a.ProjectID}) || a.May(r, Object{Lessee: a.ProjectID}))
}

// Needs describes the role that a rule requires, for a user who did not have it.
func Needs(r Rule) string {
	d := rules[r]
	var ways []string
	add := func(role Role, where string) {
		if role != None {
			ways = append(ways, role.String()+" "+where)
		}
	}
	add(d.any, "in a project or in the system")
	if d.any == None || d.system != None && d.system < d.any {
		add(d.system, "in the system")
	}
	add(d.owner, "in the project that owns it")
	add(d.lessee, "in the project that leases it")
	if len(ways) == 0 {
		return "no role may do this"
	}
	return "needs the role " + strings.Join(ways, ", or ")
}

func (r Role) String() string {
	return [...]string{"none", "reader", "member", "manager", "admin"}[r]
}

// MaySee reports whether the actor may know that a node exists.
func (a *Actor) MaySee(n *node.Node) bool { return a.May(NodeGet, Of(n)) }

// Scope returns which nodes the actor's lists hold: all of them, or those that the project owns or leases.
func (a *Actor) Scope() (project string, all bool) {
	if a.May(NodeListAll, Object{}) {
		return "", true
	}
	if a == nil {
		return "", false
	}
	return a.ProjectID, false
}

// Rules returns the names of all rules, sorted.
func Rules() []Rule {
	return slices.Sorted(maps.Keys(rules))
}
