package redfish

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/quirk"
)

// mostAccounts bounds how many accounts of a controller are looked at.
const mostAccounts = 64

// SetPassword sets the password of the account that the driver uses. The service may end its sessions with it.
func (d *Driver) SetPassword(ctx context.Context, password string) error {
	err := d.on(ctx, "set the password", func(s *controller.System) error { return d.setPassword(ctx, s, password) })
	var pe *power.Error
	if errors.As(err, &pe) && pe.Err != nil && strings.Contains(pe.Err.Error(), password) {
		pe.Err = errors.New(strings.ReplaceAll(pe.Err.Error(), password, "******"))
	}
	return err
}

func (d *Driver) setPassword(ctx context.Context, s *controller.System, password string) error {
	var root struct{ AccountService schemas.Link }
	if _, err := d.c.Read(ctx, "/redfish/v1/", &root); err != nil {
		return err
	}
	if root.AccountService == "" {
		return &power.Error{Kind: power.Unsupported, Err: errors.New("the controller does not show its accounts"),
			Hint: "change the password there, then in driver_info"}
	}
	var service struct {
		MinPasswordLength, MaxPasswordLength int
		Accounts                             schemas.Link
	}
	if _, err := d.c.Read(ctx, string(root.AccountService), &service); err != nil {
		return err
	}
	n, most := len(password), service.MaxPasswordLength
	if n < service.MinPasswordLength || most > 0 && n > most {
		return controller.Config("choose another password", "the controller takes passwords of %d to %d characters, this one has %d",
			service.MinPasswordLength, most, n)
	}
	var all struct{ Members schemas.Links }
	if _, err := d.c.Read(ctx, string(service.Accounts), &all); err != nil {
		return err
	}
	for _, path := range all.Members.ToStrings()[:min(len(all.Members), mostAccounts)] {
		var account struct{ UserName, RoleId string }
		tag, err := d.c.Read(ctx, path, &account)
		if err != nil {
			return err
		}
		if account.UserName != d.c.User() {
			continue
		}
		change := map[string]any{"Password": password}
		if s.Quirks.Has(quirk.WholeAccount) {
			change["UserName"], change["RoleId"], change["Enabled"] = account.UserName, account.RoleId, true
		}
		d.log.Debug("set the password of the account", "path", path)
		return d.c.Patch(ctx, path, tag, change)
	}
	return &power.Error{Kind: power.Unsupported, Err: fmt.Errorf("the account %q is none of the controller's own", d.c.User()),
		Hint: "change its password where it is kept, then in driver_info"}
}
