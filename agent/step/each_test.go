package step

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func same(s string) string { return s }

func TestEachFaults(t *testing.T) {
	disks := []string{"sda", "sdb", "sdc", "sdd", "sde"}
	errBad := errors.New("medium error")
	var did sync.Map
	err := Each(t.Context(), nil, "erase", 2, disks, same,
		func(_ context.Context, d string, _ func(int64, int64)) error {
			did.Store(d, true)
			switch d {
			case "sdb":
				return Retryable("replace the disk", errBad)
			case "sdd":
				panic("index out of range")
			}
			return nil
		})
	for _, d := range disks {
		if _, ok := did.Load(d); !ok {
			t.Errorf("%s was left out because another failed", d)
		}
	}
	e := AsError(err)
	want := "3 of 5 done, not sdb: medium error; sdd: the step broke down: index out of range"
	if err == nil || err.Error() != want {
		t.Fatalf("error %v, want %s", err, want)
	}
	if !errors.Is(err, errBad) || e.Retryable || !strings.HasPrefix(e.Remedy, "replace the disk; report this") {
		t.Errorf("remedy %q, retryable %v", e.Remedy, e.Retryable)
	}
	if err := Each(t.Context(), nil, "", 0, []string{"sda"}, same,
		func(context.Context, string, func(int64, int64)) error {
			return Retryable("wait", errBad)
		}); err == nil || err.Error() != "sda: medium error" || !AsError(err).Retryable ||
		AsError(err).Remedy != "wait" {
		t.Errorf("one item: %v", err)
	}
	if err := Each(t.Context(), nil, "", 3, nil, same, nil); err != nil {
		t.Errorf("no items: %v", err)
	}
}

func TestEachBound(t *testing.T) {
	for _, limit := range []int{-1, 1, 3, 100} {
		synctest.Test(t, func(t *testing.T) {
			var at, most atomic.Int32
			items := make([]string, 10)
			for i := range items {
				items[i] = fmt.Sprint(i)
			}
			begin := time.Now()
			err := Each(t.Context(), nil, "erase", limit, items, same,
				func(context.Context, string, func(int64, int64)) error {
					now := at.Add(1)
					defer at.Add(-1)
					for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
					}
					<-time.After(time.Minute)
					return nil
				})
			if err != nil {
				t.Fatal(err)
			}
			want := min(max(limit, 1), len(items))
			if int(most.Load()) != want {
				t.Errorf("limit %d: %d at a time, want %d", limit, most.Load(), want)
			}
			if took, want := time.Since(begin), time.Duration((len(items)+want-1)/want)*time.Minute; took != want {
				t.Errorf("limit %d took %s, want %s", limit, took, want)
			}
		})
	}
}

func TestEachCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		var begun atomic.Int32
		time.AfterFunc(time.Second, func() { cancel(errCancelled) })
		err := Each(ctx, nil, "erase", 2, []string{"sda", "sdb", "sdc"}, same,
			func(ctx context.Context, d string, _ func(int64, int64)) error {
				begun.Add(1)
				<-ctx.Done()
				return ctx.Err()
			})
		if begun.Load() != 2 {
			t.Errorf("%d begun, want 2", begun.Load())
		}
		if !errors.Is(err, context.Canceled) || !errors.Is(err, errCancelled) ||
			!strings.Contains(err.Error(), "sdc: not begun") {
			t.Errorf("error %v", err)
		}
	})
}

func TestEachProgress(t *testing.T) {
	var got []Progress
	c := &Call{Report: func(p Progress) { got = append(got, p) }}
	sizes := map[string]int64{"a": 10, "b": 30}
	err := Each(t.Context(), c, "erase", 2, []string{"a", "b"}, same,
		func(_ context.Context, d string, report func(int64, int64)) error {
			for i := int64(1); i <= 10; i++ {
				report(sizes[d]*i/10, sizes[d])
			}
			if d == "b" {
				return errors.New("lies")
			}
			return nil
		})
	if err == nil {
		t.Fatal("no error")
	}
	last := got[len(got)-1]
	want := []Item{{Name: "a", Bytes: 10, Total: 10, Done: true},
		{Name: "b", Bytes: 30, Total: 30, Done: true, Err: "lies"}}
	if last.Phase != "erase" || last.Bytes != 40 || last.Total != 40 || !slices.Equal(last.Items, want) {
		t.Errorf("last report %+v", last)
	}
	for i, p := range got[1:] {
		if p.Bytes < got[i].Bytes {
			t.Errorf("report %d goes back from %d to %d", i+1, got[i].Bytes, p.Bytes)
		}
	}
}

// TestEachStall holds that a step whose last item hangs is stopped, and says which one that was.
func TestEachStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := table(map[string]Func{"erase": func(ctx context.Context, c *Call) (Outcome, error) {
			return Outcome{},
				Each(ctx, c, "erase", 3, []string{"sda", "sdb", "sdc"}, same,
					func(ctx context.Context, d string, report func(int64, int64)) error {
						for i := range int64(10) {
							if d == "sdb" && i == 3 {
								<-ctx.Done()
								return ctx.Err()
							}
							<-time.After(50 * time.Second)
							report(i+1, 10)
						}
						return nil
					})
		}})
		var tp tape
		end := (&Runner{Table: steps}).Run(t.Context(), nil, plan("erase"), &tp)
		if end.Err == nil || !strings.Contains(end.Err.Error(), "made no progress for 1m0s") ||
			!strings.Contains(end.Err.Error(), "2 of 3 done, not sdb: ") {
			t.Errorf("ended with %+v", end.Err)
		}
	})
}
