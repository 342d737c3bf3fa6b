package metal3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/baremetal/noauth"
	"github.com/gophercloud/gophercloud/v2/openstack/baremetal/v1/drivers"
	"github.com/gophercloud/gophercloud/v2/openstack/baremetal/v1/nodes"
	"github.com/gophercloud/gophercloud/v2/openstack/baremetal/v1/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/utils"
)

// controller is the part of a BareMetalHost controller that talks to Ironic. Like it, it keeps nothing but the UUID of
// a host's node, looks at the node, does the next thing, and comes again; 409 means to come again.
type controller struct {
	api  *gophercloud.ServiceClient
	busy atomic.Int64 // answers with 409
}

// connect negotiates the version, and takes a service that has drivers for a ready one.
func connect(t *testing.T, url string) *controller {
	t.Helper()
	api, err := noauth.NewBareMetalNoAuth(noauth.EndpointOpts{IronicEndpoint: url + "/v1/"})
	if err != nil {
		t.Fatal(err)
	}
	v, err := utils.GetSupportedMicroversions(t.Context(), api)
	if err != nil || v.MaxMajor != 1 || v.MaxMinor < 110 {
		t.Fatalf("versions %+v, %v: want 1.110", v, err)
	}
	api.Microversion = "1.110"
	pages, err := drivers.ListDrivers(api, drivers.ListDriversOpts{}).AllPages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if list, err := drivers.ExtractDrivers(pages); err != nil || len(list) == 0 {
		t.Fatalf("drivers %v, %v", list, err)
	}
	return &controller{api: api}
}

// host is a BareMetalHost.
type host struct {
	*controller
	name string
	mac  string
	id   string        // of its node; "" before it is registered
	rest time.Duration // between two looks
	make nodes.CreateOpts
	// staysOn is disablePowerOff of its specification.
	staysOn bool
}

// patient bounds how long a host may take to come into a state.
const patient = 3 * time.Minute

// try does something until it is not answered with 409.
func (h *host) try(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	for {
		err := do()
		if !gophercloud.ResponseCodeIs(err, http.StatusConflict) {
			return err
		}
		h.busy.Add(1)
		select {
		case <-time.After(h.rest):
		case <-ctx.Done():
			return fmt.Errorf("%s is busy for too long: %w", h.name, err)
		}
	}
}

func (h *host) get(ctx context.Context) (*nodes.Node, error) {
	return nodes.Get(ctx, h.api, h.id).Extract()
}

