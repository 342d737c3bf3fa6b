package chunked

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/oci"
)

// registry is objects in a registry.
type registry struct {
	image *oci.Image
	wait  fetch.Patience
	log   *slog.Logger

	mu   sync.Mutex
	last time.Time // when something last came
}

const damagedTries = 3 // of an object that comes damaged, before it is thought to be so in the registry

func (r *registry) Object(ctx context.Context, o index.Object, dst []byte) error {
	damaged := 0
	return r.patiently(ctx, o.String(), func(ctx context.Context) error {
		body, err := r.image.Object(ctx, o)
		if err != nil {
			return err
		}
		defer body.Close()
		stall := time.AfterFunc(r.wait.Stall, func() { body.Close() })
		defer stall.Stop()
		for n := 0; n < len(dst); {
			m, err := body.Read(dst[n:])
			n += m
			if err != nil && n < len(dst) {
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return fmt.Errorf("object %s from the registry, after %d bytes: %w", o, n, err)
			}
			stall.Reset(r.wait.Stall)
		}
		if err := o.Verify(dst); err != nil {
			if damaged++; damaged < damagedTries {
				return errors.New(err.Error()) // perhaps on the way: not final yet
			}
			return err
		}
		return nil
	})
}

// patiently tries again for as long as the registry may come back. An images.Error is final.
func (r *registry) patiently(ctx context.Context, what string, try func(context.Context) error) error {
	began, pause := time.Now(), r.wait.First
	for {
		err := try(ctx)
		var final *images.Error
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			r.mu.Lock()
			r.last = time.Now()
			r.mu.Unlock()
			return nil
		case errors.As(err, &final):
			return err
		}
		r.mu.Lock()
		limit, since := r.wait.Start, began
		if !r.last.IsZero() {
			limit = r.wait.Outage
			if r.last.After(began) {
				since = r.last
			}
		}
		r.mu.Unlock()
		if time.Since(since)+pause > limit {
			return step.Retryable("check that the registry runs and that the provisioning network leads to it", err)
		}
		r.log.Warn("the registry will be asked again", "object", what, "in", pause, "err", err)
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		case <-t.C:
		}
		pause = min(2*pause, r.wait.Longest)
	}
}
