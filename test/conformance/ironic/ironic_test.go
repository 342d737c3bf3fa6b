package ironic

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/port"
)

// Programs that do as much as Start looks at. Each writes its number to the folder "pids" beside it; most serve until
// they are ended.
const (
	begins = `#!/usr/bin/python3
import os, sys, time
here = os.path.dirname(os.path.realpath(__file__))
open(os.path.join(here, "pids", str(os.getpid())), "w").close()
`
	// forks leaves a child, as ironic-api does.
	forks = begins + `
if os.fork() == 0:
    open(os.path.join(here, "pids", str(os.getpid())), "w").close()
    time.sleep(600)
`
	serves = forks + `
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
address = [l.split("=" if "=" in l else ": ")[1].strip() for l in open(sys.argv[2]) if l.startswith("port =") or l.startswith("  listen: ")][0].strip('"')
http.server.HTTPServer(("127.0.0.1", int(address.split(":")[-1])), Handler).serve_forever()
`
	listens = begins + `
import socket
s = socket.socket(socket.AF_UNIX)
s.bind([a.split("=")[1] for a in sys.argv if a.startswith("--socket=")][0])
s.listen()
time.sleep(600)
`
	done    = begins
	fails   = begins + `sys.exit("there is no room in the yard")` + "\n"
	hangs   = forks + "time.sleep(600)\n"
	started = forks + "print('Successfully started conductor with hostname x.', flush=True)\ntime.sleep(600)\n"
)

// fakes are programs that start well, but for those named.
func fakes(t *testing.T, other map[string]string) Options {
	t.Helper()
	kit.NeedFiles(t, "python3", debian.Python)
	root := t.TempDir()
	for name, text := range map[string]string{"mariadbd": listens, "ironic-dbsync": done, "ironic-conductor": started,
		"ironic-api": serves, "ingotd": serves} {
		if o := other[name]; o != "" {
			text = o
		}
		dir := map[string]string{"mariadbd": "usr/sbin"}[name]
		if dir == "" {
			dir = "usr/bin"
		}
		if err := os.MkdirAll(filepath.Join(root, dir, "pids"), 0o755); err != nil {
			t.Fatal(err)
		}
		kit.WriteProgram(t, filepath.Join(root, dir, name), text)
	}
	return Options{Dir: filepath.Join(root, "d"), Binary: filepath.Join(root, "usr/bin/ingotd"),
		patience: 20 * time.Second, programs: debian.Tree{Root: root}}
}

// nothingLeft holds that the folder and all processes are gone, and that there were any.
func nothingLeft(t *testing.T, o Options, processes int) {
	t.Helper()
	kit.Eventually(t, 10*time.Second, "the data are removed", func() bool {
		_, err := os.Stat(o.Dir)
		return errors.Is(err, os.ErrNotExist)
	})
	files, err := filepath.Glob(filepath.Join(o.programs.Root, "usr/*bin/pids/*"))
	if err != nil || len(files) < processes {
		t.Fatalf("%d processes ran (%v), want %d", len(files), err, processes)
	}
	for _, f := range files {
		// The line is empty of a process that waits to be reaped, as a child whose parent was killed, too, does.
		kit.Eventually(t, 10*time.Second, "process "+f+" is gone", func() bool {
			line, err := os.ReadFile(filepath.Join("/proc", filepath.Base(f), "cmdline"))
			return err != nil || !strings.Contains(string(line), o.programs.Root)
		})
	}
}

