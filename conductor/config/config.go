// Package config holds the conductor's one Config: what can be set, its defaults, and where it is read from.
//
// Later sources win: defaults, the YAML file, environment variables (INGOT_ and the key's path in capitals, dots as
// underscores: INGOT_NETBOOT_INTERFACE), then flags (--set netboot.interface=br0, and short ones for the commonest
// keys). An unknown key is an error wherever it stands. Validate returns all faults at once, each naming its key.
package config

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/signoflife"
)

// Config is all that ingotd can be told. The comment of each field is its documentation; `ingotd --print-config` shows
// the values.
type Config struct {
	// DataDir holds the database, the CA and its key, and collected logs. Nobody else should be able to read it.
	DataDir string `yaml:"data_dir"`
	// Hostname names this conductor in the API and in histories; empty means the machine's host name.
	Hostname string `yaml:"hostname"`
	// LogLevel is debug, info, warn or error.
	LogLevel string `yaml:"log_level"`
	// LogFormat is text or json.
	LogFormat string `yaml:"log_format"`
	// NewInstallation is the flag by which a start makes a new database in place of one that is lost or can't be used.
	// It is asked for each time.
	NewInstallation bool `yaml:"-"`

	Store    Store    `yaml:"store"`
	API      API      `yaml:"api"`
	Agents   Agents   `yaml:"agents"`
	Netboot  Netboot  `yaml:"netboot"`
	Deploy   Deploy   `yaml:"deploy"`
	Power    Power    `yaml:"power"`
	Hardware Hardware `yaml:"hardware"`
	Swarm    Swarm    `yaml:"swarm"`
	Steps    Steps    `yaml:"steps"`
	Limits   Limits   `yaml:"limits"`
	History  History  `yaml:"history"`

	Inspection Inspection `yaml:"inspection"`
	Discovery  Discovery  `yaml:"discovery"`
	Pools      Pools      `yaml:"pools"`
	Fetch      Fetch      `yaml:"fetch"`
	SignOfLife SignOfLife `yaml:"sign_of_life"`
}

// Fetch is about what the conductor itself requests for users, such as the addresses in inspection rules.
type Fetch struct {
	// Allow has networks (CIDR) to which it may connect although they are loopback, link-local or the conductor's own
	// addresses, which it refuses else: for services on the conductor's host.
	Allow []string `yaml:"allow"`
}

// SignOfLife says where deployed systems are looked for; deploy.sign_of_life says by what they are known to have
// started.
type SignOfLife struct {
	// Networks has the networks (CIDR) in which port:NUMBER is tried at addresses that a config drive's network_data
	// gives. Empty: only at those that were leased to the node here or that its agent was connected from.
	Networks []string `yaml:"networks"`
}

// Store is how the data is kept.
type Store struct {
	// Ephemeral lets the conductor start with an empty database whenever there is none, as where something else knows
	// all nodes and enrols them anew (Metal3). Without it a database that is gone from a data directory in use is a
	// refusal to start.
	Ephemeral bool `yaml:"ephemeral"`
	// Key is what secrets in the database are encrypted with, 32 bytes in base64, best from the environment
	// (INGOT_STORE_KEY). Empty: the file key in the data directory, which is made at the first start.
	Key Secret `yaml:"key"`
}

// Bytes are the key's; nil when there is none.
func (s Store) Bytes() []byte {
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(s.Key)))
	if err != nil || len(b) == 0 {
		return nil
	}
	return b
}

// Steps says which steps are run by themselves, and when. Each list has entries INTERFACE.STEP:PRIORITY, such as
// deploy.erase_devices:10; the highest priority runs first, 0 leaves a step out. What a request, a template or a
// runbook asks for goes before it. The names are those of Ironic's options.
type Steps struct {
	// CleanStepPriorityOverride is for the automated cleaning before a node becomes available.
	CleanStepPriorityOverride []string `yaml:"clean_step_priority_override"`
	// DeployStepPriorityOverride is for deployments.
	DeployStepPriorityOverride []string `yaml:"deploy_step_priority_override"`
	// InspectStepPriorityOverride is for inspection.
	InspectStepPriorityOverride []string `yaml:"inspect_step_priority_override"`
	// VerifyStepPriorityOverride is for what is done when a node is taken under management.
	VerifyStepPriorityOverride []string `yaml:"verify_step_priority_override"`
}

