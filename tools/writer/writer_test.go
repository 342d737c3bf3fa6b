package writer

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/proto/steparg"
)

// iscsiadm keeps records and sessions as open-iscsi and the kernel do, below $ROOT. It refuses a record whose password
// is not that of the disk, in $ROOT/password.
const iscsiadm = `#!/bin/sh
echo "$*" >>"$ROOT/calls"
portal= op= in= out=
while [ $# -gt 0 ]; do
	case $1 in
	--portal) portal=${2%,1}; shift ;;
	--op) op=$2; shift ;;
	--login) in=1 ;;
	--logout) out=1 ;;
	esac
	shift
done
at=${portal%:*} at=${at#[} at=${at%]}
record="$ROOT/etc/iscsi/nodes/iqn.2026-01.dev.ingot:disk/$at,${portal##*:},1"
session="$ROOT/sys/class/iscsi_session/session1"
connection="$ROOT/sys/class/iscsi_connection/connection1:0"
case $op in
new)
	mkdir -p "$record"
	printf '# BEGIN RECORD 2.1.8\nnode.startup = automatic\nnode.session.auth.authmethod = None\n# END RECORD\n' >"$record/default"
	;;
delete) rm -r "$record" ;;
esac
if [ -n "$in" ]; then
	grep -qx "node.session.auth.password = $(cat "$ROOT/password")" "$record/default" || { echo login failed; exit 24; }
	stat -c %a "$record/default" >"$ROOT/mode"
	mkdir -p "$session/device/target2:0:0/2:0:0:0/block/sdz" "$connection"
	echo iqn.2026-01.dev.ingot:disk >"$session/targetname"
	echo LOGGED_IN >"$session/state"
	echo "$at" >"$connection/persistent_address"
	echo "${portal##*:}" >"$connection/persistent_port"
fi
if [ -n "$out" ]; then
	[ -d "$session" ] || exit 21
	rm -r "$session" "$connection"
fi
exit 0
`

// agent writes its arguments where a test reads them, and does what $ROOT/agent says.
const agent = `#!/bin/sh
echo "$*" >"$ROOT/arguments"
cat >"$ROOT/stdin"
echo >>"$ROOT/begun"
. "$ROOT/agent"
`

// host is a host with a writer, and the conductor that it asks.
type host struct {
	t    *testing.T
	root string

	mu     sync.Mutex
	lent   []rest.Export
	away   error
	alone  int // rounds in which the conductor was away
	failed []string
	deaf   int // reports that do not reach the conductor
	stop   context.CancelFunc
	ended  chan error
}

func (h *host) Exports(_ context.Context, initiator string) ([]rest.Export, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if initiator != "iqn.2004-10.com.example:writer" {
		h.t.Errorf("the writer is %q", initiator)
	}
	if h.away != nil {
		h.alone++
	}
	return h.lent, h.away
}

func (h *host) ExportFailed(_ context.Context, node, export, why string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := os.Stat(filepath.Join(h.root, "sys/class/iscsi_session/session1")); err != nil &&
		!strings.Contains(why, "log in") {
		h.t.Error("the failure is reported after the end of the session")
	}
	if h.deaf--; h.deaf >= 0 {
		return errors.New("away")
	}
	h.failed = append(h.failed, node+" "+export+" "+why)
	h.lent = nil
	return nil
}

// failures are what was reported.
func (h *host) failures() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed
}

// lend replaces what is lent.
func (h *host) lend(list ...rest.Export) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lent = list
}

func (h *host) read(name string) string {
	b, _ := os.ReadFile(filepath.Join(h.root, name))
	return string(b)
}

func (h *host) put(name, text string) {
	h.t.Helper()
	name = filepath.Join(h.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o755)); err != nil {
		h.t.Fatal(err)
	}
}

// until waits for something.
func (h *host) until(what string, is func() bool) {
	h.t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatalf("%s does not come; calls:\n%s", what, h.read("calls"))
		}
	}
}

func newHost(t *testing.T) *host {
	h := &host{t: t, root: t.TempDir()}
	h.put("bin/iscsiadm", iscsiadm)
	h.put("bin/ingot-agent", agent)
	h.put("agent", "exit 0\n")
	h.put("password", "p-1")
	h.put("etc/iscsi/initiatorname.iscsi", "## made by test\nInitiatorName=iqn.2004-10.com.example:writer\n")
	t.Setenv("ROOT", h.root)
	t.Setenv("PATH", filepath.Join(h.root, "bin")+":"+os.Getenv("PATH"))
	return h
}

