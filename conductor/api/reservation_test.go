package api

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/hardware/fake"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	powerfake "github.com/ingot-metal/ingot/conductor/hardware/power/fake"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/schedule/alloc"
)

// fakeDrivers opens machines in memory.
type fakeDrivers struct{ machines *powerfake.Machines }

func (d fakeDrivers) Open(n *node.Node) (power.Driver, error) {
	info := power.Info{}
	maps.Copy(info, n.DriverInfo)
	info["fake_id"] = n.UUID
	return d.machines.Open(info, slog.New(slog.DiscardHandler))
}

func (d fakeDrivers) Interface(n *node.Node, kind string) string { return driver.Interfaces(n)[kind] }

// withEngine puts a whole conductor behind the fixture's API: an engine over fake hardware, and a runner of
// allocations.
func (f *fixture) withEngine() *fixture {
	machines := new(powerfake.Machines)
	drivers := fakeDrivers{machines}
	en := engine.New(f.st, drivers, nil, nil,
		engine.Config{Hostname: "c1", PowerPoll: time.Millisecond, RetryBase: time.Millisecond}, nil)
	plugs := hardware.New(drivers.Interface, fake.New(machines, nil).Plugs())
	en.SetPlugs(plugs)
	f.srv.cfg.Hardware = plugs
	runner := alloc.New(f.st, nil)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- en.Run(ctx) }()
	go func() { runner.Run(ctx); ended <- nil }()
	f.t.Cleanup(func() {
		stop()
		for range 2 {
			if err := <-ended; err != nil {
				f.t.Error(err)
			}
		}
	})
	f.srv.engine, f.srv.cfg.Allocate = en, runner.Wake
	f.reassemble()
	return f
}

