package redfish

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/quirk"
	"github.com/ingot-metal/ingot/conductor/node"
)

// targets are the boot devices, in Redfish's words.
var targets = map[power.Device]schemas.BootSource{
	power.BootPXE: schemas.PxeBootSource, power.BootDisk: schemas.HddBootSource, power.BootCDROM: schemas.CdBootSource,
	power.BootBIOS: schemas.BiosSetupBootSource, power.BootHTTP: schemas.UefiHTTPBootSource,
}

// usbCD is the name of some controllers for the drive of virtual media; the standard has none.
const usbCD schemas.BootSource = "UsbCd"

// modes are the boot modes.
var modes = map[string]schemas.BootSourceOverrideMode{
	"bios": schemas.LegacyBootSourceOverrideMode, "uefi": schemas.UEFIBootSourceOverrideMode,
}

// Devices lists those that Ironic's interface has. SetBoot takes power.BootNone, too, and clears the choice.
func (d *Driver) Devices() []power.Device {
	return []power.Device{power.BootPXE, power.BootDisk, power.BootCDROM, power.BootBIOS, power.BootHTTP}
}

// settings are the boot properties to send; those that are empty are left out.
type settings struct {
	Target  schemas.BootSource                `json:"BootSourceOverrideTarget,omitempty"`
	Enabled schemas.BootSourceOverrideEnabled `json:"BootSourceOverrideEnabled,omitempty"`
	Mode    schemas.BootSourceOverrideMode    `json:"BootSourceOverrideMode,omitempty"`
	Address string                            `json:"HttpBootUri,omitempty"`
}

// SetBoot changes the boot device and, if a mode is named that is not the current one, the boot mode: needless changes
// start a job on some controllers. A controller that keeps no device beyond one boot gets it for one boot; the engine
// sets it before each boot that it needs it for.
func (d *Driver) SetBoot(ctx context.Context, b power.Boot) error {
	op := "set boot device " + string(b.Device)
	target, ok := targets[b.Device]
	mode, modeOK := modes[b.Mode]
	switch {
	case !ok && b.Device != power.BootNone:
		return &power.Error{Kind: power.Unsupported, Op: op, Addr: d.c.Host(),
			Err: fmt.Errorf("unknown boot device %q", b.Device)}
	case !modeOK && b.Mode != "":
		return &power.Error{Kind: power.Unsupported, Op: op, Addr: d.c.Host(),
			Err: fmt.Errorf("unknown boot mode %q", b.Mode)}
	}
	want := settings{Target: target, Enabled: schemas.OnceBootSourceOverrideEnabled, Mode: mode, Address: b.Address}
	if b.Persistent {
		want.Enabled = schemas.ContinuousBootSourceOverrideEnabled
	}
	if b.Device == power.BootNone {
		want.Target, want.Enabled = schemas.NoneBootSource, schemas.DisabledBootSourceOverrideEnabled
	}
	return d.on(ctx, op, func(s *controller.System) error {
		if s.Quirks.Has(quirk.MediaByImport) && want.Target == schemas.CdBootSource {
			if err := d.patchBoot(ctx, s, settings{Mode: want.Mode}); err != nil {
				return err
			}
			return d.bootVirtualDisc(ctx, s, b.Persistent)
		}
		if s.Quirks.Has(quirk.NetworkIsHTTP) && want.Target == schemas.PxeBootSource {
			want.Target = schemas.UefiHTTPBootSource
		}
		if s.Quirks.Has(quirk.MediaIsUSBCD) && want.Target == schemas.CdBootSource {
			want.Target = usbCD
		}
		if s.Quirks.Has(quirk.KeepBootTarget) && want.Target == schemas.NoneBootSource {
			want.Target = ""
		}
		if b.Device == power.BootHTTP && len(s.Boot.Targets) > 0 && !slices.Contains(s.Boot.Targets, want.Target) {
			return &power.Error{Kind: power.Unsupported, Err: errors.New("the machine does not boot by HTTP")}
		}
		if err := d.patchBoot(ctx, s, want); err != nil {
			return err
		}
		if err := d.checkBoot(ctx, s.Path, want); err != nil {
			return err
		}
		// The address of an image of a boot that is over means nothing, and stays for anyone who reads it.
		if b.Address == "" && strings.Contains(s.Boot.HTTPBootURI, node.BootImagePath) {
			err := d.c.Patch(ctx, s.BootPath, "", map[string]any{"Boot": map[string]any{"HttpBootUri": nil}})
			if err != nil {
				d.log.Debug("the address of the boot image stays", "err", d.c.Error("forget", err))
			}
		}
		return nil
	})
}

