package attack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/agents/agentstest"
	"github.com/ingot-metal/ingot/proto/agentv1"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// bootWorld is a world whose ingotd boots machines over HTTP, in DHCP mode off.
type bootWorld struct {
	*world
	base string // URL of boot HTTP
}

// Addresses on the loopback interface, which are all usable: boot HTTP distinguishes machines by them.
const (
	machineAddr  = "127.0.0.2"
	strangerAddr = "127.0.0.66"
)

func newBootWorld(t *testing.T, set ...string) *bootWorld {
	dir := t.TempDir()
	file := func(name string) map[string]any {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(name))
		return map[string]any{"file": name, "size": len(name), "sha256": hex.EncodeToString(sum[:])}
	}
	b, err := json.Marshal(map[string]any{"format": 1, "kernel": file("vmlinuz"), "initramfs": file("initramfs"),
		"steps_digest": "simulated",
		"steps": json.RawMessage(`[{"interface":"inspect","step":"inspect","priority":{"inspect":100}},
			{"interface":"deploy","step":"measure","abortable":true}, {"interface":"deploy","step":"count","abortable":true},
			{"interface":"rescue","step":"rescue","priority":{"rescue":100},"args":[{"name":"password_hash","type":"string"},{"name":"ssh_keys","type":"any"}]},
			{"interface":"deploy","step":"load_ramdisk","args":[{"name":"kernel","type":"string"},{"name":"configdrive","type":"any"},{"name":"instance","type":"string"}]}]`)})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "manifest.json"), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	addr := kit.FreeAddr(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return &bootWorld{
		base: "http://" + addr,
		world: newWorld(t, append(set, "netboot.address=127.0.0.1", "netboot.http_port="+port, "netboot.tftp=false",
			"netboot.loader_dir=", "netboot.images_dir="+dir, "netboot.ramdisk_dir="+dir,
			"deploy.automated_clean=false")...)}
}

// fetch sends a GET to boot HTTP from an address.
func (w *bootWorld) fetch(from, path string) (status int, body string) {
	w.Helper()
	c := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}}
	resp, err := c.Get(w.base + path)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// script fetches the boot script of a MAC.
func (w *bootWorld) script(from, mac string) (status int, text, drive string) {
	w.Helper()
	status, text = w.fetch(from, "/boot.ipxe?mac="+mac)
	return status, text, regexp.MustCompile(`/workload/[^/]+/config-drive.cpio`).FindString(text)
}

// machine makes a node with a port that is manageable.
func (w *bootWorld) machine(name, mac, members string) string {
	w.Helper()
	id := w.node(name, members)
	w.want(201, root, "POST", "/v1/ports", `{"node_uuid":"`+id+`","address":"`+mac+`"}`)
	w.state(name, "manage", "manageable")
	return id
}

// agent gives the agent of a node's next boot, with what the boot script says.
func (w *bootWorld) agent(mac string) *agentstest.Agent {
	w.Helper()
	var text string
	ingotd.Wait(w, "the agent's boot script", func() bool {
		var status int
		status, text, _ = w.script(machineAddr, mac)
		return status == http.StatusOK && strings.Contains(text, "ingot.token=")
	})
	word := func(key string) string {
		m := regexp.MustCompile(`ingot\.` + key + `=(\S+)`).FindStringSubmatch(text)
		if m == nil {
			w.Fatalf("the script has no ingot.%s:\n%s", key, text)
		}
		return m[1]
	}
	return &agentstest.Agent{Addr: word("conductor"), Fingerprint: word("ca"), Token: word("token"),
		MACs: []string{mac}, Digest: "simulated"}
}

// boot runs the agent of a node's next boot, until the test ends or stop is called.
func (w *bootWorld) boot(mac string, steps map[string]agentstest.StepFunc) (stop func()) {
	w.Helper()
	a := w.agent(mac)
	a.Steps = steps
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Run(ctx) // how it ends does not matter
	}()
	stop = func() { cancel(); <-done }
	w.Cleanup(stop)
	return stop
}

// ownAddress is an address of this host that is not loopback's; "" when it has none.
func ownAddress(t *testing.T) string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && ip.IP.To4() != nil {
			return ip.IP.String()
		}
	}
	return ""
}

