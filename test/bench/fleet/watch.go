package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// watcher is one reader of the stream of events. It does not use the client: 200 that decode all they get would have
// more to do than ingotd.
type watcher struct {
	base   int64 // the last event before its stream
	mu     sync.Mutex
	ids    []int64
	delays []float64 // of some events, ms from the event's time to its arrival
	err    error
}

// sampled is of how many events the delay of one is measured.
const sampled = 16

// perAddress is how many watchers come from one address: without authentication, readers are limited by that.
const perAddress = 16

// watch has n watchers follow all events of nodes, spread over the conductors, and returns when each is connected. done
// ends them, after they have had time to get what is under way.
func watch(ctx context.Context, s *site, n int) (all []*watcher, done func() error, err error) {
	ctx, stop := context.WithCancel(ctx)
	var life sync.WaitGroup
	end := func() { stop(); life.Wait() }
	ready := make(chan error, n)
	for i := range n {
		w := &watcher{}
		all = append(all, w)
		// The port of the conductor's address may be taken at another one: only the host is chosen.
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 2, byte(1+i/perAddress))}}
		hc := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
		url := "http://" + s.all[i%len(s.all)].api + "/ingot/v1/events?type=baremetal.node"
		life.Go(func() {
			err := w.follow(ctx, hc, url, ready)
			w.mu.Lock()
			defer w.mu.Unlock()
			if ctx.Err() == nil {
				w.err = err
			}
		})
	}
	for range n {
		select {
		case err = <-ready:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			end()
			return nil, nil, fmt.Errorf("follow the events: %w", err)
		}
	}
	return all, func() error {
		defer end()
		return settle(ctx, all)
	}, nil
}

// settle waits until nothing has come to any watcher for a while.
func settle(ctx context.Context, all []*watcher) error {
	const quiet, most = 2 * time.Second, time.Minute
	count := func() (n int) {
		for _, w := range all {
			w.mu.Lock()
			n += len(w.ids)
			w.mu.Unlock()
		}
		return n
	}
	for last, began, same := count(), time.Now(), time.Now(); time.Since(same) < quiet; {
		select {
		case <-time.After(quiet / 10):
		case <-ctx.Done():
			return ctx.Err()
		}
		if now := count(); now != last {
			last, same = now, time.Now()
		}
		if time.Since(began) > most {
			return errors.New("events go on a minute after the deployments")
		}
	}
	return nil
}

// follow reads a stream until it ends; ready hears once how it began.
func (w *watcher) follow(ctx context.Context, hc *http.Client, url string, ready chan<- error) (err error) {
	begun := false
	defer func() {
		if !begun {
			ready <- err
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := hc.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	var id int64
	for lines.Scan() {
		line := lines.Bytes()
		switch {
		case bytes.HasPrefix(line, []byte("id:")):
			if id, err = strconv.ParseInt(strings.TrimSpace(string(line[3:])), 10, 64); err != nil {
				return err
			}
		case !begun && bytes.HasPrefix(line, []byte("data:")): // ingot.ready
			begun = true
			w.mu.Lock()
			w.base = id
			w.mu.Unlock()
			ready <- nil
		case bytes.HasPrefix(line, []byte("data:")):
			now, delay := time.Now(), -1.0
			if id%sampled == 0 {
				var e rest.Event
				if err := json.Unmarshal(line[5:], &e); err != nil {
					return err
				}
				at, err := time.Parse(time.RFC3339Nano, e.Time)
				if err != nil {
					return err
				}
				delay = now.Sub(at).Seconds() * 1000
			}
			w.mu.Lock()
			w.ids = append(w.ids, id)
			if delay >= 0 {
				w.delays = append(w.delays, delay)
			}
			w.mu.Unlock()
		}
	}
	return errors.Join(lines.Err(), errors.New("the stream has ended"))
}

// seen is the comparison of all watchers.
type seen struct {
	events           int // that at least one watcher has seen
	missed, disorder int // over all watchers
	delays           []float64
	err              error
}

// compare holds what the watchers have seen against each other: the events after the last one at which all had begun.
func compare(all []*watcher) (s seen) {
	var base int64
	for _, w := range all {
		base = max(base, w.base)
	}
	known := map[int64]bool{}
	for _, w := range all {
		for _, id := range w.ids {
			if id > base {
				known[id] = true
			}
		}
	}
	s.events = len(known)
	for i, w := range all {
		got, last := map[int64]bool{}, int64(0)
		for _, id := range w.ids {
			if id <= last {
				s.disorder++
			}
			last = id
			if id > base {
				got[id] = true
			}
		}
		s.missed += len(known) - len(got)
		s.delays = append(s.delays, w.delays...)
		if w.err != nil {
			s.err = errors.Join(s.err, fmt.Errorf("watcher %d: %w", i, w.err))
		}
	}
	return s
}
