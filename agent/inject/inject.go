// Package inject puts files into the file systems of an image that was just written: the deploy step inject_files, as Ironic's agent has it.
//
// Ironic's agent mounts the partition, with the ramdisk's kernel, and writes there. Here no tenant's file system is mounted, and nothing of it
// runs: agent/ext4 and agent/fat change ext2, ext3, ext4 and FAT in memory and write them back. Other file systems are refused by name.
// Paths are those inside of one file system: symbolic links are followed in it and never out of it, and what else would be mounted somewhere
// in its tree does not count. Either all files of one file system are put, or none.
package inject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/ext4"
	"github.com/ingot-metal/ingot/agent/fat"
	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/step"
)

// Args declares the arguments of inject_files.
var Args = []step.Arg{
	{Name: "files", Type: "array", Items: "object", Max: step.Limit(maxFiles), Description: "objects with path; content (base64, or an http or https URL) or url, or deleted: true; " +
		"and optionally partition (number, label, name, UUID), sha256, mode, dirmode, owner, group; those of the node's property inject_files come before them"},
	{Name: "verify_ca", Type: "boolean", Description: "whether certificates of https servers are verified; true unless given"},
	{Name: "image_ca", Type: "string", Description: "certificates in PEM form that https servers' must be signed by"},
}

// machine is all that this package asks of the machine.
type machine interface {
	Root() string
	OpenExclusive(ctx context.Context, path string) (disk.Device, error)
}

// Done is what became of a file.
type Done struct {
	Path       string `json:"path"`
	Partition  int    `json:"partition"`
	FileSystem string `json:"file_system"`
	Bytes      int    `json:"bytes"`
	What       string `json:"what"` // "made", "replaced", "deleted", or "absent": it was to be deleted, and is not there
}

// Result is what inject_files ends with.
type Result struct {
	Files []Done `json:"files"`
	// Unlabelled is how many files were made without a security label in a system that has SELinux.
	Unlabelled int `json:"unlabelled,omitempty"`
}

// Step puts files into the image that write_image wrote. Stopped half way, the disk has no partition table; what is marked as not clean in it
// then is e2fsck's to repair, but a deployment that is tried again writes the image anew. Run again, it puts the same files again.
func Step(m machine) step.Func {
	return func(ctx context.Context, c *step.Call) (step.Outcome, error) {
		var args struct {
			Files    json.RawMessage `json:"files"`
			VerifyCA *bool           `json:"verify_ca"`
			CA       string          `json:"image_ca"`
		}
		if err := c.Decode(&args); err != nil {
			return step.Outcome{}, err
		}
		files, err := parse(args.Files)
		if err != nil {
			return step.Outcome{}, err
		}
		if len(files) == 0 {
			c.Log.Info("no files to inject")
			return step.Outcome{Result: Result{Files: []Done{}}}, nil
		}
		p, err := disk.PendingOf(c.Facts)
		if err != nil {
			return step.Outcome{}, err
		}
		uuid, _ := c.Facts.Get(step.Node{}).(string)
		client, err := client(args.CA, args.VerifyCA == nil || *args.VerifyCA)
		if err != nil {
			return step.Outcome{}, err
		}
		if err := load(ctx, c, client, uuid, files); err != nil {
			return step.Outcome{}, err
		}
		c.Report(step.Progress{Phase: "write files"})
		r, err := put(ctx, m, p, files, time.Now())
		if err != nil {
			return step.Outcome{}, fmt.Errorf("inject files into the image on %s: %w", p.Disk.Name, err)
		}
		for _, f := range r.Files {
			c.Log.Info("file injected", "path", f.Path, "partition", f.Partition, "what", f.What, "bytes", f.Bytes)
		}
		if r.Unlabelled > 0 {
			c.Log.Warn("the system has SELinux, but new files have no label: let it relabel them at its first boot (inject /.autorelabel into the same partition)", "files", r.Unlabelled)
		}
		return step.Outcome{Result: r}, nil
	}
}

func client(ca string, verify bool) (*http.Client, error) {
	c, err := fetch.Client(ca, fetch.DefaultPatience)
	if err != nil {
		return nil, err
	}
	if t, ok := c.Transport.(*http.Transport); ok && !verify {
		t.TLSClientConfig.InsecureSkipVerify = true
	}
	return c, nil
}

