package access

import (
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

func TestAnonymousMayNothing(t *testing.T) {
	for _, a := range []*Actor{nil, {}, {Role: Admin}, {Role: Admin, Service: true, Trusted: true}, {ProjectID: "p"},
		{System: true}} {
		for _, r := range Rules() {
			if a.May(r, Object{}) || a.May(r, Object{Owner: "p", Lessee: "p"}) || a.MayEver(r) {
				t.Errorf("%+v may %s", a, r)
			}
		}
	}
	if (&Actor{System: true, Role: Admin}).May("no:such:rule", Object{}) {
		t.Error("a rule that is not there lets somebody through")
	}
}

func TestUnownedNodesAreNotAProjects(t *testing.T) {
	a := &Actor{ProjectID: "p", Role: Admin}
	if a.MaySee(&node.Node{}) || a.MaySee(&node.Node{Owner: "q", Lessee: "q"}) || !a.MaySee(&node.Node{Lessee: "p"}) {
		t.Error("a project sees what is not its own, or does not see what is")
	}
	if _, all := a.Scope(); all {
		t.Error("a project's administrator sees everything")
	}
}

// TestRolesGrow: a stronger role may do all that a weaker one may.
func TestRolesGrow(t *testing.T) {
	for _, r := range Rules() {
		if len(Needs(r)) < 10 {
			t.Errorf("%s needs %q", r, Needs(r))
		}
		for _, where := range []Actor{{System: true}, {ProjectID: "owner"}, {ProjectID: "lessee"},
			{ProjectID: "other"}} {
			before := false
			for _, role := range []Role{Reader, Member, Manager, Admin} {
				a := where
				a.Role = role
				may := a.May(r, Object{Owner: "owner", Lessee: "lessee"})
				if before && !may {
					t.Errorf("%s: %+v may not what a weaker role may", r, a)
				}
				before = may
			}
		}
		owner, lessee := Actor{ProjectID: "owner", Role: Admin}, Actor{ProjectID: "lessee", Role: Admin}
		o := Object{Owner: "owner", Lessee: "lessee"}
		if lessee.May(r, o) && !owner.May(r, o) {
			t.Errorf("%s: a lessee may, an owner may not", r)
		}
	}
}

func TestNames(t *testing.T) {
	for want, a := range map[string]*Actor{
		"": nil, "alice": {UserName: "alice"}, "id-1": {UserID: "id-1"},
		"alice@corp (project web)": {UserName: "alice", Domain: "corp", ProjectID: "1", ProjectName: "web"},
		"alice (system)":           {UserName: "alice", System: true},
		"alice (project 1)":        {UserName: "alice", ProjectID: "1"},
	} {
		if got := a.String(); got != want {
			t.Errorf("%+v = %q, want %q", a, got, want)
		}
	}
	if Anybody().String() != "" {
		t.Error("anybody has a name")
	}
	r, service := roleOf([]string{"Reader", "ADMIN", "member", "service", "creator"})
	if r != Admin || !service {
		t.Errorf("roleOf = %v, %v", r, service)
	}
	if !strings.Contains(Needs(NodeUpdateDriverInfo), "member in the project that owns it") {
		t.Errorf("Needs = %q", Needs(NodeUpdateDriverInfo))
	}
}
