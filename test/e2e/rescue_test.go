package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/tools/lab"
)

// login is the agent's description of how to log in.
type login struct {
	Addresses []string `json:"addresses"`
	Port      int      `json:"port"`
	HostKey   string   `json:"host_key"`
}

// rescue brings a machine into rescue and logs in to it, with the data that the API shows.
func (r *rig) rescue(name string, key ssh.Signer) *ssh.Client {
	r.t.Helper()
	r.must("PATCH", "/v1/nodes/"+name,
		[]object{{"op": "add", "path": "/instance_info/rescue_ssh_keys",
			"value": []string{string(ssh.MarshalAuthorizedKey(key.PublicKey()))}}})
	r.provision(name, "rescue", nil)
	r.wait(name, "rescue", bootLimit)
	var st struct {
		Past []struct {
			Phase string
			Steps []struct {
				Interface, Step string
				Result          login
			}
		}
	}
	b, err := json.Marshal(r.must("GET", "/ingot/v1/nodes/"+name+"/steps", nil))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := json.Unmarshal(b, &st); err != nil {
		r.t.Fatal(err)
	}
	var l login
	for _, j := range st.Past {
		for _, s := range j.Steps {
			if j.Phase == "rescue" && s.Interface == "rescue" {
				l = s.Result
			}
		}
	}
	if len(l.Addresses) == 0 || l.Port != 22 || !strings.HasPrefix(l.HostKey, "SHA256:") {
		r.t.Fatalf("how to log in is told as %+v in %s", l, b)
	}
	at := net.JoinHostPort(l.Addresses[0], "22")
	c, err := r.lab.DialContext(r.t.Context(), "tcp", at)
	if err != nil {
		r.t.Fatal(err)
	}
	conn, channels, reqs, err := ssh.NewClientConn(c, at,
		&ssh.ClientConfig{User: "rescue", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)},
			HostKeyCallback: func(_ string, _ net.Addr, k ssh.PublicKey) error {
				if got := ssh.FingerprintSHA256(k); got != l.HostKey {
					return fmt.Errorf("the host key is %s, and %s was told", got, l.HostKey)
				}
				return nil
			}})
	if err != nil {
		r.t.Fatal(err)
	}
	client := ssh.NewClient(conn, channels, reqs)
	r.t.Cleanup(func() { client.Close() })
	return client
}

