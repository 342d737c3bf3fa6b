package neutron

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/node"
)

// TestRamdiskThenTenant: the node's card is in the provisioning network while the ramdisk runs, and what is attached is
// bound to it afterwards, with what a mechanism driver needs.
func TestRamdiskThenTenant(t *testing.T) {
	w := begin(t)
	for range 2 { // the second time nothing changes
		if err := w.s.ToRamdisk(t.Context(), w.n); err != nil {
			t.Fatal(err)
		}
		if got, want := w.own(), []string{"net-prov " + mac + " other"}; !slices.Equal(got, want) || w.f.made != 1 {
			t.Fatalf("for the ramdisk there are %v, made %d; want %v", got, w.f.made, want)
		}
	}
	p := w.port("port-1")
	want := object{"id": "port-1", "network_id": "net-prov", "name": "Ingot provisioning", "description": "Ingot 0123",
		"admin_state_up": true, "mac_address": mac, "device_id": w.n.UUID, "device_owner": "baremetal:none",
		"security_groups": []any{"group-1"}, "binding:host_id": w.n.UUID, "binding:vnic_type": "baremetal",
		"binding:profile":  object{"local_link_information": []any{link("Ethernet1")}},
		"binding:vif_type": "other"}
	if d := cmp.Diff(want, p); d != "" {
		t.Errorf("the port for the ramdisk (-want +got):\n%s", d)
	}

	if moves, err := w.s.Moves(t.Context(), w.n); moves || err != nil {
		t.Errorf("Moves to where it is = %v, %v", moves, err)
	}
	w.n.Job.Phase = node.PhaseClean
	if moves, err := w.s.Moves(t.Context(), w.n); !moves || err != nil {
		t.Errorf("Moves to the cleaning network = %v, %v", moves, err)
	}
	if err := w.s.ToRamdisk(t.Context(), w.n); err != nil {
		t.Fatal(err)
	}
	if got, want := w.own(), []string{"net-clean " + mac + " other"}; !slices.Equal(got, want) {
		t.Errorf("for cleaning there are %v, want %v", got, want)
	}

	for range 2 {
		if err := w.s.ToTenant(t.Context(), w.n); err != nil {
			t.Fatal(err)
		}
		p := w.port(vif)
		if got := w.own(); len(got) > 0 || p["binding:host_id"] != w.n.UUID || p["mac_address"] != mac ||
			p["binding:vif_type"] != "other" || p["device_id"] != "instance" {
			t.Errorf("for the tenant: own ports %v, the attached one is %v", got, p)
		}
	}
	for range 2 {
		if err := w.s.Off(t.Context(), w.n); err != nil {
			t.Fatal(err)
		}
		if p := w.port(vif); p["binding:host_id"] != "" || p["binding:profile"] != nil {
			t.Errorf("at the end the attached port is still bound: %v", p)
		}
	}
	if w.port("of-another") == nil {
		t.Error("the port of another installation is gone")
	}
	delete(w.f.ports, vif)
	if err := w.s.Off(t.Context(), w.n); err != nil {
		t.Errorf("Off, when the user has deleted the port: %v", err)
	}
}

