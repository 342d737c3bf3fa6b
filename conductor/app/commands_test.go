//go:build !race

package app_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/access/keystonetest"
	"github.com/ingot-metal/ingot/test/kit/described"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// devServer is an `ingotd dev` process.
type devServer struct {
	t    *testing.T
	url  string
	tmp  string // its temporary folder
	out  *buffer
	cmd  *exec.Cmd
	gone chan error

	described described.Server // its answers to ask are held against what it says of itself
}

// startDev starts `ingotd dev` and waits until it says how to use it.
func startDev(t *testing.T, env []string, args ...string) *devServer {
	t.Helper()
	bin := made.Program(t, "ingotd")
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	d := &devServer{t: t, url: "http://" + addr, described: described.Server{URL: "http://" + addr}, tmp: t.TempDir(),
		out: &buffer{}, gone: make(chan error, 1)}
	d.cmd = exec.Command(bin, append([]string{"dev", "--listen", addr}, args...)...)
	d.cmd.Env = append(append(os.Environ(), "TMPDIR="+d.tmp), env...)
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	began := time.Now()
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { d.gone <- d.cmd.Wait() }()
	t.Cleanup(func() { d.cmd.Process.Kill() })
	for !strings.Contains(d.out.String(), "node list") {
		select {
		case err := <-d.gone:
			t.Fatalf("ingotd dev ended: %v\n%s", err, d.out)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("ingotd dev is not ready:\n%s", d.out)
		}
	}
	t.Logf("ready after %v", time.Since(began).Round(time.Millisecond))
	return d
}

