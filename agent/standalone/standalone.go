// Package standalone is `ingot-agent write`: it writes an image onto a disk of any Linux machine with the agent's own
// steps, without a conductor, in place of dd or bmaptool.
//
// The promises of a deployment hold: one pass, digest, partition table last. The differences: the caller chooses the
// disk by path, which may be a loop device or a plain file; image files may be local; the firmware's boot entries are
// left alone unless requested, as the disk may be meant for another machine.
package standalone

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/agent/boot"
	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/image"
	"github.com/ingot-metal/ingot/agent/image/configdrive"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/oci"
)

// Options of Write. A zero value leaves the part out.
type Options struct {
	Image       string   // URL, or path of a file
	Mirrors     []string // more URLs of the same image
	Digest      string   // "sha256:<hex>", "sha512:<hex>", "blake3:<hex>"; of the file at Image
	Checksum    string   // URL of a checksum file
	Keys        []string // public keys, one of which must have signed a published image
	Signature   string   // URL, when not beside the image
	Unverified  bool     // write an image without digest or signature
	CA          string   // certificates in PEM form
	Disk        string   // path of the target
	ConfigDrive json.RawMessage
	BootEntry   bool
	Verify      bool
	Difference  string // "auto", "always" or "never"
	Memory      int64  // MiB that the write may use; 0: the default
	Trace       bool
	// Step has the arguments of write_image, in place of all that is about the image: see FromStep.
	Step map[string]any
}

// FromStep returns options with the arguments of the step write_image, a JSON object as a deployment has it. They come
// from somebody else, so they may name no file of this machine.
func FromStep(args []byte) (Options, error) {
	var o Options
	var known struct {
		Source    string   `json:"image_source"`
		Mirrors   []string `json:"image_mirrors"`
		Signature string   `json:"image_signature"`
	}
	err := json.Unmarshal(args, &o.Step)
	if err == nil { // of a name in several spellings the step takes the same one
		args, err = json.Marshal(o.Step)
	}
	if err == nil {
		err = json.Unmarshal(args, &known)
	}
	if err != nil {
		return o, fmt.Errorf("read the arguments of write_image: %w", err)
	}
	urls := append([]string{known.Source}, known.Mirrors...)
	if known.Signature != "" {
		urls = append(urls, known.Signature)
	}
	for _, u := range urls {
		if !isURL(u) && !oci.IsReference(u) {
			return o, step.Failf("give http, https and oci URLs alone", "the arguments of write_image name %q", u)
		}
	}
	o.Image = known.Source
	return o, nil
}

// Result of Write.
type Result struct {
	*image.Result
	Table       string           `json:"table"` // "gpt" or "mbr"
	Partitions  []disk.Partition `json:"partitions"`
	ConfigDrive any              `json:"config_drive"`
	Boot        any              `json:"boot"`
	Notes       []string         `json:"notes"`   // what to know before the disk is used
	TookMS      int64            `json:"took_ms"` // from the beginning until everything is on the disk
}

// args are those of write_image.
func (o Options) args(target string) map[string]any {
	// The machine has this one disk only, whatever its size.
	root := map[string]string{"name": "s== " + target}
	if o.Step != nil {
		a := maps.Clone(o.Step)
		a["root_device"] = root
		return a
	}
	a := map[string]any{"image_source": o.Image, "root_device": root}
	set := func(name string, v any, given bool) {
		if given {
			a[name] = v
		}
	}
	if o.Digest != "" {
		a["image_os_hash_algo"], a["image_os_hash_value"], _ = cutDigest(o.Digest)
	}
	set("image_checksum", o.Checksum, o.Checksum != "")
	set("image_mirrors", o.Mirrors, len(o.Mirrors) > 0)
	set("image_keys", o.Keys, len(o.Keys) > 0)
	set("image_signature", o.Signature, o.Signature != "")
	set("allow_unverified", true, o.Unverified)
	set("image_ca", o.CA, o.CA != "")
	set("verify", true, o.Verify)
	set("image_difference", o.Difference, o.Difference != "")
	set("image_memory", o.Memory, o.Memory != 0)
	set("trace", true, o.Trace)
	return a
}

