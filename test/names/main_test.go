package main

import (
	"io"
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	const record = `{"Action":"pass","Package":"github.com/ingot-metal/ingot/agent/disk","Test":"TestA"}
{"Action":"pass","Package":"github.com/ingot-metal/ingot/agent/disk","Test":"TestA/one"}
{"Action":"fail","Package":"github.com/ingot-metal/ingot/agent/disk","Test":"TestFailed"}
{"Action":"pass","Package":"github.com/ingot-metal/ingot/agent/fs/fat","Test":"TestFAT"}
`
	now, err := ran(strings.NewReader(record))
	if err != nil || len(now) != 3 {
		t.Fatalf("read %v, %v", now, err)
	}
	for _, c := range []struct {
		name, before, moved, want string
	}{
		{"all there", "agent/disk TestA\nagent/disk TestA/one", "", ""},
		{"gone", "agent/disk TestB", "", "gone without a line: agent/disk TestB"},
		{"failed is gone", "agent/disk TestFailed", "", "gone without a line"},
		{"explained", "agent/disk TestB/x\nagent/disk TestB",
			"# why\nagent/disk TestB* => agent/disk TestA: it does both", ""},
		{"moved package", "images/fs/fat TestFAT", "images/fs/fat -> agent/fs/fat", ""},
		{"names nothing", "agent/disk TestB", "agent/disk TestB => proved elsewhere", "names no test of this run"},
		{"names what is not there", "agent/disk TestB", "agent/disk TestB => TestNone", "names no test of this run"},
		{"stale", "agent/disk TestA", "agent/disk TestB => TestA", "stands for no test that is gone"},
		{"no line", "agent/disk TestA", "agent/disk TestB TestA", "not PACKAGE TEST"},
	} {
		var out strings.Builder
		err := compare(&out, strings.Split(c.before, "\n"), now, c.moved)
		if (err != nil) != (c.want != "") || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: error %v, output %q, want %q", c.name, err, out.String(), c.want)
		}
	}
	if err := run([]string{"-record", "none"}, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "make test writes it") {
		t.Errorf("error = %v", err)
	}
}
