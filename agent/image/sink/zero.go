package sink

import (
	"context"
	"fmt"

	"github.com/ingot-metal/ingot/agent/image/trace"
)

// Sizes of one request to zero. Many devices handle one request at a time: during writes, no write should wait long for
// it. Alone, few requests are better, as long as progress is visible.
const (
	turn  = 16 << 20
	alone = 1 << 30
)

// flushEvery is after how many bytes the disk is flushed while others put: a disk with a write cache would otherwise
// keep the last of it, up to some GiB, for the flush that everything waits for.
const flushEvery = 512 << 20

// MakeHoles makes holes while others put, until done is closed and all holes added before are made. Finish makes
// missing ones, or all if it is never called. After done it calls made, unless nil, with the number of the image's zero
// bytes that are zero on the disk, and their total. While there is no hole to make, it flushes what has landed.
func (s *Sink) MakeHoles(ctx context.Context, done <-chan struct{}, made func(n, of int64)) error {
	flushed := int64(0)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		last := false
		select {
		case <-done:
			last = true
		default:
		}
		s.mu.Lock()
		h, ok := s.holes.ripe(s.landed.Load())
		if !ok && last {
			h, ok = s.holes.first()
		}
		s.mu.Unlock()
		switch {
		case ok:
			if err := s.hole(ctx, h, done, made); err != nil {
				return err
			}
		case last:
			return nil
		case s.landed.Load()-flushed >= flushEvery:
			flushed = s.landed.Load()
			if err := s.flush(); err != nil {
				return err
			}
			trace.Of(ctx).Spent(trace.Zeros)
		default:
			select {
			case <-ctx.Done():
			case <-done:
			case <-s.changed:
			}
			trace.Of(ctx).Spent(trace.Input)
		}
	}
}

// flush makes durable what has landed. A failure is final, even if a later flush does not repeat it.
func (s *Sink) flush() error {
	if err := s.dev.Sync(); err != nil {
		return Fault(fmt.Errorf("flush %s: %w", s.disk.Name, err))
	}
	return nil
}

// hole makes one hole.
func (s *Sink) hole(ctx context.Context, h span, done <-chan struct{}, made func(n, of int64)) error {
	for h.n > 0 {
		part, zero := int64(turn), s.zero
		select {
		case <-done:
			part, zero = alone, s.zeroAlone
		default:
		}
		n := min(h.n, part)
		if err := zero(ctx, span{h.off, n}); err != nil {
			return err
		}
		trace.Of(ctx).Spent(trace.Zeros)
		h = span{h.off + n, h.n - n}
		if part == alone && made != nil {
			made(s.made.Load(), s.zeroed.Load())
		}
	}
	return nil
}

// look makes MakeHoles check for holes.
func (s *Sink) look() {
	select {
	case s.changed <- struct{}{}:
	default: // a check is pending already
	}
}

// addHole records zeros, and makes the oldest hole if there are many.
func (s *Sink) addHole(ctx context.Context, h span) error {
	s.zeroed.Add(h.n)
	s.mu.Lock()
	old, full := s.holes.add(h, s.landed.Load())
	s.mu.Unlock()
	if full {
		return s.zeroAlone(ctx, old)
	}
	s.look()
	return nil
}

// zeroAlone is zero without other work at the same time: its time counts as the disk's. Beside writes, zeroing at most
// delays them.
func (s *Sink) zeroAlone(ctx context.Context, h span) error {
	s.busy.Enter()
	defer s.busy.Leave()
	return s.zero(ctx, h)
}

// zero makes a range of the disk zero.
func (s *Sink) zero(ctx context.Context, h span) error {
	s.zeroing.Lock()
	defer s.zeroing.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	defer s.made.Add(h.n)
	if h.n < Block { // between two clusters of a qcow2: writing costs less than asking
		n, err := s.dev.WriteAt(s.zeroBlock[:h.n], h.off)
		if err == nil && int64(n) != h.n {
			err = fmt.Errorf("only %d bytes were taken", n)
		}
		if err != nil {
			return Fault(fmt.Errorf("write %d zeros at byte %d of %s: %w", h.n, h.off, s.disk.Name, err))
		}
		s.landed.Add(h.n)
		return nil
	}
	if err := s.zeroer.Zero(ctx, h.off, h.n); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return Fault(fmt.Errorf("%s: %w", s.disk.Name, err))
	}
	return nil
}