// TestInspectionNetwork: during an inspection the card that boots is in the network for that, with its security groups;
// afterwards, or when it was given up, there is no port. driver_info can name another one, and without any the
// inspection is refused.
func TestInspectionNetwork(t *testing.T) {
	w := begin(t)
	w.n.Job.Phase = node.PhaseInspect
	var invalid *node.InvalidError
	delete(w.s.c.Networks, Inspection)
	if err := w.s.ToRamdisk(t.Context(), w.n); !errors.As(err, &invalid) ||
		!strings.Contains(err.Error(), "neutron.inspection_network") || len(w.own()) > 0 {
		t.Errorf("without a network: %v, ports %v", err, w.own())
	}
	for _, c := range []struct{ conf, info, id string }{{"inspect", "", "net-inspect"},
		{"", "net-tenant", "net-tenant"}} {
		w.s.c.Networks[Inspection] = Network{Name: c.conf, Groups: []string{"group-i"}}
		w.n.DriverInfo["inspection_network"] = c.info
		w.n.Job = &node.Job{ID: "j", Phase: node.PhaseInspect}
		for range 2 {
			if err := w.s.ToRamdisk(t.Context(), w.n); err != nil {
				t.Fatal(err)
			}
			if got, want := w.own(), []string{c.id + " " + mac + " other"}; !slices.Equal(got, want) {
				t.Fatalf("during the inspection there are %v, want %v", got, want)
			}
		}
		p := w.port(fmt.Sprintf("port-%d", w.f.made))
		if p["name"] != "Ingot inspection" || fmt.Sprint(p["security_groups"]) != "[group-i]" ||
			p["binding:host_id"] != w.n.UUID || w.port(vif)["binding:host_id"] != "" {
			t.Errorf("the port is %v", p)
		}
		for range 2 {
			if err := w.s.Off(t.Context(), w.n); err != nil || len(w.own()) > 0 {
				t.Errorf("after the inspection: %v, ports %v", err, w.own())
			}
		}
		// Killed during the inspection, which nothing goes on with: the next start takes the port away.
		if err := w.s.ToRamdisk(t.Context(), w.n); err != nil {
			t.Fatal(err)
		}
		for _, at := range []struct {
			job   *node.Job
			ports int
		}{{w.n.Job, 1}, {nil, 0}, {nil, 0}} {
			w.n.Job = at.job
			if err := w.s.Repair(t.Context()); err != nil || len(w.own()) != at.ports {
				t.Errorf("repaired with job %v: %v, ports %v", at.job, err, w.own())
			}
		}
	}
}

// TestBootOptions: where Neutron's DHCP serves the ramdisk, its port has the options for that, and the client ID of the
// card.
func TestBootOptions(t *testing.T) {
	w := begin(t)
	w.s.c.Options = func(n *node.Node, mac string) []Option {
		return []Option{{"tag:ipxe,67", "http://192.0.2.1/boot.ipxe?mac=" + mac + "&node=" + n.UUID}}
	}
	w.cards[0].Extra = object{"client-id": "ff:00"}
	if err := w.s.ToRamdisk(t.Context(), w.n); err != nil {
		t.Fatal(err)
	}
	want := []any{object{"opt_name": "61", "opt_value": "ff:00"}, object{"opt_name": "tag:ipxe,67",
		"opt_value": "http://192.0.2.1/boot.ipxe?mac=" + mac + "&node=" + w.n.UUID, "ip_version": 4.0}}
	if d := cmp.Diff(want, w.port("port-1")["extra_dhcp_opts"]); d != "" {
		t.Errorf("DHCP options (-want +got):\n%s", d)
	}
}

// TestBond: a port group's VIF is bound with the links of all members and the bond's options.
func TestBond(t *testing.T) {
	w := begin(t)
	g := &node.Portgroup{Mode: "802.3ad", Properties: object{"miimon": "100", "bond_xmit_hash_policy": "layer3+4"},
		InternalInfo: object{vifKey: vif}}
	g.UUID, g.Name = "g1", "bond0"
	w.bonds = []*node.Portgroup{g}
	for _, p := range w.cards {
		p.PortgroupUUID, p.InternalInfo = "g1", nil
	}
	if err := w.s.ToTenant(t.Context(), w.n); err != nil {
		t.Fatal(err)
	}
	want := object{"local_link_information": []any{link("Ethernet1"), link("Ethernet2")},
		"local_group_information": object{"id": "g1", "name": "bond0", "bond_mode": "802.3ad",
			"bond_properties": object{"bond_miimon": "100", "bond_xmit_hash_policy": "layer3+4"}}}
	if d := cmp.Diff(want, w.port(vif)["binding:profile"]); d != "" {
		t.Errorf("the bond's profile (-want +got):\n%s", d)
	}
}

