package build

import (
	"io"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/images/gpt"
)

const (
	sector = 512 // of most disks, and of GRUB for BIOS
	mib    = 1 << 20
)

// partition is one entry of the table.
type partition struct {
	kind  gpt.GUID
	name  string
	start int64
	size  int64
}

// named derives an identifier from names only, so that images are reproducible.
func named(image, what string) uuid.UUID {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte("ingot:image:"+image+":"+what))
}

// writeGPT writes both copies of the table of a disk of size bytes in sectors of so many bytes, and the protective MBR.
// The first 440 bytes, boot code, are not changed.
func writeGPT(w io.WriterAt, size, sector int64, image string, parts []partition) error {
	t := gpt.New(int(sector), gpt.OfUUID(named(image, "disk")))
	for i, p := range parts {
		t.Set(gpt.Entry{Number: i + 1, Type: p.kind, GUID: gpt.OfUUID(named(image, p.name)),
			First: uint64(p.start / sector), Last: uint64((p.start+p.size)/sector - 1), Name: p.name})
	}
	t.Fit(uint64(size / sector))
	head := make([]byte, int64(t.FirstUsable)*sector)
	t.Put(head)
	head[446] = 0x80 // the active flag: some BIOSes boot no disk without it, and UEFI ignores it
	if _, err := w.WriteAt(head[440:512], 440); err != nil {
		return err
	}
	if _, err := w.WriteAt(head[sector:], sector); err != nil {
		return err
	}
	backup, at := t.Backup()
	_, err := w.WriteAt(backup, int64(at)*sector)
	return err
}
