package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	stdnet "net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent"
	"github.com/ingot-metal/ingot/agent/image/swarm"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/test/kit/box"
)

type stepArgs struct {
	URL string `json:"url"`
}

// runAgent is an agent's process.
func runAgent(ctx context.Context, args []string) error {
	addr, ca, token, logFile := args[0], args[1], args[2], args[4]
	size, err := strconv.ParseInt(args[3], 10, 64)
	if err != nil {
		return err
	}
	drive = blank(size)
	pin, err := hex.DecodeString(ca)
	if err != nil || len(pin) != sha256.Size {
		return fmt.Errorf("%s is no fingerprint", ca)
	}
	o := agent.Options{
		Config: agent.Config{Conductors: []string{stdnet.JoinHostPort(addr, agentPort)}, CA: [32]byte(pin),
			Token: agent.Secret(token)},
		Version:  "bench",
		Identity: box.Identity(),
		System:   box.Box{}, Network: box.Box{},
		Steps: []step.Step{
			{Row: step.Row{Interface: "deploy", Name: "write",
				Args: []step.Arg{{Name: "url", Type: "string", Description: "of the index"}}}, Run: write},
			{Row: step.Row{Interface: "deploy", Name: "rest"}, Run: rest}},
	}
	if logFile != "" {
		f, err := os.Create(logFile)
		if err != nil {
			return err
		}
		defer f.Close()
		o.Log = slog.NewTextHandler(f, &slog.HandlerOptions{Level: slog.LevelDebug})
		o.Config.Debug = true
		prof, err := os.Create(logFile + ".pprof")
		if err != nil {
			return err
		}
		defer prof.Close()
		if err := pprof.StartCPUProfile(prof); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	a, err := agent.New(o)
	if err != nil {
		return err
	}
	if err := a.Run(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// origin is the image's web server.
type origin struct {
	base   string
	client *http.Client
}

func (o origin) get(ctx context.Context, path string) (io.ReadCloser, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, o.base+path, nil)
	if err != nil {
		return nil, err
	}
	a, err := o.client.Do(q)
	if err != nil {
		return nil, err
	}
	if a.StatusCode != http.StatusOK {
		_ = a.Body.Close()
		return nil, fmt.Errorf("%s: %s", path, a.Status)
	}
	return a.Body, nil
}

func (o origin) Object(ctx context.Context, x index.Object, dst []byte) error {
	b, err := o.get(ctx, x.Path())
	if err != nil {
		return err
	}
	defer b.Close()
	if _, err := io.ReadFull(b, dst); err != nil {
		return err
	}
	return x.Verify(dst)
}

// drive is the node's disk, which is memory. It is there before anything is measured: that the kernel finds the memory
// is no part of it.
var drive []byte

func blank(size int64) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = 0xa5
	}
	return b
}

