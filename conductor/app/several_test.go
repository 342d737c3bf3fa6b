//go:build !race

// The program under test is a process of its own, built without the race detector.

package app_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// TestSeveralConductors: three ingotd share one database and have but one key in common. Each answers requests for all
// nodes; the nodes of one that is killed, and of one that stands still, are taken over and their work goes on; one that
// was replaced ends; when all are restarted at once they keep their nodes; and they have one CA.
func TestSeveralConductors(t *testing.T) {
	cluster := pgserver.New(t)
	database, url := cluster.Database(t)
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(pgserver.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	all := map[string]*ingotd.Process{}
	names := []string{"c1", "c2", "c3"}
	for _, name := range names {
		all[name] = ingotd.Start(t, kit.FreeAddr(t), "store.url="+url, "store.password_file="+secret, "store.key="+key,
			"hostname="+name)
	}
	ask := func(name, method, path, body string, into any) int {
		t.Helper()
		status, _, answer := all[name].Ask(method, path, body, map[string]string{"X-OpenStack-Ironic-API-Version": "1.80"})
		if into != nil {
			if err := json.Unmarshal([]byte(answer), into); err != nil {
				t.Fatalf("%s %s: %d %s", method, path, status, answer)
			}
		}
		return status
	}
	alive := func(at string) (list []string) {
		var got struct {
			Conductors []struct {
				Hostname string
				Alive    bool
			}
		}
		ask(at, "GET", "/v1/conductors", "", &got)
		for _, c := range got.Conductors {
			if c.Alive {
				list = append(list, c.Hostname)
			}
		}
		return list
	}
	ingotd.Wait(t, "all know each other", func() bool { return slices.Equal(alive("c1"), names) })

	nodes := 0
	type shown struct {
		State     string `json:"provision_state"`
		Conductor string
	}
	owned := func(at, by string) int {
		var got struct{ Nodes []any }
		ask(at, "GET", "/v1/nodes?conductor="+by, "", &got)
		return len(got.Nodes)
	}
	get := func(at string, i int) (n shown) {
		t.Helper()
		if status := ask(at, "GET", fmt.Sprintf("/v1/nodes/n%d", i), "", &n); status != 200 {
			t.Fatalf("GET n%d at %s: %d", i, at, status)
		}
		return n
	}
	verb := func(at string, i int, what, state string) {
		t.Logf("%s %s n%d at %s", time.Now().Format(time.TimeOnly), what, i, at)
		t.Helper()
		path := fmt.Sprintf("/v1/nodes/n%d/states/provision", i)
		if status := ask(at, "PUT", path, `{"target": "`+what+`"}`, nil); status != 202 {
			t.Fatalf("%s of n%d at %s: %d", what, i, at, status)
		}
		end := time.Now().Add(time.Minute)
		ingotd.Wait(t, fmt.Sprintf("n%d is %s", i, state), func() bool {
			n := get(at, i)
			if time.Now().After(end) {
				t.Fatalf("after %s n%d is %+v", what, i, n)
			}
			return n.State == state
		})
	}
	owners := map[string]int{}
	// Chance places the nodes: as many as it takes for each conductor to have one.
	for i := 0; i < 12 || len(owners) < 3 && i < 100; i++ {
		nodes++
		at := names[i%3]
		if status := ask(at, "POST", "/v1/nodes", fmt.Sprintf(`{"name": "n%d", "driver": "fake-hardware"}`, i), nil); status != 201 {
			t.Fatalf("create n%d: %d", i, status)
		}
		verb(names[(i+1)%3], i, "manage", "manageable")
		n := get(names[(i+2)%3], i)
		owners[n.Conductor]++
	}
	for _, name := range names {
		if got := owned("c1", name); got != owners[name] {
			t.Errorf("%s has %d nodes in the list, want %d", name, got, owners[name])
		}
	}
	if len(owners) != 3 {
		t.Errorf("the nodes belong to %v", owners)
	}

	victim := get("c2", 0).Conductor
	all[victim].Kill()
	rest := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == victim })
	for i := range nodes { // a request for a node of the dead one waits for its next owner
		verb(rest[i%2], i, "provide", "available")
		verb(rest[i%2], i, "active", "active")
		if n := get(rest[0], i); n.Conductor == victim {
			t.Errorf("n%d still belongs to %s", i, victim)
		}
	}
	if got := alive(rest[0]); !slices.Equal(got, rest) {
		t.Errorf("after a kill those live: %v", got)
	}

	frozen, last := rest[0], rest[1]
	if err := syscall.Kill(all[frozen].PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		verb(last, i, "deleted", "available")
	}
	if err := syscall.Kill(all[frozen].PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, time.Minute, "one that was replaced ends", func() bool {
		return syscall.Kill(all[frozen].PID, 0) != nil
	})
	if !strings.Contains(all[frozen].Log.String(), "this one was not heard of for too long") {
		t.Errorf("%s does not say why it has ended", frozen)
	}
	for _, name := range []string{victim, frozen} {
		all[name].Again()
	}
	ingotd.Wait(t, "all are back", func() bool { return slices.Equal(alive(last), names) })
	for i := range nodes {
		verb(names[i%3], i, "active", "active")
	}
	// The whole site is stopped at once. The first that starts leaves the others' nodes alone: they come back.
	was := map[int]string{}
	kit.Eventually(t, time.Minute, "no node changes hands any more", func() bool {
		settled := true
		time.Sleep(2 * time.Second)
		for i := range nodes {
			by := get(last, i).Conductor
			settled, was[i] = settled && was[i] == by, by
		}
		return settled
	})
	// All are told while they stand still: on a busy machine one would else be gone before another is told, and the
	// nodes of one that is gone for good belong to those that remain.
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGTERM, syscall.SIGCONT} {
		for _, name := range names {
			if err := syscall.Kill(all[name].PID, sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range names {
		kit.Eventually(t, time.Minute, name+" stops", func() bool { return syscall.Kill(all[name].PID, 0) != nil })
	}
	ofFirst := func() string {
		t.Helper()
		n, err := cluster.Query(t.Context(), database, "SELECT count(*) FROM nodes WHERE conductor = 'c1'")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	kept := ofFirst() // while they are told to stop, it may hand a few of its nodes over, or be handed some
	all["c1"].Again()
	time.Sleep(2 * time.Second)
	if got := ofFirst(); got != kept {
		t.Errorf("the first one that is back has %s of %d nodes, and had %s when it stopped", got, nodes, kept)
	}
	all["c2"].Again()
	all["c3"].Again()
	kit.Eventually(t, time.Minute, "all have the nodes that they had", func() bool {
		for i := range nodes {
			if get(last, i).Conductor != was[i] {
				return false
			}
		}
		return true
	})
	for _, name := range names {
		cert, err := os.ReadFile(filepath.Join(all[name].Dir, "ca.crt"))
		first, ferr := os.ReadFile(filepath.Join(all["c1"].Dir, "ca.crt"))
		if err != nil || ferr != nil || string(cert) != string(first) {
			t.Errorf("%s has another CA: %v, %v", name, err, ferr)
		}
	}
}