// Priorities are the overrides by phase ("clean", "deploy", ...) and step ("deploy.erase_devices").
func (s Steps) Priorities() (map[string]map[string]int, error) {
	out := map[string]map[string]int{}
	var faults []error
	for phase, list := range map[string][]string{"clean": s.CleanStepPriorityOverride,
		"deploy": s.DeployStepPriorityOverride, "inspect": s.InspectStepPriorityOverride,
		"verify": s.VerifyStepPriorityOverride} {
		for _, entry := range list {
			name, text, _ := strings.Cut(entry, ":")
			iface, step, ok := strings.Cut(name, ".")
			p, err := strconv.Atoi(text)
			if !ok || iface == "" || step == "" || err != nil || p < 0 || p > maxPriority {
				faults = append(faults,
					fmt.Errorf("steps.%s_step_priority_override: %q is not INTERFACE.STEP:PRIORITY with a priority from 0 to %d", phase, entry, maxPriority))
				continue
			}
			if out[phase] == nil {
				out[phase] = map[string]int{}
			}
			if _, twice := out[phase][name]; twice {
				faults = append(faults,
					fmt.Errorf("steps.%s_step_priority_override: %s stands there twice", phase, name))
			}
			out[phase][name] = p
		}
	}
	return out, errors.Join(faults...)
}

// maxPriority keeps steps of the agent behind its boot, which has 1000.
const maxPriority = 999

// Swarm is what agents that write the same published image do for each other.
type Swarm struct {
	// Enabled has them give each other its chunks, so that the image's server sends each about once.
	Enabled bool `yaml:"enabled"`
	// UploadLimit is what each of them sends to others at most, in bytes per second; zero means no limit.
	UploadLimit int `yaml:"upload_limit"`
}

// API is the REST side.
type API struct {
	// Listen is where the Bare Metal API is served. A socket handed over by the service manager (LISTEN_FDS) is used
	// instead.
	Listen string `yaml:"listen"`
	// InsecureListen allows a Listen beyond loopback although nobody has to authenticate: whoever reaches it owns all
	// nodes.
	InsecureListen bool `yaml:"insecure_listen"`
	// PublicURL is the address by which clients know the API, when something in front of it encrypts or renames it;
	// links in answers begin with it. Empty means as each request has it in its header Host, if that is known to be
	// this server.
	PublicURL string `yaml:"public_url"`
	// HostNames are names and addresses by which clients reach this server, without ports, beside those it knows:
	// loopback, the addresses of its machine, the machine's host name and the names in TLSCert. Links in answers to
	// requests with any other Host begin with the server's address.
	HostNames []string `yaml:"host_names"`
	// ResendCredentials asks everybody who changes where stored credentials are sent (the address of a BMC, its port,
	// cipher suite or certificate checking, a registry, a volume's portal) for the credentials in the same request.
	// Those without a role in the system are always asked.
	ResendCredentials bool `yaml:"resend_credentials"`
	// TLSCert and TLSKey are files with a certificate (and those that signed it) and its key, in PEM, read again when
	// they change. With them the API is served over TLS.
	TLSCert string `yaml:"tls_cert"`
	TLSKey  string `yaml:"tls_key"`
	// Auth is how those who use the API say who they are: none (loopback only), http_basic or keystone.
	Auth string `yaml:"auth"`
	// HtpasswdFile has the users of http_basic, with bcrypt hashes (htpasswd -B), read again when it changes.
	HtpasswdFile string   `yaml:"htpasswd_file"`
	Keystone     Keystone `yaml:"keystone"`
	// TrustedProxies are addresses and networks of servers in front of the API, whose header X-Forwarded-For says for
	// whom they ask. Where something is limited per address, it is that one.
	TrustedProxies []string `yaml:"trusted_proxies"`
	// Ramdisk serves what a stock agent calls without authentication: lookup, heartbeat and continue_inspection.
	// Ingot's own agent does not need it.
	Ramdisk bool `yaml:"ramdisk"`
}

