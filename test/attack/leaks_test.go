package attack

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/agents/agentstest"
	"github.com/ingot-metal/ingot/proto/agentv1"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// TestPatchErrorsHoldNoValues: a patch that fails names the path and the reason, never what the document holds.
func TestPatchErrorsHoldNoValues(t *testing.T) {
	w := newWorld(t)
	w.node("n", `"driver_info":{"ipmi_password":"canary-bmc","accounts":[{"password":"canary-list"}]},"instance_info":{"image_basic_auth_password":"canary-image"}`)
	for _, patch := range []string{
		`[{"op":"remove","path":"/extra/none"}]`, `[{"op":"replace","path":"/extra/none/deep","value":1}]`,
		`[{"op":"test","path":"/driver_info/ipmi_password","value":"x"}]`,
		`[{"op":"copy","from":"/driver_info","path":"/extra/x/y"}]`,
		`[{"op":"move","from":"/nothing","path":"/extra/x"}]`,
	} {
		status, _, out := w.ask(olga, "PATCH", "/v1/nodes/n", patch)
		if status < 400 {
			t.Errorf("%s = %d", patch, status)
		}
		w.absent("the answer to "+patch, out, "canary")
	}
	w.absent("the log", w.d.Log.String(), "canary")
	w.absent("the node", w.want(200, olga, "GET", "/v1/nodes/n", ""), "canary")
}

// canaries plants a secret in everything that can hold one, and gives the paths of what can be patched.
func (w *world) canaries() []string {
	w.Helper()
	id := w.node("n", `"driver_info":{"ipmi_address":"192.0.2.1","ipmi_username":"u","ipmi_password":"canary-1","ipmi_hex_kg_key":"canary-2","snmp_community":"canary-3",
		"accounts":[{"password":"canary-4"},[{"token":"canary-5"}]],"credentials":{"a":"canary-6"},"deploy_kernel":"http://u:canary-7@192.0.2.2/k?token=canary-8"},
		"instance_info":{"configdrive":{"user_data":"canary-9"},"image_source":"http://u:canary-10@192.0.2.2/i?X-Signature=canary-11","image_url":"canary-12",
		"image_pull_secret":"canary-13","image_basic_auth_password":"canary-14","image_mirrors":["http://u:canary-15@192.0.2.2/i"],
		"image_checksum":"http://u:canary-16@192.0.2.2/sums?token=canary-17"}`)
	uuid := w.uuid
	w.want(201, root, "POST", "/v1/ports", `{"node_uuid":"`+id+`","address":"52:54:00:00:00:01"}`)
	target := uuid(w.want(201, root, "POST", "/v1/volume/targets", `{"node_uuid":"`+id+`","boot_index":0,"volume_id":"v","volume_type":"iscsi",
		"properties":{"auth_username":"u","auth_password":"canary-20","portals":[{"chap":{"discovery_auth_password":"canary-21"}}]}}`))
	step := `"interface":"deploy","step":"write_image","args":{"pull_secret":"canary-22","list":[{"password":"canary-23"}],"url":"http://u:canary-24@192.0.2.2/"}`
	template := uuid(
		w.want(201, root, "POST", "/v1/deploy_templates", `{"name":"CUSTOM_T","steps":[{`+step+`,"priority":50}]}`))
	runbook := uuid(w.want(201, root, "POST", "/v1/runbooks", `{"name":"CUSTOM_R","steps":[{`+step+`,"order":1}]}`,
		"X-OpenStack-Ironic-API-Version", "1.92"))
	rule := uuid(w.want(201, root, "POST", "/v1/inspection_rules", `{"sensitive":true,"actions":[{"op":"set-attribute","args":{"path":"/extra/a","value":"canary-25"}},
		{"op":"fail","args":{"msg":"canary-26"}}]}`, "X-OpenStack-Ironic-API-Version", "1.96"))
	w.absent("the answer of a pool", w.want(201, root, "PUT", "/ingot/v1/pools/p", `{"resource_class":"x","count":1,"image":{"image_source":"http://u:canary-27@192.0.2.2/i",
		"image_checksum":"`+strings.Repeat("ab", 32)+`"}}`), "canary-")
	w.want(202, root, "PUT", "/v1/nodes/n/states/provision", `{"target":"manage"}`)
	return []string{"/v1/nodes/n", "/v1/volume/targets/" + target, "/v1/deploy_templates/" + template,
		"/v1/runbooks/" + runbook, "/v1/inspection_rules/" + rule}
}

