package ipa_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ironicsim"
)

const mib = 1 << 20

// systemOf is a whole-disk image whose partition has a file system with the file /etc/hostname.
func systemOf(t *testing.T) []byte {
	t.Helper()
	kit.NeedPrograms(t, "mke2fs", "debugfs", "e2fsck")
	img := imageOf(12 * mib)
	dir := filepath.Join(t.TempDir(), "etc")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hostname"), []byte("image\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	root := kit.TempDisk(t, 11*mib)
	kit.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-d", filepath.Dir(dir), root)
	b, err := os.ReadFile(root)
	if err != nil {
		t.Fatal(err)
	}
	copy(img[mib:], b)
	return img
}

// file reads a file of the system on the disk, whose file system must be whole.
func (b *bench) file(name string) string {
	b.t.Helper()
	root := make([]byte, 11*mib)
	if _, err := b.disk.ReadAt(root, mib); err != nil {
		b.t.Fatal(err)
	}
	part := filepath.Join(b.t.TempDir(), "root")
	if err := os.WriteFile(part, root, 0o600); err != nil {
		b.t.Fatal(err)
	}
	kit.Run(b.t, "e2fsck", "-f", "-n", part)
	return kit.Run(b.t, "debugfs", "-R", "cat "+name, part)
}

func injected(text string) ironicsim.Step {
	return ironicsim.Step{Interface: "deploy", Step: "inject_files", Args: map[string]any{"files": []any{map[string]any{
		"path": "/etc/hostname", "content": base64.StdEncoding.EncodeToString([]byte(text))}}}}
}

// TestInjectFiles: under its name in Ironic, after write_image in a deployment, with the files of the step or, without
// any, of the node.
func TestInjectFiles(t *testing.T) {
	t.Parallel()
	img := systemOf(t)
	for _, own := range []bool{true, false} {
		b := newBench(t, ironicsim.Newest)
		s := injected("of the step\n")
		want := "of the step"
		if !own {
			want = "of the node"
			b.sim.Edit(func(n map[string]any) {
				n["properties"] = map[string]any{"inject_files": injected("of the node\n").Args["files"]}
			})
			s.Args = map[string]any{}
		}
		b.sim.Begin("deploy", false, writeStep(serve(t, img).URL+"/disk.raw", img), s)
		b.run()
		b.sim.WaitState("active")
		if got := b.file("/etc/hostname"); !strings.Contains(got, want) {
			t.Errorf("in the system is %q, want %q", got, want)
		}
		var res struct {
			Step ironicsim.Step `json:"deploy_step"`
		}
		if err := json.Unmarshal(b.sim.Results()[1].Result, &res); err != nil || res.Step.Step != "inject_files" {
			t.Errorf("result %s, %v", b.sim.Results()[1].Result, err)
		}
		b.stop()
	}
}

// TestService is a service from its beginning to its end, as the newest Ironic does it: steps on an installed system,
// without faults, with lost answers, and with a conductor that restarts while a step runs. No step runs twice, but for
// a short one whose answer is lost: Ironic asks for that again if it does not see it run.
func TestService(t *testing.T) {
	t.Parallel()
	img := systemOf(t)
	for name, fault := range map[string]func(b *bench, one map[string]any) (whileItRuns func()){
		"none": func(*bench, map[string]any) func() { return func() {} },
		"lost answers": func(b *bench, _ map[string]any) func() {
			lost := map[string]int{}
			b.sim.Lose = func(n int, _, name string) bool {
				lose := n%2 == 0 && name != "" && lost[name] < 2 // three in a row are a failure
				if lose {
					lost[name]++
				}
				return lose
			}
			return func() {}
		},
		"restart": func(b *bench, one map[string]any) func() {
			at, half, release := slow(b.t, append([]byte("first\n"), make([]byte, 3*mib-6)...))
			one["content"] = at
			return func() {
				<-half
				b.sim.Restart(release)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, ironicsim.Newest)
			if _, err := b.disk.WriteAt(img, 0); err != nil {
				t.Fatal(err)
			}
			one, two := injected("first\n"), injected("second\n")
			fileOf := func(s ironicsim.Step) map[string]any { return s.Args["files"].([]any)[0].(map[string]any) }
			fileOf(two)["path"] = "/etc/issue"
			then := fault(b, fileOf(one))
			b.sim.Begin("service", false, one, two)
			b.run()
			then()
			b.sim.WaitState("active")
			if host, issue := b.file("/etc/hostname"), b.file("/etc/issue"); !strings.Contains(host, "first") ||
				!strings.Contains(issue, "second") {
				t.Errorf("in the system are %q and %q", host, issue)
			}
			n := strings.Count(strings.Join(b.said(), "\n"), "step inject_files")
			if n < 2 || n > 2 && name != "lost answers" {
				t.Errorf("two steps ran %d times: %q", n, b.said())
			}
			if name != "none" {
				return
			}
			want := []string{"POST service.get_service_steps 200", "POST service.execute_service_step 200", "GET 200",
				"POST service.execute_service_step 200", "GET 200"}
			if got := slices.Compact(b.sim.Log()); !slices.Equal(got, want) {
				t.Errorf("calls %q, want %q", got, want)
			}
		})
	}
}

