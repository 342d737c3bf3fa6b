package attack

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// conductor is an ingotd that is started and killed again and again on one data directory, without authentication.
type conductor struct {
	*testing.T
	dir    string // its data directory
	addr   string
	agents string // where it listens for agents
	args   []string
	env    []string
	cmd    *exec.Cmd
	gone   chan struct{}
	log    *ingotd.Output
}

func newConductor(t *testing.T, args ...string) *conductor {
	c := &conductor{T: t, dir: filepath.Join(t.TempDir(), "data"), addr: kit.FreeAddr(t), agents: kit.FreeAddr(t)}
	c.args = append([]string{"--data-dir", c.dir, "--listen", c.addr, "--set", "agents.listen=" + c.agents, "--set",
		"agents.advertise=" + c.agents, "--set", "netboot.ramdisk_dir=" + filepath.Join(c.dir, "none")}, args...)
	t.Cleanup(func() { c.kill() })
	return c
}

// try starts the conductor and reports whether it serves; if not, the process has ended.
func (c *conductor) try(args ...string) bool {
	c.Helper()
	c.log = &ingotd.Output{}
	c.cmd = exec.Command(made.Program(c, "ingotd"), append(append([]string(nil), c.args...), args...)...)
	c.cmd.Env = append(os.Environ(), c.env...)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		c.Fatal(err)
	}
	cmd, gone := c.cmd, make(chan struct{})
	c.gone = gone
	go func() {
		cmd.Wait()
		close(gone)
	}()
	for began := time.Now(); ; {
		if resp, err := http.Get("http://" + c.addr + "/"); err == nil {
			resp.Body.Close()
			return true
		}
		select {
		case <-gone:
			return false
		case <-time.After(5 * time.Millisecond):
		}
		if time.Since(began) > 2*time.Minute {
			c.Fatalf("ingotd neither serves nor ends:\n%s", c.log)
		}
	}
}

// start starts one that has to serve.
func (c *conductor) start(args ...string) {
	c.Helper()
	if !c.try(args...) {
		c.Fatalf("ingotd does not serve:\n%s", c.log)
	}
}

// refuses fails the test unless a start ends by itself with these words.
func (c *conductor) refuses(want ...string) {
	c.Helper()
	if c.try() {
		c.kill()
		c.Errorf("ingotd serves, want a refusal with %q:\n%s", want, c.log)
		return
	}
	for _, w := range want {
		if !strings.Contains(c.log.String(), w) {
			c.Errorf("the refusal does not name %q:\n%s", w, c.log)
		}
	}
}

// kill leaves it no time for anything.
func (c *conductor) kill() {
	if c.cmd != nil {
		c.cmd.Process.Kill() // an error says that it has ended
		<-c.gone
	}
}

func (c *conductor) stop() {
	c.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		c.Fatal(err)
	}
	<-c.gone
	if !c.cmd.ProcessState.Success() {
		c.Errorf("ingotd ended with %v:\n%s", c.cmd.ProcessState, c.log)
	}
}

// command runs ingotd's command on the data directory, to its end.
func (c *conductor) command(name string, args ...string) (string, error) {
	cmd := exec.Command(made.Program(c, "ingotd"), append([]string{name, "--data-dir", c.dir}, args...)...)
	cmd.Env = append(os.Environ(), c.env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *conductor) must(name string, args ...string) string {
	c.Helper()
	out, err := c.command(name, args...)
	if err != nil {
		c.Fatalf("ingotd %s %q: %v\n%s", name, args, err, out)
	}
	return out
}

// ask sends a request and gives status, headers and body.
func (c *conductor) ask(method, path, body string) (int, http.Header, string) {
	c.Helper()
	r, err := http.NewRequestWithContext(c.Context(), method, "http://"+c.addr+path, strings.NewReader(body))
	if err != nil {
		c.Fatal(err)
	}
	r.Header.Set("X-OpenStack-Ironic-API-Version", "1.82")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		c.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		c.Fatal(err)
	}
	return resp.StatusCode, resp.Header, b.String()
}