// newest is the newest version of the API, as a header.
var newest = []string{"X-OpenStack-Ironic-API-Version", "latest"}

// TestCanaries: secrets planted in all that can hold one are in no answer, no error, no log, no event, no trace and no
// backup.
func TestCanaries(t *testing.T) {
	w := newWorld(t)
	patched := w.canaries()
	for _, c := range []struct{ method, path, body string }{
		{"PUT", "/v1/nodes/n/states/provision", `{"target":"active","configdrive":["canary-30"]}`},
		{"PUT", "/v1/nodes/n/states/provision", `{"target":"active","configdrive":{"user_data":5,"canary":1}}`},
		{"PUT", "/v1/nodes/n/states/provision",
			`{"target":"active","deploy_steps":[{"interface":"deploy","step":"write_image","args":["canary-31"],"priority":1}]}`},
		{"PUT", "/v1/nodes/n/states/provision", `{"target":"active","configdrive":{"user_data":"canary-32"}}`},
		{"PUT", "/v1/nodes/n/states/provision",
			`{"target":"clean","clean_steps":[{"interface":"deploy","step":"erase_devices","args":{"password":"canary-33"}}]}`},
		{"PUT", "/v1/nodes/n/states/provision",
			`{"target":"clean","clean_steps":[{"interface":"deploy","step":"none","args":{"password":"canary-34"}}]}`},
		{"PUT", "/v1/nodes/n/states/provision", `{"target":"rescue","rescue_password":"canary-35"}`},
		{"PUT", "/v1/nodes/n/states/provision", `{"target":"rescue","rescue_password":["canary-36"]}`},
		{"POST", "/ingot/v1/nodes/n/plan", `{"target":"active","configdrive":{"user_data":"canary-37"}}`},
		{"POST", "/ingot/v1/nodes/n/plan",
			`{"target":"clean","clean_steps":[{"interface":"deploy","step":"erase_devices","args":{"password":"canary-38"}}]}`},
		{"POST", "/v1/nodes", `{"driver":"fake-hardware","driver_info":"canary-39"}`},
		{"POST", "/v1/nodes", `{"driver":"fake-hardware","instance_info":[{"password":"canary-40"}]}`},
		{"POST", "/v1/nodes", `[{"driver_info":{"password":"canary-41"}}]`},
		{"POST", "/v1/volume/targets",
			`{"node_uuid":"x","boot_index":0,"volume_id":"v","volume_type":"iscsi","properties":["canary-42"]}`},
		{"POST", "/v1/inspection_rules",
			`{"sensitive":true,"actions":[{"op":"canary-43","args":{"canary":"canary-44"}}]}`},
		{"POST", "/v1/deploy_templates",
			`{"name":"CUSTOM_U","steps":[{"interface":"deploy","step":"a","args":["canary-45"],"priority":50}]}`},
		{"POST", "/v1/heartbeat/n",
			`{"callback_url":"http://192.0.2.3","agent_token":["canary-46"],"agent_version":"1"}`},
		{"PATCH", "/v1/nodes/n", `[{"op":"add","path":"/driver_info","value":["canary-47"]}]`},
		{"PATCH", "/v1/nodes/n", `[{"op":"add","path":"/instance_info/root_device","value":{"password":"canary-48"}}]`},
		{"PATCH", "/v1/nodes/n", `[{"op":"add","path":"/driver_info/a/b/c","value":"canary-49"}]`},
	} {
		_, _, out := w.ask(root, c.method, c.path, c.body, newest...)
		w.absent(fmt.Sprintf("the answer to %s %s %s", c.method, c.path, c.body), out, "canary-")
	}
	w.fuzzPatches(patched)
	w.all(root)
	w.all(olga)
	w.backups()
	w.absent("the log", w.d.Log.String(), "canary-")
}

