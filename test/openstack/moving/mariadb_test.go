// Package moving holds tests: nodes move from Debian's Ironic to Ingot, by its API and by its database, and back.
package moving

import (
	"crypto/x509"
	"database/sql"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/go-sql-driver/mysql" // fills databases
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/importer"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/storetest"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/mariadb"
	"github.com/ingot-metal/ingot/test/kit/openstack"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
	"github.com/ingot-metal/ingot/test/kit/proc"
)

// howto has commands that these tests run.
const howto = "../../../docs/howto/from-ironic.md"

// tables are some of Ironic's, with rows.
const tables = "../../../conductor/importer/testdata/ironic.sql"

// password has characters that mean something in an address.
const password = "p@ss:w/rd"

// encrypted starts MariaDB with Ironic's tables at an address of loopback, with TLS and with the user "reader", who may
// only read. ca is a file with the certificate.
func encrypted(t *testing.T) (addr, ca string) {
	t.Helper()
	programs, err := debian.Unpack(t.Context(), slog.New(slog.NewTextHandler(t.Output(), nil)), mariadb.Package)
	if err != nil {
		t.Fatal(err)
	}
	dir := short(t)
	p, err := mariadb.Program(programs, dir, append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir,
		"LC_ALL=C.UTF-8"}, programs.Env...), "ironic", "mysql")
	if err != nil {
		t.Fatal(err)
	}
	ca, key := certificate(t)
	addr = kit.FreeAddr(t)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	p.Args = append(slices.DeleteFunc(p.Args, func(arg string) bool { return arg == "--skip-networking" }),
		"--bind-address="+host, "--port="+port, "--ssl-cert="+ca, "--ssl-key="+key)
	server, err := proc.Start(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	if err := server.Ready(t.Context(), mariadb.Ready(dir)); err != nil {
		t.Fatal(err)
	}
	// Its own tables, after which it can have users: until the last statement it lets everybody in.
	own := sqlFile(t, filepath.Join(programs.Root, "usr/share/mysql/mysql_system_tables.sql"))
	for _, c := range []struct{ name, text string }{
		{"ironic", "SET sql_mode = 'ANSI_QUOTES';\n" + sqlFile(t, tables)},
		{"mysql", own + "\nFLUSH PRIVILEGES; CREATE USER reader@'%' IDENTIFIED BY '" + password + "';" +
			"GRANT SELECT ON ironic.* TO reader@'%'"},
	} {
		if _, err := connect(t, dir, c.name).ExecContext(t.Context(), c.text); err != nil {
			t.Fatalf("prepare the database %s: %v", c.name, err)
		}
	}
	return addr, ca
}