func (c *conductor) want(status int, method, path, body string) string {
	c.Helper()
	got, _, out := c.ask(method, path, body)
	if got != status {
		c.Errorf("%s %s %.200s = %d %.1000s, want %d", method, path, body, got, out, status)
	}
	return out
}

func (c *conductor) file(name string) string { return filepath.Join(c.dir, name) }

// nodes makes so many, each with a password and some filling.
func (c *conductor) nodes(from, to int) {
	c.Helper()
	for i := from; i < to; i++ {
		c.want(201, "POST", "/v1/nodes",
			fmt.Sprintf(`{"driver":"fake-hardware","name":"n%d","driver_info":{"some_password":"pw%d"},"extra":{"filling":%q}}`, i, i, strings.Repeat("x", 30000)))
	}
}

// overwrite writes garbage over all pages of the database but the first ones.
func (c *conductor) overwrite() {
	c.Helper()
	f, err := os.OpenFile(c.file("ingot.db"), os.O_RDWR, 0)
	if err != nil {
		c.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		c.Fatal(err)
	}
	const good = 30 * 4096
	if info.Size() < 2*good {
		c.Fatalf("the database has only %d bytes", info.Size())
	}
	if _, err := f.WriteAt(bytes.Repeat([]byte{0xa5}, int(info.Size()-good)), good); err != nil {
		c.Fatal(err)
	}
}

// TestDamagedDatabase: with a database that is damaged, lost, emptied or another's, ingotd refuses to start with an
// error that names it and the remedy, and the remedy works.
func TestDamagedDatabase(t *testing.T) {
	c := newConductor(t)
	c.start()
	c.nodes(0, 30)
	backup := filepath.Join(t.TempDir(), "backup")
	c.must("backup", backup)
	c.stop()
	other := newConductor(t)
	other.start()
	other.stop()

	for _, row := range []struct {
		name   string
		damage func() error
		want   string
	}{
		{"damaged page", func() error { c.overwrite(); return nil }, "is damaged"},
		{"empty file", func() error { return os.Truncate(c.file("ingot.db"), 0) }, "is empty"},
		{"lost file", func() error { return os.Remove(c.file("ingot.db")) }, "is missing"},
		{"foreign database", func() error { return copyOver(other.file("ingot.db"), c.file("ingot.db")) },
			"of another installation"},
		{"foreign key", func() error {
			if err := copyOver(c.file("key"), c.file("key.kept")); err != nil {
				return err
			}
			return copyOver(other.file("key"), c.file("key"))
		}, "the key does not fit"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c.T = t
			defer func(o *testing.T) { c.T = o }(c.T)
			if err := row.damage(); err != nil {
				t.Fatal(err)
			}
			c.refuses(row.want, c.file("ingot.db"), "ingotd restore", "--new-installation")
			key := c.file("key")
			if _, err := os.Stat(c.file("key.kept")); err == nil {
				key = filepath.Join(t.TempDir(), "key")
				if err := os.Rename(c.file("key.kept"), key); err != nil {
					t.Fatal(err)
				}
			}
			c.must("restore", "--key", key, backup)
			c.start()
			if out := c.want(200, "GET", "/v1/nodes", ""); strings.Count(out, `"uuid"`) != 30 {
				t.Errorf("after the restore there are %d nodes, want 30", strings.Count(out, `"uuid"`))
			}
			c.stop()
		})
	}
	c.T = t
	if _, err := os.Stat(c.file("ingot.db-wal")); err == nil {
		t.Error("an ended ingotd left its journal")
	}
	c.overwrite()
	c.start("--new-installation")
	if out := c.want(200, "GET", "/v1/nodes", ""); strings.Contains(out, `"uuid"`) {
		t.Errorf("a new installation has nodes: %s", out)
	}
	c.kill()
	if c.try("--new-installation") || !strings.Contains(c.log.String(), "is whole") {
		t.Errorf("another new installation over a good one:\n%s", c.log)
	}
	if err := os.Remove(c.file("ingot.db")); err != nil {
		t.Fatal(err)
	}
	c.refuses("is missing")
	c.start("--set", "store.ephemeral=true")
	c.stop()
}

