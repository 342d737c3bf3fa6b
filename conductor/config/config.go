// Package config holds the conductor's one Config: its settings, their defaults, and their sources.
//
// Later sources win: defaults, the YAML file, environment variables (INGOT_ and the key's path in capitals, dots as
// underscores: INGOT_NETBOOT_INTERFACE), then flags (--set netboot.interface=br0, and short ones for the commonest
// keys). An unknown key is an error wherever it stands. Validate returns all faults at once, each naming its key.
package config

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/observe/audit"
	"github.com/ingot-metal/ingot/conductor/signoflife"
)

// Config is the whole configuration of ingotd. The meaning, default and allowed values of each field are a row in
// settings.go.
type Config struct {
	DataDir   string `yaml:"data_dir"`
	Hostname  string `yaml:"hostname"`
	LogLevel  string `yaml:"log_level"`
	LogFormat string `yaml:"log_format"`

	ConductorGroup  string `yaml:"conductor_group"`
	ConductorWeight int    `yaml:"conductor_weight"`

	// NewInstallation is the flag by which a start makes a new database in place of a lost or unusable one. It can't be
	// set in a file, so each start must request it.
	NewInstallation bool `yaml:"-"`

	Store    Store    `yaml:"store"`
	API      API      `yaml:"api"`
	Web      Web      `yaml:"web"`
	Agents   Agents   `yaml:"agents"`
	Peer     Peer     `yaml:"peer"`
	Netboot  Netboot  `yaml:"netboot"`
	Deploy   Deploy   `yaml:"deploy"`
	Export   Export   `yaml:"export"`
	Power    Power    `yaml:"power"`
	Health   Health   `yaml:"health"`
	Hardware Hardware `yaml:"hardware"`
	Redfish  Redfish  `yaml:"redfish"`
	Swarm    Swarm    `yaml:"swarm"`
	Steps    Steps    `yaml:"steps"`
	Limits   Limits   `yaml:"limits"`
	History  History  `yaml:"history"`
	Metrics  Metrics  `yaml:"metrics"`
	Audit    Audit    `yaml:"audit"`
	Traces   Traces   `yaml:"traces"`

	Inspection Inspection `yaml:"inspection"`
	Discovery  Discovery  `yaml:"discovery"`
	Pools      Pools      `yaml:"pools"`

	Reservations Reservations `yaml:"reservations"`

	Fetch      Fetch      `yaml:"fetch"`
	Glance     Glance     `yaml:"glance"`
	Neutron    Neutron    `yaml:"neutron"`
	Placement  Placement  `yaml:"placement"`
	OpenStack  OpenStack  `yaml:"openstack"`
	SignOfLife SignOfLife `yaml:"sign_of_life"`
	Switches   Switches   `yaml:"switches"`
}

// Switches are those that Ingot configures.
type Switches struct {
	File string `yaml:"file"`
}

// Redfish is about controllers with a Redfish service.
type Redfish struct {
	CADir string `yaml:"ca_dir"`
}

// Fetch configures requests that the conductor itself makes for users, such as those of inspection rules.
type Fetch struct {
	Allow []string `yaml:"allow"`
}

// SignOfLife says where deployed systems are looked for; deploy.sign_of_life names the signs.
type SignOfLife struct {
	Networks []string `yaml:"networks"`
}

// Store is how the data is kept.
type Store struct {
	URL          string `yaml:"url"`
	PasswordFile string `yaml:"password_file"`
	Ephemeral    bool   `yaml:"ephemeral"`
	Key          Secret `yaml:"key"`
}

// Server is the address of the PostgreSQL database; "" for SQLite.
func (s Store) Server() string {
	if s.URL == "sqlite:" {
		return ""
	}
	return s.URL
}

// faultyURL says what is wrong with the address of the database, without showing it: it may hold a password.
func (s Store) faultyURL() string {
	if s.Server() == "" {
		return ""
	}
	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return "is neither sqlite: nor the address of a PostgreSQL database, postgres://USER@HOST:PORT/DATABASE"
	}
	if _, ok := u.User.Password(); ok || u.Query().Has("password") {
		return "must not hold the password: put it into a file and name that in store.password_file, or into the environment (PGPASSWORD)"
	}
	return ""
}

