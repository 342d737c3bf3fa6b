package ui

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestActionsOfAMachineInUse: boot device, quarantine, rescue and service, each with what it asks for and its commands.
func TestActionsOfAMachineInUse(t *testing.T) {
	t.Parallel()
	s := start(t)
	id := s.available("m1", "")
	s.send(id, "active")
	s.is(id, "active")
	p := open(t, s.d.URL)
	p.expect("status of 400", "status of 409")
	p.visit("/ui/nodes/m1")

	p.click("Boot device …")
	p.choose("Start from", "disk")
	p.choose("How long", "1")
	p.shows("ingot node boot-device m1 disk --persistent")
	p.shows("openstack baremetal node boot device set m1 disk --persistent")
	p.click("Boot device")
	p.until("!document.querySelector('dialog')")
	if out := s.want(200, "GET", "/v1/nodes/m1/management/boot_device", ""); !strings.Contains(out, `"disk"`) {
		t.Errorf("the boot device is %s", out)
	}

	p.click("Quarantine …")
	p.click("Quarantine")
	p.shows("Say what is wrong with the machine.")
	p.fill("Reason", "loses packets")
	p.shows("ingot node quarantine m1 --reason 'loses packets'")
	p.click("Quarantine")
	p.until("!document.querySelector('dialog')")
	if out := s.want(200, "GET", "/ingot/v1/nodes/m1/quarantine", ""); !strings.Contains(out, "loses packets") {
		t.Errorf("the quarantine is %s", out)
	}
	p.click("End quarantine …")
	p.click("End quarantine")
	p.until(named("Quarantine …"))

	p.click("Rescue …")
	p.fill("Password", "short")
	p.click("Rescue")
	p.shows("at least 8 characters.")
	p.fill("Password", "long enough")
	p.lacks("long enough") // in no command
	p.click("Rescue")
	s.is(id, "rescue")
	p.click("End rescue …")
	p.click("End rescue")
	s.is(id, "active")

	p.click("Service …")
	p.click("Check")
	p.shows("Choose a step")
	p.fill("Step 1", "bios.factory_reset")
	p.click("Check")
	p.until("document.querySelector('dialog .steps')?.innerText.includes('bios.factory_reset')")
	p.click("The same in a shell")
	p.shows("ingot node service m1 --step bios.factory_reset")
	p.shot("service")
	p.click("Service m1")
	p.until("!document.querySelector('dialog')")
	s.is(id, "active")
	p.until(`document.querySelector('.node-state').innerText.includes('active')`)
}

// TestCleaningByHand: steps are checked against those of the machine, before anything is sent.
func TestCleaningByHand(t *testing.T) {
	t.Parallel()
	s := start(t)
	id := s.node("m1", "")
	s.send(id, "manage")
	s.is(id, "manageable")
	p := open(t, s.d.URL)
	p.expect("status of 400")
	p.visit("/ui/nodes/m1")
	p.click("Clean …")
	p.until("document.querySelectorAll('#known-steps option').length > 5")
	if p.offers("Clean m1") {
		t.Error("the work is offered before it was checked")
	}
	p.fill("Step 1", "bios.apply_configuration")
	for args, fault := range map[string]string{
		"{":                  "are no JSON",
		"[1]":                "are no JSON object",
		"":                   "bios.apply_configuration needs the argument settings.",
		`{"seting":1}`:       "bios.apply_configuration has no argument seting. It has settings.",
		`{"settings":"all"}`: "settings", // the conductor says why
	} {
		p.fill("Arguments of step 1", args)
		p.click("Check")
		p.until("document.querySelector('dialog .fault')?.innerText.includes(" + quoted(fault) + ")")
	}
	p.fill("Arguments of step 1", `{"settings":[{"name":"Turbo","value":"On"}]}`)
	p.click("Add a step")
	p.fill("Step 2", "raid.no_such_step")
	p.click("Check")
	p.until("document.querySelector('dialog .fault')?.innerText.includes('no_such_step')")
	if p.offers("Clean m1") {
		t.Error("what is refused can be sent")
	}
	p.fill("Step 2", "raid.delete_configuration")
	p.click("Move step 2 up")
	p.click("Check")
	p.until("/raid.delete_configuration[^]*bios.apply_configuration[^]*Turbo/.test(document.querySelector('dialog .steps')?.innerText)")
	p.click("The same in a shell")
	p.shows("openstack baremetal node clean m1 --clean-steps")
	p.shot("clean")
	p.click("Clean m1")
	p.until("!document.querySelector('dialog')")
	s.is(id, "manageable")
	if out := s.want(200, "GET", "/v1/nodes/m1/bios?detail=true", ""); !strings.Contains(out, "Turbo") {
		t.Errorf("the settings are %s", out)
	}
}

