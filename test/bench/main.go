// Command bench measures the speed and the cost of writing an image to a disk, compared with the usual commands: `make
// bench-image`.
//
// Every comparison is made within one run: the contenders alternate, round after round, on the same device, which is
// full of old data each time, so that other load affects all of them. The results are medians, and ratios of medians.
// All write until the data is durable. The contenders:
//
//	floor   a local copy of the data alone, by four threads with direct I/O: no network, digest or decoding
//	qemu    curl into RAM, then qemu-img convert -n -W -m 8 -t none: the best pipe that one can type
//	dd      curl | zstd -dc | dd oflag=direct
//	ours    ingot-agent write, with the digest checked, holes zeroed, and the partition table last
//
// The device is a loop device with direct I/O: over a file, at the speed of this machine's disk or limited by a control
// group; or over a file system of this project that limits the speed and counts the data.
//
// With -base it compares only ingot-agent with that of an earlier commit, as described in package against.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/ingot-metal/ingot/test/bench/against"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command runs the bench, or one of the processes that it is made of.
func command(ctx context.Context, args []string) error {
	switch {
	case len(args) == 4 && args[0] == "device":
		rate, err := strconv.ParseInt(args[3], 10, 64)
		if err != nil {
			return err
		}
		return serveDevice(args[1], args[2], rate)
	case len(args) == 4 && args[0] == "copy":
		return copyData(args[1], args[2], args[3])
	case len(args) == 3 && args[0] == "serve":
		return serve(ctx, args[1], args[2])
	}
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} { // the writers' memory is as on a machine
		if err := os.Unsetenv(name); err != nil {
			return fmt.Errorf("clear %s: %w", name, err)
		}
	}
	var b bench
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.IntVar(&b.rounds, "n", 5, "rounds of every comparison")
	fs.Int64Var(&b.sizeMiB, "size", 2048, "MiB of the image")
	fs.Int64Var(&b.dataMiB, "data", 1024, "MiB of files in it; the rest is zeros")
	fs.StringVar(&b.image, "image", "", "raw whole-disk image to write, instead of one that is made")
	fs.StringVar(&b.bin, "bin", "bin", "folder with ingot, ingot-agent and bench-swarm")
	fs.StringVar(&b.dir, "dir", "build/bench", "folder for images and disks; several GiB, emptied at the end")
	fs.StringVar(&b.ram, "ram", "/dev/shm",
		"folder in memory for the device that is rebuilt; empty: below -dir, on a disk that can be read at several GB/s")
	fs.StringVar(&b.only, "only", "", "run one scenario: fast, memory, nvme, disk, link, rebuild, swarm")
	fs.StringVar(&b.report, "report", "", "file to write the results to (JSON)")
	fs.StringVar(&b.picture, "picture", "", "file to draw them into (SVG)")
	base := fs.String("base", "", "measure against ingot-agent of this commit instead, both in turn")
	again := fs.String("again", "", "measure nothing: print and draw the results in this file")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *again != "" {
		raw, err := os.ReadFile(*again)
		if err == nil {
			err = json.Unmarshal(raw, &b.res)
		}
		if err != nil {
			return err
		}
		b.print(os.Stdout)
		return b.save()
	}
	if !slices.Contains([]string{"", "fast", "memory", "nvme", "disk", "link", "rebuild", "swarm"}, b.only) {
		return fmt.Errorf("-only %s: there is no such scenario", b.only)
	}
	if os.Getuid() != 0 {
		return errors.New("this needs root: for loop devices, a file system and network namespaces")
	}
	if *base != "" {
		return b.against(ctx, against.Comparison{Revision: *base, Rounds: b.rounds, Out: os.Stdout, Log: os.Stderr})
	}
	return b.run(ctx)
}

