package limit

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestGate: a place is free again when it is left, or at the end of its time, and goes to who waits for longest; who
// waits for too long gets none.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(1)
		first := g.Enter(time.Second, 10*time.Second, time.Minute)
		if first == nil {
			t.Fatal("the first one did not get a place")
		}
		begin := time.Now()
		if g.Enter(time.Second, time.Second, time.Minute) != nil || time.Since(begin) != time.Second {
			t.Fatalf("a second one got a place, or was sent away after %v", time.Since(begin))
		}
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				p := g.Enter(time.Minute, time.Minute, time.Minute)
				order <- i
				time.Sleep(time.Second)
				p.Leave()
				p.Leave() // again is harmless
			}()
			synctest.Wait()
		}
		first.Stay(20 * time.Second)
		for want := range 3 {
			if got := <-order; got != want {
				t.Fatalf("%d got a place before %d", got, want)
			}
		}
		// 1 s until the second was sent away, 20 s of the first one's place, and one second each of two others.
		if took := time.Since(begin); took != 23*time.Second {
			t.Errorf("the last one got its place after %v", took)
		}
		time.Sleep(2 * time.Second)

		slow := g.Enter(time.Second, time.Second, time.Minute)
		time.Sleep(2 * time.Second)
		slow.Stay(time.Hour) // too late: it is another one's
		next := g.Enter(0, time.Second, time.Minute)
		if next == nil {
			t.Fatal("a place was not free at the end of its time")
		}
		slow.Leave()
		go func() {
			time.Sleep(100 * time.Millisecond)
			g.Close()
		}()
		begin = time.Now()
		if g.Enter(time.Hour, 0, 0) != nil || time.Since(begin) != 100*time.Millisecond {
			t.Errorf("a closed gate let somebody in, or kept them for %v", time.Since(begin))
		}
		next.Leave()
		(*Place)(nil).Stay(0)
		(*Place)(nil).Leave()
	})
}

// TestGateOfBusyMachine: when successes take long, a place is held for longer, up to a bound; one that is slow by
// itself changes little.
func TestGateOfBusyMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(1)
		held := func() time.Duration {
			t.Helper()
			begin := time.Now()
			if g.Enter(time.Minute, 100*time.Millisecond, 2*time.Second) == nil {
				t.Fatal("no place")
			}
			next := g.Enter(time.Minute, 0, 0)
			if next == nil {
				t.Fatal("the place did not become free")
			}
			next.Leave()
			return time.Since(begin)
		}
		if got := held(); got != 100*time.Millisecond {
			t.Errorf("at first a place is held for %v", got)
		}
		g.Took(time.Hour, 400*time.Millisecond)
		if got := held(); got != 100*time.Millisecond {
			t.Errorf("after one that was slow a place is held for %v", got)
		}
		for range 200 {
			g.Took(300*time.Millisecond, 2*time.Second)
		}
		if got := held(); got < 850*time.Millisecond || got > 900*time.Millisecond {
			t.Errorf("where 300 ms are usual, a place is held for %v", got)
		}
		for range 200 {
			g.Took(time.Hour, 2*time.Second)
		}
		if got := held(); got != 2*time.Second {
			t.Errorf("where nothing succeeds in time, a place is held for %v", got)
		}
		for range 200 {
			g.Took(time.Millisecond, 2*time.Second)
		}
		if got := held(); got != 100*time.Millisecond {
			t.Errorf("where all are fast again, a place is held for %v", got)
		}
	})
}
