package catalog

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/member"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// Conductors knows those that share the database.
type Conductors interface {
	All() []member.Conductor // by name
}

// conductors returns all conductors by name; where no other can be, this one.
func (s *Handlers) conductors() []member.Conductor {
	if s.others != nil {
		if all := s.others.All(); len(all) > 0 {
			return all
		}
	}
	return []member.Conductor{{Name: s.hostname, Alive: true, Joined: s.started, LastBeat: time.Now(),
		About: member.About{Types: s.drivers.Names()}}}
}

// hosts names the living conductors that have a hardware type.
func (s *Handlers) hosts(driver string) []string {
	names := []string{}
	for _, m := range s.conductors() {
		if m.Alive && slices.Contains(m.Types, driver) {
			names = append(names, m.Name)
		}
	}
	return names
}

// showConductor makes the API's representation of a conductor.
func showConductor(c *call.Call, m *member.Conductor, detail bool) rest.Object {
	var o rest.Object
	if detail {
		o = rest.Object{{Name: "created_at", Value: rest.NullTime{Time: m.Joined}},
			{Name: "updated_at", Value: rest.NullTime{Time: m.LastBeat}}}
	}
	o = append(o, rest.Member{Name: "hostname", Value: m.Name}, rest.Member{Name: "conductor_group", Value: m.Group})
	if detail {
		o = append(o, rest.Member{Name: "drivers", Value: append([]string{}, m.Types...)})
	}
	return append(o, rest.Member{Name: "links", Value: rest.Links(c.Base, "conductors/"+m.Name)},
		rest.Member{Name: "alive", Value: m.Alive})
}

// conductorFields are the fields of a conductor and whether a list can be sorted by them; conductorShort those of a
// list without detail.
var (
	conductorFields = rest.Fields[struct{}]{
		{Name: "created_at", Sortable: true}, {Name: "updated_at", Sortable: true}, {Name: "hostname", Sortable: true},
		{Name: "conductor_group", Sortable: true}, {Name: "drivers"}, {Name: "alive"},
	}
	conductorShort = []string{"hostname", "conductor_group", "alive"}
	conductorOrder = map[string]func(a, b *member.Conductor) int{
		"":                func(a, b *member.Conductor) int { return cmp.Compare(a.Name, b.Name) },
		"created_at":      func(a, b *member.Conductor) int { return a.Joined.Compare(b.Joined) },
		"updated_at":      func(a, b *member.Conductor) int { return a.LastBeat.Compare(b.LastBeat) },
		"hostname":        func(a, b *member.Conductor) int { return cmp.Compare(a.Name, b.Name) },
		"conductor_group": func(a, b *member.Conductor) int { return cmp.Compare(a.Group, b.Group) },
	}
)

func (s *Handlers) listConductors(_ context.Context, c *call.Call) (*call.Reply, error) {
	detail, err := c.Flag("detail")
	if err != nil {
		return nil, err
	}
	fields := c.Text("fields")
	all, names := detail != nil && *detail, conductorShort
	if all && fields != nil {
		return nil, rest.BadRequest("Can not specify ?detail=True and fields in the same request.")
	}
	list := s.conductors()
	at := func(name string) int {
		return slices.IndexFunc(list, func(m member.Conductor) bool { return m.Name == name })
	}
	p, perr := c.Page(conductorFields, call.Marker{What: "name",
		May: func(name string) bool { return name == "" || document.IsName(name) },
		There: func(name string) error {
			if at(name) < 0 {
				return rest.NotFound("Conductor %s could not be found.", name)
			}
			return nil
		}})
	if perr != nil {
		return nil, perr
	}
	order := conductorOrder[p.Sort]
	slices.SortStableFunc(list, func(a, b member.Conductor) int { return order(&a, &b) })
	if p.Desc {
		slices.Reverse(list)
	}
	if p.Marker != "" {
		list = list[at(p.Marker)+1:]
	}
	if len(list) > p.Limit {
		list = list[:p.Limit]
	}
	items, last := make([]rest.Object, len(list)), ""
	for i := range list {
		o := showConductor(c, &list[i], all || fields != nil)
		if fields != nil {
			if o, err = pick(o, *fields); err != nil {
				return nil, err
			}
		}
		items[i], last = o, list[i].Name
	}
	switch {
	case all:
		names = nil
	case fields != nil:
		if len(items) == 0 { // names that are no fields are refused all the same
			if _, err := pick(showConductor(c, &member.Conductor{}, true), *fields); err != nil {
				return nil, err
			}
		}
		names = append(call.Split(*fields), "links")
	}
	return call.List("conductors", items, c.Next(p, "conductors", len(items), last, names)), nil
}

func (s *Handlers) getConductor(_ context.Context, c *call.Call) (*call.Reply, error) {
	name := c.Path["conductor"]
	if !document.IsName(name) {
		return nil, rest.BadRequest("Expected name for hostname: %s", name)
	}
	list := s.conductors()
	i := slices.IndexFunc(list, func(m member.Conductor) bool { return m.Name == name })
	if i < 0 {
		return nil, rest.NotFound("Conductor %s could not be found.", name)
	}
	o := showConductor(c, &list[i], true)
	if f := c.Text("fields"); f != nil {
		var err *rest.Error
		if o, err = pick(o, *f); err != nil {
			return nil, err
		}
	}
	return &call.Reply{Status: http.StatusOK, Body: o}, nil
}