// backups looks for canaries in the output of making, refusing and restoring a backup, in its list of contents, and in
// the file itself, whose secrets are encrypted even if it has the key.
func (w *world) backups() {
	w.Helper()
	dir := w.TempDir()
	run := func(ok bool, args ...string) {
		w.Helper()
		cmd := exec.Command(made.Program(w, "ingotd"), args...)
		cmd.Env = append(os.Environ(), "INGOT_LOG_LEVEL=debug")
		out, err := cmd.CombinedOutput()
		if (err == nil) != ok || len(out) == 0 {
			w.Errorf("ingotd %s = %v\n%s", args, err, out)
		}
		w.absent("the output of ingotd "+strings.Join(args, " "), string(out), "canary-")
	}
	for _, key := range []string{"--with-key=false", "--with-key"} {
		file := filepath.Join(dir, "backup"+key)
		run(true, "backup", "--data-dir", w.d.Dir, key, file)
		run(false, "backup", "--data-dir", w.d.Dir, key, file)                    // it is there already
		run(false, "restore", "--data-dir", filepath.Join(dir, key), "/dev/null") // no backup
		run(key == "--with-key", "restore", "--data-dir", filepath.Join(dir, key), file)
		b, err := os.ReadFile(file)
		if err != nil {
			w.Fatal(err)
		}
		w.absent("a backup "+key, string(b), "canary-")
		var list strings.Builder
		r := tar.NewReader(bytes.NewReader(b))
		for {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				w.Fatal(err)
			}
			fmt.Fprintf(&list, "%+v\n", h)
		}
		w.absent("the list of a backup", list.String(), "canary-")
		if strings.Count(list.String(), "\n") < 4 || !bytes.Contains(b, []byte("CUSTOM_T")) {
			w.Errorf("a backup holds %s: that shows nothing", list.String())
		}
	}
	// a whole database is there
	run(false, "restore", "--data-dir", filepath.Join(dir, "--with-key"), filepath.Join(dir, "backup--with-key"))
}

