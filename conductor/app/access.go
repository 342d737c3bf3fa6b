package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// authenticator finds out who sends requests.
type authenticator struct {
	who      func(*http.Request) (*access.Actor, error) // nil if authentication is off
	keystone *access.Keystone                           // nil unless it is Keystone's
}

func authentication(cfg config.Config, clients *limit.Clients, log *slog.Logger) (authenticator, error) {
	switch cfg.API.Auth {
	case "http_basic":
		b, err := access.OpenBasic(cfg.API.HtpasswdFile, clients, log)
		if err != nil {
			return authenticator{}, err
		}
		return authenticator{who: b.Authenticate}, nil
	case "keystone":
		k := cfg.API.Keystone
		at, err := keystoneServer(k)
		if err != nil {
			return authenticator{}, err
		}
		at.PublicURL, at.ServiceProject, at.ProjectDomain = k.PublicURL, k.ServiceProject, k.ProjectDomain
		at.CacheTime = k.CacheTime
		a, err := access.NewKeystone(at, log)
		if err != nil {
			return authenticator{}, err
		}
		return authenticator{a.Authenticate, a}, nil
	}
	return authenticator{}, nil
}

// keystoneServer says where Keystone is, and as whom Ingot logs in: what an entry of clouds.yaml has, if one is named,
// or the settings. Files are read at each login, so that a changed password needs no restart.
func keystoneServer(k config.Keystone) (access.KeystoneConfig, error) {
	if k.Cloud != "" {
		return keystoneOfCloud(k)
	}
	return access.KeystoneConfig{AuthURL: k.AuthURL, CAFile: k.CAFile, Own: func() (gophercloud.AuthOptions, error) {
		secret, err := password(k)
		if err != nil {
			return gophercloud.AuthOptions{}, err
		}
		if k.ApplicationCredential != "" {
			return gophercloud.AuthOptions{ApplicationCredentialID: k.ApplicationCredential,
				ApplicationCredentialSecret: secret}, nil
		}
		o := gophercloud.AuthOptions{Username: k.Username, Password: secret,
			Scope: &gophercloud.AuthScope{System: true}}
		o.DomainID, o.DomainName = domain(k.UserDomain)
		if k.Project != "" {
			o.Scope = &gophercloud.AuthScope{ProjectName: k.Project}
			o.Scope.DomainID, o.Scope.DomainName = domain(k.ProjectDomain)
		}
		return o, nil
	}}, nil
}

// password reads Ingot's password for Keystone.
func password(k config.Keystone) (string, error) {
	if k.PasswordFile == "" {
		return string(k.Password), nil
	}
	b, err := os.ReadFile(k.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("api.keystone.password_file: %w", err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

// domain is a domain's ID or name. That of the domain which each Keystone has is its ID.
func domain(setting string) (id, name string) {
	if setting == "" || setting == "default" {
		return "default", ""
	}
	return "", setting
}

func keystoneOfCloud(k config.Keystone) (access.KeystoneConfig, error) {
	read := func() (gophercloud.AuthOptions, error) {
		o, _, _, err := clouds.Parse(clouds.WithCloudName(k.Cloud), clouds.WithLocations(k.CloudsFile))
		if err == nil && o.IdentityEndpoint == "" {
			err = errors.New("it has no auth_url")
		}
		if err != nil {
			err = fmt.Errorf("api.keystone.cloud: read cloud %q of %s: %w", k.Cloud, k.CloudsFile, err)
		}
		return o, err
	}
	o, err := read()
	if err != nil {
		return access.KeystoneConfig{}, err
	}
	cfg := access.KeystoneConfig{AuthURL: o.IdentityEndpoint, CAFile: k.CAFile, Own: read}
	if cfg.CAFile == "" { // which gophercloud has read, and does not name
		var file struct {
			Clouds map[string]struct {
				CA string `yaml:"cacert"`
			}
		}
		b, err := os.ReadFile(k.CloudsFile)
		if err == nil {
			err = yaml.Unmarshal(b, &file)
		}
		if err != nil {
			return cfg, fmt.Errorf("api.keystone.clouds_file: %w", err)
		}
		cfg.CAFile = file.Clouds[k.Cloud].CA
	}
	return cfg, nil
}

// guarded refuses a socket that other machines reach while authentication is off. The configuration's own address has
// been checked; this is for one that was handed over.
func guarded(cfg config.Config, at net.Addr) error {
	t, ok := at.(*net.TCPAddr)
	if cfg.API.Auth != "none" || cfg.API.InsecureListen || !ok || t.IP.IsLoopback() {
		return nil
	}
	return fmt.Errorf(
		"the API's socket %s is reachable from other machines, and authentication is off: set api.auth to http_basic or keystone, or api.insecure_listen if the network is closed to all but administrators", at)
}

// encrypted puts TLS in front of the API, if it is configured. An error leaves l as it was.
func encrypted(cfg config.Config, l net.Listener, log *slog.Logger) (net.Listener, error) {
	if cfg.API.TLSCert == "" {
		if a, err := netip.ParseAddrPort(l.Addr().String()); cfg.API.Auth != "none" &&
			(err != nil || !a.Addr().IsLoopback()) {
			log.Warn("the API listens beyond this machine without TLS: passwords and tokens can be read on the way, unless something in front of it encrypts (or set api.tls_cert and api.tls_key)", "api", l.Addr().String())
		}
		return l, nil
	}
	c, err := access.OpenCertificate(cfg.API.TLSCert, cfg.API.TLSKey, log)
	if err != nil {
		return l, err
	}
	t := c.Config()
	t.NextProtos = []string{"h2", "http/1.1"}
	return tls.NewListener(l, t), nil
}

// hostNames are the names and addresses by which clients may call the API: those configured, and those of the listener.
func hostNames(cfg config.Config) []string {
	names := append(slices.Clone(cfg.API.HostNames), cfg.Name())
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	host, _, _ := net.SplitHostPort(cfg.API.Listen)
	if a, err := netip.ParseAddr(host); host == "" || err == nil && a.IsUnspecified() {
		addrs, _ := net.InterfaceAddrs() // the address that a request came to is known in any case
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				names = append(names, p.Addr().String())
			}
		}
	} else {
		names = append(names, host)
	}
	if cfg.API.TLSCert != "" {
		// encrypted reports its faults
		if pair, err := tls.LoadX509KeyPair(cfg.API.TLSCert, cfg.API.TLSKey); err == nil && pair.Leaf != nil {
			names = append(names, pair.Leaf.DNSNames...)
			for _, ip := range pair.Leaf.IPAddresses {
				names = append(names, ip.String())
			}
		}
	}
	return names
}
