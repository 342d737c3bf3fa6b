package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/tools/lab"
)

// TestActiveMachineMoves: a machine that Ironic deployed runs on while Ingot takes it over, with the command of the
// how-to, and is deployed again by Ingot. It needs INGOT_FULL.
func TestActiveMachineMoves(t *testing.T) {
	if os.Getenv("INGOT_FULL") == "" {
		return
	}
	kit.NeedRoot(t)
	kit.NeedPrograms(t, "qemu-system-x86_64", "ip", "ipmitool", "dnsmasq", "qemu-img", "sfdisk", "debugfs", "e2fsck")
	ctx := t.Context()
	d := &demo{out: t.Output(), log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(d.nodes("bios"))
	var err error
	d.dir, err = os.MkdirTemp("", "ui-") // short: MariaDB's socket is in it
	must(err)
	must(os.Chmod(d.dir, 0o755))
	t.Cleanup(func() {
		if t.Failed() {
			d.tails(t)
		}
		if err := d.close(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(d.dir); err != nil {
			t.Error(err)
		}
	})
	must(d.up(ctx))
	spec := d.specs[0]
	m := d.rack.Node(spec.Name)
	id, err := d.enrol(ctx, spec)
	must(err)
	must(d.deploy(ctx, id, m, "raw"))
	login(t, m)
	boot, up := uptime(t, m)
	starts := m.Starts()

	secrets, conf := d.path("bmc.yaml"), d.path("ingotd.yaml")
	must(os.WriteFile(secrets, fmt.Appendf(nil, "%q: {ipmi_password: %q}\n", "*", m.Password), 0o600))
	network := strings.TrimSuffix(d.rack.Subnet.Addr().String(), "0")
	text, err := json.Marshal(map[string]any{ // JSON is YAML
		"data_dir": d.path("ingot"), "hostname": "ingot", "log_level": "debug",
		"netboot": map[string]any{"dhcp": d.rack.Status().Netboot, "interface": "prov", "ramdisk_dir": d.ramdisk,
			"images_dir": "", "kernel_params": labParams, "http_port": 8081, // the images of Ironic's are at 8080
			"range_start": network + "100", "range_end": network + "150"},
		"deploy": map[string]any{"boot_timeout": "5m"}, "power": map[string]any{"sync_interval": "10s"}})
	must(err)
	must(os.WriteFile(conf, text, 0o600))
	imports := func(want string) {
		t.Helper()
		cmd := d.rack.Command(ctx, made.Program(t, "ingot"), "import", "ironic", "--from",
			"http://"+d.rack.Host.String()+":6385", "--secrets", secrets, "--config", conf)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Fatalf("import, which should say %q: %v\n%s", want, err, out)
		}
	}
	imports("1 nodes taken over, 0 were here already")
	imports("0 nodes taken over, 1 were here already")
	for _, p := range d.running { // Ironic's, its database, and dnsmasq
		p.Stop()
	}
	conductor, err := d.rack.StartConductor(ctx, made.Program(t, "ingotd"), conf, "127.0.0.1:0", d.path("ingotd.log"))
	must(err)
	c, err := client.New(conductor.URL(), nil)
	must(err)
	n, err := c.Node(ctx, spec.Name)
	must(err)
	if n.UUID != id || n.ProvisionState != "active" || n.PowerState != "power on" || n.Maintenance {
		t.Errorf("the node came as %s, %s, %s, maintenance %v", n.UUID, n.ProvisionState, n.PowerState, n.Maintenance)
	}
	if device, err := c.BootDevice(ctx, id); err != nil || device.Device == "" { // its controller says so
		t.Errorf("the boot device: %v, %v", device, err)
	}
	stillUp, later := uptime(t, m)
	if stillUp != boot || later < up || m.Starts() != starts {
		t.Errorf("the machine was started again: boot %s after %d s, then %s after %d s; it was switched on %d times", boot,
			up, stillUp, later, m.Starts()-starts)
	}
	t.Logf("boot %s ran for %d s before the move, and for %d s after it", boot, up, later)

	from := m.ConsoleSize()
	must(c.Provision(ctx, id, client.ProvisionRequest{Target: "rebuild",
		ConfigDrive: client.ConfigDrive{MetaData: map[string]any{"uuid": id, "hostname": "moved"}}}))
	limited, stop := context.WithTimeout(ctx, stateLimit)
	defer stop()
	_, err = c.Wait(limited, id, nil, "active")
	must(err)
	must(m.WaitConsole(limited, from, "moved login:"))
	login(t, m)
	if again, _ := uptime(t, m); again == boot {
		t.Errorf("after the rebuild it is still boot %s", boot)
	}
}

// tails shows what helps to understand a failure.
func (d *demo) tails(t *testing.T) {
	for _, pattern := range []string{"*.log", "lab/*.log", "lab/*/*.log"} {
		files, err := filepath.Glob(d.path(pattern))
		if err != nil {
			t.Error(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			t.Logf("---- end of %s ---- (%v)\n%s", f, err, b[max(0, len(b)-5000):])
		}
	}
}

// typed types a line at the machine's console, and waits for an answer.
func typed(t *testing.T, m *lab.Machine, line, answer string) []string {
	t.Helper()
	from, want := m.ConsoleSize(), regexp.MustCompile(answer)
	a := m.Attach()
	defer a.Close()
	if _, err := io.WriteString(a, line+"\r"); err != nil {
		t.Fatal(err)
	}
	var got []string
	kit.Eventually(t, stateLimit, "the console answers "+line, func() bool {
		b, err := os.ReadFile(m.ConsoleLog)
		if err != nil {
			t.Fatal(err)
		}
		got = want.FindStringSubmatch(string(b[from:]))
		return got != nil
	})
	return got
}

// login logs in where the console asks for it.
func login(t *testing.T, m *lab.Machine) { t.Helper(); typed(t, m, "root", `# `) }

// uptime reads which start of the system this is, and how long it has run.
func uptime(t *testing.T, m *lab.Machine) (boot string, seconds int) {
	t.Helper()
	got := typed(t, m, "echo boot=$(cat /proc/sys/kernel/random/boot_id) up=$(cut -d. -f1 /proc/uptime).",
		`boot=([0-9a-f-]{36}) up=(\d+)\.`)
	seconds, err := strconv.Atoi(got[2])
	if err != nil {
		t.Fatal(err)
	}
	return got[1], seconds
}
