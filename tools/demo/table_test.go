package demo

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// TestSplit turns a time line, as it comes from a conductor, into where the time went.
func TestSplit(t *testing.T) {
	begin := time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)
	at := func(name, detail string, seconds float64) rest.Mark {
		return rest.Mark{JobID: "j", Name: name, Detail: rest.Null(detail), At: begin.Add(time.Duration(seconds * float64(time.Second))).Format(time.RFC3339Nano)}
	}
	jobs, err := split([]rest.Mark{
		at("requested", "deploying", 0), at("power on requested", "", 0), at("power is on", "", 1), at("dhcp answered", "", 3),
		at("boot script fetched", "", 3.5), at("ramdisk fetched", "", 4), at("dhcp answered", "", 9),
		at("agent enrolled", "", 9.5), at("kernel started", "", 6), at("agent started", "", 8), // known only at enrolment
		at("step done", "write_image", 20), at("power is off", "", 21), at("power is on", "", 22),
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(jobs) != 1 || jobs[0].phase != "deploying" || jobs[0].end.Sub(jobs[0].begin) != 22*time.Second {
		t.Fatalf("split = %+v", jobs)
	}
	var got []string
	var sum time.Duration
	for _, s := range jobs[0].stretches {
		got = append(got, fmt.Sprintf("%s %v", s.name, s.took))
		sum += s.took
	}
	want := []string{"power on 1s", "firmware 2s", "DHCP, TFTP, HTTP 1s", "kernel unpacks itself 2s", "kernel and drivers 2s",
		"agent: network, enrolment 1.5s", "write_image 10.5s", "power off 1s", "power on 1s"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("stretches (-want +got):\n%s", d)
	}
	if sum != 22*time.Second {
		t.Errorf("the stretches are %v together, want every second of 22", sum)
	}
}
