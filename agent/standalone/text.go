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

// Text describes the result for people.
func (r *Result) Text() string {
	var b strings.Builder
	took := time.Duration(r.TookMS) * time.Millisecond
	fmt.Fprintf(&b, "%s holds the image now, after %s.\n", r.Disk.Name, took.Round(10*time.Millisecond))
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	row := func(what, format string, args ...any) { fmt.Fprintf(t, "  "+what+"\t"+format+"\n", args...) }
	packed := r.Format
	if r.Compression != "" {
		packed += " in " + r.Compression
	}
	row("image", "%s, %s, %s", packed, size(uint64(r.VirtualSize)), r.Digest)
	row("fetched", "%s", size(uint64(r.BytesFetched)))
	row("written", "%s", size(uint64(r.BytesWritten)))
	if r.BytesKept > 0 {
		row("kept", "%s that the disk held already", size(uint64(r.BytesKept)))
	}
	row("zeros, not written", "%s", size(uint64(max(0, r.BytesSkipped-r.BytesKept))))
	if r.Verified {
		row("read back", "all that was written is as it should be")
	}
	row("table", "%s, %d partitions", r.Table, len(r.Partitions))
	for _, n := range r.Notes {
		row("note", "%s", n)
	}
	t.Flush()
	return b.String()
}

// Text describes the plan for people.
func (p *Plan) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Nothing is written. This would happen:\n")
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	row := func(what, format string, args ...any) { fmt.Fprintf(t, "  "+what+"\t"+format+"\n", args...) }
	packed := p.Format
	if p.Compression != "" {
		packed += " in " + p.Compression
	}
	row("image", "%s: %s, %s", p.Image, packed, p.Table)
	row("its size", "%s on the disk, %s to fetch", known(p.VirtualSize), known(p.FileSize))
	row("verified by", "%s", p.Trust)
	row("disk", "%s, sectors of %d bytes", p.Disk, p.Disk.LogicalSectors)
	holds := p.Holds
	if holds == "" {
		holds = "nothing: both its ends are zero"
	} else {
		holds += "; that will be gone"
	}
	row("it holds", "%s", holds)
	if p.ConfigDrive != "" {
		row("config drive", "%s, at the disk's end", p.ConfigDrive)
	}
	if p.BootEntry {
		row("boot entry", "this machine's firmware will start the disk")
	}
	for _, n := range p.Notes {
		row("note", "%s", n)
	}
	t.Flush()
	return b.String()
}

func known(n int64) string {
	if n < 0 {
		return "a size known only later"
	}
	return size(uint64(n))
}
