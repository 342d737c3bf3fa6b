package ipmi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/command/transport"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

var (
	_ power.ConsoleWatcher = (*Driver)(nil)
	_ power.Console        = (*Driver)(nil)
)

const (
	// solPoll is how often the controller is asked for output that it did not send by itself, and gets
	// acknowledgements.
	solPoll = 200 * time.Millisecond
	// solTyping is the same while somebody works at the console and looks at what it says.
	solTyping = 50 * time.Millisecond
	// solEnd bounds the end of a console session: a controller that is not told of the end keeps the console busy for a
	// minute.
	solEnd = 3 * time.Second
	// codeConsoleInUse is the answer to Activate Payload while another session has it (IPMI 2.0, section 24.1).
	codeConsoleInUse types.CompletionCode = 0x80
)

// WatchConsole reads the console by serial over LAN, without input. A controller has one reader of its console at a
// time: while another has it, this is refused. All other calls of this Driver wait meanwhile, so it takes one of its
// own.
func (d *Driver) WatchConsole(ctx context.Context, w io.Writer) error {
	quiet, typist := io.Pipe() // no input
	defer typist.Close()
	return d.attach(ctx, "read the console", quiet, w, solPoll)
}

// Console is WatchConsole with input.
func (d *Driver) Console(ctx context.Context, in io.Reader, out io.Writer) error {
	return d.attach(ctx, "work at the console", in, out, solTyping)
}

// attach connects the console with in and out.
func (d *Driver) attach(ctx context.Context, op string, in io.Reader, out io.Writer, poll time.Duration) error {
	// The session outlasts ctx by the time that releasing the console takes.
	sctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(solEnd, cancel)
		context.AfterFunc(sctx, func() { t.Stop() })
	})
	defer stop()
	var watched error
	err := d.do(sctx, op, once, func(sctx context.Context, c *client.Client) error {
		if err := ctx.Err(); err != nil {
			watched = err
			return nil
		}
		_, err := c.ActivatePayload(sctx,
			&transport.ActivatePayloadRequest{PayloadType: types.PayloadTypeSOL, PayloadInstance: 1,
				EnableEncryption: true, EnableAuthentication: true})
		if code, ok := completionCode(err); ok && code == codeConsoleInUse {
			return &power.Error{Kind: power.Refused, Err: fmt.Errorf("somebody else has it: %w", err),
				Hint: "a controller has one console: wait until the other is done, or until the conductor has seen the system's sign of life there"}
		}
		if err != nil {
			return err
		}
		own := &sink{w: out}
		watched = c.SOLStream(ctx, in, own, &client.SOLStreamOptions{PollInterval: poll})
		if own.err != nil {
			watched = own.err
		} else if ctx.Err() != nil {
			watched = ctx.Err()
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
