//go:build !race

// The program under test is a process of its own, built without the race detector.

package app_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/pin/tftp/v3"

	"github.com/ingot-metal/ingot/conductor/agents/agentstest"
	"github.com/ingot-metal/ingot/proto/agentv1"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// hostsEnv names the namespaces of the two conductors, for the process that is in the machine's.
const hostsEnv = "INGOT_TEST_HOSTS"

// onTwoHosts makes three network namespaces with one network: 10.77.0.1 and 10.77.0.2 on "prov" for conductors, and
// "eth0" for machines. It runs the test again as a process in the machines' and returns the others there; in the outer
// process it returns nil when that is over.
func onTwoHosts(t *testing.T) []string {
	t.Helper()
	if names := os.Getenv(hostsEnv); names != "" {
		return strings.Fields(names)
	}
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "ip")
	machine := fmt.Sprintf("ingot-ka-m%d", os.Getpid())
	conductors := []string{fmt.Sprintf("ingot-ka-a%d", os.Getpid()), fmt.Sprintf("ingot-ka-b%d", os.Getpid())}
	for _, ns := range append([]string{machine}, conductors...) {
		kit.Run(t, "ip", "netns", "add", ns)
		t.Cleanup(func() {
			if out, err := exec.Command("ip", "netns", "del", ns).CombinedOutput(); err != nil {
				t.Errorf("remove namespace %s: %v %s", ns, err, out)
			}
		})
		kit.Run(t, "ip", "-n", ns, "link", "set", "lo", "up")
	}
	kit.Run(t, "ip", "-n", machine, "link", "add", "eth0", "type", "bridge")
	for i, ns := range conductors {
		kit.Run(t, "ip", "-n", machine, "link", "add", fmt.Sprint("port", i), "type", "veth", "peer", "name", "prov",
			"netns", ns)
		kit.Run(t, "ip", "-n", machine, "link", "set", fmt.Sprint("port", i), "master", "eth0", "up")
		kit.Run(t, "ip", "-n", ns, "addr", "add", fmt.Sprintf("10.77.0.%d/24", i+1), "dev", "prov")
		kit.Run(t, "ip", "-n", ns, "link", "set", "prov", "up")
	}
	kit.Run(t, "ip", "-n", machine, "link", "set", "eth0", "up")
	kit.Run(t, "ip", "-n", machine, "addr", "add", "10.77.0.99/24", "dev", "eth0")
	cmd := exec.CommandContext(t.Context(), "ip", "netns", "exec", machine, os.Args[0], "-test.run", "^"+t.Name()+"$",
		"-test.v", "-test.timeout=4m")
	cmd.Env = append(os.Environ(), hostsEnv+"="+strings.Join(conductors, " "))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("in the machine's namespace: %v\n%s", err, out)
	} else {
		t.Logf("%s", out)
	}
	return nil
}

// vip is the virtual address.
const vip = "10.77.0.10"

