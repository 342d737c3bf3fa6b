//go:build !race

package app_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/test/kit/switched"
	"github.com/ingot-metal/ingot/tools/lab/vswitch"
)

// leaf is a switch with a machine at its first port, and something that listens in each network.
type leaf struct {
	*vswitch.Switch
	site *site
	at   string // the machine's port

	mu    sync.Mutex
	heard string   // network that got the last frame
	went  []string // device and network of each start of the machine
}

const switchPassword = "s3cr3t-of-the-switch"

// network of each VLAN.
var vlans = map[int]string{100: "provisioning", 101: "cleaning", 201: "tenant-a", 202: "tenant-b", 999: "quarantine"}

// newLeaf starts a site whose machine is at a switch.
func newLeaf(t *testing.T, d vswitch.Dialect, set ...string) *leaf {
	t.Helper()
	s := newSite(t)
	name := map[vswitch.Dialect]string{vswitch.NXOS: "Ethernet1/%d", vswitch.EOS: "Ethernet%d"}[d]
	var ports []string
	for n := range 8 {
		ports = append(ports, fmt.Sprintf(name, n+1))
	}
	l := &leaf{Switch: vswitch.New("leaf-1", d, "ingot", switchPassword, ports...), site: s, at: ports[0]}
	i := 2
	for vlan, network := range vlans {
		l.AddVLANs(vlan)
		l.Set(ports[i], vswitch.Port{Mode: "access", Access: vlan, Native: 1})
		l.Plug(ports[i], func([]byte) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.heard += network
		})
		i++
	}
	l.Plug(l.at, func([]byte) {})
	l.Set(l.at, vswitch.Port{Mode: "access", Access: 100, Native: 1}) // where a new machine is inspected
	address, public := switched.Serve(t, l.Switch)
	s.write("switch-password", switchPassword+"\n")
	s.write("switches.yaml", fmt.Sprintf(`
networks:
  provisioning: {vlan: 100}
  cleaning: {vlan: 101}
  quarantine: {vlan: 999}
  tenants:
    tenant-a: {vlan: 201}
    tenant-b: {vlan: 202}
switches:
  leaf-1:
    address: %s
    dialect: %s
    ids: ["00:1c:73:00:00:01"]
    host_key: %s
    username: ingot
    password_file: %s
    ports: [%s]
    save: true
    timeout: 5s
`, address, d, public, filepath.Join(s.dir, "switch-password"), l.at+"-2"))
	s.set = append(s.set, "switches.file="+filepath.Join(s.dir, "switches.yaml"),
		"hardware.default_network_interface=switch")
	s.set = append(s.set, set...)
	s.machine.lldp = fmt.Sprintf(`[[1,"04001c73000001"],[2,"05%s"],[5,"%s"]]`, hex.EncodeToString([]byte(l.at)),
		hex.EncodeToString([]byte("leaf-1")))
	s.machine.switchedOn = func() {
		boots, _ := s.machine.seen()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.went = append(l.went, boots[len(boots)-1]+" "+l.reachesLocked())
	}
	s.start()
	return l
}

// reaches returns the networks that get a broadcast of the machine's.
func (l *leaf) reaches() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reachesLocked()
}

func (l *leaf) reachesLocked() string {
	l.heard = ""
	l.mu.Unlock()
	l.Send(l.at, slices.Concat([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x52, 0x54, 0, 0xaa, 0xbb, 1, 8, 0},
		make([]byte, 46)))
	l.mu.Lock()
	return l.heard
}

// request sends a request to the API.
func (l *leaf) request(method, path, body string, want int) {
	l.site.t.Helper()
	r, err := http.NewRequestWithContext(l.site.t.Context(), method, l.site.url+path, strings.NewReader(body))
	if err != nil {
		l.site.t.Fatal(err)
	}
	r.Header.Set("X-OpenStack-Ironic-API-Version", "latest")
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		l.site.t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != want {
		l.site.t.Fatalf("%s %s: %s, want %d", method, path, resp.Status, want)
	}
}

