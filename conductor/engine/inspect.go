package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
)

// inspection is the result of the agent's step inspect, as far as the conductor reads it. The names are IPA's.
type inspection struct {
	Inventory     json.RawMessage `json:"inventory"`
	BootInterface string          `json:"boot_interface"`
	RootDisk      json.RawMessage `json:"root_disk"`
	Errors        json.RawMessage `json:"errors"`
}

type inventory struct {
	Interfaces []struct {
		Name       string `json:"name"`
		MAC        string `json:"mac_address"`
		IPv4       string `json:"ipv4_address"`
		HasCarrier bool   `json:"has_carrier"`
	} `json:"interfaces"`
	CPU struct {
		Count        int    `json:"count"`
		Architecture string `json:"architecture"`
	} `json:"cpu"`
	Memory struct {
		PhysicalMB int64 `json:"physical_mb"`
		Total      int64 `json:"total"`
	} `json:"memory"`
	Boot struct {
		Mode string `json:"current_boot_mode"`
		PXE  string `json:"pxe_interface"`
	} `json:"boot"`
}

// useResult applies what a step found out.
func (e *Engine) useResult(ctx context.Context, n *node.Node, also *node.Also, s *node.JobStep) error {
	switch s.Name {
	case "inspect":
		return e.useInspection(ctx, n, also, s)
	case "write_image", "prepare_instance_boot":
		// Only what an operator wants to find again later.
		var r struct {
			Disk struct {
				Name   string `json:"name"`
				Serial string `json:"serial"`
			} `json:"disk"`
			VirtualSize int64  `json:"virtual_size"`
			SHA256      string `json:"sha256"`
			Warning     string `json:"warning"`
		}
		if err := json.Unmarshal(s.Result, &r); err != nil {
			return nil // a result without details is no less a result
		}
		if r.VirtualSize > 0 {
			e.history(n, also, "provisioning", "INFO", fmt.Sprintf("image of %d bytes (sha256 %s) was written to %s (serial %s)",
				r.VirtualSize, orElse(r.SHA256, "not known"), r.Disk.Name, orElse(r.Disk.Serial, "not known")), "")
		}
		if r.Warning != "" {
			e.history(n, also, "boot", "WARNING", r.Warning, "")
		}
	}
	return nil
}

// useInspection stores an inventory, what follows from it for the node's properties, and ports. An inventory that can't be read
// fails the job rather than being dropped.
func (e *Engine) useInspection(ctx context.Context, n *node.Node, also *node.Also, s *node.JobStep) error {
	var r inspection
	var inv inventory
	err := json.Unmarshal(s.Result, &r)
	if err == nil {
		err = json.Unmarshal(r.Inventory, &inv)
	}
	if err != nil {
		return e.fail(n, also, fmt.Sprintf("the agent's inventory can't be read: %v; use the ramdisk that belongs to this version", err))
	}
	if n.Properties == nil {
		n.Properties = map[string]any{}
	}
	if inv.Memory.PhysicalMB == 0 {
		inv.Memory.PhysicalMB = inv.Memory.Total >> 20
	}
	if inv.Memory.PhysicalMB > 0 {
		n.Properties["memory_mb"] = inv.Memory.PhysicalMB
	}
	if inv.CPU.Count > 0 {
		n.Properties["cpus"] = inv.CPU.Count
	}
	if inv.CPU.Architecture != "" {
		n.Properties["cpu_arch"] = inv.CPU.Architecture
	}
	var root struct {
		Size int64 `json:"size"`
	}
	if len(r.RootDisk) > 0 && json.Unmarshal(r.RootDisk, &root) == nil && root.Size > 0 {
		n.Properties["local_gb"] = max(0, root.Size>>30-1) // as in Ironic: a gigabyte is left for the partition table
	}
	if m := strings.ToLower(inv.Boot.Mode); m == "bios" || m == "uefi" {
		n.BootMode = m
	}
	boot := normalMAC(orElse(r.BootInterface, inv.Boot.PXE))
	all, valid := map[string]any{}, map[string]any{}
	for _, i := range inv.Interfaces {
		mac := normalMAC(i.MAC)
		if mac == "" {
			continue
		}
		pxe := boot == "" || mac == boot
		shown := map[string]any{"name": i.Name, "mac_address": mac, "ipv4_address": i.IPv4, "has_carrier": i.HasCarrier, "pxe_enabled": pxe}
		all[i.Name], valid[i.Name] = shown, shown
		if err := e.addPort(ctx, n, also, mac, pxe); err != nil {
			return err
		}
	}
	plugin := map[string]any{"all_interfaces": all, "valid_interfaces": valid, "boot_interface": boot,
		"root_disk": orNull(r.RootDisk), "errors": orNull(r.Errors)}
	also.Inventory, err = json.Marshal(map[string]any{"inventory": r.Inventory, "plugin_data": plugin})
	if err != nil {
		return fmt.Errorf("store inventory: %w", err)
	}
	s.Result = nil // it is in the inventory
	return nil
}

// addPort makes a port for an interface that has none yet. One that belongs to another node is left there, and said so.
func (e *Engine) addPort(ctx context.Context, n *node.Node, also *node.Also, mac string, pxe bool) error {
	old, err := e.db.PortByMAC(ctx, mac)
	switch {
	case errors.Is(err, node.ErrNotFound):
		also.Ports = append(also.Ports, node.Port{Address: mac, PXEEnabled: pxe})
		return nil
	case err != nil:
		return err
	case old.NodeUUID != n.UUID:
		e.history(n, also, "monitoring", "WARNING", fmt.Sprintf("interface %s was found on this node, but is a port of node %s: delete it there if it is wrong", mac, old.NodeUUID), "")
	}
	return nil
}

// normalMAC brings an address into the store's form; BOOTIF's form has a leading hardware type and dashes.
func normalMAC(s string) string {
	s = strings.ToLower(strings.ReplaceAll(strings.TrimSpace(s), "-", ":"))
	if len(s) == len("01:00:00:00:00:00:00") && strings.HasPrefix(s, "01:") {
		s = s[3:]
	}
	if len(s) != len("00:00:00:00:00:00") || s == "00:00:00:00:00:00" {
		return ""
	}
	return s
}

func orNull(b json.RawMessage) json.RawMessage {
	if len(b) == 0 {
		return json.RawMessage("null")
	}
	return b
}
