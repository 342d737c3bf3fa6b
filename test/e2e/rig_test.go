// Package e2e holds whole deployments in the virtual rack: real QEMU machines, real IPMI packets, the real ingotd
// process, through the public API only. Needs root.
package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/tools/lab"
	"github.com/ingot-metal/ingot/tools/lab/site"
)

// Machines are emulated on shared processors: limits are many times the usual duration.
const (
	bootLimit  = 10 * time.Minute // one job: boot of the agent and its steps
	osLimit    = 8 * time.Minute  // from power-on to the login prompt of the tiny system
	stateLimit = 4 * time.Minute  // what the conductor does without the machine's own doing
)

// labParams are parameters for kernels in the rack. Where the emulator does not get a processor for long, a kernel
// would take its timer for broken, and panic.
const labParams = "quiet no_timer_check mitigations=off cryptomgr.notests console=ttyS0,115200n8"

// artifacts are made once in a run of all tests.
type artifacts struct {
	ingotd  string
	ramdisk string // folder, lab profile
	tiny    image
	tinyZst string // its file
}

// image is a file in rig.folder.
type image struct {
	file   string
	sha256 string
	size   int64 // of the file
}

func makeArtifacts(t *testing.T) *artifacts {
	t.Helper()
	tiny := made.Image(t, made.Tiny)
	zst := tiny.File(tiny.Zst)
	return &artifacts{ingotd: made.Program(t, "ingotd"), ramdisk: made.Ramdisk(t, made.RamdiskLab),
		tiny: image{file: zst.File, sha256: zst.SHA256, size: zst.Size}, tinyZst: tiny.Zst}
}

// rig is a rack with a conductor.
type rig struct {
	t      *testing.T
	art    *artifacts
	folder string // with the images that the conductor serves: tiny.raw.zst and what the test adds
	lab    *lab.Lab
	con    *lab.Conductor
	images *imageServer
	log    string // of ingotd
	conf   map[string]any
	file   string // with conf
	// names and values, of each request
	headers []string
}

// option changes the conductor's configuration.
type option func(map[string]any)

// set gives a key (dotted) a value.
func set(key string, value any) option {
	return func(m map[string]any) {
		words := strings.Split(key, ".")
		for _, w := range words[:len(words)-1] {
			if m[w] == nil {
				m[w] = map[string]any{}
			}
			m = m[w].(map[string]any)
		}
		m[words[len(words)-1]] = value
	}
}

// notInNames matches characters that a lab's name can't have.
var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// newRig brings a rack and a conductor up, until the test ends. They are the test's own, as is the folder with
// images: the tests of this package run side by side, in one process or in several.
func newRig(t *testing.T, nodes []lab.NodeSpec, opts ...option) *rig {
	t.Helper()
	return newRigIn(t, site.Site{}, nodes, opts...)
}

// newRigIn is newRig in a network that is not Ingot's own.
func newRigIn(t *testing.T, network site.Site, nodes []lab.NodeSpec, opts ...option) *rig {
	t.Helper()
	return newRigOf(t, lab.Options{Nodes: nodes, Site: network}, opts...)
}

