package metal3

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/baremetal/v1/nodes"
	"golang.org/x/sync/errgroup"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/test/kit"
	kitredfish "github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/test/kit/simulated"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/update"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// install is a custom deploy method: a step of the site's own in the ramdisk.
var install = step.Row{Interface: "deploy", Name: "install_coreos",
	Args: []step.Arg{{Name: "image_source", Type: "string", Given: true, Description: "where the system is"}}}

// crowd is how many hosts are reconciled at the same time.
const crowd = 200

// bench is an ingotd with simulated machines, and what it is for their controller.
type bench struct {
	*controller
	fleet *fleet.Fleet
	files string // URL of a server of images, sums and firmware

	mu    sync.Mutex
	discs map[string][]byte // by machine, what was in the virtual drive when it was inspected
	roots []string          // serial numbers of the disks that images were written to, if they were asked for by these
	next  int
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{discs: map[string][]byte{}}
	_, https, err := net.SplitHostPort(kit.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(https)
	if err != nil {
		t.Fatal(err)
	}
	site := simulated.New(t, map[string]map[string]any{"fetch": {"allow": []string{"127.0.0.0/8"}},
		"netboot": {"https_port": port}}, install)
	b.controller = connect(t, site.URL)
	b.fleet = site.Machines(fleet.Options{Nodes: crowd + 7, Boot: 50 * time.Millisecond, Write: 200 * time.Millisecond,
		Step: 50 * time.Millisecond, Own: []step.Row{install}, Seen: b.seen, Image: b.written})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch component, version, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/firmware/"), "/"); {
		case strings.HasPrefix(r.URL.Path, "/firmware/"):
			_, _ = w.Write(update.File(component, version)) // a controller that went away misses it
		default:
			http.ServeContent(w, r, "live.iso", time.Time{}, bytes.NewReader(make([]byte, 64<<10)))
		}
	}))
	t.Cleanup(server.Close)
	b.files = server.URL
	return b
}

// seen keeps what is in the virtual drive of a machine that is inspected.
func (b *bench) seen(e fleet.Event) {
	if d := e.Machine.Medium(0); e.Step == "inspect" && !e.End && d != nil {
		text, err := io.ReadAll(io.NewSectionReader(d, 0, d.Size()))
		if err != nil {
			text = []byte(err.Error())
		}
		b.mu.Lock()
		b.discs[e.Machine.Name] = text
		b.mu.Unlock()
	}
}

