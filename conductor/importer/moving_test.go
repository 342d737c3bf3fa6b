package importer_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/ingot-metal/ingot/conductor/access/keystonetest"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/importer"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

func TestMain(m *testing.M) { os.Exit(pgserver.Main(m)) }

// ironicDatabase is a database as Ironic's, in PostgreSQL, and its address.
func ironicDatabase(t *testing.T, more ...string) string {
	t.Helper()
	_, url := pgserver.Shared(t).Database(t)
	url = strings.Replace(url, pgserver.User+"@", pgserver.User+":"+pgserver.Password+"@", 1)
	b, err := os.ReadFile("testdata/ironic.sql")
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	for _, text := range append([]string{string(b)}, more...) {
		if _, err := c.PgConn().Exec(t.Context(), text).ReadAll(); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	_, rest, _ := strings.Cut(url, "://")
	return "postgresql+psycopg2://" + rest
}

func TestDatabase(t *testing.T) {
	st, src := open(t), &importer.Database{URL: ironicDatabase(t)}
	rep, err := importer.Run(t.Context(), src, st, importer.Options{Types: driver.All()})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(rep.Source, pgserver.Password) || rep.Version != "schema version 4dbec778866e" {
		t.Errorf("read from %q, %q", rep.Source, rep.Version)
	}
	if want := map[string]int{"chassis": 1, "nodes": 1, "ports": 1, "port groups": 1, "volume connectors": 1,
		"volume targets": 1, "allocations": 1, "deploy templates": 1,
		"lines of history": 2}; !cmp.Equal(want, rep.Made) {
		t.Errorf("made:\n%s", cmp.Diff(want, rep.Made))
	}
	if len(rep.Refused) != 2 || !strings.Contains(rep.Refused[0], id(2)) ||
		!strings.Contains(rep.Refused[0], "wait until") || !strings.Contains(rep.Refused[1], "locked by conductor-7") {
		t.Errorf("refused: %q", rep.Refused)
	}
	n, err := st.Node(t.Context(), id(1))
	if err != nil {
		t.Fatal(err)
	}
	no := false
	want := &node.Node{UUID: id(1), Name: "n1", Driver: "ipmi", DriverInfo: map[string]any{"ipmi_address": "192.0.2.1",
		"ipmi_password": "from the database"}, Properties: map[string]any{"cpus": 4.0},
		Extra: map[string]any{}, NetworkData: map[string]any{}, Power: "power on", InstanceUUID: id(60),
		InstanceInfo: map[string]any{"image_source": "http://x", "configdrive": "aGVsbG8="},
		Provision:    node.Active, ProvisionUpdatedAt: time.Date(2023, 5, 1, 10, 0, 0, 0, time.UTC), Protected: true,
		AutomatedClean: &no, Owner: "owner", Lessee: "lessee", ConductorGroup: "east", ResourceClass: "large",
		ChassisUUID: id(70), AllocationUUID: id(60), Traits: []string{"CUSTOM_A", "CUSTOM_B"}, BootMode: "uefi",
		Interfaces: map[string]string{"boot": "pxe"}, CreatedAt: n.CreatedAt, UpdatedAt: n.UpdatedAt,
		Version: n.Version, LeasedAt: n.LeasedAt}
	if d := cmp.Diff(want, n); d != "" {
		t.Errorf("node 1 (-want +got):\n%s", d)
	}
	if p, err := st.Port(t.Context(), id(21)); err != nil || p.PXEEnabled || p.PortgroupUUID != id(31) ||
		p.NodeUUID != id(1) || p.LocalLinkConnection["port_id"] != "e1" {
		t.Errorf("port: %+v, %v", p, err)
	}
	if v, err := st.VolumeTargets().Get(t.Context(), id(41)); err != nil || v.Properties["auth_password"] != "chap" {
		t.Errorf("volume target: %+v, %v", v, err)
	}
	if v, err := st.DeployTemplates().Get(t.Context(), "CUSTOM_A"); err != nil || len(v.Steps) != 1 ||
		v.Steps[0].Priority != 150 || !strings.Contains(string(v.Steps[0].Args), "hyper") {
		t.Errorf("template: %+v, %v", v, err)
	}
	lines, err := st.History(t.Context(), id(1), 0)
	if err != nil || len(lines) != 2 || lines[1].Event != "the first" || lines[1].UUID != id(90) ||
		!lines[1].At.Equal(time.Date(2023, 5, 1, 9, 0, 0, 0, time.UTC)) || lines[1].User != "admin" ||
		lines[1].State != "" {
		t.Errorf("history: %+v, %v", lines, err)
	}
	before := content(t, st)
	again, err := importer.Run(t.Context(), src, st, importer.Options{Types: driver.All()})
	if err != nil || len(again.Made) != 0 || len(again.Changed) != 0 {
		t.Errorf("a second run: %+v, %v", again, err)
	}
	if d := cmp.Diff(before, content(t, st)); d != "" {
		t.Errorf("a second run changed something:\n%s", d)
	}
}

func TestDatabasesThatAreNot(t *testing.T) {
	good := ironicDatabase(t)
	_, empty := pgserver.Shared(t).Database(t)
	empty = strings.Replace(empty, pgserver.User+"@", pgserver.User+":"+pgserver.Password+"@", 1)
	for name, c := range map[string]struct{ url, want string }{
		"newer": {ironicDatabase(t, "UPDATE alembic_version SET version_num = 'ffffffffffff'"),
			`version "ffffffffffff", which is not one of`},
		"not Ironic's":   {empty, "no tables alembic_version"},
		"wrong password": {strings.Replace(good, pgserver.Password, "other-secret", 1), "log in to"},
		"broken JSON": {ironicDatabase(t, "UPDATE nodes SET extra = 'password=hidden {' WHERE id = 11"),
			"column extra is not JSON"},
		"nothing there": {"mysql+pymysql://ironic:other-secret@127.0.0.1:1/ironic", "refused"},
		"no CA":         {"mysql://ironic:other-secret@127.0.0.1:1/ironic?ssl_ca=/nowhere", "/nowhere"},
		"no address":    {"mysql://ironic:other-secret%@127.0.0.1/ironic", "%XX"},
	} {
		t.Run(name, func(t *testing.T) {
			if !importer.IsDatabase(c.url) {
				t.Errorf("%s is not taken for a database", c.url)
			}
			_, err := importer.Run(t.Context(), &importer.Database{URL: c.url}, open(t),
				importer.Options{Types: driver.All()})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "other-secret") ||
				strings.Contains(err.Error(), "hidden") {
				t.Errorf("Run = %v, want an error with %q", err, c.want)
			}
		})
	}
}

