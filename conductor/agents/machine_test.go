package agents_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ingot-metal/ingot/conductor/node"
)

func (r *rig) port(n *node.Node, mac string) {
	r.t.Helper()
	if err := r.st.CreatePort(r.t.Context(), &node.Port{NodeUUID: n.UUID, Address: mac}); err != nil {
		r.t.Fatal(err)
	}
}

// A machine with a token that was really issued, and is good, but for a node that the machine can't be.
func TestEnrollAsAnotherMachine(t *testing.T) {
	const (
		mine    = "52:54:00:0b:00:01" // of the node whose token it is
		second  = "52:54:00:0b:00:02" // this too
		theirs  = "52:54:00:0b:00:03" // of another node
		unknown = "52:54:00:0b:00:04"
		guid    = "4c4c4544-0042-3510-8052-b7c04f4b3732"
		swap    = "44454c4c-4200-1035-8052-b7c04f4b3732"
		other   = "11111111-2222-4333-8444-555555555555"
		zeros   = "00000000-0000-0000-0000-000000000000"
		ones    = "ffffffff-ffff-ffff-ffff-ffffffffffff"
		vendor  = "03000200-0400-0500-0006-000700080009"
	)
	for _, c := range []struct {
		name  string
		ports []string // of the node
		guids []string // that its controller reported
		macs  []string // of the machine
		uuid  string
		want  string // in the history; "": it is let in
	}{
		{"port of another node", []string{mine}, nil, []string{theirs}, "", theirs + ", which is a port of node"},
		{"port of another node, in capitals", nil, nil, []string{strings.ToUpper(theirs)}, "",
			theirs + ", which is a port of node"},
		{"port of both", []string{mine}, []string{guid}, []string{mine, theirs}, guid, "a port of node"},
		{"port of another node, right GUID", nil, []string{guid}, []string{theirs}, guid, "a port of node"},
		{"no port of the node", []string{mine, second}, nil, []string{unknown}, "", "none of the machine's addresses (" +
			unknown + ")"},
		{"no port of the node, right GUID", []string{mine}, []string{guid}, []string{unknown}, guid,
			"none of the machine's addresses"},
		{"no address at all", []string{mine}, nil, []string{}, "", "it sent none"},
		{"one of two ports", []string{mine, second}, nil, []string{unknown, second}, "", ""},
		{"port, in capitals", []string{mine}, nil, []string{strings.ToUpper(mine)}, "", ""},
		{"port outweighs GUID", []string{mine}, []string{guid}, []string{mine}, other, ""},

		{"nothing is known of the node", nil, nil, []string{unknown}, other, ""},
		{"another GUID", nil, []string{guid, swap}, []string{unknown}, other,
			"UUID " + other + " is not the one that the node's controller reports (" + guid + ")"},
		{"GUID, in capitals", nil, []string{guid, swap}, []string{unknown}, strings.ToUpper(guid), ""},
		{"GUID, in the other order", nil, []string{guid, swap}, []string{unknown}, swap, ""},
		{"GUID, without dashes", nil, []string{strings.ReplaceAll(guid, "-", "")}, []string{unknown}, guid, ""},
		{"no GUID sent", nil, []string{guid}, []string{unknown}, "", ""},
		{"the GUID sent is none", nil, []string{guid}, []string{unknown}, "Not Settable", ""},
		{"the controller has zeros", nil, []string{zeros}, []string{unknown}, other, ""},
		{"the controller has ones", nil, []string{strings.ToUpper(ones)}, []string{unknown}, other, ""},
		{"the controller has its vendor's constant", nil, []string{"00090008-0007-0006-0005-000400020003", vendor},
			[]string{unknown}, other, ""},
		{"the controller has no GUID", nil, []string{"x"}, []string{unknown}, other, ""},
		{"the machine has a constant", nil, []string{guid}, []string{unknown}, vendor, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			n, a := r.boot("target")
			for _, mac := range c.ports {
				r.port(n, mac)
			}
			if _, err := r.st.UpdateNode(t.Context(), n.UUID,
				func(n *node.Node) error { n.SystemGUIDs = c.guids; return nil }); err != nil {
				t.Fatal(err)
			}
			b, _ := r.boot("other")
			r.port(b, theirs)
			a.MACs, a.UUID = c.macs, c.uuid
			err := a.Enroll(t.Context())
			if c.want == "" {
				if err != nil {
					t.Errorf("Enroll = %v\nhistory %s", err, r.history(n.UUID))
				}
				return
			}
			if status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != "enrolment refused" {
				t.Errorf("Enroll = %v, want PermissionDenied without details", err)
			}
			if h := r.history(n.UUID); !strings.Contains(h, "WARNING") || !strings.Contains(h, c.want) {
				t.Errorf("history %q, want it to say %q", h, c.want)
			}
			if boot := r.node(n.UUID).Boot; boot.BootID != "" || boot.KeyHash != "" || !boot.EnrolledAt.IsZero() {
				t.Errorf("the refused machine left its mark: %+v", boot)
			}
		})
	}
}
