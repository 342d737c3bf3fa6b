package machine

import (
	_ "embed"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/initramfs/archive"
	"github.com/ingot-metal/ingot/initramfs/kernel"
	"github.com/ingot-metal/ingot/proto/steparg"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

//go:embed testdata/writer-init.sh
var writerInit []byte

// writerModules are what the writer's machine needs of its kernel.
var writerModules = strings.Fields(`virtio_pci virtio_net virtio_rng iscsi_tcp sd_mod crc32c_generic crct10dif_generic?`)

// writerMachine is a second machine, which has Debian's kernel, Debian's open-iscsi and `ingot writer`.
func writerMachine(t *testing.T, endpoint string) kit.VM {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cache, err := kernel.DefaultCache()
	must(err)
	silent := slog.New(slog.DiscardHandler)
	debs, err := kernel.FetchPackages(t.Context(),
		map[string]string{"open-iscsi": "", "libisns0": "", "libopeniscsiusr": ""}, cache, silent)
	must(err)
	root := t.TempDir()
	for _, d := range debs {
		kit.Run(t, "dpkg-deb", "-x", d, root)
	}
	linux, err := kernel.Fetch(t.Context(), kernel.Full, cache, silent)
	must(err)
	tree, err := kernel.Open(t.Context(), linux, cache)
	must(err)
	set, err := tree.Select(writerModules)
	must(err)
	a := archive.New()
	add := func(name, from string) {
		t.Helper()
		b, err := os.ReadFile(from)
		must(err)
		must(a.File(name, b, 0o755))
	}
	var order []string
	for _, m := range set.LoadOrder() {
		b, err := tree.Read(m)
		must(err)
		order = append(order, filepath.Base(m.File))
		must(a.File("lib/modules/"+filepath.Base(m.File), b, 0o644))
	}
	must(a.File("lib/modules/order", []byte(strings.Join(order, "\n")+"\n"), 0o644))
	must(a.File("init", writerInit, 0o755))
	must(a.File("etc/passwd", []byte("root::0:0:root:/:/bin/sh\n"), 0o644))
	must(a.File("etc/iscsi/initiatorname.iscsi", []byte("InitiatorName="+initiator+"\n"), 0o600))
	add("etc/iscsi/iscsid.conf", filepath.Join(root, "etc/iscsi/iscsid.conf"))
	add("bin/busybox", "/bin/busybox")
	for _, name := range []string{"ingot", "ingot-agent"} {
		add("bin/"+name, made.Program(t, name))
	}
	library := regexp.MustCompile(`(?m)(?:=> |^\s*)(/\S+) \(0x`)
	for _, name := range []string{"iscsid", "iscsiadm"} {
		file := filepath.Join(root, "sbin", name)
		add("bin/"+name, file)
		ldd := exec.CommandContext(t.Context(), "ldd", file)
		ldd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(root, "usr/lib/x86_64-linux-gnu"))
		out, err := ldd.CombinedOutput()
		must(err)
		for _, m := range library.FindAllStringSubmatch(string(out), -1) {
			to := "lib/x86_64-linux-gnu/" + filepath.Base(m[1])
			if strings.HasPrefix(m[1], "/lib64/") {
				to = m[1][1:]
			}
			add(to, m[1])
		}
	}
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "var"} {
		must(a.Dir(dir, 0o755))
	}
	must(a.CharDev("dev/console", 0o600, 5, 1))
	initrd := filepath.Join(root, "initrd")
	f, err := os.Create(initrd)
	must(err)
	_, err = a.Write(f)
	must(err)
	must(f.Close())
	return kit.VM{Kernel: tree.Vmlinuz(), Initrd: initrd, Append: "quiet endpoint=" + endpoint, MemoryMiB: 768,
		Timeout: bootLimit + osLimit, Args: nic()}
}

// lender is a conductor's API, as far as a writer uses it.
type lender struct {
	mu     sync.Mutex
	lent   []rest.Export
	failed []string
}

func (l *lender) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case r.URL.Path == "/ingot/v1/exports" && r.FormValue("initiator_name") == initiator:
		if err := json.NewEncoder(w).Encode(rest.Exports{Exports: l.lent}); err != nil {
			panic(err)
		}
	case strings.HasSuffix(r.URL.Path, "/export_failure"):
		var body struct{ Reason string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			panic(err)
		}
		l.failed, l.lent = append(l.failed, body.Reason), nil
		w.WriteHeader(http.StatusNoContent)
	default:
		http.NotFound(w, r)
	}
}

