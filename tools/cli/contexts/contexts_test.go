package contexts

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// user has a home of its own.
func user(t *testing.T, files map[string]string) func(string) string {
	t.Helper()
	home := t.TempDir()
	t.Chdir(home)
	for name, text := range files {
		name = filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func(key string) string { return map[string]string{"HOME": home}[key] }
}

const clouds = `
clouds:
  rack1:
    auth_type: http_basic
    auth: {username: ann}
    baremetal_endpoint_override: https://rack1.example:6385
    cacert: /etc/ssl/rack1.pem
    interface: internal
  cloud:
    auth_type: v3password
    auth: {auth_url: https://keystone.example/v3, username: bob, password: p, project_name: metal, user_domain_name: Default,
      project_domain_name: Default}
    region_name: north
  careless:
    verify: false
    auth: {auth_url: https://x.example}
`

// TestClouds: entries of clouds.yaml, with the secrets beside them, say what the environment would.
func TestClouds(t *testing.T) {
	getenv := user(t, map[string]string{".config/openstack/clouds.yaml": clouds,
		".config/openstack/secure.yaml": "clouds:\n  rack1:\n    auth: {password: secret}\n"})
	s, err := Load(getenv)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]map[string]string{
		"rack1": {"OS_AUTH_TYPE": "http_basic", "OS_USERNAME": "ann", "OS_PASSWORD": "secret",
			"OS_ENDPOINT": "https://rack1.example:6385", "OS_CACERT": "/etc/ssl/rack1.pem"},
		"cloud": {"OS_AUTH_TYPE": "password", "OS_AUTH_URL": "https://keystone.example/v3", "OS_USERNAME": "bob",
			"OS_PASSWORD": "p", "OS_PROJECT_NAME": "metal", "OS_USER_DOMAIN_NAME": "Default",
			"OS_PROJECT_DOMAIN_NAME": "Default", "OS_REGION_NAME": "north"},
	} {
		if got, err := s.Find(name); err != nil || !maps.Equal(got.Env, want) {
			t.Errorf("%s = %v, %v; want %v", name, got, err, want)
		}
	}
	if _, err := s.Find("careless"); err == nil || !strings.Contains(err.Error(), "cacert") {
		t.Errorf("verify: false = %v", err)
	}
	if _, err := s.Find("rack9"); err == nil || !strings.Contains(err.Error(), "careless, cloud, rack1") {
		t.Errorf("an unknown one = %v", err)
	}
}

// TestOwnFile: contexts are set, used and removed in a file that only its user can read; those of clouds.yaml are left
// alone.
func TestOwnFile(t *testing.T) {
	getenv := user(t, map[string]string{"clouds.yaml": clouds})
	load := func() *Contexts {
		t.Helper()
		s, err := Load(getenv)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if err := load().Set("lab", "", "", "", ""); err == nil {
		t.Error("a context without an endpoint is set")
	}
	if err := load().Set("lab", "http://127.0.0.1:6385", "root", "pw", ""); err != nil {
		t.Fatal(err)
	}
	if err := load().Set("lab", "http://127.0.0.2:6385", "", "", ""); err != nil {
		t.Fatal(err)
	}
	if err := load().Use("lab"); err != nil {
		t.Fatal(err)
	}
	s := load()
	got, err := s.Find("lab")
	if err != nil || s.Current != "lab" || got.Env["OS_ENDPOINT"] != "http://127.0.0.2:6385" ||
		got.Env["OS_PASSWORD"] != "pw" || len(s.All()) != 4 {
		t.Errorf("lab = %v, %v; current %q of %v", got, err, s.Current, s.All())
	}
	info, err := os.Stat(s.own)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
	if err := s.Use("rack9"); err == nil {
		t.Error("a context that does not exist is used")
	}
	if err := s.Remove("rack1"); err == nil || !strings.Contains(err.Error(), "clouds.yaml") {
		t.Errorf("remove one of clouds.yaml = %v", err)
	}
	if err := s.Remove("lab"); err != nil {
		t.Fatal(err)
	}
	if s = load(); s.Current != "" || len(s.All()) != 3 {
		t.Errorf("after the removal: %q of %v", s.Current, s.All())
	}
}

// TestBrokenFiles: an error names the file.
func TestBrokenFiles(t *testing.T) {
	for _, text := range []string{"clouds: [", "clouds: {a: 3}", strings.Repeat("#", maxFile+1)} {
		_, err := Load(user(t, map[string]string{"clouds.yaml": text}))
		if err == nil || !strings.Contains(err.Error(), "clouds.yaml") {
			t.Errorf("%.20q = %v", text, err)
		}
	}
}