func copyOver(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}

// TestPageErrorAtRunTime: a page that turns out to be damaged while ingotd serves stops all changes, and callers, the
// health check, and the log say so. The process stays, because agents send their results again until they are stored.
func TestPageErrorAtRunTime(t *testing.T) {
	c := newConductor(t)
	c.start()
	c.nodes(0, 40)
	c.stop()
	c.start() // nothing is in memory any more
	c.want(200, "GET", "/ingot/v1/health", "")
	c.overwrite()
	failed := 0
	for i := range 40 {
		status, _, out := c.ask("GET", fmt.Sprintf("/v1/nodes/n%d", i), "")
		if status == 503 && strings.Contains(out, "database is damaged") {
			failed++
		} else if status != 200 {
			t.Errorf("GET of a node on a damaged database = %d %s", status, out)
		}
	}
	if failed == 0 {
		t.Fatal("all nodes can be read: the test does not work")
	}
	for _, row := range []struct{ method, path, body string }{
		{"GET", "/ingot/v1/health", ""},
		{"POST", "/v1/nodes", `{"driver":"fake-hardware"}`},
		{"PUT", "/v1/nodes/n0/states/power", `{"target":"power on"}`},
		{"PUT", "/v1/nodes/n0/states/provision", `{"target":"manage"}`},
	} {
		if out := c.want(503, row.method, row.path, row.body); !strings.Contains(out, "database is damaged") {
			t.Errorf("%s %s on a damaged database = %s", row.method, row.path, out)
		}
	}
	if n := strings.Count(c.log.String(), "level=ERROR"); n != 1 ||
		!strings.Contains(c.log.String(), "ingotd restore") {
		t.Errorf("the log has %d errors, want one that names what helps:\n%s", n, c.log)
	}
	c.stop()
	c.refuses("is damaged")
}

// TestKeysOpenToOthers: a key that others may read is refused, with the command that repairs it.
func TestKeysOpenToOthers(t *testing.T) {
	c := newConductor(t)
	c.start()
	c.stop()
	for _, name := range []string{"key", "ca.key", "erasure.key"} {
		for _, mode := range []os.FileMode{0o644, 0o604, 0o660} {
			if err := os.Chmod(c.file(name), mode); err != nil {
				t.Fatal(err)
			}
			c.refuses("chmod 600 " + c.file(name))
		}
		if err := os.Chmod(c.file(name), 0o640); err != nil { // of the service's own group
			t.Fatal(err)
		}
		c.start()
		c.kill()
	}
}

