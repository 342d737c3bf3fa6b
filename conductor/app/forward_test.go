//go:build !race

// The program under test is a process of its own, built without the race detector.

package app_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/access/keystonetest"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// TestForwardedRequests: what has to ask a machine gets the same answer at any conductor, with the same request ID in
// the logs of both, and for those only who may; when the owner is killed the answer says whether the request may have
// been carried out, and the next owner answers.
func TestForwardedRequests(t *testing.T) {
	_, url := pgserver.New(t).Database(t)
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(pgserver.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ks := keystonetest.Start(t)
	ks.AddUser("ingot", "own")
	ks.Grant("ingot", "service", "service")
	tokens := map[string]string{}
	for name, role := range map[string][]string{"root": {"admin", "member", "reader"}, "auditor": {"reader"}} {
		ks.AddUser(name, "pw")
		ks.Grant(name, "", role...)
		tokens[name] = ks.Token(name, "")
	}
	ks.AddUser("eve", "pw")
	ks.Grant("eve", ks.Project("other"), "admin", "member", "reader")
	tokens["eve"] = ks.Token("eve", "other")

	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	all := map[string]*ingotd.Process{}
	for _, name := range []string{"c1", "c2"} {
		all[name] = ingotd.Start(t, kit.FreeAddr(t), "store.url="+url, "store.password_file="+secret, "store.key="+key,
			"hostname="+name, "api.auth=keystone", "api.keystone.auth_url="+ks.URL, "api.keystone.username=ingot",
			"api.keystone.password=own", "log_level=debug")
	}
	ask := func(name, who, method, path, body string) (int, http.Header, string) {
		t.Helper()
		return all[name].Ask(method, path, body,
			map[string]string{"X-OpenStack-Ironic-API-Version": "1.109", "X-Auth-Token": tokens[who]})
	}
	want := func(status int, name, method, path, body string) string {
		t.Helper()
		got, _, answer := ask(name, "root", method, path, body)
		if got != status {
			t.Fatalf("%s %s at %s = %d %s, want %d", method, path, name, got, answer, status)
		}
		return answer
	}
	ingotd.Wait(t, "both know each other", func() bool {
		return strings.Count(want(200, "c1", "GET", "/v1/conductors", ""), `"alive":true`) == 2 &&
			strings.Count(want(200, "c2", "GET", "/v1/conductors", ""), `"alive":true`) == 2
	})
	owned := map[string][]string{} // nodes, by owner
	for i := 0; len(owned["c1"]) < 1 || len(owned["c2"]) < 3; i++ {
		name := fmt.Sprint("n", i)
		want(201, "c1", "POST", "/v1/nodes",
			`{"name": "`+name+`", "driver": "fake-hardware", "driver_info": {"fake_management_delay": "0"}}`)
		want(202, "c1", "PUT", "/v1/nodes/"+name+"/states/provision", `{"target": "manage"}`)
		var n struct {
			Conductor string
			State     string `json:"provision_state"`
		}
		ingotd.Wait(t, name+" is manageable", func() bool {
			if err := json.Unmarshal([]byte(want(200, "c1", "GET", "/v1/nodes/"+name, "")), &n); err != nil {
				t.Fatal(err)
			}
			return n.State == "manageable"
		})
		owned[n.Conductor] = append(owned[n.Conductor], name)
	}

	// The same requests for two nodes: for one at its owner, for the other at another conductor.
	b, err := os.ReadFile(filepath.Join("..", "api", "testdata", "elsewhere.json"))
	if err != nil {
		t.Fatal(err)
	}
	var requests [][3]string
	if err := json.Unmarshal(b, &requests); err != nil {
		t.Fatal(err)
	}
	here, there := owned["c1"][0], owned["c2"][0]
	varying := regexp.MustCompile(`req-[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f-]{27}|127\.0\.0\.1:\d+`)
	same := func(text, node string) string {
		return varying.ReplaceAllString(strings.ReplaceAll(text, "/"+node+"/", "/n/"), "X")
	}
	for _, r := range requests {
		method, path, body := r[0], r[1], r[2]
		var answers [2]string
		for i, node := range []string{here, there} {
			status, h, answer := ask("c1", "root", method, strings.Replace(path, "/nodes/n", "/nodes/"+node, 1), body)
			id := h.Get("Openstack-Request-Id")
			if h.Get("X-Openstack-Request-Id") != id && !strings.HasPrefix(path, "/ingot/") {
				t.Errorf("%s %s has two request IDs: %v", method, path, h)
			}
			if i == 1 && (method != "DELETE" || !strings.HasSuffix(path, "/n")) { // which only an agent's machine needs
				ingotd.Wait(t, "both have logged "+id+" of "+path, func() bool {
					return logged(all["c1"], id, "forwarded to the node's owner") && logged(all["c2"], id, "forwarded here")
				})
			}
			for _, name := range []string{"Date", "Content-Length"} {
				h.Del(name)
			}
			answers[i] = same(fmt.Sprint(status, " ", h, " ", answer), node)
			if status == 503 {
				t.Errorf("%s %s: %s", method, path, answers[i])
			}
		}
		if answers[0] != answers[1] {
			t.Errorf("%s %s\n at the owner %s\nat another    %s", method, path, answers[0], answers[1])
		}
	}

	// What was done is in the history of the owner's node, by whom it was asked for; what may not be is not done.
	there = owned["c2"][1]
	want(204, "c1", "PUT", "/v1/nodes/"+there+"/management/boot_device", `{"boot_device":"disk","persistent":true}`)
	out := want(200, "c2", "GET", "/v1/nodes/"+there+"/management/boot_device", "")
	if !strings.Contains(out, `"disk"`) {
		t.Errorf("the boot device at the owner is %s", out)
	}
	out = want(200, "c1", "GET", "/v1/nodes/"+there+"/history?detail=true", "")
	if !strings.Contains(out, `"root (system)"`) {
		t.Errorf("the history does not name who asked: %s", out)
	}
	led := "/v1/nodes/" + there + "/management/indicators/led@system"
	for _, tt := range []struct {
		who, method, body string
		status            int
	}{
		{"auditor", "GET", "", 200}, {"auditor", "PUT", `{"state":"blinking"}`, 403}, {"eve", "GET", "", 404},
		{"eve", "PUT", `{"state":"blinking"}`, 404}, {"root", "PUT", `{"state":"blinking"}`, 204},
	} {
		for _, at := range []string{"c1", "c2"} {
			if got, _, out := ask(at, tt.who, tt.method, led, tt.body); got != tt.status {
				t.Errorf("%s of %s at %s = %d %s, want %d", tt.method, tt.who, at, got, out, tt.status)
			}
		}
	}

	// The owner dies with a request under way, and then is gone.
	last := owned["c2"][2]
	want(200, "c2", "PATCH", "/v1/nodes/"+last, `[{"op":"add","path":"/driver_info/fake_management_delay","value":"60"}]`)
	type result struct {
		status int
		header http.Header
		body   string
	}
	done := make(chan result, 1)
	go func() {
		req, err := http.NewRequestWithContext(t.Context(), "PUT", all["c1"].URL+"/v1/nodes/"+last+"/management/indicators/led@system",
			strings.NewReader(`{"state":"off"}`))
		if err != nil {
			t.Error(err)
		}
		req.Header.Set("X-OpenStack-Ironic-API-Version", "1.109")
		req.Header.Set("X-Auth-Token", tokens["root"])
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			done <- result{}
			return
		}
		defer resp.Body.Close()
		var text strings.Builder
		if err := resp.Write(&text); err != nil {
			t.Error(err)
		}
		done <- result{resp.StatusCode, resp.Header, text.String()}
	}()
	ingotd.Wait(t, "the request is at the owner", func() bool {
		return strings.Contains(all["c2"].Log.String(), "/v1/nodes/"+last+"/management/indicators/")
	})
	all["c2"].Kill()
	if r := <-done; r.status != 504 || !strings.Contains(r.body, "may have been carried out, or not") ||
		r.header.Get("Retry-After") != "" {
		t.Errorf("a request whose owner was killed = %d %s, want 504 that says so", r.status, r.body)
	}
	for _, method := range []string{"GET", "PUT"} {
		status, h, out := ask("c1", "root", method, led, map[string]string{"PUT": `{"state":"on"}`}[method])
		if status != 503 || h.Get("Retry-After") != "5" || !strings.Contains(out, "nothing was done") {
			t.Errorf("%s at a dead owner = %d %v %s, want 503", method, status, h, out)
		}
	}
	kit.Eventually(t, time.Minute, "the next owner answers", func() bool {
		status, _, _ := ask("c1", "root", "GET", led, "")
		return status == 200
	})
}

// logged reports whether a conductor has logged a text about a request.
func logged(p *ingotd.Process, id, text string) bool {
	for line := range strings.Lines(p.Log.String()) {
		if strings.Contains(line, id) && strings.Contains(line, text) {
			return true
		}
	}
	return false
}
