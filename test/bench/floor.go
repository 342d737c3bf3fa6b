package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// copyData is the floor: the least that anybody can do. It copies the data, and only that, from a local file onto the
// device: four threads, direct I/O in pieces of 4 MiB, then a flush. No network, no digest, no decoding; holes keep
// their old bytes.
func copyData(raw, dev, spansFile string) error {
	b, err := os.ReadFile(spansFile)
	if err != nil {
		return err
	}
	var spans [][2]int64
	if err := json.Unmarshal(b, &spans); err != nil {
		return err
	}
	in, err := os.Open(raw)
	if err != nil {
		return err
	}
	defer in.Close()
	fd, err := unix.Open(dev, unix.O_WRONLY|unix.O_DIRECT|unix.O_EXCL, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dev, err)
	}
	out := os.NewFile(uintptr(fd), dev)
	const piece = 4 * mib
	work := make(chan span, 16)
	var g errgroup.Group
	for range 4 {
		g.Go(func() error {
			buf := aligned(piece)
			var first error
			for s := range work {
				if first != nil {
					continue
				}
				if _, err := in.ReadAt(buf[:s.n], s.off); err != nil {
					first = err
				} else if _, err := out.WriteAt(buf[:s.n], s.off); err != nil {
					first = err
				}
			}
			return first
		})
	}
	for _, s := range spans {
		for off, end := s[0], s[0]+s[1]; off < end; off += piece {
			work <- span{off, min(piece, end-off)}
		}
	}
	close(work)
	return errors.Join(g.Wait(), out.Sync(), out.Close())
}