// hidden listens on all of this host's addresses and counts connections.
func hidden(t *testing.T) (port string, count *atomic.Int32) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	count = new(atomic.Int32)
	s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		ConnState: func(_ net.Conn, st http.ConnState) {
			if st == http.StateNew {
				count.Add(1)
			}
		}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(l) // until Close
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, count
}

// TestUsersReachNothingThroughTheConductor: URLs of inspection rules and of images that are looked at, and addresses in
// a config drive, don't lead to the conductor's own host.
func TestUsersReachNothingThroughTheConductor(t *testing.T) {
	w := newBootWorld(t)
	port, count := hidden(t)
	own := ownAddress(t)

	const mac = "52:54:00:00:07:01"
	w.machine("inspected", mac, `"inspect_interface":"agent"`)
	for _, row := range []struct{ name, host, reason string }{
		{"address", "127.0.0.1", "loopback"}, {"name", "localhost", "loopback"},
		{"IPv4 in IPv6", "[::ffff:127.0.0.1]", "loopback"}, {"unspecified", "0.0.0.0", "unspecified"},
		{"the conductor's own", own, "conductor's own"},
	} {
		if row.host == "" {
			t.Log("this host has no address but loopback's: its own is not tried")
			continue
		}
		said := w.want(400, root, "POST", "/ingot/v1/nodes/inspected/image_check",
			`{"image_source":"http://`+row.host+`:`+port+`/disk.raw"}`)
		if !strings.Contains(said, row.reason) || count.Swap(0) != 0 {
			t.Fatalf("%s: a look at an image reaches the conductor's host: %s", row.name, said)
		}
		out := w.want(201, root, "POST", "/v1/inspection_rules", `{"actions":[{"op":"api-call","args":{"url":"http://`+
			row.host+`:`+port+`/"}}]}`, "X-OpenStack-Ironic-API-Version", "1.96")
		var rule struct{ UUID string }
		if err := json.Unmarshal([]byte(out), &rule); err != nil {
			t.Fatal(err)
		}
		w.want(202, root, "PUT", "/v1/nodes/inspected/states/provision", `{"target":"inspect"}`)
		stop := w.boot(mac,
			map[string]agentstest.StepFunc{
				"inspect": func(context.Context, *agentv1.Step, func(*agentv1.Progress)) ([]byte, error) {
					return []byte(`{"inventory":{"interfaces":[{"name":"eth0","mac_address":"` + mac + `","has_carrier":true}],"cpu":{"count":1,"architecture":"x86_64"},
				"memory":{"physical_mb":512},"boot":{"current_boot_mode":"bios"},"disks":[]},"boot_interface":"` + mac + `"}`), nil
				}})
		var n struct {
			State     string `json:"provision_state"`
			LastError string `json:"last_error"`
		}
		ingotd.Wait(w, "the inspection is over", func() bool {
			if err := json.Unmarshal([]byte(w.want(200, root, "GET", "/v1/nodes/inspected", "")), &n); err != nil {
				t.Fatal(err)
			}
			return n.State == "inspect failed" || n.State == "manageable" || count.Load() > 0
		})
		stop()
		if n.State != "inspect failed" || !strings.Contains(n.LastError, row.reason) || count.Swap(0) != 0 {
			t.Fatalf("%s: a rule's request reaches the conductor's host: state %s, %q", row.name, n.State, n.LastError)
		}
		w.want(204, root, "DELETE", "/v1/inspection_rules/"+rule.UUID, "", "X-OpenStack-Ironic-API-Version", "1.96")
	}

	w.machine("knocked", "52:54:00:00:07:02",
		`"deploy_interface":"ramdisk","instance_info":{"kernel":"http://192.0.2.1/k","sign_of_life":["port:`+port+`"]}`)
	w.state("knocked", "provide", "available")
	w.want(202, olga, "PUT", "/v1/nodes/knocked/states/provision", `{"target":"active","configdrive":{"network_data":{"networks":[
		{"ip_address":"127.0.0.1"},{"ip_address":"::ffff:127.0.0.1"},{"ip_address":"`+own+`"}]}}}`)
	ingotd.Wait(w, "the deployment waits for the sign of life", func() bool {
		return strings.Contains(w.want(200, root, "GET", "/v1/nodes/knocked", ""),
			`"provision_state":"wait call-back"`) || count.Load() > 0
	})
	time.Sleep(time.Second) // the first round of knocks comes at once
	if count.Load() != 0 {
		t.Error("a config drive's addresses have the conductor try ports of its own host")
	}
}

