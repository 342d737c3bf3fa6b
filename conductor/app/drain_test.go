//go:build !race

// The program under test is a process of its own, built without the race detector.

package app_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// share returns the settings of an ingotd of several on one database.
func share(t *testing.T, url, name string, set ...string) []string {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(pgserver.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	return append([]string{"store.url=" + url, "store.password_file=" + secret, "store.key=" + key, "hostname=" + name},
		set...)
}

// drains runs ingotd drain for the ingotd of a data directory.
func drains(t *testing.T, dir string, args ...string) (output string, err error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), made.Program(t, "ingotd"),
		append([]string{"drain", "--data-dir", dir}, args...)...).CombinedOutput()
	return string(out), err
}

// TestDrain: all nodes of a conductor that drains move to the others, whatever their state is; it answers requests
// meanwhile, takes no new nodes, and its health says so. What can't move is named at once. Undone, it takes nodes
// again; one that is told to stop drains by itself.
func TestDrain(t *testing.T) {
	_, url := pgserver.New(t).Database(t)
	c1 := ingotd.Start(t, kit.FreeAddr(t), share(t, url, "c1", "hardware.enabled_types=fake-hardware,ipmi",
		"power.retries=1")...)
	version := "1.82"
	ask := func(p *ingotd.Process, method, path, body string, want int) (answer string) {
		t.Helper()
		status, _, answer := p.Ask(method, path, body, map[string]string{rest.VersionHeader: version})
		if status != want {
			t.Fatalf("%s %s: %d %s, want %d", method, path, status, answer, want)
		}
		return answer
	}
	if out, err := drains(t, c1.Dir); err == nil || !strings.Contains(out, "the only one that takes nodes") {
		t.Errorf("draining the only conductor: %v, %s", err, out)
	}
	ask(c1, "GET", "/ingot/v1/health", "", 200)

	verb := func(p *ingotd.Process, node, verb, state string) {
		t.Helper()
		ask(p, "PUT", "/v1/nodes/"+node+"/states/provision", `{"target": "`+verb+`"}`, 202)
		ingotd.Wait(t, node+" is "+state, func() bool {
			return strings.Contains(ask(p, "GET", "/v1/nodes/"+node+"/states", "", 200),
				`"provision_state":"`+state+`"`)
		})
	}
	names := []string{"manageable", "available", "active", "maintained", "quarantined", "held"}
	for i, name := range names {
		ask(c1, "POST", "/v1/nodes", fmt.Sprintf(`{"name": %q, "driver": "fake-hardware"}`, name), 201)
		for j, step := range [][2]string{{"manage", "manageable"}, {"provide", "available"}, {"active", "active"}} {
			if i >= j && name != "held" || name == "held" && j < 2 {
				verb(c1, name, step[0], step[1])
			}
		}
	}
	ask(c1, "PUT", "/v1/nodes/maintained/maintenance", `{"reason": "a test"}`, 202)
	ask(c1, "POST", "/ingot/v1/nodes/quarantined/quarantine", `{"reason": "a test"}`, 200)
	ask(c1, "POST", "/v1/deploy_templates", `{"name": "CUSTOM_HOLD", "steps": [{"interface": "deploy", "step": "hold",
		"args": {}, "priority": 150}]}`, 201)
	ask(c1, "PUT", "/v1/nodes/held/traits/CUSTOM_HOLD", "", 204)
	ask(c1, "PATCH", "/v1/nodes/held", `[{"op": "add", "path": "/instance_info/traits", "value": ["CUSTOM_HOLD"]}]`, 200)
	verb(c1, "held", "active", "deploy hold")
	ask(c1, "POST", "/v1/nodes", `{"name": "left", "driver": "ipmi", "driver_info": {"ipmi_address": "127.0.0.1",
		"ipmi_port": 9, "ipmi_username": "u", "ipmi_password": "p"}}`, 201)
	verb(c1, "left", "manage", "enroll")

	c2 := ingotd.Start(t, kit.FreeAddr(t), share(t, url, "c2", "hardware.enabled_types=fake-hardware")...)
	owned := func(by string) (list []string) {
		var got struct{ Nodes []struct{ Name string } }
		if err := json.Unmarshal([]byte(ask(c2, "GET", "/v1/nodes?conductor="+by, "", 200)), &got); err != nil {
			t.Fatal(err)
		}
		for _, n := range got.Nodes {
			list = append(list, n.Name)
		}
		slices.Sort(list)
		return list
	}
	begun := time.Now()
	out, err := drains(t, c1.Dir, "--timeout", "2m", "--stop")
	const stays = ` nodes: left (no other conductor takes nodes of conductor group "" with hardware type ipmi)`
	if err == nil || !strings.Contains(out, stays) || time.Since(begun) > time.Minute {
		t.Errorf("with a node that no other can have, after %s: %v, %s", time.Since(begun), err, out)
	}
	if got := owned("c1"); !slices.Equal(got, []string{"left"}) {
		t.Errorf("c1 has %v", got)
	}
	if answer := ask(c1, "GET", "/ingot/v1/health", "", 503); !strings.Contains(answer, "is being drained") {
		t.Errorf("health: %s", answer)
	}
	ask(c1, "DELETE", "/v1/nodes/left", "", 204)
	if out, err := drains(t, c1.Dir); err != nil || !strings.Contains(out, "c1 has no nodes") {
		t.Errorf("drain: %v, %s", err, out)
	}
	version = "1.88"
	verb(c1, "held", "unhold", "active") // by the next owner
	for i := range 16 {                  // so many that some are to be c1's: of few, chance may give it none
		name := fmt.Sprint("late", i)
		ask(c1, "POST", "/v1/nodes", fmt.Sprintf(`{"name": %q, "driver": "fake-hardware"}`, name), 201)
		verb(c1, name, "manage", "manageable")
		names = append(names, name)
	}
	slices.Sort(names)
	if got := owned("c2"); !slices.Equal(got, names) {
		t.Errorf("c2 has %v, want %v", got, names)
	}
	if !strings.Contains(ask(c1, "GET", "/v1/conductors/c1", "", 200), `"alive":true`) {
		t.Error("a conductor that drains does not count as alive")
	}

	if out, err := drains(t, c1.Dir, "--undo"); err != nil || !strings.Contains(out, "c1 takes nodes again") {
		t.Errorf("undo: %v, %s", err, out)
	}
	ask(c1, "GET", "/ingot/v1/health", "", 200)
	ingotd.Wait(t, "nodes come back to c1", func() bool { return len(owned("c1")) > 0 })
	if out, err := drains(t, c2.Dir, "--stop"); err != nil || !strings.Contains(out, "c2 has stopped") {
		t.Errorf("drain and stop: %v, %s", err, out)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c2.PID))
	if err == nil && !bytes.Contains(stat, []byte(") Z ")) { // a zombie has ended
		t.Errorf("c2 runs: %s", stat)
	}
	if out, err := drains(t, c2.Dir); err == nil || !strings.Contains(out, "no ingotd can be reached") {
		t.Errorf("draining what does not run: %v, %s", err, out)
	}
	c2.Again()
	if err := syscall.Kill(c1.PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ingotd.Wait(t, "c1 has ended", func() bool { return syscall.Kill(c1.PID, 0) != nil })
	if got := owned("c2"); !slices.Equal(got, names) {
		t.Errorf("after a signal c2 has %v, want %v", got, names)
	}
	if log := c2.Log.String(); strings.Contains(log, "took the node over") {
		t.Error("nodes were taken over")
	}
	if log := c1.Log.String(); strings.Count(log, "this conductor is drained") != 3 {
		t.Errorf("c1 was not drained three times: %s", log)
	}
}
