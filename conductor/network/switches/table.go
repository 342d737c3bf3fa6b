package switches

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/network/switches/dialect"
)

// Table is the file that names the switches and the networks that machines are brought to.
type Table struct {
	Networks struct {
		Provisioning Network `yaml:"provisioning"`
		// Cleaning is where machines are cleaned; without it they are in Provisioning.
		Cleaning *Network `yaml:"cleaning"`
		// Quarantine is where ports are that are to reach nothing.
		Quarantine Network            `yaml:"quarantine"`
		Tenants    map[string]Network `yaml:"tenants"`
	} `yaml:"networks"`
	Switches map[string]*Config `yaml:"switches"`
}

// Network has the VLANs of its ports: one, or several.
type Network struct {
	VLAN int `yaml:"vlan"`
	// VLANs are tagged, such as 210-213,300.
	VLANs string `yaml:"vlans"`
	// Native is the VLAN of untagged frames beside VLANs; 0: of the network quarantine.
	Native int `yaml:"native"`
	// Projects are those whose nodes (by lessee, else owner) may be brought to it; without any, all nodes may.
	Projects []string `yaml:"projects"`

	tagged   []int
	untagged bool // Native is the network's own
}

// Config is one switch.
type Config struct {
	// Address is HOST or HOST:PORT of its SSH server.
	Address string `yaml:"address"`
	Dialect string `yaml:"dialect"`
	// IDs are its addresses (MAC) as LLDP has them, which are in switch_id of ports.
	IDs []string `yaml:"ids"`
	// HostKey is the public key of its SSH server, such as "ssh-ed25519 AAAA...".
	HostKey  string `yaml:"host_key"`
	Username string `yaml:"username"`
	// Files with the password of Username, its private key, and the password of the command enable.
	PasswordFile       string `yaml:"password_file"`
	KeyFile            string `yaml:"key_file"`
	EnablePasswordFile string `yaml:"enable_password_file"`
	// Ports are those that Ingot configures, such as Ethernet1/1 or Ethernet1/1-16; no other is touched.
	Ports []string `yaml:"ports"`
	// Channels are the numbers of LAGs that Ingot configures, such as 10-19.
	Channels string `yaml:"channels"`
	// Save has each change saved, so that it outlives a restart of the switch.
	Save bool `yaml:"save"`
	// Timeout is how long one session may take.
	Timeout time.Duration `yaml:"timeout"`

	name    string
	dialect *dialect.Dialect
	hostKey ssh.PublicKey
	owned   map[string]bool // names of interfaces, LAGs included
	lags    map[string]bool
}

const (
	defaultTimeout = 2 * time.Minute
	mostTable      = 4 << 20 // bytes of the file
)

// Load reads a table and reports everything that is wrong with it.
func Load(path string) (*Table, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the table of switches: %w", err)
	}
	if len(b) > mostTable {
		return nil, fmt.Errorf("the table of switches %s is larger than %d MiB", path, mostTable>>20)
	}
	t := new(Table)
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(t); err != nil {
		return nil, fmt.Errorf("the table of switches %s is not valid: %w", path, err)
	}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("the table of switches %s is not valid:\n%w", path, err)
	}
	return t, nil
}

