package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ingot-metal/ingot/initramfs/build"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/lab"
)

// memory of a machine, in MiB.
const memory = 512

// stateLimit is for one state. An emulator on a busy machine boots slowly.
const stateLimit = 15 * time.Minute

// row is a line of the table.
type row struct {
	what, firmware   string
	heartbeat, write time.Duration
}

// files puts kernel, ramdisk and images where Ironic and the machines find them.
func (d *demo) files() error {
	for from, to := range map[string]string{
		filepath.Join(d.ramdisk, build.KernelFile):    "kernel",
		filepath.Join(d.ramdisk, build.InitramfsFile): "ramdisk", d.image.Raw: "disk.raw",
		d.image.Qcow2: "disk.qcow2"} {
		if err := os.Link(from, d.path("http/"+to)); err != nil {
			b, rerr := os.ReadFile(from) // another file system
			if rerr == nil {
				rerr = os.WriteFile(d.path("http/"+to), b, 0o644)
			}
			if rerr != nil {
				return rerr
			}
		}
	}
	d.sums = map[string]string{"raw": d.image.File(d.image.Raw).SHA256, "qcow2": d.image.File(d.image.Qcow2).SHA256}
	// The root file system of the same image, as diskimage-builder makes them.
	part := d.path("http/disk.partition")
	if err := kit.CutPartition(d.image.Raw, d.image.Raw, 512, part); err != nil {
		return fmt.Errorf("make a partition image (with Debian's shim-signed and grub-efi-amd64-signed): %w", err)
	}
	f, err := os.Open(part)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return err
	}
	d.sums["partition"] = hex.EncodeToString(sum.Sum(nil))
	return nil
}

// enrol makes a machine's node, which gets available.
func (d *demo) enrol(ctx context.Context, spec lab.NodeSpec) (uuid string, err error) {
	m := d.rack.Node(spec.Name)
	d.say("%s: enrolling. Ironic reaches the controller by IPMI.", spec.Name)
	info := map[string]any{"ipmi_address": m.BMCAddress, "ipmi_port": m.BMCPort, "ipmi_username": m.User,
		"ipmi_password": m.Password}
	for _, k := range []string{"deploy", "rescue"} {
		info[k+"_kernel"], info[k+"_ramdisk"] = d.served("kernel"), d.served("ramdisk")
	}
	var n node
	if err := d.ask(ctx, http.MethodPost, "/v1/nodes", map[string]any{"name": spec.Name, "driver": "ipmi",
		"driver_info": info, "properties": map[string]any{"cpu_arch": "x86_64",
			"capabilities": "boot_mode:" + string(spec.Firmware)}}, &n); err != nil {
		return "", err
	}
	if err := d.ask(ctx, http.MethodPost, "/v1/ports", map[string]any{"node_uuid": n.UUID, "address": m.MAC},
		nil); err != nil {
		return "", err
	}
	if err := d.provision(ctx, n.UUID, map[string]any{"target": "manage"}, "manageable"); err != nil {
		return "", err
	}
	d.say("%s: cleaning.", spec.Name)
	return n.UUID, d.boots(ctx, n.UUID, m, "clean", map[string]any{"target": "provide"}, "available")
}

// served is the address of a file for machines.
func (d *demo) served(name string) string { return "http://" + d.rack.Host.String() + ":8080/" + name }

// life takes a machine through everything.
func (d *demo) life(ctx context.Context, spec lab.NodeSpec) error {
	m := d.rack.Node(spec.Name)
	uuid, err := d.enrol(ctx, spec)
	if err != nil {
		return err
	}
	formats := []string{"raw", "qcow2"}
	if spec.Firmware == lab.UEFI {
		formats = append(formats, "partition")
	}
	for _, format := range formats {
		if err := d.deploy(ctx, uuid, m, format); err != nil {
			return fmt.Errorf("deploy %s: %w", format, err)
		}
		if format == "raw" {
			d.say("%s: rescuing.", spec.Name)
			if err := d.rescue(ctx, uuid, m); err != nil {
				return err
			}
		}
		d.say("%s: deleting the instance, which cleans the machine.", spec.Name)
		if err := d.boots(ctx, uuid, m, "clean", map[string]any{"target": "deleted"}, "available"); err != nil {
			return err
		}
	}
	return d.ask(ctx, http.MethodDelete, "/v1/nodes/"+uuid, nil, nil)
}

// deploy writes an image with a config drive, and waits for the login of the system.
func (d *demo) deploy(ctx context.Context, uuid string, m *lab.Machine, format string) error {
	host := m.Spec.Name + "-" + format
	info := map[string]any{"image_source": d.served("disk." + format), "image_os_hash_algo": "sha256",
		"image_os_hash_value": d.sums[format], "image_disk_format": format}
	if format == "partition" {
		d.say("%s: deploying a partition image with a config drive.", m.Spec.Name)
		info["image_disk_format"], info["image_type"], info["root_gb"], info["swap_mb"] = "raw", "partition", 4, 64
	} else {
		d.say("%s: deploying a whole-disk %s image with a config drive.", m.Spec.Name, format)
	}
	patch := []map[string]any{{"op": "add", "path": "/instance_info", "value": info}}
	if err := d.ask(ctx, http.MethodPatch, "/v1/nodes/"+uuid, patch, nil); err != nil {
		return err
	}
	from := m.ConsoleSize()
	if err := d.boots(ctx, uuid, m, "deploy "+format, map[string]any{"target": "active",
		"configdrive": map[string]any{"meta_data": map[string]any{"uuid": uuid, "hostname": host}}},
		"active"); err != nil {
		return err
	}
	login, stop := context.WithTimeout(ctx, stateLimit)
	defer stop()
	if err := m.WaitConsole(login, from, host+" login:"); err != nil {
		return fmt.Errorf("the system did not ask for a login as %s: %w", host, err)
	}
	fmt.Fprintf(d.out, "  %s login:\n", host)
	return nil
}

