// Package enrol makes nodes of the few words by which people know their machines: a name, and the address and
// credentials of the controller. It reads one machine, or a list of them in a file.
package enrol

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/ingot-metal/ingot/conductor/client"
)

// Machine has the facts by which a machine is enrolled.
type Machine struct {
	// Node has the fields that go to the conductor as they are.
	Node client.NewNode
	// BMC is the controller's address, HOST or HOST:PORT; of type redfish also a URL. Password goes to it with User.
	BMC, User, Password string
	// BootMode is bios or uefi; "" leaves it to the machine.
	BootMode string
	// MACs are of ports that are to be created, too.
	MACs []string

	// Line of the file, from 1; 0: it comes from no file.
	Line int
}

// Errors of Enrolment.
var (
	ErrNoBMC = errors.New("it has no address of a controller")
	errName  = errors.New("it has neither a name nor a uuid, by which it would be found again")
)

// prefixes are the first words of the keys of driver_info that name a controller, by hardware type.
var prefixes = map[string]string{"ipmi": "ipmi", "redfish": "redfish", "idrac": "redfish"}

// KnowsBMC reports whether machines of a hardware type have a controller that Machine.BMC names.
func KnowsBMC(driver string) bool { return prefixes[driver] != "" }

// BMCKey is the key of driver_info with the controller's "address", "username", "password", "port" or "system_id", of a
// hardware type that KnowsBMC.
func BMCKey(driver, what string) string { return prefixes[driver] + "_" + what }

// Enrolment returns the node to create. The driver's own keys in Node.DriverInfo are kept where nothing else is said.
func (m *Machine) Enrolment() (client.NewNode, error) {
	n := m.Node
	n.DriverInfo, n.Properties, n.Extra = filled(n.DriverInfo), filled(n.Properties), filled(n.Extra)
	if m.BootMode != "" {
		mode := "boot_mode:" + m.BootMode
		if others, _ := n.Properties["capabilities"].(string); others != "" {
			mode = others + "," + mode
		}
		n.Properties["capabilities"] = mode
	}
	if !KnowsBMC(n.Driver) {
		if m.BMC != "" {
			return n, fmt.Errorf("an address of a controller is for machines of type ipmi, redfish and idrac, not %s: use its driver_info", n.Driver)
		}
		return n, nil
	}
	if m.BMC == "" && n.DriverInfo[BMCKey(n.Driver, "address")] == nil {
		return n, ErrNoBMC
	}
	host, port := m.BMC, "" // of redfish it may be a URL
	if n.Driver == "ipmi" {
		host, port = SplitBMC(m.BMC)
	}
	for key, v := range map[string]string{"address": host, "port": port, "username": m.User, "password": m.Password} {
		if v != "" {
			n.DriverInfo[BMCKey(n.Driver, key)] = v
		}
	}
	return n, nil
}

// Controller says which controller, and which machine behind it, a node has: the same text for the same machine. "" if
// the driver knows none.
func Controller(driver string, info map[string]any) string {
	if !KnowsBMC(driver) || info[BMCKey(driver, "address")] == nil {
		return ""
	}
	text := func(key string) string {
		if v := info[BMCKey(driver, key)]; v != nil {
			return fmt.Sprint(v)
		}
		return ""
	}
	host := strings.ToLower(text("address"))
	for _, scheme := range []string{"https://", "http://"} {
		host = strings.TrimPrefix(host, scheme)
	}
	host = strings.TrimSuffix(host, "/")
	if port := text("port"); port != "" && port != "623" {
		host += " port " + port
	}
	if id := text("system_id"); id != "" {
		host += " " + id
	}
	return host
}

// filled returns a copy that can be written to.
func filled(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return maps.Clone(m)
}

// SplitBMC splits HOST:PORT, where HOST may be an IPv6 address, with brackets if there is a port.
func SplitBMC(s string) (host, port string) {
	if rest, ok := strings.CutPrefix(s, "["); ok {
		host, port, _ = strings.Cut(rest, "]")
		return host, strings.TrimPrefix(port, ":")
	}
	if strings.Count(s, ":") == 1 {
		host, port, _ = strings.Cut(s, ":")
		return host, port
	}
	return s, ""
}