// ask sends a request and returns the status and the decoded answer.
func (d *devServer) ask(method, path, body string, headers ...string) (int, map[string]any) {
	d.t.Helper()
	r, err := http.NewRequestWithContext(d.t.Context(), method, d.url+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	r.Header.Set("X-OpenStack-Ironic-API-Version", "1.82")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	if err := d.described.Check(r, []byte(body), resp, b); err != nil {
		d.t.Error(err)
	}
	var out map[string]any
	if len(b) > 0 {
		if err := json.Unmarshal(b, &out); err != nil {
			d.t.Fatalf("%s %s = %s: %v", method, path, b, err)
		}
	}
	return resp.StatusCode, out
}

// stop ends it as Ctrl-C does, and makes sure that nothing is left.
func (d *devServer) stop() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGINT); err != nil {
		d.t.Fatal(err)
	}
	if err := <-d.gone; err != nil {
		d.t.Errorf("ingotd dev ended with %v\n%s", err, d.out)
	}
	if left, err := os.ReadDir(d.tmp); err != nil || len(left) > 0 {
		d.t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestDev(t *testing.T) {
	// the environment of the machine's own conductor is not for it
	d := startDev(t, []string{"INGOT_API_LISTEN=192.0.2.1:1"})
	for _, line := range []string{"export OS_AUTH_TYPE=none", "export OS_ENDPOINT=" + d.url} {
		if !strings.Contains(d.out.String(), line) {
			t.Errorf("it does not say %q:\n%s", line, d.out)
		}
	}
	code, n := d.ask("POST", "/v1/nodes", `{"driver":"fake-hardware","name":"first"}`)
	if code != http.StatusCreated || n["network_interface"] != "noop" || n["deploy_interface"] != "fake" {
		t.Fatalf("create = %d %v", code, n)
	}
	_, types := d.ask("GET", "/v1/drivers", "")
	names := fmt.Sprint(types["drivers"])
	for _, name := range []string{"fake-hardware", "ipmi", "manual-management"} {
		if !strings.Contains(names, name) {
			t.Errorf("hardware type %s is not listed", name)
		}
	}
	for verb, state := range map[string]string{"manage": "manageable"} {
		if code, out := d.ask("PUT", "/v1/nodes/first/states/provision",
			`{"target":"`+verb+`"}`); code != http.StatusAccepted {
			t.Fatalf("%s = %d %v", verb, code, out)
		}
		for i := 0; ; i++ {
			_, n := d.ask("GET", "/v1/nodes/first", "")
			if n["provision_state"] == state {
				break
			}
			if i > 1000 {
				t.Fatalf("the node stays %v", n["provision_state"])
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	// The port is taken now.
	bin := made.Program(t, "ingotd")
	out, err := exec.Command(bin, "dev", "--listen", strings.TrimPrefix(d.url, "http://")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "something listens on") {
		t.Errorf("a second one: %v\n%s", err, out)
	}
	d.stop()
}

func TestDevBasic(t *testing.T) {
	d := startDev(t, nil, "--auth", "http_basic")
	m := regexp.MustCompile(`OS_USERNAME=(\S+) OS_PASSWORD=(\S+)`).FindStringSubmatch(d.out.String())
	if m == nil {
		t.Fatalf("it does not tell user and password:\n%s", d.out)
	}
	if code, _ := d.ask("GET", "/v1/nodes", ""); code != http.StatusUnauthorized {
		t.Errorf("without a password: %d", code)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.SetBasicAuth(m[1], m[2])
	if code, out := d.ask("GET", "/v1/nodes", "", "Authorization",
		r.Header.Get("Authorization")); code != http.StatusOK {
		t.Errorf("with the password: %d %v", code, out)
	}
	d.stop()
}

func TestDevKeystone(t *testing.T) {
	bin := made.Program(t, "ingotd")
	cmd := exec.Command(bin, "dev", "--auth", "keystone", "--listen", fmt.Sprintf("127.0.0.1:%d", freePort(t)))
	cmd.Env = []string{"TMPDIR=" + t.TempDir(), "OS_USERNAME=x"}
	if out, err := cmd.CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "OS_AUTH_URL and OS_PASSWORD are not set") {
		t.Errorf("without a Keystone: %v\n%s", err, out)
	}
	ks := keystonetest.Start(t)
	ks.Project("service")
	ks.AddUser("ironic", "pw")
	ks.Grant("ironic", "service", "admin", "service")
	ks.AddUser("boss", "pw")
	ks.Grant("boss", "", "admin")
	d := startDev(t,
		[]string{"OS_AUTH_URL=" + ks.URL, "OS_USERNAME=ironic", "OS_PASSWORD=pw", "OS_PROJECT_NAME=service"}, "--auth",
		"keystone")
	if code, _ := d.ask("GET", "/v1/nodes", ""); code != http.StatusUnauthorized {
		t.Errorf("without a token: %d", code)
	}
	if code, out := d.ask("GET", "/v1/nodes", "", "X-Auth-Token", ks.Token("boss", "")); code != http.StatusOK {
		t.Errorf("with a token: %d %v", code, out)
	}
	d.stop()
}

// runCommand runs ingotd with arguments to its end.
func runCommand(t *testing.T, args ...string) (string, error) {
	t.Helper()
	bin := made.Program(t, "ingotd")
	cmd := exec.Command(bin, args...)
	// of the user who runs the test
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "OS_") })
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestImportFromIngot: what one ingotd shows, another shows after an import, and again after a backup and a restore.
func TestImportFromIngot(t *testing.T) {
	d := startDev(t, nil)
	for i := range 5 {
		body := fmt.Sprintf(
			`{"driver":"fake-hardware","name":"n%d","resource_class":"c%d","properties":{"cpus":%d},"extra":{"rack":"r"},"boot_interface":"pxe"}`, i, i, i)
		code, n := d.ask("POST", "/v1/nodes", body)
		if code != http.StatusCreated {
			t.Fatalf("create = %d %v", code, n)
		}
		if code, out := d.ask("POST", "/v1/ports",
			fmt.Sprintf(`{"node_uuid":%q,"address":"52:54:00:00:00:%02d"}`, n["uuid"], i)); code != http.StatusCreated {
			t.Fatalf("create port = %d %v", code, out)
		}
		if code, _ := d.ask("PUT", fmt.Sprintf("/v1/nodes/n%d/traits/CUSTOM_T%d", i, i),
			""); code != http.StatusNoContent {
			t.Fatalf("set trait = %d", code)
		}
	}
	show := func(url string) any {
		d := &devServer{t: t, url: url, described: described.Server{URL: url}}
		code, out := d.ask("GET", "/v1/nodes/detail", "")
		_, ports := d.ask("GET", "/v1/ports/detail", "")
		if code != http.StatusOK {
			t.Fatalf("list = %d %v", code, out)
		}
		var both bytes.Buffer
		if err := json.NewEncoder(&both).Encode([]any{out, ports}); err != nil {
			t.Fatal(err)
		}
		same := strings.ReplaceAll(both.String(), url, "http://x")
		same = regexp.MustCompile(`"(created_at|updated_at|conductor)":("[^"]*"|null)`).ReplaceAllString(same,
			`"$1":"-"`)
		var v any
		if err := json.Unmarshal([]byte(same), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	want := show(d.url)
	data := filepath.Join(t.TempDir(), "data")
	out, err := runCommand(t, "import", "--from", d.url, "--data-dir", data)
	if err != nil || !strings.Contains(out, "5 nodes taken over, 0 were here already") ||
		!strings.Contains(out, "5 ports taken over") {
		t.Fatalf("import: %v\n%s", err, out)
	}
	if out, err = runCommand(t, "import", "--from", d.url, "--data-dir", data); err != nil ||
		!strings.Contains(out, "0 nodes taken over, 5 were here already") {
		t.Fatalf("import again: %v\n%s", err, out)
	}
	d.stop()

	serve := func(dir string) (url string, stop func()) {
		bin := made.Program(t, "ingotd")
		addr, agents := fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
		log := &buffer{}
		cmd := exec.Command(bin, "--data-dir", dir, "--listen", addr, "--set", "agents.listen="+agents, "--set",
			"agents.advertise="+agents)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for i := 0; ; i++ {
			if resp, err := http.Get("http://" + addr + "/"); err == nil {
				resp.Body.Close()
				break
			}
			if i > 1000 {
				t.Fatalf("ingotd does not answer:\n%s", log)
			}
			time.Sleep(10 * time.Millisecond)
		}
		return "http://" + addr, func() {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v\n%s", err, log)
			}
		}
	}
	url, stop := serve(data)
	if diff := cmp.Diff(want, show(url)); diff != "" {
		t.Errorf("after the import (-there +here):\n%s", diff)
	}
	// While it runs nothing can be imported behind its back, and a backup can be made.
	if out, err := runCommand(t, "import", "--from", url, "--data-dir", data); err == nil ||
		!strings.Contains(out, "another ingotd uses") {
		t.Errorf("import into a running conductor: %v\n%s", err, out)
	}
	file := filepath.Join(t.TempDir(), "backup")
	if out, err := runCommand(t, "backup", "--data-dir", data, file); err != nil ||
		!strings.Contains(out, "keep a copy of") {
		t.Fatalf("backup: %v\n%s", err, out)
	}
	stop()
	restored := filepath.Join(t.TempDir(), "restored")
	if out, err := runCommand(t, "restore", "--data-dir", restored, file); err == nil ||
		!strings.Contains(out, "--key") {
		t.Errorf("restore without the key: %v\n%s", err, out)
	}
	if out, err := runCommand(t, "restore", "--data-dir", restored, "--key", filepath.Join(data, "key"),
		file); err != nil {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	url, stop = serve(restored)
	defer stop()
	if diff := cmp.Diff(want, show(url)); diff != "" {
		t.Errorf("after the restore (-there +here):\n%s", diff)
	}
}

func TestCommandsSayWhatTheyWant(t *testing.T) {
	// A command's usage error is reported even if another program has the usual address of the API.
	if l, err := net.Listen("tcp", "127.0.0.1:6385"); err == nil {
		defer l.Close()
	}
	for _, c := range []struct {
		args []string
		ok   bool
		want string
	}{
		{[]string{"--help"}, true, "ingotd backup"},
		{[]string{"backup", "--help"}, true, "-with-key"},
		{[]string{"backup"}, false, "one argument"},
		{[]string{"restore", "a", "b"}, false, "one argument"},
		{[]string{"import"}, false, "--from URL"},
		{[]string{"import", "--from", "http://127.0.0.1:1", "--secrets", "/nowhere"}, false, "read secrets"},
		{[]string{"backup", "--data-dir", "/nowhere", "/tmp/x"}, false, "/nowhere"},
		{[]string{"backup", "/tmp/x", "--data-dir", "/nowhere"}, false, "/nowhere"},
		{[]string{"backup", "/tmp/x", "/tmp/y"}, false, "one argument"},
		{[]string{"dev", "--auth", "magic"}, false, "keystone"},
		{[]string{"frobnicate"}, false, "takes no arguments"},
	} {
		out, err := runCommand(t, c.args...)
		if (err == nil) != c.ok || !strings.Contains(out, c.want) {
			t.Errorf("ingotd %q: %v\n%s", c.args, err, out)
		}
	}
}
