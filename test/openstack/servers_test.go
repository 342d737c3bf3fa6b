package openstack

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/openstack"
)

// TestServers takes a server through its life with Nova's Ironic driver and the openstack command: everything that the
// driver asks of Ironic is answered by ingotd.
func TestServers(t *testing.T) {
	s := start(t, 1)
	image := s.image("system", []byte(strings.Repeat("a system ", 10_000)))
	s.flavor()
	s.waitInventory(0)

	s.calls.begin("Create")
	id := s.create("first")
	ingotd.Wait(t, "the machine is in the network of ramdisks", func() bool {
		own := s.ownPorts()
		if len(own) == 0 {
			return false
		}
		p := own[0].(object)
		return p["binding:vif_type"] == "other" && p["status"] == "ACTIVE" && p["binding:vnic_type"] == "baremetal"
	})
	now := s.wait(id, "ACTIVE")
	uuid, _ := now["OS-EXT-SRV-ATTR:hypervisor_hostname"].(string)
	n, machine := s.node(uuid)
	if n["instance_uuid"] != id || n["provision_state"] != "active" {
		t.Fatalf("the node of the server: %v", n)
	}
	info, _ := n["instance_info"].(object)
	if info["image_source"] != image || info["display_name"] != "first" || info["image_os_hash_algo"] != "sha512" {
		t.Errorf("instance_info is %v", info)
	}
	ingotd.Wait(t, "the machine runs the system", machine.Instance) // it boots when the server is ACTIVE
	if a := fmt.Sprint(now["addresses"]); !strings.Contains(a, "192.0.2.") {
		t.Errorf("the server has the addresses %s", a)
	}
	bound := s.get("network", "/v2.0/ports?device_id="+id, "ports").([]any)[0].(object)
	link, _ := bound["binding:profile"].(object)
	if bound["binding:host_id"] != uuid || bound["binding:vif_type"] != "other" || bound["status"] != "ACTIVE" ||
		fmt.Sprint(link["local_link_information"]) !=
			"[map[port_id:Ethernet1 switch_id:00:1c:73:00:00:01 switch_info:leaf1]]" {
		t.Errorf("the server's port is %v", bound)
	}
	if left := s.ownPorts(); len(left) > 0 {
		t.Errorf("the ramdisk's ports are left: %v", left)
	}
	port := bound["id"]
	vifs := fmt.Sprint(s.get("baremetal", "/v1/nodes/"+uuid+"/vifs", "vifs"))
	if vifs != fmt.Sprintf("[map[id:%v]]", port) {
		t.Errorf("the node has the virtual interfaces %s, want Neutron's port %v", vifs, port)
	}
	s.waitInventory(1)

	s.moves()

	s.calls.begin("Stop, start and reboot")
	s.openstack("server", "stop", id)
	s.wait(id, "SHUTOFF")
	if n, m := s.node(uuid); m.On() || n["power_state"] != "power off" {
		t.Errorf("after stop the power is %v", n["power_state"])
	}
	s.openstack("server", "start", id)
	s.wait(id, "ACTIVE")
	if n, m := s.node(uuid); !m.On() || n["power_state"] != "power on" {
		t.Errorf("after start the power is %v", n["power_state"])
	}
	for _, how := range []string{"--soft", "--hard"} {
		before := s.fleet.Counts().Boots
		s.openstack("server", "reboot", how, id)
		s.wait(id, "ACTIVE")
		if after := s.fleet.Counts().Boots; after != before+1 {
			t.Errorf("reboot %s started the machine %d times", how, after-before)
		}
	}

	s.calls.begin("Rescue")
	s.openstack("server", "rescue", "--password", "let me in", id)
	s.wait(id, "RESCUE")
	s.waitNode(uuid, "rescue")
	if own := s.ownPorts(); len(own) != 1 {
		t.Errorf("in rescue the own ports are %v", own)
	}
	s.openstack("server", "unrescue", id)
	s.wait(id, "ACTIVE")
	s.waitNode(uuid, "active")

	s.calls.begin("Rebuild")
	written := s.fleet.Counts().Images
	s.openstack("server", "rebuild", "--preserve-ephemeral", id)
	s.wait(id, "ACTIVE")
	if n := s.fleet.Counts().Images; n != written+1 {
		t.Errorf("rebuild wrote %d images", n-written)
	}
	n, _ = s.node(uuid)
	if info, _ := n["instance_info"].(object); fmt.Sprint(info["preserve_ephemeral"]) != "True" {
		t.Errorf("rebuild --preserve-ephemeral left instance_info %v", info)
	}

	s.calls.begin("Delete")
	s.delete(id, uuid)

	s.imagesByName(uuid, image)

	s.calls.begin("A deployment that fails")
	// The image's data vanish from Glance's store: the machine can't get them.
	if err := os.Remove(filepath.Join(s.cloud.Images(), image)); err != nil {
		t.Fatal(err)
	}
	id = s.create("second")
	now = s.wait(id, "ERROR")
	if why := fmt.Sprint(now["fault"]); !strings.Contains(why, "write_image") || !strings.Contains(why,
		"fetch the image: the server answered 5") {
		t.Errorf("Nova's reason is %s", why)
	}
	s.calls.begin("Delete")
	s.delete(id, uuid)
	s.counted(uuid)
	s.calls.check(t)
}