func (l *leaf) attach(network string) {
	l.site.t.Helper()
	l.request("POST", "/v1/nodes/n1/vifs", fmt.Sprintf(`{"id":%q}`, network), 204)
}

// available takes the node there, with what inspection learns of its cabling.
func (l *leaf) available() {
	l.site.t.Helper()
	l.site.enrol()
	l.site.do("n1", "inspect", "manageable", nil)
	l.site.do("n1", "provide", "available", nil)
	l.site.image()
}

// network is the verdict of validate on the node's network interface.
func (l *leaf) network() client.Validation {
	l.site.t.Helper()
	v, err := l.site.Validate(l.site.t.Context(), "n1")
	if err != nil {
		l.site.t.Fatal(err)
	}
	return v["network"]
}

// TestVLANPerTenant: a machine's frames reach the network of what is done with it, and no other, by the switch
// port that
// LLDP named; with a wrong network or none, nothing is done.
func TestVLANPerTenant(t *testing.T) {
	for _, d := range []vswitch.Dialect{vswitch.NXOS, vswitch.EOS} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			l := newLeaf(t, d)
			s := l.site
			l.available()
			for _, c := range []struct{ attach, want string }{
				{"", "no network is attached"}, {"tenant-c", "the table of switches has no network"},
			} {
				if c.attach != "" {
					l.attach(c.attach)
				}
				if v := l.network(); v.Result == nil || *v.Result || !strings.Contains(v.Reason, c.want) {
					t.Errorf("with network %q: %+v, want %q", c.attach, v, c.want)
				}
				l.request("PUT", "/v1/nodes/n1/states/provision", `{"target":"active"}`, 400)
			}
			l.request("DELETE", "/v1/nodes/n1/vifs/tenant-c", "", 204)
			l.attach("tenant-a")
			if v := l.network(); v.Result == nil || !*v.Result {
				t.Fatalf("validate: %+v", v)
			}
			s.do("n1", "active", "active", client.ConfigDrive{})
			if got := l.reaches(); got != "tenant-a" || l.Saved(l.at).Access != 201 {
				t.Errorf("the deployed machine reaches %q, after a restart of the switch %+v", got, l.Saved(l.at))
			}
			s.do("n1", "deleted", "available", nil)
			s.image()
			l.request("PUT", "/v1/nodes/n1/states/provision", `{"target":"active"}`, 400) // its network went with it
			l.attach("tenant-b")
			s.do("n1", "active", "active", client.ConfigDrive{})
			if got := l.reaches(); got != "tenant-b" {
				t.Errorf("the deployed machine reaches %q", got)
			}
			want := []string{"pxe provisioning", "pxe cleaning", "pxe provisioning", "disk tenant-a", "pxe cleaning",
				"pxe provisioning", "disk tenant-b"}
			l.mu.Lock()
			defer l.mu.Unlock()
			if !slices.Equal(l.went, want) {
				t.Errorf("starts %q, want %q", l.went, want)
			}
			if lines, _, _ := l.Lines(); slices.ContainsFunc(lines, func(line string) bool {
				return strings.HasPrefix(line, "interface ") && line != "interface "+l.at
			}) {
				t.Errorf("other ports were configured: %q", lines)
			}
		})
	}
}

