package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/keystone"
)

// server is the name of the one that is asked for, and rescuePassword that of its rescue.
const (
	server         = "web"
	rescuePassword = "let-me-in"
)

// life asks OpenStack for a server and takes it through its life.
func (d *demo) life(ctx context.Context) error {
	d.say("What an administrator of the cloud prepares:")
	subnet := d.rack.Subnet
	first := strings.TrimSuffix(subnet.Addr().String(), "0")
	key := filepath.Join(d.dir, "key")
	make := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	if out, err := make.CombinedOutput(); err != nil {
		return fmt.Errorf("make a key: %w: %s", err, out)
	}
	for _, args := range [][]string{
		{"image", "create", d.image, "--file", d.disk, "--disk-format", "raw", "--container-format", "bare",
			"--public"},
		{"flavor", "create", "bm", "--ram", "1024", "--disk", "8", "--vcpus", "1", "--property",
			"resources:CUSTOM_BAREMETAL=1", "--property", "resources:VCPU=0", "--property", "resources:MEMORY_MB=0",
			"--property", "resources:DISK_GB=0"},
		{"network", "create", "tenant", "--provider-network-type", "flat", "--provider-physical-network", "physnet1"},
		{"subnet", "create", "tenant", "--network", "tenant", "--subnet-range", subnet.String(), "--no-dhcp",
			"--gateway", "none", "--allocation-pool", "start=" + first + "100,end=" + first + "149"},
		{"keypair", "create", "mine", "--public-key", key + ".pub"},
	} {
		if _, err := d.openstack(ctx, args...); err != nil {
			return err
		}
	}
	if err := d.until(ctx, "Placement offers the machine", func() (bool, error) { return d.offered(ctx) }); err != nil {
		return err
	}

	d.say("What a user asks for:")
	begun := time.Now()
	if _, err := d.openstack(ctx, "server", "create", server, "--flavor", "bm", "--image", d.image, "--network",
		"tenant", "--key-name", "mine"); err != nil {
		return err
	}
	at, err := d.becomes(ctx, "ACTIVE")
	if err != nil {
		return err
	}
	d.took("ACTIVE", begun)
	if err := d.login(ctx, at, key, begun); err != nil {
		return err
	}
	for _, c := range []struct {
		status string
		args   []string
		login  bool
	}{
		{"SHUTOFF", []string{"server", "stop", server}, false},
		{"ACTIVE", []string{"server", "start", server}, true},
		{"ACTIVE", []string{"server", "reboot", "--hard", server}, true},
		{"RESCUE", []string{"server", "rescue", "--password", rescuePassword, server}, false},
		{"ACTIVE", []string{"server", "unrescue", server}, true},
		{"ACTIVE", []string{"server", "rebuild", server}, true},
	} {
		begun := time.Now()
		if _, err := d.openstack(ctx, c.args...); err != nil {
			return err
		}
		if c.args[1] == "rebuild" {
			if err := d.killOwner(ctx); err != nil {
				return err
			}
		}
		if _, err := d.becomes(ctx, c.status); err != nil {
			return err
		}
		d.took(c.status, begun)
		if c.login {
			if err := d.login(ctx, at, key, begun); err != nil {
				return err
			}
		}
	}
	begun = time.Now()
	if _, err := d.openstack(ctx, "server", "delete", "--wait", server); err != nil {
		return err
	}
	if err := d.until(ctx, "the node is clean", func() (bool, error) {
		n, err := d.api.Node(ctx, machine)
		if err == nil && strings.HasSuffix(string(n.ProvisionState), "failed") {
			err = fmt.Errorf("the node is %s: %s", n.ProvisionState, n.LastError)
		}
		return err == nil && n.ProvisionState == "available", err
	}); err != nil {
		return err
	}
	d.took("gone, and the machine is clean and available", begun)
	return nil
}