// TestWrittenWithOpenISCSI: a second machine with Debian's open-iscsi and `ingot writer` writes the disk that the
// agent lends. An image with another digest is reported, and its disk not taken for written. The writer's machine loses
// its power in the middle of the next one: when it is back it begins again, and the disk boots.
func TestWrittenWithOpenISCSI(t *testing.T) {
	kit.NeedPrograms(t, "qemu-system-x86_64", "busybox", "dpkg-deb", "apt-get", "ldd")
	tiny := made.Image(t, made.Tiny)
	zst := tiny.File(tiny.Zst)
	half, back := make(chan struct{}), make(chan struct{}) // half of the image is sent; the machine is back
	var once sync.Once
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow/"+zst.File {
			select {
			case <-back:
			default:
				b, err := os.ReadFile(tiny.Zst)
				if err != nil {
					panic(err)
				}
				w.Header().Set("Content-Length", "999999999")
				_, _ = w.Write(b[:len(b)/2])
				_ = http.NewResponseController(w).Flush()
				once.Do(func() { close(half) })
				select {
				case <-back:
				case <-r.Context().Done():
				}
				return
			}
		}
		http.ServeFile(w, r, tiny.Zst)
	}))
	defer files.Close()
	_, port, err := net.SplitHostPort(kit.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	args, err := json.Marshal(map[string]any{"initiator_name": initiator, "initiator_address": "10.0.2.2",
		"chap_user": "ingot", "chap_password": password, "window": 600, "quiet": 1})
	if err != nil {
		t.Fatal(err)
	}
	export := node.PlanStep{Interface: "deploy", Name: "export_disk", Args: args}
	d := newDesk(t, plan("direct", node.PhaseDeploy, tinyServer(t)(nil)), plan("wrong", node.PhaseDeploy, export),
		plan("right", node.PhaseDeploy, export, prepareBoot))
	d.keepGoing = true
	api := &lender{}
	server := httptest.NewServer(api)
	defer server.Close()
	d.before = func(p node.Plan) {
		image := map[string]any{"image_source": "http://" + host(files.Listener.Addr().String()) + "/slow/" + zst.File,
			"image_os_hash_algo": "sha256", "image_os_hash_value": zst.SHA256, "image_type": "whole-disk"}
		if p.ID == "wrong" {
			image["image_source"] = strings.Replace(image["image_source"].(string), "/slow", "", 1)
			image["image_os_hash_value"] = strings.Repeat("0", 64)
		}
		api.mu.Lock()
		defer api.mu.Unlock()
		if api.lent = nil; p.ID != "direct" {
			api.lent = []rest.Export{{ID: p.ID, NodeUUID: d.node.UUID, Portal: "10.0.2.2:" + port,
				Target: steparg.ExportTarget, InitiatorName: initiator, User: "ingot", Password: password,
				Image: image}}
		}
	}
	target := kit.TempDisk(t, 8<<30)
	vm := agentOf(t, made.RamdiskFull, d, "-netdev", "user,id=n0,hostfwd=tcp:127.0.0.1:"+port+"-:3260", "-device",
		"virtio-net-pci,netdev=n0,mac=52:54:00:aa:00:01,romfile=")
	vm.Disks = []string{target}
	machine := kit.Start(t, vm)
	second := writerMachine(t, "http://"+host(server.Listener.Addr().String()))
	writer := kit.Start(t, second)
	ended := func(what string, c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(bootLimit):
			t.Fatalf("%s does not come; the machine:\n%s\nthe writer:\n%s", what, machine.Console(), writer.Console())
		}
	}
	ended("half of the image", half)
	first := writer.Console()
	writer.End()
	close(back)
	writer = kit.Start(t, second)
	ended("the end of all plans", machine.Ended)

	if r := d.steps["wrong"]["export_disk"]; r.Outcome != node.OutcomeFailed {
		t.Errorf("an image with another digest: %+v", r)
	}
	api.mu.Lock()
	failed := api.failed
	api.mu.Unlock()
	if len(failed) != 1 || !strings.Contains(failed[0], "sha256") {
		t.Errorf("the writer reported %q", failed)
	}
	var r struct {
		Received int64   `json:"bytes_received"`
		Seconds  float64 `json:"seconds"`
	}
	d.result("export_disk", &r)
	var direct struct {
		TookMS int64 `json:"took_ms"`
	}
	d.result("write_image", &direct)
	took := regexp.MustCompile(`the disk is written.* took=(\S+)`).FindStringSubmatch(writer.Console())
	if took == nil {
		t.Fatalf("the writer does not say that it wrote the disk:\n%s", writer.Console())
	}
	t.Logf("direct %.1f s; by the writer %s with login and logout, %d bytes came", float64(direct.TookMS)/1000, took[1],
		r.Received)
	for name, console := range map[string]string{"machine": machine.Console(), "writer": first + writer.Console()} {
		if strings.Contains(console, password) {
			t.Errorf("the console of the %s has the password", name)
		}
	}
	writer.End()
	system := kit.Boot(t, kit.VM{Disks: []string{target}, Timeout: osLimit, Until: "INGOT-TINY", Args: nic()})
	if !strings.Contains(system, "INGOT-TINY") {
		t.Errorf("the written disk does not boot:\n%s", system)
	}
}