// put puts files on an open disk.
func put(ctx context.Context, m machine, p *disk.Pending, files []*file, now time.Time) (r Result, err error) {
	dev, err := p.Open(ctx, m)
	if err != nil {
		return r, err
	}
	defer func() {
		if cerr := dev.Close(); err == nil {
			err = cerr
		}
	}()
	d := &target{p: p, dev: dev, now: now}
	for _, part := range p.PartitionsOn(dev) {
		d.volumes = append(d.volumes, &volume{part: part})
	}
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return r, context.Cause(ctx)
		}
		v, err := d.find(f)
		if err != nil {
			return r, fmt.Errorf("%s: %w", f.Path, err)
		}
		done, err := v.put(f)
		if err != nil {
			return r, fmt.Errorf("%s on partition %d (%s): %w", f.Path, v.part.Number, v.kind, explain(err))
		}
		r.Files = append(r.Files, done)
		if done.What == "made" && v.selinux() {
			r.Unlabelled++
		}
	}
	for _, v := range d.volumes {
		if err := ctx.Err(); err != nil {
			return r, context.Cause(ctx)
		}
		if !v.used {
			continue
		}
		if err := v.fs.Commit(dev.Sync); err != nil {
			return r, fmt.Errorf("write to partition %d (%s): %w", v.part.Number, v.kind, err)
		}
	}
	return r, nil
}

// explain says what an operator can do about a fault of a file system.
func explain(err error) error {
	switch {
	case errors.Is(err, ext4.ErrFull), errors.Is(err, fat.ErrFull):
		return step.Fail("inject less, or use an image with more room in its file system: it grows at the system's first boot only, after this", err)
	case errors.Is(err, ext4.ErrNot), errors.Is(err, fat.ErrNot):
		return step.Fail("check the image's file system (e2fsck -f, fsck.fat), or build the image again", err)
	case errors.Is(err, ext4.ErrCant), errors.Is(err, fat.ErrCant):
		return step.Fail("put the file somewhere else, or hand it over in the config drive", err)
	}
	return step.Fail("correct the file's path, owner or group", err)
}

// target is the disk with its volumes.
type target struct {
	p       *disk.Pending
	dev     disk.Device
	now     time.Time
	volumes []*volume
}

// find gives the volume that a file belongs to: the one that is named, else the first that has the folder at the root of its path, as Ironic's agent does it.
func (d *target) find(f *file) (*volume, error) {
	if f.partition != "" {
		var found []*volume
		for _, v := range d.volumes {
			d.open(v)
			if v.is(f.partition, d.p.Disk.Name) {
				found = append(found, v)
			}
		}
		switch {
		case len(found) == 0:
			return nil, step.Failf("correct partition; the disk has: "+d.list(), "the image has no partition %q", f.partition)
		case len(found) > 1:
			return nil, step.Failf("name the partition by its number; the disk has: "+d.list(), "several partitions of the image are called %q", f.partition)
		case found[0].err != nil:
			return nil, step.Fail("use another partition, or an image with ext2, ext3, ext4 or FAT there; or hand the file over in the config drive",
				fmt.Errorf("partition %d: %w", found[0].part.Number, found[0].err))
		}
		return found[0], nil
	}
	top, _, _ := strings.Cut(strings.TrimPrefix(path.Clean("/"+f.Path), "/"), "/")
	var why []string
	for _, v := range d.volumes {
		d.open(v)
		err := v.err
		if err == nil {
			var ok bool
			if ok, err = v.fs.IsDir(top); ok {
				return v, nil
			}
		}
		if err == nil {
			err = fmt.Errorf("%s has no folder /%s", v.kind, top)
		}
		why = append(why, fmt.Sprintf("partition %d: %v", v.part.Number, err))
	}
	return nil, step.Failf("name the partition; folders are made in a file system that is named", "no partition of the image has a folder /%s (%s)", top, strings.Join(why, "; "))
}

func (d *target) list() string {
	var all []string
	for _, v := range d.volumes {
		text := fmt.Sprintf("%d", v.part.Number)
		for _, s := range []string{v.part.Name, v.label, v.uuid} {
			if s != "" {
				text += " " + s
			}
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// open opens a volume's file system, once.
func (d *target) open(v *volume) {
	if v.fs != nil || v.err != nil {
		return
	}
	view, err := d.p.View(d.dev, v.part)
	if err != nil {
		v.err = err
		return
	}
	v.open(view, d.now)
}
