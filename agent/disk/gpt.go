package disk

import (
	"bytes"

	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/gpt"
)

// gptTable is the GPT of an image that is moved to a disk.
type gptTable struct {
	*gpt.Table
	imageUsable uint64 // last usable sector in the image, before fit
}

func errDamaged(format string, args ...any) error {
	return step.Failf("fetch or build the image again", "the image's partition table is damaged: "+format, args...)
}

func parseGPT(head []byte, sector int) (*gptTable, error) {
	t, err := gpt.Read(head, sector)
	if err != nil {
		return nil, errDamaged("%v", err)
	}
	if len(t.Partitions()) == 0 {
		return nil, step.Failf(remedyImage, "the image has a partition table without a single partition")
	}
	return &gptTable{t, t.LastUsable}, nil
}

// newGPT returns an empty table for a disk of that many sectors.
func newGPT(sector int, sectors uint64) (*gptTable, error) {
	g := &gptTable{Table: gpt.New(sector, gpt.NewGUID())}
	err := g.fit(sectors)
	g.imageUsable = g.LastUsable
	return g, err
}

func (g *gptTable) kind() string { return "gpt" }

func (g *gptTable) partitions() []Partition {
	var parts []Partition
	for _, e := range g.Partitions() {
		parts = append(parts, g.partition(e))
	}
	return parts
}

func (g *gptTable) partition(e gpt.Entry) Partition {
	sector := int64(g.Sector)
	return Partition{Number: e.Number, Type: e.Type.String(), GUID: e.GUID.String(), Name: clean(e.Name),
		StartLBA: e.First, Sectors: e.Sectors(), Start: int64(e.First) * sector, Size: int64(e.Sectors()) * sector,
		Bootable: e.Bootable()}
}

func (g *gptTable) fit(sectors uint64) error {
	last, ok := g.LastFor(sectors)
	if !ok {
		return step.Failf("use a larger disk", "the disk's %d sectors have no room for the image's partition table",
			sectors)
	}
	for _, p := range g.Partitions() {
		if p.Last > last {
			return step.Failf("use a smaller image or a larger disk",
				"the image is larger than the disk: partition %d ends at sector %d, the disk's last usable one is %d",
				p.Number, p.Last, last)
		}
	}
	g.Fit(sectors)
	return nil
}

func (g *gptTable) add(name string, sectors uint64) (Partition, error) {
	start, err := place(g.partitions(), sectors, g.LastUsable+1, alignSectors(g.Sector))
	if err != nil {
		return Partition{}, err
	}
	n := g.Free()
	if n == 0 {
		return Partition{},
			step.Failf("use an image with a free entry in its partition table",
				"all %d entries of the partition table are taken", g.Count)
	}
	e := gpt.Entry{Number: n, Type: gpt.BasicData, GUID: gpt.NewGUID(), First: start, Last: start + sectors - 1,
		Name: name}
	g.Set(e)
	return g.partition(e), nil
}

func (g *gptTable) apply(head []byte) { g.Put(head) }

func (g *gptTable) backup() ([]byte, uint64) { return g.Backup() }

// backupFault describes the fault of an image's backup table, or returns "". The backup is not needed: a new one is
// made from the primary.
func (g *gptTable) backupFault(tail []byte, tailOff, size int64) string {
	const but = "; the new one is made from the primary table"
	last := size/int64(g.Sector) - 1
	at := last*int64(g.Sector) - tailOff
	if at < 0 || at+int64(g.Sector) > int64(len(tail)) {
		return "the image has no backup partition table" + but
	}
	h, err := gpt.ParseHeader(tail[at:], g.Sector)
	switch {
	case err != nil && !bytes.HasPrefix(tail[at:], []byte(gpt.Signature)):
		return "the image has no backup partition table at its end" + but
	case err != nil:
		return "the image's backup partition table is damaged" + but
	case h.EntriesCRC != g.EntriesCRC || h.Disk != g.Disk:
		return "the image's backup partition table is another one than the primary" + but
	}
	return ""
}

func (g *gptTable) reserved() uint64 { return g.imageUsable + 1 }
