package packages

import (
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/images/build"
	"github.com/ingot-metal/ingot/test/kit"
)

// rootAge is how long an unpacked Debian is used again.
const rootAge = 24 * time.Hour

// root is a directory with Debian's essential system and nothing else.
type root struct {
	t   *testing.T
	dir string
}

func newRoot(t *testing.T) *root {
	t.Helper()
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "mmdebstrap", "unshare", "tar", "chroot")
	archive := absolute(t, source+"/build/test/packages/root.tar")
	if st, err := os.Stat(archive); err != nil || time.Since(st.ModTime()) > rootAge {
		if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := build.Root(t.Context(), archive, "adduser"); err != nil {
			t.Fatal(err)
		}
	}
	r := &root{t: t, dir: t.TempDir()}
	if err := os.Chmod(r.dir, 0o755); err != nil { // ingotd's user has to get in
		t.Fatal(err)
	}
	kit.Run(t, "tar", "--extract", "--file", archive, "--directory", r.dir, "--same-permissions", "--numeric-owner",
		"--exclude=./dev/*")
	return r
}

// run runs a program in the root, with an end of file on its standard input.
func (r *root) run(args ...string) string {
	r.t.Helper()
	return kit.Run(r.t, "chroot", append([]string{r.dir}, args...)...)
}

// systemd has the root look like one that systemd runs in. What its programs are asked to do is in the file asked.
func (r *root) systemd() {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Join(r.dir, "run/systemd/system"), 0o755); err != nil {
		r.t.Fatal(err)
	}
	for _, name := range []string{"systemctl", "deb-systemd-invoke"} {
		kit.WriteProgram(r.t, filepath.Join(r.dir, "usr/local/sbin", name),
			"#!/bin/sh\necho "+name+" \"$@\" >> /asked\n")
	}
}

// asked returns what systemd was asked to do since the last call.
func (r *root) asked() string {
	r.t.Helper()
	file := filepath.Join(r.dir, "asked")
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.t.Fatal(err)
	}
	if err == nil {
		if err := os.Remove(file); err != nil {
			r.t.Fatal(err)
		}
	}
	return string(b)
}

func (r *root) install(debs ...string) string {
	r.t.Helper()
	args := []string{"dpkg", "--install"}
	for _, deb := range debs {
		kit.Run(r.t, "cp", deb, filepath.Join(r.dir, "tmp"))
		args = append(args, "/tmp/"+filepath.Base(deb))
	}
	return r.run(args...)
}

func (r *root) read(file string) string {
	r.t.Helper()
	return read(r.t, filepath.Join(r.dir, file))
}

// owner describes mode, owner and group of a file.
func (r *root) owner(file string) string {
	r.t.Helper()
	return strings.TrimSpace(r.run("stat", "-c", "%a %U:%G", file))
}

// conductor is an ingotd of the root, started as its service does: as user ingot, with a socket for the API, a socket
// to report to, and a watchdog.
type conductor struct {
	cmd   *exec.Cmd
	out   strings.Builder
	url   string
	heard chan string // messages to the service manager
	gone  chan struct{}
}

func (r *root) start(api net.Listener) *conductor {
	t := r.t
	t.Helper()
	file, err := api.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	socket := filepath.Join(r.dir, "run/notify")
	_ = os.Remove(socket)
	c := &conductor{url: "http://" + api.Addr().String(), gone: make(chan struct{})}
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	c.heard = make(chan string, 1000)
	go func() {
		defer close(c.heard)
		b := make([]byte, 256)
		for {
			n, err := notify.Read(b)
			if err != nil {
				return
			}
			c.heard <- string(b[:n])
		}
	}()
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	ids := strings.Fields(r.run("sh", "-c", "id -u ingot; id -g ingot"))
	uid, err := strconv.ParseUint(ids[0], 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.ParseUint(ids[1], 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	c.cmd = exec.Command("/usr/bin/ingotd", "--config", "/etc/ingot/ingotd.yaml")
	c.cmd.Dir, c.cmd.Stdout, c.cmd.Stderr = "/", &c.out, &c.out
	c.cmd.Env = []string{"LISTEN_FDS=1", "NOTIFY_SOCKET=/run/notify", "WATCHDOG_USEC=2000000", "PATH=/usr/bin:/bin"}
	c.cmd.ExtraFiles = []*os.File{file}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.dir,
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.gone)
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.gone
		notify.Close()
		if t.Failed() {
			t.Logf("ingotd:\n%s", &c.out)
		}
	})
	c.hears(t, "READY=1")
	return c
}

// hears waits for a message to the service manager.
func (c *conductor) hears(t *testing.T, want string) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		select {
		case got := <-c.heard:
			if got == want {
				return
			}
		case <-limit:
			t.Fatalf("the service manager does not hear %s", want)
		}
	}
}

