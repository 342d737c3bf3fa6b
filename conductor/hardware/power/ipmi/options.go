package ipmi

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// Properties describes the keys of driver_info, in Ironic's names.
var Properties = []power.Property{
	{Name: "ipmi_address", Description: "IP address or host name of the controller", Required: true},
	{Name: "ipmi_username", Description: "user name, at most 16 bytes; empty is the nameless user"},
	{Name: "ipmi_password", Description: "password, at most 20 bytes"},
	{Name: "ipmi_port", Description: "UDP port of the controller; default 623"},
	{Name: "ipmi_priv_level", Description: "privilege to ask for: ADMINISTRATOR (default), OPERATOR, USER or CALLBACK"},
	{Name: "ipmi_cipher_suite",
		Description: "RMCP+ cipher suite to insist on; default is 17, then 3 for controllers without it"},
	{Name: "ipmi_disable_boot_timeout",
		Description: "ask the controller not to forget the boot device after 60 seconds; default true"},
	{Name: "ipmi_protocol_version", Description: "only 2.0 (the default) is spoken"},
}

// Limits of the IPMI 2.0 specification (RAKP message 1 and Set User Password).
const (
	maxUsername = 16
	maxPassword = 20
	defaultPort = 623
)

// autoSuites are tried in this order: 17 is the only standard suite on SHA-256, 3 is the one every controller must
// have.
var autoSuites = []types.CipherSuiteID{types.CipherSuiteID17, types.CipherSuiteID3}

var privilegeLevels = map[string]types.PrivilegeLevel{
	"CALLBACK":      types.PrivilegeLevelCallback,
	"USER":          types.PrivilegeLevelUser,
	"OPERATOR":      types.PrivilegeLevelOperator,
	"ADMINISTRATOR": types.PrivilegeLevelAdministrator,
}

type options struct {
	addr            string // host:port, IPv6 in brackets
	user, password  string
	privilege       types.PrivilegeLevel
	suites          []types.CipherSuiteID
	keepBootTimeout bool
}

// parse reads driver_info and reports all faults at once.
func parse(info power.Info) (options, error) {
	o := options{privilege: types.PrivilegeLevelAdministrator, suites: autoSuites}
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }

	host := strings.Trim(text(info["ipmi_address"]), "[] \t")
	switch {
	case host == "":
		bad("ipmi_address is missing")
	case strings.ContainsAny(host, " /\t\n") ||
		(strings.Contains(host, ":") && net.ParseIP(strings.SplitN(host, "%", 2)[0]) == nil):
		bad("ipmi_address %q is neither an IP address nor a host name (a port goes into ipmi_port)", host)
	}

	port := defaultPort
	if v := text(info["ipmi_port"]); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 65535 {
			bad("ipmi_port %q is not a port number", v)
		} else {
			port = n
		}
	}
	o.addr = net.JoinHostPort(host, strconv.Itoa(port))

	o.user, o.password = text(info["ipmi_username"]), text(info["ipmi_password"])
	if len(o.user) > maxUsername {
		bad("ipmi_username is %d bytes long, IPMI allows %d", len(o.user), maxUsername)
	}
	if len(o.password) > maxPassword {
		bad("ipmi_password is %d bytes long, IPMI 2.0 allows %d", len(o.password), maxPassword)
	}

	if v := text(info["ipmi_priv_level"]); v != "" {
		p, ok := privilegeLevels[strings.ToUpper(v)]
		if !ok {
			bad("ipmi_priv_level %q is none of ADMINISTRATOR, OPERATOR, USER, CALLBACK", v)
		}
		o.privilege = p
	}
	if v := text(info["ipmi_cipher_suite"]); v != "" {
		n, err := strconv.Atoi(v)
		usable := []int{1, 2, 3, 6, 7, 8, 11, 12, 15, 16, 17}
		if err != nil || !slices.Contains(usable, n) {
			bad("ipmi_cipher_suite %q is not usable; use 17 or 3, or leave it out", v)
		} else {
			o.suites = []types.CipherSuiteID{types.CipherSuiteID(n)}
		}
	}
	if v := text(info["ipmi_disable_boot_timeout"]); v != "" {
		b, err := strconv.ParseBool(strings.ToLower(v))
		if err != nil {
			bad("ipmi_disable_boot_timeout %q is neither true nor false", v)
		}
		o.keepBootTimeout = !b
	}
	if v := text(info["ipmi_protocol_version"]); v != "" && v != "2.0" {
		bad("ipmi_protocol_version %q is not supported, only 2.0 is", v)
	}
	// Accepting these and not acting on them would talk to the wrong controller or with the wrong key.
	if v := text(info["ipmi_bridging"]); v != "" && v != "no" {
		bad("ipmi_bridging %q is not supported", v)
	}
	if text(info["ipmi_hex_kg_key"]) != "" {
		bad("ipmi_hex_kg_key is not supported; clear the controller's BMC key (Kg)")
	}
	return o, errors.Join(errs...)
}

// text turns a value of driver_info into a string: clients send ports and suites as numbers or as text.
func text(v any) string {
	switch v := exact.Plain(v).(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}