// write is the step under measurement: an image onto a disk that is memory, as package chunked does it.
func write(ctx context.Context, c *step.Call) (step.Outcome, error) {
	var args stepArgs
	if err := c.Decode(&args); err != nil {
		return step.Outcome{}, err
	}
	at := strings.LastIndexByte(args.URL, '/') + 1
	from := origin{args.URL[:at], &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	body, err := from.get(ctx, args.URL[at:])
	if err != nil {
		return step.Outcome{}, err
	}
	packed, err := io.ReadAll(body)
	if err = errors.Join(err, body.Close()); err != nil {
		return step.Outcome{}, err
	}
	x, err := index.Parse(packed)
	if err != nil {
		return step.Outcome{}, err
	}
	if x.Size != int64(len(drive)) {
		return step.Outcome{}, fmt.Errorf("the image has %d bytes, the disk %d", x.Size, len(drive))
	}
	d := &disk{x: x, mem: drive}
	var chunks source = &alone{x: x, from: from}
	if m := swarm.Of(c.Facts).Join(x, sha256.Sum256(packed), from, d.read); m != nil {
		chunks = m
	}
	// The first chunk is looked at before the disk is touched.
	if err := chunks.First(ctx, 0, d.mem[:x.ChunkLen(0)]); err != nil {
		return step.Outcome{}, err
	}
	chunks.Have(0)
	for i := 1; i < len(x.Chunks); i++ {
		chunks.Want(i)
	}
	chunks.Complete()
	if err := d.fill(ctx, chunks); err != nil {
		return step.Outcome{}, err
	}
	c.Facts.Set(ram{}, d)
	var st swarm.Stats
	if m, ok := chunks.(*swarm.Member); ok {
		st = m.Stats()
	}
	c.Log.Info("written", "stats", fmt.Sprintf("%+v", st))
	return step.Outcome{Result: st}, nil
}

// rest takes the time of the following steps of a deployment: flush, config drive, boot loader. Meanwhile the agent
// serves others. Then it checks the disk, which is not measured.
func rest(ctx context.Context, c *step.Call) (step.Outcome, error) {
	select {
	case <-time.After(3 * time.Second):
	case <-ctx.Done():
	}
	d, _ := c.Facts.Get(ram{}).(*disk)
	if d == nil || sha256.Sum256(d.mem) != d.x.SHA256 {
		return step.Outcome{}, errors.New("the disk does not hold the image")
	}
	return step.Outcome{}, nil
}

type source interface {
	First(ctx context.Context, i int, dst []byte) error
	Want(chunks ...int)
	Complete()
	Next(ctx context.Context) (int, bool)
	Chunk(ctx context.Context, i int, dst []byte) error
	Have(i int)
}

// ram is the key under which a disk is kept for the next step.
type ram struct{}

// disk is one in memory.
type disk struct {
	x   *index.Index
	mem []byte
}

func (d *disk) read(i int, off int64, dst []byte) error {
	copy(dst, d.mem[int64(i)*index.ChunkSize+off:])
	return nil
}

func (d *disk) fill(ctx context.Context, from source) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var work sync.WaitGroup
	for range 3 {
		work.Go(func() {
			for {
				i, ok := from.Next(ctx)
				if !ok {
					return
				}
				at := int64(i) * index.ChunkSize
				if err := from.Chunk(ctx, i, d.mem[at:at+d.x.ChunkLen(i)]); err != nil {
					cancel(err)
					return
				}
				from.Have(i)
			}
		})
	}
	work.Wait()
	return context.Cause(ctx)
}

// alone is an agent without neighbours: several requests in flight, as package chunked has them.
type alone struct {
	x    *index.Index
	from origin
	mu   sync.Mutex
	todo []int
	got  chan int
	data sync.Map
	once sync.Once
}

func (a *alone) First(ctx context.Context, i int, dst []byte) error {
	b := make([]byte, a.x.Chunks[i].Len)
	if err := a.from.Object(ctx, a.x.Chunks[i], b); err != nil {
		return err
	}
	return index.DecodeChunk(b, dst)
}

func (a *alone) Want(c ...int) { a.todo = append(a.todo, c...) }
func (a *alone) Complete()     {}
func (a *alone) Have(int)      {}

func (a *alone) Next(ctx context.Context) (int, bool) {
	a.once.Do(func() {
		a.got = make(chan int, 4)
		var work sync.WaitGroup
		for range 8 {
			work.Go(func() {
				for {
					a.mu.Lock()
					if len(a.todo) == 0 || ctx.Err() != nil {
						a.mu.Unlock()
						return
					}
					i := a.todo[0]
					a.todo = a.todo[1:]
					a.mu.Unlock()
					b := make([]byte, a.x.Chunks[i].Len)
					var what any = b
					if err := a.from.Object(ctx, a.x.Chunks[i], b); err != nil {
						what = err
					}
					a.data.Store(i, what)
					select {
					case a.got <- i:
					case <-ctx.Done():
					}
				}
			})
		}
		go func() { work.Wait(); close(a.got) }()
	})
	select {
	case i, ok := <-a.got:
		return i, ok
	case <-ctx.Done():
		return 0, false
	}
}

func (a *alone) Chunk(_ context.Context, i int, dst []byte) error {
	what, _ := a.data.LoadAndDelete(i)
	if err, bad := what.(error); bad {
		return err
	}
	return index.DecodeChunk(what.([]byte), dst)
}

func storedSize(www string) (int64, error) {
	x, err := published(www)
	if err != nil {
		return 0, err
	}
	n, _ := x.Stored()
	return n, nil
}

func diskSize(www string) (int64, error) {
	x, err := published(www)
	if err != nil {
		return 0, err
	}
	return x.Size, nil
}

func published(www string) (*index.Index, error) {
	b, err := os.ReadFile(filepath.Join(www, imageName))
	if err != nil {
		return nil, err
	}
	return index.Parse(b)
}