// written fails an image that is not the one that was asked for.
func (b *bench) written(_ context.Context, c *step.Call) error {
	var a struct {
		Source string `json:"image_source"`
		Sum    string `json:"image_checksum"`
		Format string `json:"image_disk_format"`
		Root   struct {
			Serial string `json:"serial"`
		} `json:"root_device"`
	}
	if err := json.Unmarshal(c.Args, &a); err != nil || a.Source != b.files+"/os.qcow2" ||
		a.Sum != b.files+"/SHA256SUMS" || a.Format != "qcow2" {
		return fmt.Errorf("an image %+v, %v", a, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.roots = append(b.roots, a.Root.Serial)
	return nil
}

// host takes the next machine, with a node that is made in this way.
func (b *bench) host(o nodes.CreateOpts) (*host, *fleet.Machine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.fleet.Machines[b.next]
	b.next++
	return &host{controller: b.controller, name: "metal3~" + m.Name, mac: m.MAC, make: o,
		rest: 20 * time.Millisecond}, m
}

// overRedfish starts a Redfish service at a machine's controller, and returns driver_info for it.
func overRedfish(t *testing.T, m *fleet.Machine, personality string) (*redfish.Service, map[string]any) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := redfish.Start(ln, m.BMC(), redfish.Config{User: "admin", Password: kitredfish.Password,
		Personality: kitredfish.Personality(t, personality), MACs: []string{m.MAC}, SecureBoot: true,
		Took: 10 * time.Millisecond, Down: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, map[string]any{"redfish_address": s.URL(), "redfish_username": "admin",
		"redfish_password": kitredfish.Password, "redfish_verify_ca": string(s.CertificatePEM())}
}

// overIPMI is a node of a machine whose controller speaks IPMI.
func overIPMI(m *fleet.Machine) nodes.CreateOpts {
	return nodes.CreateOpts{Driver: "ipmi", BootInterface: "ipxe", InspectInterface: "agent", RAIDInterface: "no-raid",
		DriverInfo: map[string]any{"ipmi_address": m.Addr.String(), "ipmi_port": strconv.Itoa(m.Port()),
			"ipmi_username": fleet.User, "ipmi_password": fleet.Password, "ipmi_priv_level": "ADMINISTRATOR",
			"ipmi_verify_ca": false}}
}

// image is an image with the URL of its checksums.
func (b *bench) image() map[string]any {
	return map[string]any{"/instance_info/boot_iso": nil, "/instance_info/image_source": b.files + "/os.qcow2",
		"/instance_info/image_checksum": b.files + "/SHA256SUMS", "/instance_info/image_os_hash_algo": nil,
		"/instance_info/image_os_hash_value": nil, "/instance_info/image_disk_format": "qcow2",
		"/instance_info/image_pull_secret": nil}
}

// drive is a config drive as the controller makes it.
var drive = nodes.ConfigDrive{MetaData: map[string]any{"uuid": "x", "metal3-name": "h", "local-hostname": "h"},
	UserData:    "#cloud-config\n",
	NetworkData: map[string]any{"links": []any{}, "networks": []any{}, "services": []any{}}}

// good ends the test on an error.
func good(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestBareMetalHosts takes a host of each kind through what a BareMetalHost may ask for, side by side with many others.
func TestBareMetalHosts(t *testing.T) {
	b := newBench(t)
	t.Run("redfish", func(t *testing.T) { t.Parallel(); b.redfish(t) })
	t.Run("virtual media", func(t *testing.T) { t.Parallel(); b.virtualMedia(t) })
	t.Run("never off", func(t *testing.T) { t.Parallel(); b.neverOff(t) })
	t.Run("software RAID", func(t *testing.T) { t.Parallel(); b.softwareRAID(t) })
	t.Run("idrac", func(t *testing.T) { t.Parallel(); b.idrac(t) })
	t.Run("external", func(t *testing.T) { t.Parallel(); b.external(t) })
	t.Run("busy", func(t *testing.T) { t.Parallel(); b.deletedWhileBusy(t) })
	t.Run("crowd", func(t *testing.T) { t.Parallel(); b.crowd(t) })
}

// redfish: firmware settings and updates, hardware RAID, an image by the URL of its checksums, servicing, an end with
// cleaning.
func (b *bench) redfish(t *testing.T) {
	ctx := t.Context()
	h, m := b.host(nodes.CreateOpts{})
	s, info := overRedfish(t, m, "generic")
	h.make = nodes.CreateOpts{Driver: "redfish", BootInterface: "ipxe", FirmwareInterface: "redfish",
		RAIDInterface: "redfish", InspectInterface: "agent", DriverInfo: info}
	good(t, h.register(ctx, nil))
	h.id = "" // a controller that was restarted finds it by name
	good(t, h.register(ctx, nil))
	data, err := h.inspect(ctx)
	good(t, err)
	if plugin, err := data.PluginData.AsStandardData(); err != nil || len(plugin.ValidInterfaces) == 0 {
		t.Errorf("plugin data %s, %v", data.PluginData.RawMessage, err)
	}

	settings, err := nodes.ListBIOSSettings(ctx, h.api, h.id, nodes.ListBIOSSettingsOpts{Detail: true}).Extract()
	if i := slices.IndexFunc(settings, func(s nodes.BIOSSetting) bool { return s.Name == "NumLock" }); err != nil ||
		i < 0 || settings[i].AttributeType != "Enumeration" || len(settings[i].AllowableValues) != 2 {
		t.Fatalf("BIOS settings %+v, %v", settings, err)
	}
	apply := nodes.CleanStep{Interface: nodes.InterfaceBIOS, Step: "apply_configuration",
		Args: map[string]any{"settings": []map[string]any{{"name": "NumLock", "value": "Disabled"}}}}
	flash := func(component, version string) nodes.CleanStep {
		return nodes.CleanStep{Interface: nodes.InterfaceFirmware, Step: "update", Args: map[string]any{
			"settings": []map[string]string{{"component": component,
				"url": b.files + "/firmware/" + component + "/" + version}}}}
	}
	version := func(component, want string) {
		t.Helper()
		list, err := nodes.ListFirmware(ctx, h.api, h.id).Extract()
		good(t, err)
		if !slices.ContainsFunc(list, func(f nodes.FirmwareComponent) bool {
			return f.Component == component && strings.Contains(f.CurrentVersion, want) &&
				f.LastVersionFlashed == f.CurrentVersion && f.InitialVersion != f.CurrentVersion && f.UpdatedAt != nil
		}) {
			t.Errorf("firmware %+v, want %s %s", list, component, want)
		}
	}
	size, root := 100, true
	_, err = h.set(ctx, map[string]any{"/raid_interface": "redfish"})
	good(t, err)
	good(t, nodes.SetRAIDConfig(ctx, h.api, h.id, nodes.RAIDConfigOpts{LogicalDisks: []nodes.LogicalDisk{
		{SizeGB: &size, RAIDLevel: nodes.RAID1, VolumeName: "root", IsRootVolume: &root}}}).ExtractErr())
	good(t, h.ask(ctx, nodes.ProvisionStateOpts{Target: nodes.TargetClean, CleanSteps: []nodes.CleanStep{
		{Interface: nodes.InterfaceRAID, Step: "delete_configuration"},
		{Interface: nodes.InterfaceRAID, Step: "create_configuration"}, apply, flash("bios", "99.1")}}))
	n, err := h.until(ctx, nodes.Manageable, nodes.Cleaning, nodes.CleanWait)
	good(t, err)
	if disks, _ := n.RAIDConfig["logical_disks"].([]any); len(disks) != 1 || s.BIOS().Now()["NumLock"] != "Disabled" {
		t.Errorf("raid_config %v, NumLock %v", n.RAIDConfig, s.BIOS().Now()["NumLock"])
	}
	version("bios", "99.1")

	good(t, h.available(ctx))
	good(t, h.provision(ctx, b.image(), nil, drive))
	apply.Args["settings"] = []map[string]any{{"name": "NumLock", "value": "Enabled"}}
	good(t, h.ask(ctx, nodes.ProvisionStateOpts{Target: nodes.TargetService,
		ServiceSteps: []nodes.ServiceStep{apply, flash("bmc", "99.2")}}))
	_, err = h.until(ctx, nodes.Active, nodes.Servicing, nodes.ServiceWait)
	good(t, err)
	version("bmc", "99.2")
	if now := s.BIOS().Now()["NumLock"]; now != "Enabled" {
		t.Errorf("NumLock is %v after servicing", now)
	}
	kit.Eventually(t, patient, "the installed system runs", m.Instance)
	good(t, h.deprovision(ctx, true))
	good(t, h.remove(ctx))
}

// virtualMedia: network data for the ramdisk, which comes on a disc, and a live ISO on a disc; an end without cleaning.
func (b *bench) virtualMedia(t *testing.T) {
	ctx := t.Context()
	h, m := b.host(nodes.CreateOpts{})
	_, info := overRedfish(t, m, "hpe-ilo6")
	h.make = nodes.CreateOpts{Driver: "redfish", BootInterface: "redfish-virtual-media", FirmwareInterface: "redfish",
		RAIDInterface: "redfish", InspectInterface: "agent", DriverInfo: info}
	link := map[string]any{"id": "eth0", "type": "phy", "ethernet_mac_address": m.MAC}
	network := map[string]any{"links": []any{link},
		"networks": []any{map[string]any{"id": "n", "type": "ipv4", "network_id": "n",
			"link": "eth0", "ip_address": "192.0.2.77",
			"netmask": "255.255.255.0"}}, "services": []any{}}
	good(t, h.register(ctx, map[string]any{"/network_data": network, "/driver_info/deploy_iso": b.files + "/ipa.iso",
		"/driver_info/deploy_kernel": nil, "/driver_info/deploy_ramdisk": nil}))
	_, err := h.inspect(ctx)
	good(t, err)
	b.mu.Lock()
	disc := b.discs[m.Name]
	b.mu.Unlock()
	if !bytes.Contains(disc, []byte("192.0.2.77")) {
		t.Errorf("the ramdisk was booted from a disc of %d bytes without the network data", len(disc))
	}
	good(t, h.available(ctx))
	live := map[string]any{"/instance_info/boot_iso": b.files + "/live.iso", "/instance_info/image_source": nil,
		"/instance_info/image_os_hash_value": nil, "/instance_info/image_os_hash_algo": nil,
		"/instance_info/image_checksum": nil, "/deploy_interface": "ramdisk"}
	good(t, h.provision(ctx, live, nil, nil))
	kit.Eventually(t, patient, "the live ISO runs", m.Disc)
	attached := func() (n int) {
		var list []struct{ Inserted bool }
		good(t, h.try(ctx, func() error { return nodes.GetVirtualMedia(ctx, h.api, h.id).ExtractInto(&list) }))
		for _, d := range list {
			if d.Inserted {
				n++
			}
		}
		return n
	}
	if n := attached(); n != 1 {
		t.Errorf("%d discs in the virtual drives, want the live ISO", n)
	}
	good(t, h.deprovision(ctx, false))
	if n := attached(); n != 0 || m.On() {
		t.Errorf("%d discs in the virtual drives after the end; on %v", n, m.On())
	}
	// A data image of its own, and then an image on the disk again.
	good(t, h.try(ctx, func() error {
		return nodes.AttachVirtualMedia(ctx, h.api, h.id, nodes.AttachVirtualMediaOpts{
			DeviceType: nodes.VirtualMediaCD, ImageURL: b.files + "/data.iso"}).ExtractErr()
	}))
	kit.Eventually(t, patient, "the data image is there", func() bool { return attached() == 1 })
	good(t, h.try(ctx, func() error {
		return nodes.DetachVirtualMedia(ctx, h.api, h.id, nodes.DetachVirtualMediaOpts{
			DeviceTypes: []nodes.VirtualMediaDeviceType{nodes.VirtualMediaCD}}).ExtractErr()
	}))
	kit.Eventually(t, patient, "the data image is gone", func() bool { return attached() == 0 })
	direct := b.image()
	direct["/deploy_interface"] = nil
	good(t, h.provision(ctx, direct, nil, drive))
	kit.Eventually(t, patient, "the installed system runs", m.Instance)
	good(t, h.deprovision(ctx, true))
	good(t, h.remove(ctx))
}

// neverOff: a live ISO on a machine whose power is never turned off (disablePowerOff), ended without cleaning and then
// with it. Its disc is taken out while it runs.
func (b *bench) neverOff(t *testing.T) {
	ctx := t.Context()
	h, m := b.host(nodes.CreateOpts{})
	_, info := overRedfish(t, m, "hpe-ilo6")
	h.staysOn = true
	h.make = nodes.CreateOpts{Driver: "redfish", BootInterface: "redfish-virtual-media", FirmwareInterface: "redfish",
		RAIDInterface: "redfish", InspectInterface: "agent", DriverInfo: info}
	good(t, h.register(ctx, nil))
	_, err := h.inspect(ctx)
	good(t, err)
	good(t, h.available(ctx))
	for _, clean := range []bool{false, true} {
		good(t, h.provision(ctx, map[string]any{"/instance_info/boot_iso": b.files + "/live.iso",
			"/instance_info/image_source": nil, "/deploy_interface": "ramdisk"}, nil, nil))
		kit.Eventually(t, patient, "the live ISO runs", m.Disc)
		off := nodes.ChangePowerState(ctx, h.api, h.id, nodes.PowerStateOpts{Target: nodes.PowerOff}).ExtractErr()
		if !gophercloud.ResponseCodeIs(off, http.StatusConflict) {
			t.Errorf("power off = %v, want 409", off)
		}
		good(t, h.deprovision(ctx, clean))
		if !m.On() || m.Medium(0) != nil {
			t.Errorf("after the end, with cleaning %v: on %v, in the drive %v", clean, m.On(), m.Medium(0))
		}
		if m.Disc() == clean { // a cleaning restarts it into the ramdisk
			t.Errorf("after the end, with cleaning %v: the live system runs on %v", clean, m.Disc())
		}
	}
	good(t, h.remove(ctx))
}

// softwareRAID: the host's volumes are made by the agent, its image goes onto the first, and they are removed again. A
// controller changes the RAID interface for that by itself.
func (b *bench) softwareRAID(t *testing.T) {
	ctx := t.Context()
	h, m := b.host(nodes.CreateOpts{})
	h.make = overIPMI(m)
	good(t, h.register(ctx, nil))
	_, err := h.inspect(ctx)
	good(t, err)
	_, err = h.set(ctx, map[string]any{"/raid_interface": "agent"})
	good(t, err)
	size, root := 100, true
	disks := []any{map[string]any{"serial": "s== one"}, map[string]any{"serial": "s== two"}}
	good(t, nodes.SetRAIDConfig(ctx, h.api, h.id, nodes.RAIDConfigOpts{LogicalDisks: []nodes.LogicalDisk{
		{SizeGB: &size, RAIDLevel: nodes.RAID1, Controller: "software", IsRootVolume: &root, PhysicalDisks: disks},
		{RAIDLevel: nodes.RAID0, Controller: "software", PhysicalDisks: disks}, // of the size that is left
	}}).ExtractErr())
	clean := func(steps ...nodes.CleanStep) (volumes []any, hint any) {
		t.Helper()
		good(t, h.ask(ctx, nodes.ProvisionStateOpts{Target: nodes.TargetClean, CleanSteps: steps}))
		n, err := h.until(ctx, nodes.Manageable, nodes.Cleaning, nodes.CleanWait)
		good(t, err)
		volumes, _ = n.RAIDConfig["logical_disks"].([]any)
		return volumes, n.Properties["root_device"]
	}
	remove := nodes.CleanStep{Interface: nodes.InterfaceRAID, Step: "delete_configuration"}
	erase := nodes.CleanStep{Interface: nodes.InterfaceDeploy, Step: "erase_devices_metadata"}
	volumes, hint := clean(remove, erase, nodes.CleanStep{Interface: nodes.InterfaceRAID, Step: "create_configuration"})
	if len(volumes) != 2 {
		t.Fatalf("raid_config has %v, want two volumes", volumes)
	}
	first, _ := volumes[0].(map[string]any)
	serial, _ := first["uuid"].(string)
	if want := fmt.Sprint(map[string]any{"serial": serial}); first["size_gb"] != 100.0 || serial == "" ||
		fmt.Sprint(hint) != want {
		t.Errorf("the first volume is %v, the root device %v", first, hint)
	}
	good(t, h.available(ctx))
	image := b.image()
	image["/instance_info/root_device"] = nil // a host without hints
	good(t, h.provision(ctx, image, nil, drive))
	kit.Eventually(t, patient, "the installed system runs", m.Instance)
	b.mu.Lock()
	if !slices.Contains(b.roots, serial) {
		t.Errorf("no image was written to volume %s, but to %q", serial, slices.Compact(b.roots))
	}
	b.mu.Unlock()
	good(t, h.deprovision(ctx, true))
	good(t, h.ask(ctx, nodes.ProvisionStateOpts{Target: nodes.TargetManage}))
	_, err = h.until(ctx, nodes.Manageable, nodes.Available)
	good(t, err)
	if volumes, hint := clean(remove, erase); len(volumes) != 0 || hint != nil {
		t.Errorf("after the removal raid_config has %v, and the root device is %v", volumes, hint)
	}
	good(t, h.remove(ctx))
}

// idrac: the interfaces that the controller sets, an inspection by Redfish alone, a custom deploy step, and detaching.
func (b *bench) idrac(t *testing.T) {
	ctx := t.Context()
	h, m := b.host(nodes.CreateOpts{})
	_, info := overRedfish(t, m, "dell-idrac10")
	h.make = nodes.CreateOpts{Driver: "idrac", BIOSInterface: "idrac-redfish",
		BootInterface:       "idrac-redfish-virtual-media",
		FirmwareInterface:   "redfish",
		ManagementInterface: "idrac-redfish", PowerInterface: "idrac-redfish",
		RAIDInterface: "idrac-redfish", VendorInterface: "idrac-redfish", InspectInterface: "redfish",
		DeployInterface: "custom-agent", DriverInfo: info}
	good(t, h.register(ctx, nil))
	data, err := h.inspect(ctx)
	good(t, err)
	if at := data.Inventory.Interfaces[0].MACAddress; !strings.EqualFold(at, m.MAC) || m.On() {
		t.Errorf("inspected %q, want %s; on %v", at, m.MAC, m.On())
	}
	// For the image on the disk the ramdisk looks.
	_, err = h.set(ctx, map[string]any{"/inspect_interface": "agent"})
	good(t, err)
	good(t, h.available(ctx))
	bare := map[string]any{"/instance_info/image_source": nil, "/instance_info/image_os_hash_value": nil,
		"/instance_info/image_disk_format": nil, "/deploy_interface": "custom-agent"}
	good(t, h.provision(ctx, bare, custom(install.Name), drive))
	kit.Eventually(t, patient, "the system of the custom step runs", m.Instance)
	sub, err := nodes.CreateSubscription(ctx, h.api, h.id, nodes.CallVendorPassthruOpts{Method: "create_subscription"},
		nodes.CreateSubscriptionOpts{Destination: "https://192.0.2.9/events", Context: "h"}).Extract()
	good(t, err)
	good(t, nodes.DeleteSubscription(ctx, h.api, h.id, nodes.CallVendorPassthruOpts{Method: "delete_subscription"},
		nodes.DeleteSubscriptionOpts{Id: sub.Id}).ExtractErr())
	good(t, h.remove(ctx)) // detached: the system runs on
	if !m.Instance() {
		t.Error("the machine was touched when its host was detached")
	}
}

// external: a host that others provisioned is managed, adopted and deleted, and runs all the time.
func (b *bench) external(t *testing.T) {
	ctx := t.Context()
	h, m := b.host(nodes.CreateOpts{})
	h.make = overIPMI(m)
	good(t, m.Start())
	good(t, h.register(ctx, nil))
	good(t, h.ask(ctx, nodes.ProvisionStateOpts{Target: nodes.TargetAdopt}))
	_, err := h.until(ctx, nodes.Active, nodes.Manageable, nodes.Adopting)
	good(t, err)
	if !m.On() {
		t.Error("the machine was turned off")
	}
	good(t, h.try(ctx, func() error {
		return nodes.ChangePowerState(ctx, h.api, h.id,
			nodes.PowerStateOpts{Target: nodes.SoftPowerOff, Timeout: 180}).ExtractErr()
	}))
	kit.Eventually(t, patient, "the machine is off", func() bool {
		n, err := h.get(ctx)
		return err == nil && n.PowerState == string(nodes.PowerOff) && n.TargetPowerState == "" && !m.On()
	})
	good(t, h.remove(ctx))
}

// deletedWhileBusy: a host that is deleted in the middle of its deployment, inspection or cleaning.
func (b *bench) deletedWhileBusy(t *testing.T) {
	ctx := t.Context()
	h, m := b.host(nodes.CreateOpts{})
	h.make = overIPMI(m)
	state := func(want nodes.ProvisionState) (n *nodes.Node) {
		t.Helper()
		kit.Eventually(t, patient, "state "+string(want), func() bool {
			var err error
			n, err = h.get(ctx)
			good(t, err)
			return n.ProvisionState == string(want)
		})
		return n
	}
	begin := func(target nodes.TargetProvisionState, waits, failed nodes.ProvisionState) *nodes.Node {
		t.Helper()
		good(t, h.ask(ctx, nodes.ProvisionStateOpts{Target: target}))
		state(waits)
		err := nodes.Delete(ctx, h.api, h.id).ExtractErr()
		if !gophercloud.ResponseCodeIs(err, http.StatusConflict) {
			t.Errorf("delete in state %s: %v, want 409", waits, err)
		}
		good(t, h.ask(ctx, nodes.ProvisionStateOpts{Target: nodes.TargetAbort}))
		return state(failed)
	}
	good(t, h.register(ctx, nil))
	n := begin(nodes.TargetInspect, nodes.InspectWait, nodes.InspectFail)
	if !strings.Contains(n.LastError, "aborted") {
		t.Errorf("last error after the abort of the inspection: %q", n.LastError)
	}
	good(t, h.ask(ctx, nodes.ProvisionStateOpts{Target: nodes.TargetManage}))
	_, err := h.until(ctx, nodes.Manageable, nodes.InspectFail)
	good(t, err)
	good(t, h.available(ctx))
	_, err = h.set(ctx, b.image())
	good(t, err)
	begin(nodes.TargetActive, nodes.DeployWait, nodes.DeployFail)
	good(t, h.remove(ctx))
}

// crowd: hosts reconciled at the same time, each by a loop of its own and by a second one that looks and writes, as a
// controller's workers do; the answers 409 are for who comes again.
func (b *bench) crowd(t *testing.T) {
	g, ctx := errgroup.WithContext(t.Context())
	for range crowd {
		h, m := b.host(nodes.CreateOpts{})
		h.make, h.rest = overIPMI(m), 400*time.Millisecond
		g.Go(func() error { return b.life(ctx, h, m) })
	}
	good(t, g.Wait())
	t.Logf("%d answers were 409", b.busy.Load())
	if n := b.fleet.Overlaps(); n != 0 {
		t.Errorf("%d requests reached a controller that was asked already", n)
	}
}

func (b *bench) life(ctx context.Context, h *host, m *fleet.Machine) error {
	if err := h.register(ctx, nil); err != nil {
		return err
	}
	if _, err := h.inspect(ctx); err != nil {
		return err
	}
	if err := h.available(ctx); err != nil {
		return err
	}
	watched, over := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- h.meddle(watched) }()
	err := h.provision(ctx, b.image(), nil, drive)
	over()
	if err = cmp.Or(err, <-ended); err != nil {
		return err
	}
	for end := time.Now().Add(patient); !m.Instance(); {
		if time.Now().After(end) {
			return fmt.Errorf("the system of %s does not run", h.name)
		}
		time.Sleep(h.rest)
	}
	if err := h.deprovision(ctx, true); err != nil {
		return err
	}
	return h.remove(ctx)
}

// meddle writes to the node until it is told to end, as a second worker of a controller does: a write to a locked node
// is refused with 409 and nothing else.
func (h *host) meddle(ctx context.Context) error {
	for i := 0; ; i++ {
		err := nodes.Update(ctx, h.api, h.id,
			nodes.UpdateOpts{nodes.UpdateOperation{Op: nodes.AddOp, Path: "/extra/round", Value: i}}).Err
		switch {
		case ctx.Err() != nil:
			return nil
		case gophercloud.ResponseCodeIs(err, http.StatusConflict):
			h.busy.Add(1)
		case err != nil:
			return fmt.Errorf("write to %s: %w", h.name, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(h.rest):
		}
	}
}
