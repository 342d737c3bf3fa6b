package cloud

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/mariadb"
	"github.com/ingot-metal/ingot/test/kit/proc"
)

// databases are those of the services.
var databases = []string{"nova_api", "nova", "nova_cell0", "placement", "neutron", "glance"}

// Nova keeps in a database where its other databases and the broker are; in this form it takes that from the
// configuration, which is another one in each run.
const (
	anyBroker   = "{scheme}://{username}:{password}@{hostname}:{port}/"
	anyDatabase = "{scheme}://{username}@{hostname}/%s?{query}"
)

// makeTables returns a folder with the data of a MariaDB that has the tables of all services. It is made once for a
// version of the programs, and lies beside them.
func makeTables(ctx context.Context, log *slog.Logger, programs debian.Tree) (string, error) {
	dir := programs.Root + "-tables"
	lock, err := os.OpenFile(dir+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", fmt.Errorf("make the tables: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	began := time.Now()
	tmp, err := os.MkdirTemp("", "tables-")
	if err != nil {
		return "", fmt.Errorf("make the tables: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := fillTables(ctx, programs, tmp); err != nil {
		return "", fmt.Errorf("make the tables of OpenStack's services: %w", err)
	}
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return "", fmt.Errorf("make the tables: %w", err)
	}
	if err := copyTree(filepath.Join(tmp, "db"), part); err != nil {
		return "", err
	}
	if err := os.Rename(part, dir); err != nil {
		return "", fmt.Errorf("keep the tables: %w", err)
	}
	log.Info("the tables of OpenStack's services are made", "took", time.Since(began).Round(time.Second))
	return dir, nil
}

// fillTables runs a MariaDB in dir and every service's own tool.
func fillTables(ctx context.Context, programs debian.Tree, dir string) error {
	env := environment(programs, dir)
	prog, err := mariadb.Program(programs, dir, env, databases...)
	if err != nil {
		return err
	}
	server, err := proc.Start(prog)
	if err != nil {
		return err
	}
	defer server.Stop()
	up, stop := context.WithTimeout(ctx, patience)
	defer stop()
	if err := server.Ready(up, mariadb.Ready(dir)); err != nil {
		return err
	}
	write := func(name, text string) (string, error) {
		path := filepath.Join(dir, name)
		return path, os.WriteFile(path, []byte(text), 0o600)
	}
	section := func(name, db string) string {
		return "[" + name + "]\nconnection = " + mariadb.URL(dir, db) + "\n"
	}
	lock := "[oslo_concurrency]\nlock_path = " + dir + "\n"
	var confs [4]string
	errs := make([]error, len(confs))
	confs[0], errs[0] = write("nova.conf", "[DEFAULT]\ntransport_url = rabbit://u:p@127.0.0.1:1/\nstate_path = "+dir+
		"\n"+section("api_database", "nova_api")+section("database", "nova")+lock)
	confs[1], errs[1] = write("placement.conf", section("placement_database", "placement"))
	confs[2], errs[2] = write("neutron.conf", "[DEFAULT]\ncore_plugin = ml2\n"+section("database", "neutron")+lock)
	confs[3], errs[3] = write("glance.conf", section("database", "glance")+lock)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	tool := func(module, conf string, args ...string) error {
		return proc.Run(ctx, python(module, env, filepath.Join(dir, module+".log"),
			append([]string{"--config-file", conf}, args...)...))
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for _, args := range [][]string{{"api_db", "sync"},
			{"cell_v2", "map_cell0", "--database_connection", fmt.Sprintf(anyDatabase, "nova_cell0")},
			{"cell_v2", "create_cell", "--name", "cell1", "--transport-url", anyBroker, "--database_connection",
				fmt.Sprintf(anyDatabase, "nova")},
			{"db", "sync"}} {
			if errs[0] = tool("nova.cmd.manage", confs[0], args...); errs[0] != nil {
				return
			}
		}
	})
	wg.Go(func() {
		if errs[1] = tool("placement.cmd.manage", confs[1], "db", "sync"); errs[1] == nil {
			errs[1] = tool("glance.cmd.manage", confs[3], "db_sync")
		}
		if errs[1] == nil {
			errs[2] = tool("neutron.db.migration.cli", confs[2], "upgrade", "heads")
		}
	})
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// An orderly end: what was written last is not yet in the files.
	if err := proc.Run(ctx, proc.Program{Name: "the end of MariaDB", Env: env, Log: filepath.Join(dir, "end.log"),
		Args: []string{debian.Python, "-c",
			"import pymysql, sys; pymysql.connect(unix_socket=sys.argv[1], user='root').cursor().execute('SHUTDOWN')",
			filepath.Join(dir, mariadb.Socket)}}); err != nil {
		return err
	}
	return server.Ended(up)
}

// python is a program of Python: the function main of a module.
func python(module string, env []string, log string, args ...string) proc.Program {
	const start = "import importlib, sys; sys.argv[:2] = [sys.argv[1]]; " +
		"sys.exit(importlib.import_module(sys.argv[0]).main())"
	return proc.Program{Name: module, Env: env, Log: log,
		Args: append([]string{debian.Python, "-c", start, module}, args...)}
}
