// Package openstack runs a real OpenStack with an ingotd in Ironic's place, and asks Nova for servers.
package openstack

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/cloud"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/keystone"
	"github.com/ingot-metal/ingot/test/kit/openstack"
	"github.com/ingot-metal/ingot/test/kit/simulated"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// site is an OpenStack whose bare metal service is an ingotd with simulated machines.
type site struct {
	t       *testing.T
	cloud   *cloud.Cloud
	ingot   *simulated.Site
	fleet   *fleet.Fleet
	command *openstack.Client
	token   string // of the administrator, in the project admin
	root    string // of the administrator, in the system
	calls   *calls // of OpenStack to the ingotd
	clouds  string // file of clouds
}

// start starts all, with so many machines that are available.
func start(t *testing.T, machines int) *site {
	t.Helper()
	s := services(t)
	s.fleet = s.ingot.Machines(fleet.Options{Nodes: machines, Boot: time.Second, Write: time.Second, Step: 50 *
		time.Millisecond, Image: fetchImage})
	s.ingot.Drive(s.fleet, "manageable", 1)
	s.onNeutron()
	for _, n := range s.get("baremetal", "/v1/nodes", "nodes").([]any) {
		id := fmt.Sprint(n.(object)["uuid"])
		if err := s.ingot.API.Provision(t.Context(), id, client.ProvisionRequest{Target: "provide"}); err != nil {
			t.Fatal(err)
		}
		s.waitNode(id, "available")
	}
	return s
}

// services starts all, without machines.
func services(t *testing.T) *site {
	t.Helper()
	kit.NeedPrograms(t, "apt-get", "dpkg-deb", "openstack", "genisoimage")
	// not t.TempDir(): MariaDB's socket must have a short name
	dir, err := os.MkdirTemp("", "cloud-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s := &site{t: t, command: openstack.Start(t)}
	addr := kit.FreeAddr(t)
	s.calls = record(t, "http://"+addr)
	s.cloud, err = cloud.Start(t.Context(), cloud.Options{Dir: dir, Baremetal: s.calls.url, Agent: true,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Ironic: func(c *cloud.Cloud) error {
			s.writeClouds(c.Keystone.URL)
			id, secret := credential(t, c.Keystone.URL)
			s.ingot = simulated.New(t, map[string]map[string]any{
				"api": {"listen": addr, "auth": "keystone", "keystone": map[string]any{
					"auth_url": c.Keystone.URL, "application_credential": id, "password": secret,
					"service_project": cloud.Project}},
				"openstack": {"clouds_file": s.clouds}, "glance": {"url": c.URLs["image"]},
				"hardware": {"default_network_interface": "flat"},
				"neutron": {"url": c.URLs["network"], "repair_interval": "10s", "provisioning_network": "ramdisks",
					"cleaning_network": "ramdisks", "rescuing_network": "ramdisks", "dhcp_options": true},
			})
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		logs := s.cloud.Logs()
		s.cloud.Stop()
		if t.Failed() {
			for name, file := range logs {
				t.Logf("%s ended with:\n%s", name, tail(file))
			}
		}
	})
	s.root, err = keystone.Token(t.Context(), s.cloud.Keystone.URL, "admin", "admin", keystone.System)
	if err != nil {
		t.Fatal(err)
	}
	s.ingot.API.Login = client.Token(s.root)
	if s.token, err = keystone.Token(t.Context(), s.cloud.Keystone.URL, "admin", "admin", "admin"); err != nil {
		t.Fatal(err)
	}
	return s
}

// credential makes an application credential of Ingot's user in Keystone.
func credential(t *testing.T, at string) (id, secret string) {
	t.Helper()
	token, err := keystone.Token(t.Context(), at, "ingot", cloud.Password, cloud.Project)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, path, body string, status int, into any) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, strings.TrimSuffix(at, "/v3")+"/v3"+path,
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"X-Auth-Token": {token}, "X-Subject-Token": {token},
			"Content-Type": {"application/json"}}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err == nil {
			err = json.Unmarshal(b, into)
		}
		if err != nil || resp.StatusCode != status {
			t.Fatalf("%s %s of Keystone: %d %v: %s", method, path, resp.StatusCode, err, b)
		}
	}
	var who struct {
		Token struct{ User struct{ ID string } }
	}
	ask(http.MethodGet, "/auth/tokens", "", http.StatusOK, &who)
	var made struct {
		Credential struct{ ID, Secret string } `json:"application_credential"`
	}
	ask(http.MethodPost, "/users/"+who.Token.User.ID+"/application_credentials",
		`{"application_credential": {"name": "ingotd"}}`, http.StatusCreated, &made)
	return made.Credential.ID, made.Credential.Secret
}

// tail is the end of a file.
func tail(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

// fetchImage gets an image as an agent does, and compares its digest.
func fetchImage(ctx context.Context, c *step.Call) error {
	var a struct {
		Source string `json:"image_source"`
		Algo   string `json:"image_os_hash_algo"`
		Value  string `json:"image_os_hash_value"`
	}
	if err := json.Unmarshal(c.Args, &a); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.Source, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("fetch the image: the server answered %s", resp.Status)
	}
	h := sha512.New()
	if _, err := io.Copy(h, resp.Body); err != nil {
		return fmt.Errorf("fetch the image: %w", err)
	}
	if sum := hex.EncodeToString(h.Sum(nil)); a.Algo != "sha512" || a.Value != sum {
		return fmt.Errorf("the image has the sha512 digest %s, want %s %s", sum, a.Algo, a.Value)
	}
	return nil
}

