package api

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// witness hears of nodes that are gone.
type witness struct {
	instant
	gone *[]string
}

func (w witness) PowerOffDeletedNode(_ context.Context, nodeUUID string) {
	*w.gone = append(*w.gone, nodeUUID)
}

// TestDeleteOfWarmNode: the engine is told of a node that is deleted while an agent waits on its machine, and of no
// other.
func TestDeleteOfWarmNode(t *testing.T) {
	f := newFixture(t, Config{},
		node.Node{Name: "kept", Provision: node.Available, Boot: &node.Boot{Kept: true}},
		node.Node{Name: "warming", Provision: node.Available, Job: &node.Job{ID: "j", Phase: node.PhaseWarm}},
		node.Node{Name: "held", Provision: node.Active, Protected: true, Boot: &node.Boot{Kept: true}},
		node.Node{Name: "cold", Provision: node.Available, Boot: &node.Boot{Ended: true}})
	var gone, want []string
	for _, name := range []string{"kept", "warming"} {
		n, err := f.st.Node(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, n.UUID)
	}
	srv := newServer(t, f.st, witness{instant{f.st}, &gone},
		Config{Hostname: "c1", MaxVersion: rest.NewestVersion, Hardware: fakeHardware()}, slog.New(slog.DiscardHandler))
	f.srv = srv
	f.want(403, "DELETE", "/v1/nodes/held", "")
	for _, name := range []string{"kept", "warming", "cold"} {
		f.want(204, "DELETE", "/v1/nodes/"+name, "")
	}
	if !slices.Equal(gone, want) {
		t.Errorf("told of %v, want %v", gone, want)
	}
}
