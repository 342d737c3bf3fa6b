// Package config holds the conductor's one Config: what can be set, its defaults, and where it is read from.
//
// Later sources win: defaults, the YAML file, environment variables (INGOT_ and the key's path in capitals, dots as underscores:
// INGOT_NETBOOT_INTERFACE), then flags (--set netboot.interface=br0, and short ones for the commonest keys). An unknown key is an
// error wherever it stands. Validate returns all faults at once, each naming its key.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Config is all that ingotd can be told. The comment of each field is its documentation; `ingotd --print-config` shows the values.
type Config struct {
	// DataDir holds the database, the CA and its key, and collected logs. Nobody else should be able to read it.
	DataDir string `yaml:"data_dir"`
	// Hostname names this conductor in the API and in histories; empty means the machine's host name.
	Hostname string `yaml:"hostname"`
	// LogLevel is debug, info, warn or error.
	LogLevel string `yaml:"log_level"`
	// LogFormat is text or json.
	LogFormat string `yaml:"log_format"`

	API     API     `yaml:"api"`
	Agents  Agents  `yaml:"agents"`
	Netboot Netboot `yaml:"netboot"`
	Deploy  Deploy  `yaml:"deploy"`
	Power   Power   `yaml:"power"`
	Swarm   Swarm   `yaml:"swarm"`
}

// Swarm is what agents that write the same published image do for each other.
type Swarm struct {
	// Enabled has them give each other its chunks, so that the image's server sends each about once.
	Enabled bool `yaml:"enabled"`
	// UploadLimit is what each of them sends to others at most, in bytes per second; zero means no limit.
	UploadLimit int `yaml:"upload_limit"`
}

// API is the REST side.
type API struct {
	// Listen is where the Bare Metal API is served. A socket handed over by the service manager (LISTEN_FDS) is used instead.
	Listen string `yaml:"listen"`
	// InsecureListen allows a Listen beyond loopback although nobody has to authenticate: whoever reaches it owns all nodes.
	InsecureListen bool `yaml:"insecure_listen"`
}

// Agents is the side that agents dial.
type Agents struct {
	// Listen is where agents connect (gRPC over TLS).
	Listen string `yaml:"listen"`
	// Advertise is host:port as agents reach it; empty means the provisioning address and Listen's port.
	Advertise string `yaml:"advertise"`
}

// Netboot is what serves booting machines.
type Netboot struct {
	// DHCP is server (this network has no other DHCP server), proxy (it has one) or off.
	DHCP string `yaml:"dhcp"`
	// Interface is the provisioning network's interface.
	Interface string `yaml:"interface"`
	// Address is this conductor's address on it; empty means the interface's first IPv4 address.
	Address string `yaml:"address"`
	// RangeStart and RangeEnd bound the addresses that are leased, in mode server.
	RangeStart string `yaml:"range_start"`
	RangeEnd   string `yaml:"range_end"`
	// Gateway and DNS are told to machines; empty means none.
	Gateway string   `yaml:"gateway"`
	DNS     []string `yaml:"dns"`
	// LeaseTime is how long an address is given for.
	LeaseTime time.Duration `yaml:"lease_time"`
	// HTTPPort serves boot scripts, ramdisks and images on Address.
	HTTPPort int `yaml:"http_port"`
	// TFTP serves boot programs on Address, port 69.
	TFTP bool `yaml:"tftp"`
	// LoaderDir holds undionly.kpxe and snponly.efi, as Debian's package ipxe installs them.
	LoaderDir string `yaml:"loader_dir"`
	// RamdiskDir holds what `ingot ramdisk build` made.
	RamdiskDir string `yaml:"ramdisk_dir"`
	// ImagesDir is served below /images/; empty serves none.
	ImagesDir string `yaml:"images_dir"`
	// KernelParams are added to the ramdisk's command line.
	KernelParams string `yaml:"kernel_params"`
	// TokenLife is how long a boot token is good for after its boot script was fetched.
	TokenLife time.Duration `yaml:"token_life"`
}

