// Package firmware reads the versions of a machine's firmware from its controller, and knows how updates are asked for
// there.
//
// Components have Ironic's names: "bios", "bmc", and "nic:" with the serial number of a network card, or its Id if it
// has none. Versions are texts of vendors in no common form: they are compared by their numbers, in order.
package firmware

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/quirk"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Names of components.
const (
	BIOS = "bios"
	BMC  = "bmc"
	nic  = "nic:"
)

// Update is the request to bring new firmware into a component.
type Update struct {
	Component, URL string
	// Checksum of the file, SHA-256 or SHA-512 in hexadecimal; "" is not checked.
	Checksum string
	// Version that the component has afterwards; "" is not known.
	Version string
	// Wait is how long the new version may take to be shown; 0 is as usual.
	Wait time.Duration
}

// Bounds of the argument.
const (
	maxUpdates = 100
	maxURL     = 2048
	maxWait    = 24 * time.Hour
)

var checksums = regexp.MustCompile(`^([0-9a-f]{64}|[0-9a-f]{128})$`)

// Updates reads the argument of firmware.update: a list of objects with component and url, and wait (seconds), checksum
// and version if they are known. The error is a *hardware.InvalidError, which does not repeat URLs.
func Updates(v any) ([]Update, error) {
	list, ok := v.([]any)
	if !ok || len(list) == 0 || len(list) > maxUpdates {
		return nil, hardware.Invalidf("settings is not a list of 1 to %d objects with component and url", maxUpdates)
	}
	var out []Update
	for i, item := range list {
		m, ok := item.(map[string]any)
		if !ok {
			return nil, hardware.Invalidf("settings: item %d is not an object with component and url", i+1)
		}
		var u Update
		for key, v := range m {
			text, isText := v.(string)
			number, isNumber := v.(float64)
			field := map[string]*string{"component": &u.Component, "url": &u.URL, "checksum": &u.Checksum,
				"version": &u.Version}[key]
			switch {
			case field != nil && isText:
				*field = text
			case key == "wait" && isNumber && number >= 1 && number <= maxWait.Seconds():
				u.Wait = time.Duration(number * float64(time.Second))
			case key == "wait":
				return nil, hardware.Invalidf("settings: wait of item %d is not a number of seconds from 1 to %d", i+1,
					int(maxWait.Seconds()))
			case field != nil:
				return nil, hardware.Invalidf("settings: %s of item %d is not a text", key, i+1)
			default:
				return nil, hardware.Invalidf("settings: item %d has %q, but an update has component, url, wait, checksum"+
					" and version", i+1, key)
			}
		}
		if err := u.check(); err != nil {
			return nil, hardware.Invalidf("settings: item %d: %v", i+1, err)
		}
		if slices.ContainsFunc(out, func(o Update) bool { return o.Component == u.Component }) {
			return nil, hardware.Invalidf("settings: %s is there twice", u.Component)
		}
		out = append(out, u)
	}
	return out, nil
}

func (u *Update) check() error {
	switch {
	case u.Component != BIOS && u.Component != BMC && (!strings.HasPrefix(u.Component, nic) || u.Component == nic):
		return errors.New("component is none of bios, bmc and nic:SERIAL")
	case u.URL == "":
		return errors.New("url is missing")
	}
	at, err := url.Parse(u.URL)
	switch {
	case err != nil || at.Hostname() == "" || len(u.URL) > maxURL || strings.ContainsFunc(u.URL, odd):
		return fmt.Errorf("url is no URL with a host, of at most %d characters", maxURL)
	case at.Scheme != "http" && at.Scheme != "https":
		return errors.New("url does not begin with http:// or https://: the controller reads the file by them only")
	case at.User != nil:
		return errors.New("url has a user name: who reads the node would read the password; use a file without one")
	case at.Fragment != "":
		return errors.New("url has a fragment (#)")
	}
	u.Checksum = strings.ToLower(u.Checksum)
	if hex, is := strings.CutPrefix(u.Checksum, "sha256:"); is {
		u.Checksum = hex
	} else if hex, is := strings.CutPrefix(u.Checksum, "sha512:"); is {
		u.Checksum = hex
	}
	if u.Checksum != "" && !checksums.MatchString(u.Checksum) {
		return errors.New("checksum is neither SHA-256 nor SHA-512 in hexadecimal")
	}
	return nil
}

func odd(r rune) bool { return r <= ' ' || r == 0x7f }

