package inventory

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/agent/inventory/smbios"
	"github.com/jaypipes/ghw"
	"github.com/jaypipes/ghw/pkg/util"
)

// architectures maps Go's names to the kernel's (uname -m), which Ironic uses.
var architectures = map[string]string{"amd64": "x86_64", "arm64": "aarch64", "386": "i686", "riscv64": "riscv64",
	"ppc64le": "ppc64le"}

// ghwContext makes ghw read below root, run no programs and write no warnings to the console.
func ghwContext(root string, log *slog.Logger) context.Context {
	quiet := slog.New(debugOnly{log.Handler()})
	return ghw.WithLogger(quiet)(ghw.WithDisableTools()(ghw.WithChroot(root)(context.Background())))
}

// debugOnly lowers all records to Debug: most of ghw's warnings are about the missing udev.
type debugOnly struct{ slog.Handler }

func (d debugOnly) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

func (d debugOnly) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, r)
}

func processors(root string, log *slog.Logger) (CPU, error) {
	info, err := ghw.CPU(ghwContext(root, log))
	if err != nil {
		return CPU{}, fmt.Errorf("read the processors: %w", err)
	}
	c := CPU{Architecture: architectures[runtime.GOARCH], Count: int(info.TotalHardwareThreads), Flags: []string{},
		CPUs: []Socket{}}
	for _, p := range info.Processors {
		c.CPUs = append(c.CPUs,
			Socket{ID: p.ID, ModelName: p.Model, Count: int(p.TotalHardwareThreads), Cores: int(p.TotalCores),
				Architecture: c.Architecture})
		if c.ModelName == "" {
			c.ModelName, c.Flags = p.Model, append(c.Flags, p.Capabilities...)
		}
	}
	c.SocketCount = len(c.CPUs)
	c.Frequency = frequency(root)
	if c.Count == 0 {
		return c, fmt.Errorf("read the processors: %s lists none", filepath.Join(root, "sys/devices/system/cpu"))
	}
	return c, nil
}

// frequency is the maximum of the first processor, or its current frequency if it can't be scaled; MHz with four
// decimals, as lscpu prints it.
func frequency(root string) string {
	if khz, err := strconv.ParseFloat(read(root, "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"),
		64); err == nil {
		return strconv.FormatFloat(khz/1000, 'f', 4, 64)
	}
	for _, l := range strings.Split(read(root, "proc/cpuinfo"), "\n") {
		if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == "cpu MHz" {
			if mhz, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil {
				return strconv.FormatFloat(mhz, 'f', 4, 64)
			}
		}
	}
	return ""
}

func memory(root string, log *slog.Logger) (Memory, error) {
	info, err := ghw.Memory(ghwContext(root, log))
	if err != nil {
		return Memory{}, fmt.Errorf("read the memory: %w", err)
	}
	m := Memory{Total: uint64(max(info.TotalUsableBytes, 0)), PhysicalMB: uint64(max(info.TotalPhysicalBytes, 0)) >> 20}
	// SMBIOS describes the slots exactly; ghw's count of memory blocks leaves out memory that the firmware reserves.
	if tables, err := dmiTables(root); err == nil {
		if mb := smbios.InstalledMB(tables); mb > 0 {
			m.PhysicalMB = mb
		}
	}
	return m, nil
}

// systemVendor reads the machine's maker; from the device tree if there is no SMBIOS.
func systemVendor(root string, log *slog.Logger) (SystemVendor, error) {
	ctx := ghwContext(root, log)
	product, err := ghw.Product(ctx)
	if err != nil {
		return SystemVendor{}, fmt.Errorf("read the product's name: %w", err)
	}
	bios, err := ghw.BIOS(ctx)
	if err != nil {
		return SystemVendor{}, fmt.Errorf("read the BIOS's version: %w", err)
	}
	return SystemVendor{ProductName: known(product.Name), SerialNumber: known(product.SerialNumber),
		Manufacturer: known(product.Vendor),
		Firmware: Firmware{Vendor: known(bios.Vendor), Version: known(bios.Version),
			BuildDate: known(bios.Date)}}, nil
}

// known returns a text of ghw; empty for an unknown value.
func known(s string) string {
	if s == util.UNKNOWN {
		return ""
	}
	return s
}