func sqlFile(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// certificate makes files with a certificate for loopback, which is its own CA, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	pair := s.TLS.Certificates[0]
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// TestMariaDB: the same comes out of MariaDB, over TLS and as a user who may only read, as out of PostgreSQL.
func TestMariaDB(t *testing.T) {
	_, url := pgserver.New(t).Database(t)
	url = strings.Replace(url, pgserver.User+"@", pgserver.User+":"+pgserver.Password+"@", 1)
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.PgConn().Exec(t.Context(), sqlFile(t, tables)).ReadAll(); err != nil {
		t.Fatal(err)
	}
	c.Close(t.Context())
	want, got := open(t), open(t)
	postgres := run(t, &importer.Database{URL: url}, want, nil)

	addr, ca := encrypted(t)
	at := "mysql+pymysql://reader:p%40ss%3Aw%2Frd@" + addr + "/ironic"
	maria := run(t, &importer.Database{URL: at + "?ssl_ca=" + ca}, got, nil)
	if strings.Contains(maria.Source, "ss:w") || strings.Contains(maria.Source, "ss%3A") {
		t.Errorf("the report has the password: %s", maria.Source)
	}
	postgres.Source, maria.Source = "", ""
	if d := cmp.Diff(postgres, maria); d != "" || maria.Made["nodes"] != 1 {
		t.Errorf("the report (-PostgreSQL +MariaDB):\n%s", d)
	}
	if d := cmp.Diff(content(t, want), content(t, got), imports); d != "" {
		t.Errorf("-PostgreSQL +MariaDB:\n%s", d)
	}
	if rep := run(t, &importer.Database{URL: at}, got, nil); len(rep.Made)+len(rep.Changed) > 0 { // without TLS, too
		t.Errorf("another run: made %v, changed %q", rep.Made, rep.Changed)
	}

	another, err := agents.OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other.pem")
	if err := os.WriteFile(other, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: another.Roots()[0].Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ url, want string }{
		"another CA":     {at + "?ssl_ca=" + other, "certificate signed by unknown authority"},
		"wrong password": {strings.Replace(at, "w%2Frd", "guess", 1) + "?ssl_ca=" + ca, "Access denied"},
		"unknown user":   {strings.Replace(at, "reader", "nobody", 1), "Access denied"},
	} {
		_, err := importer.Run(t.Context(), &importer.Database{URL: c.url}, open(t),
			importer.Options{Types: driver.All()})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "guess") {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}

	// As the how-to has it.
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", openstack.Commands(t, howto,
		"MYSQL_PWD=...", "MYSQL_PWD="+password, "db.example.org", addr, "/etc/ssl/db.pem", ca))
	cmd.Env = append(os.Environ(), "INGOT_DATA_DIR="+filepath.Join(t.TempDir(), "data"),
		"PATH="+filepath.Dir(made.Program(t, "ingot"))+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "1 nodes taken over, 0 were here already") ||
		!strings.Contains(string(out), "2 things were not taken over") { // two nodes are being worked on
		t.Errorf("%v\n%s", err, out)
	}
}

// short makes a folder with a short name: MariaDB's socket is in it.
func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mv-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// connect connects to a database whose socket is in a folder.
func connect(t *testing.T, dir, name string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", "root@unix("+filepath.Join(dir, mariadb.Socket)+")/"+name+"?multiStatements=true")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(1)
	return db
}

// content is all that moves, by kind.
func content(t *testing.T, st *store.Store) map[string]any {
	t.Helper()
	out := map[string]any{}
	keep := func(kind string, list any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		out[kind] = list
	}
	all, err := st.Nodes(t.Context(), store.Query{})
	keep("nodes", all, err)
	for _, n := range all {
		lines, err := st.History(t.Context(), n.UUID, 0)
		keep("history of "+n.UUID, lines, err)
	}
	ports, err := st.Ports(t.Context(), store.PortQuery{})
	keep("ports", ports, err)
	groups, err := st.Portgroups().List(t.Context(), "")
	keep("port groups", groups, err)
	connectors, err := st.VolumeConnectors().List(t.Context(), "")
	keep("connectors", connectors, err)
	targets, err := st.VolumeTargets().List(t.Context(), "")
	keep("targets", targets, err)
	chassis, err := st.Chassis().List(t.Context(), "")
	keep("chassis", chassis, err)
	allocations, err := st.Allocations().List(t.Context(), "")
	keep("allocations", allocations, err)
	templates, err := st.DeployTemplates().List(t.Context(), "")
	keep("templates", templates, err)
	return out
}

// imports leaves out what each import makes anew; the API shows {} where the database has nothing.
var imports = cmp.Options{cmpopts.EquateEmpty(), cmp.FilterPath(func(p cmp.Path) bool {
	return slices.Contains([]string{".CreatedAt", ".UpdatedAt", ".LeasedAt", ".Version"}, p.Last().String())
}, cmp.Ignore())}

func open(t *testing.T) *store.Store {
	t.Helper()
	st, err := store.Open(t.Context(), store.Options{Dir: storetest.Fresh(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

func run(t *testing.T, src importer.Source, st *store.Store, secrets importer.Secrets) *importer.Report {
	t.Helper()
	rep, err := importer.Run(t.Context(), src, st, importer.Options{Types: driver.All(), Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}