// Read lists the components that the controller shows, at most limit.RedfishFirmware.
func Read(ctx context.Context, c *controller.Controller, s *controller.System) ([]node.FirmwareComponent, error) {
	ctx = controller.Bounded(ctx)
	var all []node.FirmwareComponent
	add := func(f node.FirmwareComponent) {
		for _, text := range []*string{&f.Component, &f.CurrentVersion, &f.Vendor, &f.Model, &f.SerialNumber} {
			*text = c.Clean(*text)
		}
		known := slices.ContainsFunc(all, func(o node.FirmwareComponent) bool { return o.Component == f.Component })
		if f.CurrentVersion != "" && !known && len(all) < limit.RedfishFirmware {
			all = append(all, f)
		}
	}
	add(node.FirmwareComponent{Component: BIOS, CurrentVersion: s.BiosVersion})
	managers := s.Links.ManagedBy
	if len(managers) == 0 {
		var err error
		if managers, err = c.Managers(ctx); err != nil && power.KindOf(err) != power.Unsupported {
			return nil, err
		}
	}
	if len(managers) > 0 {
		var m struct{ FirmwareVersion, Model string }
		if _, err := c.Try(ctx, string(managers[0]), &m); err != nil {
			return nil, err
		}
		add(node.FirmwareComponent{Component: BMC, CurrentVersion: m.FirmwareVersion, Model: m.Model})
	}
	for _, chassis := range s.Links.Chassis[:min(len(s.Links.Chassis), 4)] {
		var at struct{ NetworkAdapters schemas.Link }
		if _, err := c.Try(ctx, string(chassis), &at); err != nil {
			return nil, err
		}
		err := controller.Each(ctx, c, string(at.NetworkAdapters), func(_ string, a *adapter) {
			id := strings.TrimSpace(a.SerialNumber)
			if id == "" {
				id = a.ID
			}
			for _, card := range a.Controllers {
				add(node.FirmwareComponent{Component: nic + id, CurrentVersion: card.FirmwarePackageVersion,
					Vendor: a.Manufacturer, Model: a.Model, SerialNumber: a.SerialNumber})
			}
		})
		if controller.Status(err) == http.StatusInternalServerError {
			err = nil // some controllers can't list network cards of a machine that is off
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// adapter is a network card: what is used of it.
type adapter struct {
	ID                                string `json:"Id"`
	Manufacturer, Model, SerialNumber string
	Controllers                       []struct{ FirmwarePackageVersion string }
}

// Cached is a node's components after those that were read before: the first version and the times follow from what
// changed. One that is not shown now is kept, since some controllers show network cards only while the machine runs.
func Cached(was, now []node.FirmwareComponent, at time.Time) []node.FirmwareComponent {
	out := slices.Clone(was)
	for _, f := range now {
		i := slices.IndexFunc(out, func(o node.FirmwareComponent) bool { return o.Component == f.Component })
		if i < 0 {
			f.InitialVersion, f.CreatedAt = f.CurrentVersion, at
			out = append(out, f)
			continue
		}
		o := &out[i]
		if o.CurrentVersion != f.CurrentVersion {
			o.CurrentVersion, o.LastVersionFlashed, o.UpdatedAt = f.CurrentVersion, f.CurrentVersion, at
		}
		o.Vendor, o.Model, o.SerialNumber = f.Vendor, f.Model, f.SerialNumber
	}
	return out[max(len(out)-limit.RedfishFirmware, 0):]
}

// version is a version without what a vendor puts before it.
func version(rows quirk.Set, v string) string {
	v = strings.TrimSpace(v)
	if rows.Has(quirk.VersionPrefix) {
		v = v[strings.LastIndexAny(v, "- ")+1:]
	}
	return v
}

// Same reports whether two texts are one version.
func Same(rows quirk.Set, a, b string) bool { return version(rows, a) == version(rows, b) }

// Older reports whether a is an older version than b, as far as their numbers show it.
func Older(rows quirk.Set, a, b string) bool {
	return slices.Compare(numbersOf(version(rows, a)), numbersOf(version(rows, b))) < 0
}

var numbers = regexp.MustCompile(`[0-9]+`)

func numbersOf(s string) (out []int) {
	for _, n := range numbers.FindAllString(s, 16) {
		if i, err := strconv.Atoi(n); err == nil {
			out = append(out, i)
		}
	}
	return out
}

// Service is the UpdateService of a controller.
type Service struct {
	Actions struct {
		Simple struct {
			Target    string
			Protocols []string `json:"TransferProtocol@Redfish.AllowableValues"`
		} `json:"#UpdateService.SimpleUpdate"`
	}
}

// Open reads the service; the error says so where there is none that fetches files.
func Open(ctx context.Context, c *controller.Controller) (*Service, error) {
	var root struct{ UpdateService schemas.Link }
	if _, err := c.Try(ctx, "/redfish/v1/", &root); err != nil {
		return nil, err
	}
	s := &Service{}
	if _, err := c.Try(ctx, string(root.UpdateService), s); err != nil {
		return nil, err
	}
	if s.Actions.Simple.Target == "" {
		return nil, &power.Error{Kind: power.Unsupported,
			Err:  errors.New("the controller has no firmware updates by URL (UpdateService.SimpleUpdate)"),
			Hint: "update it by its own pages or tools; a newer firmware of the controller may have them"}
	}
	return s, nil
}

// Target is the path that an update is asked for at.
func (s *Service) Target() string { return s.Actions.Simple.Target }

// protocol is that of an update's URL.
func protocol(u Update) string {
	scheme, _, _ := strings.Cut(u.URL, ":")
	return strings.ToUpper(scheme)
}

// Reads returns an error if the controller says that it reads no files by the protocol of an update's URL.
func (s *Service) Reads(c *controller.Controller, u Update) error {
	allowed := s.Actions.Simple.Protocols
	if len(allowed) == 0 || slices.Contains(allowed, protocol(u)) {
		return nil
	}
	return &power.Error{Kind: power.Config, Err: fmt.Errorf("the controller reads no files by %s, only by %s", protocol(u),
		c.Clean(strings.Join(allowed, ", "))), Hint: "give a URL with another scheme"}
}

// Request asks for an update.
func (s *Service) Request(ctx context.Context, c *controller.Controller, u Update) (controller.Reply, error) {
	body := map[string]any{"ImageURI": u.URL}
	if len(s.Actions.Simple.Protocols) > 0 { // others may decline to be told
		body["TransferProtocol"] = protocol(u)
	}
	return c.Submit(ctx, http.MethodPost, s.Target(), body)
}
