package ipmi

import (
	"context"
	"fmt"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

var selectors = map[power.Device]types.BootDeviceSelector{
	power.BootNone:  types.BootDeviceSelectorNoOverride,
	power.BootPXE:   types.BootDeviceSelectorForcePXE,
	power.BootDisk:  types.BootDeviceSelectorForceHardDrive,
	power.BootSafe:  types.BootDeviceSelectorForceHardDriveSafe,
	power.BootCDROM: types.BootDeviceSelectorForceCDROM,
	power.BootBIOS:  types.BootDeviceSelectorForceBIOSSetup,
}

// Devices lists what SetBoot accepts.
func (d *Driver) Devices() []power.Device {
	return []power.Device{power.BootPXE, power.BootDisk, power.BootCDROM, power.BootBIOS, power.BootSafe,
		power.BootNone}
}

// SetBoot writes the boot flags and reads them back. With Mode "" the EFI bit that is set now stays.
func (d *Driver) SetBoot(ctx context.Context, b power.Boot) error {
	op := "set boot device " + string(b.Device)
	selector, ok := selectors[b.Device]
	if !ok {
		return &power.Error{Kind: power.Unsupported, Op: op, Addr: d.opt.addr,
			Err: fmt.Errorf("unknown boot device %q", b.Device)}
	}
	if b.Mode != "" && b.Mode != "bios" && b.Mode != "uefi" {
		return &power.Error{Kind: power.Unsupported, Op: op, Addr: d.opt.addr,
			Err: fmt.Errorf("unknown boot mode %q", b.Mode)}
	}
	return d.do(ctx, op, repeatable, func(ctx context.Context, c *client.Client) error {
		efi := types.BIOSBootType(b.Mode == "uefi")
		if b.Mode == "" {
			var now types.BootOptionParam_BootFlags
			if err := c.GetSystemBootOptionsParamFor(ctx, &now); err == nil {
				efi = now.BIOSBootType
			} else if _, answered := completionCode(err); !answered {
				return err
			}
		}
		if !d.opt.keepBootTimeout {
			// By default the flags lapse 60 s after they were set unless the machine started by then. Not every
			// controller knows this parameter, and those that don't keep the flags anyway.
			err := c.SetSystemBootOptionsParamFor(ctx,
				&types.BootOptionParam_BMCBootFlagValidBitClear{DontClearOnCommandReceivedTimeout: true})
			if err != nil {
				if _, answered := completionCode(err); !answered {
					return err
				}
				d.log.Debug("controller keeps its boot flag timeout", "err", err)
			}
		}
		want := types.BootOptionParam_BootFlags{BootFlagsValid: true, Persist: b.Persistent, BIOSBootType: efi,
			BootDeviceSelector: selector}
		if err := c.SetSystemBootOptionsParamFor(ctx, &want); err != nil {
			return err
		}
		var got types.BootOptionParam_BootFlags
		if err := c.GetSystemBootOptionsParamFor(ctx, &got); err != nil {
			if _, answered := completionCode(err); answered {
				d.log.Debug("boot device can't be read back", "err", err)
				return nil
			}
			return err
		}
		switch {
		case !got.BootFlagsValid:
			// Some firmware takes the flags over into its own setup at once and clears them here.
			d.log.Debug("boot flags are not valid when read back")
		case got.BootDeviceSelector != selector:
			return &power.Error{
				Kind: power.Refused,
				Err:  fmt.Errorf("the controller took it, but reports %q", device(got.BootDeviceSelector)),
				Hint: "reset the controller or update its firmware"}
		case got.Persist != b.Persistent || got.BIOSBootType != efi:
			d.log.Warn("controller changed the boot flags", "persistent", got.Persist, "efi", bool(got.BIOSBootType))
		}
		return nil
	})
}

// Boot reads the boot flags. Flags that are not valid are BootNone.
func (d *Driver) Boot(ctx context.Context) (power.Boot, error) {
	var flags types.BootOptionParam_BootFlags
	err := d.do(ctx, "read boot device", repeatable, func(ctx context.Context, c *client.Client) error {
		return c.GetSystemBootOptionsParamFor(ctx, &flags)
	})
	if err != nil {
		return power.Boot{}, err
	}
	if !flags.BootFlagsValid {
		return power.Boot{Device: power.BootNone}, nil
	}
	b := power.Boot{Device: device(flags.BootDeviceSelector), Persistent: flags.Persist, Mode: "bios"}
	if flags.BIOSBootType {
		b.Mode = "uefi"
	}
	return b, nil
}

func device(s types.BootDeviceSelector) power.Device {
	for dev, sel := range selectors {
		if sel == s {
			return dev
		}
	}
	switch s {
	case types.BootDeviceSelectorForceRemoteCDROM, types.BootDeviceSelectorForceRemoteMedia:
		return power.BootCDROM
	case types.BootDeviceSelectorForceRemoteHardDrive, types.BootDeviceSelectorForceDiagnosticPartition:
		return power.BootDisk
	}
	return power.BootNone
}
