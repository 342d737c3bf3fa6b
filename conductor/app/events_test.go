//go:build !race

package app_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// A reader of the events follows over kills of the conductor: none is missed, none comes twice.
func TestEventsOverKills(t *testing.T) {
	s := newSite(t)
	s.start()
	s.Pause = s.Poll
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var ids []int64
	var names []string
	done := make(chan error, 1)
	go func() {
		done <- s.Events(ctx, client.EventQuery{After: 0}, func(e rest.Event) error {
			mu.Lock()
			defer mu.Unlock()
			if e.Type == "ingot.gap" {
				return fmt.Errorf("a gap: %s", e.Message)
			}
			ids, names = append(ids, e.ID), append(names, strings.TrimPrefix(e.Type, "baremetal.node.")+" "+e.NodeName)
			return nil
		})
	}()
	has := func(want string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(strings.Join(names, ";"), want)
		}
	}
	create := func(name string) {
		t.Helper()
		if _, err := s.CreateNode(ctx, client.NewNode{Name: name, Driver: "fake-hardware"}); err != nil {
			t.Fatal(err)
		}
	}
	create("one")
	s.do("one", "manage", "manageable", nil)
	s.until("the first node's events", has("provision_set.end one"))
	s.kill()
	s.start()
	create("two") // while the reader may still be away
	s.until("the second node's creation", has("create.end two"))
	create("three")
	s.kill() // what was answered was stored, and what was stored is told
	s.start()
	s.do("three", "manage", "manageable", nil)
	s.until("the third node's events", has("provision_set.end three"))
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the reader ended with %v", err)
	}
	for i, id := range ids {
		if id != int64(i+1) {
			t.Fatalf("event %d has ID %d; all: %v", i+1, id, names)
		}
	}
	for _, want := range []string{"create.end one", "provision_set.start one", "create.end two", "create.end three",
		"provision_set.start three"} {
		n := 0
		for _, name := range names {
			if name == want {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%q was told %d times: %v", want, n, names)
		}
	}
	log, err := s.Log(t.Context(), client.LogQuery{Node: "three", Type: "provisioning"})
	if err != nil || len(log) < 2 || log[len(log)-1].Event != "manage requested in state enroll" {
		t.Errorf("log = %+v, %v", log, err)
	}
}