// TestDryRun: the report is that of the run that follows, and nothing is written.
func TestDryRun(t *testing.T) {
	url, st := small(t).serve(), open(t)
	run := func(o importer.Options) *importer.Report {
		t.Helper()
		o.Types = driver.All()
		rep, err := importer.Run(t.Context(), &importer.API{URL: url}, st, o)
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	never := func(string, string) (string, error) { t.Error("a dry run asks"); return "", nil }
	before := content(t, st)
	dry := run(importer.Options{DryRun: true, Ask: never})
	if d := cmp.Diff(before, content(t, st)); d != "" {
		t.Errorf("a dry run wrote:\n%s", d)
	}
	if d := cmp.Diff(run(importer.Options{}), dry); d != "" {
		t.Errorf("the dry run reports otherwise (-run +dry):\n%s", d)
	}
	secrets := importer.Secrets{"*": {"ipmi_password": "all"}}
	before = content(t, st)
	dry = run(importer.Options{DryRun: true, Secrets: secrets})
	if d := cmp.Diff(before, content(t, st)); d != "" {
		t.Errorf("a dry run on what is there wrote:\n%s", d)
	}
	if real := run(importer.Options{Secrets: secrets}); len(real.Changed) != 2 || !cmp.Equal(real, dry) {
		t.Errorf("the second dry run reports otherwise (-run +dry):\n%s", cmp.Diff(real, dry))
	}
}

func TestAsked(t *testing.T) {
	url, st := small(t).serve(), open(t)
	var asked []string
	ask := func(name, key string) (string, error) {
		asked = append(asked, name+" "+key)
		return map[string]string{"n1": "one"}[name], nil
	}
	secrets := importer.Secrets{id(6): {"ipmi_password": "from the file"}}
	if _, err := importer.Run(t.Context(), &importer.API{URL: url}, st, importer.Options{Types: driver.All(), Ask: ask,
		Secrets: secrets}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"n2 ipmi_password", "n2 ipmi_password", "n1 ipmi_password"}, asked); d != "" {
		// one n2 is node 8, whose name is taken
		t.Errorf("asked:\n%s", d)
	}
	for i, want := range map[int]any{1: "one", 2: nil, 6: "from the file"} {
		if n, err := st.Node(t.Context(), id(i)); err != nil || n.DriverInfo["ipmi_password"] != want {
			t.Errorf("node %d: %+v, %v", i, n, err)
		}
	}
	failing := func(string, string) (string, error) { return "", fmt.Errorf("the terminal is gone") }
	if _, err := importer.Run(t.Context(), &importer.API{URL: url}, st, importer.Options{Types: driver.All(),
		Ask: failing}); err == nil || !strings.Contains(err.Error(), "terminal is gone") {
		t.Errorf("Run = %v", err)
	}
}

