package packages

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/tools/lab"
)

const tutorial = source + "/docs/tutorial/from-packages.md"

// tutorialBlocks are the commands of the tutorial; the first block has the values of a site.
func tutorialBlocks(t *testing.T) (blocks []string) {
	t.Helper()
	for _, part := range strings.Split(read(t, tutorial), "\n```sh no-run: test/packages runs this page")[1:] {
		_, block, _ := strings.Cut(part, "\n")
		block, _, ok := strings.Cut(block, "\n```\n")
		if !ok {
			t.Fatalf("%s: a block is not closed", tutorial)
		}
		blocks = append(blocks, block+"\n")
	}
	if len(blocks) < 8 {
		t.Fatalf("%s has %d blocks for this test", tutorial, len(blocks))
	}
	return blocks
}

// TestTutorialFromPackages runs the tutorial as it is written, with a simulated machine: from the installation of the
// packages in a clean root to a machine that is deployed and given back. Network boot is by HTTP alone.
func TestTutorialFromPackages(t *testing.T) {
	r := newTutorial(t, later(t))
	image := filepath.Join(r.dir, "root/image.raw")
	if err := os.WriteFile(image, bytes.Repeat([]byte("image "), 1<<18), 0o600); err != nil {
		t.Fatal(err)
	}
	// The machine is there from the moment that its conductor can be reached.
	r.follow(`ip link set lo up
ip link add eth1 type veth peer name far
ip address add 10.0.0.1/24 dev eth1
ip link set eth1 up
ip link set far up
until ip -o link show eth1 | grep -q 'state UP'; do sleep 0.1; done`, `until grep -q 'ingotd is up' /ingotd.log; do sleep 0.1; done 2>/dev/null
eval "$(sed -n 's/^ *export /export /p' /root/setup.txt)"
exec ingot lab fleet --nodes 1 --to none --boot-url http://10.0.0.1:8080 --boot 1s --step 50ms --write 2s`,
		"NIC=eth1 DHCP=off BMC=127.77.0.1:6230 BMC_USER=admin BMC_PASSWORD=ingot-fleet IMAGE=image.raw LOGIN=/root\n",
		exec.Command("unshare", "--net", "sh", "-ec"))
}

