package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/inspect"
)

// digestNames are the digests that an inspection can compute.
var digestNames = []string{images.SHA256, images.SHA512, images.BLAKE3, images.MD5}

func (p *program) imageInspect() *cobra.Command {
	var o inspect.Options
	digests, diskSize := []string{images.SHA256}, ""
	return local(&cobra.Command{
		Use: "inspect URL|FILE|-", Short: "Show the format of an image, and whether it can be deployed",
		Long: `Read an image to its end, as the agent would, and say what it is: format and compression, the disk it describes, its partitions
and its digests. An image that the agent would refuse is refused here with the same words, and the exit status is 1.

The file's digest, which a deployment needs, comes along:

  ingot image inspect https://cloud.example/disk.qcow2
  ingot image inspect --quick disk.raw.zst       only the beginning and the tables
  ingot image inspect -o json --digest sha512 --digest blake3 disk.raw`,
		Args: oneArg("one URL or file, or - for its standard input"),
	}, []option{
		opt("digest", &digests, "digest of the file: sha256, sha512, blake3 or md5; may be given again"),
		opt("disk-size", &diskSize, "size of the target disk, for example 480G or 500107862016"),
		opt("quick", &o.Quick, "look at the beginning and the tables alone; no digests, and damage further on is not found"),
	}, func(ctx context.Context, args []string) error {
		for _, d := range digests {
			if !slices.Contains(digestNames, d) {
				return usage("--digest %s is none of sha256, sha512, blake3, md5", d)
			}
		}
		o.Digests = digests
		var err error
		if o.DiskSize, err = parseSize(diskSize); err != nil {
			return usage("--disk-size: %v", err)
		}
		return p.inspectImage(ctx, args[0], o)
	})
}

func (p *program) inspectImage(ctx context.Context, name string, o inspect.Options) error {
	src, err := p.openSource(ctx, name)
	if err != nil {
		return fmt.Errorf("inspect image: %w", err)
	}
	meter := &meter{r: src.Stream}
	src.Stream = meter
	d := newDisplay(p.stderr)
	stop := d.every(200*time.Millisecond, func() {
		if took := d.now().Sub(d.start); took >= 2*time.Second {
			d.redraw(progressLine(meter.n.Load(), src.Size, took))
		}
	})
	r, err := inspect.Inspect(ctx, src.Input, o)
	stop()
	if err == nil {
		err = src.changed()
	}
	src.close()
	if err != nil {
		return remedied(fmt.Errorf("inspect %s: %w", src.name, src.inWords(err)))
	}
	if src.words != nil {
		r.Remedy = src.words.Replace(r.Remedy)
	}
	err = p.showInspection(r)
	if err == nil && !r.Deployable {
		err = errors.New("the image can't be deployed: " + r.Reason)
		if r.Remedy != "" {
			err = advise(err, "What to do: %s.", r.Remedy)
		}
	}
	return err
}

func (p *program) showInspection(r *inspect.Report) error {
	if p.values() {
		return p.print(r)
	}
	verdict := "yes"
	switch {
	case !r.Deployable:
		verdict = "no: " + r.Reason
		if r.Remedy != "" {
			verdict += "\nwhat to do: " + r.Remedy
		}
	case r.Quick:
		verdict = "yes, judging by its beginning"
	}
	exact := func(n int64) string { return fmt.Sprintf("%s (%d bytes)", size(uint64(n)), n) }
	rows := [][2]string{{"can be deployed", verdict},
		{"kind", map[string]string{"whole-disk": "image of a whole disk", "partition": "image of a partition",
			"published": "published image"}[r.Kind]},
		{"format", strings.Join(append([]string{r.Format}, r.Details...), "\n")},
		{"compression", r.Compression}}
	add := func(name, value string) { rows = append(rows, [2]string{name, value}) }
	if r.FileSize >= 0 {
		add("file", exact(r.FileSize))
	}
	if r.VirtualSize > 0 {
		add("disk", exact(r.VirtualSize))
		if r.Published != nil {
			add("data", exact(r.DataSize))
		} else if r.Deployable && !r.Quick {
			add("data", fmt.Sprintf("%s in %d pieces", exact(r.DataSize), r.Extents))
		}
	}
	if x := r.Published; x != nil {
		add("chunks", fmt.Sprintf("%d, of them %d zero; %d objects of %s", x.Chunks, x.ZeroChunks, x.Objects,
			size(uint64(x.StoredBytes))))
		add("disk's SHA-256", x.DiskSHA256)
		add("made from", x.Source)
	}
	add("begins with", r.Content)
	if t := r.Table; t != nil {
		add("table", fmt.Sprintf("%s, sectors of %d bytes", strings.ToUpper(t.Kind), t.SectorSize))
		var lines []string
		for _, x := range t.Partitions {
			line := fmt.Sprintf("%d: %s at %s, %s", x.Number, size(uint64(x.Size)), size(uint64(x.Start)), x.Type)
			if x.Name != "" {
				line += ", " + strconv.Quote(x.Name)
			}
			lines = append(lines, line+choose(x.Active, ", active", ""))
		}
		add("partitions", strings.Join(lines, "\n"))
	}
	for _, a := range digestNames {
		add(a, r.Digests[a])
	}
	add("notes", strings.Join(r.Notes, "\n"))
	return p.sheet(filled(rows...))
}

// parseSize reads bytes, with K, M, G or T for powers of 1024.
func parseSize(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	digits, shift := strings.TrimSuffix(strings.TrimSuffix(s, "B"), "i"), 0
	if i := strings.IndexByte("KMGT", digits[max(0, len(digits)-1)]); len(digits) > 0 && i >= 0 {
		digits, shift = digits[:len(digits)-1], 10*(i+1)
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n <= 0 || n > 1<<62>>shift {
		return 0, fmt.Errorf("%q is not a size", s)
	}
	return n << shift, nil
}

// meter counts what is read.
type meter struct {
	r io.Reader
	n atomic.Int64
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.n.Add(int64(n))
	return n, err
}

func progressLine(n, total int64, took time.Duration) string {
	rate := float64(n) / took.Seconds()
	text := fmt.Sprintf("%s  %s/s", size(uint64(n)), size(uint64(rate)))
	if total > 0 && rate > 0 {
		text = fmt.Sprintf("%3d %%  %s  %s left", n*100/total, text,
			span(time.Duration(float64(total-n)/rate*float64(time.Second))))
	}
	return text
}
