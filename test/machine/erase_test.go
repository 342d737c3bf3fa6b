package machine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/nbd"
)

const eraseSize = 24 << 20

// secret fills the disks before, and may not be on them afterwards.
const secret = "a customer's secret, "

// soiled makes a disk that is full of it.
func soiled(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	data := bytes.Repeat([]byte(secret), eraseSize/len(secret)+1)[:eraseSize]
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// liar is a disk that says that it zeroed, and keeps everything.
type liar struct{ *os.File }

func (l liar) Size() int64              { return eraseSize }
func (l liar) Punch(int64, int64) error { return nil }

// TestEraseInMachine erases disks on every controller that QEMU has, with small and large sectors, by every method that
// it supports, and then reads their backing files: no old content is left. One of them lies, and is detected.
func TestEraseInMachine(t *testing.T) {
	type drive struct {
		serial, device, methods string   // the requested methods
		by                      []string // those that may have been taken
		level                   string
		path                    string
	}
	const large = ",logical_block_size=4096,physical_block_size=4096"
	formats := []string{"nvme_format_crypto", "nvme_format_user_data"}
	drives := []*drive{
		{serial: "virtio-zeroes", device: "virtio-blk-pci", methods: `["write_zeroes"]`, by: []string{"write_zeroes"},
			level: "clear"},
		{serial: "virtio-zero4k", device: "virtio-blk-pci" + large, methods: `["write_zeroes"]`,
			by: []string{"write_zeroes"}, level: "clear"},
		{serial: "virtio-over4k", device: "virtio-blk-pci" + large, methods: `["overwrite"]`, by: []string{"overwrite"},
			level: "clear"},
		{serial: "virtio-discard", device: "virtio-blk-pci", methods: `["discard"]`, by: []string{"discard"},
			level: "none"},
		{serial: "sata-over", device: "ide-hd,bus=ide.0", methods: `["overwrite"]`, by: []string{"overwrite"},
			level: "clear"},
		{serial: "sata-trim", device: "ide-hd,bus=ide.1", methods: `["discard"]`, by: []string{"discard"},
			level: "none"},
		{serial: "sata-best", device: "ide-hd,bus=ide.2", methods: `[]`, by: []string{"write_zeroes", "overwrite"},
			level: "clear"},
		{serial: "scsi-same", device: "scsi-hd,bus=s.0", methods: `["write_zeroes"]`, by: []string{"write_zeroes"},
			level: "clear"},
		{serial: "scsi-same4k", device: "scsi-hd,bus=s.0" + large, methods: `["write_zeroes"]`,
			by: []string{"write_zeroes"}, level: "clear"},
		{serial: "scsi-unmap", device: "scsi-hd,bus=s.0", methods: `["discard"]`, by: []string{"discard"},
			level: "none"},
		{serial: "nvme-format", device: "nvme", methods: `[]`, by: formats, level: "purge"},
		{serial: "nvme-format4k", device: "nvme" + large, methods: `[]`, by: formats, level: "purge"},
		{serial: "nvme-zeroes", device: "nvme", methods: `["write_zeroes"]`, by: []string{"write_zeroes"},
			level: "clear"},
		{serial: "nvme-dsm", device: "nvme", methods: `["discard"]`, by: []string{"discard"}, level: "none"},
		{serial: "virtio-liar", device: "virtio-blk-pci", methods: `[]`},
	}
	args := []string{"-netdev", "user,id=n0", "-device", "e1000e,netdev=n0,mac=52:54:00:aa:00:01", "-device",
		"virtio-scsi-pci,id=s"}
	var methods []string
	for i, d := range drives {
		d.path = soiled(t)
		file := kit.Quote(d.path)
		if d.level == "" {
			f, err := os.OpenFile(d.path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			file = nbd.Serve(t, liar{f})
		}
		id := fmt.Sprint("d", i)
		args = append(args, "-drive", "if=none,format=raw,cache=unsafe,discard=unmap,id="+id+",file="+file, "-device",
			d.device+",drive="+id+",serial="+d.serial)
		if !slices.Contains(methods, d.methods) {
			methods = append(methods, d.methods)
		}
	}
	// One cleaning for each set of methods, with all other disks left alone.
	var plans []node.Plan
	for i, m := range methods {
		skip := []map[string]string{}
		for _, d := range drives {
			if d.methods != m {
				skip = append(skip, map[string]string{"serial": d.serial})
			}
		}
		a, err := json.Marshal(
			map[string]any{"skip_block_devices": skip, "methods": json.RawMessage(m), "verify_all": true})
		if err != nil {
			t.Fatal(err)
		}
		plans = append(plans,
			plan(fmt.Sprint("clean-", i), node.PhaseClean,
				node.PlanStep{Interface: "deploy", Name: "erase_devices", Args: a}))
	}
	d := newDesk(t, plans...)
	d.keepGoing = true
	console := kit.Boot(t, agentOf(t, made.RamdiskFull, d, args...))

	type report struct {
		Disk                          struct{ Serial string }
		Method, Level, Result, Answer string
		Error                         string
		Samples                       struct {
			Markers, Old, Read int
			Kept               []int64
			All                bool
		}
	}
	got := map[string]report{}
	for _, p := range plans {
		r := d.steps[p.ID]["erase_devices"]
		var said struct{ Erasures []report }
		if err := json.Unmarshal(r.Result, &said); err != nil {
			t.Errorf("%s: %+v: %v", p.ID, r, err)
		}
		lies := false
		for _, e := range said.Erasures {
			got[e.Disk.Serial] = e
			lies = lies || e.Disk.Serial == "virtio-liar"
		}
		if failed := r.Outcome != node.OutcomeDone; failed != lies || failed &&
			(!strings.Contains(r.Error, "virtio-liar") || !strings.Contains(r.Error, "still hold")) {
			t.Errorf("%s %s: %s: %s", p.ID, p.Steps[0].Args, r.Outcome, r.Error)
		}
	}
	if t.Failed() {
		t.Fatalf("the console:\n%s", console)
	}
	for _, w := range drives {
		r := got[w.serial]
		t.Logf("%-14s %-22s %-6s %-7s %3d markers, %3d old, %3d read: %s", w.serial, r.Method, r.Level, r.Result,
			r.Samples.Markers, r.Samples.Old, r.Samples.Read, r.Answer)
		data, err := os.ReadFile(w.path)
		if err != nil {
			t.Fatal(err)
		}
		left := bytes.Count(data, []byte(secret)) + bytes.Count(data, []byte("WHO READS IT AFTERWARDS"))
		if w.level == "" {
			if r.Result != "failed" || r.Level != "none" || len(r.Samples.Kept) == 0 || left == 0 {
				t.Errorf("the disk that lies: %+v, %d places left", r, left)
			}
			continue
		}
		if r.Result != "erased" || r.Level != w.level || !slices.Contains(w.by, r.Method) || r.Samples.Markers < 60 ||
			r.Samples.Old < 50 {
			t.Errorf("%s: %+v", w.serial, r)
		}
		if left > 0 {
			t.Errorf("%s: %d places of the old content are left", w.serial, left)
		}
		if (r.Method == "overwrite") != r.Samples.All {
			t.Errorf("%s: all read back: %v", w.serial, r.Samples.All)
		}
	}
	// What the conductor kept is signed, and says the same.
	kept, err := d.st.Erasures(t.Context(), d.node.UUID)
	if err != nil || len(kept) != len(drives) {
		t.Fatalf("%d reports are kept, want %d: %v", len(kept), len(drives), err)
	}
	public, err := erasure.ParseKey(d.book.Key.PEM())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kept {
		v, err := erasure.Verify(k.Document, public)
		if err != nil || v.Report.Result != got[v.Report.Disk.Serial].Result || v.Statement.NodeName != "direct" {
			t.Errorf("a kept report: %+v, %v", v, err)
		}
	}
}
