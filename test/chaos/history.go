package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Every node has a register, its extra field "chaos", that clients read, write, and change if it has a value. A request
// whose answer did not come may have been carried out at any time since.
const (
	opRead = iota
	opWrite
	opSwap // if the register is old
)

// op is one request to a register.
type op struct {
	node, conductor string
	kind            int
	value, old      string // value: of a read, what it returned
	done            bool   // of a swap: the register was old
	unknown         bool   // the answer did not come
	call, end       time.Duration
}

func (o *op) String() string {
	what := map[int]string{opRead: "read " + o.value, opWrite: "write " + o.value,
		opSwap: "swap " + o.old + " for " + o.value}[o.kind]
	switch {
	case o.unknown:
		what += ": no answer"
	case o.kind == opSwap && !o.done:
		what += ": it was another"
	}
	return fmt.Sprintf("%9.3f to %9.3f s  %s  %s", o.call.Seconds(), o.end.Seconds(), o.conductor, what)
}

// history has all requests whose effect is not known to be none.
type history struct {
	began time.Time

	mu  sync.Mutex
	ops []*op
}

func (h *history) now() time.Duration { return time.Since(h.began) }

func (h *history) add(o *op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

// unset is the value of every register at the beginning.
const unset = "v0"

var model = porcupine.Model{
	Init: func() any { return unset },
	Step: func(state, input, _ any) (bool, any) {
		o, is := input.(*op), state.(string)
		switch {
		case o.kind == opRead:
			return o.value == is, is
		case o.kind == opWrite:
			return true, o.value
		case o.unknown:
			if is == o.old {
				return true, o.value
			}
			return true, is
		case o.done:
			return o.old == is, o.value
		}
		return o.old != is, is
	},
}

// check returns what is wrong with each node's history: that there is no order of its requests, each between its
// beginning and its end, in which every answer is right.
func (h *history) check(ctx context.Context) (faults []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	byNode := map[string][]*op{}
	for _, o := range h.ops {
		byNode[o.node] = append(byNode[o.node], o)
	}
	for node, ops := range byNode {
		ops = seen(ops)
		if ctx.Err() != nil {
			return append(faults, "the check of the histories was ended")
		}
		switch legal(ops) {
		case porcupine.Illegal:
			faults = append(faults, fmt.Sprintf("the history of %s has no order in which every answer is right:\n%s", node,
				lines(shortest(ops))))
		case porcupine.Unknown:
			faults = append(faults, fmt.Sprintf("the history of %s, %d requests, can't be judged within a minute", node,
				len(ops)))
		}
	}
	slices.Sort(faults)
	return faults
}

// seen leaves out writes without an answer whose value was never seen: whether they happened makes no difference.
func seen(ops []*op) (out []*op) {
	known := map[string]bool{}
	for _, o := range ops {
		if o.kind == opRead {
			known[o.value] = true
		}
		if o.kind == opSwap {
			known[o.old] = true
		}
	}
	for _, o := range ops {
		if !o.unknown || known[o.value] {
			out = append(out, o)
		}
	}
	return out
}

func legal(ops []*op) porcupine.CheckResult {
	all := make([]porcupine.Operation, len(ops))
	for i, o := range ops {
		all[i] = porcupine.Operation{ClientId: i, Input: o, Call: int64(o.call), Return: int64(o.end)}
		if o.unknown {
			all[i].Return = math.MaxInt64
		}
	}
	return porcupine.CheckOperationsTimeout(model, all, time.Minute)
}

// shortest returns the least part of a wrong history that is wrong: its beginning up to the answer that shows it,
// without the reads that do not matter.
func shortest(ops []*op) []*op {
	slices.SortFunc(ops, func(a, b *op) int { return cmp.Compare(a.end, b.end) })
	n := 1
	for n < len(ops) && legal(ops[:n]) != porcupine.Illegal {
		n++
	}
	ops = slices.Clone(ops[:n])
	for i := len(ops) - 1; i >= 0; i-- {
		less := slices.Delete(slices.Clone(ops), i, i+1)
		if ops[i].kind == opRead && legal(less) == porcupine.Illegal {
			ops = less
		}
	}
	return ops
}

func lines(ops []*op) string {
	var b strings.Builder
	for _, o := range ops {
		fmt.Fprintln(&b, "  ", o)
	}
	return b.String()
}
