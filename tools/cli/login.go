package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"

	"github.com/ingot-metal/ingot/conductor/client"
)

// login makes the client of the conductor, with credentials from the environment. An empty endpoint is that of
// Keystone's catalog, or the default one.
func (p *program) login(ctx context.Context, endpoint string) (*client.Client, error) {
	hc, err := p.httpClient()
	if err != nil {
		return nil, err
	}
	var who client.Credentials
	kind := p.getenv("OS_AUTH_TYPE")
	switch {
	case kind == "none":
	case kind == "http_basic":
		who = client.Basic{User: p.getenv("OS_USERNAME"), Password: p.getenv("OS_PASSWORD")}
	case p.getenv("OS_TOKEN") != "":
		who = client.Token(p.getenv("OS_TOKEN"))
	case p.getenv("OS_AUTH_URL") != "" && (kind == "" || kind == "password" || kind == "v3password"):
		k := &client.Keystone{
			AuthURL: p.getenv("OS_AUTH_URL"), Username: p.getenv("OS_USERNAME"), Password: p.getenv("OS_PASSWORD"),
			UserDomain:    cmp.Or(p.getenv("OS_USER_DOMAIN_NAME"), p.getenv("OS_USER_DOMAIN_ID")),
			Project:       p.getenv("OS_PROJECT_NAME"),
			ProjectID:     p.getenv("OS_PROJECT_ID"),
			ProjectDomain: cmp.Or(p.getenv("OS_PROJECT_DOMAIN_NAME"), p.getenv("OS_PROJECT_DOMAIN_ID")),
			Region:        p.getenv("OS_REGION_NAME"), HTTP: hc,
		}
		if scope := p.getenv("OS_SYSTEM_SCOPE"); scope != "" {
			if scope != "all" {
				return nil, usage("OS_SYSTEM_SCOPE is %q; the only scope that there is beside projects is all", scope)
			}
			k.Project, k.ProjectID = "", ""
		} else if k.Project == "" && k.ProjectID == "" {
			return nil, usage("OS_AUTH_URL is set, but not for what: set OS_PROJECT_NAME, or OS_SYSTEM_SCOPE=all")
		}
		if endpoint == "" {
			if endpoint, err = k.Endpoint(ctx); err != nil {
				return nil, err
			}
		}
		who = k
	case kind != "":
		return nil, usage(
			"OS_AUTH_TYPE %q is not known here: use none, http_basic, password or v3password, or set OS_TOKEN", kind)
	}
	c, err := client.New(cmp.Or(endpoint, defaultEndpoint), hc)
	if err != nil {
		return nil, &usageError{err.Error()}
	}
	if who != nil { // else it is who stands in the endpoint
		c.Login = who
	}
	return c, nil
}

// httpClient trusts the certificates in OS_CACERT, if it is set; nil is the default client.
func (p *program) httpClient() (*http.Client, error) {
	file := p.getenv("OS_CACERT")
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read OS_CACERT: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, usage("OS_CACERT: %s has no certificate", file)
	}
	return client.Trusting(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}), nil
}
