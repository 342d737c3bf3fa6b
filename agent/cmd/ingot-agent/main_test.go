package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/disk/raid"
	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/step"
)

func TestRun(t *testing.T) {
	for _, c := range []struct {
		args   []string
		stdout string
		stderr string
		fail   bool
	}{
		{[]string{"ingot-agent", "version"}, "dev\n", "", false},
		{[]string{"ingot-agent", "--version"}, "ingot-agent dev\n", "", false},
		{[]string{"ingot-agent", "steps"}, "write_image", "", false},
		{[]string{"ingot-agent", "inventory"}, "memory", "", false},
		{[]string{"ingot-agent", "inventory", "--lldp", "1ms"}, "memory", "", false},
		{[]string{"ingot-agent", "inventory", "all"}, "", "", true},
		{[]string{"ingot-agent", "inventory", "--capture", filepath.Join(t.TempDir(), "no", "such", "folder.tar")}, "",
			"", true},
		{[]string{"ingot-agent", "dance"}, "", "usage", true},
		{[]string{"ingot-agent", "steps", "--yaml"}, "", "not defined", true},
		{[]string{"/sbin/modprobe", "-q", "--", "no-such-module"}, "", "", false},
	} {
		var out, errs bytes.Buffer
		err := run(t.Context(), c.args, &out, &errs)
		if (err != nil) != c.fail || !strings.Contains(out.String(), c.stdout) ||
			!strings.Contains(errs.String(), c.stderr) {
			t.Errorf("run(%v) = %v\nstdout: %s\nstderr: %s", c.args, err, &out, &errs)
		}
	}
	var out, errs bytes.Buffer
	if err := run(t.Context(), []string{"ingot-agent"}, &out, &errs); !errors.Is(err, flag.ErrHelp) ||
		!strings.Contains(errs.String(), "usage") {
		t.Errorf("no command: %v, %s", err, &errs)
	}
}

func TestStepsJSON(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"ingot-agent", "steps", "--json"}, &out, &out); err != nil {
		t.Fatal(err)
	}
	var m step.Manifest
	if err := json.Unmarshal(out.Bytes(), &m); err != nil || len(m.Digest) != 64 || len(m.Steps) < 5 ||
		m.Steps[0].Interface == "" {
		t.Errorf("manifest %+v, %v", m, err)
	}
}

// TestCapture holds that the file is an archive of the files named; what only root may read may be missing.
func TestCapture(t *testing.T) {
	file := filepath.Join(t.TempDir(), "machine.tar.gz")
	var out, errs bytes.Buffer
	if err := run(t.Context(), []string{"ingot-agent", "inventory", "--capture", file}, &out, &errs); err != nil &&
		!strings.Contains(err.Error(), "only root") {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names[h.Name] = true
	}
	if !names["proc/cpuinfo"] || !names["proc/meminfo"] || out.Len() > 0 {
		t.Errorf("captured %v, printed %q", names, &out)
	}
}

func TestInventoryJSON(t *testing.T) {
	var out, errs bytes.Buffer
	if err := run(t.Context(), []string{"ingot-agent", "inventory", "--json"}, &out, &errs); err != nil {
		t.Fatal(err)
	}
	var r struct {
		Inventory struct {
			CPU struct {
				Count int `json:"count"`
			} `json:"cpu"`
		} `json:"inventory"`
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.Inventory.CPU.Count == 0 {
		t.Errorf("inventory of this machine: %v, %s", err, &out)
	}
}

// The table names arrays with their members, and disks that are members.
func TestInventoryTable(t *testing.T) {
	r := &inventory.Report{
		SoftwareRAID: []raid.Known{
			{Name: "/dev/md127", Volume: "box:root", UUID: "u-1", Level: "1", Size: 4 << 30, State: "active",
				Devices: 2, Degraded: 1, Members: []raid.Part{{Name: "/dev/sda2", State: "in_sync,write_mostly"},
					{Name: "/dev/sdb2", State: "stale"}}},
			{Level: "5", UUID: "u-2", State: raid.NotStarted}}}
	r.Inventory.Disks = []disk.Disk{
		{Name: "/dev/sda", Size: 5 << 30, LogicalSectors: 512, PhysicalSectors: 512, MemberOf: []string{"u-1"}}}
	var out bytes.Buffer
	if err := table(&out, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"raid /dev/md127 level 1, 4.00 GiB, active, 1 of 2 missing, name box:root, uuid u-1, sda2 in_sync write_mostly, sdb2 stale\n",
		"raid u-2 level 5, not started, uuid u-2\n", "disk /dev/sda 5.00 GiB, sectors of 512, member of u-1\n"} {
		got := ""
		for line := range strings.Lines(out.String()) {
			got += strings.Join(strings.Fields(line), " ") + "\n"
		}
		if !strings.Contains(got, want) {
			t.Errorf("the table has no %q:\n%s", want, &out)
		}
	}
}

// TestSiteSteps: a site's steps stand in the table, and change its digest; one that is broken lets the command fail,
// and so the build of a ramdisk with it.
func TestSiteSteps(t *testing.T) {
	folder := t.TempDir()
	dir := filepath.Join(folder, "flash")
	table := func() (step.Manifest, error) {
		var out bytes.Buffer
		err := run(t.Context(), []string{"ingot-agent", "steps", "--json", "--site", folder}, &out, &out)
		var m step.Manifest
		if err == nil {
			err = json.Unmarshal(out.Bytes(), &m)
		}
		return m, err
	}
	without, err := table()
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("run", "#!/bin/sh\n")
	write("step.json", `{"interface":"firmware","step":"flash","run":"run","priority":{"clean":30}}`)
	with, err := table()
	if err != nil {
		t.Fatal(err)
	}
	s, ok := step.Find(with.Steps, "firmware", "flash")
	if !ok || s.Priority["clean"] != 30 || s.Timeout != time.Hour || with.Digest == without.Digest ||
		len(with.Steps) != len(without.Steps)+1 {
		t.Errorf("the table has %+v, digest %s after %s", s, with.Digest, without.Digest)
	}
	write("step.json", `{"interface":"deploy","step":"write_image","run":"run"}`)
	if _, err := table(); err == nil || !strings.Contains(err.Error(), "deploy.write_image is in the table twice") {
		t.Errorf("a step in the place of the agent's own: %v", err)
	}
	write("step.json", `{}`)
	if _, err := table(); err == nil || !strings.Contains(err.Error(), "flash/step.json") {
		t.Errorf("a broken step: %v", err)
	}
}