// serve serves a folder until ctx ends, and says where.
func serve(ctx context.Context, dir, addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Print(l.Addr())
	files := http.FileServer(http.Dir(dir))
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if st, err := os.Stat(filepath.Join(dir, filepath.Clean("/"+r.URL.Path))); err == nil {
			w.Header().Set("ETag", fmt.Sprintf(`"%x-%x"`, st.ModTime().UnixNano(), st.Size()))
		}
		files.ServeHTTP(w, r)
	})}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// contender is one way to get the image onto the disk.
type contender struct {
	name string
	form string // of the image; empty: the raw file, read locally
	cmd  func(im *image, f file, url, dev string) (string, []string)
	env  []string
	soft bool // its holes keep old bytes: the disk is not compared
}

// oursLZ4 is a published image that is packed less, so that it unpacks faster.
const oursLZ4 = "ours, published, lz4"

// oursPlain is a qcow2 that is not compressed.
const oursPlain = "ours, plain qcow2"

// ours writes a form of the image with ingot-agent.
func (b *bench) ours(form, name string) contender {
	return contender{name: name, form: form, cmd: func(_ *image, f file, url, dev string) (string, []string) {
		return filepath.Join(b.bin, "ingot-agent"), []string{"write", "--image", url + "/" + f.name, "--sha256",
			f.sha256, "--disk", dev, "--quiet", "--json", "--yes", "--difference", "never"}
	}}
}

func (b *bench) contenders() []contender {
	return []contender{
		{name: "floor", soft: true, cmd: func(im *image, _ file, _, dev string) (string, []string) {
			return b.self, []string{"copy", im.raw, dev, b.spans}
		}},
		{name: "qemu", form: "qcow2", cmd: func(_ *image, f file, url, dev string) (string, []string) {
			return "sh", []string{
				"-ec", `curl -sf "$1" -o "$3" && qemu-img convert -n -W -m 8 -t none -f qcow2 -O raw "$3" "$2" && sync "$2"; rm -f "$3"`,
				"sh", url + "/" + f.name, dev, "/dev/shm/ingot-bench-image"}
		}},
		{name: "dd", form: "zst", cmd: func(_ *image, f file, url, dev string) (string, []string) {
			return "sh", []string{
				"-ec", `curl -sf "$1" | zstd -dcq | dd of="$2" bs=4M iflag=fullblock oflag=direct conv=fsync,notrunc status=none`,
				"sh", url + "/" + f.name, dev}
		}},
		b.ours("qcow2", "ours, qcow2"),
		b.ours("ingot", "ours, published"),
		b.ours("lz4.ingot", oursLZ4),
		b.ours("zst", "ours, raw.zst"),
	}
}

// once runs a contender on a dirty device.
func (b *bench) once(ctx context.Context, c contender, im *image, s *server, d *device, check bool) (took, error) {
	if err := d.dirty(); err != nil {
		return took{}, err
	}
	return b.again(ctx, c, im, s, d, check)
}

// again runs a contender on a device as it is.
func (b *bench) again(ctx context.Context, c contender, im *image, s *server, d *device, check bool) (took, error) {
	before, err := d.written()
	if err != nil {
		return took{}, err
	}
	name, args := c.cmd(im, im.files[c.form], s.url, d.path)
	if c.form != "" {
		name, args = s.in(name, args...)
	}
	name, args = d.throttle.in(name, args...)
	t, err := timed(ctx, c.env, name, args...)
	if err != nil {
		return t, err
	}
	after, err := d.written()
	if err != nil {
		return t, err
	}
	t.landed = after - before
	if r, err := t.reported(); err == nil && r.Busy.Cores > 0 { // ours: from the first byte to the flush
		t.busy = float64(r.Busy.Cores) / 100
	}
	if check && !c.soft {
		err = im.same(d.path)
	}
	return t, err
}

// reported is the output of ingot-agent write --json.
type reported struct {
	BytesFetched int64 `json:"bytes_fetched"`
	BytesWritten int64 `json:"bytes_written"`
	Busy         struct {
		Cores int `json:"cores"` // percent
	} `json:"busy_percent"`
}

func (t took) reported() (r reported, err error) {
	err = json.Unmarshal(t.out, &r)
	return r, err
}
