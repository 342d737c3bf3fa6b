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
		first := g.Enter(time.Second, 10*time.Second)
		if first == nil {
			t.Fatal("the first one did not get a place")
		}
		begin := time.Now()
		if g.Enter(time.Second, time.Second) != nil || time.Since(begin) != time.Second {
			t.Fatalf("a second one got a place, or was sent away after %v", time.Since(begin))
		}
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				p := g.Enter(time.Minute, time.Minute)
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

		slow := g.Enter(time.Second, time.Second)
		time.Sleep(2 * time.Second)
		slow.Stay(time.Hour) // too late: it is another one's
		next := g.Enter(0, time.Second)
		if next == nil {
			t.Fatal("a place was not free at the end of its time")
		}
		slow.Leave()
		go func() {
			time.Sleep(100 * time.Millisecond)
			g.Close()
		}()
		begin = time.Now()
		if g.Enter(time.Hour, 0) != nil || time.Since(begin) != 100*time.Millisecond {
			t.Errorf("a closed gate let somebody in, or kept them for %v", time.Since(begin))
		}
		next.Leave()
		(*Place)(nil).Stay(0)
		(*Place)(nil).Leave()
	})
}