// until looks at the node until it is in a state; any of the others, if not on the way, is an error.
func (h *host) until(ctx context.Context, want nodes.ProvisionState, ways ...nodes.ProvisionState) (*nodes.Node,
	error) {
	end := time.Now().Add(patient)
	for {
		n, err := h.get(ctx)
		if err != nil {
			return nil, err
		}
		state := nodes.ProvisionState(n.ProvisionState)
		if state == want && n.TargetProvisionState == "" {
			return n, nil
		}
		on := state == want
		for _, w := range ways {
			on = on || state == w
		}
		if !on || time.Now().After(end) {
			return n, fmt.Errorf("%s is in state %q, target %q, last error %q, want %q", h.name, state,
				n.TargetProvisionState, n.LastError, want)
		}
		select {
		case <-time.After(h.rest):
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
}

// ask asks for a provision state. A node in maintenance leaves that first; one with a fault is waited for.
func (h *host) ask(ctx context.Context, o nodes.ProvisionStateOpts) error {
	n, err := h.get(ctx)
	if err != nil {
		return err
	}
	if n.Fault != "" {
		return fmt.Errorf("%s has fault %s: %s", h.name, n.Fault, n.MaintenanceReason)
	}
	if n.Maintenance {
		err := h.try(ctx, func() error { return nodes.UnsetMaintenance(ctx, h.api, h.id).ExtractErr() })
		if err != nil {
			return err
		}
	}
	return h.try(ctx, func() error { return nodes.ChangeProvisionState(ctx, h.api, h.id, o).ExtractErr() })
}

// set changes fields of the node, each PATH to its value: "add" replaces, nil removes what is there.
func (h *host) set(ctx context.Context, values map[string]any) (*nodes.Node, error) {
	n, err := h.get(ctx)
	if err != nil {
		return nil, err
	}
	var ops nodes.UpdateOpts
	for path, v := range values {
		op := nodes.UpdateOperation{Op: nodes.AddOp, Path: path, Value: v}
		if v == nil {
			section, key, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
			in := map[string]map[string]any{"instance_info": n.InstanceInfo, "driver_info": n.DriverInfo,
				"deploy_interface": {"": 1}, "instance_uuid": {"": 1}}[section]
			if _, there := in[key]; !there {
				continue
			}
			op = nodes.UpdateOperation{Op: nodes.RemoveOp, Path: path}
		}
		ops = append(ops, op)
	}
	err = h.try(ctx, func() error {
		n, err = nodes.Update(ctx, h.api, h.id, ops).Extract()
		return err
	})
	return n, err
}

// find looks for the node by its UUID, its name, and the address that the host boots with.
func (h *host) find(ctx context.Context) (*nodes.Node, error) {
	for _, ident := range []string{h.id, h.name} {
		if ident == "" {
			continue
		}
		n, err := nodes.Get(ctx, h.api, ident).Extract()
		if !gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
			return n, err
		}
	}
	list, err := h.ports(ctx, ports.ListOpts{Address: h.mac})
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return nodes.Get(ctx, h.api, list[0].NodeUUID).Extract()
}

func (h *host) ports(ctx context.Context, o ports.ListOpts) ([]ports.Port, error) {
	o.Fields = []string{"node_uuid", "uuid", "address"}
	pages, err := ports.List(h.api, o).AllPages(ctx)
	if err != nil {
		return nil, err
	}
	return ports.ExtractPorts(pages)
}

// register makes the node and its port, or finds them, and has its controller verified.
func (h *host) register(ctx context.Context, values map[string]any) error {
	n, err := h.find(ctx)
	if err != nil {
		return err
	}
	if n == nil {
		h.make.Name, h.make.DisablePowerOff = h.name, &h.staysOn
		h.make.Properties = map[string]any{"capabilities": "boot_mode:uefi", "cpu_arch": "x86_64"}
		if n, err = nodes.Create(ctx, h.api, h.make).Extract(); err != nil {
			return err
		}
	}
	h.id = n.UUID
	list, err := h.ports(ctx, ports.ListOpts{NodeUUID: h.id})
	if err != nil {
		return err
	}
	if len(list) == 0 {
		on := true
		if _, err := ports.Create(ctx, h.api,
			ports.CreateOpts{NodeUUID: h.id, Address: h.mac, PXEEnabled: &on}).Extract(); err != nil {
			return err
		}
	}
	if n.ProvisionState == string(nodes.Enroll) {
		if err := h.ask(ctx, nodes.ProvisionStateOpts{Target: nodes.TargetManage}); err != nil {
			return err
		}
		if _, err := h.until(ctx, nodes.Manageable, nodes.Enroll, nodes.Verifying); err != nil {
			return err
		}
	}
	all := map[string]any{"/automated_clean": true, "/properties/capabilities": "boot_mode:uefi",
		"/driver_info/deploy_kernel":        "http://images/ipa.kernel",
		"/driver_info/deploy_ramdisk":       "http://images/ipa.initramfs",
		"/driver_info/kernel_append_params": "%default% site=1"}
	for path, v := range values {
		all[path] = v
	}
	_, err = h.set(ctx, all)
	return err
}

// inspect has the hardware inspected, unless that was done, and returns the inventory.
func (h *host) inspect(ctx context.Context) (*nodes.InventoryData, error) {
	if _, err := nodes.GetInventory(ctx, h.api, h.id).Extract(); !gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
		return nil, fmt.Errorf("inventory of %s before the inspection: %v, want 404", h.name, err)
	}
	if err := h.ask(ctx, nodes.ProvisionStateOpts{Target: nodes.TargetInspect}); err != nil {
		return nil, err
	}
	if _, err := h.until(ctx, nodes.Manageable, nodes.Inspecting, nodes.InspectWait); err != nil {
		return nil, err
	}
	data, err := nodes.GetInventory(ctx, h.api, h.id).Extract()
	if err != nil {
		return nil, err
	}
	if i := data.Inventory; len(i.Interfaces) == 0 || i.Memory.PhysicalMb == 0 || i.CPU.Count == 0 {
		return nil, fmt.Errorf("inventory of %s: %+v", h.name, i)
	}
	return data, nil
}