// stop ends ingotd as the service manager does.
func (c *conductor) stop(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.gone:
	case <-time.After(30 * time.Second):
		t.Fatal("ingotd does not end")
	}
	if !c.cmd.ProcessState.Success() {
		t.Fatalf("ingotd ended with %v", c.cmd.ProcessState)
	}
}

func (c *conductor) runs() bool {
	select {
	case <-c.gone:
		return false
	default:
		return true
	}
}

// atATerminal runs ingotd setup at a terminal, on a network without a DHCP server, and takes all its proposals. It
// leaves the users' file out, for the next setup to make.
func (r *root) atATerminal() {
	r.t.Helper()
	kit.NeedPrograms(r.t, "script", "ip")
	cmd := exec.CommandContext(r.t.Context(), "unshare", "--net", "sh", "-c", `ip link set lo up
ip link add eth1 type veth peer name far
ip address add 10.0.0.1/24 dev eth1
ip link set eth1 up
ip link set far up
until ip -o link show eth1 | grep -q 'state UP'; do sleep 0.1; done
exec script --quiet --return --command "chroot '$1' ingotd setup" /dev/null`, "sh", r.dir)
	cmd.Stdin = strings.NewReader(strings.Repeat("\n", 20))
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("ingotd setup at a terminal: %v\n%s", err, out)
	}
	text := strings.ReplaceAll(string(out), "\r", "")
	for _, want := range []string{"eth1         10.0.0.1/24", "no DHCP server answers",
		"Interface of the provisioning network, or none [eth1]: ", "First address for machines [10.0.0.128]: ",
		"boot files", "ports", "free space", "systemctl enable --now ingotd"} {
		if !strings.Contains(text, want) {
			r.t.Errorf("ingotd setup does not print %q:\n%s", want, text)
		}
	}
	effective := r.run("ingotd", "--config", "/etc/ingot/ingotd.yaml", "--print-config")
	if !strings.Contains(effective, "range_start: 10.0.0.128") || !strings.Contains(effective, "auth: http_basic") {
		r.t.Errorf("the configuration that setup made is:\n%s", effective)
	}
	if got := r.owner("/var/lib/ingot/images"); got != "755 ingot:ingot" {
		r.t.Errorf("the folder for images is %s", got)
	}
	again := exec.CommandContext(r.t.Context(), "unshare", "--net", "chroot", r.dir, "ingotd", "setup", "--yes",
		"--interface", "none")
	if out, err := again.CombinedOutput(); err == nil || !strings.Contains(string(out), "--force") {
		r.t.Errorf("a second setup: %v\n%s", err, out)
	}
	if err := os.Remove(filepath.Join(r.dir, "etc/ingot/htpasswd")); err != nil {
		r.t.Fatal(err)
	}
}

