package packages

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
)

// before is the folder with the packages of the last release, or, as long as there is none, with those of this source.
func before(t *testing.T) string {
	t.Helper()
	tags := strings.Fields(kit.Run(t, "git", "-C", source, "tag", "--list", "v[0-9]*", "--merged", "HEAD~1",
		"--sort=-version:refname"))
	if len(tags) == 0 {
		return packages(t)
	}
	tree := filepath.Join(t.TempDir(), "tree")
	kit.Run(t, "git", "-C", source, "worktree", "add", "--quiet", "--detach", tree, tags[0])
	t.Cleanup(func() {
		out, err := exec.Command("git", "-C", source, "worktree", "remove", "--force", tree).CombinedOutput()
		if err != nil {
			t.Errorf("remove the source of the last release: %v\n%s", err, out)
		}
	})
	out := t.TempDir()
	kit.Run(t, "go", "-C", filepath.Join(tree, "tools/package"), "run", ".", "-source", tree, "-arch", runtime.GOARCH,
		"-ramdisk", filepath.Join(out, "no-ramdisk"), "-out", out)
	return out
}

// TestUpgradeKeepsAnOldStore: a data directory that d926546 wrote (testdata/record-store.sh), and a node of the release
// before this one, are there after an upgrade of the packages.
func TestUpgradeKeepsAnOldStore(t *testing.T) {
	kit.NeedPrograms(t, "zstd")
	r := newRoot(t)
	r.systemd()
	old := before(t)
	r.install(one(t, old, "ingotd_*.deb"), one(t, old, "ingot_*.deb"))
	agents := kit.FreeAddr(t)
	kit.Run(t, "unshare", "--net", "chroot", r.dir, "ingotd", "setup", "--yes", "--interface", "none", "--auth", "none",
		"--advertise", agents)
	appendTo(t, filepath.Join(r.dir, "etc/ingot/ingotd.yaml"), "  listen: "+agents+"\n") // its last section is agents
	data := filepath.Join(r.dir, "var/lib/ingot")
	kit.Run(t, "sh", "-c", `zstd -dc "$1" | tar -x -C "$2"`, "sh", absolute(t, "testdata/store-d926546.tar.zst"), data)
	r.run("chown", "--recursive", "ingot:ingot", "/var/lib/ingot")

	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	c := r.start(api)
	ingot := func(args ...string) string {
		t.Helper()
		return r.run(append([]string{"ingot", "--endpoint", c.url}, args...)...)
	}
	ingot("node", "create", "newer", "--driver", "fake-hardware")
	c.stop(t)

	second := later(t)
	r.install(one(t, second, "ingotd_*.deb"), one(t, second, "ingot_*.deb"))
	c = r.start(api)
	get := func(path string) object {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("X-OpenStack-Ironic-API-Version", "1.90")
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var o object
		if err := json.NewDecoder(resp.Body).Decode(&o); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("GET %s: %s, %v %v", path, resp.Status, o, err)
		}
		return o
	}
	for name, want := range map[string]string{"web1": "active", "web2": "available", "spare": "manageable",
		"newer": "enroll"} {
		if got := get("/v1/nodes/" + name).text("provision_state"); got != want {
			t.Errorf("after the upgrade %s is %q, want %q", name, got, want)
		}
	}
	web1 := get("/v1/nodes/web1")
	if web1.text("description") != "of the old version" || web1.at("traits", 0) != "CUSTOM_OLD" ||
		web1.text("driver_info", "redfish_password") != "******" || web1.text("instance_info", "image_source") == "" {
		t.Errorf("after the upgrade web1 is %v", web1)
	}
	if got := get("/v1/nodes/spare").text("maintenance_reason"); got != "fan" {
		t.Errorf("after the upgrade spare is in maintenance because of %q", got)
	}
	if got := get("/v1/allocations/order-7"); got.text("node_uuid") != get("/v1/nodes/web2").text("uuid") {
		t.Errorf("after the upgrade the allocation is %v", got)
	}
	ports := get("/v1/ports/detail?address=52:54:00:12:34:56").list("ports")
	if len(ports) != 1 || ports[0].text("node_uuid") != web1.text("uuid") {
		t.Errorf("after the upgrade the ports of web1 are %v", ports)
	}
	if got := get("/v1/deploy_templates/CUSTOM_QUICK").text("steps", 0, "step"); got != "erase_devices_metadata" {
		t.Errorf("after the upgrade the template's step is %q", got)
	}
	history := ingot("node", "history", "web1")
	if !strings.Contains(history, "adopt") || !strings.Contains(history, "manage") {
		t.Errorf("after the upgrade the history of web1 is:\n%s", history)
	}
	ingot("node", "undeploy", "web1")
	c.stop(t)
}

func appendTo(t *testing.T, file, text string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
