package fetch

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func FuzzContentRange(f *testing.F) {
	for _, s := range []string{"bytes 0-9/10", "bytes 5-9/*", "bytes 9-5/10", "bytes */10", "bytes -1-2/3",
		"bytes 1-2/-3", "bytes 0-9/9", "bytes 0-99999999999999999999/1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, h string) {
		first, last, total, ok := contentRange(h)
		if ok && (first < 0 || last < first || total >= 0 && last >= total || total < -1) {
			t.Errorf("%q: %d-%d/%d", h, first, last, total)
		}
	})
}

// FuzzFaults lets two servers behave as the input says, response by response. In every case the fetch ends; and if no
// content was wrong, it ends with the file, or an error, but never with wrong bytes that the digest does not cover.
func FuzzFaults(f *testing.F) {
	f.Add([]byte{0})
	f.Add([]byte{1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	f.Add([]byte{17, 33, 49, 65, 81, 97, 113, 129, 145})
	f.Add([]byte{2, 2, 2, 2, 13, 13, 13, 4, 4, 4, 200, 100, 50})
	file, other := random(2*mib+321, 1), random(2*mib+321, 2)
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 64 {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork(t)
			var mu sync.Mutex
			lied := false
			next := func() byte {
				mu.Lock()
				defer mu.Unlock()
				if len(script) == 0 {
					return 0
				}
				b := script[0]
				script = script[1:]
				return b
			}
			handler := func(w http.ResponseWriter, r *http.Request) {
				b := next()
				s := &static{file: file, etag: `"v"`, cut: func(from int) int { return 1 << 40 }}
				at := int(b>>4) * 140_000
				switch b & 15 {
				case 1:
					s.cut = func(from int) int { return max(from, at) }
				case 2:
					s.cut = func(from int) int { return from + at/10 }
				case 3:
					s.noRanges = true
				case 4:
					s.etag = ""
				case 5:
					w.WriteHeader(500 + int(b>>4))
					return
				case 6:
					w.WriteHeader(400 + int(b>>4))
					return
				case 7:
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", at, len(file)-1, len(file)))
					w.WriteHeader(http.StatusPartialContent)
					w.Write(file[at:])
					return
				case 8:
					w.Header().Set("Content-Length", fmt.Sprint(len(file)+at))
				case 9:
					s.etag = `"w"`
				case 10:
					mu.Lock()
					lied = true
					mu.Unlock()
					s.file, s.etag = other, ""
				case 11:
					mu.Lock()
					lied = true
					mu.Unlock()
					s.file = file[:len(file)-1-at]
				case 12:
					time.Sleep(time.Duration(b>>4) * 5 * time.Second)
				case 13:
					panic(http.ErrAbortHandler)
				case 14:
					http.Redirect(w, r, r.URL.Path+"x", http.StatusFound)
					return
				case 15:
					w.Header().Set("Content-Encoding", "gzip")
				}
				s.ServeHTTP(w, r)
			}
			n.add("a", &host{handler: http.HandlerFunc(handler)})
			n.add("b", &host{handler: http.HandlerFunc(handler)})
			file0 := n.open(true, "http://a/i", "http://b/i")
			defer file0.Close()
			want := sha256.Sum256(file)
			began := time.Now()
			for {
				h := sha256.New()
				var size int64
				var err error
				for err == nil {
					var b []byte
					if b, err = file0.Next(t.Context()); err == nil {
						size += int64(len(b))
						h.Write(b)
						file0.Free(b)
					}
				}
				if time.Since(began) > 2*time.Hour {
					t.Fatal("it does not come to an end")
				}
				if errors.Is(err, ErrRestart) {
					file0.Rewind()
					continue
				}
				if err != io.EOF {
					return
				}
				got := [32]byte(h.Sum(nil))
				if got != want && file0.Distrust(got[:]) {
					file0.Rewind()
					continue
				}
				mu.Lock()
				defer mu.Unlock()
				if got != want && !lied {
					t.Errorf("%d bytes that are not the file, though no server lied\n%s", size, &n.log)
				}
				return
			}
		})
	})
}
