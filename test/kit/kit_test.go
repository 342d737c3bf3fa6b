package kit

import (
	"os"
	"regexp"
	"testing"
	"time"
)

func TestTempDisk(t *testing.T) {
	fi, err := os.Stat(TempDisk(t, 5<<20))
	if err != nil || fi.Size() != 5<<20 {
		t.Fatalf("disk = %v, %v, want 5 MiB", fi, err)
	}
}

func TestEventually(t *testing.T) {
	n := 0
	Eventually(t, time.Second, "the third call", func() bool { n++; return n == 3 })
}

func TestWatchAcrossWrites(t *testing.T) {
	w := &watch{found: make(chan struct{})}
	w.until = regexp.MustCompile("log[i]n:")
	for _, s := range []string{"debian lo", "gi", "n: "} {
		if _, err := w.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-w.found:
	default:
		t.Error("a match over three writes was not seen")
	}
	if w.String() != "debian login: " {
		t.Errorf("text = %q", w)
	}
}

func TestLoop(t *testing.T) {
	dev := Loop(t, TempDisk(t, 1<<20))
	if err := os.WriteFile(dev, []byte("hello"), 0); err != nil {
		t.Error(err)
	}
}
