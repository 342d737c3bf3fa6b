package app

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	hardwarefake "github.com/ingot-metal/ingot/conductor/hardware/fake"
	hardwareipmi "github.com/ingot-metal/ingot/conductor/hardware/ipmi"
	"github.com/ingot-metal/ingot/conductor/hardware/openstack"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	poweragent "github.com/ingot-metal/ingot/conductor/hardware/power/agent"
	"github.com/ingot-metal/ingot/conductor/hardware/power/fake"
	"github.com/ingot-metal/ingot/conductor/hardware/power/ipmi"
	"github.com/ingot-metal/ingot/conductor/hardware/power/manual"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/vendor"
	"github.com/ingot-metal/ingot/conductor/node"
)

// powerDrivers is the table of power drivers, by power interface. One that a hardware type has a meaning of its own for
// stands there as type/interface: a machine of manual-management is as real as a fake one is not.
func powerDrivers(machines *fake.Machines, toAgents poweragent.Link,
	services hardwareServices) map[string]power.Opener {
	all := map[string]power.Opener{
		"redfish":                redfish.Opener(services.pool, services.caDir),
		"ipmitool":               ipmi.Open,
		"fake":                   machines.Open,
		"openstack":              services.clouds.Open,
		"agent":                  poweragent.Opener(toAgents),
		"manual-management/fake": manual.Open,
	}
	for _, t := range driver.Twins {
		if t.Kind == "power" {
			all[t.Name] = all[t.Of]
		}
	}
	return all
}

// hardwareServices holds what the interfaces of hardware types share: clients of Redfish services and of clouds.
type hardwareServices struct {
	clouds  *openstack.Service
	pool    *controller.Pool
	caDir   string
	timeout time.Duration // of a call of the management interface
	files   http.RoundTripper
	log     *slog.Logger
}

// sessionsEnd bounds how long sessions may take to be deleted when the conductor stops.
const sessionsEnd = 10 * time.Second

// services makes the clients. The addresses of Redfish services are users': they are guarded. Those of clouds are the
// operator's.
func services(cfg config.Config, log *slog.Logger) (hardwareServices, error) {
	allow, err := dial.Parse(cfg.Fetch.Allow)
	if err != nil {
		return hardwareServices{}, fmt.Errorf("fetch.allow: %w", err)
	}
	guard := dial.New(allow)
	pool := controller.NewPool(controller.Options{Dial: guard.Dial, Log: log,
		Sessions: filepath.Join(cfg.DataDir, "redfish-sessions")})
	return hardwareServices{openstack.New(cfg.OpenStack.CloudsFile), pool, cfg.Redfish.CADir, cfg.Power.CallTimeout,
		guard.Transport(nil), log}, nil
}

// close deletes the sessions at all services.
func (s hardwareServices) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sessionsEnd)
	defer cancel()
	s.pool.Close(ctx)
}

// drivers opens machines for the engine.
type drivers struct {
	openers map[string]power.Opener
	types   *driver.Table
	log     *slog.Logger
}

// Open makes the node's power driver.
func (d drivers) Open(n *node.Node) (power.Driver, error) {
	if _, ok := d.types.ByName(n.Driver); !ok {
		return nil, &power.Error{Kind: power.Config, Op: "open power driver",
			Err: fmt.Errorf("there is no hardware type %q", n.Driver), Hint: "set the node's driver to one of " +
				strings.Join(d.types.Names(), ", ") + ", or enable the type (hardware.enabled_types)"}
	}
	name := d.types.Interface(n, "power")
	open, ok := d.openers[n.Driver+"/"+name]
	if !ok {
		open, ok = d.openers[name]
	}
	if !ok {
		return nil, &power.Error{Kind: power.Config, Op: "open power driver",
			Err:  fmt.Errorf("there is no power interface %q", name),
			Hint: "set the node's power_interface to one that GET /v1/drivers/" + n.Driver + " lists"}
	}
	info := power.Info{}
	maps.Copy(info, n.DriverInfo)
	// Drivers without a controller have nothing else to tell machines apart by.
	for _, key := range []string{"fake_id", "manual_id"} {
		if info[key] == nil {
			info[key] = n.UUID
		}
	}
	info[poweragent.Key] = n.UUID // whatever driver_info says, so that no node reaches another node's agent
	return open(info, d.log.With("node", n.UUID))
}

// Interface returns the interface of a kind that the node uses.
func (d drivers) Interface(n *node.Node, kind string) string { return d.types.Interface(n, kind) }

// hardwareTypes makes the table of the enabled hardware types.
func hardwareTypes(c config.Config) (*driver.Table, error) {
	cfg, missing := c.Hardware, map[string]map[string]string{"network": {}, "deploy": {}}
	if len(c.Export.Writers) == 0 {
		missing["deploy"][program.ByHost] = "export.writers"
	}
	if c.Switches.File == "" {
		missing["network"]["switch"] = "switches.file"
	}
	if c.Neutron.URL == "" {
		missing["network"]["neutron"] = "neutron.url"
	}
	types := cfg.EnabledTypes
	if len(types) == 0 && c.OpenStack.CloudsFile == "" { // its nodes could do nothing
		types = slices.DeleteFunc(driver.Names(), func(t string) bool { return t == "openstack" })
	}
	t, err := driver.New(driver.Config{Types: types, Enabled: cfg.Enabled(), Default: cfg.Default(),
		Missing: missing})
	if err != nil {
		return nil, fmt.Errorf("the configuration is not valid, section hardware:\n%w", err)
	}
	return t, nil
}

// plugs returns the implementations of nodes' interfaces other than power and network.
func plugs(types *driver.Table, machines *fake.Machines, services hardwareServices,
	ask hardwareipmi.Ask) *hardware.Set {
	all := hardwarefake.New(machines, nil).Plugs()
	all["raid"]["agent"] = hardware.GenericRAID{}
	all["management"]["ipmitool"] = hardwareipmi.NewManagement(ask)
	all["vendor"]["ipmitool"] = hardwareipmi.NewVendor(ask)
	management := redfish.NewManagement(services.pool, services.caDir, services.timeout, services.log)
	all["management"]["redfish"], all["inspect"]["redfish"] = management, redfish.NewInspect(management)
	all["bios"]["redfish"], all["vendor"]["redfish"] = redfish.NewBIOS(management), vendor.New(management)
	all["inspect"]["openstack"] = openstack.NewInspect(services.clouds, services.log)
	all["raid"]["redfish"] = redfish.NewRAID(management)
	all["firmware"]["redfish"] = redfish.NewFirmware(management, services.files)
	for _, t := range driver.Twins {
		if plug, ok := all[t.Kind][t.Of]; ok {
			all[t.Kind][t.Name] = plug
		}
	}
	all["management"]["idrac-redfish"] = redfish.NewIDRAC(management) // in place of the twin
	return hardware.New(types.Interface, all)
}
