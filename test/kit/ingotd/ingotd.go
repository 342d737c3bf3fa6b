// Package ingotd runs an ingotd as it is shipped, with nothing but loopback around it.
package ingotd

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/described"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// Process is a running ingotd.
type Process struct {
	t      testing.TB
	URL    string // http://HOST:PORT of its REST API
	Agents string // HOST:PORT of its listener for agents
	Dir    string // its data directory
	PID    int    // of the newest
	Log    *Output

	args []string

	described described.Server // its answers to Ask are held against what it says of itself
}

// Output keeps what a program prints while others read it.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Start starts an ingotd at addr, HOST:PORT, with these settings, each KEY=VALUE, and ends it with the test. It returns
// when the version document can be had.
func Start(t testing.TB, addr string, set ...string) *Process {
	t.Helper()
	dir := t.TempDir()
	p := &Process{t: t, URL: "http://" + addr, Agents: kit.FreeAddr(t), Dir: filepath.Join(dir, "data"), Log: &Output{}}
	args := []string{"--data-dir", p.Dir, "--listen", addr, "--set", "agents.listen=" + p.Agents, "--set",
		"agents.advertise=" + p.Agents, "--set", "peer.listen=127.0.0.1:0", "--set",
		"netboot.ramdisk_dir=" + filepath.Join(dir, "none")}
	p.args = args
	p.Change(set...)
	p.run()
	p.described.URL = p.URL
	return p
}

func (p *Process) run() {
	cmd := exec.Command(made.Program(p.t, "ingotd"), p.args...)
	cmd.Stdout, cmd.Stderr = p.Log, p.Log
	Run(p.t, cmd, p.Log)
	p.PID = cmd.Process.Pid
	Wait(p.t, "ingotd answers", func() bool {
		resp, err := http.Get(p.URL + "/")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == 200
	})
}

// Kill ends the process with SIGKILL, and Again starts another with its data.
func (p *Process) Kill() {
	p.t.Helper()
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	Wait(p.t, "ingotd has ended", func() bool { return syscall.Kill(p.PID, 0) != nil })
}

// Again is described at Kill.
func (p *Process) Again() {
	p.t.Helper()
	p.run()
}

// Change has the next process started with these settings too, each KEY=VALUE.
func (p *Process) Change(set ...string) {
	for _, kv := range set {
		p.args = append(p.args, "--set", kv)
	}
}

// Run starts a program that the test ends, by its own number.
func Run(t testing.TB, cmd *exec.Cmd, log fmt.Stringer) {
	t.Helper()
	// when the time for all tests is up, nothing is cleaned up
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		cmd.Wait() // how it ended does not matter: the test ends it
		close(gone)
	}()
	t.Cleanup(func() {
		if err := cmd.Process.Signal(os.Interrupt); err == nil {
			select {
			case <-gone:
			case <-time.After(2 * time.Minute):
				t.Errorf("%s did not end when it was asked to", cmd.Path)
			}
		}
		cmd.Process.Kill() // an error says that it has gone
		<-gone
		if t.Failed() {
			t.Logf("output of %s:\n%s", cmd.Path, log)
		}
	})
}

// Wait waits until something is so, for at most five minutes.
func Wait(t testing.TB, what string, ok func() bool) {
	t.Helper()
	kit.Eventually(t, 5*time.Minute, what, ok)
}

// client gives up when an answer does not end, as that of a stream of events.
var client = http.Client{Timeout: 2 * time.Minute}

// Ask sends a request with these headers and returns status, headers and body. The API's version is 1.82 unless a
// header says another.
func (p *Process) Ask(method, path, body string, header map[string]string) (int, http.Header, string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.URL+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set(rest.VersionHeader, "1.82")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.described.Check(req, []byte(body), resp, b); err != nil {
		p.t.Error(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}
