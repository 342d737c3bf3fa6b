package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Keys of driver_info with passwords: the one in use, and one that is being set and not proven yet.
const (
	presentPassword = "redfish_password"
	nextPassword    = "redfish_new_password"
	authType        = "redfish_auth_type"
)

// passwordTime bounds a change of a password with all its logins.
const passwordTime = 3 * time.Minute

// SetControllerPassword sets the password of a node's account at its controller, logs in with it, and stores it. The
// new one is stored beside the present one before it is set, and one of the two is removed only when the other has been
// proven by a login: whenever this ends early, the next reading of the power finds out which of them is right.
func (e *Engine) SetControllerPassword(ctx context.Context, ident, password, user string) error {
	n, err := e.db.Node(ctx, ident)
	if err != nil {
		return err
	}
	if err := e.Here(n); err != nil {
		return err
	}
	d, err := e.drivers.Open(n)
	if err != nil {
		return err
	}
	_, can := power.As[power.PasswordDriver](d)
	key := d.Key()
	if err := d.Close(); err != nil {
		return err
	}
	if !can {
		return node.Invalidf("the power interface of node %s can't set the password of its controller: change it there, then in driver_info",
			n.UUID)
	}
	// A client that goes away leaves nothing half done.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), passwordTime)
	defer cancel()
	me := "password " + uuid.NewString()
	if err := e.bmcs.Wait(ctx, key, me); err != nil {
		return e.locked(n, "its controller is in use")
	}
	defer e.bmcs.Release(me)
	if n, err = e.db.Node(ctx, n.UUID); err != nil {
		return err
	}
	if err := e.Here(n); err != nil { // it was handed over meanwhile
		return err
	}
	if n.DriverInfo[nextPassword] != nil { // of an earlier change
		if err := e.settlePassword(ctx, n, nil, user); err != nil {
			return err
		}
	}
	n, err = e.change(ctx, n.UUID, func(n *node.Node, effects *node.SideEffects) error {
		if n.Job != nil || n.Reservation != "" {
			return e.locked(n, "an operation is under way")
		}
		n.DriverInfo = node.With(n.DriverInfo, nextPassword, any(password))
		e.history(n, effects, "monitoring", "INFO", "the password of the controller is being changed", user)
		return nil
	})
	if err != nil {
		return err
	}
	err = e.withAccount(n, n.DriverInfo, func(d power.Driver) error {
		p, ok := power.As[power.PasswordDriver](d)
		if !ok {
			return errMoved
		}
		return p.SetPassword(ctx, password)
	})
	return e.settlePassword(ctx, n, err, user)
}

// withAccount calls a node's controller with other driver_info.
func (e *Engine) withAccount(n *node.Node, info map[string]any, f func(power.Driver) error) error {
	as := *n
	as.DriverInfo = info
	d, err := e.drivers.Open(&as)
	if err != nil {
		return err
	}
	return errors.Join(f(d), d.Close())
}

// settlePassword finds out which of a node's two passwords is right, and removes the other one. set is why the new one
// may not have been set; it is returned when the present one is still right. The controller is locked.
func (e *Engine) settlePassword(ctx context.Context, n *node.Node, set error, user string) error {
	next := n.DriverInfo[nextPassword]
	logIn := func(info map[string]any) error {
		return e.withAccount(n, info, func(d power.Driver) error {
			ctx, cancel := context.WithTimeout(ctx, e.cfg.CallTimeout)
			defer cancel()
			_, err := d.Power(ctx)
			return err
		})
	}
	changed := true
	err := logIn(node.With(n.DriverInfo, presentPassword, next))
	if power.KindOf(err) == power.Auth {
		changed = false
		// A session from before would say nothing about the password.
		err = logIn(node.With(n.DriverInfo, authType, any("basic")))
	}
	if err != nil {
		return fmt.Errorf("neither password of the controller could be proven; both are kept until one is: %w",
			errors.Join(set, err))
	}
	_, err = e.change(ctx, n.UUID, func(n *node.Node, effects *node.SideEffects) error {
		if n.DriverInfo[nextPassword] != next {
			return errMoved
		}
		info := maps.Clone(n.DriverInfo)
		delete(info, nextPassword)
		said := "the controller's password is still the earlier one"
		if changed {
			info[presentPassword] = next
			said = "the controller's password is changed"
		}
		n.DriverInfo = info
		e.history(n, effects, "monitoring", "INFO", said, user)
		return nil
	})
	switch {
	case err != nil || changed:
		return err
	case set == nil:
		set = errors.New("the controller took the new password, but the earlier one is still right: reset the controller")
	}
	return set
}
