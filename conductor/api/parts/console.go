package parts

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/console"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// Consoles are sessions at the consoles of this conductor's nodes.
type Consoles interface {
	Open(n *node.Node, user string, take bool) (id string, err error)
	Read(ctx context.Context, node, id, user string, after int64) (console.Output, error)
	Type(node, id, user string, b []byte) error
	Close(node, id, user string) error
}

// consoleRoutes are those by which people work at a console. They are Ingot's own, since console_info of Ironic's is an
// address at which somebody else serves it.
func (s *Handlers) consoleRoutes() []call.Route {
	const opened, session = "/ingot/v1/nodes/{node}/console", "/ingot/v1/nodes/{node}/console/{session}"
	done := call.None(http.StatusNoContent)
	return []call.Route{
		{Method: http.MethodPost, Path: opened, Access: call.Use, Takes: call.Body(nil, call.Args{"take": call.Flag}),
			Answers: call.OK(rest.Console{}), Handle: s.atOwner(s.openConsole)},
		{Method: http.MethodGet, Path: session, Access: call.Use, Session: true, Query: call.Named,
			Args: call.Args{"after": call.Number}, Answers: call.OK(rest.ConsoleOutput{}),
			Handle: s.atOwner(s.readConsole)},
		{Method: http.MethodPost, Path: session, Access: call.Use, Session: true,
			Takes: call.Body([]string{"input"}, call.Args{"input": call.Text}), Answers: done,
			Handle: s.atOwner(s.typeConsole)},
		{Method: http.MethodDelete, Path: session, Access: call.Use, Session: true, Answers: done,
			Handle: s.atOwner(s.closeConsole)},
	}
}

// consoleError words the errors of sessions.
func consoleError(err error) error {
	var used *console.InUseError
	switch {
	case errors.Is(err, console.ErrNone):
		return rest.NotFound("%s", err.Error())
	case errors.As(err, &used), errors.Is(err, console.ErrSlow):
		return rest.Conflict("%s", err.Error())
	case errors.Is(err, console.ErrFull):
		return rest.Fault(http.StatusServiceUnavailable, "%s", err.Error())
	}
	return err
}

func (s *Handlers) openConsole(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, aerr := c.Arguments("take")
	if aerr != nil {
		return nil, aerr
	}
	take := false
	if v := b["take"]; v != nil {
		if take, aerr = document.Argument("take", v); aerr != nil {
			return nil, aerr
		}
	}
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	if s.consoles == nil {
		return nil, &hardware.UnsupportedError{Driver: n.Driver, Feature: "console"}
	}
	id, err := s.consoles.Open(n, c.User, take)
	if err != nil {
		return nil, consoleError(err)
	}
	if err := s.keep(ctx, c, n, "console opened", func(*node.Node) {}); err != nil {
		return nil, errors.Join(err, s.consoles.Close(n.UUID, id, c.User)) // no user works there unnoticed
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.Console{NodeUUID: n.UUID, Session: id}}, nil
}

// inSession finds the node of a session's request.
func (s *Handlers) inSession(ctx context.Context, c *call.Call) (uuid, id string, err error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return "", "", err
	}
	if s.consoles == nil {
		return "", "", consoleError(console.ErrNone)
	}
	return n.UUID, c.Path["session"], nil
}

func (s *Handlers) readConsole(ctx context.Context, c *call.Call) (*call.Reply, error) {
	after := int64(0)
	if a := c.Text("after"); a != nil {
		var err error
		if after, err = strconv.ParseInt(*a, 10, 64); err != nil || after < 0 {
			return nil, rest.BadRequest("Expected a place in the output for after: %s", *a)
		}
	}
	uuid, id, err := s.inSession(ctx, c)
	if err != nil {
		return nil, err
	}
	out, err := s.consoles.Read(ctx, uuid, id, c.User, after)
	if err != nil {
		return nil, consoleError(err)
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.ConsoleOutput{
		Output: base64.StdEncoding.EncodeToString(out.Bytes), Next: out.Next, Lost: out.Lost,
		Ended: rest.Null(out.Ended)}}, nil
}

func (s *Handlers) typeConsole(ctx context.Context, c *call.Call) (*call.Reply, error) {
	v, aerr := c.Argument("input")
	if aerr != nil {
		return nil, aerr
	}
	text, is := v.(string)
	input, err := base64.StdEncoding.DecodeString(text)
	if err != nil || !is {
		return nil, rest.BadRequest("input is not base64")
	}
	if len(input) > limit.ConsoleInput {
		return nil, rest.BadRequest("input has %d bytes, of at most %d at a time", len(input), limit.ConsoleInput)
	}
	uuid, id, err := s.inSession(ctx, c)
	if err != nil {
		return nil, err
	}
	return call.NoContent(), consoleError(s.consoles.Type(uuid, id, c.User, input))
}

func (s *Handlers) closeConsole(ctx context.Context, c *call.Call) (*call.Reply, error) {
	uuid, id, err := s.inSession(ctx, c)
	if err != nil {
		return nil, err
	}
	return call.NoContent(), consoleError(s.consoles.Close(uuid, id, c.User))
}
