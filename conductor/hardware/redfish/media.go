package redfish

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/quirk"
	"github.com/ingot-metal/ingot/conductor/node"
)

// drive is a resource VirtualMedia: what is used of it.
type drive struct {
	Path         string `json:"@odata.id"`
	MediaTypes   []schemas.VirtualMediaType
	Image        string
	Inserted     *bool
	ConnectedVia schemas.ConnectedVia
	// VerifyCertificate says whether the certificate of an image's server is checked; nil: the controller has no such
	// property.
	VerifyCertificate *bool
	Certificates      schemas.Link
	Actions           struct {
		Insert struct{ Target string } `json:"#VirtualMedia.InsertMedia"`
		Eject  struct{ Target string } `json:"#VirtualMedia.EjectMedia"`
	}
	etag string
}

// full reports whether a medium is in the drive. After an ejection some controllers go on showing Inserted, others the
// image's name: an image that is shown, or a connection, decide.
func (v *drive) full() bool {
	connected := v.ConnectedVia != "" && v.ConnectedVia != schemas.NotConnectedConnectedVia
	return v.Image != "" && (v.Inserted == nil || *v.Inserted) || connected && v.Inserted != nil && *v.Inserted
}

// discs are the media of Ironic's device cdrom, the best first: some controllers have DVD only.
var discs = []schemas.VirtualMediaType{schemas.CDVirtualMediaType, schemas.DVDVirtualMediaType}

// mediaTypes are the media of the devices of Ironic's API.
var mediaTypes = map[string][]schemas.VirtualMediaType{
	"cdrom": discs, "floppy": {schemas.FloppyVirtualMediaType}, "disk": {schemas.USBStickVirtualMediaType}}

// Bounds of a machine's drives, and of the waiting for a medium: a controller that answers 202 inserts it later.
const (
	maxDrives   = 16
	mediaLimit  = 20 * time.Second
	mediaWait   = 500 * time.Millisecond
	maxRefusals = 6 // of one drive
	insertTries = 3 // by a controller that fails
	insertWait  = 3 * time.Second
)

