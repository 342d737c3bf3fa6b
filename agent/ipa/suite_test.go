package ipa_test

import (
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/image/configdrive"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/rescue"
	"github.com/ingot-metal/ingot/proto/drive"
	"github.com/ingot-metal/ingot/test/kit/ironicsim"
)

// slow serves an image whose second half waits until it is released.
func slow(t *testing.T, img []byte) (url string, half <-chan struct{}, release func()) {
	t.Helper()
	reached, released := make(chan struct{}), make(chan struct{})
	var once, opened atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "3145728")
		if _, err := w.Write(img[:len(img)/2]); err != nil {
			return
		}
		w.(http.Flusher).Flush()
		if once.CompareAndSwap(false, true) {
			close(reached)
		}
		select {
		case <-released:
		case <-r.Context().Done():
			return
		}
		_, _ = w.Write(img[len(img)/2:])
	}))
	release = func() {
		if opened.CompareAndSwap(false, true) {
			close(released)
		}
	}
	t.Cleanup(func() {
		release()
		srv.Close()
	})
	return srv.URL + "/disk.raw", reached, release
}

// TestConductorRestartsInMidWrite: the write goes on without a conductor, and the one that comes back finds its result.
func TestConductorRestartsInMidWrite(t *testing.T) {
	t.Parallel()
	b := newBench(t, ironicsim.Newest)
	img := imageOf(3 << 20)
	url, half, release := slow(t, img)
	b.sim.Begin("deploy", false, writeStep(url, img))
	b.run()
	<-half
	before := b.sim.Beats()
	b.sim.Restart(func() {
		release()
		// As long as several heartbeats take.
		<-time.After(40 * patience)
	})
	b.sim.WaitState("active")
	b.holds(img)
	if n := b.sim.Beats(); n <= before {
		t.Errorf("%d heartbeats, no more than the %d before", n, before)
	}
	if n := strings.Count(strings.Join(b.sim.Log(), "\n"), "POST deploy.execute_deploy_step"); n != 1 {
		t.Errorf("the image was asked for %d times: %q", n, b.sim.Log())
	}
}

// TestLostAnswers: a request whose answer is lost is repeated by the conductor, and no step runs twice.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	for every := 2; every <= 4; every++ {
		b := newBench(t, ironicsim.Debian12)
		img := imageOf(3 << 20)
		var fetched atomic.Int64
		srv := serve(t, img)
		inner := srv.Config.Handler
		srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") == "" {
				fetched.Add(1)
			}
			inner.ServeHTTP(w, r)
		})
		lost, last := 0, "none"
		b.sim.Lose = func(n int, method, name string) bool {
			// The answer to power_off may be lost only with the agent, which the real conductor finds out by the power.
			// Three lost ones in a row are a failure.
			if n%every != 0 || name == last || strings.HasPrefix(name, "standby.power_off") {
				return false
			}
			lost++
			last = name
			return true
		}
		b.sim.Begin("deploy", false, writeStep(srv.URL+"/disk.raw", img))
		b.run()
		b.sim.WaitState("active")
		b.holds(img)
		if lost == 0 {
			t.Error("no answer was lost")
		}
		b.stop()
	}
}

// TestNextWorker: when the agent dies, the next worker of the same boot has its token, certificate and results; a step
// that ran has failed.
func TestNextWorker(t *testing.T) {
	t.Parallel()
	b := newBench(t, ironicsim.Newest)
	img := imageOf(3 << 20)
	url, half, _ := slow(t, img)
	b.opts.Config.Port = freePort(t) // as a worker of the ramdisk has
	b.opts.Config.PublicPort = b.opts.Config.Port
	b.sim.Begin("deploy", false, writeStep(url, img))
	b.run()
	<-half
	at, ca := b.sim.Callback()
	state, err := os.ReadFile(b.opts.State)
	if err != nil {
		t.Fatal(err)
	}
	b.stop()
	if err := os.WriteFile(b.opts.State, state, 0o600); err != nil { // a worker that dies writes nothing more
		t.Fatal(err)
	}
	b.opts.Reason = "panic: nil map"
	b.run()
	b.sim.WaitState("deploy failed")
	if err := b.sim.Error(); !strings.Contains(err, "the agent died while it ran (panic: nil map)") {
		t.Errorf("error %s", err)
	}
	if at2, ca2 := b.sim.Callback(); at2 != at || ca2 != ca {
		t.Errorf("the next worker has %s, the one before %s; the same certificate: %v", at2, at, ca2 == ca)
	}
}

