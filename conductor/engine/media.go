package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/netdata"
)

// MediaBoots are the boot interfaces of machines that start the agent from virtual media.
var MediaBoots = []string{"redfish-virtual-media", "idrac-redfish-virtual-media"}

// HTTPBoot is the boot interface of machines whose firmware loads the same image by HTTP from the address that their
// controller gives it.
const HTTPBoot = "redfish-https"

// networkHTTP are the boot interfaces of machines that load the boot program by HTTP from the address that DHCP names.
var networkHTTP = []string{"http", "http-ipxe"}

// bootsImage reports whether a boot interface starts the agent from an image of the node's own.
func bootsImage(boot string) bool { return slices.Contains(MediaBoots, boot) || boot == HTTPBoot }

// BootImages serves the images that machines start the agent from.
type BootImages interface {
	// BootImage returns the image for the present boot of a node, and the SHA-256 (hex) of the token in it. Address and
	// token stay the same as long as the boot does, whichever conductor is asked.
	BootImage(ctx context.Context, n *node.Node) (image power.BootImage, tokenHash string, err error)
}

// SetBootImages sets the server of boot images; before Run. Without it no machine boots from virtual media.
func (e *Engine) SetBootImages(b BootImages) { e.images = b }

// bootFault returns why a node's boot interface can't be used here; nil if it can.
func (e *Engine) bootFault(n *node.Node) error {
	boot := e.drivers.Interface(n, "boot")
	if !bootsImage(boot) {
		return nil
	}
	if e.images == nil {
		return node.Invalidf(
			"this conductor serves no boot images, which boot interface %s of node %s needs: set netboot.interface or netboot.address",
			boot, n.UUID)
	}
	if mode, from := e.site().BootMode(n); boot == HTTPBoot && mode == "bios" {
		return node.Invalidf("boot interface %s of node %s needs UEFI, but %s", boot, n.UUID, from)
	}
	if _, err := netdata.JSON(n.NetworkData); err != nil {
		return node.Invalidf("the agent could not set up the network_data of node %s: %v", n.UUID, err)
	}
	return nil
}

// bootImage makes the image of the present boot. Stored are its token, and whether there may be an image to eject.
func (p *pass) bootImage(ctx context.Context, inserted bool) (image power.BootImage, err error) {
	if err := p.e.bootFault(p.n); err != nil {
		return image, failf("%v", err)
	}
	image, hash, err := p.e.images.BootImage(ctx, p.n)
	if err != nil {
		return image, failf("make the boot image: %v", err)
	}
	_, err = p.change(ctx, func(n *node.Node, _ *node.SideEffects) error {
		n.MediaInserted = inserted
		n.InstanceDisc = n.InstanceDisc && !inserted
		n.Boot.TokenHash, n.Boot.TokenExpires, n.Boot.TokensServed = hash, n.Boot.ClosesAt, 1
		return nil
	})
	return image, err
}

// insertMedia puts the boot image into the machine's virtual drive. Stored before are the token, and that there may be
// an image to eject. Checked says that the controller checks the certificate of the image's server.
func (p *pass) insertMedia(ctx context.Context) (checked bool, err error) {
	image, err := p.bootImage(ctx, true)
	if err != nil {
		return false, err
	}
	return p.insert(ctx, image)
}

// insertDisc puts an instance's ISO image into the machine's virtual drive, in place of the agent's. Stored before is
// that it may be there.
func (p *pass) insertDisc(ctx context.Context, address string) error {
	_, err := p.change(ctx, func(n *node.Node, _ *node.SideEffects) error {
		n.InstanceDisc = true
		return nil
	})
	if err == nil {
		_, err = p.insert(ctx, power.BootImage{Address: address, Plain: address})
	}
	if err != nil {
		return err
	}
	_, err = p.change(ctx, func(n *node.Node, _ *node.SideEffects) error {
		n.MediaInserted = false
		return nil
	})
	return err
}

func (p *pass) insert(ctx context.Context, image power.BootImage) (checked bool, err error) {
	const op = "insert virtual media"
	return checked, p.call(ctx, op, func(ctx context.Context, d power.Driver) error {
		m, ok := power.As[power.MediaDriver](d)
		if !ok {
			return &power.Error{Kind: power.Unsupported, Op: op, Addr: d.Key(),
				Err: errors.New("the node's power interface has no virtual media"), Hint: "set its boot_interface to ipxe"}
		}
		checked, err = m.InsertMedia(ctx, image)
		return err
	})
}

// ejectDisc takes an instance's ISO image out of the machine's virtual drive, when the instance ends.
func (p *pass) ejectDisc(ctx context.Context) error {
	if p.n.InstanceDisc {
		if _, err := p.change(ctx, func(n *node.Node, _ *node.SideEffects) error {
			n.InstanceDisc, n.MediaInserted = false, true
			return nil
		}); err != nil {
			return err
		}
	}
	return p.ejectMedia(ctx, true)
}

func eject(ctx context.Context, d power.Driver) error {
	if m, ok := power.As[power.MediaDriver](d); ok {
		return m.EjectMedia(ctx)
	}
	return nil // the node has another driver since
}

// ejectMedia takes the boot image out of the machine's virtual drive. If the controller does not do it, that is no
// reason to fail what was done on the machine: it is tried again when the power is read (ejectLeft). With retry, errors
// that may pass are returned, for as long as the step is tried again for them.
func (p *pass) ejectMedia(ctx context.Context, retry bool) error {
	if !p.n.MediaInserted {
		return nil
	}
	err := p.call(ctx, "eject virtual media", eject)
	mayPass := retry && power.Retryable(err) && p.n.Job.Attempt+1 < p.e.cfg.RetryTries
	if err != nil && (power.KindOf(err) == "" || mayPass) {
		return err
	}
	_, cerr := p.change(ctx, func(n *node.Node, effects *node.SideEffects) error {
		n.MediaInserted = err != nil
		if err != nil {
			p.e.history(n, effects, "boot", "WARNING",
				fmt.Sprintf("the boot image, which is not served any more, is still in the virtual drive: %v", err), "")
		}
		return nil
	})
	return cerr
}

// imageLeft reports whether a boot image may be in the drive of a machine that needs none.
func imageLeft(n *node.Node) bool {
	return n.MediaInserted && (n.Boot == nil || n.Boot.Ended || n.Boot.Kept)
}

// ejectLeft takes out the boot image of a job that ended without doing so: its agent stays, its machine was not turned
// off, or the controller did not answer then. The controller is locked.
func (e *Engine) ejectLeft(ctx context.Context, id string, d power.Driver) {
	err := eject(ctx, d)
	if err == nil {
		_, err = e.change(ctx, id, func(n *node.Node, effects *node.SideEffects) error {
			if n.Job != nil || !imageLeft(n) {
				return errMoved
			}
			n.MediaInserted = false
			e.history(n, effects, "boot", "INFO", "the boot image was taken out of the virtual drive", "")
			return nil
		})
	}
	if err != nil && ctx.Err() == nil {
		e.log.Warn("take the boot image out of the virtual drive", "node", id, "err", err)
	}
}