// Keystone is OpenStack's identity service, and this server's own user there.
type Keystone struct {
	// AuthURL is Keystone's address, such as https://keystone.example:5000.
	AuthURL string `yaml:"auth_url"`
	// PublicURL is the address at which clients are told to get their tokens; empty means AuthURL.
	PublicURL string `yaml:"public_url"`
	// Username is this server's user, which needs the role service or admin to validate tokens.
	Username string `yaml:"username"`
	// Password is that user's; PasswordFile is read at each login instead.
	Password     Secret `yaml:"password"`
	PasswordFile string `yaml:"password_file"`
	// UserDomain is the user's domain.
	UserDomain string `yaml:"user_domain"`
	// Project is the project in which the user has the role; empty means that it has it in the system.
	Project       string `yaml:"project"`
	ProjectDomain string `yaml:"project_domain"`
	// ServiceProject is a project (in ProjectDomain) whose users with the role service may do what members of the
	// system may, as Nova's does; empty means none.
	ServiceProject string `yaml:"service_project"`
	// CAFile has the certificates that Keystone's is signed by; empty means those of this machine.
	CAFile string `yaml:"ca_file"`
	// CacheTime is how long a token is taken for good without asking again; a revoked one works that long. At most a
	// minute.
	CacheTime time.Duration `yaml:"cache_time"`
}

// Secret is text that is never shown.
type Secret string

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "******"
}

// MarshalYAML keeps the secret out of --print-config.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

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
	// FastTrack keeps the agent up between inspection, cleaning and deployment, so that the machine is not booted for
	// each of them, unless a node's driver_info.fast_track says otherwise.
	FastTrack bool `yaml:"fast_track"`
	// BootMode is bios or uefi for nodes that don't say in their capabilities; empty leaves it to the machine.
	BootMode string `yaml:"boot_mode"`
	// BootInstance is how an installed system is started: reboot, by the machine's firmware, or kexec, by the agent's
	// kernel at once. The key boot_instance of a node's driver_info or instance_info goes before it.
	BootInstance string `yaml:"boot_instance"`
	// KexecDelay is how long an agent waits between its leave and the kexec, so that the machine's network can be
	// switched meanwhile. Nothing is waited for where the network is noop or flat.
	KexecDelay time.Duration `yaml:"kexec_delay"`
	// SignOfLife is by what a deployed system shows that it has started; a node becomes active only then. Any one of
	// the list counts: phone_home, dhcp, port:NUMBER, console:TEXT. Empty waits for nothing. The key sign_of_life of a
	// node's driver_info or instance_info goes before it.
	SignOfLife []string `yaml:"sign_of_life"`
	// SignOfLifeTimeout is how long that may take.
	SignOfLifeTimeout time.Duration `yaml:"sign_of_life_timeout"`
	// PhoneHomeURL is the address at which deployed systems reach this conductor, for phone_home; empty means
	// api.public_url, else the HTTP server of the provisioning network.
	PhoneHomeURL string `yaml:"phone_home_url"`
	// BootTimeout is how long a machine may take from power-on to a connected agent.
	BootTimeout time.Duration `yaml:"boot_timeout"`
	// SessionGrace is how long an agent may be out of reach before its machine is booted anew.
	SessionGrace time.Duration `yaml:"session_grace"`
	// Silence is how long a connected agent may report nothing about its plan.
	Silence time.Duration `yaml:"silence"`
	// MaxBoots is how often the agent is booted for one job before the job fails.
	MaxBoots int `yaml:"max_boots"`
	// InstalledSystemRetries is how often, for one job, a machine is turned off and on again because its installed
	// system started instead of the agent. After that it is turned off and the job fails.
	InstalledSystemRetries int `yaml:"installed_system_retries"`
	// Tries is how often the agent is given the same work in one boot when its failure may pass, as that of an image
	// server may.
	Tries int `yaml:"tries"`
}

// Power is how controllers are talked to.
type Power struct {
	// Timeout is how long a machine may take to be on, or off, after it was asked.
	Timeout time.Duration `yaml:"timeout"`
	// SyncInterval is the time between two readings of every machine's power state; negative reads only when needed.
	SyncInterval time.Duration `yaml:"sync_interval"`
	// Force sets the power of a machine back that was found on or off against the record; else the record follows the
	// machine.
	Force bool `yaml:"force"`
	// CallTimeout bounds one exchange with a controller.
	CallTimeout time.Duration `yaml:"call_timeout"`
	// Retries is how often in a row a failing exchange is tried.
	Retries int `yaml:"retries"`
}

