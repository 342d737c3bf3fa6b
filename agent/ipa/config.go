package ipa

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Secret is text that must not appear in a log.
type Secret string

// String hides the secret.
func (Secret) String() string { return "***" }

// LogValue hides the secret from slog.
func (Secret) LogValue() slog.Value { return slog.StringValue("***") }

// MulticastDNS in place of a URL has the agent look for Ironic.
const MulticastDNS = "mdns"

// Config holds the boot parameters that Ironic writes, by ironic-python-agent's names.
type Config struct {
	// APIs are the URLs of Ironic's API, asked in this order, or MulticastDNS; empty: only an inspection is wanted.
	APIs []string
	// Token of this boot, if it came with virtual media.
	Token Secret
	// Callbacks are the complete URLs that take an inventory, or MulticastDNS; empty: no inspection.
	Callbacks  []string
	Collectors []string
	RequestID  string
	Insecure   bool       // the API's certificate is not verified
	Listen     netip.Addr // of the command API; the zero address: all
	Port       uint16     // of the command API
	Advertised string     // host for the conductor; empty: the address from which the API is reached
	PublicPort uint16     // for the conductor
	Lookup     time.Duration
	Guard      bool // refuse to erase disks with cluster file systems
	// InjectFiles is the priority of deploy.inject_files in a deployment; 0: on request.
	InjectFiles int
	TLSMin      string // "1.2", "1.3", or "" for the conductor's choice
}

// Defaults, as in ironic-python-agent.
const (
	defaultPort   = 9999
	defaultLookup = 600 * time.Second
)

// Parse reads the boot parameters. ok reports whether they are an Ironic's: those of Ingot take precedence, and other
// programs' words are ignored. The error lists all faults.
func Parse(cmdline string) (c Config, ok bool, err error) {
	c = Config{Port: defaultPort, Lookup: defaultLookup, Guard: true}
	words, ingot := map[string]string{}, false
	for _, w := range strings.Fields(cmdline) {
		key, value, has := strings.Cut(w, "=")
		if !has {
			continue
		}
		words[key] = value // the last one counts
		ingot = ingot || key == "ingot.conductor" || key == "ingot.token"
	}
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s=%s: %s", key, words[key], fmt.Sprintf(format, args...)))
	}
	c.APIs = urls(words, "ipa-api-url", bad)
	c.Callbacks = urls(words, "ipa-inspection-callback-url", bad)
	media := words["boot_method"] == "vmedia"
	if ingot || len(c.APIs) == 0 && len(c.Callbacks) == 0 && len(errs) == 0 && !media {
		return Config{}, false, nil
	}
	if len(c.APIs) == 0 && len(c.Callbacks) == 0 && media {
		c.APIs = []string{MulticastDNS}
	}
	c.Token, c.RequestID = Secret(words["ipa-agent-token"]), words["ipa-global-request-id"]
	if list := words["ipa-inspection-collectors"]; list != "" {
		c.Collectors = strings.Split(list, ",")
		if len(c.Callbacks) == 0 && len(c.APIs) > 0 && c.APIs[0] != MulticastDNS {
			for _, at := range c.APIs {
				c.Callbacks = append(c.Callbacks, strings.TrimRight(at, "/")+"/v1/continue_inspection")
			}
		}
	}
	for key, to := range map[string]*bool{"ipa-insecure": &c.Insecure, "ipa-guard-special-filesystems": &c.Guard} {
		if v, has := words[key]; has {
			b, known := boolean(v)
			if !known {
				bad(key, "neither true nor false")
			}
			*to = b
		}
	}
	port := func(key string, to *uint16) {
		if v, has := words[key]; has {
			n, err := strconv.ParseUint(v, 10, 16)
			if err != nil || n == 0 {
				bad(key, "no TCP port")
			}
			*to = uint16(n)
		}
	}
	port("ipa-listen-port", &c.Port)
	c.PublicPort = c.Port
	port("ipa-advertise-port", &c.PublicPort)
	if v := words["ipa-listen-host"]; v != "" {
		if c.Listen, err = netip.ParseAddr(v); err != nil {
			bad("ipa-listen-host", "no IP address")
		}
	}
	c.Advertised = strings.Trim(words["ipa-advertise-host"], "[]")
	if v := words["ipa-advertise-protocol"]; v == "http" {
		bad("ipa-advertise-protocol", "commands are taken over https alone")
	}
	if v, has := words["ipa-lookup-timeout"]; has {
		n, err := strconv.ParseUint(v, 10, 31)
		if err != nil || n == 0 {
			bad("ipa-lookup-timeout", "no number of seconds")
		}
		c.Lookup = time.Duration(n) * time.Second
	}
	if v, has := words["ipa-inject-files-priority"]; has {
		n, err := strconv.ParseUint(v, 10, 16)
		if err != nil {
			bad("ipa-inject-files-priority", "no priority")
		}
		c.InjectFiles = int(n)
	}
	if c.TLSMin = words["ipa-tls-min-version"]; c.TLSMin != "" && tlsVersions[c.TLSMin] == 0 {
		bad("ipa-tls-min-version", "neither 1.2 nor 1.3")
	}
	return c, true, errors.Join(errs...)
}

// urls reads a list of URLs, or the word that asks for multicast DNS.
func urls(words map[string]string, key string, bad func(key, format string, args ...any)) (all []string) {
	for v := range strings.SplitSeq(words[key], ",") {
		if v == "" {
			continue
		}
		u, err := url.Parse(v)
		if v != MulticastDNS && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "") {
			bad(key, "%q is neither an http or https URL nor mdns", v)
			continue
		}
		all = append(all, v)
	}
	return all
}

// boolean reads a word as Python's oslo.config does.
func boolean(s string) (value, known bool) {
	switch strings.ToLower(s) {
	case "true", "1", "on", "yes":
		return true, true
	case "false", "0", "off", "no":
		return false, true
	}
	return false, false
}

// Hosts returns HOST:PORT of the servers that the agent has to reach, for the network; MulticastDNS stands for itself.
func (c Config) Hosts() (hosts []string) {
	for _, v := range append(append([]string(nil), c.APIs...), c.Callbacks...) {
		if v == MulticastDNS {
			hosts = append(hosts, v)
			continue
		}
		if h := hostPort(v); h != "" {
			hosts = append(hosts, h)
		}
	}
	return hosts
}

// hostPort is the address that a URL leads to; "" for none.
func hostPort(at string) string {
	u, err := url.Parse(at)
	if err != nil || u.Hostname() == "" {
		return ""
	}
	port := "80"
	if u.Scheme == "https" {
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
}