// Deploy says what is done to machines.
type Deploy struct {
	// AllowUnverified allows images without a digest.
	AllowUnverified bool `yaml:"allow_unverified"`
	// AllowMD5 accepts an MD5 sum as an image's digest. It protects from accidents, not from people.
	AllowMD5 bool `yaml:"allow_md5"`
	// AutomatedClean cleans nodes on their way to available, unless a node's own automated_clean says otherwise.
	AutomatedClean bool `yaml:"automated_clean"`
	// BootMode is bios or uefi for nodes that don't say in their capabilities; empty leaves it to the machine.
	BootMode string `yaml:"boot_mode"`
	// BootTimeout is how long a machine may take from power-on to a connected agent.
	BootTimeout time.Duration `yaml:"boot_timeout"`
	// SessionGrace is how long an agent may be out of reach before its machine is booted anew.
	SessionGrace time.Duration `yaml:"session_grace"`
	// Silence is how long a connected agent may report nothing about its plan.
	Silence time.Duration `yaml:"silence"`
	// MaxBoots is how often the agent is booted for one job before the job fails.
	MaxBoots int `yaml:"max_boots"`
	// Tries is how often the agent is given the same work in one boot when its failure may pass, as that of an image server may.
	Tries int `yaml:"tries"`
}

// Power is how controllers are talked to.
type Power struct {
	// Timeout is how long a machine may take to be on, or off, after it was asked.
	Timeout time.Duration `yaml:"timeout"`
	// SyncInterval is the time between two readings of every machine's power state; negative reads only when needed.
	SyncInterval time.Duration `yaml:"sync_interval"`
	// CallTimeout bounds one exchange with a controller.
	CallTimeout time.Duration `yaml:"call_timeout"`
	// Retries is how often in a row a failing exchange is tried.
	Retries int `yaml:"retries"`
}

// Default returns what holds when nothing is said.
func Default() Config {
	return Config{
		DataDir: "/var/lib/ingot", LogLevel: "info", LogFormat: "text",
		API:    API{Listen: "127.0.0.1:6385"},
		Agents: Agents{Listen: ":6386"},
		Netboot: Netboot{
			DHCP: "off", LeaseTime: time.Hour, HTTPPort: 8080, TFTP: true, LoaderDir: "/usr/lib/ipxe",
			RamdiskDir: "/var/lib/ingot/ramdisk", ImagesDir: "/var/lib/ingot/images", TokenLife: 15 * time.Minute,
		},
		Deploy: Deploy{
			AutomatedClean: true, BootTimeout: 30 * time.Minute, SessionGrace: time.Minute, Silence: 30 * time.Minute, MaxBoots: 3, Tries: 2,
		},
		Power: Power{Timeout: time.Minute, SyncInterval: time.Minute, CallTimeout: time.Minute, Retries: 5},
	}
}

// kernelParam is one word of a kernel command line that can't break out of a boot script.
var kernelParam = regexp.MustCompile(`^[A-Za-z0-9_.,:/=@%+-]+$`)