// drives lists the drives for virtual media: the system's, or those of its managers if it has none.
func (d *Driver) drives(ctx context.Context, s *controller.System) ([]*drive, error) {
	all, err := d.drivesOf(ctx, s.VirtualMedia)
	if err != nil || len(all) > 0 {
		return all, err
	}
	managers, err := d.managers(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, by := range managers {
		var m struct{ VirtualMedia schemas.Link }
		if _, err := d.c.Read(ctx, string(by), &m); err != nil {
			return nil, err
		}
		more, err := d.drivesOf(ctx, m.VirtualMedia)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all[:min(len(all), maxDrives)], nil
}

// managers lists the paths of the machine's managers: of one that does not say, all of the service are.
func (d *Driver) managers(ctx context.Context, s *controller.System) (schemas.Links, error) {
	if len(s.Links.ManagedBy) > 0 {
		return s.Links.ManagedBy, nil
	}
	return d.c.Managers(ctx)
}

// drivesOf lists the drives of a collection; "" has none. A drive that the service does not show is left out.
func (d *Driver) drivesOf(ctx context.Context, home schemas.Link) (all []*drive, err error) {
	var c struct{ Members schemas.Links }
	if home == "" {
		return nil, nil
	}
	if _, err := d.c.Read(ctx, string(home), &c); err != nil {
		return nil, err
	}
	for _, p := range c.Members[:min(len(c.Members), maxDrives)] {
		v, err := d.drive(ctx, string(p))
		if controller.Status(err) != 0 {
			d.log.Debug("the drive can't be read", "drive", string(p), "err", d.c.Error("read", err))
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

func (d *Driver) drive(ctx context.Context, path string) (*drive, error) {
	v := &drive{}
	var err error
	v.etag, err = d.c.Read(ctx, path, v)
	v.Path = path
	return v, err
}

// errNoMedia says that there is no drive to use.
func errNoMedia(what string) error {
	return &power.Error{Kind: power.Unsupported, Err: fmt.Errorf("the controller has no virtual drive for %s", what),
		Hint: "use another boot interface; some vendors sell virtual media as a licence"}
}

// InsertMedia makes an image the disc that the machine can boot from. What is in the drive is taken out before.
func (d *Driver) InsertMedia(ctx context.Context, image power.BootImage) (checked bool, err error) {
	return d.insertMedia(ctx, "cdrom", image)
}

func (d *Driver) insertMedia(ctx context.Context, device string, image power.BootImage) (checked bool, err error) {
	err = d.on(ctx, "insert virtual media", func(s *controller.System) error {
		all, err := d.drives(ctx, s)
		if err != nil {
			return err
		}
		refused := errNoMedia(device)
		for _, typ := range mediaTypes[device] {
			for _, v := range all {
				if !slices.Contains(v.MediaTypes, typ) {
					continue
				}
				checked, refused = d.fill(ctx, v, image, s.Quirks.Has(quirk.InsertAgain))
				if !slices.Contains(nextDrive, controller.Status(refused)) {
					return refused
				}
				d.log.Debug("the drive takes no image: trying the next one", "drive", v.Path,
					"err", d.c.Error("insert", refused))
			}
		}
		return refused
	})
	if declined := (*power.Error)(nil); checked && errors.As(err, &declined) && declined.Kind == power.Refused {
		declined.Hint = "it checks the certificate of the image's server, which must name the host in the address: see " +
			"netboot.https_port and netboot.external_http_url"
	}
	return checked, err
}

// nextDrive are the answers of a drive that is not for clients.
var nextDrive = []int{http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed}

// fill puts an image into a drive. Where there is no action for it, the property Image is changed. Again tries again
// when the controller fails.
func (d *Driver) fill(ctx context.Context, v *drive, image power.BootImage, again bool) (checked bool, err error) {
	if v.full() {
		if err := d.empty(ctx, v); err != nil {
			return false, err
		}
	}
	scheme, _, _ := strings.Cut(image.Address, ":")
	if scheme == "https" {
		if checked, err = d.verifies(ctx, v, image.Authority); err != nil {
			return false, err
		}
	}
	for try := 1; ; try++ {
		err = d.change(ctx, v, v.Actions.Insert.Target,
			map[string]any{"Image": image.Address, "Inserted": true, "WriteProtected": true},
			map[string]any{"TransferProtocolType": strings.ToUpper(scheme), "TransferMethod": "Stream",
				"UserName": "none", "Password": "none"})
		if !again || controller.Status(err) < 500 || try == insertTries || !controller.Sleep(ctx, insertWait) {
			break
		}
		d.log.Debug("the controller failed to insert the medium: trying again", "err", d.c.Error("insert", err))
	}
	if err != nil {
		return checked, err
	}
	return checked, d.settle(ctx, v.Path, true)
}

// verifies has the controller check the certificate of the image's server, and reports whether it will. One that can't
// is not told to: then the way of the image is as good as one without TLS.
func (d *Driver) verifies(ctx context.Context, v *drive, authority string) (bool, error) {
	if v.VerifyCertificate == nil {
		return false, nil
	}
	if authority != "" && v.Certificates != "" {
		if err := d.trust(ctx, string(v.Certificates), authority); err != nil {
			if controller.Status(err) == 0 {
				return false, err
			}
			d.log.Warn("the controller does not take the certificate of this installation's CA", "drive", v.Path, "err",
				d.c.Error("trust", err))
			return *v.VerifyCertificate, nil
		}
	}
	if *v.VerifyCertificate {
		return true, nil
	}
	err := d.c.Patch(ctx, v.Path, v.etag, map[string]any{"VerifyCertificate": true})
	if controller.Status(err) != 0 {
		d.log.Warn("the controller does not check certificates", "drive", v.Path, "err", d.c.Error("verify", err))
		return false, nil
	}
	if err != nil {
		return false, err
	}
	now, err := d.drive(ctx, v.Path)
	if err != nil {
		return false, err
	}
	v.etag = now.etag
	return now.VerifyCertificate != nil && *now.VerifyCertificate, nil
}

// maxCertificates bounds those of a drive that are looked at.
const maxCertificates = 32

// trust adds a certificate (PEM) to a collection, unless it is there.
func (d *Driver) trust(ctx context.Context, home, authority string) error {
	var c struct{ Members schemas.Links }
	if _, err := d.c.Read(ctx, home, &c); err != nil {
		return err
	}
	for _, p := range c.Members[:min(len(c.Members), maxCertificates)] {
		var have struct{ CertificateString string }
		if _, err := d.c.Read(ctx, string(p), &have); err != nil {
			return err
		}
		if samePEM(have.CertificateString, authority) {
			return nil
		}
	}
	return d.c.Post(ctx, home, map[string]any{"CertificateString": authority, "CertificateType": "PEM"})
}

// samePEM reports whether two texts have the same first block.
func samePEM(a, b string) bool {
	x, _ := pem.Decode([]byte(a))
	y, _ := pem.Decode([]byte(b))
	return x != nil && y != nil && bytes.Equal(x.Bytes, y.Bytes)
}

// empty takes the medium out of a drive.
func (d *Driver) empty(ctx context.Context, v *drive) error {
	target, body := v.Actions.Eject.Target, map[string]any{}
	if target == "" {
		body["Image"], body["Inserted"] = nil, false
	}
	if err := d.change(ctx, v, target, body, nil); err != nil {
		return err
	}
	return d.settle(ctx, v.Path, false)
}

// change calls an action, or changes the drive itself if there is none. Parameters that the controller says it misses
// are taken from more, those that it says it does not know are left out.
func (d *Driver) change(ctx context.Context, v *drive, target string, body, more map[string]any) error {
	for range maxRefusals {
		var err error
		if target != "" {
			err = d.c.Post(ctx, target, body)
		} else {
			err = d.c.Patch(ctx, v.Path, v.etag, body)
		}
		if err == nil || !adapt(body, more, controller.Messages(err)) {
			return err
		}
		d.log.Debug("the controller wants other parameters", "drive", v.Path, "err", d.c.Error("change", err))
	}
	return &power.Error{Kind: power.Refused, Err: errors.New("the controller declines every form of the request"),
		Hint: "update its firmware"}
}

// adapt changes a request as messages demand, and reports whether it did.
func adapt(body, more map[string]any, all []controller.Message) (changed bool) {
	for _, m := range all {
		// xFusion's name what is missing in the text of a general error only.
		missing := strings.HasSuffix(m.ID, "Missing") || m.ID == "GeneralError"
		for name, value := range more {
			if _, sent := body[name]; missing && !sent && m.Names(name) {
				body[name], changed = value, true
			}
		}
		if !slices.ContainsFunc([]string{"NotSupported", "Unknown", "NotWritable"},
			func(end string) bool { return strings.HasSuffix(m.ID, end) }) {
			continue
		}
		for name := range body {
			if name != "Image" && m.Names(name) {
				delete(body, name)
				changed = true
			}
		}
	}
	return changed
}

// settle waits until a drive is full or empty: a controller may answer before it is so, or take a request and do
// nothing.
func (d *Driver) settle(ctx context.Context, path string, full bool) error {
	for end := time.Now().Add(mediaLimit); ; {
		v, err := d.drive(ctx, path)
		if err != nil || v.full() == full {
			return err
		}
		if time.Now().After(end) {
			return &power.Error{Kind: power.Refused,
				Err: fmt.Errorf("the controller took it, but after %s the drive is %s", mediaLimit,
					map[bool]string{true: "empty", false: "not empty"}[full]),
				Hint: "reset the controller or update its firmware"}
		}
		if !controller.Sleep(ctx, mediaWait) {
			return ctx.Err()
		}
	}
}

// EjectMedia takes out all discs. Without any, or without drives, there is nothing to do.
func (d *Driver) EjectMedia(ctx context.Context) error { return d.ejectMedia(ctx, "cdrom") }

func (d *Driver) ejectMedia(ctx context.Context, devices ...string) error {
	return d.on(ctx, "eject virtual media", func(s *controller.System) error {
		all, err := d.drives(ctx, s)
		if errors.Is(err, controller.ErrWhoseManager) {
			return nil // nothing was inserted either
		}
		if err != nil {
			return err
		}
		var errs []error
		for _, v := range all {
			if v.full() && slices.ContainsFunc(devices, func(device string) bool {
				return slices.ContainsFunc(mediaTypes[device],
					func(t schemas.VirtualMediaType) bool { return slices.Contains(v.MediaTypes, t) })
			}) {
				errs = append(errs, d.empty(ctx, v))
			}
		}
		return errors.Join(errs...)
	})
}

// VirtualMedia lists the drives. The path of an image that this conductor serves is a secret and left out.
func (m *Management) VirtualMedia(ctx context.Context, n *node.Node) (list []hardware.Media, err error) {
	err = m.do(ctx, n, func(ctx context.Context, d *Driver) error {
		return d.on(ctx, "read virtual media", func(s *controller.System) error {
			all, err := d.drives(ctx, s)
			for _, v := range all {
				media := hardware.Media{URL: v.Image, Inserted: v.full()}
				if host, _, ours := strings.Cut(v.Image, node.BootImagePath); ours {
					media.URL = host + node.BootImagePath + "..."
				}
				for _, t := range v.MediaTypes {
					media.Types = append(media.Types, string(t))
				}
				list = append(list, media)
			}
			return err
		})
	})
	return list, err
}

// AttachMedia puts an image into a drive of a kind, in place of what is there.
func (m *Management) AttachMedia(ctx context.Context, n *node.Node, device, url string) error {
	return m.do(ctx, n, func(ctx context.Context, d *Driver) error {
		_, err := d.insertMedia(ctx, device, power.BootImage{Address: url})
		return err
	})
}

// DetachMedia takes the media out of the drives of these kinds; of all if none are named.
func (m *Management) DetachMedia(ctx context.Context, n *node.Node, devices []string) error {
	if len(devices) == 0 {
		devices = slices.Collect(maps.Keys(mediaTypes))
	}
	return m.do(ctx, n, func(ctx context.Context, d *Driver) error { return d.ejectMedia(ctx, devices...) })
}
