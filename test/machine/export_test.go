package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
)

// initiator is the name of the only initiator, and its password.
const (
	initiator = "iqn.2026-01.dev.ingot:writer"
	password  = "one-time-secret-1"
)

// writes has QEMU's image program, with libiscsi, write an image to a target.
func writes(t *testing.T, image, port, name, secret string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "qemu-img", "convert", "-n", "--image-opts", "--target-image-opts",
		"driver=file,filename="+image, strings.Join([]string{"driver=iscsi", "transport=tcp",
			"portal=127.0.0.1:" + port,
			"target=iqn.2026-01.dev.ingot:disk", "lun=0", "user=writer", "password=" + secret,
			"initiator-name=" + name}, ",")).CombinedOutput()
	return string(out), err
}

// TestExportedDiskIsWritten: a disk that the agent exports is written over iSCSI by another program, and boots; one
// that no initiator may write is left without a partition table.
func TestExportedDiskIsWritten(t *testing.T) {
	kit.NeedPrograms(t, "qemu-system-x86_64", "qemu-img")
	tiny := made.Image(t, made.Tiny)
	lend := func(more map[string]any) node.PlanStep {
		args := map[string]any{"initiator_name": initiator, "initiator_address": "10.0.2.2", "chap_user": "writer",
			"chap_password": password, "window": 180, "quiet": 3}
		maps.Copy(args, more)
		b, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		return node.PlanStep{Interface: "deploy", Name: "export_disk", Args: b}
	}
	d := newDesk(t,
		plan("closed", node.PhaseDeploy, lend(map[string]any{"initiator_address": "10.0.2.99", "window": 30})),
		plan("open", node.PhaseDeploy, lend(nil), prepareBoot))
	d.keepGoing = true
	_, port, err := net.SplitHostPort(kit.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	target := kit.TempDisk(t, 8<<30)
	raw := tiny.Raw
	open := make(chan struct{})
	d.before = func(p node.Plan) {
		if p.ID == "open" {
			close(open)
		}
	}
	wrote := make(chan error, 1)
	go func() { wrote <- write(t, raw, port, open) }()
	vm := agentOf(t, made.RamdiskFull, d, "-netdev", "user,id=n0,hostfwd=tcp:127.0.0.1:"+port+"-:3260", "-device",
		"virtio-net-pci,netdev=n0,mac=52:54:00:aa:00:01,romfile=")
	vm.Disks = []string{target}
	console := kit.Boot(t, vm)
	if err := <-wrote; err != nil {
		t.Fatalf("%v\n%s", err, console)
	}
	if r := d.steps["closed"]["export_disk"]; r.Outcome != node.OutcomeFailed ||
		!strings.Contains(r.Error, "was not written within 30s") {
		t.Errorf("an export that no host reached: %+v", r)
	}
	var r struct {
		Received int64   `json:"bytes_received"`
		Seconds  float64 `json:"seconds"`
	}
	d.result("export_disk", &r)
	if r.Received < 8<<20 { // zeros are not transferred
		t.Errorf("%d bytes came", r.Received)
	}
	var done struct{ Committed bool }
	d.result("prepare_instance_boot", &done)
	t.Logf("%d bytes in %.1f s", r.Received, r.Seconds)
	if strings.Contains(console, password) {
		t.Error("the console has the password")
	}
	system := kit.Boot(t, kit.VM{Disks: []string{target}, Timeout: osLimit, Until: "INGOT-TINY", Args: nic()})
	if !strings.Contains(system, "INGOT-TINY") {
		t.Errorf("the written disk does not boot:\n%s", system)
	}
}

// write writes an image to the exported disk, as soon as it is there, once those have been refused who may not.
func write(t *testing.T, raw, port string, open <-chan struct{}) error {
	select {
	case <-open:
	case <-time.After(bootLimit):
		return errors.New("the disk was never exported")
	}
	end := time.Now().Add(bootLimit)
	for {
		out, err := writes(t, raw, port, initiator, "another-secret-2")
		if err == nil {
			return errors.New("an initiator with a wrong password wrote the disk")
		}
		if strings.Contains(strings.ToLower(out), "auth") {
			break // it answers
		}
		if time.Now().After(end) {
			return fmt.Errorf("log in with a wrong password: %s", out)
		}
		time.Sleep(time.Second)
	}
	if out, err := writes(t, raw, port, "iqn.2026-01.dev.ingot:other", password); err == nil {
		return fmt.Errorf("another initiator wrote the disk: %s", out)
	}
	if out, err := writes(t, raw, port, initiator, password); err != nil {
		return fmt.Errorf("write over iSCSI: %w: %s", err, out)
	}
	return nil
}