// TestFaultsLeaveNothingRunning starts programs that do not start: the error says which, and what it printed last.
func TestFaultsLeaveNothingRunning(t *testing.T) {
	for name, c := range map[string]struct {
		other     map[string]string
		patience  time.Duration
		processes int
		want      []string
	}{
		"MariaDB ends": {map[string]string{"mariadbd": fails}, 0, 1,
			[]string{"MariaDB ended when it should serve: exit status 1", "no room in the yard"}},
		"MariaDB is silent": {map[string]string{"mariadbd": hangs}, time.Second, 1,
			[]string{"MariaDB does not answer: it took too long to start", "printed nothing"}},
		"no tables": {map[string]string{"ironic-dbsync": fails}, 0, 2,
			[]string{"run ironic-dbsync: exit status 1", "no room in the yard"}},
		"the conductor ends": {map[string]string{"ironic-conductor": fails}, 0, 4,
			[]string{"ironic-conductor ended when it should serve: exit status 1", "no room in the yard"}},
		"the conductor waits": {map[string]string{"ironic-conductor": hangs}, 2 * time.Second, 4,
			[]string{"ironic-conductor does not answer", "it has not said that it started"}},
		"the API ends": {map[string]string{"ironic-api": fails}, 0, 3,
			[]string{"ironic-api ended when it should serve: exit status 1", "no room in the yard"}},
		"the API ends well": {map[string]string{"ironic-api": done}, 0, 3,
			[]string{"ironic-api ended when it should serve: exit status 0"}},
		"ingotd ends": {map[string]string{"ingotd": fails}, 0, 6,
			[]string{"ingotd ended when it should serve: exit status 1", "no room in the yard"}},
		"a program is missing": {map[string]string{"mariadbd": "#!/no/such/program\n"}, 0, 0,
			[]string{"start MariaDB", "no such file"}},
		"ingotd is not running": {map[string]string{"ingotd": hangs}, 2 * time.Second, 6,
			[]string{"ingotd does not answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := fakes(t, c.other)
			if c.patience > 0 {
				o.patience = c.patience
			}
			p, err := Start(t.Context(), o)
			if err == nil {
				t.Fatal("it started", p.Stop())
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error is %q, want %q in it", err, w)
				}
			}
			nothingLeft(t, o, c.processes)
		})
	}
}

// TestInterrupt holds that an interrupt ends all, while it starts and later.
func TestInterrupt(t *testing.T) {
	t.Run("while it starts", func(t *testing.T) {
		o := fakes(t, map[string]string{"ironic-conductor": hangs})
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, stop)
		if _, err := Start(ctx, o); !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted: %v", err)
		}
		nothingLeft(t, o, 1)
	})
	t.Run("later", func(t *testing.T) {
		o := fakes(t, nil)
		ctx, stop := context.WithCancel(t.Context())
		p, err := Start(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		stop()
		nothingLeft(t, o, 7)
		if err := errors.Join(p.Stop(), p.Stop()); err != nil {
			t.Errorf("stop it again: %v", err)
		}
		if err := p.Reset(t.Context()); err == nil {
			t.Error("reset after the end: no error")
		}
	})
}

func TestOptionsThatCannotBe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	free, err := port.Free()
	if err != nil {
		t.Fatal(err)
	}
	taken, full := l.Addr().String(), t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "thesis"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Options{
		"listen for Ironic: something listens on " + taken + " already":   {IronicAddr: taken},
		"listen for ingotd: something listens on " + taken + " already":   {IngotAddr: taken, IronicAddr: free},
		"is not an address of loopback":                                   {IronicAddr: "0.0.0.0:0"},
		`authentication "magic": there are none, http_basic and keystone`: {Auth: "magic"},
		full + " is not empty":                                            {Dir: full},
		"is too long a name for MariaDB's socket": {
			Dir: filepath.Join(t.TempDir(), strings.Repeat("long", 30))},
		"make a folder for the data: mkdir " + full +
			"/thesis: not a direct": {Dir: filepath.Join(full, "thesis", "x")},
	} {
		p, err := Start(t.Context(), o)
		if err == nil {
			t.Fatal("it started", p.Stop())
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %q, want %q", err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(full, "thesis")); err != nil {
		t.Errorf("a folder that was not empty: %v", err)
	}
}

// TestNoPackages is a machine whose apt has no Ironic, or that has no apt.
func TestNoPackages(t *testing.T) {
	for name, c := range map[string]struct{ apt, want string }{
		"unknown": {"#!/bin/sh\necho 'E: Unable to locate package ironic-common' >&2\nexit 100\n",
			"was apt-get update run?): look up what ironic-common, mariadb-server-core, python3-keystone needs: apt-get: exit status 100: E: Unable to locate package ironic-common"},
		"no apt": {"", "programs of others are taken from Debian's packages"},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			if c.apt != "" {
				kit.WriteProgram(t, filepath.Join(bin, "apt-get"), c.apt)
			}
			t.Setenv("PATH", bin)
			t.Setenv("INGOT_CACHE", t.TempDir())
			dir := filepath.Join(t.TempDir(), "d")
			p, err := Start(t.Context(), Options{Dir: dir})
			if err == nil {
				t.Fatal("it started", p.Stop())
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %q, want %q in it", err, c.want)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the folder is left: %v", err)
			}
		})
	}
}

// ask sends a request as a role and decodes the answer.
func ask(t *testing.T, base string, r Role, method, path, body string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range r.Header {
		req.Header[k] = v
	}
	req.Header.Set("X-OpenStack-Ironic-API-Version", "1.82")
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(b, &out); err != nil && len(b) > 0 {
		t.Fatalf("%s %s: %v in %s", method, path, err, b)
	}
	return resp.StatusCode, out
}

