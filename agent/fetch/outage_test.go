package fetch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// TestOutageAmongSmallFiles: a server that has given something may be away for as long among many small files as in the
// middle of a large one.
func TestOutageAmongSmallFiles(t *testing.T) {
	for away, ok := range map[time.Duration]bool{30 * time.Second: true, 50 * time.Second: true,
		2 * time.Minute: false} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t)
			object := random(mib, 1)
			var down atomic.Bool
			n.add("a", &host{handler: &static{file: object, before: func(w http.ResponseWriter, r *http.Request) bool {
				if down.Load() {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				return down.Load()
			}}})
			o := n.origin("http://a/disk.ingot")
			get := func() error {
				_, err := o.Get(t.Context(), "objects/1", int64(len(object)), nil)
				return err
			}
			if err := get(); err != nil {
				t.Fatal(err)
			}
			down.Store(true)
			time.AfterFunc(away, func() { down.Store(false) })
			began := time.Now()
			err := get()
			took := time.Since(began)
			if ok && (err != nil || took > away+2*DefaultPatience.Longest) {
				t.Errorf("away for %s: %v after %s", away, err, took)
			}
			if !ok && (err == nil || !step.AsError(err).Retryable || took > DefaultPatience.Outage ||
				took < DefaultPatience.Outage-2*DefaultPatience.Longest) {
				t.Errorf("away for %s: %v after %s", away, err, took)
			}
			time.Sleep(away)
		})
	}
}

// TestRefusedTrial: when a server has enough connections, those that it has go on at once.
func TestRefusedTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		s := &static{file: random(100*mib, 1), etag: `"v"`}
		var busy, refused, idle atomic.Int64
		var since atomic.Pointer[time.Time]
		n.add("a", &host{perFlow: 2 * mib, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if now := time.Now(); busy.Add(-1) == 0 {
					since.Store(&now)
				}
			}()
			switch busy.Add(1) {
			case 1:
				if last := since.Load(); last != nil {
					idle.Store(max(idle.Load(), int64(time.Since(*last))))
				}
			case 4:
				refused.Add(1)
				w.Header().Set("Retry-After", "9")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			s.ServeHTTP(w, r)
		})})
		f := n.open(true, "http://a/disk.raw")
		f.Widen(12)
		began := time.Now()
		n.mustRead(f, s.file)
		took := time.Since(began)
		if refused.Load() == 0 {
			t.Error("no connection was refused")
		}
		// One connection takes 50 s, three take 17.
		if took > 32*time.Second || idle.Load() > int64(time.Second) {
			t.Errorf("took %s; the server was idle for up to %s\n%s", took, time.Duration(idle.Load()), &n.log)
		}
	})
}

// TestRefusedThenAnswered: a stream that has to wait for a mirror gives up for others once, even if those have had a
// response from it since.
func TestRefusedThenAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.add("a", &host{handler: &static{file: random(mib, 1)}})
		o := n.origin("http://a/image")
		m := o.mirrors[0]
		o.failed(m, errors.New("503"), 2*time.Second, false)
		o.worked(m)
		s := newStream(t.Context(), o, newKnown(o, -1, true), "", 0, 100)
		defer s.close()
		asked := 0
		s.hasty = func() bool { asked++; return asked < 100 } // time would stand still
		if err := s.connect(); err == nil || !step.AsError(err).Retryable || asked != 1 {
			t.Errorf("%v, after others were looked for %d times", err, asked)
		}
	})
}

