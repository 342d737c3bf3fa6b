// Package openstack runs commands of `openstack`, the unmodified command line client in Debian's packages
// python3-openstackclient and python3-ironicclient. It loads the client once for many commands, because that takes
// longer than a command.
package openstack

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
)

//go:embed client.py
var program string

// Client is a process that runs commands.
type Client struct {
	t       testing.TB
	in      *json.Encoder
	answers *json.Decoder
}

// Start starts the process; it ends with the test.
func Start(t testing.TB) *Client {
	t.Helper()
	kit.NeedPrograms(t, "openstack")
	// Debian's own Python, whichever else is first in the path: the client belongs to it.
	cmd := exec.Command("/usr/bin/python3", "-c", program)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CACHE_HOME="+home, "PYTHONWARNINGS=ignore")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // it ends when there are no more commands
		if err := cmd.Wait(); err != nil {
			t.Errorf("the client: %v", err)
		}
	})
	return &Client{t, json.NewEncoder(in), json.NewDecoder(out)}
}

// Run runs `openstack ARGS` with settings such as OS_ENDPOINT=URL and no others of their kind. The error is that of the
// command.
func (c *Client) Run(env []string, args ...string) (stdout, stderr string, err error) {
	c.t.Helper()
	settings := map[string]string{}
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		settings[k] = v
	}
	if err := c.in.Encode(map[string]any{"args": args, "env": settings}); err != nil {
		c.t.Fatalf("give the client a command: %v", err)
	}
	var a struct {
		Status   int
		Out, Err string
	}
	if err := c.answers.Decode(&a); err != nil {
		c.t.Fatalf("read the client's answer to %q: %v", args, err)
	}
	if a.Status != 0 {
		err = fmt.Errorf("openstack %s: status %d: %s", strings.Join(args, " "), a.Status, strings.TrimSpace(a.Err))
	}
	return a.Out, a.Err, err
}

// Install makes a program `openstack` that runs commands of the client with these settings, and returns its folder, for
// PATH.
func (c *Client) Install(env []string) (folder string) {
	c.t.Helper()
	var one sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			c.t.Error(err)
		}
		one.Lock()
		out, _, err := c.Run(env, strings.Split(strings.TrimSuffix(string(body), "\x00"), "\x00")...)
		one.Unlock()
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			out += err.Error() + "\n"
		}
		_, _ = io.WriteString(w, out) // a shell that is gone does not want it
	}))
	c.t.Cleanup(server.Close)
	folder = c.t.TempDir()
	kit.WriteProgram(c.t, filepath.Join(folder, "openstack"), fmt.Sprintf(`#!/bin/sh
out=$(mktemp)
code=$(printf '%%s\0' "$@" | curl -s -o "$out" -w '%%{http_code}' --data-binary @- %s)
cat "$out"
rm "$out"
[ "$code" = 200 ]
`, server.URL))
	return folder
}

// Commands are those of a page that it leaves to the test that calls this, in blocks marked as
// "sh no-run: test/FOLDER.TestName runs it". Pairs of places name others for those of the page.
func Commands(t testing.TB, page string, places ...string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	block := regexp.MustCompile("(?ms)^```sh no-run: test/[a-z/]+\\." + t.Name() + " runs it\n(.*?)^```$")
	for _, b := range block.FindAllStringSubmatch(string(text), -1) {
		out.WriteString(b[1])
	}
	if out.Len() == 0 {
		t.Fatalf("%s has no commands for %s", page, t.Name())
	}
	return strings.NewReplacer(places...).Replace(out.String())
}
