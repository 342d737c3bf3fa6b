package machine

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/u-root/u-root/pkg/kmodule"
	"github.com/vishvananda/netlink"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// What TestClocksDiffer has in the environment of its machine, and the machine's ports.
const (
	inMachineStore = "INGOT_TEST_STORE" // address of the database, without the password
	clockControl   = ":9000"
)

// steady is how long a conductor is watched after its clock was set: longer than it takes to take one for dead.
const steady = 25 * time.Second

// TestClocksDiffer: two conductors share a database, and one of them is in a machine whose clock is set forward by a
// year, and back by two. It stays the owner of its nodes, and works for them; so does the other. Then its machine loses
// power, and the other one takes its nodes over, with all that was recorded by that clock.
func TestClocksDiffer(t *testing.T) {
	if os.Getenv(inMachine) != "" {
		clockConductor(t)
		return
	}
	_, database := pgserver.New(t).Database(t)
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(pgserver.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &twoClocks{T: t, at: map[string]string{}}
	right := ingotd.Start(t, kit.FreeAddr(t), append(clockStore(database, secret), "hostname=right")...)
	s.at["right"] = right.URL

	there, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	there.Host = host(there.Host)
	api, control := kit.FreeAddr(t), kit.FreeAddr(t)
	s.at["wrong"] = "http://" + api
	ramdisk := made.Ramdisk(t, made.RamdiskLab)
	vm := kit.Start(t, kit.VM{Kernel: filepath.Join(ramdisk, "vmlinuz"), MemoryMiB: 1024,
		Initrd: clockRamdisk(t, filepath.Join(ramdisk, "initramfs.cpio.zst")),
		Append: "quiet rdinit=/init " + inMachine + "=" + t.Name() + " " + inMachineStore + "=" + there.String(),
		Args: []string{"-nic", fmt.Sprintf("user,model=virtio-net-pci,hostfwd=tcp:%s-:6385,hostfwd=tcp:%s-%s", api, control,
			clockControl)}, Timeout: bootLimit})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the machine's console:\n%s\nlog of the other ingotd:\n%s", vm.Console(), right.Log)
		}
	})
	kit.Eventually(t, 3*time.Minute, "both conductors know each other", func() bool {
		if strings.Contains(vm.Console(), "CLOCK ended") {
			t.Fatal("the machine's ingotd has ended")
		}
		return slices.Equal(s.alive("right"), []string{"right", "wrong"}) && len(s.alive("wrong")) == 2
	})

	const nodes = 8
	owners := map[string]string{}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		s.ask("right", "POST", "/v1/nodes", `{"name":"`+name+`","driver":"fake-hardware"}`, nil)
		s.verb([]string{"right", "wrong"}[i%2], name, "manage", "manageable")
		owners[name] = s.node("right", name).Conductor
	}
	for _, who := range []string{"right", "wrong"} {
		if !slices.Contains(slicesOf(owners), who) {
			t.Fatalf("%s owns no node of %v", who, owners)
		}
	}
	// Each of these goes through both conductors, for nodes of both.
	next := map[string][2]string{"manageable": {"provide", "available"}, "available": {"active", "active"},
		"active": {"deleted", "available"}}
	round := func() {
		t.Helper()
		for i := range nodes {
			name := fmt.Sprintf("n%d", i)
			n := s.node("right", name)
			if n.Conductor != owners[name] {
				t.Errorf("%s belongs to %s, want %s", name, n.Conductor, owners[name])
			}
			s.verb([]string{"wrong", "right"}[i%2], name, next[n.State][0], next[n.State][1])
		}
	}
	for _, by := range []time.Duration{year, -2 * year} {
		resp, err := http.Post("http://"+control+"/turn?by="+by.String(), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("set the machine's clock: %s", resp.Status)
		}
		round()
		for end := time.Now().Add(steady); time.Now().Before(end); time.Sleep(time.Second) {
			for _, at := range []string{"right", "wrong"} {
				if got := s.alive(at); len(got) != 2 {
					t.Fatalf("after the clock was set by %v %s takes only %v for alive", by, at, got)
				}
			}
		}
		round()
	}
	vm.End()
	owners = map[string]string{}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		n := s.node("right", name)
		s.verb("right", name, next[n.State][0], next[n.State][1])
		if n = s.node("right", name); n.Conductor != "right" {
			t.Errorf("%s belongs to %s, whose machine is off", name, n.Conductor)
		}
	}
}

