package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/observe/trace"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/tools/lab"
)

const (
	name  = "bench-1"
	limit = 15 * time.Minute // for one deployment, or for a tear-down with cleaning
)

// The two ways.
const (
	ordinary = "ordinary"
	zero     = "zero-reboot"
)

// run measures all rounds.
func (b *bench) run(ctx context.Context) (r report, err error) {
	dir := filepath.Join(b.dir, "bench-deploy")
	if err := os.RemoveAll(dir); err != nil {
		return r, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return r, err
	}
	l, err := lab.Up(ctx, lab.Options{
		Name: fmt.Sprintf("bench-%d", os.Getpid()), Dir: filepath.Join(dir, "lab"), ProbeKernel: b.kernel,
		Log: slog.New(slog.DiscardHandler),
		Nodes: []lab.NodeSpec{{Name: name, Firmware: lab.Firmware(b.firmware), MemoryMiB: 1024,
			NICs: []lab.NICSpec{{Model: b.nic}}, Disks: []lab.DiskSpec{{SizeBytes: 8 << 30, Bus: b.bus}}}},
	})
	if err != nil {
		return r, err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, l.Down(last))
		if err != nil {
			err = fmt.Errorf("%w\nlogs: %s", err, dir)
		}
	}()
	b.machine, b.host = l.Node(name), l.Host.String()
	prefix := l.Subnet.Addr().String()
	prefix = prefix[:strings.LastIndexByte(prefix, '.')+1]
	conf, err := json.Marshal(map[string]any{ // JSON is YAML
		"data_dir": filepath.Join(dir, "data"), "hostname": "bench",
		"netboot": map[string]any{"dhcp": "server", "interface": "prov", "range_start": prefix + "50",
			"range_end": prefix + "99", "ramdisk_dir": b.ramdisk, "images_dir": b.images,
			"kernel_params": "quiet no_timer_check console=ttyS0,115200n8"},
		// Both ways end with the same sign of life, so that the traces show the system's boot.
		"deploy": map[string]any{"boot_timeout": "10m", "sign_of_life": []string{"dhcp"}},
	})
	if err != nil {
		return r, err
	}
	file := filepath.Join(dir, "ingotd.yaml")
	if err := os.WriteFile(file, conf, 0o600); err != nil {
		return r, err
	}
	if b.con, err = l.StartConductor(ctx, b.ingotd, file, "127.0.0.1:0", filepath.Join(dir, "ingotd.log")); err != nil {
		return r, err
	}
	api, err := client.New(b.con.URL(), nil)
	if err != nil {
		return r, err
	}
	api.Poll = 100 * time.Millisecond
	r = report{Image: b.image, Firmware: b.firmware, NIC: b.nic, Bus: b.bus, Rounds: b.rounds}
	if err := b.enrol(ctx, api); err != nil {
		return r, err
	}
	for i := range b.rounds {
		for _, way := range []string{ordinary, zero} {
			fmt.Fprintf(os.Stderr, "round %d of %d, %s: ", i+1, b.rounds, way)
			if err := b.prepare(ctx, api, way == zero); err != nil {
				return r, fmt.Errorf("make the machine ready for a deployment (%s): %w", way, err)
			}
			run, err := b.deploy(ctx, api, way)
			if err != nil {
				return r, fmt.Errorf("deployment (%s): %w", way, err)
			}
			fmt.Fprintf(os.Stderr, "%.1f s to the login prompt\n", run.Seconds)
			r.Runs = append(r.Runs, run)
		}
	}
	return r, nil
}

// enrol makes the machine a node that is available and off.
func (b *bench) enrol(ctx context.Context, api *client.Client) error {
	clean := true
	n, err := api.CreateNode(ctx, client.NewNode{Name: name, Driver: "ipmi", AutomatedClean: &clean,
		DriverInfo: map[string]any{"ipmi_address": b.machine.BMCAddress, "ipmi_username": b.machine.User,
			"ipmi_password": b.machine.Password},
		Properties: map[string]any{"capabilities": "boot_mode:" + b.firmware}})
	if err != nil {
		return err
	}
	if _, err := api.CreatePort(ctx, client.NewPort{NodeUUID: n.UUID, Address: b.machine.MAC}); err != nil {
		return err
	}
	return b.provision(ctx, api, client.ProvisionRequest{Target: "manage"}, "manageable")
}