// moves runs the how-to's commands for moving from Ironic to Ingot beside a server that runs. What takes Ironic's place
// is an ingotd already, so that the address which they set is the one that was there.
func (s *site) moves() {
	s.t.Helper()
	env := s.cloud.Environment("admin", "admin")
	host := s.openstack("compute", "service", "list", "--service", "nova-compute", "-f", "value", "-c", "Host")
	dir := s.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "bmc.yaml"), []byte(`"*": {redfish_password: x, ipmi_password: x}`),
		0o600); err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.CommandContext(s.t.Context(), "bash", "-e", "-c", openstack.Commands(s.t, "../../docs/howto/from-ironic.md",
		"nova1", host, "http://ingot.example:6385", s.calls.url))
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), env...), "INGOT_DATA_DIR="+filepath.Join(dir, "data"), "PATH="+
		s.command.Install(env)+":"+filepath.Dir(made.Program(s.t, "ingot"))+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "1 nodes taken over, 0 were here already") {
		s.t.Fatalf("the commands of the how-to: %v\n%s", err, out)
	}
	if now := s.openstack("compute", "service", "list", "--service", "nova-compute", "-f", "value", "-c", "Status",
		"-c", "State"); now != "enabled up" {
		s.t.Errorf("after them nova-compute is %s", now)
	}
}

// imagesByName: images are found by their names in Glance, as long as a name is one image's; another one of that name
// is not in the way before its data are there.
func (s *site) imagesByName(node, image string) {
	s.t.Helper()
	validate := func(source, want string) {
		s.t.Helper()
		if status, out := s.ask("baremetal", http.MethodPatch, "/v1/nodes/"+node, []object{
			{"op": "add", "path": "/instance_info/image_source", "value": source}}); status != http.StatusOK {
			s.t.Fatalf("set image_source: %d %v", status, out)
		}
		got, _ := s.get("baremetal", "/v1/nodes/"+node+"/validate", "deploy").(object)
		if want == "" && got["result"] != true || want != "" && (got["result"] != false ||
			!strings.Contains(fmt.Sprint(got["reason"]), want)) {
			s.t.Errorf("image_source %s: deploy is %v, want %q", source, got, want)
		}
	}
	validate("system", "")
	validate("glance://system", "")
	validate("glance://"+image, "")
	validate("glance://no such image", `"no such image" could not be found`)
	status, out := s.ask("image", http.MethodPost, "/v2/images", object{"name": "system", "disk_format": "raw",
		"container_format": "bare", "visibility": "public"})
	if status != http.StatusCreated {
		s.t.Fatalf("make an image: %d %v", status, out)
	}
	twin := fmt.Sprint(out["id"])
	validate("glance://system", "")
	status, out = s.ask("image", http.MethodPut, "/v2/images/"+twin+"/file", []byte("b"))
	if status != http.StatusNoContent {
		s.t.Fatalf("upload an image: %d %v", status, out)
	}
	validate("glance://system", "several images with the name")
	if status, out := s.ask("image", http.MethodDelete, "/v2/images/"+twin, nil); status != http.StatusNoContent {
		s.t.Fatalf("delete an image: %d %v", status, out)
	}
	if status, out := s.ask("baremetal", http.MethodPatch, "/v1/nodes/"+node, []object{
		{"op": "remove", "path": "/instance_info/image_source"}}); status != http.StatusOK {
		s.t.Fatalf("remove image_source: %d %v", status, out)
	}
}

// delete deletes a server, and waits until its node is clean and can be used again.
func (s *site) delete(id, node string) {
	s.t.Helper()
	s.openstack("server", "delete", id)
	ingotd.Wait(s.t, "server is gone", func() bool {
		status, _ := s.ask("compute", http.MethodGet, "/servers/"+id, nil)
		return status == http.StatusNotFound
	})
	n := s.waitNode(node, "available")
	if info, _ := n["instance_info"].(object); n["instance_uuid"] != nil || len(info) > 0 {
		s.t.Errorf("after delete the node has instance %v with %v", n["instance_uuid"], info)
	}
	if left, _ := s.get("network", "/v2.0/ports", "ports").([]any); len(left) > 0 {
		s.t.Errorf("Neutron still has the ports %v", left)
	}
	if vifs := fmt.Sprint(s.get("baremetal", "/v1/nodes/"+node+"/vifs", "vifs")); vifs != "[]" {
		s.t.Errorf("the node still has the virtual interfaces %s", vifs)
	}
	s.waitInventory(0)
}

// waitInventory waits until Placement knows one machine, of which so many are reserved.
func (s *site) waitInventory(reserved int) {
	s.t.Helper()
	ingotd.Wait(s.t, fmt.Sprintf("Placement has one machine, %d reserved", reserved), func() bool {
		list, _ := s.get("placement", "/resource_providers", "resource_providers").([]any)
		if len(list) != 1 {
			return false
		}
		id := fmt.Sprint(list[0].(object)["uuid"])
		have, _ := s.get("placement", "/resource_providers/"+id+"/inventories", "inventories", "CUSTOM_FLEET").(object)
		return have["total"] == 1.0 && have["reserved"] == float64(reserved)
	})
}