// begin starts a writer; the end of the test stops it.
func (h *host) begin() {
	ctx, stop := context.WithCancel(h.t.Context())
	h.stop, h.ended = stop, make(chan error, 1)
	go func() {
		h.ended <- Run(ctx, Options{Conductor: h, Agent: "ingot-agent", Root: h.root, Every: 5 * time.Millisecond,
			Patience: 50 * time.Millisecond})
	}()
	h.t.Cleanup(func() { h.end() })
}

func (h *host) end() {
	h.stop()
	select {
	case err := <-h.ended:
		if err != nil {
			h.t.Error(err)
		}
		h.ended <- nil
	case <-time.After(time.Minute):
		h.t.Fatal("the writer does not end")
	}
}

// clean reports whether neither session nor record is left.
func (h *host) clean() bool {
	records, _ := filepath.Glob(filepath.Join(h.root, "etc/iscsi/nodes/*/*"))
	sessions, _ := filepath.Glob(filepath.Join(h.root, "sys/class/*/*1*"))
	return len(records)+len(sessions) == 0
}

func disk(id, portal string) rest.Export {
	return rest.Export{ID: id, NodeUUID: "node-" + id, Portal: portal, Target: steparg.ExportTarget,
		InitiatorName: "iqn.2004-10.com.example:writer", User: "ingot", Password: "p-1",
		Image: map[string]any{"image_source": "http://user:secret@images/x"}}
}

func (h *host) begun() int { return strings.Count(h.read("begun"), "\n") }

// TestDiskIsWrittenOnce: the session ends with the writing, and the disk is not written again while it is still lent.
// Neither password is on a command line.
func TestDiskIsWrittenOnce(t *testing.T) {
	h := newHost(t)
	h.lend(disk("a", "192.0.2.50:3260"))
	h.begin()
	h.until("the end of the session", func() bool {
		return strings.Contains(h.read("calls"), "--op delete") && h.clean()
	})
	calls := h.read("calls")
	h.lend(disk("a", "192.0.2.50:3260"), disk("b", "192.0.2.51:3260"))
	h.until("the second disk", func() bool { return strings.Count(h.read("calls"), "--op delete") == 2 })
	if n := h.begun(); n != 2 {
		t.Errorf("%d disks were written, want 2", n)
	}
	if got := h.read("arguments"); got != "write --arguments - --disk /dev/sdz --yes --quiet --json\n" {
		t.Errorf("ingot-agent was given %q", got)
	}
	var image map[string]any
	if err := json.Unmarshal([]byte(h.read("stdin")), &image); err != nil || image["image_source"] == nil {
		t.Errorf("the image is %v, %v", image, err)
	}
	if strings.Contains(calls+h.read("arguments"), "p-1") || strings.Contains(h.read("arguments"), "secret") {
		t.Error("a password is on a command line")
	}
	if got := h.read("mode"); got != "600\n" {
		t.Errorf("the record has mode %s", got)
	}
	if got := h.failures(); len(got) > 0 {
		t.Errorf("failures: %q", got)
	}
}

// TestFailureIsReported: the conductor hears what ingot-agent says, and then the disk is not tried again.
func TestFailureIsReported(t *testing.T) {
	h := newHost(t)
	h.deaf = 1
	h.put("agent", "echo 'ingot-agent: the digest is wrong' >&2; exit 1\n")
	h.lend(disk("a", "192.0.2.50:3260"))
	h.begin()
	h.until("the report", func() bool { return len(h.failures()) > 0 })
	h.until("the end of the session", h.clean)
	if got := h.failures(); got[0] != "node-a a the digest is wrong" || h.begun() != 2 {
		t.Errorf("reported %q after %d tries", got, h.begun())
	}
}