func (b *bench) provision(ctx context.Context, api *client.Client, r client.ProvisionRequest, want string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := api.Provision(ctx, name, r); err != nil {
		return err
	}
	_, err := api.Wait(ctx, name, nil, want)
	return err
}

// prepare cleans the machine, and keeps its agent or turns it off.
func (b *bench) prepare(ctx context.Context, api *client.Client, keep bool) error {
	if _, err := api.UpdateNode(ctx, name,
		[]rest.Operation{{Op: "add", Path: "/driver_info/fast_track", Value: keep}}); err != nil {
		return err
	}
	n, err := api.Node(ctx, name)
	if err != nil {
		return err
	}
	target := "provide"
	if n.ProvisionState == "active" {
		target = "deleted"
	}
	if err := b.provision(ctx, api, client.ProvisionRequest{Target: target}, "available"); err != nil {
		return err
	}
	if b.machine.On() != keep {
		return fmt.Errorf("after cleaning the machine's power is %v, want %v", b.machine.On(), keep)
	}
	return nil
}

// run1 is one deployment.
type run1 struct {
	Way     string     `json:"way"`
	Seconds float64    `json:"seconds"` // from the request to the login prompt
	Starts  int        `json:"starts"`  // of the machine in that time, as the lab counts them
	Trace   rest.Trace `json:"trace"`
}

// deploy deploys the machine and waits for its login prompt.
func (b *bench) deploy(ctx context.Context, api *client.Client, way string) (run1, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out := run1{Way: way}
	info := map[string]any{"image_source": fmt.Sprintf("http://%s:8080/images/%s", b.host, b.file),
		"image_os_hash_algo": "sha256", "image_os_hash_value": b.sha256}
	if way == zero {
		info["boot_instance"] = "kexec"
	}
	if _, err := api.UpdateNode(ctx, name,
		[]rest.Operation{{Op: "add", Path: "/instance_info", Value: info}}); err != nil {
		return out, err
	}
	from, starts := b.machine.ConsoleSize(), b.machine.Starts()
	type seen struct {
		at  time.Time
		err error
	}
	prompt := make(chan seen, 1)
	go func() {
		err := b.machine.WaitConsole(ctx, from, "host login:")
		prompt <- seen{time.Now(), err}
	}()
	begin := time.Now()
	err := b.provision(ctx, api,
		client.ProvisionRequest{
			Target: "active",
			ConfigDrive: client.ConfigDrive{
				MetaData: map[string]any{"hostname": "host", "uuid": "2f6f4a4c-93a5-4a48-8e37-0a4bb1a8a7f5"}}},
		"active")
	if err != nil {
		cancel()
		<-prompt
		return out, err
	}
	s := <-prompt
	if s.err != nil {
		return out, fmt.Errorf("wait for the login prompt: %w", s.err)
	}
	out.Seconds, out.Starts = s.at.Sub(begin).Seconds(), b.machine.Starts()-starts
	tl, err := api.Timeline(ctx, name, "")
	if err != nil {
		return out, err
	}
	t := trace.Last(tl.Traces, "deploy")
	if t == nil {
		return out, errors.New("the deployment has no trace")
	}
	trace.Then(t, "OS boot, up to the login prompt", trace.OS, "", s.at)
	out.Trace = *t
	onConsole, err := b.startsOnConsole(from)
	if err != nil {
		return out, err
	}
	if t.FirmwareBoots != out.Starts || onConsole != out.Starts {
		return out, fmt.Errorf("the trace has %d boots through the firmware, the console %d, the lab %d",
			t.FirmwareBoots, onConsole, out.Starts)
	}
	if way == zero && (out.Starts != 0 || t.Kexecs != 1) {
		return out, fmt.Errorf(
			"the machine was started %d times, and %d times by kexec; see the node's history in the conductor's log",
			out.Starts, t.Kexecs)
	}
	return out, nil
}

// startsOnConsole counts the starts that the lab has noted on the machine's console after an offset.
func (b *bench) startsOnConsole(from int64) (int, error) {
	f, err := os.Open(b.machine.ConsoleLog)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return 0, err
	}
	raw, err := io.ReadAll(f)
	if err != nil {
		return 0, err
	}
	n := 0
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, "=== lab") &&
			(strings.Contains(line, ": power on") || strings.Contains(line, ": reset")) {
			n++
		}
	}
	return n, nil
}
