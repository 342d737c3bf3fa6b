package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// Guesses a second, as a person would call a flood, and how much slower than without them a correct first login may be.
const (
	guessRate  = 200
	firstLogin = 40 // of as many users, in each of the phases
	slower     = 2.0
)

// logins measures correct first logins, which are not cached, while passwords are guessed: of existing users and of
// others, from one address and from two. The correct logins come from a separate address, and from the first guesser's.
func (b *bench) logins() error {
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), 10)
	if err != nil {
		return err
	}
	phases := []struct {
		what     string
		guessers []string
		from     string
	}{
		{"nothing else", nil, "127.0.0.1"},
		{fmt.Sprintf("%d wrong ones a second from another address", guessRate), []string{"127.0.0.2"}, "127.0.0.1"},
		{fmt.Sprintf("%d wrong ones a second from the same address", guessRate), []string{"127.0.0.2"}, "127.0.0.2"},
		{fmt.Sprintf("%d wrong ones a second from two other addresses", guessRate), []string{"127.0.0.2", "127.0.0.3"},
			"127.0.0.1"},
	}
	var users strings.Builder
	for i := range firstLogin * len(phases) {
		fmt.Fprintf(&users, "user%d:%s\n", i, hash)
	}
	fmt.Fprintf(&users, "root:%s\n", hash)
	path := filepath.Join(b.dir, "htpasswd")
	if err := os.WriteFile(path, []byte(users.String()), 0o600); err != nil {
		return err
	}
	s, err := start(b.bin, filepath.Join(b.dir, "logins"), "api.auth=http_basic", "api.htpasswd_file="+path)
	if err != nil {
		return err
	}
	defer func() { s.stop() }()
	quiet := 0.0
	for i, p := range phases {
		ctx, stop := context.WithCancel(b.ctx)
		var wg sync.WaitGroup
		var guesses atomic.Int64
		for _, from := range p.guessers {
			wg.Go(func() { guess(ctx, s.addr, from, guessRate/len(p.guessers), &guesses) })
		}
		var times []time.Duration
		c := from(p.from)
		for k := range firstLogin {
			time.Sleep(50 * time.Millisecond) // people do not log in without a pause
			at := time.Now()
			if status, err := login(ctx, c, s.addr, fmt.Sprintf("user%d", i*firstLogin+k), "secret"); err != nil ||
				status != http.StatusOK {
				stop()
				wg.Wait()
				return fmt.Errorf("a correct login beside %s = %d, %w", p.what, status, errors.Join(err, errStatus))
			}
			times = append(times, time.Since(at))
		}
		stop()
		wg.Wait()
		slices.Sort(times)
		r := row{What: "correct first login beside " + p.what, Unit: "ms", Value: ms(times[len(times)/2]),
			P50: ms(times[len(times)/2]), P99: ms(times[len(times)*99/100])}
		if i == 0 {
			quiet = r.Value
		} else {
			r.Limit = slower * quiet
		}
		b.add(r)
	}
	return nil
}

var errStatus = errors.New("want 200")

// from makes a client whose connections come from an address.
func from(addr string) *http.Client {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}
	return &http.Client{
		Timeout: time.Minute, Transport: &http.Transport{DialContext: d.DialContext, MaxIdleConnsPerHost: 64}}
}

func login(ctx context.Context, c *http.Client, addr, name, password string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/v1/nodes", nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(name+":"+password)))
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// guess sends so many wrong passwords a second until ctx ends, without waiting for answers: half of them for a user
// that exists.
func guess(ctx context.Context, addr, at string, rate int, sent *atomic.Int64) {
	c := from(at)
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n := sent.Add(1)
		name := "root"
		if n%2 == 0 {
			name = fmt.Sprintf("unknown%d", n%20)
		}
		wg.Go(func() {
			login(ctx, c, addr, name, fmt.Sprint("wrong", n)) // the result does not matter
		})
	}
}
