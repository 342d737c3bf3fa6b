package storetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

func pools(t *testing.T, ctx context.Context, s *store.Store) {
	p := &node.Pool{Head: node.Head{Name: "web"}, ConductorGroup: new(""), ResourceClass: "large", Count: 3, MaxOn: 4,
		Image: map[string]any{"image_source": "http://u:p@h/i"}}
	must(t, s.Pools().Create(ctx, p))
	got := given(s.Pools().Get(ctx, "web"))(t)
	same(t, "stored and read", p, got)
	var dup *store.DuplicateError
	if err := s.Pools().Create(ctx,
		&node.Pool{Head: node.Head{Name: "other"}, ConductorGroup: new(""), ResourceClass: "large"}); !errors.As(err,
		&dup) || dup.Field != "match" {
		t.Errorf("a second pool for the same nodes: %v", err)
	}
	for _, p := range []node.Pool{{ResourceClass: "large"}, {ConductorGroup: new("")}, {},
		{ConductorGroup: new("rack1"), ResourceClass: "large"}} {
		if err := s.Pools().Create(ctx, &p); err != nil {
			t.Errorf("%s: %v", p.Match(), err)
		}
	}

	n := create(t, s, &node.Node{Name: "n"})
	at := time.Unix(1e9, 0).UTC()
	m := node.PoolMember{NodeUUID: n.UUID, Pool: p.UUID, Asked: at, Failures: 2, FailedAt: at,
		Reason: "its agent was lost"}
	for range 2 {
		must(t, s.SetPoolMember(ctx, m))
		all, err := s.PoolMembers(ctx)
		if d := cmp.Diff(map[string]node.PoolMember{n.UUID: m}, all); err != nil || d != "" {
			t.Errorf("remembered: %v (-want +got):\n%s", err, d)
		}
		m.Failures, m.Asked = 3, time.Time{}
	}
	refused(t, "a node that is not there is remembered", store.ErrNotFound, s.SetPoolMember(ctx,
		node.PoolMember{NodeUUID: "00000000-0000-4000-8000-000000000000", Failures: 1}))
	must(t, s.SetPoolMember(ctx, node.PoolMember{NodeUUID: n.UUID}))
	if all, err := s.PoolMembers(ctx); err != nil || len(all) != 0 {
		t.Errorf("what is forgotten is still there: %v, %v", all, err)
	}
	must(t, s.SetPoolMember(ctx, m))
	must(t, s.DeleteNode(ctx, n.UUID))
	if all, err := s.PoolMembers(ctx); err != nil || len(all) != 0 {
		t.Errorf("a node that was deleted is still remembered: %v, %v", all, err)
	}
}

// duties: one of several conductors has a duty, until it says no more that it has, and then another.
func duties(t *testing.T, ctx context.Context, s *store.Store) {
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		got = map[string]int{}
	)
	for _, who := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			holder, _, err := s.TakeDuty(ctx, "pools", who, time.Hour)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			got[holder]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(got) != 1 {
		t.Fatalf("holders %v, want one", got)
	}
	var first string
	for first = range got {
	}
	holder, until, err := s.TakeDuty(ctx, "pools", first, 10*time.Hour)
	if err != nil || holder != first || time.Until(until) < 9*time.Hour {
		t.Errorf("the holder can't prolong it: %s until %v, %v", holder, until, err)
	}
	if holder, again, err := s.TakeDuty(ctx, "pools", first, 10*time.Hour); err != nil || holder != first ||
		!again.Equal(until) {
		t.Errorf("it is written again although it holds for long: %s until %v, %v", holder, again, err)
	}
	if holder, _, err := s.TakeDuty(ctx, "pools", "z", time.Hour); err != nil || holder != first {
		t.Errorf("another took it: %s, %v", holder, err)
	}
	if holder, _, err := s.TakeDuty(ctx, "brief", "a", -time.Hour); err != nil || holder != "a" {
		t.Errorf("another duty: %s, %v", holder, err)
	}
	if holder, _, err := s.TakeDuty(ctx, "brief", "z", time.Hour); err != nil || holder != "z" {
		t.Errorf("one that is over was not taken: %s, %v", holder, err)
	}
}

// warmCandidates: the choice of a node for an allocation learns which nodes are warm, and with what image.
func warmCandidates(t *testing.T, ctx context.Context, s *store.Store) {
	want := map[string]store.Candidate{}
	for _, c := range []struct {
		boot *node.Boot
		want store.Candidate
	}{
		{nil, store.Candidate{Name: "cold"}},
		{&node.Boot{Kept: true, Connected: true}, store.Candidate{Name: "warm", Warm: true}},
		{&node.Boot{Kept: true, Connected: true, Staged: &node.Staged{Digest: "sha256:ab"}},
			store.Candidate{Name: "staged", Warm: true, Staged: "sha256:ab"}},
		{&node.Boot{Kept: true, Staged: &node.Staged{Digest: "sha256:ab"}}, store.Candidate{Name: "lost"}},
		{&node.Boot{Connected: true, Ended: true}, store.Candidate{Name: "ended"}},
	} {
		c.want.UUID = free(t, s, c.want.Name, func(n *node.Node) { n.Boot = c.boot }).UUID
		want[c.want.UUID] = c.want
	}
	for _, a := range []node.Allocation{{}, {Properties: map[string]any{"cpus": 4.0}}} {
		got := map[string]store.Candidate{}
		must(t, second(s.Allocate(ctx, request(t, s, a).UUID,
			func(_ *node.Allocation, from []store.Candidate) (string, string) {
				for _, c := range from {
					got[c.UUID] = c
				}
				return "", "just looking"
			})))
		same(t, "candidates", want, got)
	}
}