// Write writes the image, makes it durable and commits its partition table. report receives progress and must not
// block; a nil log is silent. Once the image is being fetched an error is a Failure with the state of the disk; before
// that nothing was touched.
func Write(ctx context.Context, o Options, log *slog.Logger,
	report func(stepName string, p step.Progress)) (*Result, error) {
	m, err := o.target(ctx)
	if err != nil {
		return nil, err
	}
	r, err := m.write(ctx, o, log, report)
	if err != nil {
		if o.Step == nil { // else the words are the deployment's
			err = inFlags(err)
		}
		return nil, &Failure{Disk: o.Disk, Left: m.seen.left(), Err: err}
	}
	return r, nil
}

// target checks the options and finds the disk.
func (o Options) target(ctx context.Context) (machine, error) {
	if err := o.check(); err != nil {
		return machine{}, inFlags(err)
	}
	m, err := openMachine(ctx, o.Disk)
	if err != nil {
		return m, err
	}
	if o.BootEntry {
		if err := m.canBoot(); err != nil {
			return m, err
		}
	}
	if err := apart(o.Image, m.disk.Name); err != nil {
		return m, err
	}
	return m, alone(o.Disk, m.disk.Name)
}

func (m machine) write(ctx context.Context, o Options, log *slog.Logger,
	report func(stepName string, p step.Progress)) (*Result, error) {
	began := time.Now()
	url, stop, err := serveIndex(o.Image)
	if err != nil {
		return nil, err
	}
	defer stop()
	if url != o.Image {
		m.served, o.Image = o.Image, url
	}
	plan := []step.Planned{planned("write_image", o.args(m.disk.Name))}
	if len(o.ConfigDrive) > 0 {
		plan = append(plan,
			planned("write_configdrive", map[string]any{"configdrive": o.ConfigDrive, "image_ca": o.CA}))
	}
	if o.BootEntry {
		plan = append(plan, planned("prepare_instance_boot", map[string]any{}))
	}
	facts := &step.Facts{}
	rep := &reporter{report: report}
	end := (&step.Runner{Table: agent.Steps(m, nil), Log: log}).Run(ctx, facts, plan, rep)
	if end.Cancelled {
		return nil, context.Cause(ctx)
	}
	if end.Err != nil {
		return nil, end.Err
	}
	r := &Result{ConfigDrive: rep.results["write_configdrive"], Boot: rep.results["prepare_instance_boot"]}
	var ok bool
	if r.Result, ok = rep.results["write_image"].(*image.Result); !ok {
		return nil, errors.New("write_image ended without a result")
	}
	pending, err := disk.WrittenOf(facts) // prepare_instance_boot has committed it
	if err != nil {
		return nil, err
	}
	if !o.BootEntry {
		if _, err := boot.FillESP(ctx, m, pending, log); err != nil { // of a partition image
			return nil, err
		}
		report("commit", step.Progress{Phase: "commit"})
		if _, err := disk.Commit(ctx, facts, m, log); err != nil {
			return nil, err
		}
	}
	r.Table, r.Partitions = pending.Table(), pending.Partitions()
	if err := m.seen.stale(); err != nil {
		r.Notes = append(r.Notes,
			fmt.Sprintf("this kernel goes on with the disk's old partition table (%v): see what uses it, then run blockdev --rereadpt %s, or boot anew", err, m.disk.Name))
	}
	if d, ok := r.ConfigDrive.(configdrive.Result); ok && d.Warning != "" {
		r.Notes = append(r.Notes, d.Warning)
	}
	if b, ok := r.Boot.(boot.Result); ok && b.Warning != "" {
		r.Notes = append(r.Notes, b.Warning)
	}
	r.TookMS = time.Since(began).Milliseconds()
	return r, nil
}

func planned(name string, args map[string]any) step.Planned {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(fmt.Sprintf("arguments of %s: %v", name, err)) // they are made above, of what JSON can hold
	}
	return step.Planned{Interface: "deploy", Name: name, Args: raw}
}

// reporter keeps the results of steps.
type reporter struct {
	report  func(string, step.Progress)
	results map[string]any
}

func (r *reporter) StepStarted(_ int, s step.Planned) { r.report(s.Name, step.Progress{}) }

func (r *reporter) Progress(_ int, s step.Planned, p step.Progress) { r.report(s.Name, p) }

func (r *reporter) StepFinished(_ int, s step.Planned, res step.Result) {
	if r.results == nil {
		r.results = map[string]any{}
	}
	r.results[s.Name] = res.Outcome.Result
}
