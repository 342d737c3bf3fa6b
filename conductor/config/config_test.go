package config

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// lab is a configuration that is valid as it stands.
func lab(t *testing.T) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "ingotd.yaml")
	text := "data_dir: /srv/ingot\nnetboot:\n  dhcp: server\n  interface: br0\n  range_start: 10.77.0.50\n  range_end: 10.77.0.99\n  lease_time: 10m\n"
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestLoadOrder(t *testing.T) {
	c, print, err := Load(
		[]string{"--config", lab(t), "--set", "netboot.http_port=81", "--data-dir", "/flag", "--print-config"},
		[]string{"INGOT_NETBOOT_INTERFACE=br7", "INGOT_DATA_DIR=/env", "INGOT_NETBOOT_DNS=10.0.0.1,10.0.0.2",
			"HOME=/root", "INGOT_MUST_RUN=1"},
		&bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if !print || c.DataDir != "/flag" || c.Netboot.Interface != "br7" || c.Netboot.HTTPPort != 81 ||
		c.Netboot.LeaseTime != 10*time.Minute ||
		len(c.Netboot.DNS) != 2 || !c.Deploy.AutomatedClean {
		t.Errorf("Load = %+v, print %v", c, print)
	}
}

func TestLoadRefuses(t *testing.T) {
	unknown := filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(unknown, []byte("netboot:\n  intreface: br0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		env  []string
		want string
	}{
		{"unknown key in file", []string{"--config", unknown}, nil, "intreface"},
		{"no such file", []string{"--config", "/nonexistent/x.yaml"}, nil, "no such file"},
		{"unknown key", []string{"--set", "nonsense=1"}, nil, "--help"},
		{"virtual address alone", []string{"--set", "netboot.virtual_address=10.77.0.10", "--set",
			"agents.advertise=10.77.0.1:6386"}, nil, "is a second address of network boot"},
		{"virtual address as the own", []string{"--set", "netboot.virtual_address=10.77.0.1", "--set",
			"netboot.address=10.77.0.1"}, nil, "is a second address of network boot"},
		{"a writer without a name", []string{"--set", "export.allow=true", "--set", "export.writers=192.0.2.7"}, nil,
			"is not ADDRESS=INITIATOR"},
		{"a writer's wrong name", []string{"--set", "export.allow=true", "--set", "export.writers=192.0.2.7=writer"}, nil,
			"is not ADDRESS=INITIATOR"},
		{"a writer that may not", []string{"--set", "export.writers=192.0.2.7=iqn.2004-10.com.example:w"}, nil,
			"needs export.allow"},
		{"not a number", []string{"--set", "netboot.http_port=eighty"}, nil, "not a number"},
		{"not a duration", nil, []string{"INGOT_POWER_TIMEOUT=soon"}, "INGOT_POWER_TIMEOUT"},
		{"argument", []string{"start"}, nil, "takes no arguments"},
	} {
		_, _, err := Load(c.args, c.env, &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Load = %v, want an error with %q", c.name, err, c.want)
		}
	}
}

func TestHelpListsEveryKey(t *testing.T) {
	var out bytes.Buffer
	if _, _, err := Load([]string{"--help"}, nil, &out); !errors.Is(err, ErrHelp) {
		t.Fatalf("Load(--help) = %v, want ErrHelp", err)
	}
	for _, key := range []string{"netboot.range_start", "deploy.max_boots", "api.insecure_listen", "30m"} {
		if !strings.Contains(out.String(), key) {
			t.Errorf("help lacks %s", key)
		}
	}
}

func TestValidateNamesAllFaults(t *testing.T) {
	c := Default()
	c.DataDir = "relative"
	c.API.Listen = "0.0.0.0:6385"
	c.Netboot.DHCP = "server"
	c.Netboot.Address = "ten"
	c.Netboot.KernelParams = "quiet ingot.token=x a`b`"
	c.Deploy.BootMode = "coreboot"
	c.Fetch.Allow, c.SignOfLife.Networks = []string{"localhost"}, []string{"192.0.2.0/40"}
	err := c.Validate()
	if err == nil {
		t.Fatal("Validate accepts nonsense")
	}
	for _, key := range []string{"data_dir", "api.listen", "netboot.interface", "netboot.address",
		"netboot.range_start", "Ingot's own", "a`b`", "deploy.boot_mode", "fetch.allow", "sign_of_life.networks"} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("Validate does not name %s:\n%v", key, err)
		}
	}
}