// TestTutorialInTheRack runs it with a real machine of QEMU, which boots over DHCP, TFTP and HTTP, and ends up at the
// login prompt of its new system.
func TestTutorialInTheRack(t *testing.T) {
	if os.Getenv("INGOT_FULL") == "" {
		return // TestTutorialFromPackages does the same with a simulated machine
	}
	kit.NeedPrograms(t, "qemu-system-x86_64", "ip")
	out := t.TempDir()
	makePackages(t, out, "-ramdisk", made.Ramdisk(t, made.RamdiskLab))
	r := newTutorial(t, out)
	tiny := made.Image(t, made.Tiny)
	kit.Run(t, "cp", tiny.Zst, filepath.Join(r.dir, "root/tiny.raw.zst"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	rack, err := lab.Up(ctx, lab.Options{Name: fmt.Sprintf("tutorial-%d", os.Getpid()), Accel: lab.TCG,
		Dir: filepath.Join(t.TempDir(), "lab"), Nodes: []lab.NodeSpec{{Disks: []lab.DiskSpec{{SizeBytes: 5 << 30}}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rack.Down(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	})
	s := rack.Status().Nodes[0]
	defer r.loginAt(s.ConsoleLog)()
	r.follow("", "", fmt.Sprintf("NIC=prov DHCP=server BMC=%s BMC_USER=%s BMC_PASSWORD=%s IMAGE=tiny.raw.zst LOGIN=/login\n", s.BMCAddress, s.User,
		s.Password), exec.Command("ip", "netns", "exec", rack.Namespace, "sh", "-ec"))
}

// loginAt makes a file in the root when a console shows a login prompt, and fails the test when that takes too long.
// The function that it returns waits for that.
func (r *root) loginAt(console string) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for limit := time.Now().Add(10 * time.Minute); time.Now().Before(limit) && r.t.Context().Err() == nil; {
			if b, err := os.ReadFile(console); err == nil && bytes.Contains(b, []byte("login:")) {
				if err := os.WriteFile(filepath.Join(r.dir, "login"), nil, 0o600); err != nil {
					r.t.Error(err)
				}
				return
			}
			time.Sleep(500 * time.Millisecond)
		}
		r.t.Error("the console of the machine shows no login prompt")
	}()
	return func() { <-done }
}

// newTutorial is a clean root with packages in root's home, and stand-ins for what it does not have: apt, and
// systemctl, which starts the service's command with the user and the capabilities that the unit names.
func newTutorial(t *testing.T, out string) *root {
	t.Helper()
	kit.NeedPrograms(t, "unshare", "ip", "chroot")
	r := newRoot(t)
	r.systemd()
	kit.WriteProgram(t, filepath.Join(r.dir, "usr/local/sbin/apt"), `#!/bin/sh
[ "$1 $2" = "install --yes" ] && shift 2 && exec dpkg --install "$@"
`)
	kit.WriteProgram(t, filepath.Join(r.dir, "usr/local/sbin/systemctl"), `#!/bin/sh
[ "$*" = "enable --now ingotd" ] || exit 0
caps=$(sed -n 's/^AmbientCapabilities=//p' /lib/systemd/system/ingotd.service | tr 'A-Z' 'a-z' | sed 's/cap_/+/g; s/ /,/g')
setpriv --reuid="$(sed -n 's/^User=//p' /lib/systemd/system/ingotd.service)" --regid=ingot --clear-groups --inh-caps=-all,$caps \
	--ambient-caps=-all,$caps $(sed -n 's/^ExecStart=//p' /lib/systemd/system/ingotd.service) >/ingotd.log 2>&1 &
until grep -q 'ingotd is up' /ingotd.log; do kill -0 $! || exit 1; sleep 0.1; done
`)
	for _, pattern := range []string{"ingotd_*.deb", "ingot_*.deb", "ingot-ramdisk_*.deb"} {
		kit.Run(t, "cp", one(t, out, pattern), filepath.Join(r.dir, "root"))
	}
	kit.NeedFiles(t, "ipxe", "/usr/lib/ipxe/undionly.kpxe", "/usr/lib/ipxe/snponly.efi")
	kit.Run(t, "sh", "-c", `mkdir -p "$1/usr/lib/ipxe" "$1/root/.ssh"
cp -L /usr/lib/ipxe/undionly.kpxe /usr/lib/ipxe/snponly.efi "$1/usr/lib/ipxe"
echo "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1PPxNBYzk2CRLbJzYe7VIVHPj7WzyR9Sg7ZpDhkbTQ t" >"$1/root/.ssh/id_ed25519.pub"
mknod -m 666 "$1/dev/null" c 1 3`, "sh", r.dir)
	return r
}

// follow runs the tutorial's blocks in the root, in one shell, after commands that make its network. beside are
// commands that run in the root at the same time.
func (r *root) follow(network, beside, values string, within *exec.Cmd) {
	t := r.t
	t.Helper()
	blocks := tutorialBlocks(t)
	page := strings.Join(append([]string{"set -eux\ncd /root\nexport HOME=/root PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin\n",
		values}, blocks[1:]...), "")
	page = strings.ReplaceAll(page, "_amd64.deb", "_"+runtime.GOARCH+".deb")
	// A reader logs in before the machine is given back.
	page = strings.Replace(page, "ingot node undeploy", "until [ -e $LOGIN ]; do sleep 0.2; done\ningot node undeploy", 1)
	for name, text := range map[string]string{"page": page, "beside": "cd /root\n" + beside + "\n"} {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// All that the page starts ends with its own processes' namespace.
	within.Args = append(within.Args, network+`
exec unshare --mount --pid --fork --kill-child sh -ec 'mount -t proc proc "$1/proc"; chroot "$1" sh /beside >"$1/beside.log" 2>&1 &
exec chroot "$1" sh /page' sh "$1"`, "sh", r.dir)
	began := time.Now()
	out, err := within.CombinedOutput()
	t.Logf("the tutorial took %v", time.Since(began).Round(time.Second))
	if err != nil {
		logs := ""
		for _, name := range []string{"ingotd.log", "beside.log"} {
			b, _ := os.ReadFile(filepath.Join(r.dir, name))
			logs += "\n" + name + ":\n" + string(b)
		}
		t.Fatalf("%v\n%s%s", err, out, logs)
	}
	text := string(out)
	// As root the doctor sees with the eyes of ingotd, whose keys no other user may read.
	for _, want := range []string{"OK       data directory", "OK       permissions", "OK       keys",
		"OK       database", "OK       boot files", "available", "active"} {
		if !strings.Contains(text, want) {
			t.Errorf("the tutorial's output lacks %q:\n%s", want, text)
		}
	}
}
