package ipmi

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/command/transport"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

var _ power.ConsoleWatcher = (*Driver)(nil)

const (
	// solPoll is how often the controller is asked for output that it did not send by itself, and gets
	// acknowledgements.
	solPoll = 200 * time.Millisecond
	// solEnd bounds the end of a console session: a controller that is not told of the end keeps the console busy for a
	// minute.
	solEnd = 3 * time.Second
)

// WatchConsole reads the console by serial over LAN, without input. A controller has one reader of its console at a
// time: while another has it, this is refused. All other calls of this Driver wait meanwhile, so it takes one of its
// own.
func (d *Driver) WatchConsole(ctx context.Context, w io.Writer) error {
	// The session outlasts ctx by the time that releasing the console takes.
	sctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(solEnd, cancel)
		context.AfterFunc(sctx, func() { t.Stop() })
	})
	defer stop()
	var watched error
	err := d.do(sctx, "read the console", once, func(sctx context.Context, c *client.Client) error {
		if err := ctx.Err(); err != nil {
			watched = err
			return nil
		}
		_, err := c.ActivatePayload(sctx,
			&transport.ActivatePayloadRequest{PayloadType: types.PayloadTypeSOL, PayloadInstance: 1,
				EnableEncryption: true, EnableAuthentication: true})
		if err != nil {
			return err
		}
		quiet, typist := io.Pipe() // no input
		own := &sink{w: w}
		watched = c.SOLStream(ctx, quiet, own, &client.SOLStreamOptions{PollInterval: solPoll})
		if own.err != nil {
			watched = own.err
		} else if ctx.Err() != nil {
			watched = ctx.Err()
		}
		if err := typist.Close(); err != nil {
			d.log.Debug("end of the console", "err", err)
		}
		if _, err := c.DeactivatePayload(sctx,
			&transport.DeactivatePayloadRequest{PayloadType: types.PayloadTypeSOL, PayloadInstance: 1}); err != nil {
			d.log.Debug("give the console back", "err", err)
		}
		return nil
	})
	return cmp.Or(err, watched, errors.New("the controller ended the console"))
}

// sink keeps the error of its writer.
type sink struct {
	w   io.Writer
	err error
}

func (s *sink) Write(b []byte) (int, error) {
	n, err := s.w.Write(b)
	if err != nil {
		s.err = err
	}
	return n, err
}