// all reads what one of the people can read, as far as canaries has made it, and looks for canaries.
func (w *world) all(who string) {
	w.Helper()
	routes, err := os.ReadFile("../../conductor/api/testdata/access.golden")
	if err != nil {
		w.Fatal(err)
	}
	read := 0
	for line := range strings.Lines(string(routes)) {
		_, path, ok := strings.Cut(line, "  GET ")
		path, _, _ = strings.Cut(path, " ")
		if !ok || path == "/ingot/v1/events" {
			continue
		}
		for placeholder, value := range map[string]string{"{node}": "n", "{template}": "CUSTOM_T",
			"{runbook}": "CUSTOM_R", "{driver}": "fake-hardware", "{pool}": "p"} {
			path = strings.ReplaceAll(path, placeholder, value)
		}
		if strings.Contains(path, "{") {
			continue
		}
		for _, query := range []string{"", "?detail=true"} {
			status, _, out := w.ask(who, "GET", path+query, "", newest...)
			if status < 400 {
				read++
			}
			w.absent("GET "+path+query+" as "+who, out, "canary-")
		}
	}
	if read < 20 {
		w.Errorf("%s could read %d of the routes: that shows nothing", who, read)
	}
	ctx, cancel := context.WithTimeout(w.Context(), 400*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", w.d.URL+"/ingot/v1/events?since=0", nil)
	if err != nil {
		w.Fatal(err)
	}
	req.Header.Set("X-Auth-Token", w.tokens[who])
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	events := 0
	for sc := bufio.NewScanner(resp.Body); sc.Scan(); events++ {
		w.absent("the events", sc.Text(), "canary-")
	}
	if events < 3 {
		w.Errorf("%s read %d lines of events: that shows nothing", who, events)
	}
}

// fuzzPatches sends patches made by chance, most of which fail, without a canary of their own. INGOT_FULL sends ten
// times as many.
func (w *world) fuzzPatches(paths []string) {
	w.Helper()
	n, seed := 300, uint64(1)
	if os.Getenv("INGOT_FULL") != "" {
		n, seed = 3000, uint64(time.Now().UnixNano())
	}
	r := rand.New(rand.NewPCG(seed, 0))
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	failed := 0
	for range n {
		at := pick(paths...)
		ops := make([]string, 1+r.IntN(2))
		for i := range ops {
			path := ""
			for range 1 + r.IntN(4) {
				path += "/" + pick("driver_info", "instance_info", "extra", "properties", "steps", "actions",
					"conditions", "args", "accounts", "0", "1", "-", "password", "ipmi_password", "none", "configdrive",
					"user_data", "auth_password", "portals", "name", "description", "value", "~1", "", "phase",
					"priority", "order")
			}
			ops[i] = fmt.Sprintf(`{"op":%q,"path":%q,"from":"/driver_info","value":%s}`,
				pick("add", "replace", "remove", "remove", "test", "move", "copy"), path,
				pick("1", `"x"`, "null", "[]", "{}", `{"a":[1]}`, `"{inventory[cpu"`, "-5", `"******"`))
			if r.IntN(4) > 0 {
				ops[i] = strings.Replace(ops[i], `"from":"/driver_info",`, "", 1)
			}
		}
		body := "[" + strings.Join(ops, ",") + "]"
		status, _, out := w.ask(root, "PATCH", at, body, newest...)
		if status >= 400 {
			failed++
		}
		w.absent(fmt.Sprintf("the answer to PATCH %s %s (seed %d)", at, body, seed), out, "canary-")
	}
	if failed < n/4 || failed == n {
		w.Errorf("%d of %d patches failed: that shows nothing", failed, n)
	}
}

// TestLookupShowsNoInstance: a stranger who knows an address of a machine gets the data with which its agent starts,
// and nothing of the instance.
func TestLookupShowsNoInstance(t *testing.T) {
	w := newWorld(t)
	id := w.node("n", `"inspect_interface":"agent","driver_info":{"ipmi_password":"canary-bmc"},"properties":{"root_device":{"wwn":"0x1"},"bmc_password":"canary-property"},
		"instance_info":{"image_source":"http://u:canary-url@192.0.2.2/canary-path?canary-query=1","canary-key":1,"capabilities":{"boot_mode":"uefi"}}`)
	w.want(201, root, "POST", "/v1/ports", `{"node_uuid":"`+id+`","address":"52:54:00:00:00:02"}`)
	w.state("n", "manage", "manageable")
	w.want(202, root, "PUT", "/v1/nodes/n/states/provision", `{"target":"inspect"}`)
	ingotd.Wait(t, "the agent is expected", func() bool {
		status, _, _ := w.ask(anonymous, "GET", "/v1/lookup?addresses=52:54:00:00:00:02", "")
		return status == 200
	})
	out := w.want(200, anonymous, "GET", "/v1/lookup?node_uuid="+id, "")
	w.absent("lookup", out, "canary", "image_source")
	for _, needed := range []string{id, `"capabilities":{"boot_mode":"uefi"}`, `"root_device":{"wwn":"0x1"}`} {
		if !strings.Contains(out, needed) {
			t.Errorf("lookup lacks %s: %s", needed, out)
		}
	}
}

// TestTenancyHidesWhatWasBefore: what a lessee may not see of an error is in no view of it, and the next lessee sees
// nothing of the one before.
func TestTenancyHidesWhatWasBefore(t *testing.T) {
	w := newWorld(t)
	id := w.node("n", `"driver_info":{"fake_fail":{"canary-error":1}}`)
	w.lease("n", "shop")
	w.want(202, leo, "PUT", "/v1/nodes/n/states/provision", `{"target":"manage"}`)
	ingotd.Wait(t, "the work has failed", func() bool {
		return strings.Contains(w.want(200, root, "GET", "/v1/nodes/n/states", ""), "canary-error")
	})
	views := []string{"/v1/nodes/n", "/v1/nodes/n/states", "/ingot/v1/nodes/n/progress", "/ingot/v1/nodes/n/steps",
		"/ingot/v1/nodes/n/timeline", "/ingot/v1/log?node=" + id, "/ingot/v1/nodes/n/quarantine",
		"/ingot/v1/nodes/n/warm", "/v1/nodes/detail"}
	for _, view := range views {
		w.absent(view+" as the lessee", w.want(200, leo, "GET", view, ""), "canary-error")
		w.want(200, olga, "GET", view, "")
	}
	owners := w.want(200, olga, "GET", "/ingot/v1/nodes/n/steps", "") +
		w.want(200, olga, "GET", "/ingot/v1/nodes/n/timeline", "")
	if !strings.Contains(owners, "canary-error") || !strings.Contains(owners, "leo") {
		t.Errorf("the owner does not see the error and who asked: %s", owners)
	}
	w.absent("a search in the log", w.want(200, leo, "GET", "/ingot/v1/log?text=canary-error", ""), "uuid")
	w.want(202, root, "PUT", "/v1/nodes/n/states/provision", `{"target":"manage"}`)
	w.lease("n", "next")
	for _, view := range views {
		w.absent(view+" as the next lessee", w.want(200, nina, "GET", view, ""), "canary-error", "leo",
			w.projects["shop"])
	}
	w.absent("the next lessee's time line", w.want(200, nina, "GET", "/ingot/v1/nodes/n/timeline", ""), `"job_id":"`)
}

// TestResultsStoredApart: results of steps are only for users who see a node's internals, even if a result is stored
// apart and requested in full. A lessee sees the names of the steps, and nothing from before the lease.
func TestResultsStoredApart(t *testing.T) {
	t.Parallel() // it waits until the machine is off
	w := newBootWorld(t)
	const mac = "52:54:00:00:0b:01"
	w.machine("n", mac, `"deploy_interface":"direct"`)
	w.lease("n", "shop")
	w.want(202, root, "PUT", "/v1/nodes/n/states/provision",
		`{"target":"clean","clean_steps":[{"interface":"deploy","step":"measure"},{"interface":"deploy","step":"count"}]}`)
	line := `"` + strings.Repeat("x", 40<<10) + `"`
	result := func(text string) agentstest.StepFunc {
		return func(context.Context, *agentv1.Step, func(*agentv1.Progress)) ([]byte, error) {
			return []byte(text), nil
		}
	}
	w.boot(mac, map[string]agentstest.StepFunc{
		"measure": result(`{"found":"canary-large","ipmi_password":"canary-secret","lines":[` + line + `,` + line +
			`]}`), "count": result(`{"found":"canary-small"}`)})
	ingotd.Wait(t, "the cleaning is over", func() bool {
		return strings.Contains(w.want(200, root, "GET", "/v1/nodes/n/states", ""),
			`"provision_state":"manageable","target_power_state"`)
	})
	const steps = "/ingot/v1/nodes/n/steps"
	own := w.want(200, olga, "GET", steps+"?full=true", "")
	if short := w.want(200, olga, "GET", steps, ""); !strings.Contains(own, "canary-large") ||
		!strings.Contains(own, line) || !strings.Contains(own, "canary-small") ||
		strings.Contains(short, line) || !strings.Contains(short, "omitted_bytes") {
		t.Errorf("the owner sees %.300s in full and %.300s else: nothing is stored apart", own, short)
	}
	w.absent("the steps in full", own, "canary-secret")
	for _, path := range []string{steps, steps + "?full=true"} {
		out := w.want(200, leo, "GET", path, "")
		w.absent(path+" as the lessee", out, "canary", line, "omitted_bytes")
		if !strings.Contains(out, `"measure"`) {
			t.Errorf("%s as the lessee: %s, want the steps' names", path, out)
		}
		w.want(404, eve, "GET", path, "")
	}
	w.lease("n", "next")
	for _, path := range []string{steps, steps + "?full=true"} {
		w.absent(path+" as the next lessee", w.want(200, nina, "GET", path, ""), "canary", line, "omitted_bytes",
			"measure")
		w.want(404, leo, "GET", path, "")
	}
}

// TestLinksDoNotCopyTheHost: what a client writes into its header Host is not what links in the answer lead to.
func TestLinksDoNotCopyTheHost(t *testing.T) {
	const path = "/v1/nodes?limit=1"
	bodies := func(w *world, host string) (all string) {
		for _, c := range []struct{ who, path string }{{anonymous, "/"}, {anonymous, "/v1"}, {olga, path},
			{olga, "/v1/nodes/n"}, {olga, "/v1/ports"}} {
			req, err := http.NewRequestWithContext(t.Context(), "GET", w.d.URL+c.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host
			req.Header.Set("X-OpenStack-Ironic-API-Version", "1.82")
			if c.who != anonymous {
				req.Header.Set("X-Auth-Token", w.tokens[c.who])
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			all += string(b)
		}
		return all
	}
	w := newWorld(t, "api.host_names=known.example")
	w.node("n", "")
	w.node("n2", "")
	for _, host := range []string{"evil.example", "evil.example:80", "127.0.0.1.evil.example", "[2001:db8::1]:6385",
		"192.0.2.1", "known.example.evil"} {
		all := bodies(w, host)
		w.absent("an answer to Host "+host, all, "evil", "2001:db8", "192.0.2.1")
		if !strings.Contains(all, w.d.URL) {
			t.Errorf("the links in answers to Host %s are not the server's: %s", host, all)
		}
	}
	for _, host := range []string{"known.example:1234", "localhost:6385"} {
		if all := bodies(w, host); !strings.Contains(all, `"next":"http://`+host+"/") {
			t.Errorf("the links in answers to Host %s have another: %s", host, all)
		}
	}
	w = newWorld(t, "api.public_url=https://public.example/baremetal/")
	w.node("n", "")
	w.node("n2", "")
	all := bodies(w, "evil.example")
	w.absent("an answer of a server with an address of its own", all, "evil", w.d.URL)
	if !strings.Contains(all, `"next":"https://public.example/baremetal/v1/`) {
		t.Errorf("the links are not the public address: %s", all)
	}
}

// TestImpossibleDeploymentsAreRefused: what a request shows to be impossible is refused when it is made, and validate
// says the same.
func TestImpossibleDeploymentsAreRefused(t *testing.T) {
	w := newWorld(t, "deploy.automated_clean=false")
	w.node("n", `"deploy_interface":"direct"`)
	w.state("n", "manage", "manageable")
	w.state("n", "provide", "available")
	good := strings.Repeat("ab", 32)
	for _, c := range []struct{ info, words string }{
		{`{"image_source":"file:///etc/passwd","image_checksum":"` + good + `"}`, "image_source"},
		{`{"image_source":"/etc/passwd","image_checksum":"` + good + `"}`, "image_source"},
		{`{"image_source":"gopher://192.0.2.1/i","image_checksum":"` + good + `"}`, "image_source"},
		{`{"image_source":"nbd://192.0.2.1/i","image_checksum":"` + good + `"}`, "image_source"},
		{`{"image_source":"http://192.0.2.1/i"}`, "digest"},
		{`{"image_source":"http://192.0.2.1/i","image_checksum":"` + good[:32] + `"}`, "allow_md5"},
		{`{"image_source":"http://192.0.2.1/i","image_checksum":"` + good[:40] + `"}`, "SHA-1"},
		{`{"image_source":"http://192.0.2.1/i","image_os_hash_algo":"sha1","image_os_hash_value":"` + good[:40] + `"}`,
			"sha1"},
		{`{"image_source":"http:///image","image_checksum":"` + good + `"}`, "image_source"},
		{`{"image_source":"http://:8080/image","image_checksum":"` + good + `"}`, "image_source"},
		{`{"image_source":"http://192.0.2.1/i","image_checksum":"file:///etc/passwd"}`, "image_checksum"},
		{`{"image_source":"http://192.0.2.1/i","image_checksum":"/etc/passwd"}`, "image_checksum"},
		{`{"image_source":"http://192.0.2.1/i","image_checksum":"` + good[1:] + `"}`, "image_checksum"},
		{`{"image_source":"http://192.0.2.1/i","image_os_hash_algo":"sha512","image_os_hash_value":"` + good + `"}`,
			"image_os_hash_value"},
		{`{"image_source":"http://192.0.2.1/i","image_os_hash_algo":"sha256","image_os_hash_value":"` +
			strings.Repeat("zz", 32) + `"}`, "image_os_hash_value"},
		{`{"image_source":"http://192.0.2.1/i","image_checksum":"` + good + `","configdrive":"/etc/shadow"}`,
			"configdrive"},
		{`{"image_source":"http://192.0.2.1/i","image_checksum":"` + good + `","image_mirrors":["http://"]}`,
			"image_mirrors"},
	} {
		w.want(200, root, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/instance_info","value":`+c.info+`}]`)
		if out := w.want(400, root, "PUT", "/v1/nodes/n/states/provision", `{"target":"active"}`); !strings.Contains(
			out, c.words) {
			t.Errorf("deploy of %s: %s, want a sentence about %s", c.info, out, c.words)
		}
		var v struct{ Deploy struct{ Reason string } }
		if err := json.Unmarshal([]byte(w.want(200, root, "GET", "/v1/nodes/n/validate", "")), &v); err != nil ||
			!strings.Contains(v.Deploy.Reason, c.words) {
			t.Errorf("validate of %s: %q, %v, want a sentence about %s", c.info, v.Deploy.Reason, err, c.words)
		}
	}
	w.want(200, root, "PATCH", "/v1/nodes/n",
		`[{"op":"add","path":"/instance_info","value":{"image_source":"http://192.0.2.1/i","image_checksum":"`+good+
			`"}}]`)
	for _, body := range []string{`{"target":"active","configdrive":"/etc/cloud12"}`,
		`{"target":"active","configdrive":"file:///etc/passwd"}`,
		`{"target":"active","deploy_steps":[{"interface":"deploy","step":"write_image","priority":80,"args":{"image_checksum":"file:///etc/passwd"}}]}`} {
		w.want(400, root, "PUT", "/v1/nodes/n/states/provision", body)
	}
}

// TestPasswordsDoNotFollowAnAddress: a user who changes the destination of a stored password, and may not read it, must
// supply it.
func TestPasswordsDoNotFollowAnAddress(t *testing.T) {
	w := newWorld(t)
	id := w.node("n", `"driver_info":{"ipmi_address":"192.0.2.1","ipmi_username":"u","ipmi_password":"hush","redfish_address":"https://192.0.2.1","redfish_password":"hush2",
		"redfish_verify_ca":true},"instance_info":{"image_source":"oci://192.0.2.2/os/debian:12","image_pull_secret":"u:p"}`)
	w.lease("n", "shop")
	w.want(200, root, "PATCH", "/v1/nodes/n", `[{"op":"add","path":"/extra/a","value":1}]`)
	target := `"boot_index":0,"volume_id":"v","volume_type":"iscsi","properties":{"target_portal":"192.0.2.3:3260","auth_password":"hush3"}`
	var v struct{ UUID string }
	if err := json.Unmarshal(
		[]byte(w.want(201, root, "POST", "/v1/volume/targets", `{"node_uuid":"`+id+`",`+target+`}`)), &v); err != nil {
		t.Fatal(err)
	}
	volume := "/v1/volume/targets/" + v.UUID
	w.want(201, olga, "POST", "/v1/runbooks",
		`{"name":"CUSTOM_R","steps":[{"interface":"deploy","step":"s","order":1,"args":{"url":"http://192.0.2.4/","password":"hush4"}}]}`, newest...)
	w.state("n", "manage", "manageable") // its power is known
	w.want(202, root, "PUT", "/v1/nodes/n/states/power", `{"target":"power off"}`)
	ingotd.Wait(t, "the machine is off", func() bool {
		return strings.Contains(w.want(200, root, "GET", "/v1/nodes/n/states", ""),
			`"power_state":"power off","provision_state":"manageable","target_power_state":null`)
	})
	for _, c := range []struct {
		status          int
		who, path, body string
	}{
		{400, otto, "/v1/nodes/n", `[{"op":"replace","path":"/driver_info/ipmi_address","value":"198.51.100.1"}]`},
		{400, otto, "/v1/nodes/n", `[{"op":"add","path":"/driver_info/ipmi_port","value":6230}]`},
		{400, otto, "/v1/nodes/n", `[{"op":"add","path":"/driver_info/ipmi_bridging","value":"single"}]`},
		{400, otto, "/v1/nodes/n", `[{"op":"add","path":"/driver_info/ipmi_cipher_suite","value":3}]`},
		{400, otto, "/v1/nodes/n", `[{"op":"add","path":"/driver_info/ipmi_protocol_version","value":"1.5"}]`},
		{400, otto, "/v1/nodes/n", `[{"op":"replace","path":"/driver_info/redfish_verify_ca","value":false}]`},
		{400, otto, "/v1/nodes/n",
			`[{"op":"replace","path":"/driver_info/redfish_address","value":"https://198.51.100.1"}]`},
		{400, otto, "/v1/nodes/n",
			`[{"op":"replace","path":"/driver_info","value":{"ipmi_address":"198.51.100.1","ipmi_password":"******"}}]`},
		{400, otto, "/v1/nodes/n",
			`[{"op":"add","path":"/driver_info/ipmi_password","value":"guess"},{"op":"replace","path":"/driver_info/ipmi_address","value":"198.51.100.1"},{"op":"add","path":"/driver_info/ipmi_password","value":"******"}]`},
		{400, leo, "/v1/nodes/n",
			`[{"op":"replace","path":"/instance_info/image_source","value":"oci://198.51.100.1/os/debian:12"}]`},
		{400, olga, volume, `[{"op":"replace","path":"/properties/target_portal","value":"198.51.100.1:3260"}]`},
		{400, olga, "/v1/runbooks/CUSTOM_R",
			`[{"op":"replace","path":"/steps/0/args/url","value":"http://198.51.100.1/"}]`},
		{400, olga, "/v1/runbooks/CUSTOM_R",
			`[{"op":"replace","path":"/steps","value":[{"interface":"deploy","step":"s","order":1,"args":{"url":"http://198.51.100.1/","password":"******"}}]}]`},
		{400, olga, "/v1/runbooks/CUSTOM_R",
			`[{"op":"replace","path":"/steps/0/step","value":"z"},{"op":"replace","path":"/steps/0/args/url","value":"http://198.51.100.1/"}]`},
		{200, leo, "/v1/nodes/n",
			`[{"op":"replace","path":"/instance_info/image_source","value":"oci://192.0.2.2/os/debian:13"}]`},
		{200, otto, "/v1/nodes/n", `[{"op":"replace","path":"/driver_info/ipmi_username","value":"v"}]`},
		{200, otto, "/v1/nodes/n",
			`[{"op":"replace","path":"/driver_info/ipmi_address","value":"192.0.2.9"},{"op":"add","path":"/driver_info/ipmi_password","value":"hush"}]`},
		{200, root, "/v1/nodes/n", `[{"op":"replace","path":"/driver_info/ipmi_address","value":"192.0.2.1"}]`},
	} {
		if out := w.want(c.status, c.who, "PATCH", c.path, c.body, newest...); c.status == 400 &&
			!strings.Contains(out, "in the same request") {
			t.Errorf("%s PATCH %s %s: %s, want what to give", c.who, c.path, c.body, out)
		}
	}
	w = newWorld(t, "api.resend_credentials=true")
	w.node("n", `"driver_info":{"ipmi_address":"192.0.2.1","ipmi_password":"hush"}`)
	w.want(400, root, "PATCH", "/v1/nodes/n",
		`[{"op":"replace","path":"/driver_info/ipmi_address","value":"198.51.100.1"}]`)
}

// TestEscapeSequencesAreCleaned: texts of a machine reach history and log without what a terminal would
// obey, and cut.
func TestEscapeSequencesAreCleaned(t *testing.T) {
	w := newWorld(t, "log_format=json")
	id := w.node("n", `"inspect_interface":"agent"`)
	w.want(201, root, "POST", "/v1/ports", `{"node_uuid":"`+id+`","address":"52:54:00:00:00:03"}`)
	w.state("n", "manage", "manageable")
	w.want(202, root, "PUT", "/v1/nodes/n/states/provision", `{"target":"inspect"}`)
	var found struct {
		Config struct {
			Token string `json:"agent_token"`
		}
	}
	ingotd.Wait(t, "the machine is on", func() bool { // which makes tokens of before worthless
		return strings.Contains(w.want(200, root, "GET", "/v1/nodes/n/states", ""), `"provision_state":"inspect wait"`)
	})
	ingotd.Wait(t, "the agent is expected", func() bool {
		status, _, out := w.ask(anonymous, "GET", "/v1/lookup?addresses=52:54:00:00:00:03", "")
		return status == 200 && json.Unmarshal([]byte(out), &found) == nil
	})
	version := `1\u001b[2J\u001b]0;own\u0007\nforged\u202e\u009b` + strings.Repeat("x", 4000)
	w.want(400, anonymous, "POST", "/v1/heartbeat/"+id, `{"callback_url":"http://192.0.2.9:9999","agent_token":"`+
		found.Config.Token+`","agent_version":"`+version+`"}`)
	history := w.want(200, root, "GET", "/v1/nodes/n/history", "") +
		w.want(200, root, "GET", "/ingot/v1/log?node="+id, "")
	if !strings.Contains(history, "foreign agent") {
		t.Fatalf("the history has nothing of the agent: %s", history)
	}
	w.absent("the history", history, `u001b`, `u0007`, `\nforged`, "\u202e", "\u009b", strings.Repeat("x", 300))
	w.absent("the log", w.d.Log.String(), "\x1b", `u001b[2J`, "\u202e", "\u009b", strings.Repeat("x", 300))
}
