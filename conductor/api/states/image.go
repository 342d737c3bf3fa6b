package states

import (
	"context"
	"errors"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/imagecheck"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/images/inspect"
)

// Images looks at images.
type Images interface {
	Check(ctx context.Context, address string) (*inspect.Report, error)
}

// checkImage says what the image at an address is, which need not be the one that the node has in its instance_info.
func (s *Handlers) checkImage(ctx context.Context, c *call.Call) (*call.Reply, error) {
	v, aerr := c.Argument("image_source")
	if aerr != nil {
		return nil, aerr
	}
	source, _ := v.(string)
	if _, err := s.find.Node(ctx, c); err != nil {
		return nil, err
	}
	if s.images == nil {
		return nil, rest.NotFound("This server looks at no images.")
	}
	report, err := s.images.Check(ctx, s.engine.ImageURL(source))
	// What answers at an address of the site is for those of the system. Others learn of images alone.
	all := c.Actor.All || c.Actor.System
	if err == nil && report.Format == "" && report.Published == nil && !all {
		err = errors.New("it is no image")
	}
	switch {
	case errors.Is(err, imagecheck.ErrBusy):
		return nil, rest.Fault(http.StatusServiceUnavailable, "%s", err.Error())
	case errors.Is(err, imagecheck.ErrScheme):
		return nil, rest.BadRequest("%s", err.Error())
	case err != nil && all:
		return nil, rest.BadRequest("The conductor can't read the image %s: %v. Machines may, if they reach another network.",
			redact.URL(source), err)
	case err != nil:
		return nil, rest.BadRequest("The conductor can't read an image at %s. Check the address; machines may read it all the same, if they reach another network.",
			redact.URL(source))
	}
	return &call.Reply{Status: http.StatusOK, Body: report}, nil
}
