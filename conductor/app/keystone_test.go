package app

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gophercloud/gophercloud/v2"

	"github.com/ingot-metal/ingot/conductor/config"
)

// TestKeystoneServer: as whom Ingot logs in comes from settings or from a file of clouds, and follows the files.
func TestKeystoneServer(t *testing.T) {
	dir := t.TempDir()
	secret, file := filepath.Join(dir, "secret"), filepath.Join(dir, "clouds.yaml")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	srv := httptest.NewTLSServer(nil)
	defer srv.Close()
	ca := filepath.Join(dir, "ca.pem")
	write(ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})))
	write(secret, "hush\n")
	write(file, `clouds:
  site:
    cacert: `+ca+`
    auth:
      auth_url: https://keystone.example:5000
      application_credential_id: c1
      application_credential_secret: first
  other:
    auth: {auth_url: "https://other:5000", username: ingot, password: hush, user_domain_name: Ops,
      project_name: web, project_domain_id: default}
  lost: {auth: {username: ingot}}
`)
	project := &gophercloud.AuthScope{ProjectName: "service", DomainID: "default"}
	for _, c := range []struct {
		k       config.Keystone
		url, ca string
		want    gophercloud.AuthOptions
	}{
		{config.Keystone{AuthURL: "https://k", Username: "ingot", Password: "p", UserDomain: "default",
			Project: "service", ProjectDomain: "default", CAFile: "/ca"}, "https://k", "/ca",
			gophercloud.AuthOptions{Username: "ingot", DomainID: "default", Password: "p", Scope: project}},
		{config.Keystone{Username: "ingot", PasswordFile: secret, UserDomain: "Ops"}, "", "",
			gophercloud.AuthOptions{Username: "ingot", DomainName: "Ops", Password: "hush",
				Scope: &gophercloud.AuthScope{System: true}}},
		{config.Keystone{ApplicationCredential: "c1", PasswordFile: secret, Project: "service"}, "", "",
			gophercloud.AuthOptions{ApplicationCredentialID: "c1", ApplicationCredentialSecret: "hush"}},
		{config.Keystone{Cloud: "site", CloudsFile: file}, "https://keystone.example:5000", ca,
			gophercloud.AuthOptions{ApplicationCredentialID: "c1", ApplicationCredentialSecret: "first"}},
		{config.Keystone{Cloud: "other", CloudsFile: file, CAFile: "/ca"}, "https://other:5000", "/ca",
			gophercloud.AuthOptions{Username: "ingot", DomainName: "Ops", Password: "hush",
				Scope: &gophercloud.AuthScope{ProjectName: "web", DomainID: "default"}}},
	} {
		at, err := keystoneServer(c.k)
		if err != nil || at.AuthURL != c.url || at.CAFile != c.ca {
			t.Errorf("%+v: %q, %q, %v", c.k, at.AuthURL, at.CAFile, err)
			continue
		}
		got, err := at.Own()
		got.IdentityEndpoint, got.TenantName, got.AllowReauth = "", "", false // are not used
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%+v: %v, %s", c.k, err, diff)
		}
	}

	at, err := keystoneServer(config.Keystone{Cloud: "site", CloudsFile: file})
	if err != nil {
		t.Fatal(err)
	}
	write(file, "clouds: {site: {auth: {auth_url: https://k, application_credential_id: c2, "+
		"application_credential_secret: second}}}")
	if o, err := at.Own(); err != nil || o.ApplicationCredentialID != "c2" ||
		o.ApplicationCredentialSecret != "second" {
		t.Errorf("after the file was changed: %+v, %v", o, err)
	}
	write(filepath.Join(dir, "secure.yaml"), "clouds: {site: {auth: {application_credential_secret: third}}}")
	if o, err := at.Own(); err != nil || o.ApplicationCredentialSecret != "third" {
		t.Errorf("with secure.yaml: %+v, %v", o, err)
	}
	for want, k := range map[string]config.Keystone{
		`cloud "none" of`: {Cloud: "none", CloudsFile: file},
		"file not found":  {Cloud: "site", CloudsFile: dir + "/none"},
	} {
		if _, err := keystoneServer(k); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "api.keystone.cloud") {
			t.Errorf("%+v: %v, want %q", k, err, want)
		}
	}
	write(file, "clouds: {lost: {auth: {username: ingot}}}")
	if _, err := keystoneServer(config.Keystone{Cloud: "lost", CloudsFile: file}); err == nil ||
		!strings.Contains(err.Error(), "no auth_url") {
		t.Errorf("without an address: %v", err)
	}
}
