// Package mariadb runs a MariaDB of Debian's package mariadb-server-core for a test's services.
//
// It listens on a socket in its folder alone. It does not authenticate, but only this user can reach the socket. The
// data need not outlive the process.
package mariadb

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/proc"
)

// Package is Debian's.
const Package = "mariadb-server-core"

// Socket is the name of the socket in the folder.
const Socket = "db.sock"

// URL is the address of a database for SQLAlchemy.
func URL(dir, name string) string {
	return fmt.Sprintf("mysql+pymysql://root@localhost/%s?unix_socket=%s", name, filepath.Join(dir, Socket))
}

// Program serves the data in the folder db of dir, where it makes the databases that are named, in UTF-8 of three bytes
// as OpenStack's guides have it. env is the environment of the programs of the test.
func Program(programs debian.Tree, dir string, env []string, databases ...string) (proc.Program, error) {
	share, data := filepath.Join(programs.Root, "usr/share/mysql"), filepath.Join(dir, "db")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return proc.Program{}, fmt.Errorf("make a folder for MariaDB: %w", err)
	}
	var first strings.Builder
	for _, name := range databases {
		fmt.Fprintf(&first, "CREATE DATABASE IF NOT EXISTS %s CHARACTER SET utf8mb3;\n", name)
	}
	file := filepath.Join(dir, "db.sql")
	if err := os.WriteFile(file, []byte(first.String()), 0o600); err != nil {
		return proc.Program{}, fmt.Errorf("prepare MariaDB: %w", err)
	}
	return proc.Program{
		Name: "MariaDB",
		Args: []string{filepath.Join(programs.Root, "usr/sbin/mariadbd"), "--no-defaults",
			"--user=" + fmt.Sprint(os.Getuid()), "--basedir=" + filepath.Join(programs.Root, "usr"),
			"--datadir=" + data, "--tmpdir=" + dir, "--lc-messages-dir=" + share,
			"--character-sets-dir=" + filepath.Join(share, "charsets"), "--plugin-dir=" + dir,
			"--socket=" + filepath.Join(dir, Socket), "--pid-file=" + filepath.Join(dir, "db.pid"),
			"--init-file=" + file, "--skip-networking", "--skip-grant-tables", "--skip-log-bin",
			"--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0",
			"--innodb-use-native-aio=0", "--max-connections=500"},
		Env: env, Log: filepath.Join(dir, "mariadb.log"),
	}, nil
}

// Ready is ok when it serves.
func Ready(dir string) func(context.Context) error {
	return proc.Connects("unix", filepath.Join(dir, Socket))
}
