package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/access/keystonetest"
	"github.com/ingot-metal/ingot/test/conformance/ironic"
	"github.com/ingot-metal/ingot/test/conformance/record"
	"github.com/ingot-metal/ingot/test/conformance/run"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// fewest is how many recorded answers are compared at least.
const fewest = 2000

// directory makes users in a Keystone for tests.
type directory struct{ *keystonetest.Server }

func (d directory) Address() string { return d.URL + "/v3" }

func (d directory) Project(_ context.Context, name string) (string, error) {
	return d.Server.Project(name), nil
}

func (d directory) AddUser(_ context.Context, name, password string) error {
	d.Server.AddUser(name, password)
	return nil
}

// Grant grants the roles that a role implies, too, as Keystone does.
func (d directory) Grant(_ context.Context, user, project string, roles ...string) error {
	all := map[string][]string{"admin": {"admin", "member", "reader"}, "member": {"member", "reader"}}[roles[0]]
	if all == nil {
		all = roles
	}
	d.Server.Grant(user, project, all...)
	return nil
}

// alone starts an ingotd with one kind of authentication.
func alone(t *testing.T, auth ironic.Auth, binary string) *run.Server {
	t.Helper()
	var users ironic.Directory
	if auth == ironic.Keystone {
		users = directory{keystonetest.Start(t)}
	}
	p, err := ironic.Alone(t.Context(), ironic.Options{Auth: auth, Dir: t.TempDir(), Binary: binary}, users)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	s := &run.Server{Base: p.Ingot}
	s.As(p)
	return s
}

// recording reads what make conformance RECORD=1 wrote, by kind of authentication.
func recording(t *testing.T, file string) map[ironic.Auth][]record.Exchange {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	es, err := record.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	all := map[ironic.Auth][]record.Exchange{}
	for _, auth := range ways {
		all[auth] = slices.DeleteFunc(slices.Clone(es),
			func(e record.Exchange) bool { return e.Ask.Auth != asked(auth) })
	}
	return all
}

// TestRecordedIronic sends ingotd the requests that make conformance RECORD=1 recorded from a real Ironic.
func TestRecordedIronic(t *testing.T) {
	binary := made.Program(t, "ingotd")
	list, err := (&options{dir: "testdata"}).list()
	if err != nil {
		t.Fatal(err)
	}
	var report run.Report
	for auth, es := range recording(t, "testdata/ironic-21.4.jsonl.gz") {
		before, began := report.Compared, time.Now()
		if err := report.Replay(t.Context(), list, alone(t, auth, binary), es); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d recorded answers in %v", auth, len(es), time.Since(began).Round(time.Millisecond))
		if report.Compared-before < 100 {
			t.Errorf("%s: %d answers were compared", auth, report.Compared-before)
		}
	}
	var b strings.Builder
	report.Write(&b)
	t.Log(b.String())
	if len(report.Found) > 0 || len(report.Left) > 0 {
		t.Errorf("%d differences are not accepted, and %d objects could not be removed", len(report.Found),
			len(report.Left))
	}
	if report.Compared < fewest {
		t.Errorf("%d answers were compared, want %d", report.Compared, fewest)
	}
	if err := list.Check(report.Compared, false); err != nil {
		t.Error(err)
	}
}

// TestBadArguments: what the tool can't do is said, and nothing is started for it.
func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{{"-seeds", "0"}, {"-seed", "x"}, {"-for", "-1s"}, {"-part", "0"}, {"-auth",
		"magic"}, {"-record", "-seeds", "2"},
		{"more"}, {"-testdata", "/nowhere"}} {
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		var out bytes.Buffer
		if err := start(ctx, args, &out, &out); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v = %v", args, err)
		}
		stop()
	}
}

// TestNoPackage: on a machine without Ironic's packages the tool says so, and leaves nothing.
func TestNoPackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("INGOT_CACHE", t.TempDir())
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	var out bytes.Buffer
	err := start(t.Context(), []string{"-testdata", "testdata", "-ingotd", "/bin/true"}, &out, &out)
	if err == nil || !strings.Contains(err.Error(), "get Ironic from Debian's packages") {
		t.Errorf("the error is %v", err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
