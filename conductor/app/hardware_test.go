package app

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/power/fake"
	"github.com/ingot-metal/ingot/conductor/hardware/power/ipmi"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
)

func TestHardwareOfTheConfiguration(t *testing.T) {
	cfg := config.Default()
	if _, err := hardwareTypes(cfg); err != nil {
		t.Errorf("the default: %v", err)
	}
	// Hardware type openstack is there only with a file of clouds, and the enabled interfaces need not suit it without.
	for _, file := range []string{"", "/etc/ingot/clouds.yaml"} {
		cfg := config.Default()
		cfg.OpenStack.CloudsFile = file
		types, err := hardwareTypes(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, got := types.ByName("openstack"); got != (file != "") {
			t.Errorf("with the file of clouds %q there is hardware type openstack: %v", file, got)
		}
		cfg.Hardware.EnabledPowerInterfaces = []string{"ipmitool", "redfish", "fake", "agent"}
		if _, err := hardwareTypes(cfg); (err == nil) != (file == "") {
			t.Errorf("with the file of clouds %q and without its power interface: %v", file, err)
		}
	}
	// An interface that needs settings is there only with them.
	for name, set := range map[string]func(*config.Config){
		"switch":  func(c *config.Config) { c.Switches.File = "/etc/ingot/switches.yaml" },
		"neutron": func(c *config.Config) { c.Neutron.URL = "http://192.0.2.1:9696" },
		"iscsi": func(c *config.Config) {
			c.Export = config.Export{Allow: true, Writers: []string{"192.0.2.7=iqn.2004-10.com.example:w"}}
		},
	} {
		kind, setting := "network", name
		if name == "iscsi" {
			kind, setting = "deploy", "export.writers"
		}
		for _, want := range []bool{false, true} {
			cfg := cfg
			if want {
				set(&cfg)
			}
			types, err := hardwareTypes(cfg)
			if err != nil {
				t.Fatal(err)
			}
			typ, _ := types.ByName("ipmi")
			if got := slices.Contains(typ.Enabled(kind), name); got != want {
				t.Errorf("with the setting %v: %s interface %s is enabled %v", want, kind, name, got)
			}
			// A node that asks for it is answered with the setting that is missing.
			if err := typ.Check(map[string]string{kind: name}); (err == nil) != want ||
				err != nil && !strings.Contains(err.Error(), "; set "+setting) {
				t.Errorf("with the setting %v, a node of %s interface %s: %v", want, kind, name, err)
			}
			byDefault, enabled := &cfg.Hardware.DefaultNetworkInterface, &cfg.Hardware.EnabledNetworkInterfaces
			usual := "flat"
			if kind == "deploy" {
				byDefault, enabled = &cfg.Hardware.DefaultDeployInterface, &cfg.Hardware.EnabledDeployInterfaces
				usual = "direct"
			}
			*byDefault = name
			if _, err := hardwareTypes(cfg); (err == nil) != want ||
				err != nil && !strings.Contains(err.Error(), "; set "+setting) {
				t.Errorf("with the setting %v, default %s interface %s: %v", want, kind, name, err)
			}
			*byDefault, *enabled = "", []string{name, usual}
			if _, err := hardwareTypes(cfg); (err == nil) != want ||
				err != nil && !strings.Contains(err.Error(), name+" needs the setting "+setting) {
				t.Errorf("with the setting %v, %s enabled by name: %v", want, name, err)
			}
		}
	}
	cfg.Hardware.EnabledTypes, cfg.Hardware.EnabledBootInterfaces, cfg.Hardware.DefaultBIOSInterface = []string{"ilo"},
		[]string{"pixie"}, "no-boss"
	_, err := hardwareTypes(cfg)
	for _, want := range []string{"enabled_hardware_types", "enabled_boot_interfaces", "default_bios_interface"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a wrong configuration: %v, want %s named", err, want)
		}
	}
	// Every kind can be set.
	enabled, def := cfg.Hardware.Enabled(), cfg.Hardware.Default()
	for _, kind := range driver.Kinds {
		if _, ok := enabled[kind]; !ok {
			t.Errorf("there is no key enabled_%s_interfaces", kind)
		}
		if _, ok := def[kind]; !ok {
			t.Errorf("there is no key default_%s_interface", kind)
		}
	}
}

// testServices are clients of Redfish services that may be on loopback.
func testServices(t *testing.T) hardwareServices {
	t.Helper()
	cfg := config.Default()
	cfg.Fetch.Allow, cfg.OpenStack.CloudsFile = []string{"127.0.0.0/8"}, "/etc/openstack/machines.yaml"
	s, err := services(cfg, logger(cfg, t.Output()).Part("controllers"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.close(context.Background()) })
	return s
}