// onNeutron makes the networks, has the one node use them, and waits until Neutron can bind its ports.
func (s *site) onNeutron() {
	s.t.Helper()
	for _, n := range []struct{ name, subnet string }{{"tenant", "192.0.2.0/24"}, {"ramdisks", "198.51.100.0/24"}} {
		s.openstack("network", "create", n.name, "--provider-network-type", "vlan", "--provider-physical-network",
			"physnet1")
		s.openstack("subnet", "create", n.name, "--network", n.name, "--subnet-range", n.subnet, "--no-dhcp",
			"--gateway", "none")
	}
	for _, p := range s.get("baremetal", "/v1/ports?fields=uuid,node_uuid", "ports").([]any) {
		id, node := p.(object)["uuid"], p.(object)["node_uuid"]
		for path, patch := range map[string][]object{
			fmt.Sprint("/v1/ports/", id): {
				{"op": "add", "path": "/physical_network", "value": "physnet1"},
				{"op": "add", "path": "/local_link_connection", "value": object{"switch_id": "00:1c:73:00:00:01",
					"port_id": "Ethernet1", "switch_info": "leaf1"}}},
			fmt.Sprint("/v1/nodes/", node): {{"op": "replace", "path": "/network_interface", "value": "neutron"}},
		} {
			if status, out := s.ask("baremetal", http.MethodPatch, path, patch); status != http.StatusOK {
				s.t.Fatalf("PATCH %s: %d %v", path, status, out)
			}
		}
		ingotd.Wait(s.t, "Neutron knows where the node is", func() bool {
			agents, _ := s.get("network", fmt.Sprint("/v2.0/agents?host=", node), "agents").([]any)
			return len(agents) == 1 && fmt.Sprint(agents[0].(object)["configurations"]) ==
				"map[bridge_mappings:map[physnet1:yes] log_agent_heartbeats:false]"
		})
	}
}

// ownPorts are those that the ingotd has made in Neutron.
func (s *site) ownPorts() []any {
	s.t.Helper()
	all, _ := s.get("network", "/v2.0/ports?device_owner=baremetal:none", "ports").([]any)
	return all
}

// openstack runs a command of the client as the administrator.
func (s *site) openstack(args ...string) string {
	s.t.Helper()
	out, _, err := s.command.Run(s.cloud.Environment("admin", "admin"), args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// object is a document of a service.
type object = map[string]any

// ask sends a request to a service and returns its answer.
func (s *site) ask(kind, method, path string, in any) (status int, out object) {
	s.t.Helper()
	body, ok := in.([]byte)
	contentType := "application/octet-stream"
	if !ok && in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			s.t.Fatal(err)
		}
		contentType = "application/json"
	}
	at, token := s.cloud.URLs[kind], s.token
	if kind == "baremetal" {
		at, token = s.ingot.URL, s.root // not by way of the record; the nodes are the system's
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, at+path, bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-Auth-Token", token)
	if in != nil {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("OpenStack-API-Version", map[string]string{"compute": "compute 2.79",
		"placement": "placement 1.38", "baremetal": "baremetal 1.82"}[kind])
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := json.Unmarshal(b, &out); err != nil && len(b) > 0 {
		out = object{"text": string(b)}
	}
	return resp.StatusCode, out
}

// get reads an object of a service, at a path of keys in the answer.
func (s *site) get(kind, path string, keys ...string) any {
	s.t.Helper()
	status, out := s.ask(kind, http.MethodGet, path, nil)
	if status != http.StatusOK {
		s.t.Fatalf("GET %s of %s: %d %v", path, kind, status, out)
	}
	var v any = out
	for _, k := range keys {
		m, _ := v.(object)
		v = m[k]
	}
	return v
}

// image makes an image in Glance and returns its ID.
func (s *site) image(name string, data []byte) string {
	s.t.Helper()
	status, out := s.ask("image", http.MethodPost, "/v2/images", object{"name": name, "disk_format": "raw",
		"container_format": "bare", "visibility": "public"})
	id, _ := out["id"].(string)
	if status != http.StatusCreated {
		s.t.Fatalf("make an image: %d %v", status, out)
	}
	if status, out := s.ask("image", http.MethodPut, "/v2/images/"+id+"/file", data); status != http.StatusNoContent {
		s.t.Fatalf("upload an image: %d %v", status, out)
	}
	return id
}

// server reads a server of Nova's.
func (s *site) server(id string) object {
	s.t.Helper()
	v, _ := s.get("compute", "/servers/"+id, "server").(object)
	return v
}

// wait waits until a server has a status; another one of those that last is a failure of the test.
func (s *site) wait(id, status string) object {
	s.t.Helper()
	var now object
	ingotd.Wait(s.t, "server is "+status, func() bool {
		now = s.server(id)
		if now["status"] == "ERROR" && status != "ERROR" {
			s.t.Fatalf("the server is in ERROR: %v", now["fault"])
		}
		time.Sleep(200 * time.Millisecond)
		return now["status"] == status && now["OS-EXT-STS:task_state"] == nil
	})
	return now
}

// waitNode waits until a node is in a provision state.
func (s *site) waitNode(id, state string) object {
	s.t.Helper()
	var now object
	ingotd.Wait(s.t, "node is "+state, func() bool {
		now, _ = s.node(id)
		return now["provision_state"] == state
	})
	return now
}

// node reads a node as JSON.
func (s *site) node(id string) (out object, machine *fleet.Machine) {
	s.t.Helper()
	n, err := s.ingot.API.Node(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := json.Marshal(n)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	for _, m := range s.fleet.Machines {
		if m.Name == out["name"] {
			machine = m
		}
	}
	return out, machine
}
