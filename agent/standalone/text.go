package standalone

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// cutDigest takes "algo:hex" apart.
func cutDigest(d string) (algo, value string, ok bool) {
	algo, value, ok = strings.Cut(d, ":")
	return algo, value, ok && algo != "" && value != ""
}

// page is a line of text with rows under it.
type page struct {
	text strings.Builder
	rows *tabwriter.Writer
}

func newPage(format string, args ...any) *page {
	p := &page{}
	fmt.Fprintf(&p.text, format+"\n", args...)
	p.rows = tabwriter.NewWriter(&p.text, 0, 8, 2, ' ', 0)
	return p
}

func (p *page) row(what, format string, args ...any) {
	fmt.Fprintf(p.rows, "  "+what+"\t"+format+"\n", args...)
}

// end adds notes and returns the whole page.
func (p *page) end(notes []string) string {
	for _, n := range notes {
		p.row("note", "%s", n)
	}
	p.rows.Flush()
	return p.text.String()
}

// packed describes a format and how it is compressed.
func packed(format, compression string) string {
	if compression == "" {
		return format
	}
	return format + " in " + compression
}

// Text describes the result for people.
func (r *Result) Text() string {
	took := time.Duration(r.TookMS) * time.Millisecond
	t := newPage("%s holds the image now, after %s.", r.Disk.Name, took.Round(10*time.Millisecond))
	t.row("image", "%s, %s, %s", packed(r.Format, r.Compression), size(uint64(r.VirtualSize)), r.Digest)
	t.row("fetched", "%s", size(uint64(r.BytesFetched)))
	t.row("written", "%s", size(uint64(r.BytesWritten)))
	if r.BytesKept > 0 {
		t.row("kept", "%s that the disk held already", size(uint64(r.BytesKept)))
	}
	t.row("zeros, not written", "%s", size(uint64(max(0, r.BytesSkipped-r.BytesKept))))
	if r.Verified {
		t.row("read back", "all that was written is as it should be")
	}
	t.row("table", "%s, %d partitions", r.Table, len(r.Partitions))
	return t.end(r.Notes)
}

// Text describes the plan for people.
func (p *Plan) Text() string {
	t := newPage("Nothing is written. This would happen:")
	t.row("image", "%s: %s, %s", p.Image, packed(p.Format, p.Compression), p.Table)
	t.row("its size", "%s on the disk, %s to fetch", known(p.VirtualSize), known(p.FileSize))
	t.row("verified by", "%s", p.Trust)
	t.row("disk", "%s, sectors of %d bytes", p.Disk, p.Disk.LogicalSectors)
	holds := "nothing: both its ends are zero"
	if p.Holds != "" {
		holds = p.Holds + "; that will be gone"
	}
	t.row("it holds", "%s", holds)
	if p.ConfigDrive != "" {
		t.row("config drive", "%s, at the disk's end", p.ConfigDrive)
	}
	if p.BootEntry {
		t.row("boot entry", "this machine's firmware will start the disk")
	}
	return t.end(p.Notes)
}

func known(n int64) string {
	if n < 0 {
		return "a size known only later"
	}
	return size(uint64(n))
}
