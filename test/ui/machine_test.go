package ui

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/proto/lldp"
	"github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/test/kit/simulated"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/parts"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// rackServer makes a simulated machine find what the agent found on a real server, with a switch beside it.
func rackServer(t *testing.T) func(*inventory.Report) {
	t.Helper()
	text, err := os.ReadFile("../../agent/inventory/testdata/rack-server.json")
	if err != nil {
		t.Fatal(err)
	}
	return func(r *inventory.Report) {
		var real inventory.Report
		if err := json.Unmarshal(text, &real); err != nil {
			t.Error(err)
			return
		}
		real.BootInterface, real.Inventory.Boot = r.BootInterface, r.Inventory.Boot
		real.Inventory.Interfaces = append(r.Inventory.Interfaces, real.Inventory.Interfaces...)
		real.LLDP = map[string]lldp.Neighbour{"eno2": {SystemName: "leaf-7", PortID: "Ethernet1/12"}}
		*r = real
	}
}

// row waits for a row of a table whose cells, in their order, have these texts.
func (p *page) row(cells ...string) {
	p.Helper()
	p.until(`[...document.querySelectorAll('main tr')].some((r) => { const want = ` + list(cells) + `; const have = [...r.cells].map((c) => c.innerText.trim());
		let at = 0; for (const h of have) if (at < want.length && h.includes(want[at])) at++; return at === want.length; })`)
}

func list(texts []string) string {
	b, _ := json.Marshal(texts) // texts always are JSON
	return string(b)
}

// TestHardwareThatTheAgentFound: disks, network cards with their switch ports, memory by slot, accelerators and PCI
// devices are on the page as the agent reports them.
func TestHardwareThatTheAgentFound(t *testing.T) {
	t.Parallel()
	r := simulated.New(t, nil)
	f := r.Machines(fleet.Options{Nodes: 1, Boot: 100 * time.Millisecond, Step: 20 * time.Millisecond,
		Inventory: rackServer(t)})
	r.Drive(f, "manageable", 3)
	p := open(t, r.URL)
	p.visit("/ui/nodes/" + f.Machines[0].Name + "/hardware")
	p.row("/dev/nvme0n1", "894 GiB", "Dell Express Flash PM1725b 960GB SFF", "S6CCNA0R500313", "nvme, flash")
	p.row("eno2", "b0:26:28:00:00:02", "1 Gbit/s", "leaf-7", "Ethernet1/12")
	p.row("ens3f0", "10 Gbit/s")
	p.row("eth0", "25 Gbit/s", "boots from the network")
	p.row("A1", "32000 MB", "DDR4")
	p.row("A2", "32000 MB", "DDR4")
	p.row("GPU", "10de:1eb8", "0000:3b:00.0")
	p.row("accelerator", "10ee:5000", "0000:3c:00.0")
	p.until(`document.querySelector('main details summary')?.innerText.includes('devices')`)
	p.does(`document.querySelectorAll('main details').forEach((d) => { d.open = true; })`)
	p.row("0000:19:00.1", "14e4:165f", "020000", "tg3")
	p.shot("node-hardware-found")
	p.fits("what the agent found")
	p.does(`document.querySelectorAll('main details').forEach((d) => { d.open = false; })`)
	p.pictured("node-hardware") // in place of one of a fake machine
}

// TestWhatTheControllerReports: sensors, a failing drive, its log, settings, firmware and drives of a controller over
// Redfish are on the page, as soon as they are read.
func TestWhatTheControllerReports(t *testing.T) {
	t.Parallel()
	s := start(t, "health.interval=300ms", "health.faults=true", "fetch.allow=127.0.0.0/8")
	b := redfish.Start(t, redfish.Personality(t, "generic"))
	info, err := json.Marshal(b.Info)
	if err != nil {
		t.Fatal(err)
	}
	s.want(201, "POST", "/v1/nodes", `{"name":"m1","driver":"redfish","driver_info":`+string(info)+`}`)
	s.send("m1", "manage")
	s.is("m1", "manageable")
	p := open(t, s.d.URL)
	p.visit("/ui/nodes/m1/health")
	p.row("CPU1 Temp", "51.5 °C", "critical from 95")
	p.shows("Event 6 of the lab")
	b.Service.Parts().SetFailing("Drives/1", parts.Predicted)
	p.shows("drive Drive 1: ")
	p.shows("a failure is predicted")
	p.shows("health Warning") // at the head of the page
	p.shot("node-health-read")
	p.fits("what the controller reports")
	p.pictured("node-health")

	p.click("BIOS and firmware")
	p.row("NumLock", "Enabled")
	p.row("bmc")
	p.pictured("node-settings")
	p.click("Virtual media")
	p.until(`/(CD|DVD)[^]*: empty/.test(document.querySelector('main .plain-list')?.innerText)`)
	images := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/rescue.iso" {
			http.NotFound(w, r)
			return
		}
		disc := make([]byte, 64<<10)
		copy(disc[16*2048:], "\x01CD001\x01") // as much of ISO 9660 as controllers look at
		http.ServeContent(w, r, "rescue.iso", time.Now(), bytes.NewReader(disc))
	}))
	t.Cleanup(images.Close)
	p.fill("Image", images.URL+"/none.iso")
	p.click("Put it in")
	p.until(`document.querySelector('header .fault')?.innerText.includes('attach virtual media: ')`) // by the controller
	p.fill("Image", images.URL+"/rescue.iso")
	p.shows("openstack baremetal node vmedia attach m1 cdrom " + images.URL + "/rescue.iso")
	p.click("Put it in")
	p.until(`document.querySelector('main .plain-list')?.innerText.includes(` + quoted(images.URL+"/rescue.iso") + `)`)
	p.pictured("node-media")
	p.click("Take all out")
	p.until(`!document.querySelector('main .plain-list')?.innerText.includes('rescue.iso')`)
	if history := s.want(200, "GET", "/v1/nodes/m1/history?detail=true", ""); !strings.Contains(history, "virtual media were taken out") {
		t.Errorf("the history is %s", history)
	}
}