// patchBoot sends boot settings in the form that the controller takes.
func (d *Driver) patchBoot(ctx context.Context, s *controller.System, want settings) error {
	now := s.Boot
	keep := want.Mode
	if keep == "" {
		keep = now.BootSourceOverrideMode
	}
	switch {
	case s.Quirks.Has(quirk.NoBootMode):
		want.Mode, keep = "", ""
	case s.Quirks.Has(quirk.WholeBoot):
		want.Mode = keep
		if want.Target == "" {
			want.Target = now.BootSourceOverrideTarget
		}
		if want.Enabled == "" {
			want.Enabled = now.BootSourceOverrideEnabled
		}
	case want.Mode == now.BootSourceOverrideMode:
		want.Mode = ""
	}
	if want.Enabled == schemas.ContinuousBootSourceOverrideEnabled && len(now.Enables) > 0 &&
		!slices.Contains(now.Enables, want.Enabled) {
		d.log.Info("the controller keeps no boot device beyond one boot: it is set for the next one",
			"device", string(want.Target))
		want.Enabled = schemas.OnceBootSourceOverrideEnabled
	}
	if want == (settings{}) {
		return nil
	}
	if err := d.send(ctx, s.BootPath, s.BootETag, want); err != nil {
		return err
	}
	if want.Target != "" && keep != "" && s.Quirks.Has(quirk.ModeAfterDevice) {
		return d.send(ctx, s.BootPath, "", settings{Mode: keep, Enabled: want.Enabled})
	}
	return nil
}

func (d *Driver) send(ctx context.Context, path, etag string, want settings) error {
	return d.c.Patch(ctx, path, etag, map[string]settings{"Boot": want})
}

// checkBoot reads the settings back: a controller may take a change and not make it.
func (d *Driver) checkBoot(ctx context.Context, path string, want settings) error {
	s, err := d.c.System(ctx, path)
	if err != nil {
		return err
	}
	got := s.Boot
	wrong := func(what, is, wanted string) error {
		return &power.Error{Kind: power.Refused,
			Err:  fmt.Errorf("the controller took it, but reports the %s %q, not %q", what, is, wanted),
			Hint: "reset the controller or update its firmware"}
	}
	off := schemas.DisabledBootSourceOverrideEnabled
	switch {
	case want.Enabled != off && got.BootSourceOverrideEnabled == off:
		return wrong("boot device", "None", string(want.Target))
	case want.Enabled == off && got.BootSourceOverrideEnabled != off && got.BootSourceOverrideEnabled != "":
		return wrong("boot device", string(got.BootSourceOverrideTarget), "None")
	case want.Enabled != off && want.Target != "" && got.BootSourceOverrideTarget != want.Target:
		return wrong("boot device", string(got.BootSourceOverrideTarget), string(want.Target))
	case want.Address != "" && got.HTTPBootURI != want.Address:
		return &power.Error{Kind: power.Unsupported,
			Err:  errors.New("the controller does not keep the address that the machine is to boot from (HttpBootUri)"),
			Hint: "use boot interface redfish-virtual-media"}
	case want.Mode != "" && got.BootSourceOverrideMode != "" && got.BootSourceOverrideMode != want.Mode:
		return wrong("boot mode", string(got.BootSourceOverrideMode), string(want.Mode))
	}
	return nil
}

