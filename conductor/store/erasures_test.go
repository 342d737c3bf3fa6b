package store

import (
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/node"
)

// TestErasures: reports are kept once, newest first, and outlive their node.
func TestErasures(t *testing.T) { Engines(t, testErasures) }

func testErasures(t *testing.T, o Options) {
	s := openTest(t, o)
	ctx := t.Context()
	n := &node.Node{UUID: "6ba7b810-9dad-11d1-80b4-00c04fd430c8", Driver: "fake-hardware", Provision: node.Enroll}
	if err := s.CreateNode(ctx, n); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1e9, 0).UTC()
	for _, k := range []erasure.Kept{{ID: "a", NodeUUID: n.UUID, At: at, Document: []byte("1")},
		{ID: "b", NodeUUID: n.UUID, At: at, Document: []byte("2")},
		{ID: "a", NodeUUID: n.UUID, At: at.Add(time.Hour), Document: []byte("another")},
		{ID: "c", NodeUUID: "other", At: at, Document: []byte("3")}} {
		if err := s.KeepErasure(ctx, k); err != nil {
			t.Fatal(err)
		}
	}
	for _, gone := range []bool{false, true} {
		if gone {
			if err := s.DeleteNode(ctx, n.UUID); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.Erasures(ctx, n.UUID)
		if err != nil || len(got) != 2 || got[0].ID != "b" || string(got[1].Document) != "1" || !got[1].At.Equal(at) {
			t.Errorf("erasures, the node gone %v: %+v, %v", gone, got, err)
		}
	}
}