// offered reports whether Placement has a free machine. The client's part for Placement is not in Debian's package.
func (d *demo) offered(ctx context.Context) (bool, error) {
	token, err := keystone.Token(ctx, d.cloud.Keystone.URL, "admin", "admin", "admin")
	if err != nil {
		return false, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		d.cloud.URLs["placement"]+"/allocation_candidates?resources=CUSTOM_BAREMETAL:1", nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("X-Auth-Token", token)
	req.Header.Set("OpenStack-API-Version", "placement 1.38")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	var out struct {
		Requests []any `json:"allocation_requests"`
	}
	err = json.NewDecoder(resp.Body).Decode(&out)
	return len(out.Requests) > 0, err
}

// killOwner kills the conductor that owns the node while the agent writes the image, which comes from that conductor.
// The other one takes both over.
func (d *demo) killOwner(ctx context.Context) error {
	var owner string
	for end := time.Now().Add(most); owner == ""; {
		n, err := d.api.Node(ctx, machine)
		if err != nil {
			return err
		}
		if step, _ := n.DeployStep["step"].(string); n.ProvisionState == "wait call-back" && step == "write_image" {
			owner = string(n.Conductor)
		}
		if time.Now().After(end) {
			return fmt.Errorf("the image is not being written after %v; the node is %s", most, n.ProvisionState)
		}
		select {
		case <-time.After(100 * time.Millisecond): // a small image is written in a second
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	c := d.conductors[owner]
	if c == nil {
		return fmt.Errorf("the node belongs to %q, which is no conductor of this rack", owner)
	}
	d.say(fmt.Sprintf("%s, which owns the node, is killed while the image is written.", owner))
	return c.Kill()
}

// becomes waits for a status of the server, and returns its address.
func (d *demo) becomes(ctx context.Context, status string) (address string, err error) {
	err = d.until(ctx, "the server is "+status, func() (bool, error) {
		out, err := d.quiet(ctx, "server", "show", server, "-f", "json")
		if err != nil {
			return false, err
		}
		var now struct {
			Status    string
			Task      *string             `json:"OS-EXT-STS:task_state"`
			Addresses map[string][]string `json:"addresses"`
			Fault     any                 `json:"fault"`
		}
		if err := json.Unmarshal([]byte(out), &now); err != nil {
			return false, fmt.Errorf("read the server: %w", err)
		}
		if now.Status == "ERROR" && status != "ERROR" {
			return false, fmt.Errorf("the server is in ERROR: %v", now.Fault)
		}
		if list := now.Addresses["tenant"]; len(list) > 0 {
			address = list[0]
		}
		return now.Status == status && now.Task == nil, nil
	})
	return address, err
}

// login waits until the system lets the user in with the key, and shows that it has the name of the server. The tiny
// system has no sshd: it says its name on the console.
func (d *demo) login(ctx context.Context, at, key string, begun time.Time) error {
	if d.image == "tiny" {
		m := d.rack.Node(machine)
		wait, stop := context.WithTimeout(ctx, most)
		defer stop()
		if err := m.WaitConsole(wait, d.console, "host="+server); err != nil {
			return err
		}
		d.console = m.ConsoleSize()
		d.took("the system's name is on the console", begun)
		return nil
	}
	var last error
	err := d.until(ctx, "ssh", func() (bool, error) {
		cmd := d.rack.Command(ctx, "ssh", "-i", key, "-o", "StrictHostKeyChecking=no", "-o",
			"UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=5", "-o", "BatchMode=yes",
			d.user+"@"+at, "hostname; uptime -s")
		out, err := cmd.Output()
		if last = err; err != nil {
			return false, nil
		}
		name, up, _ := strings.Cut(string(out), "\n")
		if started, err := time.Parse(time.DateTime, strings.TrimSpace(up)); err == nil && started.Before(begun.Add(
			-time.Minute)) {
			return false, nil // the system of before is not yet down
		}
		if name != server {
			return false, fmt.Errorf("the system's name is %q", name)
		}
		return true, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	d.took(fmt.Sprintf("ssh %s@%s", d.user, at), begun)
	return nil
}

// openstack runs a command and shows it.
func (d *demo) openstack(ctx context.Context, args ...string) (string, error) {
	fmt.Fprintf(d.out, "$ openstack %s\n", strings.Join(args, " "))
	return d.quiet(ctx, args...)
}

// quiet runs a command of the openstack client, Debian's, as the administrator.
func (d *demo) quiet(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, debian.Python, append([]string{"/usr/bin/openstack"}, args...)...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "OS_") }),
		append(d.cloud.Environment("admin", "admin"), "PYTHONWARNINGS=ignore")...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("openstack %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// openrc writes a file with which a user's shell reaches this cloud.
func (d *demo) openrc() (string, error) {
	file := filepath.Join(filepath.Dir(pidFile), "openrc")
	var b strings.Builder
	for _, kv := range d.cloud.Environment("admin", "admin") {
		fmt.Fprintf(&b, "export %s\n", kv)
	}
	return file, os.WriteFile(file, []byte(b.String()), 0o600)
}
