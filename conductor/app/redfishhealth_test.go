//go:build !race

package app_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/parts"
)

var updatedAt = regexp.MustCompile(`"updated_at":"?([^",]*)`)

// The health of a node is read again and again, which changes the node only when its health does; a part that is going
// to fail is a fault of the node, if that is set so, until it is well.
func TestHealthThroughRedfish(t *testing.T) {
	r := newRacked(t, "health.interval=300ms", "health.faults=true")
	b := redfish.Start(t, redfish.Personality(t, "lenovo-xcc"))
	r.enrol("n1", b, "")
	const at, own = "/v1/nodes/n1", "/ingot/v1/nodes/n1/health"
	r.until(at, `"health":"OK"`, `"fault":null`)
	r.until(own, `"health":"OK"`, `"failing_parts":[]`, `"error":null`, `"name":"CPU1 Temp"`, `"unit":"Cel"`, `51.5`,
		`"upper_critical":95`, "Event 6 of the lab", `"time":"2026-11-06T10:00:00+00:00"`)
	seen := func() string { return updatedAt.FindString(r.ask(200, "GET", at, "")) }
	first := seen()
	read := regexp.MustCompile(`"read_at":"[^"]*"`)
	begun := read.FindString(r.ask(200, "GET", own, ""))
	requests := b.Service.Requests()
	r.eventually("it is read again", func() bool {
		return read.FindString(r.ask(200, "GET", own, "")) != begun && b.Service.Requests() > requests+20
	})
	if again := seen(); again != first {
		t.Errorf("readings changed the node: %s, before %s", again, first)
	}

	b.Service.Parts().SetFailing("Drives/1", parts.Predicted)
	r.until(at, `"health":"Warning"`, `"fault":"hardware failure"`, `drive Drive 1 is going to fail`)
	r.until(own, `"kind":"drive"`, `"predicted":true`)
	if found := r.ask(200, "GET", "/v1/nodes?fault=hardware%20failure", ""); !strings.Contains(found, `"name":"n1"`) {
		t.Errorf("nodes with the fault: %s", found)
	}
	b.Service.Parts().SetFailing("Drives/1", "")
	r.until(at, `"health":"OK"`, `"fault":null`, `"last_error":null`)
	log := r.ask(200, "GET", at+"/history?detail=true", "")
	for _, line := range []string{"previously 'None'", "health='Warning' (previously 'OK')", "hardware failure: drive Drive 1",
		"the parts that failed are well again"} {
		if !strings.Contains(log, line) {
			t.Errorf("the history lacks %q: %s", line, log)
		}
	}
	if n := b.Service.MostAtOnce(); n > 1 {
		t.Errorf("%d requests at once", n)
	}
	if said := r.ask(200, "GET", "/ingot/v1/nodes/n1/health", ""); strings.Contains(said, redfish.Password) {
		t.Errorf("it says %s", said)
	}
}
