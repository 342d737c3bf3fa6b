package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"text/tabwriter"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/linux"
	"github.com/ingot-metal/ingot/agent/step"
)

func printSteps(w io.Writer, asJSON bool) error {
	m, err := step.Describe(agent.Steps(linux.Machine{}, nil))
	if err != nil {
		return err
	}
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(m)
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "INTERFACE\tSTEP\tPRIORITIES\tABORTABLE\tARGUMENTS")
	for _, s := range m.Steps {
		var args []string
		for _, a := range s.Args {
			name := a.Name
			if a.Required {
				name += "*"
			}
			args = append(args, name)
		}
		p, err := json.Marshal(s.Priority)
		if err != nil {
			return err
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%v\t%s\n", s.Interface, s.Name, strings.Trim(string(p), "{}"), s.Abortable, strings.Join(args, " "))
	}
	return t.Flush()
}

func printInventory(ctx context.Context, stdout, stderr io.Writer, asJSON bool) error {
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	r, err := inventory.Collect(ctx, linux.Machine{}, inventory.Options{Log: log})
	if err != nil {
		return err
	}
	if asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	i := r.Inventory
	t := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
	row := func(what, format string, args ...any) { fmt.Fprintf(t, what+"\t"+format+"\n", args...) }
	row("system", "%s %s, serial %s", i.SystemVendor.Manufacturer, i.SystemVendor.ProductName, or(i.SystemVendor.SerialNumber))
	row("firmware", "%s %s (%s), booted by %s", i.SystemVendor.Firmware.Vendor, i.SystemVendor.Firmware.Version, i.SystemVendor.Firmware.BuildDate, i.Boot.CurrentBootMode)
	row("cpu", "%s, %d sockets, %d threads, %s MHz, %s", i.CPU.ModelName, i.CPU.SocketCount, i.CPU.Count, i.CPU.Frequency, i.CPU.Architecture)
	row("memory", "%d MiB installed, %d MiB usable", i.Memory.PhysicalMB, i.Memory.Total>>20)
	for _, d := range i.Disks {
		row("disk", "%s %.1f GB %s, serial %s, wwn %s, %s", d.Name, float64(d.Size)/1e9, d.Model, or(d.Serial), or(d.WWN), or(d.Tran))
	}
	for _, n := range i.Interfaces {
		link := "no carrier"
		if n.HasCarrier {
			link = "up"
		}
		row("interface", "%s %s %s %s %s %s", n.Name, n.MACAddress, link, deref(n.IPv4Address), deref(n.Driver), deref(n.PCIAddress))
	}
	row("bmc", "%s %s", deref(i.BMCAddress), deref(i.BMCMAC))
	return t.Flush()
}

func or(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func deref(s *string) string {
	if s == nil {
		return "-"
	}
	return *s
}
