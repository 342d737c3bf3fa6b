package redfish

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
)

// Properties describes the keys of driver_info, in Ironic's names.
var Properties = []power.Property{
	{Name: "redfish_address", Description: "address of the service, with or without scheme", Required: true},
	{Name: "redfish_system_id", Description: "path of the machine; default is the only one there is"},
	{Name: "redfish_username", Description: "user name"},
	{Name: "redfish_password", Description: "password"},
	{Name: "redfish_auth_type", Description: "basic, session or auto (default)"},
	{Name: "redfish_verify_ca",
		Description: "true (default), false, a file in the configured folder, or certificates in PEM"},
}

// largestCA bounds a file of certificates, which is read again at each use.
const largestCA = 1 << 20

type options struct {
	access controller.Access
	system string
}

// parse reads driver_info and reports all faults at once. folder has the files that redfish_verify_ca may name.
func parse(info power.Info, folder string) (options, error) {
	var o options
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	text := func(name string) string {
		switch v := info[name].(type) {
		case nil:
			return ""
		case string:
			return v
		}
		bad("%s is not a text", name)
		return ""
	}
	if address := strings.TrimSpace(text("redfish_address")); address == "" {
		bad("Missing the following Redfish properties in node driver_info: ['redfish_address']")
	} else if base, err := parseAddress(address); err != nil {
		bad("Invalid Redfish address %s set in driver_info/redfish_address: %w", shown(address), err)
	} else {
		o.access.Base = base
	}
	o.access.User, o.access.Password = text("redfish_username"), text("redfish_password")
	if o.system = text("redfish_system_id"); o.system != "" {
		u, err := url.Parse(o.system)
		if err != nil || u.Path != o.system || !strings.HasPrefix(o.system, "/") || path.Clean(o.system) !=
			strings.TrimSuffix(o.system, "/") {
			bad("Invalid value %q set in driver_info/redfish_system_id. The value should be a path (string) to the resource that the driver will interact with. For example: /redfish/v1/Systems/1",
				o.system)
		}
	}
	o.access.Auth = controller.Auto
	if v := text("redfish_auth_type"); v != "" {
		o.access.Auth = v
		if !slices.Contains([]string{controller.Basic, controller.Session, controller.Auto}, v) {
			bad(`Invalid value %q set in driver_info/redfish_auth_type. The value should be one of "basic", "session" or "auto".`,
				v)
		}
	}
	if err := o.verify(info["redfish_verify_ca"], folder); err != nil {
		errs = append(errs, err)
	}
	return o, errors.Join(errs...)
}

// shown is an address without credentials that somebody wrote into it.
func shown(address string) string {
	if i := strings.LastIndex(address, "@"); i >= 0 {
		return "******" + address[i:]
	}
	return address
}

// parseAddress reads HOST, HOST:PORT, an IPv6 address with or without brackets, or a URL of these, with the path of the
// service root if that is not the standard's.
func parseAddress(s string) (url.URL, error) {
	var none url.URL
	if a, err := netip.ParseAddr(s); err == nil && a.Is6() {
		s = "[" + s + "]"
	}
	if !strings.Contains(s, "://") {
		s = "https://" + s
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return none, errors.New("it is no URL")
	case u.Scheme != "https" && u.Scheme != "http":
		return none, errors.New("the scheme is neither https nor http")
	case u.User != nil:
		return none, errors.New("name and password belong into redfish_username and redfish_password")
	case u.RawQuery != "" || u.Fragment != "":
		return none, errors.New("it has a query or a fragment")
	case u.Hostname() == "" || strings.ContainsAny(u.Hostname(), " \t\r\n/\\"):
		return none, errors.New("it has no host")
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return none, fmt.Errorf("%s is no port", p)
		}
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/redfish/v1/"
	}
	return url.URL{Scheme: u.Scheme, Host: strings.ToLower(u.Host), Path: u.Path}, nil
}

// verify reads redfish_verify_ca.
func (o *options) verify(v any, folder string) error {
	const what = "Invalid value type set in driver_info/redfish_verify_ca. The value should be a Boolean, the name of a file in the folder redfish.ca_dir, or certificates in PEM"
	switch v := v.(type) {
	case nil:
		return nil
	case bool:
		o.access.Insecure = !v
		return nil
	case string:
		switch strings.ToLower(strings.TrimSpace(v)) {
		case "", "true", "yes", "on", "1":
			return nil
		case "false", "no", "off", "0":
			o.access.Insecure = true
			return nil
		}
		if block, _ := pem.Decode([]byte(v)); block != nil {
			o.access.CA = v
			return nil
		}
		if strings.Contains(v, "-----BEGIN") {
			return errors.New("driver_info/redfish_verify_ca has no certificate in PEM")
		}
		return o.readCA(v, folder)
	}
	return fmt.Errorf("%s", what) // in the words of Ironic
}

// readCA reads a file of the folder, and of nowhere else: a node's owner must not read files of the conductor.
func (o *options) readCA(name, folder string) error {
	if folder == "" {
		return errors.New("driver_info/redfish_verify_ca names a file, but the conductor has no folder for them (redfish.ca_dir)")
	}
	if rel, err := filepath.Rel(folder, name); filepath.IsAbs(name) && err == nil {
		name = rel
	}
	refused := fmt.Errorf("driver_info/redfish_verify_ca: there is no file %q with certificates in the folder redfish.ca_dir",
		name)
	dir, err := os.OpenRoot(folder)
	if err != nil {
		return fmt.Errorf("open the folder redfish.ca_dir: %w", err)
	}
	defer dir.Close()
	info, err := dir.Stat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() > largestCA {
		return refused
	}
	b, err := dir.ReadFile(name)
	if err != nil {
		return refused
	}
	if block, _ := pem.Decode(b); block == nil {
		return refused
	}
	o.access.CA = string(b)
	return nil
}