// TestNewerIronic: what newer versions of the API have beside what 1.82 has.
func TestNewerIronic(t *testing.T) {
	rec := small(t)
	rec.newest = "1.115"
	rec.things["/v1/nodes/detail"][1]["conductor_group"] = "east"
	rule := func(i int, more map[string]any) map[string]any {
		o := map[string]any{"uuid": id(i), "phase": "main", "priority": 5, "sensitive": false, "description": "d",
			"conditions": []any{}, "actions": []any{map[string]any{"op": "set-attribute",
				"args": map[string]any{"path": "/extra/x", "value": "1"}}}}
		for k, v := range more {
			o[k] = v
		}
		return o
	}
	rec.things["/v1/inspection_rules"] = []map[string]any{rule(70, nil),
		rule(71, map[string]any{"sensitive": true, "conditions": nil, "actions": nil}),
		rule(72, map[string]any{"actions": []any{map[string]any{"op": "explode", "args": []any{}}}})}
	rec.things["/v1/nodes/"+id(2)+"/history"] = []map[string]any{
		{"uuid": id(81), "created_at": "2024-01-02T00:00:00+00:00", "event": "newer", "severity": "ERROR",
			"event_type": "provisioning", "conductor": "c", "user": nil},
		{"uuid": id(80), "created_at": "2024-01-01T00:00:00+00:00", "event": "older", "severity": "INFO",
			"event_type": "provisioning", "conductor": "c", "user": "u"}}
	st := open(t)
	rep, err := importer.Run(t.Context(), &importer.API{URL: rec.serve()}, st, importer.Options{Types: driver.All()})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := st.Node(t.Context(), id(2)); err != nil || n.ConductorGroup != "east" {
		t.Errorf("node: %+v, %v", n, err)
	}
	if n, err := st.Node(t.Context(), id(1)); err != nil || n.ParentNode != id(2) {
		t.Errorf("a child: %+v, %v", n, err)
	}
	if v, err := st.InspectionRules().Get(t.Context(), id(70)); err != nil || v.Priority != 5 || len(v.Actions) != 1 {
		t.Errorf("rule: %+v, %v", v, err)
	}
	for i, why := range map[int]string{71: "sensitive", 72: "explode"} {
		if !slices.ContainsFunc(rep.Refused, func(l string) bool {
			return strings.Contains(l, id(i)) && strings.Contains(l, why)
		}) {
			t.Errorf("rule %d is not refused as %s: %q", i, why, rep.Refused)
		}
	}
	lines, err := st.History(t.Context(), id(2), 0)
	if err != nil || len(lines) != 2 || lines[0].Event != "newer" || lines[1].User != "u" ||
		lines[0].Severity != "ERROR" {
		t.Errorf("history: %+v, %v", lines, err)
	}
}