// TestRealIronic starts, with INGOT_FULL, the real ones in every way to authenticate: both know the same roles, offer
// the same interfaces, and are empty again after a reset.
func TestRealIronic(t *testing.T) {
	if os.Getenv("INGOT_FULL") == "" {
		return
	}
	kit.NeedPrograms(t, "apt-get", "dpkg-deb", "ipmitool")
	for auth, may := range map[Auth]map[string]int{ // status of listing nodes; others 403
		None:      {"none": 200},
		HTTPBasic: {"admin": 200, "wrong-password": 401, "nobody": 401},
		Keystone: {"system-admin": 200, "system-member": 200, "system-reader": 200, "project-admin": 200,
			"project-member": 200, "project-reader": 200, "lessee-admin": 200, "lessee-member": 200,
			"lessee-reader": 200, "other-admin": 200, "service": 200, "bad-token": 401, "nobody": 401},
	} {
		t.Run(string(auth), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			p, err := Start(t.Context(),
				Options{Auth: auth, Dir: dir, Binary: made.Program(t, "ingotd"),
					Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.Stop(); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the folder is left: %v", err)
				}
				for _, url := range []string{p.Ironic, p.Ingot} {
					if _, err := http.Get(url); !errors.Is(err, syscall.ECONNREFUSED) {
						t.Errorf("after the end %s: %v", url, err)
					}
				}
			}()
			for _, r := range p.Roles {
				want := may[r.Name]
				if want == 0 {
					want = 403
				}
				for _, base := range []string{p.Ironic, p.Ingot} {
					if got, body := ask(t, base, r, "GET", "/v1/nodes", ""); got != want {
						t.Errorf("%s lists nodes of %s: %d %v, want %d", r.Name, base, got, body, want)
					}
				}
			}
			root := p.Roles[0]
			drivers := func(base string) map[string]any {
				_, body := ask(t, base, root, "GET", "/v1/drivers?detail=true", "")
				out := map[string]any{}
				list, _ := body["drivers"].([]any)
				for _, d := range list {
					d := d.(map[string]any)
					for k, v := range d {
						if l, ok := v.([]any); ok && strings.HasPrefix(k, "enabled_") {
							slices.SortFunc(l, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
							out[d["name"].(string)+" "+k] = l
						} else if strings.HasPrefix(k, "default_") {
							out[d["name"].(string)+" "+k] = v
						}
					}
				}
				return out
			}
			want := drivers(p.Ironic)
			if len(want) != 3*2*len(interfaces) {
				t.Errorf("Ironic's drivers have %d facts, want %d: %v", len(want), 3*2*len(interfaces), want)
			}
			// What Ironic's types have beyond Ingot's: an ipmi whose controller is left alone, and a pretended one of
			// manual-management.
			for key, only := range map[string]string{"ipmi enabled_management_interfaces": "noop",
				"manual-management enabled_management_interfaces": "fake"} {
				list, _ := want[key].([]any)
				want[key] = slices.DeleteFunc(list, func(name any) bool { return name == only })
			}
			if d := cmp.Diff(want, drivers(p.Ingot)); d != "" {
				t.Errorf("what nodes may have differs (-Ironic +ingotd):\n%s", d)
			}
			for _, base := range []string{p.Ironic, p.Ingot} {
				if got, body := ask(t, base, root, "POST", "/v1/nodes",
					`{"driver": "fake-hardware", "name": "n"}`); got != 201 {
					t.Errorf("a node for %s: %d %v", base, got, body)
				}
				if got, body := ask(t, base, root, "PUT", "/v1/nodes/n/states/provision",
					`{"target": "manage"}`); got != 202 {
					t.Errorf("manage the node of %s: %d %v", base, got, body)
				}
			}
			began := time.Now()
			if err := p.Reset(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Logf("reset in %v", time.Since(began).Round(time.Millisecond))
			for _, base := range []string{p.Ironic, p.Ingot} {
				if got, body := ask(t, base, root, "GET", "/v1/nodes", ""); got != 200 ||
					len(body["nodes"].([]any)) != 0 {
					t.Errorf("%s after a reset: %d %v", base, got, body)
				}
				if got, body := ask(t, base, root, "POST", "/v1/nodes",
					`{"driver": "fake-hardware", "name": "n"}`); got != 201 {
					t.Errorf("a node for %s after a reset: %d %v", base, got, body)
				}
			}
		})
	}
}