// networkName matches names that Ironic's clients can give in `vif attach`.
var networkName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._~-]{0,62}$`)

// check fills in what is derived.
func (t *Table) check() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	network := func(name string, n Network, trunk bool) Network {
		switch {
		case len(n.Projects) > 0 && !trunk:
			bad("networks.%s: projects are for networks of tenants", name)
		case n.VLAN != 0 && (n.VLANs != "" || n.Native != 0):
			bad("networks.%s: vlan goes without vlans and native", name)
		case n.VLAN != 0 && (n.VLAN < 1 || n.VLAN > 4094):
			bad("networks.%s: vlan %d is not from 1 to 4094", name, n.VLAN)
		case n.VLAN == 0 && n.VLANs == "":
			bad("networks.%s needs vlan", name)
		case n.VLANs != "" && !trunk:
			bad("networks.%s: machines boot without tags here: set vlan, not vlans", name)
		case n.VLANs != "":
			var err error
			if n.tagged, err = dialect.ParseVLANs(n.VLANs); err != nil {
				bad("networks.%s: vlans: %w", name, err)
			}
			if n.Native < 0 || n.Native > 4094 {
				bad("networks.%s: native %d is not from 1 to 4094", name, n.Native)
			}
			if n.untagged = n.Native != 0; !n.untagged {
				n.Native = t.Networks.Quarantine.VLAN
			}
			if slices.Contains(n.tagged, n.Native) {
				bad("networks.%s: VLAN %d is native and tagged: take it out of vlans", name, n.Native)
			}
		}
		return n
	}
	ns := &t.Networks
	ns.Quarantine = network("quarantine", ns.Quarantine, false)
	ns.Provisioning = network("provisioning", ns.Provisioning, false)
	ns.Cleaning = new(network("cleaning", *cmp.Or(ns.Cleaning, &ns.Provisioning), false))
	own := []int{ns.Quarantine.VLAN, ns.Provisioning.VLAN, ns.Cleaning.VLAN}
	if slices.Contains(own[1:], ns.Quarantine.VLAN) {
		bad("networks.quarantine: VLAN %d is that of provisioning or cleaning: a machine in it would reach them",
			ns.Quarantine.VLAN)
	}
	for _, name := range slices.Sorted(maps.Keys(ns.Tenants)) {
		n := network("tenants."+name, ns.Tenants[name], true)
		if !networkName.MatchString(name) {
			bad("networks.tenants: %q is no name: use letters, digits and ._~-", dialect.Plain(name))
		}
		for _, v := range append([]int{n.VLAN}, n.tagged...) {
			if v != 0 && slices.Contains(own, v) {
				bad("networks.tenants.%s: VLAN %d is that of provisioning, cleaning or quarantine", name, v)
			}
		}
		if n.tagged != nil && slices.Contains(own[1:], n.Native) {
			bad("networks.tenants.%s: native VLAN %d is that of provisioning or cleaning", name, n.Native)
		}
		ns.Tenants[name] = n
	}
	if len(t.Switches) == 0 {
		bad("switches: there is none")
	}
	ids := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(t.Switches)) {
		c := t.Switches[name]
		if c == nil {
			bad("switches.%s is empty", dialect.Plain(name))
			continue
		}
		if !networkName.MatchString(name) {
			bad("switches: %q is no name: use letters, digits and ._~-", dialect.Plain(name))
		}
		if err := c.check(name); err != nil {
			bad("switches.%s: %w", name, err)
		}
		for _, id := range c.IDs {
			if other := ids[id]; other != "" {
				bad("switches.%s: id %s is also that of %s", name, id, other)
			}
			ids[id] = name
		}
	}
	return errors.Join(faults...)
}

// check fills in what is derived from the settings of one switch.
func (c *Config) check(name string) error {
	c.name = name
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	if _, _, err := net.SplitHostPort(c.Address); err != nil {
		c.Address = net.JoinHostPort(strings.Trim(c.Address, "[]"), "22")
	}
	host, _, err := net.SplitHostPort(c.Address)
	switch {
	case host == "" || err != nil:
		return errors.New("address is needed, HOST or HOST:PORT of its SSH server")
	case dialect.Find(c.Dialect) == nil:
		return fmt.Errorf("dialect %q is not one of %s", dialect.Plain(c.Dialect),
			strings.Join(dialect.Names(), ", "))
	case c.Username == "":
		return errors.New("username is needed")
	case c.PasswordFile == "" && c.KeyFile == "":
		return errors.New("password_file or key_file is needed")
	case c.Timeout < time.Second || c.Timeout > 10*time.Minute:
		return fmt.Errorf("timeout %v is not from 1s to 10m", c.Timeout)
	case len(c.IDs) == 0:
		return errors.New("ids is needed: the addresses by which LLDP knows the switch (switch_id of ports)")
	}
	for i, id := range c.IDs {
		mac, err := net.ParseMAC(id)
		if err != nil {
			return fmt.Errorf("id %q is no hardware address", dialect.Plain(id))
		}
		c.IDs[i] = mac.String()
	}
	if c.hostKey, _, _, _, err = ssh.ParseAuthorizedKey([]byte(c.HostKey)); err != nil {
		return errors.New("host_key is needed, the public key of its SSH server: ssh-keyscan shows it, compare it with" +
			" what the switch says")
	}
	c.dialect, c.owned, c.lags = dialect.Find(c.Dialect), map[string]bool{}, map[string]bool{}
	for _, entry := range c.Ports {
		if err := c.own(entry); err != nil {
			return err
		}
	}
	if c.Channels != "" {
		numbers, err := dialect.ParseVLANs(c.Channels)
		if err != nil {
			return errors.New("channels is no list of numbers such as 10-19")
		}
		for _, n := range numbers {
			name, err := c.dialect.ChannelName(n)
			if err != nil {
				return err
			}
			c.owned[name], c.lags[name] = true, true
		}
	}
	if len(c.owned) == 0 {
		return errors.New("ports is needed: the ports that Ingot may configure")
	}
	return nil
}

// portRange is a range of ports such as Ethernet1/1-16.
var portRange = regexp.MustCompile(`^(.*?)(\d{1,3})-(\d{1,3})$`)

// own notes a port, or a range of ports, as Ingot's to configure.
func (c *Config) own(entry string) error {
	names := []string{entry}
	if m := portRange.FindStringSubmatch(entry); m != nil {
		from, _ := strconv.Atoi(m[2]) // three digits at most
		to, _ := strconv.Atoi(m[3])
		names = nil
		for i := from; i <= to; i++ {
			names = append(names, m[1]+strconv.Itoa(i))
		}
	}
	for _, name := range names {
		full, ok := c.dialect.Canonical(name)
		if !ok {
			return fmt.Errorf("port %q is no name of a port in dialect %s", dialect.Plain(name), c.Dialect)
		}
		c.owned[full] = true
	}
	if len(names) == 0 {
		return fmt.Errorf("ports %q is an empty range", dialect.Plain(entry))
	}
	return nil
}

// secret reads a file with a password.
func secret(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	b, err := os.ReadFile(file)
	return strings.TrimRight(string(b), "\r\n"), err
}
