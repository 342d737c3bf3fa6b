package ironic

import (
	"context"
	"errors"
	"time"
)

// Alone starts only the ingotd of a Pair, with nobody asked who they are: for what was recorded of an Ironic.
func Alone(ctx context.Context, o Options) (*Pair, error) {
	o.Auth, o.patience = None, 3*time.Minute
	if err := listen(&o.IngotAddr); err != nil {
		return nil, err
	}
	p := &Pair{Ingot: "http://" + o.IngotAddr, o: o}
	if err := p.folder(); err != nil {
		return nil, err
	}
	access, err := p.users(ctx)
	if err == nil {
		err = p.writeIngot(access)
	}
	if err == nil {
		err = p.ingot(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}