// TestConfigDriveOfAKnownMAC: a stranger who knows a MAC and can reach boot HTTP does not get that machine's config
// drive.
func TestConfigDriveOfAKnownMAC(t *testing.T) {
	w := newBootWorld(t)
	const secret = "CANARY-of-a-config-drive"
	ramdisk := func(more string) string {
		return `"deploy_interface":"ramdisk","instance_info":{"kernel":"http://192.0.2.1/k"` + more + `}`
	}
	deploy := func(name string) {
		w.state(name, "provide", "available")
		w.want(202, olga, "PUT", "/v1/nodes/"+name+"/states/provision",
			`{"target":"active","configdrive":{"user_data":"`+secret+`"}}`)
	}
	// two does what a stranger can: two GETs, and a look at what they give.
	two := func(what, mac string, scriptStatus int, links ...string) {
		t.Helper()
		status, text, drive := w.script(strangerAddr, mac)
		if status != scriptStatus || drive != "" {
			t.Errorf("%s: a stranger gets the script with %d, want %d; drive %q", what, status, scriptStatus, drive)
		}
		w.absent(what, text, secret)
		for _, link := range append(links, drive, "/workload/guess/config-drive.cpio") {
			if link == "" {
				continue
			}
			if status, body := w.fetch(strangerAddr, link); status != http.StatusNotFound ||
				strings.Contains(body, secret) {
				t.Errorf("%s: a stranger gets %d for the drive", what, status)
			}
		}
	}

	const mac = "52:54:00:00:03:01"
	id := w.machine("mem", mac, ramdisk(""))
	two("not deployed", mac, http.StatusForbidden)
	deploy("mem")
	ingotd.Wait(w, "the deployment is done", func() bool {
		return strings.Contains(w.want(200, root, "GET", "/v1/nodes/mem/states", ""), `"provision_state":"active"`)
	})
	_, _, link := w.script(machineAddr, mac)
	for range 2 {
		if status, body := w.fetch(machineAddr, link); status != http.StatusOK || !strings.Contains(body, secret) {
			t.Fatalf("its machine gets %d for the drive %q", status, link)
		}
	}
	two("behind its machine", mac, http.StatusForbidden, link)
	if h := w.want(200, root, "GET", "/v1/nodes/"+id+"/history", ""); !strings.Contains(h,
		strangerAddr+" asked for the boot script") {
		t.Errorf("the history does not say who asked: %s", h)
	}
	w.want(202, root, "PUT", "/v1/nodes/mem/states/power", `{"target":"power off"}`)
	ingotd.Wait(w, "the machine is off", func() bool {
		return strings.Contains(w.want(200, root, "GET", "/v1/nodes/mem/states", ""), `"power_state":"power off"`)
	})
	two("turned off", mac, http.StatusOK, link)
	if status, _ := w.fetch(machineAddr, link); status != http.StatusNotFound {
		t.Errorf("the link of an earlier start: %d", status)
	}

	// An instance that was not started from here, long since running: the original attack.
	const old = "52:54:00:00:03:02"
	w.machine("old", old, ramdisk(`,"configdrive":{"user_data":"`+secret+`"}`))
	w.state("old", "adopt", "active")
	two("long since running", old, http.StatusOK)

	// With an agent the drive goes over its session.
	const hot = "52:54:00:00:03:03"
	w.machine("hot", hot, ramdisk(`,"boot_instance":"kexec"`))
	deploy("hot")
	got := make(chan string, 10)
	stop := w.boot(hot,
		map[string]agentstest.StepFunc{
			"load_ramdisk": func(ctx context.Context, s *agentv1.Step, _ func(*agentv1.Progress)) ([]byte, error) {
				got <- string(s.Args)
				<-ctx.Done()
				return nil, ctx.Err()
			}})
	select {
	case args := <-got:
		if !strings.Contains(args, secret) {
			t.Errorf("the agent's plan has no drive: %.500s", args)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the agent gets no plan")
	}
	two("while the agent works", hot, http.StatusForbidden)
	status, text, drive := w.script(machineAddr, hot)
	if drive != "" {
		t.Errorf("the machine itself is offered the drive over HTTP beside its agent: %d", status)
	}
	w.absent("the script", text, secret)
	stop()
	w.absent("the log", fmt.Sprint(w.d.Log), secret)
}
