package power

import (
	"context"
	"io"
	"time"
)

// Checked is a driver that calls check before each call that may reach the controller, and returns its error instead;
// and done, unless nil, after each call that ends by itself. As finds the further interfaces of what it wraps, checked
// too.
func Checked(d Driver, check func() error, done func(call string, took time.Duration, err error)) Driver {
	if done == nil {
		done = func(string, time.Duration, error) {}
	}
	return &checked{d, check, done}
}

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
	done  func(call string, took time.Duration, err error)
}

// call makes a call, if that is allowed.
func (c *checked) call(ctx context.Context, name string, f func(ctx context.Context) error) error {
	if err := c.check(); err != nil {
		return err
	}
	began := time.Now()
	err := f(WithCheck(ctx, c.check))
	c.done(name, time.Since(began), err)
	return err
}

func (c *checked) Power(ctx context.Context) (st State, err error) {
	err = c.call(ctx, "read power", func(ctx context.Context) error {
		st, err = c.Driver.Power(ctx)
		return err
	})
	return st, err
}

func (c *checked) SetPower(ctx context.Context, a Action) error {
	return c.call(ctx, "set power", func(ctx context.Context) error { return c.Driver.SetPower(ctx, a) })
}

func (c *checked) SetBoot(ctx context.Context, b Boot) error {
	return c.call(ctx, "set boot device", func(ctx context.Context) error { return c.Driver.SetBoot(ctx, b) })
}

func (c *checked) Boot(ctx context.Context) (b Boot, err error) {
	err = c.call(ctx, "read boot device", func(ctx context.Context) error {
		b, err = c.Driver.Boot(ctx)
		return err
	})
	return b, err
}

func (c *checked) SystemGUIDs(ctx context.Context) (ids []string, err error) {
	err = c.call(ctx, "read identity", func(ctx context.Context) error {
		ids, err = c.Driver.SystemGUIDs(ctx)
		return err
	})
	return ids, err
}

// What follows is called by way of As only, so that the driver has it.

func (c *checked) Rows() []string { return RowsOf(c.Driver) }

func (c *checked) SetPassword(ctx context.Context, password string) error {
	d, ok := c.Driver.(PasswordDriver)
	return c.callIf(ctx, ok, "set password",
		func(ctx context.Context) error { return d.SetPassword(ctx, password) })
}

func (c *checked) Vendor(ctx context.Context) (name string, err error) {
	d, ok := c.Driver.(VendorTeller)
	err = c.callIf(ctx, ok, "read vendor", func(ctx context.Context) error {
		name, err = d.Vendor(ctx)
		return err
	})
	return name, err
}

func (c *checked) InjectNMI(ctx context.Context) error {
	return c.command(ctx, "send NMI", Commander.InjectNMI)
}

func (c *checked) ResetController(ctx context.Context, warm bool) error {
	return c.command(ctx, "restart controller",
		func(d Commander, ctx context.Context) error { return d.ResetController(ctx, warm) })
}

func (c *checked) Raw(ctx context.Context, netFn, command byte, data []byte) error {
	return c.command(ctx, "send command",
		func(d Commander, ctx context.Context) error { return d.Raw(ctx, netFn, command, data) })
}

func (c *checked) command(ctx context.Context, name string, f func(Commander, context.Context) error) error {
	d, ok := c.Driver.(Commander)
	return c.callIf(ctx, ok, name, func(ctx context.Context) error { return f(d, ctx) })
}

// Console and WatchConsole go on for as long as their caller wants: their time says nothing.
func (c *checked) Console(ctx context.Context, in io.Reader, out io.Writer) error {
	d, ok := c.Driver.(Console)
	if !ok {
		return c.lacks("work at the console")
	}
	if err := c.check(); err != nil {
		return err
	}
	return d.Console(WithCheck(ctx, c.check), in, out)
}

func (c *checked) WatchConsole(ctx context.Context, w io.Writer) error {
	d, ok := c.Driver.(ConsoleWatcher)
	if !ok {
		return c.lacks("read console")
	}
	if err := c.check(); err != nil {
		return err
	}
	return d.WatchConsole(WithCheck(ctx, c.check), w)
}

func (c *checked) InsertMedia(ctx context.Context, image BootImage) (safe bool, err error) {
	d, ok := c.Driver.(MediaDriver)
	err = c.callIf(ctx, ok, "insert virtual media", func(ctx context.Context) error {
		safe, err = d.InsertMedia(ctx, image)
		return err
	})
	return safe, err
}

func (c *checked) EjectMedia(ctx context.Context) error {
	d, ok := c.Driver.(MediaDriver)
	return c.callIf(ctx, ok, "eject virtual media", func(ctx context.Context) error { return d.EjectMedia(ctx) })
}

// callIf is call for what the driver may lack.
func (c *checked) callIf(ctx context.Context, has bool, name string, f func(ctx context.Context) error) error {
	if !has {
		return c.lacks(name)
	}
	return c.call(ctx, name, f)
}

func (c *checked) lacks(op string) error { return &Error{Kind: Unsupported, Op: op, Addr: c.Key()} }