// available takes a managed node there.
func (h *host) available(ctx context.Context) error {
	if err := h.ask(ctx, nodes.ProvisionStateOpts{Target: nodes.TargetProvide}); err != nil {
		return err
	}
	_, err := h.until(ctx, nodes.Available, nodes.Manageable, nodes.Cleaning, nodes.CleanWait)
	return err
}

// custom is a deploy step in place of an image.
func custom(step string) []nodes.DeployStep {
	return []nodes.DeployStep{{Interface: nodes.InterfaceDeploy, Step: step, Args: map[string]any{}, Priority: 80}}
}

// provision sets what an available node is to become, has it validated, and has it deployed.
func (h *host) provision(ctx context.Context, values map[string]any, steps []nodes.DeployStep,
	drive any) error {
	all := map[string]any{"/instance_uuid": "6f9fdd2e-6a5e-4d3b-8a3a-" + strings.ReplaceAll(h.mac, ":", ""),
		"/instance_info/capabilities":               map[string]string{},
		"/instance_info/root_device":                map[string]string{"name": "s== /dev/nvme0n1"},
		"/driver_info/force_persistent_boot_device": "Default"}
	for path, v := range values {
		all[path] = v
	}
	if _, err := h.set(ctx, all); err != nil {
		return err
	}
	var v *nodes.NodeValidation
	if err := h.try(ctx, func() (err error) {
		v, err = nodes.Validate(ctx, h.api, h.id).Extract()
		return err
	}); err != nil {
		return err
	}
	if !v.Boot.Result || !v.Deploy.Result {
		return errors.New(h.name + " is not valid: " + v.Boot.Reason + "; " + v.Deploy.Reason)
	}
	if err := h.ask(ctx, nodes.ProvisionStateOpts{Target: nodes.TargetActive, DeploySteps: steps,
		ConfigDrive: drive}); err != nil {
		return err
	}
	_, err := h.until(ctx, nodes.Active, nodes.Available, nodes.Deploying, nodes.DeployWait)
	return err
}

// deprovision ends the instance, with cleaning or without.
func (h *host) deprovision(ctx context.Context, clean bool) error {
	if _, err := h.set(ctx, map[string]any{"/automated_clean": clean}); err != nil {
		return err
	}
	if err := h.ask(ctx, nodes.ProvisionStateOpts{Target: nodes.TargetDeleted}); err != nil {
		return err
	}
	n, err := h.until(ctx, nodes.Available, nodes.Active, nodes.Deleting, nodes.Cleaning, nodes.CleanWait)
	if err == nil && n.InstanceUUID != "" {
		err = fmt.Errorf("%s still has instance %s", h.name, n.InstanceUUID)
	}
	return err
}

// remove takes the node out of Ironic: one that is not idle in maintenance, since its machine stays as it is.
func (h *host) remove(ctx context.Context) error {
	n, err := h.get(ctx)
	if err != nil {
		return err
	}
	switch nodes.ProvisionState(n.ProvisionState) {
	case nodes.Available, nodes.Manageable, nodes.Enroll:
	default:
		if err := h.try(ctx, func() error {
			return nodes.SetMaintenance(ctx, h.api, h.id,
				nodes.MaintenanceOpts{Reason: "the host is deleted"}).ExtractErr()
		}); err != nil {
			return err
		}
	}
	if err := h.try(ctx, func() error { return nodes.Delete(ctx, h.api, h.id).ExtractErr() }); err != nil {
		return err
	}
	if _, err := h.get(ctx); !gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
		return fmt.Errorf("%s after its deletion: %w", h.name, err)
	}
	return nil
}
