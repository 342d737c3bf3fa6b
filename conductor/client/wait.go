package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// Progress asks how far a node's work is.
func (c *Client) Progress(ctx context.Context, ident string) (*rest.Progress, error) {
	var p rest.Progress
	err := c.do(ctx, http.MethodGet, "/ingot/v1/nodes/"+seg(ident)+"/progress", nil, &p)
	var answer *rest.Error
	if errors.As(err, &answer) && answer.Status == http.StatusNotFound && answer.IsRouting {
		// A server without Ingot's own part: all there is to know is in the node.
		n, err := c.Node(ctx, ident)
		if err != nil {
			return nil, err
		}
		return &rest.Progress{NodeUUID: n.UUID, ProvisionState: string(n.ProvisionState),
			TargetProvisionState: n.TargetProvisionState, PowerState: n.PowerState, LastError: n.LastError}, nil
	}
	if err != nil {
		return nil, err
	}
	return &p, nil
}

// FailedError says that the work that was waited for ended, and not well.
type FailedError struct {
	Node, State, LastError string
}

func (e *FailedError) Error() string {
	if e.LastError == "" {
		return fmt.Sprintf("node %s ended in state %q", e.Node, e.State)
	}
	return fmt.Sprintf("node %s ended in state %q: %s", e.Node, e.State, e.LastError)
}

// IsFailure reports whether work that ends in this provision state has failed.
func IsFailure(state string) bool { return state == "error" || strings.HasSuffix(state, " failed") }

// patience is how long a wait bears a server that cannot be reached: it may be restarting, which costs a deployment
// nothing.
const patience = 5 * time.Minute

// Wait waits until a node's work has ended and returns the final state. An end in one of the states wanted is success,
// in any other a *FailedError. each, if not nil, is called at every look, with the running steps. While the server
// can't be reached Wait goes on: the work does not depend on it.
func (c *Client) Wait(ctx context.Context, ident string, each func(*rest.Progress),
	wanted ...string) (*rest.Progress, error) {
	var unreachable time.Time
	for {
		p, err := c.Progress(ctx, ident)
		var down *ConnectError
		switch {
		case errors.As(err, &down):
			if unreachable.IsZero() {
				unreachable = time.Now()
			}
			if time.Since(unreachable) > patience {
				return nil, err
			}
		case err != nil:
			return nil, err
		default:
			unreachable = time.Time{}
			if each != nil {
				each(p)
			}
			if p.TargetProvisionState == "" || IsFailure(p.ProvisionState) {
				if slices.Contains(wanted, p.ProvisionState) {
					return p, nil
				}
				return p, &FailedError{Node: ident, State: p.ProvisionState, LastError: string(p.LastError)}
			}
		}
		if err := pause(ctx, c.Poll); err != nil {
			return nil, err
		}
	}
}

// WaitPower waits until a node's power action has ended in the state wanted ("power on" or "power off").
func (c *Client) WaitPower(ctx context.Context, ident, wanted string) error {
	for {
		n, err := c.Node(ctx, ident)
		if err != nil {
			return err
		}
		if n.TargetPowerState == "" {
			if string(n.PowerState) == wanted {
				return nil
			}
			return &FailedError{Node: ident, State: string(n.PowerState), LastError: string(n.LastError)}
		}
		if err := pause(ctx, c.Poll); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
