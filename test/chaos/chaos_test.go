package main

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// TestChaos: no promise is broken by two minutes of faults; with INGOT_FULL by an hour of them, with 30 seeds.
// INGOT_CHAOS_SEED is another first seed, and INGOT_CHAOS_TIME another time for each.
func TestChaos(t *testing.T) {
	kit.NeedRoot(t)
	bin := made.Program(t, "ingotd")
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("INGOT_CHAOS_SEED"), "1"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv("INGOT_CHAOS_TIME"), "2m"))
	if err != nil {
		t.Fatal(err)
	}
	seeds := uint64(1)
	if os.Getenv("INGOT_FULL") != "" {
		seeds = 30
	}
	for range seeds {
		chaos(t, "-ingotd", bin, "-seed", strconv.FormatUint(seed, 10), "-time", lasts.String())
		seed++
	}
}

// TestPlantedFault: with fencing off, the checks find a fault within two minutes.
func TestPlantedFault(t *testing.T) {
	kit.NeedRoot(t)
	if os.Getenv("INGOT_FULL") == "" {
		t.Log("make test-full runs it: that the program is built shows that its place is still there")
		t.Chdir(filepath.Join("..", ".."))
		if _, err := plant(t.Context(), t.TempDir()); err != nil {
			t.Error(err)
		}
		return
	}
	t.Chdir(filepath.Join("..", ".."))
	chaos(t, "-plant", "-seed", "5")
}

func chaos(t *testing.T, args ...string) {
	t.Helper()
	var out bytes.Buffer
	if err := start(t.Context(), append(args, "-keep", t.TempDir()), &out); err != nil {
		t.Errorf("%s\n%v", &out, err)
	}
}

// TestFaultsAreDrawn: a seed draws the same faults each time, and each kind is one that can happen.
func TestFaultsAreDrawn(t *testing.T) {
	draw := func(seed uint64) []fault { return schedule(rand.New(rand.NewPCG(seed, 0)), time.Hour) }
	one := draw(1)
	if !slices.Equal(one, draw(1)) || slices.Equal(one, draw(2)) {
		t.Error("a seed does not draw the faults")
	}
	drawn := map[string]bool{}
	for _, f := range one {
		drawn[f.what] = true
	}
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	for _, k := range kinds {
		if !drawn[k.what] {
			t.Errorf("%q is not drawn in an hour", k.what)
		}
		b := &befaller{site: &site{all: []*conductor{{}}}, busy: map[string]bool{}}
		for _, part := range []string{"process ", "database link ", "agents' link ", "database", "clock"} {
			b.busy[part] = true // so that nothing happens
		}
		if err := b.befall(dead, fault{what: k.what}); err != nil {
			t.Errorf("%q: %v", k.what, err)
		}
	}
}

// TestHistories: what a right server can answer is right, and what it can't is wrong.
func TestHistories(t *testing.T) {
	const s = time.Second
	write := func(v string, call, end time.Duration) *op {
		return &op{kind: opWrite, value: v, done: true, call: call, end: end}
	}
	lost := func(v string, call time.Duration) *op {
		return &op{kind: opWrite, value: v, unknown: true, call: call, end: call + s}
	}
	read := func(v string, call, end time.Duration) *op { return &op{value: v, call: call, end: end} }
	swap := func(old, v string, done bool, call, end time.Duration) *op {
		return &op{kind: opSwap, old: old, value: v, done: done, call: call, end: end}
	}
	for _, c := range []struct {
		name  string
		right bool
		ops   []*op
	}{
		{"one after the other", true, []*op{read(unset, 0, s), write("v1", 2*s, 3*s), read("v1", 4*s, 5*s)}},
		{"a write that is lost", false, []*op{write("v1", 0, s), read(unset, 2*s, 3*s)}},
		{"at the same time", true, []*op{write("v1", 0, 3*s), read(unset, s, 2*s), read("v1", s, 2*s)}},
		{"back and forth", false, []*op{write("v1", 0, 9*s), read("v1", s, 2*s), read(unset, 3*s, 4*s)}},
		{"an answer that did not come", true, []*op{lost("v1", 0), read(unset, 2*s, 3*s), read("v1", 8*s, 9*s)}},
		{"the same, seen twice", false, []*op{lost("v1", 0), read("v1", 2*s, 3*s), read(unset, 4*s, 5*s)}},
		{"a swap", true,
			[]*op{swap(unset, "v1", true, 0, s), swap(unset, "v2", false, 2*s, 3*s), read("v1", 4*s, 5*s)}},
		{"two swaps of the same", false, []*op{swap(unset, "v1", true, 0, s), swap(unset, "v2", true, 2*s, 3*s)}},
		{"a swap that was refused for nothing", false, []*op{swap(unset, "v1", false, 0, s)}},
	} {
		h := &history{}
		for _, o := range c.ops {
			o.node, o.conductor = "n1", "c1"
			h.add(o)
		}
		if faults := h.check(t.Context()); (len(faults) == 0) != c.right {
			t.Errorf("%s: %q", c.name, faults)
		}
	}
	// What does not matter is left out.
	ops := []*op{write("v1", 0, s), read("v1", s, 2*s), read("v1", 2*s, 3*s), read(unset, 4*s, 5*s),
		read("v1", 6*s, 7*s)}
	if got := shortest(ops); legal(got) != porcupine.Illegal || len(got) != 2 {
		t.Errorf("the shortest wrong part:\n%s", lines(got))
	}
}

// TestLink: what a cut link holds back arrives once it is healed, and dropped connections end.
func TestLink(t *testing.T) {
	far, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	go func() {
		for {
			c, err := far.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	k, err := newLink(far.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", k.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	echo := func(text string, within time.Duration) error {
		if _, err := io.WriteString(c, text); err != nil {
			return err
		}
		b := make([]byte, len(text))
		if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
			return err
		}
		_, err := io.ReadFull(c, b)
		if err == nil && string(b) != text {
			t.Errorf("%q came back as %q", text, b)
		}
		return err
	}
	if err := echo("one", time.Minute); err != nil {
		t.Fatal(err)
	}
	k.Cut()
	if err := echo("two", 100*time.Millisecond); err == nil {
		t.Error("a cut link lets bytes through")
	}
	k.Heal()
	b := make([]byte, 3)
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "two" {
		t.Errorf("after it was healed: %q, %v", b, err)
	}
	k.Drop()
	if _, err := c.Read(b); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("of a dropped connection: %v", err)
	}
	if err := k.Close(); err != nil {
		t.Error(err)
	}
}
