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

// registry fetches objects from a registry.
type registry struct {
	image *oci.Image
	wait  fetch.Patience
	log   *slog.Logger

	mu   sync.Mutex
	last time.Time // time of the last data
}

func (r *registry) Object(ctx context.Context, o index.Object, dst []byte) error {
	damaged, furthest := 0, 0
	return r.patiently(ctx, o.String(), func(ctx context.Context) error {
		body, err := r.image.Object(ctx, o)
		if err != nil {
			return err
		}
		defer body.Close()
		for n := 0; n < len(dst); {
			m, err := body.Read(dst[n:])
			n += m
			if n > furthest { // not before: a connection that always breaks at the same place makes no progress
				furthest = n
				r.came()
			}
			if err != nil && n < len(dst) {
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return fmt.Errorf("object %s from the registry, after %d bytes: %w", o, n, err)
			}
		}
		if err := verify(ctx, o, dst); err != nil {
			if damaged++; damaged < fetch.DamagedTries {
				return errors.New(err.Error()) // perhaps in transfer: not final yet
			}
			return err
		}
		return nil
	})
}

// came records received data.
func (r *registry) came() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = time.Now()
}

// patiently retries as long as the registry may recover. An images.Error is final. Patience counts from the last
// received data: on a slow link a single object may take longer than an outage may last.
func (r *registry) patiently(ctx context.Context, what string, try func(context.Context) error) error {
	began, pause := time.Now(), r.wait.First
	for {
		err := try(ctx)
		var final *images.Error
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			r.came()
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
		if err := step.Sleep(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, r.wait.Longest)
	}
}
