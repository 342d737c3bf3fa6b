package importer

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/config"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
)

// loginTimeout bounds each exchange with Keystone.
const loginTimeout = 45 * time.Second

// Login makes the source that the environment describes, as the openstack command reads it: with OS_CLOUD or cloud an
// entry of clouds.yaml, else OS_AUTH_TYPE, OS_AUTH_URL and so on. An empty address is that of Keystone's catalog.
func Login(ctx context.Context, address, cloud string, getenv func(string) string) (*API, error) {
	if cloud = cmp.Or(cloud, getenv("OS_CLOUD")); cloud != "" {
		return loginCloud(ctx, address, cloud, getenv)
	}
	s := &API{URL: cmp.Or(address, getenv("OS_ENDPOINT"))}
	var err error
	if s.TLS, err = trusting(getenv("OS_CACERT")); err != nil {
		return nil, err
	}
	o := gophercloud.AuthOptions{
		IdentityEndpoint: getenv("OS_AUTH_URL"), Username: getenv("OS_USERNAME"), UserID: getenv("OS_USER_ID"),
		Password:   getenv("OS_PASSWORD"),
		DomainName: getenv("OS_USER_DOMAIN_NAME"), DomainID: getenv("OS_USER_DOMAIN_ID"),
		ApplicationCredentialID:     getenv("OS_APPLICATION_CREDENTIAL_ID"),
		ApplicationCredentialName:   getenv("OS_APPLICATION_CREDENTIAL_NAME"),
		ApplicationCredentialSecret: getenv("OS_APPLICATION_CREDENTIAL_SECRET"),
	}
	switch kind := getenv("OS_AUTH_TYPE"); {
	case kind == "none":
		return s, nil
	case getenv("OS_TOKEN") != "" && s.URL != "":
		s.Token = getenv("OS_TOKEN")
		return s, nil
	case kind == "http_basic" || o.IdentityEndpoint == "":
		s.User, s.Password = o.Username, o.Password
		return s, nil
	}
	if o.ApplicationCredentialID == "" && o.ApplicationCredentialName == "" {
		o.Scope = &gophercloud.AuthScope{System: getenv("OS_SYSTEM_SCOPE") == "all"}
		if !o.Scope.System {
			o.Scope.ProjectID, o.Scope.ProjectName = getenv("OS_PROJECT_ID"), getenv("OS_PROJECT_NAME")
			o.Scope.DomainName, o.Scope.DomainID = getenv("OS_PROJECT_DOMAIN_NAME"), getenv("OS_PROJECT_DOMAIN_ID")
			if o.Scope.ProjectID != "" {
				o.Scope.DomainName, o.Scope.DomainID, o.Scope.ProjectName = "", "", ""
			}
			if o.Scope.ProjectID == "" && o.Scope.ProjectName == "" {
				return nil, errors.New("OS_AUTH_URL is set, but not for what: set OS_PROJECT_NAME, or OS_SYSTEM_SCOPE=all")
			}
		}
	}
	o.TokenID = getenv("OS_TOKEN")
	return s, s.keystone(ctx, o, gophercloud.EndpointOpts{Region: getenv("OS_REGION_NAME"),
		Availability: gophercloud.Availability(cmp.Or(getenv("OS_INTERFACE"), "public"))})
}

// loginCloud logs in as an entry of clouds.yaml says.
func loginCloud(ctx context.Context, address, cloud string, getenv func(string) string) (*API, error) {
	file, err := oscloud.File(getenv)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the clouds: %w", err)
	}
	// What gophercloud does not know, because it is no Keystone's.
	var all struct {
		Clouds map[string]struct {
			AuthType string `yaml:"auth_type"`
			Auth     struct{ Endpoint, Username, Password string }
			Endpoint string `yaml:"baremetal_endpoint_override"`
			CA       string `yaml:"cacert"`
		}
	}
	if err := yaml.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("read %s: it is not YAML of clouds", file)
	}
	c, ok := all.Clouds[cloud]
	if !ok {
		return nil, fmt.Errorf("%s has no cloud %q", file, cloud)
	}
	s := &API{URL: cmp.Or(address, c.Endpoint, c.Auth.Endpoint)}
	if c.AuthType == "none" || c.AuthType == "http_basic" {
		if c.AuthType == "http_basic" {
			s.User, s.Password = c.Auth.Username, c.Auth.Password
		}
		s.TLS, err = trusting(c.CA)
		return s, err
	}
	o, e, t, err := clouds.Parse(clouds.WithCloudName(cloud), clouds.WithLocations(file))
	if err != nil {
		return nil, fmt.Errorf("read cloud %q of %s: %w", cloud, file, err)
	}
	s.TLS = t
	return s, s.keystone(ctx, o, e)
}

// keystone gets a token, and the address of the Bare Metal API unless it is known.
func (s *API) keystone(ctx context.Context, o gophercloud.AuthOptions, e gophercloud.EndpointOpts) error {
	p, err := config.NewProviderClient(ctx, o, config.WithHTTPClient(http.Client{Timeout: loginTimeout}),
		config.WithTLSConfig(s.TLS))
	if err != nil {
		return fmt.Errorf("log in to Keystone at %s: %s", redact.URL(o.IdentityEndpoint), redact.Text(err.Error()))
	}
	s.Token = p.Token()
	if s.URL != "" {
		return nil
	}
	e.ApplyDefaults("baremetal") // without a version: the API says itself which it has, when it is read
	if s.URL, err = p.EndpointLocator(e); err != nil {
		return errors.New("the catalog of Keystone has no Bare Metal API for this user and region: name its address with --from")
	}
	return nil
}

// trusting trusts the certificates in a file; "" are those of the machine.
func trusting(file string) (*tls.Config, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the certificates to trust: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read the certificates to trust: %s has none", file)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}