// TestVirtualAddressMoves: two conductors on one network, each on a host of its own, with keepalived as the how-to has
// it. One of them answers each machine, and leads it to the virtual address, where it gets boot program, script and
// ramdisk from either; an agent enrols at the conductor that does not own its node. When the conductor with the virtual
// address is killed, the address moves, machines of the dead one are answered by the other one at their second try, and
// boot; an address has one machine.
func TestVirtualAddressMoves(t *testing.T) {
	kit.NeedPrograms(t, "keepalived")
	spaces := onTwoHosts(t)
	if spaces == nil {
		return
	}
	dir := t.TempDir()
	writeBootFiles(t, dir)
	r := startOnTwoHosts(t, spaces, dir, "netboot.dhcp=server", "netboot.virtual_address="+vip,
		"netboot.range_start=10.77.0.50", "netboot.range_end=10.77.0.90", "netboot.loader_dir="+dir)
	for _, ns := range spaces {
		r.keepalived(ns, dir)
	}
	holder := -1
	ingotd.Wait(t, "the virtual address is on one host", func() bool { holder = r.holder(spaces); return holder >= 0 })
	if got := get("http://"+vip+":6385/", 200); got == "" {
		t.Error("the API does not answer at the virtual address")
	}

	// A node of the conductor that has the address, and that is to die.
	var node struct {
		UUID, Conductor string
		State           string `json:"provision_state"`
	}
	owner, left := fmt.Sprint("c", holder+1), 1-holder
	for range 30 {
		r.decode(r.ask(0, 201, "POST", "/v1/nodes", `{"name": "n", "driver": "fake-hardware",
			"inspect_interface": "agent"}`), &node)
		r.verb("manage", "manageable")
		if r.decode(r.ask(left, 200, "GET", "/v1/nodes/n", ""), &node); node.Conductor == owner {
			break
		}
		r.ask(0, 204, "DELETE", "/v1/nodes/n", "")
	}
	if node.Conductor != owner {
		t.Fatalf("of 30 nodes none belongs to %s", owner)
	}
	var macs []net.HardwareAddr
	for i := range 16 {
		macs = append(macs, net.HardwareAddr{0x52, 0x54, 0, 0, 4, byte(i)})
		r.ask(1, 201, "POST", "/v1/ports", fmt.Sprintf(`{"node_uuid": %q, "address": %q}`, node.UUID, macs[i]))
	}
	r.verb("inspect", "inspect wait")
	answers := make([]*dhcpv4.DHCPv4, len(macs))
	count := map[string]int{}
	for i, mac := range macs {
		got := r.discover(mac, time.Second/2)
		if len(got) != 1 {
			t.Fatalf("%s is answered by %d conductors, want one", mac, len(got))
		}
		answers[i] = got[0]
		count[got[0].ServerIdentifier().String()]++
		if !got[0].ServerIPAddr.Equal(net.ParseIP(vip)) ||
			got[0].BootFileNameOption() != "http://"+vip+":8080/boot.ipxe" {
			t.Errorf("%s is led to %s", mac, got[0].Summary())
		}
	}
	t.Logf("machines by conductor: %v", count)
	if len(count) != 2 {
		t.Fatalf("of 16 machines each conductor has to get some: %v", count)
	}
	addresses := map[string]string{} // the first machine of each conductor takes what it was offered
	for i, a := range answers {
		if by := a.ServerIdentifier().String(); addresses[by] == "" {
			addresses[by] = r.lease(macs[i], a)
		}
	}
	address := addresses[answers[0].ServerIdentifier().String()]
	before := r.bootFrom(address, vip)
	own := fmt.Sprintf("10.77.0.%d", left+1)
	begun := make(chan struct{})
	stop := r.agent(r.bootFrom(address, own), own+":6386", macs[0], func(ctx context.Context) {
		close(begun)
		<-ctx.Done()
	})
	<-begun
	if log := r.logs[left].String(); !strings.Contains(log, "boot script served") ||
		!strings.Contains(log, "agent redirected") {
		t.Errorf("c%d, which does not own the node, has not served its boot script and redirected its agent", left+1)
	}

	if err := syscall.Kill(r.pids[holder], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	stop()
	died := time.Now()
	dead := fmt.Sprintf("10.77.0.%d", holder+1)
	at := slices.IndexFunc(answers, func(m *dhcpv4.DHCPv4) bool { return m.ServerIdentifier().String() == dead })
	if got := r.discover(macs[at], time.Second/2); len(got) != 0 {
		t.Errorf("%s is answered at its first try although its conductor has just died", macs[at])
	}
	time.Sleep(time.Until(died.Add(time.Second + time.Second/10)))
	got := r.discover(macs[at], time.Second/2)
	if len(got) != 1 || got[0].ServerIdentifier().String() == dead {
		t.Fatalf("%s gets %d answers at its second try, want that of the other conductor", macs[at], len(got))
	}
	if at := got[0].YourIPAddr.String(); at != addresses[dead] {
		t.Errorf("the other conductor offers %s to a machine that has %s", at, addresses[dead])
	}
	ingotd.Wait(t, "the virtual address has moved", func() bool { return r.holder(spaces) == left })
	t.Logf("the virtual address has moved within %s", time.Since(died).Round(time.Second/10))
	if get("http://"+vip+":6385/", 200) == "" {
		t.Error("the API does not answer at the virtual address after the move")
	}
	// The machines of fake hardware are gone with their conductor, so the next one boots them again.
	ingotd.Wait(t, "the other conductor has the node", func() bool {
		r.decode(r.ask(left, 200, "GET", "/v1/nodes/n", ""), &node)
		return node.Conductor != owner && node.State == "inspect wait" &&
			strings.Contains(r.logs[left].String(), "power on requested")
	})
	after := r.bootFrom(address, vip)
	if before["token"] == after["token"] {
		t.Error("the script after the move has the token of the one before")
	}
	inspected := make(chan struct{})
	first, _, _ := strings.Cut(after["conductor"], ",")
	stop = r.agent(after, first, macs[0], func(context.Context) { close(inspected) })
	defer stop()
	select {
	case <-inspected:
	case <-time.After(time.Minute):
		t.Error("the agent that was booted from the virtual address after the move is given nothing to do")
	}
	// In order it would wait for its machine first.
	if err := syscall.Kill(r.pids[left], syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

// twoHosts is the network with its conductors, seen from a machine.
type twoHosts struct {
	*testing.T
	logs []*ingotd.Output
	pids []int
}

// startOnTwoHosts starts the conductors c1 and c2, and returns when they know each other. The ramdisk is that of dir.
func startOnTwoHosts(t *testing.T, spaces []string, dir string, settings ...string) *twoHosts {
	t.Helper()
	cluster := pgserver.New(t)
	name, _ := cluster.Database(t)
	// The socket is a file, which is the same in all network namespaces.
	database := fmt.Sprintf("postgres:///%s?host=%s&port=%d&user=%s", name, cluster.Dir, cluster.Port, pgserver.User)
	r := &twoHosts{T: t, logs: []*ingotd.Output{{}, {}}}
	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	for i, ns := range spaces {
		args := []string{"netns", "exec", ns, made.Program(t, "ingotd"), "--data-dir", filepath.Join(dir, "data", ns),
			"--listen", "0.0.0.0:6385"}
		for _, s := range append([]string{"api.insecure_listen=true", "store.url=" + database, "store.key=" + key,
			fmt.Sprint("hostname=c", i+1), "netboot.interface=prov", "netboot.ramdisk_dir=" + dir,
			"netboot.images_dir=", "log_level=debug"}, settings...) {
			args = append(args, "--set", s)
		}
		cmd := exec.Command("ip", args...)
		cmd.Stdout, cmd.Stderr = r.logs[i], r.logs[i]
		ingotd.Run(t, cmd, r.logs[i])
		r.pids = append(r.pids, cmd.Process.Pid)
	}
	for i := range spaces {
		ingotd.Wait(t, "ingotd answers", func() bool { return r.try(i, "GET", "/", "") == 200 })
	}
	ingotd.Wait(t, "both know each other", func() bool {
		return strings.Count(r.ask(0, 200, "GET", "/v1/conductors", ""), `"alive":true`) == 2
	})
	return r
}

// writeBootFiles writes boot programs and a ramdisk, which say what they are.
func writeBootFiles(t *testing.T, dir string) {
	file := func(name string) map[string]any {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(name))
		return map[string]any{"file": name, "size": len(name), "sha256": hex.EncodeToString(sum[:])}
	}
	file("undionly.kpxe")
	file("snponly.efi")
	b, err := json.Marshal(map[string]any{"format": 1, "kernel": file("vmlinuz"), "initramfs": file("initramfs"),
		"steps":        json.RawMessage(`[{"interface":"inspect","step":"inspect","priority":{"inspect":100}}]`),
		"steps_digest": "simulated"})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "manifest.json"), b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// keepalived runs keepalived in a namespace, with the configuration of docs/howto/keepalived.md.
func (r *twoHosts) keepalived(ns, dir string) {
	r.Helper()
	page, err := os.ReadFile("../../docs/howto/keepalived.md")
	if err != nil {
		r.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```keepalived\n(.*?)```").FindSubmatch(page)
	if m == nil {
		r.Fatal("docs/howto/keepalived.md has no configuration")
	}
	conf := filepath.Join(dir, ns+".conf")
	if err := os.WriteFile(conf, m[1], 0o644); err != nil {
		r.Fatal(err)
	}
	log := &ingotd.Output{}
	cmd := exec.Command("ip", "netns", "exec", ns, "keepalived", "--dont-fork", "--log-console", "--log-detail",
		"--vrrp", "--use-file", conf, "--pid", filepath.Join(dir, ns+".pid"), "--vrrp_pid",
		filepath.Join(dir, ns+".vrrp"))
	cmd.Stdout, cmd.Stderr = log, log
	ingotd.Run(r, cmd, log)
}

// holder is the host that has the virtual address; -1 when none has, or both.
func (r *twoHosts) holder(spaces []string) int {
	r.Helper()
	at := -1
	for i, ns := range spaces {
		if strings.Contains(kit.Run(r, "ip", "-n", ns, "-4", "addr", "show", "dev", "prov"), " "+vip+"/") {
			if at >= 0 {
				return -1
			}
			at = i
		}
	}
	return at
}

var hostsClient = http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func get(url string, want int) string {
	resp, err := hostsClient.Get(url)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != want {
		return ""
	}
	return string(b)
}

func (r *twoHosts) send(i int, method, path, body string) (int, string, error) {
	req, err := http.NewRequestWithContext(r.Context(), method, fmt.Sprintf("http://10.77.0.%d:6385%s", i+1, path),
		strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("X-OpenStack-Ironic-API-Version", "1.82")
	resp, err := hostsClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func (r *twoHosts) try(i int, method, path, body string) int {
	status, _, _ := r.send(i, method, path, body)
	return status
}

// ask asks a conductor, or the other one when it has died.
func (r *twoHosts) ask(i, want int, method, path, body string) (answer string) {
	r.Helper()
	var status int
	for _, at := range []int{i, 1 - i} {
		var err error
		if status, answer, err = r.send(at, method, path, body); err == nil {
			break
		}
	}
	if status != want {
		r.Fatalf("%s %s: %d %s, want %d", method, path, status, answer, want)
	}
	return answer
}

func (r *twoHosts) decode(answer string, into any) {
	r.Helper()
	if err := json.Unmarshal([]byte(answer), into); err != nil {
		r.Fatal(err)
	}
}

func (r *twoHosts) verb(verb, state string) {
	r.Helper()
	r.ask(0, 202, "PUT", "/v1/nodes/n/states/provision", `{"target": "`+verb+`"}`)
	r.state(state)
}

func (r *twoHosts) state(want string) {
	r.Helper()
	kit.Eventually(r, time.Minute, "the node is "+want, func() bool {
		var n struct {
			State string `json:"provision_state"`
			Error string `json:"last_error"`
		}
		r.decode(r.ask(0, 200, "GET", "/v1/nodes/n/states", ""), &n)
		if strings.HasSuffix(n.State, "failed") {
			r.Fatalf("the node is %s: %s", n.State, n.Error)
		}
		return n.State == want
	})
}

// broadcast sends a packet of a machine as iPXE does, and returns the answers to it that arrive within a time.
func (r *twoHosts) broadcast(m *dhcpv4.DHCPv4, wait time.Duration) (answers []*dhcpv4.DHCPv4) {
	r.Helper()
	c, err := nclient4.NewRawUDPConn("eth0", dhcpv4.ClientPort)
	if err != nil {
		r.Fatal(err)
	}
	defer c.Close()
	if _, err := c.WriteTo(m.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ServerPort}); err != nil {
		r.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
		r.Fatal(err)
	}
	buf := make([]byte, 1500)
	for {
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			return answers
		}
		if a, err := dhcpv4.FromBytes(buf[:n]); err == nil && a.OpCode == dhcpv4.OpcodeBootReply &&
			a.TransactionID == m.TransactionID {
			answers = append(answers, a)
		}
	}
}

func (r *twoHosts) packet(mac net.HardwareAddr, typ dhcpv4.MessageType, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	r.Helper()
	m, err := dhcpv4.New(append(mods, dhcpv4.WithHwAddr(mac), dhcpv4.WithMessageType(typ), dhcpv4.WithBroadcast(true),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00000:UNDI:002001")),
		dhcpv4.WithOption(dhcpv4.OptClientArch(iana.INTEL_X86PC)),
		dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(77), []byte("iPXE")))...)
	if err != nil {
		r.Fatal(err)
	}
	return m
}

func (r *twoHosts) discover(mac net.HardwareAddr, wait time.Duration) []*dhcpv4.DHCPv4 {
	r.Helper()
	return r.broadcast(r.packet(mac, dhcpv4.MessageTypeDiscover), wait)
}

// lease takes an offer, and gives the machine's interface the address.
func (r *twoHosts) lease(mac net.HardwareAddr, offer *dhcpv4.DHCPv4) string {
	r.Helper()
	got := r.broadcast(r.packet(mac, dhcpv4.MessageTypeRequest,
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr))), time.Second)
	if len(got) != 1 || got[0].MessageType() != dhcpv4.MessageTypeAck {
		r.Fatalf("the request of %s for %s got %v", mac, offer.YourIPAddr, got)
	}
	address := got[0].YourIPAddr.String()
	kit.Run(r, "ip", "addr", "add", address+"/24", "dev", "eth0") // fails if another machine has it
	return address
}

