//go:build !race

package app_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/update"
)

// firmwareFiles serves firmware at /COMPONENT/VERSION, after before.
func firmwareFiles(t *testing.T, before func()) string {
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before()
		component, version, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		_, _ = w.Write(update.File(component, version)) // a controller that went away misses it
	}))
	t.Cleanup(files.Close)
	return files.URL + "/"
}

// Versions are read when a node is managed; a step of cleaning updates BIOS and controller and shows them; one that
// fails says why.
func TestFirmwareThroughRedfish(t *testing.T) {
	r := newRacked(t)
	files := firmwareFiles(t, func() {})
	clean := func(name, component, file string) {
		r.ask(202, "PUT", "/v1/nodes/"+name+"/states/provision", `{"target":"clean","disable_ramdisk":true,
			"clean_steps":[{"interface":"firmware","step":"update","args":{"settings":[
			{"component":"`+component+`","url":"`+files+file+`?sig=canary"}]}}]}`)
	}
	names := []string{"generic", "dell-idrac9", "hpe-ilo5", "lenovo-xcc"}
	benches := map[string]*redfish.Bench{}
	for _, name := range names {
		b := redfish.Start(t, redfish.Personality(t, name),
			func(c *service.Config) { c.Took, c.Down = 10*time.Millisecond, time.Second })
		benches[name] = b
		r.enrol(name, b, "")
		r.until("/v1/nodes/"+name+"/firmware", `"component":"bios"`, `"component":"bmc"`,
			`"component":"nic:`+update.NICSerial+`"`,
			`"current_version":"`+b.Service.Firmware().Version(update.BIOS)+`"`)
	}
	for _, step := range []string{"bmc", "bios"} {
		for _, name := range names {
			clean(name, step, step+"/99.1")
		}
		for _, name := range names {
			r.until("/v1/nodes/"+name, `"provision_state":"manageable"`, `"last_error":null`)
			version := benches[name].Service.Firmware().Version(step)
			out := r.ask(200, "GET", "/v1/nodes/"+name+"/firmware", "")
			if !strings.Contains(version, "99.1") || !strings.Contains(out, `"last_version_flashed":"`+version+`"`) {
				t.Errorf("%s: %s, want %s", name, out, version)
			}
		}
	}
	for _, name := range names {
		clean(name, "bios", "nothing/1")
	}
	for _, name := range names {
		r.until("/v1/nodes/"+name, `"provision_state":"clean failed"`,
			"the controller did not update bios, which has version")
		if n := benches[name].Service.Sessions(); n > 1 {
			t.Errorf("%s: %d sessions", name, n)
		}
	}
	if strings.Contains(r.d.Log.String(), "canary") {
		t.Error("the log has the address of a file")
	}
}

// TestKilledDuringFirmware: a conductor that is killed when the controller has taken an update and not answered, while
// the task runs, while the machine is off for it, when the new firmware is in use, and while the controller restarts
// goes on where it was, and each update is made once.
func TestKilledDuringFirmware(t *testing.T) {
	taken, answer := make(chan struct{}), make(chan struct{})
	first := true
	reading, file := make(chan struct{}, 9), make(chan struct{})
	files := firmwareFiles(t, func() {
		reading <- struct{}{}
		<-file
	})
	b := redfish.Start(t, redfish.Personality(t, "generic"), func(c *service.Config) {
		c.Took, c.Down = 100*time.Millisecond, 4*time.Second
		c.Done = func(_, path string) {
			if first && strings.HasSuffix(path, ".SimpleUpdate") {
				first = false
				close(taken)
				<-answer
			}
		}
	})
	s := newSite(t)
	s.set = []string{"fetch.allow=127.0.0.0/8"}
	s.start()
	one := client.NewNode{Name: "n1", Driver: "redfish", DriverInfo: b.Info}
	if _, err := s.CreateNode(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	s.do("n1", "manage", "manageable", nil)
	if err := b.Machine.Start(); err != nil {
		t.Fatal(err)
	}
	body := strings.NewReader(`{"target":"clean","disable_ramdisk":true,"clean_steps":[{"interface":"firmware",
		"step":"update","args":{"settings":[{"component":"bios","url":"` + files + `bios/99.1"},
		{"component":"bmc","url":"` + files + `bmc/99.2"}]}}]}`)
	r, err := http.NewRequest(http.MethodPut, s.Endpoint()+"/v1/nodes/n1/states/provision", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-OpenStack-Ironic-API-Version", "latest")
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		t.Fatalf("clean: %s", resp.Status)
	}
	<-taken
	s.kill()
	close(answer)
	s.start()

	s.until("the task is followed", func() bool {
		return strings.Contains(s.log.String(), "firmware update was begun")
	})
	<-reading
	s.kill()
	b.BMC.SetFaults(bmc.Faults{StayOff: true})
	s.start()
	close(file)

	s.until("the machine is off", func() bool { return !b.Machine.On() })
	s.kill()
	b.BMC.SetFaults(bmc.Faults{})
	s.start()

	lab := b.Service.Firmware()
	s.until("the BIOS is written", func() bool { return len(lab.Made()) == 1 })
	s.kill()
	s.start()

	s.until("the controller restarts", func() bool { return b.Service.Restarts() == 1 })
	s.kill()
	s.start()

	s.wait("n1", "manageable")
	if made := lab.Made(); !slices.Equal(made, []string{"bios 99.1", "bmc 99.2"}) || b.Service.Tasks().Made() != 2 {
		t.Errorf("the controller made %v by %d tasks", made, b.Service.Tasks().Made())
	}
	n, err := s.Node(t.Context(), "n1")
	if err != nil || n.LastError != "" {
		t.Errorf("%v, last error %q", err, n.LastError)
	}
	s.stop()
	if n := b.Service.Sessions(); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}