// TestInstallUpgradeRemovePurge is the life of the packages in a clean root: the program starts as its own user, an
// upgrade keeps data and the changed configuration, removing keeps them, too, and purging removes them.
func TestInstallUpgradeRemovePurge(t *testing.T) {
	dir := packages(t)
	r := newRoot(t)
	r.systemd()
	said := r.install(one(t, dir, "ingotd_*.deb"), one(t, dir, "ingot_*.deb"))
	if !strings.Contains(said, "ingotd setup") {
		t.Errorf("the installation does not say what is next:\n%s", said)
	}
	if got, want := r.asked(), "systemctl --system daemon-reload\n"; got != want {
		t.Errorf("the installation asks systemd:\n%swant:\n%s", got, want)
	}
	for file, want := range map[string]string{"/var/lib/ingot": "700 ingot:ingot", "/etc/ingot": "750 root:ingot",
		"/etc/ingot/ingotd.yaml": "640 root:ingot", "/usr/bin/ingotd": "755 root:root",
		"/usr/bin/ingot":                     "755 root:root",
		"/lib/systemd/system/ingotd.service": "644 root:root", "/lib/systemd/system/ingotd.socket": "644 root:root",
	} {
		if got := r.owner(file); got != want {
			t.Errorf("%s is %s, want %s", file, got, want)
		}
	}
	if got := r.run("getent", "passwd", "ingot"); !strings.Contains(got, ":/var/lib/ingot:/usr/sbin/nologin") {
		t.Errorf("the user is %s", got)
	}
	described := strings.TrimSpace(kit.Run(t, "git", "-C", source, "describe", "--always", "--dirty"))
	for _, name := range []string{"ingot", "ingotd"} {
		if got, want := r.run(name, "--version"), name+" "+described+"\n"; got != want {
			t.Errorf("%s --version prints %q, want %q", name, got, want)
		}
	}

	stranger := exec.Command("unshare", "--net", "chroot", "--userspec=65534:65534", r.dir, "ingotd", "setup", "--yes",
		"--interface", "none")
	if out, err := stranger.CombinedOutput(); err == nil || !strings.Contains(string(out), "run ingotd setup as root") {
		t.Errorf("ingotd setup as another user: %v\n%s", err, out)
	}
	r.atATerminal()
	agents := kit.FreeAddr(t)
	said = kit.Run(t, "unshare", "--net", "chroot", r.dir, "ingotd", "setup", "--yes", "--force", "--interface", "none",
		"--advertise", agents)
	_, login, ok := strings.Cut(said, "OS_USERNAME=admin OS_PASSWORD=")
	password, _, _ := strings.Cut(login, "\n")
	if !ok || !strings.Contains(said, "\n  systemctl enable --now ingotd\n") {
		t.Fatalf("ingotd setup does not print a password and the next command:\n%s", said)
	}
	for _, file := range []string{"/etc/ingot/ingotd.yaml", "/etc/ingot/htpasswd"} {
		if got := r.owner(file); got != "640 root:ingot" {
			t.Errorf("%s is %s after setup", file, got)
		}
	}
	config := filepath.Join(r.dir, "etc/ingot/ingotd.yaml")
	appendTo(t, config, "  listen: "+agents+"\n") // its last section is agents
	changed := r.read("etc/ingot/ingotd.yaml")
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	c := r.start(api)
	c.hears(t, "WATCHDOG=1")
	ingot := func(args ...string) string {
		t.Helper()
		return r.run(append([]string{"env", "OS_AUTH_TYPE=http_basic", "OS_USERNAME=admin", "OS_PASSWORD=" + password,
			"ingot", "--endpoint", c.url}, args...)...)
	}
	if resp, err := http.Get(c.url + "/v1/nodes"); err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("the API without a password: %v %v, want 401", resp, err)
	} else if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	ingot("node", "create", "kept", "--driver", "fake-hardware")

	second := later(t)
	r.install(one(t, second, "ingotd_*.deb"), one(t, second, "ingot_*.deb"))
	if got, want := r.asked(), "systemctl --system daemon-reload\ndeb-systemd-invoke try-restart ingotd.service\n"; got != want {
		t.Errorf("the upgrade asks systemd:\n%swant:\n%s", got, want)
	}
	if !c.runs() {
		t.Error("the upgrade ended ingotd itself; that is for the service manager, which drains it first")
	}
	if got := r.run("ingotd", "--version"); got != "ingotd v9.9.9\n" {
		t.Errorf("after the upgrade --version prints %q", got)
	}
	if got := r.read("etc/ingot/ingotd.yaml"); got != changed {
		t.Errorf("the upgrade changed the configuration to:\n%s", got)
	}
	if got := r.owner("/etc/ingot/ingotd.yaml"); got != "640 root:ingot" {
		t.Errorf("after the upgrade the configuration is %s", got)
	}
	c.stop(t)
	c = r.start(api)
	if list := ingot("node", "list"); !strings.Contains(list, "kept") {
		t.Errorf("after the upgrade the node is gone:\n%s", list)
	}

	r.run("dpkg", "--remove", "ingotd", "ingot")
	if got, want := r.asked(), "deb-systemd-invoke stop ingotd.socket ingotd.service\n"+
		"systemctl disable --quiet ingotd.socket ingotd.service\nsystemctl --system daemon-reload\n"; got != want {
		t.Errorf("removing asks systemd:\n%swant:\n%s", got, want)
	}
	if !c.runs() {
		t.Error("removing ended a process by itself; that is for the service manager")
	}
	c.stop(t)
	for file, there := range map[string]bool{"usr/bin/ingotd": false, "usr/bin/ingot": false,
		"etc/ingot/ingotd.yaml": true,
		"var/lib/ingot/key":     true} {
		if _, err := os.Stat(filepath.Join(r.dir, file)); (err == nil) != there {
			t.Errorf("%s after the removal: %v, want there %v", file, err, there)
		}
	}
	r.run("dpkg", "--purge", "ingotd", "ingot")
	if got := r.asked(); got != "" {
		t.Errorf("purging asks systemd:\n%s", got)
	}
	for _, file := range []string{"etc/ingot", "var/lib/ingot"} {
		if _, err := os.Stat(filepath.Join(r.dir, file)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s after purging: %v", file, err)
		}
	}
	if left := r.run("sh", "-c", "find / -xdev -name '*ingot*' -not -path '/proc/*' -not -path '/tmp/*'"); left != "" {
		t.Errorf("after purging there is still:\n%s", left)
	}
}