// until asks until a member of the answer has a value, or gives up.
func (f *fixture) until(path, member, want string) map[string]any {
	f.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		out := f.want(200, "GET", path, "")
		got := fmt.Sprint(out[member])
		if got == want {
			return out
		}
		if strings.HasSuffix(got, "failed") || got == "error" || time.Now().After(deadline) {
			f.t.Fatalf("GET %s: %s is %s, want %s: %v", path, member, got, want, out)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// TestReservation walks through a reservation as Blazar makes one: a candidate is chosen, an allocation with the
// reservation's UUID claims it, the project becomes its lessee, deploys it, uses it, and everything is as before when
// the reservation ends.
func TestReservation(t *testing.T) {
	const reservation = "5f0d9d3c-6a32-4a76-9d3b-2d2b7b6d7f01"
	f := newFixture(t, Config{}).withEngine()
	var (
		admin  = access.Actor{UserName: "admin", System: true, Role: access.Admin}
		blazar = access.Actor{UserName: "blazar", ProjectID: "services", Service: true, Role: access.Member,
			Trusted: true}
		tenant = access.Actor{UserName: "tina", ProjectID: "tenant", Role: access.Manager}
		other  = access.Actor{UserName: "otto", ProjectID: "other", Role: access.Admin}
	)
	verb := func(name, target string) {
		t.Helper()
		f.want(202, "PUT", "/v1/nodes/"+name+"/states/provision", `{"target":"`+target+`"}`)
	}
	list := func(path, what string) []string {
		t.Helper()
		var names []string
		for _, o := range f.want(200, "GET", path, "")[what].([]any) {
			names = append(names, fmt.Sprint(o.(map[string]any)["name"]))
		}
		slices.Sort(names)
		return names
	}

	f.as(admin)
	for _, name := range []string{"n1", "n2"} {
		f.want(201, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"`+name+`","resource_class":"baremetal"}`)
		f.want(204, "PUT", "/v1/nodes/"+name+"/traits", `{"traits":["CUSTOM_GPU"]}`)
		verb(name, "manage")
		f.until("/v1/nodes/"+name, "provision_state", "manageable")
		verb(name, "provide")
		f.until("/v1/nodes/"+name, "provision_state", "available")
	}
	n2 := fmt.Sprint(f.want(200, "GET", "/v1/nodes/n2", "")["uuid"])

	// The reservation begins.
	f.as(blazar)
	const candidates = "/v1/nodes?provision_state=available&maintenance=false&associated=false&resource_class=baremetal&fields=uuid,name"
	if got := list(candidates, "nodes"); !slices.Equal(got, []string{"n1", "n2"}) {
		t.Fatalf("candidates are %v", got)
	}
	out := f.want(201, "POST", "/v1/allocations",
		`{"uuid":"`+reservation+`","name":"lease-1","resource_class":"baremetal","candidate_nodes":["`+n2+
			`"],"traits":["CUSTOM_GPU"]}`)
	if out["uuid"] != reservation || out["state"] != "allocating" || out["node_uuid"] != nil {
		t.Errorf("POST = %v", out)
	}
	if a := f.until("/v1/allocations/"+reservation, "state", "active"); a["node_uuid"] != n2 {
		t.Errorf("the allocation got %v, want %s", a["node_uuid"], n2)
	}
	if n := f.want(200, "GET", "/v1/nodes/n2", ""); n["instance_uuid"] != reservation ||
		n["allocation_uuid"] != reservation || fmt.Sprint(n["instance_info"]) != "map[traits:[CUSTOM_GPU]]" {
		t.Errorf("the node: instance %v, allocation %v, instance_info %v", n["instance_uuid"], n["allocation_uuid"],
			n["instance_info"])
	}
	if got := list(candidates, "nodes"); !slices.Equal(got, []string{"n1"}) {
		t.Errorf("candidates are %v after the allocation", got)
	}
	// It can't be allocated a second time.
	f.want(201, "POST", "/v1/allocations", `{"name":"too-late","resource_class":"baremetal","candidate_nodes":["n2"]}`)
	deadline := time.Now().Add(2 * time.Minute)
	for f.want(200, "GET", "/v1/allocations/too-late", "")["state"] == "allocating" && time.Now().Before(deadline) {
		time.Sleep(2 * time.Millisecond)
	}
	if a := f.want(200, "GET", "/v1/allocations/too-late", ""); a["state"] != "error" ||
		!strings.Contains(fmt.Sprint(a["last_error"]), "none of the requested nodes are available") {
		t.Errorf("a second allocation: %v", a)
	}
	f.want(204, "DELETE", "/v1/allocations/too-late", "")
	f.as(tenant).want(404, "GET", "/v1/nodes/n2", "")
	f.as(blazar).want(200, "PATCH", "/v1/nodes/n2", `[{"op":"add","path":"/lessee","value":"tenant"}]`)

	// The project uses it.
	f.as(tenant)
	if got := list("/v1/nodes", "nodes"); !slices.Equal(got, []string{"n2"}) {
		t.Errorf("the lessee sees %v", got)
	}
	f.want(403, "PATCH", "/v1/nodes/n2", `[{"op":"add","path":"/driver_info/x","value":1}]`)
	f.want(403, "PATCH", "/v1/nodes/n2", `[{"op":"remove","path":"/lessee"}]`)
	f.want(200, "PATCH", "/v1/nodes/n2", `[{"op":"add","path":"/instance_info/display_name","value":"web"}]`)
	verb("n2", "active")
	f.until("/v1/nodes/n2", "provision_state", "active")
	f.as(other).want(404, "PUT", "/v1/nodes/n2/states/provision", `{"target":"deleted"}`)
	f.want(404, "DELETE", "/v1/allocations/"+reservation, "")

	// The reservation ends.
	f.as(blazar)
	f.want(409, "DELETE", "/v1/allocations/"+reservation, "")
	verb("n2", "deleted")
	f.until("/v1/nodes/n2", "provision_state", "available")
	f.want(404, "GET", "/v1/allocations/"+reservation, "")
	f.want(200, "PATCH", "/v1/nodes/n2", `[{"op":"remove","path":"/lessee"}]`)
	if n := f.want(200, "GET", "/v1/nodes/n2", ""); n["instance_uuid"] != nil || n["allocation_uuid"] != nil ||
		n["lessee"] != nil || len(n["instance_info"].(map[string]any)) != 0 {
		t.Errorf("after the reservation: %v", n)
	}
	if got := f.as(tenant).want(200, "GET", "/v1/nodes", "")["nodes"].([]any); len(got) != 0 {
		t.Errorf("after the reservation its project sees %v", got)
	}
	f.as(blazar)
	if got := list(candidates, "nodes"); !slices.Equal(got, []string{"n1", "n2"}) {
		t.Errorf("candidates are %v after the reservation", got)
	}
	// The next one, of the same UUID: it is free again.
	f.want(201, "POST", "/v1/allocations", `{"uuid":"`+reservation+`","resource_class":"baremetal"}`)
	f.until("/v1/allocations/"+reservation, "state", "active")
	f.want(204, "DELETE", "/v1/allocations/"+reservation, "")
}

// asked keeps what the API asks of the engine.
type asked struct {
	instant
	got *engine.Request
}

func (a asked) Provision(ctx context.Context, ident string, r engine.Request) error {
	*a.got = r
	return nil
}

// TestRunbookInRequest: who may use a runbook, and what goes to the engine.
func TestRunbookInRequest(t *testing.T) {
	f := newFixture(t, Config{}, node.Node{Name: "idle", Provision: node.Manageable, Owner: "p1"},
		node.Node{Name: "live", Provision: node.Active, Owner: "p1"}, node.Node{Name: "new", Provision: node.Enroll})
	var got engine.Request
	f.srv.engine = asked{instant{f.st}, &got}
	f.reassemble()
	add := func(name, owner string, public bool) string {
		r := &node.Runbook{Head: node.Head{Name: name, Owner: owner}, Public: public,
			Steps: []node.TemplateStep{{Interface: "deploy", Step: "x"}}}
		if err := f.st.Runbooks().Create(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		return r.UUID
	}
	own, public := add("CUSTOM_OWN", "p1", false), add("CUSTOM_PUBLIC", "", true)
	add("CUSTOM_THEIRS", "p2", false)
	add("CUSTOM_SYSTEM", "", false)
	steps := `[{"interface":"deploy","step":"erase_devices_metadata"}]`
	put := func(name, body string, status int) {
		t.Helper()
		got = engine.Request{}
		f.want(status, "PUT", "/v1/nodes/"+name+"/states/provision", body)
	}
	put("idle", `{"target":"clean","runbook":"CUSTOM_SYSTEM"}`, 202)
	put("live", `{"target":"service","service_steps":`+steps+`}`, 202)
	if len(got.ServiceSteps) != 1 || got.ServiceSteps[0].Name != "erase_devices_metadata" || got.Verb != node.Service {
		t.Errorf("service = %+v", got)
	}
	put("live", `{"target":"service"}`, 400)
	put("idle", `{"target":"clean"}`, 400)
	put("idle", `{"target":"clean","service_steps":`+steps+`,"clean_steps":`+steps+`}`, 400)
	put("idle", `{"target":"clean","clean_steps":`+steps+`,"runbook":"CUSTOM_OWN"}`, 400)
	put("new", `{"target":"manage","runbook":"CUSTOM_OWN"}`, 400)
	put("idle", `{"target":"clean","runbook":7}`, 400)
	put("idle", `{"target":"clean","runbook":"CUSTOM_NONE"}`, 404)
	if code := f.at(rest.VersionRunbooks-1, "PUT", "/v1/nodes/idle/states/provision",
		`{"target":"clean","runbook":"CUSTOM_OWN"}`); code != 406 {
		t.Errorf("a runbook before there were any = %d", code)
	}
	if code := f.at(rest.VersionService-1, "PUT", "/v1/nodes/live/states/provision",
		`{"target":"service","service_steps":`+steps+`}`); code != 406 {
		t.Errorf("service before there was any = %d", code)
	}

	f.as(access.Actor{ProjectID: "p1", Role: access.Manager})
	// the same request, by another rule
	for _, v := range []rest.Version{rest.VersionRunbooks, rest.VersionRunbookTraits - 1, rest.VersionRunbookTraits} {
		f.version = v
		put("idle", `{"target":"clean","runbook":"CUSTOM_OWN"}`, 202)
		if got.Runbook != own || len(got.CleanSteps) != 0 || got.RunbookByName != (v < rest.VersionRunbookTraits) {
			t.Errorf("clean in version %s = %+v", v, got)
		}
	}
	put("live", `{"target":"service","runbook":"`+public+`"}`, 202)
	if got.Runbook != public {
		t.Errorf("service = %+v", got)
	}
	put("idle", `{"target":"clean","runbook":"CUSTOM_THEIRS"}`, 404)
	put("idle", `{"target":"clean","runbook":"CUSTOM_SYSTEM"}`, 404)
	if got.Verb != "" {
		t.Errorf("a refused request reached the engine: %+v", got)
	}
}

// TestStepsOfFakeHardware: steps that a request, a template and a runbook bring are checked before anything is done,
// and then done.
func TestStepsOfFakeHardware(t *testing.T) {
	f := newFixture(t, Config{}).withEngine()
	provision := func(status int, body string) map[string]any {
		t.Helper()
		return f.want(status, "PUT", "/v1/nodes/n/states/provision", body)
	}
	bios := func() map[string]string {
		t.Helper()
		got := map[string]string{}
		for _, o := range f.want(200, "GET", "/v1/nodes/n/bios", "")["bios"].([]any) {
			setting := o.(map[string]any)
			got[fmt.Sprint(setting["name"])] = fmt.Sprint(setting["value"])
		}
		return got
	}
	f.want(201, "POST", "/v1/nodes", `{"driver":"fake-hardware","name":"n","resource_class":"rc"}`)
	provision(202, `{"target":"manage"}`)
	f.until("/v1/nodes/n", "provision_state", "manageable")
	before := mustNode(t, f, "n").Version
	for _, c := range []struct{ steps, want string }{
		{`[{"interface":"bios","step":"mine_coins"}]`, "bios.mine_coins"},
		{`[{"interface":"raid","step":"apply_configuration_of_bios"}]`, "raid.apply_configuration_of_bios"},
		{`[{"interface":"bios","step":"apply_configuration"}]`, "needs the argument settings"},
		{`[{"interface":"bios","step":"apply_configuration","args":{"settings":[{"name":"a","value":"b"}],"x":1}}]`,
			"has no argument x"},
		{`[{"interface":"bios","step":"apply_configuration","args":{"settings":"a=b"}}]`,
			"argument settings of step bios.apply_configuration is a string, but has to be an array"},
		{`[{"interface":"bios","step":"factory_reset"},{"interface":"bios","step":"factory_reset","args":{"hard":true}}]`, "has no argument hard"},
		{`[{"interface":"nose","step":"x"}]`, "'nose' is not one of ['power'"},
	} {
		if out := provision(400, `{"target":"clean","clean_steps":`+c.steps+`}`); !strings.Contains(fault(out),
			c.want) {
			t.Errorf("clean with %s: %s, want %q", c.steps, fault(out), c.want)
		}
	}
	if n := mustNode(t, f, "n"); n.Version != before || n.Provision != node.Manageable {
		t.Errorf("refused requests changed the node: version %d, before %d, state %s", n.Version, before, n.Provision)
	}
	provision(202, `{"target":"clean","clean_steps":[{"interface":"bios","step":"apply_configuration","args":{"settings":[{"name":"boot","value":"pxe"}]}}]}`)
	f.until("/v1/nodes/n", "provision_state", "manageable")
	if got := bios(); got["boot"] != "pxe" {
		t.Errorf("after cleaning: BIOS %v", got)
	}

	// A runbook, on a node that has its trait.
	f.want(201, "POST", "/v1/runbooks",
		`{"name":"CUSTOM_RESET","steps":[{"interface":"bios","step":"apply_configuration","args":{"settings":[{"name":"last","value":"1"}]},"order":2},`+
			`{"interface":"bios","step":"factory_reset","order":1}]}`)
	if out := provision(400, `{"target":"clean","runbook":"CUSTOM_RESET"}`); !strings.Contains(fault(out),
		"has no traits configured") {
		t.Error(out)
	}
	f.want(204, "PUT", "/v1/runbooks/CUSTOM_RESET/traits/CUSTOM_RESET", "")
	if out := provision(400, `{"target":"clean","runbook":"CUSTOM_RESET"}`); !strings.Contains(fault(out),
		"has not been approved for use on this node") {
		t.Error(out)
	}
	f.want(204, "PUT", "/v1/nodes/n/traits", `{"traits":["CUSTOM_RESET","CUSTOM_TUNED","CUSTOM_BROKEN"]}`)
	provision(202, `{"target":"clean","runbook":"CUSTOM_RESET"}`)
	f.until("/v1/nodes/n", "provision_state", "manageable")
	if got := bios(); len(got) != 1 || got["last"] != "1" {
		t.Errorf("after the runbook: BIOS %v", got)
	}
	provision(202, `{"target":"provide"}`)
	f.until("/v1/nodes/n", "provision_state", "available")

	// Templates, by the traits of an allocation.
	template := func(name, extra, step string) {
		t.Helper()
		f.want(201, "POST", "/v1/deploy_templates", `{"name":"`+name+`","extra":`+extra+`,"steps":[`+step+`]}`)
	}
	template("CUSTOM_TUNED", `{"ingot:drivers":["fake-hardware"]}`,
		`{"interface":"bios","step":"apply_configuration","args":{"settings":[{"name":"turbo","value":"on"}]},"priority":90}`)
	template("CUSTOM_RESET", `{"ingot:drivers":["ipmi"]}`,
		`{"interface":"bios","step":"factory_reset","args":{},"priority":10}`)
	template("CUSTOM_BROKEN", `{}`,
		`{"interface":"bios","step":"apply_configuration","args":{"sets":[]},"priority":90}`)
	f.want(201, "POST", "/v1/allocations", `{"resource_class":"rc","name":"broken","traits":["CUSTOM_BROKEN"]}`)
	f.until("/v1/allocations/broken", "state", "active")
	if out := provision(400, `{"target":"active"}`); !strings.Contains(fault(out), "CUSTOM_BROKEN") {
		t.Errorf("a broken template: %s", fault(out))
	}
	f.want(204, "DELETE", "/v1/allocations/broken", "")
	f.want(201, "POST", "/v1/allocations",
		`{"resource_class":"rc","name":"tuned","traits":["CUSTOM_TUNED","CUSTOM_RESET"]}`)
	f.until("/v1/allocations/tuned", "state", "active")
	provision(202, `{"target":"active"}`)
	f.until("/v1/nodes/n", "provision_state", "active")
	if got := bios(); len(got) != 1 || got["turbo"] != "on" {
		t.Errorf("after the deployment: BIOS %v", got)
	}
	provision(202, `{"target":"service","service_steps":[{"interface":"bios","step":"factory_reset"}],"disable_ramdisk":true}`)
	f.until("/v1/nodes/n", "provision_state", "active")
	if got := bios(); len(got) != 0 {
		t.Errorf("after service: BIOS %v", got)
	}
	provision(202, `{"target":"rescue","rescue_password":"pw"}`)
	f.until("/v1/nodes/n", "provision_state", "rescue")
	provision(202, `{"target":"deleted"}`)
	f.until("/v1/nodes/n", "provision_state", "available")
	f.want(404, "GET", "/v1/allocations/tuned", "")
}