// newRigOf is newRig with a rack as the options say, except for what is the same in all.
func newRigOf(t *testing.T, rack lab.Options, opts ...option) *rig {
	t.Helper()
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "qemu-system-x86_64", "ip")
	art, dir := makeArtifacts(t), t.TempDir()
	ctx, cancel := context.WithTimeout(context.Background(), stateLimit)
	defer cancel()
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	rack.Name, rack.Dir = fmt.Sprintf("%.24s-%d", name, os.Getpid()), filepath.Join(dir, "lab")
	rack.Accel = lab.TCG
	rack.Log = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	l, err := lab.Up(ctx, rack)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, art: art, lab: l, log: filepath.Join(dir, "ingotd.log")}
	t.Cleanup(r.down)
	// Beside the files made for tests, which are linked into it.
	r.folder, err = filepath.Abs(filepath.Join("../../build/test/images", fmt.Sprintf("%s-%d", name, os.Getpid())))
	if err == nil {
		err = os.MkdirAll(r.folder, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.add(art.tinyZst, art.tiny.file)

	r.conf, r.file = map[string]any{}, filepath.Join(dir, "ingotd.yaml")
	r.configure(append([]option{
		set("data_dir", filepath.Join(dir, "data")), set("log_level", "debug"), set("hostname", "conductor-1"),
		set("netboot.dhcp", l.Status().Netboot), set("netboot.interface", "prov"),
		set("netboot.range_start", l.Subnet.Addr().String()[:len(l.Subnet.Addr().String())-1]+"50"),
		set("netboot.range_end", l.Subnet.Addr().String()[:len(l.Subnet.Addr().String())-1]+"99"),
		set("netboot.ramdisk_dir", art.ramdisk), set("netboot.images_dir", r.folder),
		set("netboot.kernel_params", labParams),
		set("deploy.boot_timeout", "5m"), set("power.sync_interval", "10s"),
	}, opts...)...)
	if r.con, err = l.StartConductor(ctx, art.ingotd, r.file, "127.0.0.1:0", r.log); err != nil {
		t.Fatal(err)
	}
	ln, err := l.Listen("tcp", l.Host.String()+":9000")
	if err != nil {
		t.Fatal(err)
	}
	r.images = startImageServer(t, ln, r.folder)
	return r
}

// add has a file served under a name.
func (r *rig) add(file, name string) {
	r.t.Helper()
	if err := os.Link(file, filepath.Join(r.folder, name)); err != nil {
		r.t.Fatal(err)
	}
}

// configure writes the conductor's configuration, with more options applied. It counts from the conductor's next start.
func (r *rig) configure(opts ...option) {
	r.t.Helper()
	for _, o := range opts {
		o(r.conf)
	}
	text, err := json.Marshal(r.conf) // JSON is YAML
	if err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(r.file, text, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// down ends everything, and shows what helps to understand a failure.
func (r *rig) down() {
	if r.t.Failed() {
		r.tail("ingotd", r.log, 12000)
		for _, m := range r.lab.Nodes() {
			r.tail("console of "+m.Spec.Name, m.ConsoleLog, 5000)
		}
		// of the site's DHCP server and relay, if it has any
		logs, _ := filepath.Glob(filepath.Join(r.lab.Dir, "site", "*.log"))
		for _, file := range logs {
			r.tail(filepath.Base(file), file, 5000)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), stateLimit)
	defer cancel()
	if err := r.lab.Down(ctx); err != nil {
		r.t.Errorf("take the lab down: %v", err)
	}
	if r.con != nil && r.con.PID() != 0 {
		r.t.Errorf("ingotd still runs after the lab went down")
	}
	if err := os.RemoveAll(r.folder); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) tail(what, file string, n int) {
	b, err := os.ReadFile(file)
	if err != nil {
		r.t.Logf("%s: %v", what, err)
		return
	}
	r.t.Logf("---- end of %s ----\n%s", what, b[max(0, len(b)-n):])
}

// testWriter sends a log to the test's.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// object is a JSON object of the API.
type object map[string]any

func (o object) str(key string) string { s, _ := o[key].(string); return s }

// call makes a request of the API and returns status and body.
func (r *rig) call(method, path string, body any) (int, object) {
	r.t.Helper()
	return kit.Request(r.t, method, r.con.URL()+path, "latest", body, r.headers...)
}

// must is call, for what has to work. Like other clients it asks again while something else is under way on the node.
func (r *rig) must(method, path string, body any) object {
	r.t.Helper()
	var code int
	var o object
	kit.Eventually(r.t, stateLimit, fmt.Sprintf("%s %s finds the node free", method, path), func() bool {
		code, o = r.call(method, path, body)
		return code != http.StatusConflict ||
			!strings.Contains(fmt.Sprint(o), "retry after the current operation is completed")
	})
	if code >= 300 {
		r.t.Fatalf("%s %s = %d %v", method, path, code, o)
	}
	return o
}

// enrol makes a node for the machine, with a port, and brings it to available without touching it: no inspection, no
// cleaning.
func (r *rig) enrol(m *lab.Machine) string {
	r.t.Helper()
	n := r.must("POST", "/v1/nodes", object{
		"name": m.Spec.Name, "driver": "ipmi", "automated_clean": false, "driver_info": controller(m),
		"properties": object{"capabilities": "boot_mode:" + string(m.Spec.Firmware)},
	})
	r.must("POST", "/v1/ports", object{"node_uuid": n.str("uuid"), "address": m.MAC})
	r.provision(m.Spec.Name, "manage", nil)
	r.wait(m.Spec.Name, "manageable", stateLimit)
	r.provision(m.Spec.Name, "provide", nil)
	r.wait(m.Spec.Name, "available", stateLimit)
	return n.str("uuid")
}

func controller(m *lab.Machine) object {
	return object{"ipmi_address": m.BMCAddress, "ipmi_username": m.User, "ipmi_password": m.Password}
}

// source makes the machine's next deployment use an image.
func (r *rig) source(name, url, sha256 string, more ...any) {
	r.t.Helper()
	info := object{"image_source": url, "image_os_hash_algo": "sha256", "image_os_hash_value": sha256}
	for i := 0; i+1 < len(more); i += 2 {
		info[more[i].(string)] = more[i+1]
	}
	r.must("PATCH", "/v1/nodes/"+name, []object{{"op": "add", "path": "/instance_info", "value": info}})
}

// ours is the URL of an image on the conductor's own server.
func (r *rig) ours(i image) string {
	return fmt.Sprintf("http://%s:8080/images/%s", r.lab.Host, i.file)
}

// provision requests a change of state.
func (r *rig) provision(name, target string, more object) {
	r.t.Helper()
	body := object{"target": target}
	for k, v := range more {
		body[k] = v
	}
	r.must("PUT", "/v1/nodes/"+name+"/states/provision", body)
}

// hostname is a config drive that names the machine.
func hostname(name string) object {
	return object{"configdrive": object{
		"meta_data": object{"hostname": name, "uuid": "2f6f4a4c-93a5-4a48-8e37-0a4bb1a8a7f5",
			"public_keys": object{"me": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE1 me@example"}},
		"user_data": "#cloud-config\n{}\n",
	}}
}

// wait waits until the node is in a state, and fails as soon as it ends in another failure.
func (r *rig) wait(name, want string, limit time.Duration) object {
	r.t.Helper()
	var n object
	kit.Eventually(r.t, limit, fmt.Sprintf("node %s becomes %q", name, want), func() bool {
		n = r.must("GET", "/v1/nodes/"+name, nil)
		s := n.str("provision_state")
		if s != want && (strings.HasSuffix(s, "failed") || s == "error") {
			r.t.Fatalf("node %s is %q, want %q: %s", name, s, want, n.str("last_error"))
		}
		return s == want
	})
	return n
}

// progress waits until the image write of the node is seen to have done a share of its bytes.
func (r *rig) progress(name string, share float64) {
	r.t.Helper()
	what := fmt.Sprintf("node %s has written %.0f %%", name, share*100)
	kit.Eventually(r.t, bootLimit, what, func() bool {
		p := r.must("GET", "/ingot/v1/nodes/"+name+"/progress", nil)
		if s := p.str("provision_state"); s == "deploy failed" || s == "active" {
			r.t.Fatalf("%s: that was not seen before it was %s: %s", what, s, p.str("last_error"))
		}
		run, _ := p["running"].(map[string]any)
		done, _ := run["bytes"].(float64)
		total, _ := run["total"].(float64)
		return run["step"] == "write_image" && total > 0 && done/total >= share
	})
}

// boots waits until the deployed tiny system reports its identity on the console, from an offset on.
func (r *rig) boots(m *lab.Machine, from int64, host string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), osLimit)
	defer cancel()
	if err := m.WaitConsole(ctx, from, "host="+host+" "); err != nil {
		r.t.Fatalf("the deployed system does not say host=%s: %v", host, err)
	}
}

// logged waits until ingotd's log has a line with all the words.
func (r *rig) logged(limit time.Duration, words ...string) {
	r.t.Helper()
	kit.Eventually(r.t, limit, fmt.Sprintf("ingotd logs %q", words), func() bool {
		b, err := os.ReadFile(r.log)
		if err != nil {
			r.t.Fatal(err)
		}
	lines:
		for line := range strings.Lines(string(b)) {
			for _, w := range words {
				if !strings.Contains(line, w) {
					continue lines
				}
			}
			return true
		}
		return false
	})
}

// disk6 is a machine's usual disk: above the 4 GiB below which no disk is taken for a root disk.
func disk6() []lab.DiskSpec { return []lab.DiskSpec{{SizeBytes: 6 << 30}} }