// TestDeathAtEachRequest: Neutron dies at each request of a life in turn, before or after it has done what was asked.
// Asked again, the result is the same as without it; given up, Repair leaves nothing behind.
func TestDeathAtEachRequest(t *testing.T) {
	type step = func(*world) error
	life := []step{
		func(w *world) error { w.n.Job.Phase = node.PhaseInspect; return w.s.ToRamdisk(w.t.Context(), w.n) },
		func(w *world) error { return w.s.Off(w.t.Context(), w.n) },
		func(w *world) error { w.n.Job.Phase = node.PhaseClean; return w.s.ToRamdisk(w.t.Context(), w.n) },
		func(w *world) error { w.n.Job.Phase = node.PhaseDeploy; return w.s.ToRamdisk(w.t.Context(), w.n) },
		func(w *world) error { return w.s.ToTenant(w.t.Context(), w.n) },
		func(w *world) error { return w.s.Off(w.t.Context(), w.n) },
	}
	whole := begin(t)
	for _, do := range life {
		if err := do(whole); err != nil {
			t.Fatal(err)
		}
	}
	deaths := 0
	for at := range whole.f.counted() {
		for _, before := range []bool{true, false} {
			for _, giveUp := range []bool{true, false} {
				w := begin(t)
				w.f.left, w.f.before = at, before
				name := fmt.Sprintf("death at request %d, before it is done %v", at, before)
				for i, do := range life {
					err := do(w)
					if !w.f.died() {
						if err != nil {
							t.Fatalf("%s: %v", name, err)
						}
						continue
					}
					deaths++
					if !oscloud.Passing(err) {
						t.Fatalf("%s: step %d = %v, want an error that passes", name, i, err)
					}
					w.f.mu.Lock()
					w.f.dead, w.f.left = false, -1
					w.f.mu.Unlock()
					if giveUp {
						break
					}
					if err := do(w); err != nil {
						t.Fatalf("%s: again: %v", name, err)
					}
				}
				if giveUp {
					w.n.Job = nil
					if err := errors.Join(w.s.Repair(t.Context()), w.s.Repair(t.Context())); err != nil {
						t.Fatalf("%s: repair: %v", name, err)
					}
				} else if p := w.port(vif); p["binding:host_id"] != "" || p["mac_address"] != mac {
					t.Errorf("%s: the attached port is %v", name, p)
				}
				if got := w.own(); len(got) > 0 || w.port("of-another") == nil || w.port(vif) == nil {
					t.Errorf("%s, given up %v: left are %v; another's %v", name, giveUp, got, w.port("of-another"))
				}
			}
		}
	}
	if deaths < 20 {
		t.Errorf("there were %d deaths only", deaths)
	}
}

// TestRepairKeepsWhatIsNeeded: ports of a node at work, or with a ramdisk that is kept, stay; those of one that is
// gone, or has another network interface by now, do not.
func TestRepairKeepsWhatIsNeeded(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*world)
		stay   bool
	}{
		"at work":   {func(*world) {}, true},
		"kept":      {func(w *world) { w.n.Job, w.n.Boot = nil, &node.Boot{Kept: true} }, true},
		"in rescue": {func(w *world) { w.n.Job, w.n.Provision = nil, node.Rescue }, true},
		"another conductor's": {func(w *world) {
			w.n.Job = nil
			w.s.c.Mine = func(*node.Node) bool { return false }
		}, true},
		"idle":                  {func(w *world) { w.n.Job = nil }, false},
		"deleted":               {func(w *world) { w.gone = true }, false},
		"another interface now": {func(w *world) { w.s.c.Here = func(*node.Node) bool { return false } }, false},
	} {
		w := begin(t)
		if err := w.s.ToRamdisk(t.Context(), w.n); err != nil {
			t.Fatal(err)
		}
		test.change(w)
		if err := w.s.Repair(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := w.own(); (len(got) > 0) != test.stay {
			t.Errorf("%s: after the repair there are %v, want to stay %v", name, got, test.stay)
		}
	}
}

