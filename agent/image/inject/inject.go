// Package inject puts files into the file systems of an image that was just written, or of the installed system: the
// step inject_files of deployment and service, as in Ironic's agent.
//
// Ironic's agent mounts the partition, with the ramdisk's kernel, and writes there. Here no tenant's file system is
// mounted, and nothing of it runs: images/fs/ext4 and images/fs/fat change ext2, ext3, ext4 and FAT in memory and write
// them back. Other file systems are refused by name. Paths are inside one file system: symbolic links are followed in
// it and never out of it, and mount points in its tree are ignored. Either all files of one file system are written, or
// none.
//
// A previously installed system may have been turned off while it ran. Then the blocks of its file systems are not
// final: a journal would be replayed over the changes made here, or the system resumes from hibernation with stale
// caches. So only file systems that were unmounted in an orderly shutdown are changed.
package inject

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/fs/ext4"
	"github.com/ingot-metal/ingot/images/fs/fat"
)

// Args declares the arguments of inject_files.
var Args = []step.Arg{
	{Name: "files", Type: "array", Items: "object", Max: step.Limit(maxFiles),
		Description: "objects with path; content (base64, or an http or https URL) or url, or deleted: true; " +
			"and optionally partition (number, label, name, UUID), sha256, mode, dirmode, owner, group; those of the node's property inject_files come before them"},
	{Name: "verify_ca", Type: "boolean",
		Description: "whether certificates of https servers are verified (default true)"},
	{Name: "root_device", Type: "object",
		Description: "in service: hints for the system's disk; the conductor sets those of the node"},
	{Name: "image_ca", Type: "string", Owner: "driver_info",
		Description: "certificates in PEM form that must have signed the https servers'"},
}

// machine is the part of the machine that this package uses.
type machine interface {
	Root() string
	OpenExclusive(ctx context.Context, path string) (disk.Device, error)
	// Settle waits, for a limited time, until the drivers have initialized their devices.
	Settle(ctx context.Context) error
}

// Done is the outcome for one file.
type Done struct {
	Path       string `json:"path"`
	Partition  int    `json:"partition"`
	FileSystem string `json:"file_system"`
	Bytes      int    `json:"bytes"`
	// "made", "replaced", "deleted", or "absent": to be deleted, but missing
	What string `json:"what"`
}

// Result of inject_files.
type Result struct {
	Files []Done `json:"files"`
	// Unlabelled is the number of files made without a security label in a system with SELinux.
	Unlabelled int `json:"unlabelled,omitempty"`
}

type stepArgs struct {
	Files      json.RawMessage `json:"files"`
	VerifyCA   *bool           `json:"verify_ca"`
	RootDevice json.RawMessage `json:"root_device"`
	CA         string          `json:"image_ca"`
}