// Default returns what holds when nothing is said.
func Default() Config {
	return Config{
		DataDir: "/var/lib/ingot", LogLevel: "info", LogFormat: "text",
		API: API{
			Listen: "127.0.0.1:6385", Auth: "none", Ramdisk: true,
			Keystone: Keystone{UserDomain: "default", Project: "service", ProjectDomain: "default",
				CacheTime: 30 * time.Second},
		},
		Agents: Agents{Listen: ":6386"},
		Netboot: Netboot{
			DHCP: "off", LeaseTime: time.Hour, HTTPPort: 8080, TFTP: true, LoaderDir: "/usr/lib/ipxe",
			RamdiskDir: "/var/lib/ingot/ramdisk", ImagesDir: "/var/lib/ingot/images", TokenLife: 15 * time.Minute,
		},
		Deploy: Deploy{
			AutomatedClean: true, BootInstance: "reboot", KexecDelay: 5 * time.Second,
			SignOfLifeTimeout: 10 * time.Minute, BootTimeout: 30 * time.Minute, SessionGrace: time.Minute,
			Silence: 30 * time.Minute, MaxBoots: 3, InstalledSystemRetries: 2, Tries: 2,
		},
		Inspection: Inspection{
			DefaultHooks: []string{"ramdisk-error", "validate-interfaces", "ports", "architecture"},
			Hooks: []string{"$default_hooks", "memory", "cpus", "root-device", "parse-lldp",
				"local-link-connection"},
			AddPorts: "all", KeepPorts: "all", DiskPartitioningSpacing: true, MaskSecrets: "always",
			CPUCapabilities: []string{"vmx:cpu_vt", "svm:cpu_vt", "aes:cpu_aes", "pse:cpu_hugepages",
				"pdpe1gb:cpu_hugepages_1g", "smx:cpu_txt"},
		},
		Discovery: Discovery{Driver: "ipmi", LimitPerHour: 60},
		Limits:    defaultLimits(),
		History:   defaultHistory(),
		Pools:     Pools{Interval: 10 * time.Second, Pause: time.Minute, LongestPause: time.Hour},
		Power:     Power{Timeout: time.Minute, SyncInterval: time.Minute, CallTimeout: time.Minute, Retries: 5},
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
	if c.Store.Key != "" && len(c.Store.Bytes()) != 32 {
		bad("store.key",
			"is not 32 bytes in base64: make one with head -c 32 /dev/urandom | base64, or leave it empty to have a key file made")
	}

	if host, _, err := net.SplitHostPort(c.API.Listen); err != nil {
		bad("api.listen", "%q is not host:port", c.API.Listen)
	} else if !loopback(host) && c.API.Auth == "none" && !c.API.InsecureListen {
		bad("api.listen",
			"%s is reachable from other machines, and nobody has to authenticate; listen on 127.0.0.1, set api.auth to http_basic or keystone, or set api.insecure_listen if the network is closed to all but administrators", c.API.Listen)
	}
	oneOf("api.auth", c.API.Auth, "none", "http_basic", "keystone")
	if u, err := url.Parse(c.API.PublicURL); c.API.PublicURL != "" &&
		(err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		bad("api.public_url", "%q is not an address such as https://ingot.example:6385", c.API.PublicURL)
	}
	if (c.API.TLSCert == "") != (c.API.TLSKey == "") {
		bad("api.tls_cert", "and api.tls_key go together: set both, or neither")
	}
	if c.API.Auth == "http_basic" && c.API.HtpasswdFile == "" {
		bad("api.htpasswd_file", "is needed when api.auth is http_basic: make one with htpasswd -B -c FILE NAME")
	}
	if k := c.API.Keystone; c.API.Auth == "keystone" {
		for key, u := range map[string]string{"auth_url": k.AuthURL, "public_url": k.PublicURL} {
			if u == "" && key == "public_url" {
				continue
			}
			if p, err := url.Parse(u); err != nil || p.Host == "" || p.Scheme != "http" && p.Scheme != "https" {
				bad("api.keystone."+key, "%q is not an address such as https://keystone.example:5000", u)
			}
		}
		if k.Username == "" {
			bad("api.keystone.username", "is needed when api.auth is keystone: a user that may validate tokens")
		}
		if (k.Password == "") == (k.PasswordFile == "") {
			bad("api.keystone.password",
				"or api.keystone.password_file is needed, one of the two; the password can also come from the environment (INGOT_API_KEYSTONE_PASSWORD)")
		}
		if k.CacheTime <= 0 || k.CacheTime > time.Minute {
			bad("api.keystone.cache_time", "%v is not between 0 and 1m: a revoked token would live that long",
				k.CacheTime)
		}
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
		bad("agents.advertise",
			"no provisioning network is configured, so machines could not reach this conductor: set netboot.interface to the provisioning network's interface (and netboot.dhcp), or agents.advertise to the HOST:PORT by which machines reach it; to try ingotd without machines: --set agents.advertise=127.0.0.1:6386")
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

	oneOf("inspection.mask_secrets", c.Inspection.MaskSecrets, "always", "never", "sensitive")
	if t := c.Inspection.LLDPTimeout; t < 0 || t > 90*time.Second || t%time.Second != 0 {
		bad("inspection.lldp_timeout", "%v is not whole seconds up to 90s", t)
	}
	if d := c.Discovery; d.Enabled {
		if d.Driver == "" {
			bad("discovery.driver",
				"is needed when discovery.enabled is set: the hardware type of the machines that are found")
		}
		if d.LimitPerHour < 1 {
			bad("discovery.limit_per_hour", "%d is less than 1", d.LimitPerHour)
		}
		if n.Interface == "" && n.Address == "" {
			bad("discovery.enabled", "needs a provisioning network: set netboot.interface")
		}
	}
	for _, i := range c.Discovery.Interfaces {
		if kind, name, ok := strings.Cut(i, "="); !ok || kind == "" || name == "" {
			bad("discovery.interfaces", "%q is not KIND=NAME, such as network=noop", i)
		}
	}

	oneOf("deploy.boot_mode", c.Deploy.BootMode, "", "bios", "uefi")
	oneOf("deploy.boot_instance", c.Deploy.BootInstance, "reboot", "kexec")
	positive("deploy.kexec_delay", c.Deploy.KexecDelay)
	positive("deploy.sign_of_life_timeout", c.Deploy.SignOfLifeTimeout)
	if _, err := signoflife.Parse(c.Deploy.SignOfLife); err != nil {
		bad("deploy.sign_of_life", "%v", err)
	}
	if u, err := url.Parse(c.Deploy.PhoneHomeURL); c.Deploy.PhoneHomeURL != "" &&
		(err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		bad("deploy.phone_home_url", "%q is not an address such as http://192.0.2.1:8080", c.Deploy.PhoneHomeURL)
	}
	positive("deploy.boot_timeout", c.Deploy.BootTimeout)
	positive("deploy.session_grace", c.Deploy.SessionGrace)
	positive("deploy.silence", c.Deploy.Silence)
	if c.Deploy.MaxBoots < 1 {
		bad("deploy.max_boots", "%d is less than 1", c.Deploy.MaxBoots)
	}
	if r := c.Deploy.InstalledSystemRetries; r < 0 || r > 10 {
		bad("deploy.installed_system_retries", "%d is not between 0 and 10", r)
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
		bad("swarm.upload_limit",
			"%d is less than %d bytes per second, with which nobody is served in time; 0 means no limit", l,
			leastUpload)
	}
	for key, list := range map[string][]string{"fetch.allow": c.Fetch.Allow,
		"sign_of_life.networks": c.SignOfLife.Networks} {
		if _, err := dial.Parse(list); err != nil {
			bad(key, "%v", err)
		}
	}
	if _, err := c.Steps.Priorities(); err != nil {
		faults = append(faults, err)
	}
	if _, err := limit.ParseClients(c.API.TrustedProxies); err != nil {
		bad("api.trusted_proxies", "%v", err)
	}
	faults = append(faults, c.Pools.validate()...)
	faults = append(faults, c.Limits.validate()...)
	faults = append(faults, c.History.validate()...)
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