func slicesOf(m map[string]string) (values []string) {
	for _, v := range m {
		values = append(values, v)
	}
	return values
}

// clockStore returns the settings that both conductors have in common.
func clockStore(database, secret string) []string {
	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	return []string{"store.url=" + database, "store.password_file=" + secret, "store.key=" + key,
		"deploy.automated_clean=false"}
}

// twoClocks are two conductors, by name.
type twoClocks struct {
	*testing.T
	at map[string]string
}

func (s *twoClocks) try(at, method, path, body string, into any) error {
	req, err := http.NewRequestWithContext(s.Context(), method, s.at[at]+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("X-OpenStack-Ironic-API-Version", "1.82")
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s at %s: %s", method, path, at, resp.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

func (s *twoClocks) ask(at, method, path, body string, into any) {
	s.Helper()
	if err := s.try(at, method, path, body, into); err != nil {
		s.Fatal(err)
	}
}

// alive lists the conductors that one takes for alive; none if it does not answer.
func (s *twoClocks) alive(at string) (names []string) {
	var got struct {
		Conductors []struct {
			Hostname string
			Alive    bool
		}
	}
	if err := s.try(at, "GET", "/v1/conductors", "", &got); err != nil {
		return nil
	}
	for _, c := range got.Conductors {
		if c.Alive {
			names = append(names, c.Hostname)
		}
	}
	slices.Sort(names)
	return names
}

type ownedNode struct {
	State       string `json:"provision_state"`
	Reservation string
	Conductor   string
}

func (s *twoClocks) node(at, name string) (n ownedNode) {
	s.Helper()
	s.ask(at, "GET", "/v1/nodes/"+name, "", &n)
	return n
}

func (s *twoClocks) verb(at, name, target, state string) {
	s.Helper()
	s.ask(at, "PUT", "/v1/nodes/"+name+"/states/provision", `{"target":"`+target+`"}`, nil)
	kit.Eventually(s.T, 2*time.Minute, name+" is "+state, func() bool {
		n := s.node(at, name)
		if strings.HasSuffix(n.State, "failed") {
			s.Fatalf("%s of %s at %s: %s", target, name, at, n.State)
		}
		return n.State == state && n.Reservation == ""
	})
}

// clockConductor is the machine's part of TestClocksDiffer: it runs ingotd, and sets the clock on request. The machine
// is ended from outside.
func clockConductor(t *testing.T) {
	if err := clockNetwork(); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(pgserver.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--data-dir", filepath.Join(t.TempDir(), "data"), "--listen", "0.0.0.0:6385"}
	for _, kv := range append(clockStore(os.Getenv(inMachineStore), secret), "hostname=wrong",
		"agents.listen=127.0.0.1:6386", "agents.advertise=127.0.0.1:6386", "peer.listen=127.0.0.1:0",
		"api.insecure_listen=true", "netboot.ramdisk_dir=/none") {
		args = append(args, "--set", kv)
	}
	cmd := exec.Command("/ingotd", args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		err := http.ListenAndServe(clockControl, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			by, err := time.ParseDuration(r.FormValue("by"))
			if err = errors.Join(err, setClock(by)); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}))
		t.Error(err)
	}()
	t.Errorf("ingotd has ended: %v", cmd.Wait())
}

// clockNetwork sets up the machine's card, in the network that QEMU has for it.
func clockNetwork() error {
	modules, err := kmodule.NewProber(kmodule.ProbeOpts{IgnoreProcMods: true})
	if err != nil {
		return err
	}
	for _, name := range []string{"virtio_pci", "virtio_net"} {
		if err := modules.Probe(name, ""); err != nil {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Attrs().Flags&net.FlagLoopback != 0 || l.Type() != "device" {
			continue
		}
		a, err := netlink.ParseAddr("10.0.2.15/24")
		if err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l))
	}
	return errors.New("the machine has no card")
}
