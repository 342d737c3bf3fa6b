package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/machine/lldp"
	"github.com/ingot-metal/ingot/proto/rootdevice"
)

const inventoryUsage = `usage: ingot-agent inventory [options]

Says what this machine is, as an inspection would. It changes nothing. Some of it only root may read.

`

// heedful is a machine whose LLDP listener is running.
type heedful struct {
	linux.Machine
	*lldp.Listener
}

// showInventory is the command that prints the inventory, or saves its source files.
func showInventory(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("ingot-agent inventory", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, inventoryUsage); fs.PrintDefaults() }
	asJSON := fs.Bool("json", false, "print all of it as JSON, under the names of ironic-python-agent")
	listen := fs.Duration("lldp", 0,
		"listen for switches' LLDP frames, at most for this `TIME`; switches send every 30s")
	capture := fs.String("capture", "",
		"print nothing, but pack the files of sysfs, procfs and SMBIOS that the inventory is made of into `FILE.tar` or FILE.tar.gz, to go with a report of a fault; it holds serial numbers and hardware addresses")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("inventory: %q is no option (see --help)", fs.Arg(0))
	}
	if *capture != "" {
		if err := inventory.CaptureTo("/", *capture); err != nil {
			return err
		}
		_, err := fmt.Fprintln(stderr, "wrote", *capture)
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	m := heedful{Listener: lldp.New(linux.Machine{}, links, log)}
	ctx, stop := context.WithCancel(ctx)
	heard := make(chan error, 1)
	if *listen > 0 {
		go func() { heard <- m.Run(ctx) }()
	} else {
		heard <- nil
	}
	r, err := inventory.Collect(ctx, m, inventory.Options{LLDP: *listen, Log: log})
	stop()
	if err := errors.Join(err, <-heard); err != nil {
		return err
	}
	if *asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	if err := table(stdout, r); err != nil {
		return err
	}
	for _, e := range r.Errors {
		fmt.Fprintln(stderr, "not read:", e)
	}
	return nil
}

// links returns the present interfaces.
func links() []string { return inventory.Links("/") }

// table prints the important parts of an inventory.
func table(w io.Writer, r *inventory.Report) error {
	i := r.Inventory
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	row := func(what string, parts ...string) {
		said := slices.DeleteFunc(parts, func(p string) bool { return p == "" })
		fmt.Fprintf(t, "%s\t%s\n", what, strings.Join(said, ", "))
	}
	v := i.SystemVendor
	row("system", cmp.Or(strings.TrimSpace(v.Manufacturer+" "+v.ProductName), "not known"),
		labelled("serial", v.SerialNumber))
	row("firmware", strings.TrimSpace(v.Firmware.Vendor+" "+v.Firmware.Version), v.Firmware.BuildDate,
		"booted by "+i.Boot.CurrentBootMode, secureBoot(i.Boot))
	if r.TPM.Present {
		row("tpm", strings.TrimSpace("version "+r.TPM.Version), r.TPM.Device)
	}
	row("cpu", i.CPU.ModelName, fmt.Sprintf("sockets: %d, threads: %d", i.CPU.SocketCount, i.CPU.Count),
		suffixed(i.CPU.Frequency, " MHz"), i.CPU.Architecture)
	row("memory", fmt.Sprintf("%d MiB installed, %d MiB usable", i.Memory.PhysicalMB, i.Memory.Total>>20))
	if r.NUMA != nil && len(r.NUMA.RAM) > 1 {
		row("numa", fmt.Sprintf("%d nodes", len(r.NUMA.RAM)))
	}
	health := map[string]inventory.DiskHealth{}
	for _, h := range r.DiskHealth {
		health[h.Name] = h
	}
	versions := map[string]string{}
	for _, f := range r.Firmware {
		versions[f.Component+" "+f.Name] = f.Version
	}
	for _, d := range i.Disks {
		sectors := fmt.Sprintf("sectors of %d", d.LogicalSectors)
		if d.PhysicalSectors != d.LogicalSectors {
			sectors += fmt.Sprintf(" on %d", d.PhysicalSectors)
		}
		var how string
		if h, ok := health[d.Name]; ok {
			how = "health " + h.Status
			if len(h.Warnings) > 0 {
				how += " (" + strings.Join(h.Warnings, "; ") + ")"
			}
			if h.PercentageUsed != nil {
				how += fmt.Sprintf(", %d%% worn", *h.PercentageUsed)
			}
		}
		row("disk "+d.Name, strings.TrimSpace(d.Vendor+" "+d.Model), rootdevice.HumanSize(d.Size),
			labelled("serial", d.Serial), labelled("wwn", d.WWN), d.Tran, sectors,
			labelled("firmware", versions["disk "+d.Name]), how,
			labelled("member of", strings.Join(d.MemberOf, " and ")))
	}
	for _, a := range r.SoftwareRAID {
		var members []string
		for _, m := range a.Members {
			members = append(members, strings.TrimPrefix(m.Name, "/dev/")+" "+strings.ReplaceAll(m.State, ",", " "))
		}
		size, lost := "", ""
		if a.Size > 0 {
			size = rootdevice.HumanSize(a.Size)
		}
		if a.Degraded > 0 {
			lost = fmt.Sprintf("%d of %d missing", a.Degraded, a.Devices)
		}
		row("raid "+cmp.Or(a.Name, a.Volume, a.UUID), "level "+a.Level, size, a.State, lost,
			labelled("name", a.Volume), labelled("uuid", a.UUID), strings.Join(members, ", "))
	}
	for _, n := range i.Interfaces {
		link := "no carrier"
		if n.HasCarrier {
			link = "carrier"
		}
		if n.SpeedMbps != nil {
			link = fmt.Sprintf("%d Mbit/s", *n.SpeedMbps)
		}
		at := ""
		if s, ok := r.LLDP[n.Name]; ok {
			at = "at port " + s.PortID + " of " + cmp.Or(s.SystemName, s.ChassisID)
		}
		row("interface "+n.Name, n.MACAddress, link, deref(n.IPv4Address), deref(n.IPv6Address), deref(n.Driver),
			labelled("pci", deref(n.PCIAddress)), labelled("firmware", versions["nic "+n.Name]), at)
	}
	for _, a := range r.Accelerators {
		row(strings.ToLower(a.Type), a.VendorID+":"+a.DeviceID, labelled("pci", a.PCIAddress), deref(a.Driver))
	}
	if i.BMCAddress != nil || i.BMCV6Address != nil {
		row("bmc", deref(i.BMCAddress), deref(i.BMCV6Address), deref(i.BMCMAC), labelled("firmware", versions["bmc "]))
	}
	return t.Flush()
}

func secureBoot(b inventory.Boot) string {
	switch {
	case b.SecureBoot == nil:
		return ""
	case *b.SecureBoot:
		return "Secure Boot on"
	case b.SetupMode != nil && *b.SetupMode:
		return "Secure Boot off, in setup mode"
	}
	return "Secure Boot off"
}

func labelled(label, value string) string {
	if value == "" {
		return ""
	}
	return label + " " + value
}

func suffixed(value, suffix string) string {
	if value == "" {
		return ""
	}
	return value + suffix
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