// TestFaultsAreClear: what is wrong is said before a machine is touched, and nothing is left behind.
func TestFaultsAreClear(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*world)
		want   string
		tenant bool // it shows only then
		passes bool
	}{
		"no network named": {func(w *world) { delete(w.s.c.Networks, Provisioning) },
			"set neutron.provisioning_network, or the node's driver_info provisioning_network", false, false},
		"a network that is not there": {func(w *world) { w.n.DriverInfo["provisioning_network"] = "nowhere" },
			"the provisioning network nowhere is not in Neutron", false, false},
		"two of the name": {func(w *world) { w.n.DriverInfo["provisioning_network"] = "twin" },
			"2 networks of the name twin", false, false},
		"a hostile name": {func(w *world) {
			w.n.DriverInfo["provisioning_network"] = "\x1b[2J" + strings.Repeat("x", 1e6)
		}, "is not in Neutron", false, false},
		"no card that boots": {func(w *world) { w.cards = w.cards[1:] }, "no port with pxe_enabled", false, false},
		"no link": {func(w *world) { w.cards[0].LocalLinkConnection = nil },
			"none of the 1 ports", false, false},
		"the quota": {func(w *world) { w.f.quota = 2 }, "Quota exceeded", false, false},
		"no mechanism driver": {func(w *world) { w.f.bindable = func(object) bool { return false } },
			"does ironic-neutron-agent run", false, true},
		"nothing attached": {func(w *world) { w.cards[0].InternalInfo = nil }, "vif attach", true, false},
		"no link for the tenant": {func(w *world) { w.cards[0].LocalLinkConnection = nil },
			"no local_link_connection", true, false},
		"no driver for the tenant": {func(w *world) { w.f.bindable = func(object) bool { return false } },
			"bind port " + vif, true, true},
	} {
		w := begin(t)
		test.change(w)
		act := w.s.ToRamdisk
		if test.tenant {
			act = w.s.ToTenant
		}
		err := act(t.Context(), w.n)
		if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 700 ||
			strings.Contains(err.Error(), "\x1b") || oscloud.Passing(err) != test.passes {
			t.Errorf("%s: %v; passes %v, want %q", name, err, oscloud.Passing(err), test.want)
		}
		if got := w.own(); len(got) > 0 {
			t.Errorf("%s: left are %v", name, got)
		}
	}
}

func TestValidate(t *testing.T) {
	w := begin(t)
	if err := w.s.Validate(t.Context(), w.n); err != nil {
		t.Errorf("Validate, all there = %v", err)
	}
	for name, change := range map[string]func(*world){
		"no cleaning network":          func(w *world) { delete(w.s.c.Networks, Cleaning) },
		"the rescuing network is gone": func(w *world) { w.n.DriverInfo["rescuing_network"] = "nowhere" },
		"no card":                      func(w *world) { w.cards = nil },
		"nothing attached":             func(w *world) { w.cards[0].InternalInfo = nil },
		"the attached port is gone":    func(w *world) { delete(w.f.ports, vif) },
	} {
		w := begin(t)
		change(w)
		var invalid *node.InvalidError
		if err := w.s.Validate(t.Context(), w.n); !errors.As(err, &invalid) || w.f.made > 0 {
			t.Errorf("Validate, %s = %v, made %d ports", name, err, w.f.made)
		}
	}
	w.f.left = 0
	if err := w.s.Validate(t.Context(), w.n); !oscloud.Passing(err) {
		t.Errorf("Validate without Neutron = %v, want an error that passes", err)
	}
}

// TestOneCardIsEnough: as in Ironic, a card that can't get its port does not stop a node with another one.
func TestOneCardIsEnough(t *testing.T) {
	w := begin(t)
	w.cards[1].PXEEnabled = true
	w.f.quota = 3
	if err := w.s.ToRamdisk(t.Context(), w.n); err != nil {
		t.Fatal(err)
	}
	if got := w.own(); len(got) != 1 {
		t.Errorf("the ports are %v, want one", got)
	}
	w.f.quota = 0
	if err := w.s.ToRamdisk(t.Context(), w.n); err != nil || len(w.own()) != 2 || w.f.made != 2 {
		t.Errorf("asked again = %v, the ports are %v, made %d", err, w.own(), w.f.made)
	}
}