func TestListenBeyondLoopbackNeedsConsent(t *testing.T) {
	c, _, err := Load([]string{"--config", lab(t)}, nil, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	for listen, ok := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, ":1": false,
		"10.0.0.1:1": false} {
		c.API.Listen, c.API.InsecureListen = listen, false
		if err := c.Validate(); (err == nil) != ok {
			t.Errorf("Validate with listen %s = %v, want ok %v", listen, err, ok)
		}
		c.API.InsecureListen = true
		if err := c.Validate(); err != nil {
			t.Errorf("Validate with listen %s and consent = %v", listen, err)
		}
	}
}

func TestExampleIsPrinted(t *testing.T) {
	var out bytes.Buffer
	_, _, err := Load([]string{"--print-example"}, nil, &out)
	if !errors.Is(err, ErrExample) || out.String() != Example() {
		t.Fatalf("Load(--print-example) = %v, printed %q", err, out.String())
	}
}

// TestNoProvisioningNetwork: ingotd without any configuration says how to go on, and the words for a trial do what they
// say.
func TestNoProvisioningNetwork(t *testing.T) {
	c := Default()
	c.DataDir = "/srv/ingot"
	err := c.Validate()
	if err == nil {
		t.Fatal("Validate accepts a conductor that machines can't reach")
	}
	trial := regexp.MustCompile(`--set (\S+)$`).FindStringSubmatch(err.Error())
	if !strings.Contains(err.Error(), "set netboot.interface to the provisioning network's interface") || trial == nil {
		t.Fatalf("Validate = %v", err)
	}
	if _, _, err := Load([]string{"--data-dir", "/srv/ingot", "--set", trial[1]}, nil, &bytes.Buffer{}); err != nil {
		t.Errorf("Load with --set %s = %v", trial[1], err)
	}
}