// Validate returns everything that is wrong, or nil. It looks at the values alone, not at the machine.
func (c Config) Validate() error {
	var faults []error
	bad := func(key, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	oneOf := func(key, value string, allowed ...string) {
		for _, a := range allowed {
			if value == a {
				return
			}
		}
		bad(key, "%q is none of %s", value, strings.Join(quoted(allowed), ", "))
	}
	positive := func(key string, d time.Duration) {
		if d <= 0 {
			bad(key, "%v is not a positive duration", d)
		}
	}
	address := func(key, value string) {
		if value == "" {
			return
		}
		if a, err := netip.ParseAddr(value); err != nil || !a.Is4() {
			bad(key, "%q is not an IPv4 address", value)
		}
	}

	if !filepath.IsAbs(c.DataDir) {
		bad("data_dir", "%q is not an absolute path", c.DataDir)
	}
	oneOf("log_level", c.LogLevel, "debug", "info", "warn", "error")
	oneOf("log_format", c.LogFormat, "text", "json")

	if host, _, err := net.SplitHostPort(c.API.Listen); err != nil {
		bad("api.listen", "%q is not host:port", c.API.Listen)
	} else if !loopback(host) && !c.API.InsecureListen {
		bad("api.listen", "%s is reachable from other machines, and nobody has to authenticate; listen on 127.0.0.1, or set api.insecure_listen if the network is closed to all but administrators", c.API.Listen)
	}
	if _, _, err := net.SplitHostPort(c.Agents.Listen); err != nil {
		bad("agents.listen", "%q is not host:port", c.Agents.Listen)
	}
	if c.Agents.Advertise != "" {
		if _, _, err := net.SplitHostPort(c.Agents.Advertise); err != nil {
			bad("agents.advertise", "%q is not host:port", c.Agents.Advertise)
		}
	}

	n := c.Netboot
	oneOf("netboot.dhcp", n.DHCP, "server", "proxy", "off")
	if n.DHCP != "off" && n.Interface == "" {
		bad("netboot.interface", "is needed when netboot.dhcp is %s: name the provisioning network's interface", n.DHCP)
	}
	if n.DHCP == "off" && n.Interface == "" && n.Address == "" && c.Agents.Advertise == "" {
		bad("agents.advertise", "no provisioning network is configured, so machines could not reach this conductor: set netboot.interface to the provisioning network's interface (and netboot.dhcp), or agents.advertise to the HOST:PORT by which machines reach it; to try ingotd without machines: --set agents.advertise=127.0.0.1:6386")
	}
	address("netboot.address", n.Address)
	address("netboot.range_start", n.RangeStart)
	address("netboot.range_end", n.RangeEnd)
	address("netboot.gateway", n.Gateway)
	for _, d := range n.DNS {
		address("netboot.dns", d)
	}
	if n.DHCP == "server" {
		a, errA := netip.ParseAddr(n.RangeStart)
		z, errZ := netip.ParseAddr(n.RangeEnd)
		switch {
		case n.RangeStart == "" || n.RangeEnd == "":
			bad("netboot.range_start", "and netboot.range_end are needed when netboot.dhcp is server")
		case errA == nil && errZ == nil && z.Less(a):
			bad("netboot.range_end", "%s lies before netboot.range_start %s", z, a)
		}
	}
	positive("netboot.lease_time", n.LeaseTime)
	positive("netboot.token_life", n.TokenLife)
	if n.HTTPPort < 1 || n.HTTPPort > 65535 {
		bad("netboot.http_port", "%d is not a port", n.HTTPPort)
	}
	for _, w := range strings.Fields(n.KernelParams) {
		if !kernelParam.MatchString(w) {
			bad("netboot.kernel_params", "%q has characters other than letters, digits and _.,:/=@%%+-", w)
		}
		if strings.HasPrefix(w, "ingot.") && w != "ingot.shell=1" && w != "ingot.debug=1" {
			bad("netboot.kernel_params", "%q is Ingot's own to set", w)
		}
	}

	oneOf("deploy.boot_mode", c.Deploy.BootMode, "", "bios", "uefi")
	positive("deploy.boot_timeout", c.Deploy.BootTimeout)
	positive("deploy.session_grace", c.Deploy.SessionGrace)
	positive("deploy.silence", c.Deploy.Silence)
	if c.Deploy.MaxBoots < 1 {
		bad("deploy.max_boots", "%d is less than 1", c.Deploy.MaxBoots)
	}
	if c.Deploy.Tries < 1 {
		bad("deploy.tries", "%d is less than 1", c.Deploy.Tries)
	}
	positive("power.timeout", c.Power.Timeout)
	positive("power.call_timeout", c.Power.CallTimeout)
	if c.Power.SyncInterval == 0 {
		bad("power.sync_interval", "is zero; use a negative duration to read power states only when needed")
	}
	if c.Power.Retries < 1 {
		bad("power.retries", "%d is less than 1", c.Power.Retries)
	}
	// Less than this, and whoever is served gives up and asks another.
	const leastUpload = 1_000_000
	if l := c.Swarm.UploadLimit; l != 0 && l < leastUpload {
		bad("swarm.upload_limit", "%d is less than %d bytes per second, with which nobody is served in time; 0 means no limit", l, leastUpload)
	}
	return errors.Join(faults...)
}

// Name is Hostname, or the machine's own when that is empty.
func (c Config) Name() string {
	if c.Hostname != "" {
		return c.Hostname
	}
	if h, err := os.Hostname(); err == nil && h != "" {
		return h
	}
	return "ingotd"
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

func quoted(words []string) []string {
	var out []string
	for _, w := range words {
		if w == "" {
			out = append(out, "empty")
			continue
		}
		out = append(out, w)
	}
	return out
}