// TestAttach: an attached port gets the card's address, on a physical network of its own.
func TestAttach(t *testing.T) {
	w := begin(t)
	if got, err := w.s.Physical(t.Context(), vif); err != nil || !slices.Equal(got, []string{"physnet1"}) {
		t.Errorf("Physical = %v, %v", got, err)
	}
	w.f.ports[vif]["binding:host_id"] = "another"
	w.f.bind(w.f.ports[vif])
	if err := w.s.Address(t.Context(), vif, mac2); err != nil || w.port(vif)["mac_address"] != mac2 {
		t.Errorf("Address = %v, the port is %v", err, w.port(vif))
	}
	var invalid *node.InvalidError
	if err := w.s.Address(t.Context(), "nowhere", mac); !errors.As(err, &invalid) {
		t.Errorf("Address of a port that is not there = %v", err)
	}
	if err := w.s.Plug(t.Context(), w.n, vif); err != nil || w.port(vif)["binding:host_id"] != w.n.UUID {
		t.Errorf("Plug = %v, the port is %v", err, w.port(vif))
	}
	if err := w.s.Unplug(t.Context(), w.n, vif); err != nil || w.port(vif)["binding:host_id"] != "" {
		t.Errorf("Unplug = %v, the port is %v", err, w.port(vif))
	}
	if err := w.s.Unplug(t.Context(), w.n, "nowhere"); err != nil {
		t.Errorf("Unplug of a port that is gone = %v", err)
	}
}

// TestGroupsOfANode: driver_info names a network and its security groups in place of the configuration's.
func TestGroupsOfANode(t *testing.T) {
	for _, groups := range []any{"a, b", []any{"a", "b"}} {
		w := begin(t)
		w.n.DriverInfo["provisioning_network"] = "net-tenant"
		w.n.DriverInfo["provisioning_network_security_groups"] = groups
		if err := w.s.ToRamdisk(t.Context(), w.n); err != nil {
			t.Fatal(err)
		}
		p := w.port("port-1")
		if got := fmt.Sprint(p["security_groups"]); got != "[a b]" || p["network_id"] != "net-tenant" {
			t.Errorf("with %v the port is %v", groups, p)
		}
	}
}

// TestEndlessList: a Neutron that always has one more page is given up.
func TestEndlessList(t *testing.T) {
	w := begin(t)
	pages := 0
	w.s.c.Client.HTTPClient.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		pages++
		rec := newRecorder(r, fmt.Sprintf(`{"ports": [{"id": "x"}], "ports_links": [{"rel": "next", "href": %q}]}`, r.URL))
		return rec, nil
	})
	if err := w.s.Repair(t.Context()); err == nil || !strings.Contains(err.Error(), "more than 100 pages") ||
		pages > 101 {
		t.Errorf("Repair = %v after %d pages", err, pages)
	}
}

// TestAnswersOfAnyShape: no answer makes the conductor panic, and none counts as done.
func TestAnswersOfAnyShape(t *testing.T) {
	for _, body := range []string{``, `null`, `[]`, `"text"`, `{}`, `{"ports": null}`, `{"ports": "x"}`,
		`{"ports": [1]}`, `{"ports": [{"id": 7}]}`, `{"networks": {"id": "x"}}`, `{"networks": [null], "port": [], "ports": [null]}`,
		`{"networks": [{"id": "n"}], "port": null, "ports": []}`, `{"networks": [{"id": {}}]}`, `{"port": {"id": []}}`,
		`{"network": []}`, `{"ports": [{"id": "p", "fixed_ips": {"a": 1}}]}`, strings.Repeat(`{"ports":`, 1000)} {
		w := begin(t)
		w.s.c.Client.HTTPClient.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			return newRecorder(r, body), nil
		})
		if err := w.s.ToRamdisk(t.Context(), w.n); err == nil {
			t.Errorf("ToRamdisk with %.40q = nil", body)
		}
		if err := w.s.ToTenant(t.Context(), w.n); err == nil {
			t.Errorf("ToTenant with %.40q = nil", body)
		}
		for name, err := range map[string]error{"Off": w.s.Off(t.Context(), w.n),
			"Repair": w.s.Repair(t.Context()), "Address": w.s.Address(t.Context(), vif, mac),
			"Validate": w.s.Validate(t.Context(), w.n)} {
			if err != nil && (len(err.Error()) > 700 || strings.Contains(err.Error(), "\n")) {
				t.Errorf("%s with %.40q = %v", name, body, err)
			}
		}
		if _, err := w.s.Physical(t.Context(), vif); err != nil && len(err.Error()) > 700 {
			t.Errorf("Physical with %.40q = %v", body, err)
		}
	}
}