func TestWriteReadsBack(t *testing.T) {
	want, _, err := Load([]string{"--config", lab(t)}, nil, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := want.Write(&b); err != nil {
		t.Fatal(err)
	}
	f := filepath.Join(t.TempDir(), "again.yaml")
	if err := os.WriteFile(f, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	got, _, err := Load([]string{"--config", f}, nil, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := got.Write(&again); err != nil || again.String() != b.String() {
		t.Errorf("Write after Load = %q (%v), want %q", again.String(), err, b.String())
	}
}

func TestAccessIsChecked(t *testing.T) {
	keystone := map[string]string{"api.auth": "keystone", "api.keystone.auth_url": "https://k:5000",
		"api.keystone.username": "ingot", "api.keystone.password": "hush"}
	with := func(change map[string]string) map[string]string {
		m := maps.Clone(keystone)
		maps.Copy(m, change)
		return m
	}
	for _, c := range []struct {
		set  map[string]string
		want string // of the fault; empty: there is none
	}{
		{map[string]string{"api.listen": "0.0.0.0:6385"}, "api.auth to http_basic or keystone"},
		{map[string]string{"api.listen": "0.0.0.0:6385", "api.auth": "http_basic", "api.htpasswd_file": "/x"}, ""},
		{map[string]string{"api.auth": "http_basic"}, "htpasswd -B -c"},
		{map[string]string{"api.auth": "basic"}, "api.auth"},
		{map[string]string{"api.tls_cert": "/x"}, "go together"},
		{map[string]string{"api.public_url": "ingot.example"}, "api.public_url"},
		{map[string]string{"api.public_url": "https://ingot.example/baremetal/"}, ""},
		{with(nil), ""},
		{with(map[string]string{"api.listen": ":6385"}), ""},
		{with(map[string]string{"api.keystone.auth_url": "k:5000"}), "api.keystone.auth_url"},
		{with(map[string]string{"api.keystone.username": ""}), "api.keystone.username"},
		{with(map[string]string{"api.keystone.application_credential": "c1"}), "one of the two"},
		{with(map[string]string{"api.keystone.application_credential": "c1", "api.keystone.username": ""}), ""},
		{with(map[string]string{"api.keystone.cloud": "c"}), "leave out"},
		{map[string]string{"api.auth": "keystone", "api.keystone.cloud": "c"}, ""},
		{with(map[string]string{"api.keystone.password": ""}), "INGOT_API_KEYSTONE_PASSWORD"},
		{with(map[string]string{"api.keystone.password_file": "/x"}), "one of the two"},
		{with(map[string]string{"api.keystone.cache_time": "2m"}), "a revoked token"},
		{with(map[string]string{"glance.url": "https://g:9292"}), ""},
		{with(map[string]string{"glance.url": "g:9292"}), "glance.url"},
		{with(map[string]string{"glance.swift_container": "https://s/v1/a/g"}), "needs glance.url"},
		{with(map[string]string{"glance.swift_key_file": "/k"}), "needs glance.swift_container"},
		{with(map[string]string{"placement.url": "p"}), "placement.url"},
		{with(map[string]string{"placement.aggregates": "=8c9a4b5e-0000-4000-8000-0000000000a1"}), ""},
		{with(map[string]string{"placement.aggregates": "rack1=here"}), "is not GROUP=UUID"},
		{map[string]string{"glance.url": "https://g:9292"}, "needs api.auth keystone"},
	} {
		args := []string{"--config", lab(t)}
		for key, v := range c.set {
			args = append(args, "--set", key+"="+v)
		}
		_, _, err := Load(args, nil, &bytes.Buffer{})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.set, err, c.want)
		}
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	c, _, err := Load([]string{"--config", lab(t)}, []string{"INGOT_API_KEYSTONE_PASSWORD=hush"}, &bytes.Buffer{})
	if err != nil || c.API.Keystone.Password != "hush" {
		t.Fatalf("password = %q, %v", string(c.API.Keystone.Password), err)
	}
	var out bytes.Buffer
	if err := c.Write(&out); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "%v %+v %s", c, c, c.API.Keystone.Password)
	if strings.Contains(out.String(), "hush") || !strings.Contains(out.String(), "password: '******'") {
		t.Errorf("shown: %s", out.String())
	}
}

// TestStepPriorities: the form of each entry, and where it may come from.
func TestStepPriorities(t *testing.T) {
	c := Default()
	c.Steps.CleanStepPriorityOverride = []string{"deploy.erase_devices:10", "deploy.erase_devices_metadata:0"}
	c.Steps.VerifyStepPriorityOverride = []string{"power.x:7"}
	got, err := c.Steps.Priorities()
	if err != nil || got["clean"]["deploy.erase_devices"] != 10 || got["verify"]["power.x"] != 7 ||
		got["deploy"] != nil {
		t.Errorf("priorities %v, %v", got, err)
	}
	if p, ok := got["clean"]["deploy.erase_devices_metadata"]; !ok || p != 0 {
		t.Errorf("a step that is left out: %v", got)
	}
	for _, bad := range []string{"erase_devices:10", "deploy.erase_devices", "deploy.erase_devices:-1",
		"deploy.erase_devices:1000", "deploy.:5", "deploy.a:x"} {
		c.Steps.CleanStepPriorityOverride = []string{bad}
		if err := c.Validate(); err == nil ||
			!strings.Contains(err.Error(), "steps.clean_step_priority_override: \""+bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	c.Steps.CleanStepPriorityOverride = []string{"deploy.a:1", "deploy.a:2"}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("twice: %v", err)
	}
}

// TestEffectiveHasNoSecrets: what is shown of the settings names all of them, and no secret.
func TestEffectiveHasNoSecrets(t *testing.T) {
	c := Default()
	c.API.Keystone.Password, c.Store.Key, c.API.Listen = "hidden word", "hidden key", "127.0.0.1:7000"
	seen := map[string]Effective{}
	for _, s := range c.Effective() {
		if strings.Contains(s.Value+s.Default, "hidden") {
			t.Errorf("%s shows %q", s.Key, s.Value)
		}
		seen[s.Key] = s
	}
	if s := seen["api.listen"]; s.Value != "127.0.0.1:7000" || s.Default != "127.0.0.1:6385" || s.Section != "API" {
		t.Errorf("api.listen is %+v", s)
	}
	if len(seen) != len(c.settings()) || seen["api.keystone.password"].Value != "******" {
		t.Errorf("%d settings are shown, the password as %q", len(seen), seen["api.keystone.password"].Value)
	}
}
