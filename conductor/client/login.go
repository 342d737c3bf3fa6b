package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// Credentials add authentication to a request's header. again says that the server has refused the previous one. Safe
// for concurrent use.
type Credentials interface {
	Add(ctx context.Context, h http.Header, again bool) error
}

// Basic is a user of a server with HTTP basic authentication.
type Basic struct{ User, Password string }

// Add implements Credentials.
func (b Basic) Add(_ context.Context, h http.Header, _ bool) error {
	r := http.Request{Header: h}
	r.SetBasicAuth(b.User, b.Password)
	return nil
}

// Token is an existing token of Keystone.
type Token string

// Add implements Credentials.
func (t Token) Add(_ context.Context, h http.Header, _ bool) error {
	h.Set("X-Auth-Token", string(t))
	return nil
}

// Keystone logs in to Keystone with a password, and again when the token has ended.
type Keystone struct {
	AuthURL            string // with or without /v3
	Username, Password string
	UserDomain         string // ID or name; empty: default
	Project, ProjectID string // with neither: the system
	ProjectDomain      string // ID or name; empty: default
	Region             string // of the endpoint; empty: any
	HTTP               *http.Client
	mu                 sync.Mutex
	token, endpoint    string
	ends               time.Time
	renewed            time.Time
}

// Add implements Credentials.
func (k *Keystone) Add(ctx context.Context, h http.Header, again bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	// A token that was refused although it is new says that this user is not known there; another would not help.
	if again && time.Since(k.renewed) > time.Second {
		k.token = ""
	}
	if err := k.login(ctx); err != nil {
		return err
	}
	h.Set("X-Auth-Token", k.token)
	return nil
}

// Endpoint logs in and returns the address of the Bare Metal API as Keystone's catalog has it; empty when it has none.
func (k *Keystone) Endpoint(ctx context.Context) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.login(ctx)
	return k.endpoint, err
}

// login gets a token unless there is a good one. Called with mu held.
func (k *Keystone) login(ctx context.Context) error {
	if k.token != "" && time.Until(k.ends) > 10*time.Second {
		return nil
	}
	domain := func(d string) map[string]any {
		if d == "" || d == "default" {
			return map[string]any{"id": "default"}
		}
		return map[string]any{"name": d}
	}
	scope := map[string]any{"system": map[string]any{"all": true}}
	switch {
	case k.ProjectID != "":
		scope = map[string]any{"project": map[string]any{"id": k.ProjectID}}
	case k.Project != "":
		scope = map[string]any{"project": map[string]any{"name": k.Project, "domain": domain(k.ProjectDomain)}}
	}
	in, err := json.Marshal(map[string]any{"auth": map[string]any{"scope": scope, "identity": map[string]any{
		"methods": []string{"password"},
		"password": map[string]any{
			"user": map[string]any{"name": k.Username, "domain": domain(k.UserDomain), "password": k.Password}},
	}}})
	if err != nil {
		return fmt.Errorf("log in to Keystone: %w", err)
	}
	base := strings.TrimSuffix(strings.TrimSuffix(k.AuthURL, "/"), "/v3")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v3/auth/tokens", bytes.NewReader(in))
	if err != nil {
		return fmt.Errorf("log in to Keystone: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	hc := k.HTTP
	if hc == nil {
		hc = plain()
	}
	resp, err := hc.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return fmt.Errorf("log in to Keystone at %s: %w", base, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("log in to Keystone at %s: %w", base, err)
	}
	if resp.StatusCode != http.StatusCreated || resp.Header.Get("X-Subject-Token") == "" {
		return fmt.Errorf("log in to Keystone at %s as %s: %w", base, k.Username, rest.DecodeError(resp.StatusCode, b))
	}
	var out struct {
		Token struct {
			ExpiresAt time.Time `json:"expires_at"`
			Catalog   []struct {
				Type      string
				Endpoints []struct{ Interface, Region, URL string }
			}
		}
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return fmt.Errorf("read Keystone's answer to the login: %w", err)
	}
	k.token, k.ends, k.renewed, k.endpoint = resp.Header.Get("X-Subject-Token"), out.Token.ExpiresAt, time.Now(), ""
	for _, s := range out.Token.Catalog {
		for _, e := range s.Endpoints {
			if s.Type == "baremetal" && e.Interface == "public" && (k.Region == "" || e.Region == k.Region) &&
				k.endpoint == "" {
				k.endpoint = e.URL
			}
		}
	}
	return nil
}

// plain is the default HTTP client. It follows no redirects: their target must not get the credentials.
func plain() *http.Client {
	return &http.Client{
		Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}
}

// Trusting returns an HTTP client for New with TLS settings.
func Trusting(c *tls.Config) *http.Client {
	hc := plain()
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = c
	hc.Transport = t
	return hc
}
