//go:build !race

package app_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/ingot-metal/ingot/agent/image/swarm"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// server is an image and its server.
type server struct {
	raw     []byte
	x       *index.Index
	objects map[[32]byte][]byte
	one     sync.Mutex // it sends one object at a time
	chunks  atomic.Int64
}

func newServer(t *testing.T, chunks int) *server {
	t.Helper()
	s := &server{raw: make([]byte, chunks*index.ChunkSize), objects: map[[32]byte][]byte{}}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	keep := func(b []byte) index.Object {
		o := index.Of(b)
		s.objects[o.Sum] = b
		return o
	}
	random := mrand.NewChaCha8([32]byte{1})
	for i := range chunks { // the rest packs well
		_, _ = random.Read(s.raw[i*index.ChunkSize:][:index.BlockSize])
	}
	s.x = &index.Index{Size: int64(len(s.raw)), SHA256: sha256.Sum256(s.raw)}
	for i := range chunks {
		s.x.Chunks = append(s.x.Chunks, keep(z.EncodeAll(s.raw[i*index.ChunkSize:][:index.ChunkSize], nil)))
	}
	s.x.Lists = []index.Object{keep(z.EncodeAll(index.AppendSums(nil, s.raw), nil))}
	return s
}

func (s *server) Object(_ context.Context, o index.Object, dst []byte) error {
	if o != s.x.Lists[0] {
		s.one.Lock()
		time.Sleep(20 * time.Millisecond)
		s.one.Unlock()
		s.chunks.Add(1)
	}
	copy(dst, s.objects[o.Sum])
	return nil
}

// write writes the image as the agent's step does, and compares what it got.
func (s *server) write(ctx context.Context, c *step.Call) error {
	got := make([]byte, len(s.raw))
	m := swarm.Of(c.Facts).Join(s.x, sha256.Sum256(s.x.Marshal()), s, func(i int, off int64, dst []byte) error {
		copy(dst, s.raw[int64(i)*index.ChunkSize+off:])
		return nil
	})
	if m == nil {
		return errors.New("the agent takes part in no swarm")
	}
	if err := m.First(ctx, 0, got[:index.ChunkSize]); err != nil {
		return err
	}
	m.Have(0)
	for i := 1; i < len(s.x.Chunks); i++ {
		m.Want(i)
	}
	m.Complete()
	for {
		i, ok := m.Next(ctx)
		if !ok {
			break
		}
		if err := m.Chunk(ctx, i, got[i*index.ChunkSize:][:index.ChunkSize]); err != nil {
			return err
		}
		m.Have(i)
	}
	if !bytes.Equal(got, s.raw) {
		return fmt.Errorf("the disk does not hold the image: %w", ctx.Err())
	}
	return nil
}

// TestSwarmOfThreeConductors: machines that belong to three conductors are one swarm. Were each conductor's machines a
// swarm of their own, the server would have to send each chunk once for each of them.
func TestSwarmOfThreeConductors(t *testing.T) {
	const machines, chunks = 12, 16
	_, dbURL := pgserver.New(t).Database(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	s := newServer(t, chunks)
	var came, wrote sync.WaitGroup
	came.Add(machines)
	wrote.Add(machines)
	_, apis, f := runFleet(ctx, t, dbURL, fleet.Options{Nodes: machines, Write: time.Second,
		Image: func(ctx context.Context, c *step.Call) error {
			came.Done()
			came.Wait()
			defer wrote.Wait() // it gives others what they lack
			defer wrote.Done()
			return s.write(ctx, c)
		}})
	d := fleet.NewDriver(apis[0], "active", 0, nil)
	if err := errors.Join(d.Create(ctx, f.Machines), d.Run(ctx)); err != nil {
		t.Fatalf("%v; %s", err, f.Summary(d))
	}
	owners := ownersOf(ctx, t, apis[0])
	t.Logf("%d chunks, %d machines of %v: the server sent %d", chunks, machines, owners, s.chunks.Load())
	if most := int64(chunks*len(owners) - chunks/2); s.chunks.Load() > most {
		t.Errorf("the server sent %d chunks of %d to machines of %d conductors, want at most %d", s.chunks.Load(),
			chunks, len(owners), most)
	}
}
