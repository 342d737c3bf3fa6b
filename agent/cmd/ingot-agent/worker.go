package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/ipa"
	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/agent/machine/lldp"
	"github.com/ingot-metal/ingot/agent/machine/mdns"
	"github.com/ingot-metal/ingot/agent/machine/netup"
	"github.com/ingot-metal/ingot/agent/rescue"
	"github.com/ingot-metal/ingot/agent/step/site"
	"github.com/ingot-metal/ingot/initramfs/pid1"
	protolldp "github.com/ingot-metal/ingot/proto/lldp"
	"github.com/ingot-metal/ingot/proto/netdata"
	"github.com/ingot-metal/ingot/proto/segment"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// logFiles are the agent's, oldest first.
var logFiles = []string{pid1.LogFile + ".1", pid1.LogFile}

// builtCA is a CA certificate built into the ramdisk; it takes precedence over the fingerprint in the boot parameters.
// Under Ironic it is the CA of Ironic's API.
const builtCA = "/etc/ingot/ca.pem"

// worker runs the agent. Status lines go to stdout, the log goes to stderr: the first process distributes them.
func worker(ctx context.Context, stdout, stderr io.Writer) error {
	limitMemory()
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return fmt.Errorf("read the boot parameters: %w", err)
	}
	params, err := os.ReadFile(segment.Params)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the boot parameters: %w", err)
	}
	cfg, err := agent.ParseCmdline(string(cmdline) + " " + string(params))
	if err != nil {
		return fmt.Errorf("boot parameters: %w", err)
	}
	id, err := inventory.Identify("/")
	if err != nil {
		return err
	}
	ca, err := readCA(builtCA)
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if cfg.Debug {
		level = slog.LevelDebug
	}
	handler := slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})
	status := agent.NewStatus(stdout)
	m := linux.Machine{Devices: pid1.DevicesFile, Loading: pid1.LoadingFile}
	restarts, _ := strconv.Atoi(os.Getenv(pid1.EnvRestarts))
	under, ironic, err := ipa.Parse(string(cmdline) + " " + string(params))
	if err != nil {
		return fmt.Errorf("boot parameters: %w", err)
	}
	if ironic {
		cfg.Conductors = under.Hosts()
	} else if cfg.Validate() != nil {
		// Exiting would only cause restarts.
		status.Line("%v; waiting", cfg.Validate())
		<-ctx.Done()
		return nil
	}
	data, err := readNetworkData(segment.Network)
	if err != nil {
		status.Line("%v; waiting", err) // not DHCP instead: a site that gives network data may not allow it
		<-ctx.Done()
		return nil
	}
	network := netup.New(netup.Config{
		Conductors: cfg.Conductors, BootIF: cfg.BootIF, GUID: id.UUID, Log: slog.New(handler),
		SetHostname: m.SetHostname,
		Status:      func(s string) { status.Line("%s", s) }, Bonds: cfg.Bonds, VLANs: cfg.VLANs,
		Data: data,
	})
	ears := lldp.New(m, links, slog.New(handler))
	ears.Heard = func(link string, n protolldp.Neighbour) {
		var ids []int
		for _, v := range n.VLANs {
			ids = append(ids, v.ID)
		}
		network.Heard(link, ids)
	}
	steps, err := withSite(agent.Steps(heedful{m, ears}, cfg.BootIF), site.Folder, m, slog.New(handler))
	if err != nil {
		// The rest of the table is usable; the conductor reports the difference from the ramdisk's manifest.
		slog.New(handler).Error("steps of the site are missing", "err", err)
	}
	var a interface {
		Run(ctx context.Context) error
	}
	if ironic {
		a, err = ipa.New(ipa.Options{
			Config: under, Version: version, BootID: id.BootID, MACs: macs, Steps: steps, System: m, Network: network,
			Rescue: rescue.New(m, "", slog.New(handler)),
			Logs:   func() ([]byte, error) { return agent.BundleLogs(m, logFiles...) },
			Roots:  poolOf(ca), State: ipa.StateFile, Reason: os.Getenv(pid1.EnvReason), Log: slog.New(handler),
			Find: mdns.FindURL, Status: status.Line, Progress: status.Progress,
		})
	} else {
		a, err = agent.New(agent.Options{
			Config: cfg, Version: version, Identity: id, MACs: macs, Steps: steps, System: m, Network: network,
			Shell: m, BuiltCA: ca, Log: handler, Status: status, State: agent.StateFile, LogFiles: logFiles,
			Restarts: restarts, Reason: os.Getenv(pid1.EnvReason),
		})
	}
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return network.Run(ctx) })
	group.Go(func() error { return ears.Run(ctx) })
	group.Go(func() error { return a.Run(ctx) })
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// readNetworkData returns the machine's network data; nil if its part of the ramdisk has none.
func readNetworkData(file string) (*netdata.Data, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the network data: %w", err)
	}
	return netdata.Parse(text)
}

// macs returns the addresses of the present interfaces.
func macs() []string {
	id, err := inventory.Identify("/")
	if err != nil {
		return nil
	}
	return id.MACs
}

// limitMemory limits the garbage of the Go runtime, which would take memory from a small machine's page cache.
func limitMemory() {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		total := int64(si.Totalram) * int64(si.Unit)
		debug.SetMemoryLimit(max(total/4, 64<<20))
	}
}

// poolOf is the pool with one certificate; nil without one.
func poolOf(ca *x509.Certificate) *x509.CertPool {
	if ca == nil {
		return nil
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	return pool
}

func readCA(file string) (*x509.Certificate, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the CA of the ramdisk: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("read the CA of the ramdisk: %s is not PEM", file)
	}
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the CA of the ramdisk: %w", err)
	}
	return ca, nil
}
