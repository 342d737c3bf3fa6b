package turn

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestQueueOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue()
		begin := time.Now()
		q.Wake("late", begin.Add(time.Hour))
		q.Wake("soon", begin.Add(time.Minute))
		q.Wake("now", begin)
		q.Wake("late", begin.Add(2*time.Minute)) // earlier than planned
		q.Wake("soon", begin.Add(time.Hour))     // later: as it was
		for _, want := range []struct {
			id string
			at time.Duration
		}{{"now", 0}, {"soon", time.Minute}, {"late", 2 * time.Minute}} {
			id, ok := q.Next(t.Context())
			if took := time.Since(begin); id != want.id || took != want.at || !ok {
				t.Errorf("next = %s after %s, want %s after %s", id, took, want.id, want.at)
			}
			q.Done(id, Never)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if id, ok := q.Next(ctx); ok {
			t.Errorf("an empty queue gave %q", id)
		}
	})
}

// TestQueueBusy: a node that a worker has is not given out again, and one woken meanwhile is not forgotten.
func TestQueueBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue()
		q.Wake("a", time.Now())
		if id, _ := q.Next(t.Context()); id != "a" {
			t.Fatalf("next = %q", id)
		}
		q.Wake("a", time.Now())
		if id, wait := q.take(); id != "" || wait >= 0 {
			t.Errorf("a node in a worker was given out again (%q, %s)", id, wait)
		}
		q.Done("a", time.Hour)
		if id, _ := q.take(); id != "a" {
			t.Errorf("a node woken while in a worker waits: %q", id)
		}
		q.Done("a", time.Hour)
		if _, wait := q.take(); wait != time.Hour {
			t.Errorf("the next is due in %s, want 1h", wait)
		}
	})
}

// TestQueueLosesNothing: whatever the order of wakes and ends, a node woken is looked at afterwards, by one worker at a
// time.
func TestQueueLosesNothing(t *testing.T) {
	q := NewQueue()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const nodes = 20
	var mu sync.Mutex
	looked := make([]int, nodes)
	inWork := make([]bool, nodes)
	var workers, wakers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for {
				id, ok := q.Next(ctx)
				if !ok {
					return
				}
				var i int
				fmt.Sscan(id, &i)
				mu.Lock()
				if inWork[i] {
					t.Errorf("node %d is in two workers", i)
				}
				inWork[i] = true
				looked[i]++
				mu.Unlock()
				time.Sleep(time.Duration(rand.IntN(50)) * time.Microsecond)
				mu.Lock()
				inWork[i] = false
				mu.Unlock()
				q.Done(id, Never)
			}
		})
	}
	for range 4 {
		wakers.Go(func() {
			for range 500 {
				q.Wake(fmt.Sprint(rand.IntN(nodes)), time.Now())
			}
		})
	}
	wakers.Wait()
	mu.Lock()
	before := slices.Clone(looked)
	mu.Unlock()
	for i := range nodes {
		q.Wake(fmt.Sprint(i), time.Now())
	}
	deadline := time.Now().Add(2 * time.Minute)
	for i := range nodes {
		for {
			mu.Lock()
			ok := looked[i] > before[i]
			mu.Unlock()
			if ok {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("node %d was woken and never looked at", i)
			}
			time.Sleep(time.Millisecond)
		}
	}
	cancel()
	workers.Wait()
}

func TestLocks(t *testing.T) {
	lt := NewLocks()
	var called []string
	call := func(id string) func() { return func() { called = append(called, id) } }
	for range 2 {
		if !lt.Try("k", "a", nil) {
			t.Fatal("a free lock, or one's own, was refused")
		}
	}
	if !lt.Try("other", "b", nil) {
		t.Fatal("another key is locked, too")
	}
	for _, id := range []string{"b", "c", "b"} {
		if lt.Try("k", id, call(id)) {
			t.Fatalf("%s got a lock that a holds", id)
		}
	}
	lt.Release("a")
	if fmt.Sprint(called) != "[b]" || lt.Try("k", "c", call("c")) || !lt.Try("k", "b", nil) {
		t.Errorf("after a's release %v was called; the lock must be b's", called)
	}
	lt.Release("b")
	lt.Release("c") // handed over and not used
	if fmt.Sprint(called) != "[b c]" || len(lt.held) != 0 || len(lt.mine) != 0 {
		t.Errorf("in the end: called %v, held %v, mine %v", called, lt.held, lt.mine)
	}
}

func TestLockWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lt := NewLocks()
		lt.Try("k", "node", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := lt.Wait(ctx, "k", "impatient"); err == nil {
			t.Error("a held lock was given")
		}
		got := make(chan error)
		go func() { got <- lt.Wait(t.Context(), "k", "patient") }()
		synctest.Wait()
		lt.Release("node")
		if err := <-got; err != nil {
			t.Error(err)
		}
		lt.Release("patient")
		if len(lt.held) != 0 {
			t.Errorf("left over: %v", lt.held)
		}
	})
}