func freePort(t *testing.T) uint16 {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return uint16(ln.Addr().(*net.TCPAddr).Port)
}

// TestTokenGivenOut: an agent whose token has been given out before serves nothing, and takes its network down.
func TestTokenGivenOut(t *testing.T) {
	t.Parallel()
	b := newBench(t, ironicsim.Debian12)
	b.sim.Begin("clean", false)
	resp, err := http.Get(b.sim.URL + "/v1/lookup?addresses=" + mac) // an impostor was faster
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	b.run()
	for range 500 {
		if b.net.gone() {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	if at, _ := b.sim.Callback(); !b.net.gone() || at != "" {
		t.Errorf("the network is left: %v; it is served at %q", b.net.gone(), at)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if last := b.lines[len(b.lines)-1]; !strings.Contains(last, "reboot the machine through Ironic") {
		t.Errorf("the console ends with %q", last)
	}
}

// TestTokenOfVirtualMedia: a token that came with the boot is used when lookup does not give one out.
func TestTokenOfVirtualMedia(t *testing.T) {
	t.Parallel()
	b := newBench(t, ironicsim.Newest)
	b.opts.Config.Token = ironicsim.Token
	b.sim.Begin("clean", false)
	resp, err := http.Get(b.sim.URL + "/v1/lookup?addresses=" + mac)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	b.run()
	b.sim.WaitState("available")
}

// TestLookupWaits: a machine that boots before its node waits is looked up again and again.
func TestLookupWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t, ironicsim.Newest)
	b.run()
	<-time.After(20 * patience)
	if b.sim.Beats() != 0 {
		t.Fatal("a heartbeat of a node that is not waited for")
	}
	b.sim.Begin("clean", false)
	b.sim.WaitState("available")
}

// TestLockdown: the agent answers, then neither listens nor has a network.
func TestLockdown(t *testing.T) {
	t.Parallel()
	b := newBench(t, ironicsim.Newest)
	b.sim.Begin("clean", false)
	b.run()
	b.sim.WaitState("available")
	if r, ok := b.sim.Call("system.lockdown", false, map[string]any{}); !ok || r.Status != "SUCCEEDED" {
		t.Fatalf("lockdown: %+v", r)
	}
	at, _ := b.sim.Callback()
	for range 500 {
		c, err := net.Dial("tcp", strings.TrimPrefix(at, "https://"))
		if err != nil && b.net.gone() {
			return
		}
		if err == nil {
			c.Close()
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Errorf("after half a minute %s still listens, or the network is still up: left %v", at, b.net.gone())
}

// TestRescue: the password's hash opens the machine, and the agent stops to serve but keeps its network.
func TestRescue(t *testing.T) {
	t.Parallel()
	b := newBench(t, ironicsim.Debian12)
	b.opts.Rescue = rescue.New(linux.Machine{}, "127.0.0.1:0", nil)
	t.Cleanup(func() { b.opts.Rescue.Close("the test ends") })
	b.sim.Edit(func(n map[string]any) {
		n["instance_info"] = map[string]any{
			"rescue_password": "$5$abcd1234$7MvqD7QnusiUSpouyK6JYktNWIErSKLpFboybjozi72"}
	})
	b.sim.Begin("rescue", false)
	b.run()
	if !(linux.Machine{}).HasShell() {
		b.sim.WaitState("rescue failed")
		if err := b.sim.Error(); !strings.Contains(err, "no shell to log in to") {
			t.Errorf("error %s", err)
		}
		return
	}
	b.sim.WaitState("rescue")
	if b.opts.Rescue.Keep() == nil || b.net.gone() {
		t.Errorf("the machine is open: %v; its network is gone: %v", b.opts.Rescue.Keep() != nil, b.net.gone())
	}
}

// TestInspection: the inventory has Ironic's names, and the node that the answer names is looked up.
func TestInspection(t *testing.T) {
	t.Parallel()
	b := newBench(t, ironicsim.Newest)
	b.opts.Config.Callbacks = []string{b.sim.URL + "/v1/continue_inspection"}
	b.opts.MACs = func() []string { return nil }
	b.sim.Begin("clean", false)
	b.run()
	b.sim.WaitState("available")
	var got struct {
		Inventory struct {
			Disks []struct {
				Name, Serial string
				Size         int64
			} `json:"disks"`
			CPU  map[string]any `json:"cpu"`
			Boot map[string]any `json:"boot"`
		} `json:"inventory"`
		RootDisk      map[string]any `json:"root_disk"`
		Configuration map[string]any `json:"configuration"`
		Error         any            `json:"error"`
		Logs          string         `json:"logs"`
	}
	if err := json.Unmarshal(b.sim.Posted()[0], &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Inventory.Disks) != 1 || got.Inventory.Disks[0].Serial != "s1" || got.RootDisk["name"] != "/dev/vda" ||
		got.Error != nil || got.Logs != base64.StdEncoding.EncodeToString([]byte("archive")) ||
		got.Configuration["collectors"] == nil || got.Inventory.Boot["current_boot_mode"] != "bios" {
		t.Errorf("inventory %s", b.sim.Posted()[0])
	}
}

// TestConfigDrive: the config drive of the command is on the disk, in a partition of its own.
func TestConfigDrive(t *testing.T) {
	t.Parallel()
	b := newBench(t, ironicsim.Debian12)
	img := imageOf(3 << 20)
	files, err := drive.Files(json.RawMessage(`{"meta_data":{"uuid":"x","hostname":"node-7"}}`), "x")
	if err != nil {
		t.Fatal(err)
	}
	iso, err := drive.ISO(files, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	s := writeStep(serve(t, img).URL+"/disk.raw", img)
	s.Args["configdrive"] = base64.StdEncoding.EncodeToString(iso)
	b.sim.Begin("deploy", false, s)
	b.run()
	b.sim.WaitState("active")
	end := make([]byte, 65<<20)
	if _, err := b.disk.ReadAt(end, 5<<30-int64(len(end))); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(end), configdrive.Label) || !strings.Contains(string(end), "node-7") {
		t.Error("the end of the disk has no config drive")
	}
}

// TestAnotherVersion: steps for another agent are not run; the conductor asks for the list again and goes on.
func TestAnotherVersion(t *testing.T) {
	t.Parallel()
	b := newBench(t, ironicsim.Newest)
	b.sim.Begin("clean", false)
	b.run()
	b.sim.WaitState("available")
	r, ok := b.sim.Call("clean.execute_clean_step", true, map[string]any{"node": map[string]any{"uuid": "x"},
		"ports":         []any{},
		"step":          map[string]any{"interface": "deploy", "step": "erase_devices_metadata"},
		"clean_version": map[string]any{"generic_hardware_manager": "1.1"}})
	if !ok || r.Status != "CLEAN_VERSION_MISMATCH" {
		t.Errorf("%+v, %v", r, ok)
	}
	head := make([]byte, 512)
	if _, err := b.disk.ReadAt(head, 0); err != nil || head[0] != 0xa5 {
		t.Errorf("the disk begins with %x (%v): the step ran", head[0], err)
	}
}

// TestMalformed: parameters that can't be right are refused before anything is listed.
func TestMalformed(t *testing.T) {
	t.Parallel()
	b := newBench(t, ironicsim.Newest)
	b.sim.Begin("clean", false)
	b.run()
	b.sim.WaitState("available")
	for name, params := range map[string]map[string]any{
		"clean.execute_clean_step":     {"node": map[string]any{"uuid": "x"}, "step": "erase_devices"},
		"deploy.execute_deploy_step":   {"node": nil, "step": map[string]any{"step": "write_image"}},
		"service.execute_service_step": {"node": map[string]any{}, "step": map[string]any{"step": "write_image"}},
	} {
		params["ports"] = []any{}
		if r, ok := b.sim.Call(name, true, params); ok || r.Fault == nil ||
			!strings.HasPrefix(*r.Fault, "Invalid command parameters: ") {
			t.Errorf("%s %v: %+v", name, params, r)
		}
	}
}