// Step puts files into the image that write_image wrote. If stopped, the disk has no partition table; a file system
// marked as not clean then could be repaired by e2fsck, but a repeated deployment writes the image anew. A repeated run
// puts the same files again.
//
// In service it puts them into the installed system. If stopped, an ext file system is marked as not clean, and its
// system runs e2fsck at its next boot; a repeated run before that refuses to touch it.
func Step(m machine) step.Func {
	return step.With(func(ctx context.Context, c *step.Call, args stepArgs) (step.Outcome, error) {
		files, err := parse(args.Files)
		if err != nil {
			return step.Outcome{}, err
		}
		if len(files) == 0 {
			c.Log.Info("no files to inject")
			return step.Outcome{Result: Result{Files: []Done{}}}, nil
		}
		hints, err := disk.ParseHints(args.RootDevice)
		if err != nil {
			return step.Outcome{}, step.Fail("correct root_device in the node's properties", err)
		}
		p, err := disk.PendingOf(c.Facts)
		installed := err != nil && c.Facts.Get(step.During{}) == step.Service
		if err != nil && !installed {
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
		d := &target{now: time.Now(), installed: installed}
		if installed {
			c.Report(step.Progress{Phase: "find the disk"})
			in, dev, err := disk.OpenInstalled(ctx, m, hints)
			if err != nil {
				return step.Outcome{}, fmt.Errorf("inject files into the installed system: %w", err)
			}
			d.medium, d.dev, d.name, d.what = in, dev, in.Disk.Name, "system"
			c.Log.Info("files go into the installed system", "disk", in.Disk.String())
		} else {
			dev, err := p.Open(ctx, m)
			if err != nil {
				return step.Outcome{}, fmt.Errorf("inject files into the image on %s: %w", p.Disk.Name, err)
			}
			d.medium, d.dev, d.name, d.what = p, dev, p.Disk.Name, "image"
		}
		c.Report(step.Progress{Phase: "write files"})
		r, err := d.put(ctx, files)
		if err != nil {
			return step.Outcome{}, fmt.Errorf("inject files into the %s on %s: %w", d.what, d.name, err)
		}
		for _, f := range r.Files {
			c.Log.Info("file injected", "path", f.Path, "partition", f.Partition, "what", f.What, "bytes", f.Bytes)
		}
		if r.Unlabelled > 0 {
			c.Log.Warn("the system has SELinux, but new files have no label: let it relabel them at its first boot (inject /.autorelabel into the same partition)", "files", r.Unlabelled)
		}
		return step.Outcome{Result: r}, nil
	})
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

// put puts files on the open disk, and closes it.
func (d *target) put(ctx context.Context, files []*file) (r Result, err error) {
	defer disk.Close(d.dev, &err)
	for _, part := range d.medium.PartitionsOn(d.dev) {
		d.volumes = append(d.volumes, &volume{part: part, installed: d.installed})
	}
	for _, f := range files {
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		v, err := d.find(f)
		if err != nil {
			return r, fmt.Errorf("%s: %w", f.Path, err)
		}
		done, err := v.put(f)
		if err != nil {
			return r, fmt.Errorf("%s on partition %d (%s): %w", f.Path, v.part.Number, v.kind, d.explain(err))
		}
		r.Files = append(r.Files, done)
		if done.What == "made" && v.selinux() {
			r.Unlabelled++
		}
	}
	for _, v := range d.volumes {
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		if !v.used {
			continue
		}
		if err := v.fs.Commit(d.dev.Sync); err != nil {
			return r, fmt.Errorf("write to partition %d (%s): %w", v.part.Number, v.kind, err)
		}
	}
	return r, nil
}

// explain adds the remedy for a fault of a file system.
func (d *target) explain(err error) error {
	full, broken := errors.Is(err, ext4.ErrFull) || errors.Is(err, fat.ErrFull), errors.Is(err, ext4.ErrNot) ||
		errors.Is(err, fat.ErrNot)
	switch {
	case full && d.installed:
		return step.Fail("make room in the system's file system, or inject less", err)
	case broken && d.installed:
		return step.Fail("check the system's file system (e2fsck -f, fsck.fat) in rescue", err)
	case full:
		return step.Fail(
			"inject less, or use an image with more room in its file system: it grows at the system's first boot only, after this", err)
	case broken:
		return step.Fail("check the image's file system (e2fsck -f, fsck.fat), or build the image again", err)
	case errors.Is(err, ext4.ErrCant), errors.Is(err, fat.ErrCant):
		if d.installed {
			return step.Fail("put the file somewhere else, or bring it there while the system runs", err)
		}
		return step.Fail("put the file somewhere else, or hand it over in the config drive", err)
	}
	return step.Fail("correct the file's path, owner or group", err)
}

// medium has partitions: an image that was just written, or an installed system.
type medium interface {
	PartitionsOn(dev disk.Device) []disk.Partition
	View(dev disk.Device, part disk.Partition) (*disk.View, error)
}

// target is the disk with its volumes.
type target struct {
	medium     medium
	name, what string // "/dev/sda"; "image" or "system"
	installed  bool   // the system has run before
	dev        disk.Device
	now        time.Time
	volumes    []*volume
}

// unclean refuses a file system of an installed system that was not unmounted cleanly.
func (d *target) unclean(v *volume) error {
	return step.Fail(
		"shut the system down in an orderly way, then ask for the service again while the machine is off: end this one (ingot node abort), start it (ingot node power on), "+
			"shut it down (ingot node power off --soft, or poweroff on it); or repair the file system in rescue",
		fmt.Errorf("partition %d (%s): %w", v.part.Number, v.kind, v.err))
}

func isUnclean(err error) bool { return errors.Is(err, ext4.ErrUnclean) || errors.Is(err, errUnclean) }

// find returns the volume of a file: the named one, else the first that has the directory at the root of the file's
// path, as in Ironic's agent.
func (d *target) find(f *file) (*volume, error) {
	if f.partition != "" {
		var found []*volume
		for _, v := range d.volumes {
			d.open(v)
			if v.is(f.partition, d.name) {
				found = append(found, v)
			}
		}
		switch {
		case len(found) == 0:
			return nil, step.Failf("correct partition; the disk has: "+d.list(), "the %s has no partition %q", d.what,
				f.partition)
		case len(found) > 1:
			return nil, step.Failf("name the partition by its number; the disk has: "+d.list(),
				"several partitions of the %s are called %q", d.what, f.partition)
		case d.installed && isUnclean(found[0].err):
			return nil, d.unclean(found[0])
		case found[0].err != nil && d.installed:
			return nil, step.Fail(
				"use another partition: files go into ext2, ext3, ext4 and FAT; or bring the file there while the system runs",
				fmt.Errorf("partition %d: %w", found[0].part.Number, found[0].err))
		case found[0].err != nil:
			return nil, step.Fail(
				"use another partition, or an image with ext2, ext3, ext4 or FAT there; or hand the file over in the config drive",
				fmt.Errorf("partition %d: %w", found[0].part.Number, found[0].err))
		}
		return found[0], nil
	}
	top, _, _ := strings.Cut(strings.TrimPrefix(path.Clean("/"+f.Path), "/"), "/")
	var why []string
	for _, v := range d.volumes {
		d.open(v)
		err := v.err
		if d.installed && isUnclean(err) {
			return nil, d.unclean(v) // it may be the intended one
		}
		if err == nil {
			var ok bool
			if ok, err = v.fs.IsDir(top); ok {
				return v, nil
			}
		}
		err = cmp.Or(err, fmt.Errorf("%s has no folder /%s", v.kind, top))
		why = append(why, fmt.Sprintf("partition %d: %v", v.part.Number, err))
	}
	return nil, step.Failf("name the partition; folders are made in a file system that is named",
		"no partition of the %s has a folder /%s (%s)", d.what, top, strings.Join(why, "; "))
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
	view, err := d.medium.View(d.dev, v.part)
	if err != nil {
		v.err = err
		return
	}
	v.open(view, d.now)
}