// TestSwitchThatFails: a deployment whose switch refuses, lies, or loses each session ends in a clear error, with the
// machine off; once the switch is well, the same node is deployed. No secret is in what is shown or logged.
func TestSwitchThatFails(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault vswitch.Fault
		want  string
	}{
		{"lost", vswitch.CutBefore, "the switch ended the session"},
		{"refused", vswitch.Refuse, "it refuses the command"},
		{"lie", vswitch.Ignore, "but the switch shows it in VLAN 100"},
		{"leak", vswitch.Leak, "it refuses the command"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLeaf(t, vswitch.NXOS)
			s := l.site
			l.available()
			l.attach("tenant-a")
			l.SetFault(func(line string) vswitch.Fault {
				if line == "switchport access vlan 201" {
					return c.fault
				}
				return vswitch.None
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := s.Provision(ctx, "n1", client.ProvisionRequest{Target: "active"}); err != nil {
				t.Fatal(err)
			}
			s.wait("n1", "deploy failed")
			n, err := s.Node(ctx, "n1")
			if err != nil {
				t.Fatal(err)
			}
			if e := string(n.LastError); !strings.Contains(e, c.want) || !strings.Contains(e, "switch leaf-1") ||
				!strings.Contains(e, "tenant network") {
				t.Errorf("last error %q, want %q", e, c.want)
			}
			if s.machine.On() {
				t.Error("the machine is on, in the provisioning network")
			}
			l.SetFault(nil)
			s.do("n1", "active", "active", client.ConfigDrive{})
			if got := l.reaches(); got != "tenant-a" {
				t.Errorf("the deployed machine reaches %q", got)
			}
			history, err := s.History(ctx, "n1")
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(s.log.String(), switchPassword) || strings.Contains(string(n.LastError),
				switchPassword) ||
				strings.Contains(fmt.Sprint(history), switchPassword) {
				t.Error("the switch's password is shown")
			}
		})
	}
}

// TestKeptAgentIsBroughtToProvisioning: an agent that stays after the cleaning is moved from that network to the one
// where it is provisioned, and goes on there.
func TestKeptAgentIsBroughtToProvisioning(t *testing.T) {
	t.Parallel()
	l := newLeaf(t, vswitch.EOS, "deploy.fast_track=true")
	s := l.site
	l.available()
	l.attach("tenant-a")
	if got := l.reaches(); got != "cleaning" {
		t.Errorf("the agent that stays reaches %q", got)
	}
	release := s.machine.hold("write_image")
	defer release()
	if err := s.Provision(t.Context(), "n1", client.ProvisionRequest{Target: "active"}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.machine.held:
	case <-time.After(2 * time.Minute):
		t.Fatal("no image is written")
	}
	if got := l.reaches(); got != "provisioning" {
		t.Errorf("the agent that writes the image reaches %q", got)
	}
	release()
	s.wait("n1", "active")
	if got := l.reaches(); got != "tenant-a" {
		t.Errorf("the deployed machine reaches %q", got)
	}
	if boots, _ := s.machine.seen(); len(boots) != 2 {
		t.Errorf("the machine was started from %v, want one boot of the agent and one of the system", boots)
	}
}

// TestKilledWhileASwitchIsConfigured: the next conductor finishes what was begun, whether or not the switch had
// done it.
func TestKilledWhileASwitchIsConfigured(t *testing.T) {
	for _, at := range []string{"switchport access vlan 201", "no shutdown", "copy running-config startup-config"} {
		t.Run(strings.ReplaceAll(at, " ", "-"), func(t *testing.T) {
			t.Parallel()
			l := newLeaf(t, vswitch.NXOS)
			s := l.site
			l.available()
			l.attach("tenant-a")
			hangs, tenant := make(chan struct{}), false
			l.SetFault(func(line string) vswitch.Fault {
				tenant = tenant || line == "switchport access vlan 201"
				if tenant && line == at && hangs != nil {
					close(hangs)
					hangs = nil
					return vswitch.Hang
				}
				return vswitch.None
			})
			hung := hangs
			if err := s.Provision(t.Context(), "n1", client.ProvisionRequest{Target: "active"}); err != nil {
				t.Fatal(err)
			}
			select {
			case <-hung:
			case <-time.After(2 * time.Minute):
				t.Fatal("the switch was not configured")
			}
			s.kill()
			s.start()
			s.wait("n1", "active")
			if got := l.reaches(); got != "tenant-a" || l.Saved(l.at).Access != 201 {
				t.Errorf("the machine reaches %q, after a restart of the switch %+v", got, l.Saved(l.at))
			}
			s.do("n1", "deleted", "available", nil)
			if got := l.reaches(); got != "quarantine" {
				t.Errorf("the cleaned machine, which is off, reaches %q", got)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			if last := l.went[len(l.went)-1]; last != "pxe cleaning" {
				t.Errorf("it was cleaned after the start %q", last)
			}
		})
	}
}