// Every power interface of every type can be opened, and everything that is called fake has something behind it.
func TestEveryInterfaceIsThere(t *testing.T) {
	machines := new(fake.Machines)
	d := drivers{powerDrivers(machines, new(agentLink), testServices(t)), driver.All(), nil}
	d.log = logger(config.Default(), t.Output()).Part("controllers")
	set := plugs(driver.All(), machines, testServices(t), nil)
	for _, name := range driver.Names() {
		typ, _ := driver.ByName(name)
		for _, iface := range typ.Enabled("power") {
			n := &node.Node{UUID: "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c", Driver: name,
				Interfaces: map[string]string{"power": iface}, DriverInfo: map[string]any{"ipmi_address": "192.0.2.1",
					"redfish_address": "192.0.2.1", "openstack_cloud": "lab", "openstack_boot": "metadata",
					"openstack_server": "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c"}}
			drv, err := d.Open(n)
			if err != nil {
				t.Errorf("%s with power interface %s: %v", name, iface, err)
				continue
			}
			if err := drv.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	n := &node.Node{UUID: "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c", Driver: "fake-hardware"}
	if _, err := set.Console(n).Info(t.Context(), n); err != nil {
		t.Errorf("the console of fake hardware: %v", err)
	}
	kinds := map[string]bool{}
	for _, s := range set.Steps(n) {
		kinds[s.Interface] = true
	}
	for _, kind := range []string{"deploy", "bios", "raid", "firmware", "inspect", "rescue", "vendor"} {
		if !kinds[kind] {
			t.Errorf("fake hardware has no %s steps", kind)
		}
	}
	var not *hardware.UnsupportedError
	n.Driver = "ipmi"
	if err := set.Console(n).Start(t.Context(), n); err == nil {
		t.Error("ipmi has a console")
	} else if !errors.As(err, &not) || not.Driver != "ipmi" {
		t.Errorf("the refusal is %v", err)
	}
	for info, want := range map[string]string{"nothing": "hardware type", "fake-hardware": "power interface"} {
		n := &node.Node{Driver: info, Interfaces: map[string]string{"power": "steam"}}
		if _, err := d.Open(n); power.KindOf(err) != power.Config || !strings.Contains(err.Error(), want) {
			t.Errorf("Open of %s with steam = %v, want a word on the %s", info, err, want)
		}
	}
}

// TestFeaturesAreReal: what stands behind an interface can do what the table of interfaces says, and nothing else of
// it.
func TestFeaturesAreReal(t *testing.T) {
	service := redfish.StartBoth(t, redfish.Personality(t, "generic"))
	ask := func(ctx context.Context, _ string, f func(context.Context, *node.Node, power.Driver) error) error {
		d, err := ipmi.Open(service.IPMI, nil)
		if err != nil {
			return err
		}
		defer d.Close()
		return f(ctx, nil, d)
	}
	set := plugs(driver.All(), new(fake.Machines), testServices(t), ask)
	calls := map[string]struct {
		kind string
		call func(n *node.Node) error
	}{
		"console": {"console", func(n *node.Node) error { return set.Console(n).Start(t.Context(), n) }},
		"raid":    {"raid", func(n *node.Node) error { _, err := set.RAID(n).Properties(n); return err }},
		"vendor passthru": {"vendor", func(n *node.Node) error {
			methods, err := set.Vendor(n).Methods(n)
			if err == nil && len(methods) == 0 { // a type without methods lists none
				return &hardware.UnsupportedError{Driver: n.Driver, Feature: "vendor passthru"}
			}
			return err
		}},
		"boot mode": {
			"management", func(n *node.Node) error { return set.Management(n).SetBootMode(t.Context(), n, "uefi") }},
		"secure boot": {
			"management", func(n *node.Node) error { return set.Management(n).SetSecureBoot(t.Context(), n, true) }},
		"nmi": {
			"management", func(n *node.Node) error { return set.Management(n).InjectNMI(t.Context(), n) }},
		"indicators": {
			"management", func(n *node.Node) error {
				_, err := set.Management(n).Indicators(t.Context(), n, "")
				return err
			}},
		"health": {
			"management", func(n *node.Node) error {
				m := set.Monitor(n)
				if m == nil {
					return &hardware.UnsupportedError{Driver: n.Driver, Feature: "health"}
				}
				_, err := m.Health(t.Context(), n)
				return err
			}},
		"virtual media": {
			"management", func(n *node.Node) error {
				_, err := set.Management(n).VirtualMedia(t.Context(), n)
				return err
			}},
	}
	service.Machine.Start()
	service.BMC.SetBoot(bmc.Boot{UEFI: true}, false)
	tried := 0
	for _, name := range driver.Names() {
		typ, _ := driver.ByName(name)
		for feature, c := range calls {
			for _, iface := range typ.Enabled(c.kind) {
				i, ok := driver.Find(c.kind, iface)
				if !ok {
					t.Fatalf("the table has no %s interface %s", c.kind, iface)
				}
				n := &node.Node{UUID: "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c", Driver: name,
					Interfaces: map[string]string{c.kind: iface}, DriverInfo: service.Info}
				var unsupported *hardware.UnsupportedError
				err := c.call(n)
				if says, is := slices.Contains(i.Features, feature), !errors.As(err, &unsupported); says != is ||
					is && err != nil {
					t.Errorf("%s with %s interface %s: %s is in the table: %v, and comes to %v", name, c.kind, iface,
						feature, says, err)
				}
				tried++
			}
		}
	}
	if tried < 3*len(calls) {
		t.Errorf("only %d calls were tried", tried)
	}
}