func TestLogins(t *testing.T) {
	rec := small(t)
	url := rec.serve()
	k := keystonetest.Start(t)
	k.AddUser("ada", "s3cret")
	k.Grant("ada", "", "admin")
	k.Grant("ada", "metal", "admin")
	k.AddEndpoint("baremetal", url)
	k.AddCredential("key", "k3y-of-ada", "ada", "metal")
	rec.check = func(r *http.Request) bool {
		u, p, _ := r.BasicAuth()
		return r.Header.Get("X-Auth-Token") != "" || u == "ada" && p == "s3cret"
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "clouds.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `clouds:
  keystone:
    auth: {auth_url: %q, username: ada, password: s3cret, project_name: metal, user_domain_id: default,
           project_domain_id: default}
  basic:
    auth_type: http_basic
    auth: {endpoint: %q, username: ada, password: s3cret}
  key:
    auth_type: v3applicationcredential
    auth: {auth_url: %q, application_credential_id: key, application_credential_secret: k3y-of-ada}
  open:
    auth_type: none
    baremetal_endpoint_override: %q
`, k.URL+"/v3", url, k.URL+"/v3", url), 0o600); err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	user := map[string]string{"OS_AUTH_URL": k.URL + "/v3", "OS_USERNAME": "ada", "OS_PASSWORD": "s3cret",
		"OS_USER_DOMAIN_ID": "default"}
	key := map[string]string{"OS_AUTH_URL": k.URL + "/v3", "OS_AUTH_TYPE": "v3applicationcredential",
		"OS_APPLICATION_CREDENTIAL_ID": "key", "OS_APPLICATION_CREDENTIAL_SECRET": "k3y-of-ada"}
	for _, c := range []struct {
		name, address, cloud string
		env                  map[string]string
		want                 string // of the error
	}{
		{"Keystone, in the system", "", "", with(user, "OS_SYSTEM_SCOPE", "all"), ""},
		{"Keystone, in a project", "", "",
			with(user, "OS_PROJECT_NAME", "metal", "OS_PROJECT_DOMAIN_ID", "default"), ""},
		{"Keystone, another address", "http://127.0.0.1:1", "", with(user, "OS_SYSTEM_SCOPE", "all"), "refused"},
		{"wrong password", "", "", with(user, "OS_SYSTEM_SCOPE", "all", "OS_PASSWORD", "wr0ng"), "log in to Keystone"},
		{"no scope", "", "", user, "OS_PROJECT_NAME"},
		{"application credential", "", "", key, ""},
		{"wrong application credential", "", "", with(key, "OS_APPLICATION_CREDENTIAL_SECRET", "wr0ng"),
			"log in to Keystone"},
		{"cloud with an application credential", "", "key", map[string]string{"OS_CLIENT_CONFIG_FILE": file}, ""},
		{"cloud", "", "keystone", map[string]string{"OS_CLIENT_CONFIG_FILE": file}, ""},
		{"cloud with HTTP basic", "", "", map[string]string{"OS_CLIENT_CONFIG_FILE": file, "OS_CLOUD": "basic"}, ""},
		{"cloud without login", "", "open", map[string]string{"OS_CLIENT_CONFIG_FILE": file}, "401"},
		{"unknown cloud", "", "nine", map[string]string{"OS_CLIENT_CONFIG_FILE": file}, `no cloud "nine"`},
		{"no clouds", "", "nine", map[string]string{"HOME": dir}, "clouds.yaml"},
		{"HTTP basic", url, "", map[string]string{"OS_USERNAME": "ada", "OS_PASSWORD": "s3cret"}, ""},
		{"token", "", "", map[string]string{"OS_ENDPOINT": url, "OS_TOKEN": k.Token("ada", "")}, ""},
		{"certificates that are none", url, "", map[string]string{"OS_CACERT": ca}, "has none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			src, err := importer.Login(t.Context(), c.address, c.cloud, func(name string) string { return c.env[name] })
			if err == nil {
				var rep *importer.Report
				rep, err = importer.Run(t.Context(), src, open(t), importer.Options{Types: driver.All()})
				if err == nil && rep.Made["nodes"] != 3 {
					t.Errorf("made %v", rep.Made)
				}
			}
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
				slices.ContainsFunc([]string{"s3cret", "k3y-of-ada", "wr0ng"},
					func(secret string) bool { return strings.Contains(err.Error(), secret) })):
				t.Errorf("%v, want an error with %q", err, c.want)
			}
		})
	}
}

func with(m map[string]string, more ...string) map[string]string {
	out := map[string]string{}
	for k, v := range m {
		out[k] = v
	}
	for i := 0; i < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}