// rescue logs in to the machine in rescue, and goes back.
func (d *demo) rescue(ctx context.Context, uuid string, m *lab.Machine) error {
	const password = "only for the demo"
	if err := d.boots(ctx, uuid, m, "rescue", map[string]any{"target": "rescue", "rescue_password": password},
		"rescue"); err != nil {
		return err
	}
	leases, err := os.ReadFile(d.path("leases"))
	if err != nil {
		return err
	}
	host := ""
	for line := range strings.Lines(string(leases)) {
		if f := strings.Fields(line); len(f) > 2 && strings.EqualFold(f[1], m.MAC) {
			host = f[2]
		}
	}
	conn, err := d.rack.DialContext(ctx, "tcp", net.JoinHostPort(host, "22"))
	if err != nil {
		return fmt.Errorf("log in to the machine in rescue: %w", err)
	}
	c, chans, reqs, err := ssh.NewClientConn(conn, host, &ssh.ClientConfig{User: "rescue",
		Auth:            []ssh.AuthMethod{ssh.Password(password)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey()}) //nolint:gosec Ironic does not know the key
	if err != nil {
		return fmt.Errorf("log in to the machine in rescue: %w", err)
	}
	client := ssh.NewClient(c, chans, reqs)
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		return fmt.Errorf("log in to the machine in rescue: %w", err)
	}
	out, err := session.Output("cat /proc/meminfo")
	if err != nil || !strings.Contains(string(out), "MemTotal") {
		return fmt.Errorf("run a command in rescue: %q, %w", out, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	fmt.Fprintf(d.out, "  ssh rescue@%s cat /proc/meminfo: %s\n", host, first)
	return d.provision(ctx, uuid, map[string]any{"target": "unrescue"}, "active")
}

// provision asks for a state and waits for it.
func (d *demo) provision(ctx context.Context, uuid string, body map[string]any, want string) error {
	return d.watch(ctx, uuid, body, want, func(node) {})
}

func (d *demo) watch(ctx context.Context, uuid string, body map[string]any, want string, look func(node)) error {
	ctx, stop := context.WithTimeoutCause(ctx, stateLimit, errors.New("it took too long"))
	defer stop()
	if err := d.ask(ctx, http.MethodPut, "/v1/nodes/"+uuid+"/states/provision", body, nil); err != nil {
		return err
	}
	for {
		var n node
		if err := d.ask(ctx, http.MethodGet, "/v1/nodes/"+uuid, nil, &n); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("wait for %s: %w", want, context.Cause(ctx))
			}
			return err
		}
		look(n)
		switch {
		case n.State == want:
			return nil
		case strings.HasSuffix(n.State, "failed") || n.State == "error" || n.State == "enroll" && n.LastError != "":
			return fmt.Errorf("the node is %s: %s", n.State, n.LastError)
		}
		select {
		case <-time.After(250 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; the node is %s", want, context.Cause(ctx), n.State)
		}
	}
}

// boots asks for a state that boots the ramdisk, and measures until its first heartbeat, and the write of an image.
func (d *demo) boots(ctx context.Context, uuid string, m *lab.Machine, what string, body map[string]any,
	want string) error {
	begun := m.Starts()
	var on, beat, writing, wrote time.Time
	err := d.watch(ctx, uuid, body, want, func(n node) {
		now := time.Now()
		if on.IsZero() && m.Starts() > begun {
			on = now
		}
		if url, _ := n.Internal["agent_url"].(string); url != "" && beat.IsZero() && !on.IsZero() {
			beat = now
			fmt.Fprintf(d.out, "  %.1f s after power-on the agent is at %s\n", now.Sub(on).Seconds(), url)
		}
		if n.Step.Step == "write_image" && writing.IsZero() && !beat.IsZero() {
			writing = now
		}
		if !writing.IsZero() && wrote.IsZero() && n.Step.Step != "write_image" {
			wrote = now
		}
	})
	if err != nil {
		return err
	}
	r := row{what: what, firmware: string(m.Spec.Firmware), heartbeat: beat.Sub(on)}
	if !writing.IsZero() {
		r.write = wrote.Sub(writing)
	}
	d.rows = append(d.rows, r)
	return nil
}

// table prints what was measured, beside what Ironic's documentation has for its own ramdisk.
func (d *demo) table() error {
	info, err := os.Stat(filepath.Join(d.ramdisk, build.InitramfsFile))
	if err != nil {
		return err
	}
	kernel, err := os.Stat(filepath.Join(d.ramdisk, build.KernelFile))
	if err != nil {
		return err
	}
	fmt.Fprintln(d.out)
	t := tabwriter.NewWriter(d.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "WHAT\tFIRMWARE\tPOWER-ON TO HEARTBEAT\tWRITE_IMAGE")
	for _, r := range d.rows {
		write := "-"
		if r.write > 0 {
			write = fmt.Sprintf("%.1f s", r.write.Seconds())
		}
		fmt.Fprintf(t, "%s\t%s\t%.1f s\t%s\n", r.what, r.firmware, r.heartbeat.Seconds(), write)
	}
	fmt.Fprintln(t, "\t\t\t")
	fmt.Fprintln(t, "\tINGOT'S\tA STOCK RAMDISK\t")
	fmt.Fprintf(t, "kernel and ramdisk\t%.1f MB\t\t\n", float64(info.Size()+kernel.Size())/1e6)
	fmt.Fprintf(t, "RAM of the machine\t%d MiB\t3 GiB or more (Ironic's installation guide, hardware considerations)\t\n", memory)
	return t.Flush()
}
