package access

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// TestKeystoneAnswersAreCut: of an answer no more is read than there may be.
func TestKeystoneAnswersAreCut(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, strings.Repeat(" ", 2*limit.KeystoneBody)) // an error says that the rest is not wanted
	}))
	defer srv.Close()
	k, err := NewKeystone(KeystoneConfig{AuthURL: srv.URL, Own: as("x")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, b, _, err := k.send(t.Context(), http.MethodGet, "/x", nil, nil); err != nil || len(b) != limit.KeystoneBody {
		t.Errorf("%d bytes of an answer are read, want %d: %v", len(b), limit.KeystoneBody, err)
	}
	k.http.CloseIdleConnections()
}

// A Keystone that sends without end, or drips, costs its own slot and time, and the answer is 503.
func TestHostileKeystone(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"headers": func(w http.ResponseWriter, r *http.Request) {
			status := http.StatusOK
			if r.Method == http.MethodPost {
				w.Header().Set("X-Subject-Token", strings.Repeat("x", 200<<10))
				status = http.StatusCreated
			}
			w.WriteHeader(status)
			fmt.Fprint(w, `{"token":{"expires_at":"2999-01-01T00:00:00Z","user":{"id":"u"}}}`)
		},
		"body": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Subject-Token", "t")
			w.WriteHeader(http.StatusCreated)
			for b := []byte(strings.Repeat(" ", 64<<10)); r.Context().Err() == nil; {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		},
		"drip": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Subject-Token", "t")
			w.WriteHeader(http.StatusCreated)
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-r.Context().Done():
					return
				case <-tick.C:
				}
				if _, err := w.Write([]byte(" ")); err != nil {
					return
				}
				w.(http.Flusher).Flush()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(answer))
			defer srv.Close()
			k, err := NewKeystone(KeystoneConfig{AuthURL: srv.URL, Own: as("x"), Timeout: 300 * time.Millisecond},
				nil)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			begin := time.Now()
			for i := range 4 {
				wg.Go(func() {
					r := httptest.NewRequest("GET", "/", nil)
					r.Header.Set("X-Auth-Token", fmt.Sprint("token", i))
					_, err := k.Authenticate(r)
					var refusal *Refusal
					if !errors.As(err, &refusal) || refusal.Status != http.StatusServiceUnavailable {
						t.Errorf("%v, want 503", err)
					}
				})
			}
			wg.Wait()
			if took := time.Since(begin); took > time.Minute {
				t.Errorf("it took %v", took)
			}
			k.http.CloseIdleConnections()
		})
	}
}
