package pid1

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestEntropy holds how long the first process waits for the kernel to have random numbers, and that it says what it
// did about it. That the kernel takes the seed is tested in a machine without any generator.
func TestEntropy(t *testing.T) {
	never := time.Hour
	for name, tc := range map[string]struct {
		ready, plugged time.Duration
		err            error
		want           time.Duration
		says           string // empty: nothing, and no seed
	}{
		"at once": {want: 0, plugged: never},
		"after a driver": {ready: 200 * time.Millisecond, plugged: 100 * time.Millisecond,
			want: 200 * time.Millisecond},
		"drivers are in, no seed": {ready: never, plugged: 100 * time.Millisecond,
			want: 100*time.Millisecond + entropyAfter, says: "seeded from dice"},
		"drivers take long": {ready: never, plugged: never, want: entropyMax, says: "seeded from dice"},
		"drivers come late": {ready: never, plugged: entropyMax - 50*time.Millisecond, want: entropyMax,
			says: "seeded from dice"},
		"the kernel refuses": {ready: never, plugged: 0, err: errors.New("no permission"), want: entropyAfter,
			says: "may take minutes: no permission"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin, seeds := time.Now(), 0
				plugged := make(chan struct{})
				time.AfterFunc(tc.plugged, func() { close(plugged) })
				var log, con bytes.Buffer
				entropy(plugged, func() bool { return time.Since(begin) >= tc.ready },
					func() (string, error) { seeds++; return "dice", tc.err }, slog.New(slog.NewTextHandler(&log, nil)),
					&con)
				if took := time.Since(begin); took < tc.want || took > tc.want+20*time.Millisecond {
					t.Errorf("took %v, want %v", took, tc.want)
				}
				if want := map[bool]int{false: 1, true: 0}[tc.says == ""]; seeds != want {
					t.Errorf("seeded %d times, want %d", seeds, want)
				}
				if tc.says == "" {
					if con.Len()+log.Len() > 0 {
						t.Errorf("says %s%s", &con, &log)
					}
					return
				}
				if !strings.Contains(con.String(), tc.says) || !strings.Contains(log.String(), "random number") {
					t.Errorf("console %q, log %q, want %q", &con, &log, tc.says)
				}
			})
		})
	}
}

// TestJitter holds that the samples differ from run to run: everything else about them is the machine's.
func TestJitter(t *testing.T) {
	var a, b bytes.Buffer
	jitter(&a, 1)
	jitter(&b, 1)
	if a.Len() != 8000 || bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Errorf("%d bytes, the same twice: %v", a.Len(), bytes.Equal(a.Bytes(), b.Bytes()))
	}
}
