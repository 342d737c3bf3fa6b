package power

import (
	"context"
	"io"
)

// Checked is a driver that calls check before each call that may reach the controller, and returns its error instead.
// As finds the further interfaces of what it wraps, checked too.
func Checked(d Driver, check func() error) Driver { return &checked{d, check} }

// As returns the driver as one of the further interfaces of this package; false if it has not that one.
func As[T any](d Driver) (t T, ok bool) {
	if c, wraps := d.(*checked); wraps {
		if _, ok = c.Driver.(T); !ok {
			return t, false
		}
	}
	t, ok = d.(T)
	return t, ok
}

// checkKey is of the check in a context.
type checkKey struct{}

// WithCheck returns a context in which nothing is sent to a controller while check returns an error. A call can take
// many packets, and the time for it may come to an end between two of them.
func WithCheck(ctx context.Context, check func() error) context.Context {
	return context.WithValue(ctx, checkKey{}, check)
}

// MaySend asks the check of a context, if it has one. Drivers ask before each packet or request, and return its error.
func MaySend(ctx context.Context) error {
	if check, ok := ctx.Value(checkKey{}).(func() error); ok {
		return check()
	}
	return nil
}

type checked struct {
	Driver
	check func() error
}

func (c *checked) Power(ctx context.Context) (State, error) {
	if err := c.check(); err != nil {
		return Unknown, err
	}
	return c.Driver.Power(WithCheck(ctx, c.check))
}

func (c *checked) SetPower(ctx context.Context, a Action) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.Driver.SetPower(WithCheck(ctx, c.check), a)
}

func (c *checked) SetBoot(ctx context.Context, b Boot) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.Driver.SetBoot(WithCheck(ctx, c.check), b)
}

func (c *checked) Boot(ctx context.Context) (Boot, error) {
	if err := c.check(); err != nil {
		return Boot{}, err
	}
	return c.Driver.Boot(WithCheck(ctx, c.check))
}

func (c *checked) SystemGUIDs(ctx context.Context) ([]string, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	return c.Driver.SystemGUIDs(WithCheck(ctx, c.check))
}

// What follows is called by way of As only, so that the driver has it.

func (c *checked) Rows() []string { return RowsOf(c.Driver) }

func (c *checked) SetPassword(ctx context.Context, password string) error {
	d, ok := c.Driver.(PasswordDriver)
	if err := c.checkFor("set password", ok); err != nil {
		return err
	}
	return d.SetPassword(WithCheck(ctx, c.check), password)
}

func (c *checked) Vendor(ctx context.Context) (string, error) {
	d, ok := c.Driver.(VendorTeller)
	if err := c.checkFor("read vendor", ok); err != nil {
		return "", err
	}
	return d.Vendor(WithCheck(ctx, c.check))
}

func (c *checked) WatchConsole(ctx context.Context, w io.Writer) error {
	d, ok := c.Driver.(ConsoleWatcher)
	if err := c.checkFor("read console", ok); err != nil {
		return err
	}
	return d.WatchConsole(WithCheck(ctx, c.check), w)
}

func (c *checked) InsertMedia(ctx context.Context, image BootImage) (bool, error) {
	d, ok := c.Driver.(MediaDriver)
	if err := c.checkFor("insert virtual media", ok); err != nil {
		return false, err
	}
	return d.InsertMedia(WithCheck(ctx, c.check), image)
}

func (c *checked) EjectMedia(ctx context.Context) error {
	d, ok := c.Driver.(MediaDriver)
	if err := c.checkFor("eject virtual media", ok); err != nil {
		return err
	}
	return d.EjectMedia(WithCheck(ctx, c.check))
}

func (c *checked) checkFor(op string, ok bool) error {
	if !ok {
		return &Error{Kind: Unsupported, Op: op, Addr: c.Key()}
	}
	return c.check()
}
