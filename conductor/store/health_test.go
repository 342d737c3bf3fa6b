package store

import (
	"errors"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// The newest reading of a node is kept without a change of the node, and goes with it.
func TestReadings(t *testing.T) { Engines(t, testReadings) }

func testReadings(t *testing.T, o Options) {
	s := openTest(t, o)
	ctx := t.Context()
	n := &node.Node{UUID: "6ba7b810-9dad-11d1-80b4-00c04fd430c8", Driver: "redfish", Provision: node.Enroll}
	if err := s.CreateNode(ctx, n); err != nil {
		t.Fatal(err)
	}
	n, err := s.Node(ctx, n.UUID)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.Reading(ctx, n.UUID); err != nil || !r.At.IsZero() || r.NodeUUID != n.UUID {
		t.Errorf("before: %+v, %v", r, err)
	}
	at := time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC)
	for _, health := range []string{node.HealthOK, node.HealthCritical} {
		r := node.Reading{NodeUUID: n.UUID, At: at, Health: health,
			Sensors: []node.Sensor{{Name: "a", Value: new(1.5)}}}
		if err := s.KeepReading(ctx, r); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Reading(ctx, n.UUID); err != nil || got.Health != health || !got.At.Equal(at) ||
			*got.Sensors[0].Value != 1.5 {
			t.Errorf("kept %+v, %v", got, err)
		}
	}
	if now, err := s.Node(ctx, n.UUID); err != nil || now.Version != n.Version || !now.UpdatedAt.Equal(n.UpdatedAt) {
		t.Errorf("the node changed: %+v, %v", now, err)
	}
	if err := s.DropReading(ctx, n.UUID); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Reading(ctx, n.UUID); err != nil || r.Health != "" {
		t.Errorf("dropped: %+v, %v", r, err)
	}
	if err := s.KeepReading(ctx, node.Reading{NodeUUID: "none"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("of no node: %v", err)
	}
}