// said are the lines of the console.
func (b *bench) said() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.lines)
}

// TestServiceStepThatFails: the conductor has the reason, and the machine serves on.
func TestServiceStepThatFails(t *testing.T) {
	t.Parallel()
	b := newBench(t, ironicsim.Newest)
	b.sim.Begin("service", false, injected("nowhere to put it"))
	b.run()
	b.sim.WaitState("service failed")
	if err := b.sim.Error(); !strings.Contains(err, `"type":"ServicingError"`) || !strings.Contains(err, "remedy: ") {
		t.Errorf("error %s", err)
	}
	b.sim.Begin("service", false)
	b.sim.WaitState("active")
}

// TestAnotherCertificate: Ironic takes a second certificate in a boot for an impostor's. An agent that has lost the
// state of its boot makes one: it serves nothing to a conductor that refuses it, says why, and is known again after a
// reboot by Ironic. One that has its state keeps its certificate.
func TestAnotherCertificate(t *testing.T) {
	t.Parallel()
	b := newBench(t, ironicsim.Newest)
	b.opts.Config.Token = ironicsim.Token // of virtual media: a lookup gives it out once
	b.opts.Config.Port = freePort(t)
	b.opts.Config.PublicPort = b.opts.Config.Port
	b.sim.Begin("clean", false)
	b.run()
	b.sim.WaitState("available")
	_, first := b.sim.Callback()
	b.stop()
	b.sim.Begin("clean", false)
	b.run()
	b.sim.WaitState("available")
	if _, ca := b.sim.Callback(); ca != first {
		t.Error("the next worker has another certificate")
	}
	b.stop()
	if err := os.Remove(b.opts.State); err != nil {
		t.Fatal(err)
	}
	calls := len(b.sim.Log())
	b.sim.Begin("clean", false)
	b.run()
	b.until("the refusal is said", func() bool {
		return strings.Contains(strings.Join(b.said(), "\n"), `Detected change in ramdisk provided "agent_verify_ca"`)
	})
	if _, ca := b.sim.Callback(); ca != first || len(b.sim.Log()) != calls || b.sim.State() != "clean wait" {
		t.Errorf("after the refusal: the same certificate %v, state %s, calls %q", ca == first, b.sim.State(),
			b.sim.Log()[calls:])
	}
	b.stop()
	b.sim.Reboot()
	b.run()
	b.sim.WaitState("available")
	if _, ca := b.sim.Callback(); ca == first {
		t.Error("after a reboot the certificate is that of the boot before")
	}
}

// until waits for something that the simulator does not report.
func (b *bench) until(what string, ok func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: not within a minute; the console says %q", what, b.said())
		}
	}
}

// TestWrongToken: commands and results are for the conductor of this boot alone, while it goes on with its own.
func TestWrongToken(t *testing.T) {
	t.Parallel()
	b := newBench(t, ironicsim.Newest)
	img := imageOf(3 * mib)
	at, half, release := slow(t, img)
	b.sim.Begin("deploy", false, writeStep(at, img))
	b.run()
	<-half
	b.until("a look at the results with the token", func() bool { return slices.Contains(b.sim.Log(), "GET 200") })
	callback, ca := b.sim.Callback()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(ca))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}}
	for _, token := range []string{"", ironicsim.Token[1:], strings.ToLower(ironicsim.Token), strings.Repeat("x", 43)} {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			body := []byte(`{"name":"standby.power_off","params":{}}`)
			req, err := http.NewRequestWithContext(t.Context(), method,
				callback+"/v1/commands/?agent_token="+url.QueryEscape(token), bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusUnauthorized ||
				!strings.Contains(string(text), "Token invalid") {
				t.Errorf("%s with token %q = %d %s, %v", method, token, resp.StatusCode, text, err)
			}
		}
	}
	if ended := b.m.Ended(); ended != "" {
		t.Errorf("the boot ended by %q", ended)
	}
	release()
	b.sim.WaitState("active")
	b.holds(img)
}
