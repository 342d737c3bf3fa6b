package queue

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// sleeper is a job that takes its cost and writes down when it began.
func sleeper(name string, cost float64, began *[]string, mu *sync.Mutex, needs ...string) Job {
	return Job{Name: name, Cost: cost, Needs: needs, Run: func(context.Context) error {
		mu.Lock()
		*began = append(*began, name)
		mu.Unlock()
		time.Sleep(time.Duration(cost * float64(time.Second)))
		return nil
	}}
}

func TestLongestFirstAndNoIdleSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var began []string
		var mu sync.Mutex
		start := time.Now()
		jobs := []Job{sleeper("a1", 1, &began, &mu), sleeper("b5", 5, &began, &mu), sleeper("c3", 3, &began, &mu),
			sleeper("d3", 3, &began, &mu)}
		if err := Run(t.Context(), jobs, NewSlots(2)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 6*time.Second {
			t.Errorf("12 seconds of work in two places took %v, want 6s", took)
		}
		slices.Sort(began[:2]) // they begin at once
		if want := []string{"b5", "c3", "d3", "a1"}; !slices.Equal(began, want) {
			t.Errorf("began in the order %v, want %v", began, want)
		}
	})
}

// A short job that long ones need counts as long as these.
func TestNeedsGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var began []string
		var mu sync.Mutex
		jobs := []Job{sleeper("other", 5, &began, &mu), sleeper("image", 2, &began, &mu),
			sleeper("uses", 9, &began, &mu, "image")}
		if err := Run(t.Context(), jobs, NewSlots(1)); err != nil {
			t.Fatal(err)
		}
		if want := []string{"image", "uses", "other"}; !slices.Equal(began, want) {
			t.Errorf("began in the order %v, want %v", began, want)
		}
	})
}

func TestMoreSlotsWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var began []string
		var mu sync.Mutex
		slots := NewSlots(0)
		go func() {
			time.Sleep(time.Second)
			slots.Give(1)
			time.Sleep(time.Second)
			slots.Give(1)
		}()
		start := time.Now()
		if err := Run(t.Context(), []Job{sleeper("a", 4, &began, &mu), sleeper("b", 3, &began, &mu)},
			slots); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("took %v, want 5s", took)
		}
	})
}

func TestFailures(t *testing.T) {
	bad := errors.New("disk full")
	ran := false
	jobs := []Job{
		{Name: "a", Run: func(context.Context) error { return bad }},
		{Name: "b", Needs: []string{"a"}, Run: func(context.Context) error { ran = true; return nil }},
		{Name: "c", Needs: []string{"b"}, Run: func(context.Context) error { ran = true; return nil }},
		{Name: "d", Run: func(context.Context) error { return nil }},
	}
	err := Run(t.Context(), jobs, NewSlots(1))
	var not NotRunError
	if !errors.Is(err, bad) || !errors.As(err, &not) || not.Job != "b" ||
		!strings.Contains(err.Error(), "c was not run") || ran {
		t.Errorf("error = %v, a dependent ran: %v", err, ran)
	}
	for name, jobs := range map[string][]Job{
		"unknown need": {{Name: "a", Needs: []string{"x"}}},
		"circle":       {{Name: "a", Needs: []string{"b"}}, {Name: "b", Needs: []string{"a"}}},
		"twice":        {{Name: "a"}, {Name: "a"}},
	} {
		if err := Run(t.Context(), jobs, NewSlots(1)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	jobs := []Job{
		{Name: "a", Cost: 2, Run: func(context.Context) error { cancel(); return nil }},
		{Name: "b", Cost: 1, Run: func(context.Context) error { t.Error("b was started after the end"); return nil }},
	}
	if err := Run(ctx, jobs, NewSlots(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want %v", err, context.Canceled)
	}
}
