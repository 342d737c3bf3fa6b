package step

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		total := func(want time.Duration) {
			t.Helper()
			if got := c.Total(); got != want {
				t.Errorf("%v, want %v", got, want)
			}
		}
		total(0)
		c.Enter()
		time.Sleep(time.Second)
		total(time.Second) // with one inside
		c.Enter()
		time.Sleep(time.Second)
		c.Leave()
		time.Sleep(time.Second)
		c.Leave()
		total(3 * time.Second) // two at a time count once
		time.Sleep(time.Second)
		total(3 * time.Second)
		c.Enter()
		time.Sleep(time.Second)
		c.Leave()
		total(4 * time.Second)
	})
}

func TestWatchAClock(t *testing.T) {
	var c Clock
	var got []bool
	watch := func(running bool) { got = append(got, running) }
	c.Enter() // not seen
	c.Watch(watch)
	c.Leave()
	c.Enter()
	c.Enter()
	c.Leave()
	c.Watch(nil)
	c.Leave()
	if want := []bool{false, true, false}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
