package inject

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/images/blkid"
	"github.com/ingot-metal/ingot/images/fs/ext4"
	"github.com/ingot-metal/ingot/images/fs/fat"
)

// fileSystem is a file system that can be changed.
type fileSystem interface {
	IsDir(name string) (bool, error)
	Remove(name string) (bool, error)
	Commit(sync func() error) error
}

// volume is a partition with its file system.
type volume struct {
	part        disk.Partition
	kind        string
	label, uuid string
	fs          fileSystem
	err         error // why it can't be changed
	used        bool
	installed   bool  // the system on it has run before
	labelled    *bool // whether the system has SELinux
}

type device interface {
	io.ReaderAt
	io.WriterAt
	Size() int64
}

// open identifies a partition's file system.
func (v *volume) open(dev device, now time.Time) {
	head := make([]byte, min(blkid.HeadSize, dev.Size()))
	if _, err := dev.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		v.err = err
		return
	}
	found := blkid.Detect(head)
	if found != "" && found != blkid.Ext && found != blkid.VFAT {
		v.kind = found.Description()
		v.err = fmt.Errorf("%s can't be changed without mounting it: files go into ext2, ext3, ext4 and FAT", v.kind)
		return
	}
	info, err := ext4.Inspect(head)
	if err == nil || !errors.Is(err, ext4.ErrNot) || found == blkid.Ext {
		v.kind, v.label, v.uuid = "ext4", info.Label, info.UUID
		w, err := ext4.OpenWriter(dev, dev.Size(), now)
		if v.err = err; err == nil {
			v.fs = w
		}
		return
	}
	w, err := fat.OpenWriter(dev, dev.Size(), now)
	if errors.Is(err, fat.ErrNot) && found != blkid.VFAT {
		v.err = errors.New("no file system is known there")
		return
	}
	v.kind = "vfat"
	if v.err = err; err != nil {
		return
	}
	if f, err := fat.Open(dev, dev.Size()); err == nil {
		v.label, _ = f.Label()
		v.uuid = f.Serial()
	}
	if v.installed && w.Unclean() { // in a new image, the mark may be left by its builder, without harm
		v.err = errUnclean
		return
	}
	v.fs = w
}

// errUnclean is the error of a FAT file system; ext4 has its own.
var errUnclean = errors.New("the FAT file system was not unmounted, or has errors; run fsck.fat on it")

// is reports whether the volume has a given name.
func (v *volume) is(name, diskName string) bool {
	if n, err := strconv.Atoi(name); err == nil {
		return n == v.part.Number
	}
	same := func(a string) bool { return a != "" && a == name }
	fold := func(a string) bool { return a != "" && strings.EqualFold(a, name) }
	for prefix, is := range map[string]func() bool{
		"/dev/disk/by-uuid/":      func() bool { return fold(v.uuid) },
		"/dev/disk/by-label/":     func() bool { return same(v.label) },
		"/dev/disk/by-partuuid/":  func() bool { return fold(v.part.GUID) },
		"/dev/disk/by-partlabel/": func() bool { return same(v.part.Name) },
	} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			name = rest
			return is()
		}
	}
	if rest, ok := strings.CutPrefix(name, diskName); ok && strings.HasPrefix(name, "/dev/") {
		return rest == strconv.Itoa(v.part.Number) || rest == "p"+strconv.Itoa(v.part.Number)
	}
	return fold(v.uuid) || same(v.label) || fold(v.part.GUID) || same(v.part.Name)
}

// put adds or removes one file; it reaches the disk when the volume is committed.
func (v *volume) put(f *file) (Done, error) {
	done := Done{Path: f.Path, Partition: v.part.Number, FileSystem: v.kind, Bytes: len(f.data)}
	v.used = true
	if f.Deleted {
		was, err := v.fs.Remove(f.Path)
		if done.What = "absent"; was {
			done.What = "deleted"
		}
		return done, err
	}
	var replaced bool
	var err error
	switch w := v.fs.(type) {
	case *ext4.Writer:
		a := ext4.Attr{Mode: f.mode, DirMode: f.dirMode}
		if a.UID, err = v.person(w, f.owner, "/etc/passwd"); err != nil {
			return done, err
		}
		if a.GID, err = v.person(w, f.group, "/etc/group"); err != nil {
			return done, err
		}
		replaced, err = w.Put(f.Path, f.data, a)
	case *fat.Writer:
		if f.mode != nil || f.dirMode != nil || f.owner != nil || f.group != nil {
			return done, errors.New("a FAT file system keeps neither mode nor owner: leave them out")
		}
		replaced, err = w.Put(f.Path, f.data)
	}
	if done.What = "made"; replaced {
		done.What = "replaced"
	}
	return done, err
}

const maxText = 1 << 20

// person looks up a name in one of the system's files.
func (v *volume) person(w *ext4.Writer, p *person, list string) (*uint32, error) {
	if p == nil {
		return nil, nil
	}
	if p.name == "" {
		return &p.id, nil
	}
	b, err := w.Read(list, maxText)
	if err != nil {
		return nil, fmt.Errorf("look for %s in %s: %w", p.name, list, err)
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) > 2 && fields[0] == p.name {
			n, err := strconv.ParseUint(fields[2], 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%s gives %s no number", list, p.name)
			}
			id := uint32(n)
			return &id, nil
		}
	}
	return nil, fmt.Errorf("%s knows no %s: give the number", list, p.name)
}

// selinux reports whether the system on the volume labels files.
func (v *volume) selinux() bool {
	if v.labelled != nil {
		return *v.labelled
	}
	is := false
	if w, ok := v.fs.(*ext4.Writer); ok {
		b, err := w.Read("/etc/selinux/config", maxText)
		for line := range strings.Lines(string(b)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			if err == nil && strings.TrimSpace(key) == "SELINUX" && strings.TrimSpace(value) != "disabled" {
				is = true
			}
		}
	}
	v.labelled = &is
	return is
}