// Boot reads the boot device and mode. Without an override, or with one that Ingot does not know, it is BootNone.
func (d *Driver) Boot(ctx context.Context) (power.Boot, error) {
	b := power.Boot{Device: power.BootNone}
	err := d.on(ctx, "read boot device", func(s *controller.System) error {
		for mode, v := range modes {
			if s.Boot.BootSourceOverrideMode == v {
				b.Mode = mode
			}
		}
		switch s.Boot.BootSourceOverrideEnabled {
		case schemas.OnceBootSourceOverrideEnabled, schemas.ContinuousBootSourceOverrideEnabled:
		default:
			return nil
		}
		b.Persistent = s.Boot.BootSourceOverrideEnabled == schemas.ContinuousBootSourceOverrideEnabled
		for dev, v := range targets {
			if at := s.Boot.BootSourceOverrideTarget; at == v || at == usbCD && v == schemas.CdBootSource {
				b.Device = dev
			}
		}
		if b.Device == power.BootHTTP {
			b.Address = s.Boot.HTTPBootURI
			if b.Address == "" && s.Quirks.Has(quirk.NetworkIsHTTP) {
				b.Device = power.BootPXE
			}
		}
		return nil
	})
	return b, err
}

// setBootMode changes the mode of all later boots.
func (d *Driver) setBootMode(ctx context.Context, mode string) error {
	return d.on(ctx, "set boot mode "+mode, func(s *controller.System) error {
		v, ok := modes[mode]
		if !ok || s.Quirks.Has(quirk.NoBootMode) {
			return &power.Error{Kind: power.Unsupported, Err: fmt.Errorf("the controller has no boot mode %q to choose", mode)}
		}
		if s.Boot.BootSourceOverrideMode == v {
			return nil
		}
		if err := d.patchBoot(ctx, s, settings{Mode: v}); err != nil {
			return err
		}
		return d.checkMode(ctx, s.Path, v)
	})
}

func (d *Driver) checkMode(ctx context.Context, path string, want schemas.BootSourceOverrideMode) error {
	s, err := d.c.System(ctx, path)
	if err == nil && s.Boot.BootSourceOverrideMode != want {
		err = &power.Error{Kind: power.Refused, Err: fmt.Errorf("the controller took it, but reports the boot mode %q",
			s.Boot.BootSourceOverrideMode), Hint: "a change of the boot mode may need a restart of the machine"}
	}
	return err
}

// setSecureBoot turns Secure Boot on or off, from the next boot on.
func (d *Driver) setSecureBoot(ctx context.Context, on bool) error {
	op := map[bool]string{true: "turn Secure Boot on", false: "turn Secure Boot off"}[on]
	return d.on(ctx, op, func(s *controller.System) error {
		if s.SecureBoot == "" {
			return &power.Error{Kind: power.Unsupported, Err: errors.New("the controller does not control Secure Boot"),
				Hint: "choose it in the machine's firmware"}
		}
		if on && s.Boot.BootSourceOverrideMode == schemas.LegacyBootSourceOverrideMode {
			return &power.Error{Kind: power.Refused, Err: errors.New("the boot mode is bios"),
				Hint: "set the boot mode to uefi first"}
		}
		var now struct{ SecureBootEnable bool }
		path := string(s.SecureBoot)
		etag, err := d.c.Read(ctx, path, &now)
		if controller.Status(err) == http.StatusNotFound {
			return &power.Error{Kind: power.Unsupported, Err: errors.New("the controller does not control Secure Boot"),
				Hint: "choose it in the machine's firmware"}
		}
		if err != nil || now.SecureBootEnable == on {
			return err
		}
		return d.c.Patch(ctx, path, etag, map[string]bool{"SecureBootEnable": on})
	})
}

// injectNMI interrupts the operating system, which may then write a dump.
func (d *Driver) injectNMI(ctx context.Context) error {
	return d.on(ctx, "inject NMI", func(s *controller.System) error {
		if isPower(s, power.Off) {
			return &power.Error{Kind: power.Refused, Err: errors.New("the machine is off"), Hint: "turn it on"}
		}
		return d.reset(ctx, s, nmi, resets[nmi])
	})
}