// bootFrom boots as far as iPXE does, from one of a machine's addresses, and returns what the script says to the agent.
func (r *twoHosts) bootFrom(from, host string) map[string]string {
	r.Helper()
	c, err := tftp.NewClient(host + ":69")
	if err != nil {
		r.Fatal(err)
	}
	w, err := c.Receive("undionly.kpxe", "octet")
	if err != nil {
		r.Fatalf("TFTP from %s: %v", host, err)
	}
	var b strings.Builder
	if _, err := w.WriteTo(&b); err != nil || b.String() != "undionly.kpxe" {
		r.Fatalf("TFTP from %s: %q, %v", host, b.String(), err)
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}}
	resp, err := client.Get("http://" + host + ":8080/boot.ipxe")
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	said := map[string]string{}
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		for _, m := range regexp.MustCompile(`ingot\.(\w+)=(\S+)`).FindAllStringSubmatch(s.Text(), -1) {
			said[m[1]] = m[2]
		}
		if f := strings.Fields(s.Text()); len(f) > 1 && f[0] == "kernel" {
			if !strings.HasPrefix(f[1], "http://"+vip+":8080/ramdisk/") || get(f[1], 200) != "vmlinuz" {
				r.Errorf("the kernel is not to be had: %s", s.Text())
			}
		}
	}
	if resp.StatusCode != 200 || said["token"] == "" {
		r.Fatalf("the boot script from %s: %d %v", host, resp.StatusCode, said)
	}
	return said
}

// agent runs the agent that a boot script started, until stop is called. work is called to inspect.
func (r *twoHosts) agent(said map[string]string, at string, mac net.HardwareAddr,
	work func(context.Context)) (stop func()) {
	a := &agentstest.Agent{Addr: at, Fingerprint: said["ca"], Token: said["token"], MACs: []string{mac.String()},
		Digest: "simulated", Steps: map[string]agentstest.StepFunc{
			"inspect": func(ctx context.Context, _ *agentv1.Step, _ func(*agentv1.Progress)) ([]byte, error) {
				work(ctx)
				return fmt.Appendf(nil, `{"inventory": {"interfaces": [{"name": "eth0", "mac_address": %[1]q,
					"has_carrier": true}], "cpu": {"count": 1, "architecture": "x86_64"}, "memory": {"physical_mb": 512},
					"boot": {"current_boot_mode": "bios"}, "disks": []}, "boot_interface": %[1]q}`, mac), nil
			}}}
	ctx, cancel := context.WithCancel(r.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Run(ctx) // how it ends does not matter
	}()
	return func() { cancel(); <-done }
}