// Bytes are the key's; nil when there is none.
func (s Store) Bytes() []byte {
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(s.Key)))
	if err != nil || len(b) == 0 {
		return nil
	}
	return b
}

// Steps says which steps run without a request, and when. Each list has entries INTERFACE.STEP:PRIORITY, such as
// deploy.erase_devices:10; the highest priority runs first, 0 leaves a step out. Priorities in a request, a template or
// a runbook go before it. The names are those of Ironic's options.
type Steps struct {
	CleanStepPriorityOverride   []string `yaml:"clean_step_priority_override"`
	DeployStepPriorityOverride  []string `yaml:"deploy_step_priority_override"`
	InspectStepPriorityOverride []string `yaml:"inspect_step_priority_override"`
	VerifyStepPriorityOverride  []string `yaml:"verify_step_priority_override"`
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

// maxPriority keeps steps of the agent after its boot, which has 1000.
const maxPriority = 999

// Swarm configures how agents that write the same published image help each other.
type Swarm struct {
	Enabled     bool `yaml:"enabled"`
	UploadLimit int  `yaml:"upload_limit"`
}

// API is the REST side.
type API struct {
	Listen            string   `yaml:"listen"`
	InsecureListen    bool     `yaml:"insecure_listen"`
	PublicURL         string   `yaml:"public_url"`
	HostNames         []string `yaml:"host_names"`
	ResendCredentials bool     `yaml:"resend_credentials"`
	TLSCert           string   `yaml:"tls_cert"`
	TLSKey            string   `yaml:"tls_key"`
	Auth              string   `yaml:"auth"`
	HtpasswdFile      string   `yaml:"htpasswd_file"`
	Keystone          Keystone `yaml:"keystone"`
	TrustedProxies    []string `yaml:"trusted_proxies"`
	Ramdisk           bool     `yaml:"ramdisk"`
}

// Web is the dashboard.
type Web struct {
	Enabled bool `yaml:"enabled"`
}

// Keystone is OpenStack's identity service, and this server's own user there.
type Keystone struct {
	AuthURL      string `yaml:"auth_url"`
	PublicURL    string `yaml:"public_url"`
	Username     string `yaml:"username"`
	Password     Secret `yaml:"password"`
	PasswordFile string `yaml:"password_file"`
	UserDomain   string `yaml:"user_domain"`
	// ApplicationCredential is the ID of one; its secret is the password.
	ApplicationCredential string        `yaml:"application_credential"`
	Cloud                 string        `yaml:"cloud"`
	CloudsFile            string        `yaml:"clouds_file"`
	Project               string        `yaml:"project"`
	ProjectDomain         string        `yaml:"project_domain"`
	ServiceProject        string        `yaml:"service_project"`
	CAFile                string        `yaml:"ca_file"`
	CacheTime             time.Duration `yaml:"cache_time"`
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
	Listen    string `yaml:"listen"`
	Advertise string `yaml:"advertise"`
}

// Peer is the side that other conductors of the same database dial.
type Peer struct {
	Listen    string `yaml:"listen"`
	Advertise string `yaml:"advertise"`
}

// PeerListen is the address of the listener for other conductors.
func (c Config) PeerListen() string {
	if c.Peer.Listen != "" {
		return c.Peer.Listen
	}
	host, _, _ := net.SplitHostPort(c.Agents.Listen) // Validate has seen to it
	return net.JoinHostPort(host, peerPort)
}

const peerPort = "6387"

// Netboot configures the servers for booting machines.
type Netboot struct {
	DHCP       string        `yaml:"dhcp"`
	Interface  string        `yaml:"interface"`
	Address    string        `yaml:"address"`
	Virtual    string        `yaml:"virtual_address"`
	RangeStart string        `yaml:"range_start"`
	RangeEnd   string        `yaml:"range_end"`
	Gateway    string        `yaml:"gateway"`
	DNS        []string      `yaml:"dns"`
	LeaseTime  time.Duration `yaml:"lease_time"`
	HTTPPort   int           `yaml:"http_port"`
	HTTPSPort  int           `yaml:"https_port"`
	MDNS       bool          `yaml:"mdns"`

	ExternalHTTPURL string `yaml:"external_http_url"`

	TFTP         bool          `yaml:"tftp"`
	LoaderDir    string        `yaml:"loader_dir"`
	RamdiskDir   string        `yaml:"ramdisk_dir"`
	ImagesDir    string        `yaml:"images_dir"`
	KernelParams string        `yaml:"kernel_params"`
	TokenLife    time.Duration `yaml:"token_life"`
}

// Export configures whether machines' disks may be lent, and to which hosts for deploy interface iscsi.
type Export struct {
	Allow   bool     `yaml:"allow"`
	Writers []string `yaml:"writers"`
}

// Writer is a host that writes disks for deploy interface iscsi.
type Writer struct{ Address, Initiator string }

// iqn is an iSCSI name as step export_disk takes it.
var iqn = regexp.MustCompile(`^iqn\.\d{4}-\d\d\.[a-z0-9.-]+(:[a-z0-9.:-]+)?$`)

// Hosts are the writers.
func (e Export) Hosts() (all []Writer, err error) {
	for _, text := range e.Writers {
		at, name, _ := strings.Cut(text, "=")
		a, aerr := netip.ParseAddr(at)
		if aerr != nil || a.IsUnspecified() || a.IsMulticast() || !iqn.MatchString(name) {
			return nil, fmt.Errorf("%q is not ADDRESS=INITIATOR, such as 192.0.2.7=iqn.2004-10.com.example:writer", text)
		}
		all = append(all, Writer{Address: a.Unmap().String(), Initiator: name})
	}
	return all, nil
}

// Deploy configures the work on machines.
type Deploy struct {
	AllowUnverified        bool          `yaml:"allow_unverified"`
	AllowMD5               bool          `yaml:"allow_md5"`
	AutomatedClean         bool          `yaml:"automated_clean"`
	FastTrack              bool          `yaml:"fast_track"`
	BootMode               string        `yaml:"boot_mode"`
	BootInstance           string        `yaml:"boot_instance"`
	KexecDelay             time.Duration `yaml:"kexec_delay"`
	SignOfLife             []string      `yaml:"sign_of_life"`
	SignOfLifeTimeout      time.Duration `yaml:"sign_of_life_timeout"`
	PhoneHomeURL           string        `yaml:"phone_home_url"`
	BootTimeout            time.Duration `yaml:"boot_timeout"`
	SessionGrace           time.Duration `yaml:"session_grace"`
	Silence                time.Duration `yaml:"silence"`
	MaxBoots               int           `yaml:"max_boots"`
	InstalledSystemRetries int           `yaml:"installed_system_retries"`
	Tries                  int           `yaml:"tries"`
}

// Power is how controllers are talked to.
type Power struct {
	Timeout      time.Duration `yaml:"timeout"`
	SyncInterval time.Duration `yaml:"sync_interval"`
	Force        bool          `yaml:"force"`
	CallTimeout  time.Duration `yaml:"call_timeout"`
	Retries      int           `yaml:"retries"`
}

// Metrics says where metrics are read.
type Metrics struct {
	Listen         string `yaml:"listen"`
	InsecureListen bool   `yaml:"insecure_listen"`
	API            bool   `yaml:"api"`
	NodeSeries     int    `yaml:"node_series"`
	LabelValues    int    `yaml:"label_values"`
}

// Audit says where lines about requested changes go.
type Audit struct {
	File   string `yaml:"file"`
	Syslog string `yaml:"syslog"`
}

// Traces says where traces are sent.
type Traces struct {
	Endpoint string `yaml:"endpoint"`
	Percent  int    `yaml:"percent"`
}

// Health is how controllers are asked how their machines are.
type Health struct {
	Interval time.Duration `yaml:"interval"`
	AtOnce   int           `yaml:"at_once"`
	Faults   bool          `yaml:"faults"`
}

// Default returns the values that hold when nothing is set.
func Default() Config {
	var c Config
	for _, s := range c.settings() {
		if s.value != nil {
			reflect.ValueOf(s.field).Elem().Set(reflect.ValueOf(s.value))
		}
	}
	return c
}

// kernelParam is one word of a kernel command line that can't break out of a boot script.
var kernelParam = regexp.MustCompile(`^[A-Za-z0-9_.,:/=@%+-]+$`)

// check is a row of what Validate looks at beyond the rules of single settings.
type check struct {
	faulty    bool
	key, text string
}

// Validate returns everything that is wrong, or nil. It looks at the values alone, not at the machine.
func (c Config) Validate() error {
	var faults []error
	for _, s := range c.settings() {
		if s.rule == nil {
			continue
		}
		if fault := s.rule.Fault(reflect.ValueOf(s.field).Elem().Interface()); fault != "" {
			faults = append(faults, fmt.Errorf("%s: %s", s.key, fault))
		}
	}
	checks := slices.Concat(c.checkAPI(), c.checkNetwork(), c.checkOpenStack(), c.checkRest())
	for _, f := range checks {
		if f.faulty {
			faults = append(faults, fmt.Errorf("%s: %s", f.key, f.text))
		}
	}
	if _, err := c.Steps.Priorities(); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// isAddress reports whether a text is the address of a server.
func isAddress(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

func (c Config) checkAPI() []check {
	a, k := c.API, c.API.Keystone
	host, _, err := net.SplitHostPort(a.Listen)
	keystone := a.Auth == "keystone"
	clouded := k.Cloud != "" // then a file says what the settings would
	_, proxies := limit.ParseClients(a.TrustedProxies)
	const noServer = "%q is not an address such as https://keystone.example:5000"
	return []check{
		{!filepath.IsAbs(c.DataDir), "data_dir", fmt.Sprintf("%q is not an absolute path", c.DataDir)},
		{c.Store.faultyURL() != "", "store.url", c.Store.faultyURL()},
		{c.Store.Server() == "" && c.Store.PasswordFile != "", "store.password_file",
			"is for PostgreSQL: name the database in store.url"},
		{c.Store.Key != "" && len(c.Store.Bytes()) != 32, "store.key",
			"is not 32 bytes in base64: make one with head -c 32 /dev/urandom | base64, or leave it empty to have a key file made"},
		{err == nil && !loopback(host) && a.Auth == "none" && !a.InsecureListen, "api.listen", fmt.Sprintf(
			"%s is reachable from other machines, and clients don't have to authenticate; listen on 127.0.0.1, set api.auth to http_basic or keystone, or set api.insecure_listen if the network is closed to all but administrators", a.Listen)},
		{a.PublicURL != "" && !isAddress(a.PublicURL), "api.public_url",
			fmt.Sprintf("%q is not an address such as https://ingot.example:6385", a.PublicURL)},
		{(a.TLSCert == "") != (a.TLSKey == ""), "api.tls_cert", "and api.tls_key go together: set both, or neither"},
		{a.Auth == "http_basic" && a.HtpasswdFile == "", "api.htpasswd_file",
			"is needed when api.auth is http_basic: make one with htpasswd -B -c FILE NAME"},
		{keystone && !clouded && !isAddress(k.AuthURL), "api.keystone.auth_url", fmt.Sprintf(noServer, k.AuthURL)},
		{keystone && k.PublicURL != "" && !isAddress(k.PublicURL), "api.keystone.public_url",
			fmt.Sprintf(noServer, k.PublicURL)},
		{keystone && !clouded && (k.Username == "") == (k.ApplicationCredential == ""), "api.keystone.username",
			"or api.keystone.application_credential is needed when api.auth is keystone, one of the two: a user that may validate tokens"},
		{keystone && clouded && cmp.Or(k.AuthURL, k.Username, k.ApplicationCredential, string(k.Password),
			k.PasswordFile) != "", "api.keystone.cloud",
			"says where Keystone is and as whom to log in: leave out api.keystone.auth_url, username, application_credential, password and password_file, or this"},
		{keystone && !clouded && (k.Password == "") == (k.PasswordFile == ""), "api.keystone.password",
			"or api.keystone.password_file is needed, one of the two: of the user, or the secret of the application credential; the password can also come from the environment (INGOT_API_KEYSTONE_PASSWORD)"},
		{keystone && (k.CacheTime <= 0 || k.CacheTime > time.Minute), "api.keystone.cache_time",
			fmt.Sprintf("%v is not between 0 and 1m: a revoked token would live that long", k.CacheTime)},
		{c.Glance.URL != "" && c.Netboot.Interface == "" && c.Netboot.Address == "", "glance.url",
			"needs a provisioning network, on which agents get the images: set netboot.interface or netboot.address"},
		{proxies != nil, "api.trusted_proxies", fmt.Sprint(proxies)},
	}
}

func (c Config) checkNetwork() []check {
	n, d := c.Netboot, c.Discovery
	first, firstErr := netip.ParseAddr(n.RangeStart)
	last, lastErr := netip.ParseAddr(n.RangeEnd)
	server, ranged := n.DHCP == "server", n.RangeStart != "" && n.RangeEnd != ""
	checks := []check{
		{n.DHCP != "off" && n.Interface == "", "netboot.interface",
			fmt.Sprintf("is needed when netboot.dhcp is %s: name the provisioning network's interface", n.DHCP)},
		{n.DHCP == "off" && n.Interface == "" && n.Address == "" && c.Agents.Advertise == "", "agents.advertise",
			"no provisioning network is configured, so machines could not reach this conductor: set netboot.interface to the provisioning network's interface (and netboot.dhcp), or agents.advertise to the HOST:PORT by which machines reach it; to try ingotd without machines: --set agents.advertise=127.0.0.1:6386"},
		{server && !ranged, "netboot.range_start", "and netboot.range_end are needed when netboot.dhcp is server"},
		{server && ranged && firstErr == nil && lastErr == nil && last.Less(first), "netboot.range_end",
			fmt.Sprintf("%s lies before netboot.range_start %s", last, first)},
		{d.Enabled && d.Driver == "", "discovery.driver",
			"is needed when discovery.enabled is set: the hardware type of the machines that are found"},
		{d.Enabled && d.LimitPerHour < 1, "discovery.limit_per_hour", fmt.Sprintf("%d is less than 1", d.LimitPerHour)},
		{d.Enabled && n.Interface == "" && n.Address == "", "discovery.enabled",
			"needs a provisioning network: set netboot.interface"},
	}
	for w := range strings.FieldsSeq(n.KernelParams) {
		checks = append(checks,
			check{!kernelParam.MatchString(w), "netboot.kernel_params",
				fmt.Sprintf("%q has characters other than letters, digits and _.,:/=@%%+-", w)},
			check{strings.HasPrefix(w, "ingot.") && w != "ingot.shell=1" && w != "ingot.debug=1",
				"netboot.kernel_params", fmt.Sprintf("%q is Ingot's own to set", w)})
	}
	for _, i := range d.Interfaces {
		kind, name, _ := strings.Cut(i, "=")
		checks = append(checks, check{kind == "" || name == "", "discovery.interfaces",
			fmt.Sprintf("%q is not KIND=NAME, such as network=noop", i)})
	}
	return checks
}

func (c Config) checkRest() []check {
	lldp, l, p := c.Inspection.LLDPTimeout, c.Limits, c.Pools
	_, signs := signoflife.Parse(c.Deploy.SignOfLife)
	_, fetches := dial.Parse(c.Fetch.Allow)
	_, knocks := dial.Parse(c.SignOfLife.Networks)
	_, writers := c.Export.Hosts()
	var syslog error
	if c.Audit.Syslog != "" {
		_, _, syslog = audit.Server(c.Audit.Syslog)
	}
	scraped, _, _ := net.SplitHostPort(c.Metrics.Listen)
	// At a lower rate the fetching agent gives up and asks another one.
	const leastUpload, leastBody = 1_000_000, 128 << 20
	return []check{
		{lldp < 0 || lldp > 90*time.Second || lldp%time.Second != 0, "inspection.lldp_timeout",
			fmt.Sprintf("%v is not whole seconds up to 90s", lldp)},
		{signs != nil, "deploy.sign_of_life", fmt.Sprint(signs)},
		{writers != nil, "export.writers", fmt.Sprint(writers)},
		{len(c.Export.Writers) > 0 && !c.Export.Allow, "export.writers", "needs export.allow: set both, or neither"},
		{c.Netboot.Virtual != "" && (c.Netboot.Virtual == c.Netboot.Address || c.Netboot.Interface == "" &&
			c.Netboot.Address == ""), "netboot.virtual_address",
			"is a second address of network boot: set netboot.interface, or netboot.address to one that this host has always"},
		{c.Netboot.ExternalHTTPURL != "" && !isAddress(c.Netboot.ExternalHTTPURL), "netboot.external_http_url",
			fmt.Sprintf("%q is not an address such as http://192.0.2.1:8080", c.Netboot.ExternalHTTPURL)},
		{c.Deploy.PhoneHomeURL != "" && !isAddress(c.Deploy.PhoneHomeURL), "deploy.phone_home_url",
			fmt.Sprintf("%q is not an address such as http://192.0.2.1:8080", c.Deploy.PhoneHomeURL)},
		{c.Metrics.Listen != "" && !loopback(scraped) && c.API.Auth == "none" && !c.Metrics.InsecureListen,
			"metrics.listen", fmt.Sprintf(
				"%s is reachable from other machines, and clients don't have to authenticate; listen on 127.0.0.1, set api.auth to http_basic, or set metrics.insecure_listen if the network is closed to all but administrators", c.Metrics.Listen)},
		{c.Audit.File != "" && !filepath.IsAbs(c.Audit.File), "audit.file",
			fmt.Sprintf("%q is not an absolute path", c.Audit.File)},
		{syslog != nil, "audit.syslog", fmt.Sprint(syslog)},
		{c.Traces.Endpoint != "" && !isAddress(c.Traces.Endpoint), "traces.endpoint",
			fmt.Sprintf("%q is not an address such as http://collector.example:4318", c.Traces.Endpoint)},
		{c.Power.SyncInterval == 0, "power.sync_interval",
			"is zero; use a negative duration to read power states only when needed"},
		{c.Swarm.UploadLimit != 0 && c.Swarm.UploadLimit < leastUpload, "swarm.upload_limit",
			fmt.Sprintf("%d is less than %d bytes per second, too slow to serve any agent in time; 0 means no limit",
				c.Swarm.UploadLimit, leastUpload)},
		{fetches != nil, "fetch.allow", fmt.Sprint(fetches)},
		{knocks != nil, "sign_of_life.networks", fmt.Sprint(knocks)},
		{p.LongestPause > 0 && p.LongestPause < p.Pause, "pools.longest_pause",
			fmt.Sprintf("%v is less than pools.pause, which is %v", p.LongestPause, p.Pause)},
		{l.BodyBytesAuthenticated < leastBody, "limits.body_bytes_authenticated",
			fmt.Sprintf("%d is less than %d, which one request with a config drive can take", l.BodyBytesAuthenticated,
				leastBody)},
		{l.BodyBytes < l.BodyBytesAuthenticated+4<<20, "limits.body_bytes",
			fmt.Sprintf("%d is less than %d, 4 MiB above limits.body_bytes_authenticated", l.BodyBytes,
				l.BodyBytesAuthenticated+4<<20)},
	}
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