// TestTheDeployForm: an image is looked at before, what the config drive has is checked as it is written, and networks
// are attached.
func TestTheDeployForm(t *testing.T) {
	t.Parallel()
	images := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/disk.raw" {
			http.Error(w, "none", http.StatusNotFound)
			return
		}
		disk := make([]byte, 4<<20)
		disk[446+4], disk[446+8], disk[446+13] = 0x83, 1, 16
		disk[510], disk[511] = 0x55, 0xaa
		http.ServeContent(w, r, "disk.raw", time.Now(), bytes.NewReader(disk))
	}))
	t.Cleanup(images.Close)
	s := start(t, "fetch.allow=127.0.0.0/8")
	s.available("m1", `"network_interface":"flat"`)
	s.want(201, "POST", "/v1/ports", `{"node_uuid":"`+s.uuid("m1")+`","address":"52:54:00:00:00:01"}`)
	p := open(t, s.d.URL)
	p.expect("status of 400", "status of 409")
	p.visit("/ui/nodes/m1")
	p.click("Deploy …")
	p.fill("Image", images.URL+"/none")
	p.click("Look at the image")
	p.shows("404 Not Found")
	p.fill("Image", images.URL+"/disk.raw")
	p.click("Look at the image")
	p.shows("It can be deployed, judging by its beginning.")
	p.until("/a whole disk[^]*raw[^]*4.0 MiB[^]*MBR, 1 partition/.test(document.querySelector('.report').innerText)")

	p.click("More of the config drive")
	for _, tt := range []struct{ field, text, fault string }{
		{"User data", "hello", "User data begins with #cloud-config"},
		{"User data", " #cloud-config", "at the very beginning"},
		{"User data", "#cloud-config\npackages:\n\t- nginx\n", "Line 3: it is indented by a tab"},
		{"User data", "#cloud-config\nruncmd\n", `Line 2: "runcmd" is no member`},
		{"User data", "#cloud-config\nhostname:x\n", "Line 2: "},
		{"User data", "#cloud-config\npassword: \"abc\n", "a quote is not closed"},
		{"User data", "#!bin/sh", "names its interpreter by its path"},
		{"User data", `{"x":1}`, `"ignition" is missing`},
		{"Network data", `{"links":[]}`, "links is missing"},
		{"Network data", `{"links":[{"id":"a","type":"phy","ethernet_mac_address":"52:54:00:00:00:09"}]}`,
			"this machine has no port 52:54:00:00:00:09"},
		{"Network data", `{"links":[{"id":"a","type":"phy","ethernet_mac_address":"52:54:00:00:00:01"}],"networks":[{"id":"n","link":"b","type":"ipv4"}]}`,
			"there is no link b"},
		{"Network data", `{"links":[{"id":"a","type":"phy","ethernet_mac_address":"52:54:00:00:00:01"}],"networks":[{"id":"n","link":"a","type":"ipv4","ip_address":"10.0.0.300"}]}`,
			"ip_address is no IPv4 address"},
		{"Meta data", "[1]", "no JSON object"},
	} {
		p.set(tt.field, tt.text)
		p.until("[...document.querySelectorAll('dialog .bad')].some((e) => e.innerText.includes(" + quoted(tt.fault) + "))")
	}
	good := map[string]string{
		"User data":    "#cloud-config\n# a comment\npackages:\n  - nginx\nwrite_files:\n  - path: /etc/x\n    content: |\n      \tany: [text\n      \"\nruncmd: [ls, -l]\n",
		"Network data": `{"links":[{"id":"a","type":"phy","ethernet_mac_address":"52:54:00:00:00:01"}],"networks":[{"id":"n","link":"a","type":"ipv4","ip_address":"10.0.0.3","netmask":"255.255.255.0"}]}`,
		"Meta data":    `{"rack":1}`,
	}
	for field, text := range good {
		p.set(field, text)
	}
	p.until("document.querySelectorAll('dialog .bad').length === 0")

	p.click("Network")
	p.fill("Attach", "net-1")
	p.click("Attach it")
	p.until("document.querySelector('dialog .plain-list')?.innerText.includes('net-1')")
	if out := s.want(200, "GET", "/v1/nodes/m1/vifs", ""); !strings.Contains(out, "net-1") {
		t.Errorf("the VIFs are %s", out)
	}
	p.shot("deploy-form")
	p.click("Detach")
	p.shows("No virtual interface is attached.")
}
