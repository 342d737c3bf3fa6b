package ironic

import (
	"context"
	"errors"
	"time"
)

// Alone starts only the ingotd of a Pair, for recorded answers of an Ironic. With Keystone, directory is a running one.
func Alone(ctx context.Context, o Options, directory Directory) (*Pair, error) {
	o.patience = 3 * time.Minute
	if o.Auth == "" {
		o.Auth = None
	}
	if err := listen(&o.IngotAddr); err != nil {
		return nil, err
	}
	p := &Pair{Ingot: "http://" + o.IngotAddr, o: o}
	if err := p.folder(); err != nil {
		return nil, err
	}
	access, err := p.users(ctx, directory)
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
