package standalone

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/test/kit"
)

func writeFile(t *testing.T, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantApart writes an image to a disk that it is on, and expects a refusal and an image that is as it was.
func wantApart(t *testing.T, file, image, target string, img []byte) {
	t.Helper()
	o := Options{Image: image, Digest: digest(img), Disk: target}
	_, err := Write(t.Context(), o, nil, silent)
	if err == nil || !strings.Contains(err.Error(), "is on the disk") ||
		!strings.Contains(step.AsError(err).Remedy, "another disk") {
		t.Errorf("image %s onto %s: %v", image, target, err)
	}
	if _, err := Examine(t.Context(), o, nil); err == nil {
		t.Errorf("examine image %s, disk %s: nothing is said", image, target)
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, img) {
		t.Fatalf("image %s onto %s: the image is gone (%v)", image, target, err)
	}
}

func TestImageIsTheDisk(t *testing.T) {
	img := mbrImage(12 * mib)
	file := writeFile(t, "disk.img", img)
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Symlink(file, other); err != nil {
		t.Fatal(err)
	}
	hard := filepath.Join(filepath.Dir(file), "hard")
	if err := os.Link(file, hard); err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{file, "file://" + file, other, hard} {
		wantApart(t, file, image, file, img)
	}
}

func TestImageIsOnTheDisk(t *testing.T) {
	kit.NeedRoot(t)
	img := mbrImage(12 * mib)
	file := writeFile(t, "disk.img", img)
	one, two := kit.Loop(t, file, "--partscan"), kit.Loop(t, file)
	part := partitionNode(t, one)
	for _, c := range []struct{ image, disk string }{
		{file, two}, {two, file}, {one, two}, {one, one}, {part, one}, {part, two}, {part, file},
	} {
		wantApart(t, file, c.image, c.disk, img)
	}
	// A file in a file system that is on the disk's file: neither has the other open.
	kit.NeedPrograms(t, "mkfs.ext4", "mount")
	fs := filepath.Join(t.TempDir(), "fs")
	if err := os.WriteFile(fs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(fs, 64*mib); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "mkfs.ext4", "-q", fs)
	dir, loop := kit.MountPoint(t), kit.Loop(t, fs)
	if err := unix.Mount(loop, dir, "ext4", 0, ""); err != nil {
		t.Skipf("file systems can't be mounted here: %v", err)
	}
	defer unix.Unmount(dir, 0)
	inside := filepath.Join(dir, "image")
	if err := os.WriteFile(inside, img, 0o600); err != nil {
		t.Fatal(err)
	}
	wantApart(t, inside, inside, fs, img)
	// But it may go to another file, also one beside it, and to the disk's neighbours.
	target := filepath.Join(dir, "target")
	if err := os.WriteFile(target, bytes.Repeat([]byte{0xa5}, 20*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, disk := range []string{target, kit.Loop(t, writeFile(t, "else", make([]byte, 20*mib)))} {
		if _, err := Write(t.Context(), Options{Image: inside, Digest: digest(img), Disk: disk}, nil,
			silent); err != nil {
			t.Errorf("an image onto %s: %v", disk, err)
		}
	}
}

// partitionNode is a device node of a loop device's first partition. Where no udev runs there is none in /dev.
func partitionNode(t *testing.T, loop string) string {
	t.Helper()
	name := filepath.Base(loop)
	dev := fmt.Sprintf("/sys/block/%s/%sp1/dev", name, name)
	if !isThere(dev) { // a kernel that knows no partition tables
		kit.NeedPrograms(t, "partx")
		kit.Run(t, "partx", "--add", loop)
	}
	number, err := os.ReadFile(dev)
	if err != nil {
		t.Fatal(err)
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(string(number), "%d:%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(t.TempDir(), "part")
	if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(major, minor))); err != nil {
		t.Fatal(err)
	}
	return node
}

// TestKernelKeepsTheOldTable has a partition of the old table in use in a way that an exclusive open does not see.
func TestKernelKeepsTheOldTable(t *testing.T) {
	kit.NeedRoot(t)
	img := mbrImage(12 * mib)
	loop := kit.Loop(t, writeFile(t, "disk", mbrImage(20*mib)), "--partscan")
	f, err := os.Open(partitionNode(t, loop))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := Write(t.Context(), Options{Image: serve(t, img), Digest: digest(img), Disk: loop}, nil, silent)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Notes) != 1 || !strings.Contains(r.Text(), "old partition table") ||
		!strings.Contains(r.Text(), "blockdev --rereadpt "+loop) {
		out, _ := exec.Command("lsblk", loop).CombinedOutput()
		t.Errorf("the kernel has the old table, told is: %s\n%s", r.Text(), out)
	}
}
