package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/tools/lab"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
)

// TestRedfish deploys machines whose controllers speak Redfish, in a network without DHCP, TFTP and PXE: the agent
// comes from virtual media over HTTPS, and its address from network data. With INGOT_FULL every personality has its
// turn.
func TestRedfish(t *testing.T) {
	t.Parallel()
	firmware := map[string]lab.Firmware{"generic": lab.BIOS, "dell-idrac9": lab.UEFI}
	names := []string{"generic", "dell-idrac9"}
	if os.Getenv("INGOT_FULL") != "" {
		names = service.Personalities()
	}
	for _, personality := range names {
		t.Run(personality, func(t *testing.T) {
			with := firmware[personality]
			if with == "" {
				with = lab.UEFI
			}
			throughRedfish(t, personality, with)
		})
	}
}

func throughRedfish(t *testing.T, personality string, firmware lab.Firmware) {
	const name = "media"
	r := newRigOf(t, lab.Options{BMC: lab.Redfish, Personality: personality, Nodes: []lab.NodeSpec{
		{Name: name, Firmware: firmware, MemoryMiB: 1024, Disks: []lab.DiskSpec{{SizeBytes: 5 << 30}}}}},
		set("netboot.dhcp", "off"), set("netboot.range_start", ""), set("netboot.range_end", ""),
		set("netboot.https_port", 8443), set("fetch.allow", []string{"192.168.0.0/16", "10.0.0.0/8", "172.16.0.0/12"}))
	m := r.lab.Node(name)
	ca, err := os.ReadFile(m.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	host := r.lab.Host.String()
	address := host[:strings.LastIndex(host, ".")] + ".77"
	r.must("POST", "/v1/nodes", object{
		"name": name, "driver": "redfish", "boot_interface": "redfish-virtual-media", "automated_clean": false,
		"driver_info": object{"redfish_address": m.BMCAddress, "redfish_username": m.User,
			"redfish_password": m.Password, "redfish_verify_ca": string(ca)},
		"properties": object{"capabilities": "boot_mode:" + string(firmware)},
		"network_data": object{
			"links": []object{{"id": "nic", "type": "phy", "ethernet_mac_address": m.MAC}},
			"networks": []object{{"id": "prov", "network_id": "prov", "type": "ipv4", "link": "nic",
				"ip_address": address, "netmask": "255.255.255.0", "routes": []object{}}},
			"services": []object{}},
	})
	r.provision(name, "manage", nil)
	r.wait(name, "manageable", stateLimit)
	r.provision(name, "provide", nil)
	r.wait(name, "available", stateLimit)
	r.source(name, r.ours(r.art.tiny), r.art.tiny.sha256)
	from := m.ConsoleSize()
	r.provision(name, "active", hostname(name))
	r.wait(name, "active", 2*bootLimit)
	r.boots(m, from, name)

	_, timeline := r.call("GET", "/ingot/v1/nodes/"+name+"/timeline", nil)
	said := fmt.Sprint(timeline)
	order := []string{"boot image inserted", "boot device set", "power on requested", "boot image read",
		"kernel started", "agent enrolled", "agent connected"}
	at := make([]int, len(order))
	for i, mark := range order {
		at[i] = strings.Index(said, mark)
	}
	if slices.Contains(at, -1) {
		t.Errorf("the time line lacks one of %q: %s", order, said)
	}
	checks := slices.Contains([]string{"generic", "dell-idrac9", "dell-idrac9-5", "dell-idrac10", "hpe-ilo6"},
		personality)
	if strings.Contains(said, "trust level L1") != checks {
		t.Errorf("the time line says nothing right of the trust: %s", said)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", r.con.URL()+"/v1/nodes/"+name+"/vmedia", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-OpenStack-Ironic-API-Version", "latest")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if media, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(media), "media_types") ||
		strings.Contains(string(media), "boot-image") || strings.Contains(string(media), `"inserted":true`) {
		t.Errorf("the drives are %s, %v", media, err)
	}
	log, err := os.ReadFile(r.log)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{m.Password, "ingot.token="} {
		if strings.Contains(string(log), secret) {
			t.Errorf("the log of ingotd has %q", secret)
		}
	}
}