// TestFullDisk: on a full disk changes are refused with 503 and a time to come again, reads go on, the log has a line
// that says what to do, and nothing that was answered is lost.
func TestFullDisk(t *testing.T) {
	kit.NeedRoot(t)
	c := newConductor(t)
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("ingot", c.dir, "tmpfs", 0, "size=24m,mode=0700"); err != nil {
		t.Fatalf("mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		c.kill()
		if err := unix.Unmount(c.dir, 0); err != nil {
			t.Error(err)
		}
	})
	c.start()
	c.nodes(0, 3)
	filler, err := os.Create(c.file("filler"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = filler.Write(make([]byte, 64<<10))
	}
	if err := filler.Close(); err != nil {
		t.Fatal(err)
	}
	made := 3
	refused := 0
	for ; refused == 0 && made < 2000; made++ {
		body := fmt.Sprintf(`{"driver":"fake-hardware","name":"n%d","extra":{"filling":%q}}`, made,
			strings.Repeat("x", 60000))
		status, header, out := c.ask("POST", "/v1/nodes", body)
		if status == 201 {
			continue
		}
		refused++
		if status != 503 || header.Get("Retry-After") == "" ||
			!strings.Contains(out, "disk of the server's database is full") {
			t.Errorf("a change on a full disk = %d, Retry-After %q: %s", status, header.Get("Retry-After"), out)
		}
		made--
	}
	if refused == 0 {
		t.Fatal("nothing was refused: the test does not work")
	}
	for range 20 {
		c.ask("POST", "/v1/nodes",
			fmt.Sprintf(`{"driver":"fake-hardware","extra":{"filling":%q}}`, strings.Repeat("x", 60000)))
	}
	if out := c.want(200, "GET", "/v1/nodes", ""); strings.Count(out, `"uuid"`) < made {
		t.Errorf("%d nodes can be read on a full disk, want %d", strings.Count(out, `"uuid"`), made)
	}
	c.want(200, "GET", "/ingot/v1/health", "")
	if n := strings.Count(c.log.String(), "changes are refused with 503, and agents keep"); n != 1 {
		t.Errorf("%d lines about the full disk, want one:\n%.3000s", n, c.log)
	}
	if err := os.Remove(c.file("filler")); err != nil {
		t.Fatal(err)
	}
	c.want(201, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"after"}`)
	c.kill()
	c.start()
	out := c.want(200, "GET", "/v1/nodes", "")
	for i := range made {
		if !strings.Contains(out, fmt.Sprintf(`"n%d"`, i)) {
			t.Errorf("node n%d was answered and is lost", i)
		}
	}
}

// TestNoFileDescriptors: connections that can't be accepted wait, the log names the shortage once, and service
// continues when descriptors are available again.
func TestNoFileDescriptors(t *testing.T) {
	c := newConductor(t)
	c.start()
	c.nodes(0, 1)
	var was unix.Rlimit
	if err := unix.Prlimit(c.cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	if was.Cur < was.Max {
		t.Errorf("ingotd may open %d files, though it could raise that to %d", was.Cur, was.Max)
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: uint64(len(open)) + 5, Max: was.Max}
	if err := unix.Prlimit(c.cmd.Process.Pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	var held []net.Conn
	for _, addr := range []string{c.agents, c.addr} { // the first takes all that there are
		for range 10 {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, conn)
		}
	}
	const line = "short of file descriptors"
	ingotd.Wait(t, "the log reports it", func() bool { return strings.Contains(c.log.String(), line) })
	for _, conn := range held {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	ingotd.Wait(t, "it answers again", func() bool {
		status, _, _ := c.ask("GET", "/v1/nodes/n0", "")
		return status == 200
	})
	c.want(200, "PATCH", "/v1/nodes/n0", `[{"op":"add","path":"/extra/a","value":1}]`)
	agent, err := tls.Dial("tcp", c.agents, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatalf("agents are not answered again: %v", err)
	}
	if err := agent.Close(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(c.log.String(), line); n != 1 || !strings.Contains(c.log.String(), "LimitNOFILE") ||
		strings.Count(c.log.String(), "level=ERROR") != 1 {
		t.Errorf("%d lines about descriptors, want one error that says what to do:\n%s", n, c.log)
	}
}

// TestDoctor: it finds an ingotd that works well, and is of no harm to it; and it ends with an error when there is a
// fault.
func TestDoctor(t *testing.T) {
	c := newConductor(t)
	c.start()
	c.nodes(0, 5)
	var findings []struct{ Check, Status, Detail, Remedy string }
	set := []string{"--set", "api.listen=" + c.addr, "--set", "agents.advertise=127.0.0.1:1"}
	if err := json.Unmarshal([]byte(c.must("doctor", append(set, "--json")...)), &findings); err != nil ||
		len(findings) < 12 {
		t.Errorf("doctor --json: %v, %+v", err, findings)
	}
	for _, f := range findings {
		if f.Status == "fault" {
			t.Errorf("a good ingotd has a fault: %+v", f)
		}
	}
	c.nodes(5, 10)
	c.stop()
	c.overwrite()
	out, err := c.command("doctor", set...)
	if err == nil || !strings.Contains(out, "FAULT    database") || !strings.Contains(out, "to do: ") ||
		!strings.Contains(out, "OK       CA") {
		t.Errorf("doctor on a damaged database: %v\n%s", err, out)
	}
}

// TestKeyRotationKilled: `ingotd key rotate` that is killed at any moment leaves a database that the next start opens,
// with every secret in it.
func TestKeyRotationKilled(t *testing.T) {
	c := newConductor(t)
	c.start()
	c.nodes(0, 40)
	c.stop()
	rounds := 4
	if os.Getenv("INGOT_FULL") != "" {
		rounds = 40
	}
	for i := range rounds {
		cmd := exec.Command(made.Program(c, "ingotd"), "key", "rotate", "--data-dir", c.dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i*160/rounds) * time.Millisecond)
		cmd.Process.Kill() // an error says that it has ended
		cmd.Wait()
		c.start()
		if out := c.want(200, "GET", "/v1/nodes/detail", ""); strings.Count(out, `"some_password"`) != 40 {
			t.Errorf("after a rotation that was killed %d nodes can be read", strings.Count(out, `"some_password"`))
		}
		c.kill()
	}
	before, err := os.ReadFile(c.file("key"))
	if err != nil {
		t.Fatal(err)
	}
	c.must("key", "rotate")
	after, err := os.ReadFile(c.file("key"))
	if err != nil || bytes.Equal(before, after) {
		t.Errorf("the key after a rotation is the one before, or %v", err)
	}
	c.start()
	if out, err := c.command("key", "rotate"); err == nil || !strings.Contains(out, "another ingotd uses") {
		t.Errorf("a rotation beside a running ingotd: %v\n%s", err, out)
	}
}

// TestCARotation: after a rotation without overlap the fingerprint is another at once, with overlap the old one stays
// and the next is announced; either can be killed, and the conductor starts.
func TestCARotation(t *testing.T) {
	c := newConductor(t)
	fingerprint := func() string {
		t.Helper()
		c.start()
		defer c.kill()
		ingotd.Wait(t, "it is up", func() bool { return strings.Contains(c.log.String(), " ca=") })
		_, rest, _ := strings.Cut(c.log.String(), " ca=")
		return strings.Fields(rest + " ")[0]
	}
	c.start()
	c.kill()
	first := fingerprint()
	out := c.must("ca", "rotate")
	if fp := fingerprint(); fp != first || !strings.Contains(c.log.String(), "being rotated") ||
		strings.Contains(out, first) {
		t.Errorf("in the overlap the CA is %s, was %s:\n%s", fp, first, out)
	}
	for i := range 4 {
		before := fingerprint()
		cmd := exec.Command(made.Program(c, "ingotd"), "ca", "rotate", "--no-overlap", "--data-dir", c.dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i*15) * time.Millisecond)
		cmd.Process.Kill() // an error says that it has ended
		cmd.Wait()
		if fp := fingerprint(); len(fp) != 64 {
			t.Errorf("after a rotation that was killed the CA is %q, was %s", fp, before)
		}
	}
	before := fingerprint()
	out = c.must("ca", "rotate", "--no-overlap")
	if fp := fingerprint(); fp == before || !strings.Contains(out, fp) {
		t.Errorf("after a rotation without overlap the CA is %s, was %s:\n%s", fp, before, out)
	}
	c.start()
	if out := c.want(200, "GET", "/ingot/v1/certificates", ""); !strings.Contains(out, `"the CA","not_after":"20`) {
		t.Errorf("certificates: %s", out)
	}
}