// TestEmptyFile: a mirror with an empty file is not the only one.
func TestEmptyFile(t *testing.T) {
	file := random(mib, 1)
	for name, c := range map[string]struct {
		digest []byte // of the received data, if it was compared
		files  [][]byte
		ok     bool
	}{
		"another has it":                 {nil, [][]byte{{}, file}, true},
		"the third has it":               {nil, [][]byte{{}, {}, file}, true},
		"another has it, by digest":      {[]byte("of nothing"), [][]byte{{}, file}, true},
		"none has it":                    {nil, [][]byte{{}, {}}, false},
		"there is no other":              {nil, [][]byte{{}}, false},
		"all have the same, says digest": {[]byte("of nothing"), [][]byte{{}, {}, {}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t)
				var urls []string
				for i, b := range c.files {
					n.add(fmt.Sprintf("h%d", i), &host{handler: &static{file: b}})
					urls = append(urls, fmt.Sprintf("http://h%d/image", i))
				}
				f := n.open(true, urls...)
				defer f.Close()
				for attempt := 1; ; attempt++ {
					got, err := readAll(t, f)
					if err != nil {
						t.Fatal(err)
					}
					if len(got) == 0 && f.Distrust(c.digest) {
						f.Rewind()
						continue
					}
					if bytes.Equal(got, file) != c.ok || attempt > len(c.files) {
						t.Errorf("%d bytes after %d attempts\n%s", len(got), attempt, &n.log)
					}
					return
				}
			})
		})
	}
}

// TestDamagedOnTheWay: damage is attributed to the server only after several damaged transfers.
func TestDamagedOnTheWay(t *testing.T) {
	for _, c := range []struct {
		damaged []int // answers of each mirror, before the first good one
		ok      bool
		asked   int
	}{
		{[]int{1}, true, 2}, {[]int{2}, true, 3}, {[]int{3}, false, 3}, {[]int{1, 1}, true, 3}, {[]int{1, 9}, true, 3},
		{[]int{9, 9}, false, 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t)
			good := random(mib, 1)
			var urls []string
			var asked atomic.Int64
			for i, damaged := range c.damaged {
				name := fmt.Sprintf("h%d", i)
				n.add(name, &host{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					asked.Add(1)
					b := bytes.Clone(good)
					if damaged--; damaged >= 0 {
						b[77] ^= 1
					}
					(&static{file: b}).ServeHTTP(w, r)
				})})
				urls = append(urls, "http://"+name+"/disk.ingot")
			}
			_, err := n.origin(urls...).GetChecked(t.Context(), "objects/1", mib, nil, func(b []byte) error {
				if !bytes.Equal(b, good) {
					return errors.New("wrong digest")
				}
				return nil
			})
			if (err == nil) != c.ok || asked.Load() != int64(c.asked) {
				t.Errorf("%v: %v after %d requests, want %d", c.damaged, err, asked.Load(), c.asked)
			}
			if err != nil && (step.AsError(err).Retryable || !strings.Contains(err.Error(), "wrong digest")) {
				t.Errorf("%v: %v", c.damaged, err)
			}
		})
	}
}

// TestSilentRegistry: silence in a body ends with an error, but only while somebody waits for the body.
func TestSilentRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		body := random(mib, 1)
		n.add("a", &host{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			w.Write(body[:mib/2])
			w.(http.Flusher).Flush()
			wait := 20 * time.Second
			if r.URL.Path == "/silent" {
				wait = time.Hour
			}
			select {
			case <-time.After(wait):
				w.Write(body[mib/2:])
			case <-r.Context().Done():
			}
		})})
		c, err := RegistryClient("", DefaultPatience)
		if err != nil {
			t.Fatal(err)
		}
		transport := c.Transport.(*watched)
		transport.Proxy, transport.DialContext = nil, n.dial
		defer c.CloseIdleConnections()
		for path, want := range map[string]error{"silent": errSilent, "slow": nil} {
			resp, err := c.Get("http://a/" + path)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, mib)
			if _, err := io.ReadFull(resp.Body, got[:1000]); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * DefaultPatience.Stall) // the disk is slow
			began := time.Now()
			_, err = io.ReadFull(resp.Body, got[1000:])
			if !errors.Is(err, want) || want == nil && !bytes.Equal(got, body) {
				t.Errorf("%s: %v, want %v", path, err, want)
			}
			if took := time.Since(began); want != nil && took != DefaultPatience.Stall {
				t.Errorf("%s: noticed after %s", path, took)
			}
			resp.Body.Close()
		}
	})
}