// TestRefusedHost: a host that can't log in tries again for a while, and then says so.
func TestRefusedHost(t *testing.T) {
	h := newHost(t)
	h.put("password", "another")
	h.lend(disk("a", "192.0.2.50:3260"))
	h.begin()
	h.until("the report", func() bool { return len(h.failures()) > 0 })
	h.until("the end of the record", h.clean)
	if got := h.failures(); !strings.Contains(got[0], "can't log in to the disk: iscsiadm --login") || h.begun() != 0 ||
		strings.Count(h.read("calls"), "--login") < 2 {
		t.Errorf("reported %q; calls:\n%s", got, h.read("calls"))
	}
}

// TestLostSession: a machine that is started anew lends its disk again, and then it is written.
func TestLostSession(t *testing.T) {
	h := newHost(t)
	h.put("agent", `if [ ! -e "$ROOT/once" ]; then
	touch "$ROOT/once"; echo FAILED >"$ROOT/sys/class/iscsi_session/session1/state"; exit 1
fi`)
	h.lend(disk("a", "192.0.2.50:3260"))
	h.begin()
	h.until("the second try", func() bool { return h.begun() == 2 && h.clean() })
	if got := h.failures(); len(got) > 0 {
		t.Errorf("failures: %q", got)
	}
}

// TestLentNoLonger: what is being written ends with the deployment; that the conductor is away does not end it.
func TestLentNoLonger(t *testing.T) {
	h := newHost(t)
	h.put("agent", "exec sleep 1000\n")
	h.lend(disk("a", "192.0.2.50:3260"))
	h.begin()
	h.until("the writing", func() bool { return h.begun() == 1 })
	h.mu.Lock()
	h.away = errors.New("away")
	h.mu.Unlock()
	h.until("rounds without the conductor", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.alone > 3
	})
	if h.begun() != 1 || h.clean() {
		t.Error("the writing ended with the conductor")
	}
	h.mu.Lock()
	h.lent, h.away = nil, nil
	h.mu.Unlock()
	h.until("the end of the session", h.clean)
	if got := h.failures(); len(got) > 0 {
		t.Errorf("failures: %q", got)
	}
}

// TestWriterThatDied: the next one goes on with the session of a disk that is lent, and ends that of one that is not. A
// record without a session has a password, and is deleted.
func TestWriterThatDied(t *testing.T) {
	for _, lent := range []bool{true, false} {
		h := newHost(t)
		h.put("password", "of another time")
		session := "sys/class/iscsi_session/session1/"
		h.put(session+"targetname", steparg.ExportTarget+"\n")
		h.put(session+"state", "LOGGED_IN\n")
		h.put(session+"device/target2:0:0/2:0:0:0/block/sdz/size", "1\n")
		h.put("sys/class/iscsi_connection/connection1:0/persistent_address", "192.0.2.50\n")
		h.put("sys/class/iscsi_connection/connection1:0/persistent_port", "3260\n")
		for _, at := range []string{"192.0.2.50", "192.0.2.99", "fd00::9"} {
			h.put("etc/iscsi/nodes/"+steparg.ExportTarget+"/"+at+",3260,1/default", "# BEGIN RECORD\n")
		}
		if lent {
			h.lend(disk("a", "192.0.2.50:3260"))
		}
		h.begin()
		h.until("the end of the session", h.clean)
		want := 0
		if lent {
			want = 1
		}
		if h.begun() != want || strings.Contains(h.read("calls"), "--login") || len(h.failures()) > 0 {
			t.Errorf("lent %v: %d disks written, failures %q, calls:\n%s", lent, h.begun(), h.failures(), h.read("calls"))
		}
		h.end()
	}
}

// TestStoppedWriter leaves nothing behind.
func TestStoppedWriter(t *testing.T) {
	h := newHost(t)
	h.put("agent", "exec sleep 1000\n")
	h.lend(disk("a", "192.0.2.50:3260"))
	h.begin()
	h.until("the writing", func() bool { return h.begun() == 1 })
	if err := Run(t.Context(), Options{Agent: "ingot-agent", Root: h.root}); err == nil ||
		!strings.Contains(err.Error(), "another ingot writer") {
		t.Errorf("a second one at the same host: %v", err)
	}
	h.end()
	if !h.clean() {
		t.Error("a session is left")
	}
	if err := Run(t.Context(), Options{Agent: "ingot-agent", Root: t.TempDir()}); err == nil ||
		!strings.Contains(err.Error(), "install open-iscsi") {
		t.Errorf("without open-iscsi: %v", err)
	}
}