// on runs a command on a machine that is being rescued.
func (r *rig) on(c *ssh.Client, command string) string {
	r.t.Helper()
	s, err := c.NewSession()
	if err != nil {
		r.t.Fatal(err)
	}
	defer s.Close()
	out, err := s.CombinedOutput(command)
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// part is a partition of a disk that is a file.
type part struct {
	number int
	offset int64 // bytes
}

// parts are the partitions of a machine's disk by their names.
func parts(t *testing.T, m *lab.Machine) map[string]part {
	t.Helper()
	var table struct {
		PartitionTable struct {
			Partitions []struct {
				Node, Name string
				Start      int64
			}
		}
	}
	if err := json.Unmarshal([]byte(kit.Run(t, "sfdisk", "--json", m.DiskFile(0))), &table); err != nil {
		t.Fatal(err)
	}
	out := map[string]part{}
	for _, p := range table.PartitionTable.Partitions {
		var n int
		if _, err := fmt.Sscanf(strings.TrimPrefix(p.Node, m.DiskFile(0)), "%d", &n); err != nil {
			t.Fatalf("number of partition %s: %v", p.Node, err)
		}
		out[p.Name] = part{n, p.Start * 512}
	}
	return out
}

// TestLife is the life of a machine that is in use, all of it on one: it is deployed from the image of a file system,
// with swap, a partition for data and a config drive beside it; rescued, where somebody reads the system's disk and
// leaves a file among the data, and unrescued; rebuilt, which keeps the data; serviced; and adopted by another
// conductor's record of it. Deployments start the system by kexec, after the rescue and the service its firmware
// does.
func TestLife(t *testing.T) {
	t.Parallel()
	kit.NeedPrograms(t, "losetup", "sfdisk", "debugfs", "e2fsck", "dd", "zstd")
	r := newRig(t, []lab.NodeSpec{{Name: "life", Firmware: lab.UEFI, MemoryMiB: 1024, Disks: disk6()}},
		set("netboot.ramdisk_dir", made.Ramdisk(t, made.RamdiskShell)), set("deploy.boot_instance", "kexec"))
	m := r.lab.Node("life")
	_, secret, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewSignerFromKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	raw := filepath.Join(t.TempDir(), "tiny.raw")
	kit.Run(t, "zstd", "-q", "-d", "-o", raw, r.art.tinyZst)
	img := image{file: "life.img"}
	file := filepath.Join(r.folder, img.file)
	kit.PartitionImage(t, raw, 512, file)
	img.sha256 = strings.Fields(kit.Run(t, "sha256sum", file))[0]

	r.enrol(m)
	r.source("life", r.ours(img), img.sha256, "root_gb", 3, "swap_mb", "64", "ephemeral_gb", 1, "ephemeral_format",
		"ext4", "image_type", "partition")
	from := m.ConsoleSize()
	r.provision("life", "active", hostname("life-1"))
	r.wait("life", "active", bootLimit)
	r.boots(m, from, "life-1")
	made := parts(t, m)
	for _, name := range []string{"ephemeral0", "swap1", "config-2"} {
		if _, ok := made[name]; !ok {
			t.Fatalf("the disk has no partition %s: %v", name, made)
		}
	}
	data := made["ephemeral0"]

	c := r.rescue("life", key)
	if out := r.on(c, "cat /proc/1/comm; echo on $(hostname)"); !strings.HasPrefix(out, "init\non ") {
		t.Errorf("logged in to %q", out)
	}
	// The tiny system counts its starts on its root file system, which is the one that is neither the data's nor the
	// boot loader's.
	out := r.on(c, fmt.Sprintf(
		"mkdir /mnt /data; for p in /dev/vda?; do if mount -r -t ext4 $p /mnt; then if test -f /mnt/boots; then echo starts=; cat /mnt/boots; fi; umount /mnt; fi; done; "+
			"mount -t ext4 /dev/vda%d /data && echo kept > /data/proof && umount /data && sync && echo left",
		data.number))
	if !strings.Contains(out, "starts=\n1\n") || !strings.Contains(out, "left") {
		t.Errorf("on the rescued machine: %s", out)
	}
	from = m.ConsoleSize()
	r.provision("life", "unrescue", nil)
	n := r.wait("life", "active", bootLimit)
	r.boots(m, from, "life-1")
	if info, err := json.Marshal(n["instance_info"]); err != nil || strings.Contains(string(info), "rescue") {
		t.Errorf("after the rescue instance_info is %s", info)
	}

	r.must("PATCH", "/v1/nodes/life",
		[]object{{"op": "add", "path": "/instance_info/preserve_ephemeral", "value": true}})
	from = m.ConsoleSize()
	r.provision("life", "rebuild", hostname("life-2"))
	r.wait("life", "active", bootLimit)
	r.boots(m, from, "life-2")
	again := parts(t, m)["ephemeral0"]
	if got := kit.Run(t, "debugfs", "-R", "cat /proof",
		fmt.Sprintf("%s?offset=%d", m.DiskFile(0), again.offset)); !strings.Contains(got, "kept") || again != data {
		t.Errorf("after the rebuild the data's partition is %+v, was %+v, and the file in it is %q", again, data, got)
	}

	from = m.ConsoleSize()
	r.provision("life", "service", object{"service_steps": []object{
		{"interface": "deploy", "step": "burnin_cpu", "args": object{"runtime": 0, "min_core_percent": 0}},
		{"interface": "deploy", "step": "inject_files",
			"args": object{"files": []object{
				{"path": "/boots", "partition": "tinyroot",
					"content": base64.StdEncoding.EncodeToString([]byte("41\n"))}}}},
	}})
	r.wait("life", "active", bootLimit)
	r.boots(m, from, "life-2")
	// The file that counts the starts is the one that was put into the installed system.
	kit.Eventually(t, osLimit, "the system's 42nd start",
		func() bool { return strings.Contains(console(t, m, from), "boots=42") })
	var served bool
	for _, j := range r.must("GET", "/ingot/v1/nodes/life/steps", nil)["past"].([]any) {
		served = served || j.(map[string]any)["phase"] == "service" && strings.Contains(fmt.Sprint(j), "burnin_cpu")
	}
	if !served {
		t.Error("there is no trace of the service")
	}

	// Adoption leaves the machine as it is: it goes on running.
	r.must("PUT", "/v1/nodes/life/maintenance", object{"reason": "moves"})
	r.must("DELETE", "/v1/nodes/life", nil)
	from = m.ConsoleSize()
	r.must("POST", "/v1/nodes",
		object{"name": "adopted", "driver": "ipmi", "driver_info": controller(m),
			"properties": object{"capabilities": "boot_mode:uefi"},
			"instance_info": object{"image_source": r.ours(img), "image_os_hash_algo": "sha256",
				"image_os_hash_value": img.sha256}})
	r.provision("adopted", "manage", nil)
	r.wait("adopted", "manageable", stateLimit)
	r.provision("adopted", "adopt", nil)
	if n := r.wait("adopted", "active", stateLimit); n.str("power_state") != "power on" {
		t.Errorf("adopted, the machine's power is %s", n.str("power_state"))
	}
	if said := console(t, m, from); strings.Contains(said, "host=") {
		t.Errorf("adopted, the machine was started anew:\n%s", said)
	}
}
