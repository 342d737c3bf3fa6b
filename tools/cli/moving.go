package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// importCommand is ingotd's import: only the conductor's own program opens its store.
func (p *program) importCommand() *cobra.Command {
	var from, cloud, user, secrets, config, dataDir, ingotd string
	var ask, dry bool
	c := local(&cobra.Command{
		Use: "ironic", Short: "Take over the nodes of an Ironic, from its API or its database, without touching a machine",
		Long: `Take over the nodes of an Ironic, from its API or its database, without touching a machine.

It runs on the conductor's machine, while ingotd is stopped: it starts ingotd import, which writes the conductor's store. Through Ingot's
own API a running machine could not be taken over without a request to its controller.`,
	}, []option{
		opt("from", &from, "address of Ironic's API (default $OS_ENDPOINT, or that of Keystone's catalog), or of its database as in its configuration: mysql+pymysql://USER:PASSWORD@HOST/ironic or postgresql://...").freeText(),
		opt("cloud", &cloud, "cloud of clouds.yaml (default $OS_CLOUD)").freeText(),
		opt("user", &user, "user for HTTP basic, with the password in OS_PASSWORD (default $OS_USERNAME)").freeText(),
		opt("secrets", &secrets, "file (YAML) of what the API does not tell: node name or UUID, or \"*\" for all, to keys of driver_info and their values"),
		opt("ask", &ask, "ask on the terminal for what the API and the file of secrets do not tell"),
		opt("dry-run", &dry, "report what would be done, and change nothing"),
		opt("config", &config, "the conductor's configuration file"),
		opt("data-dir", &dataDir, "the conductor's data directory, without a configuration file"),
		opt("ingotd", &ingotd, "the conductor's program (default: beside this one, else of the path)"),
	}, func(ctx context.Context, _ []string) error {
		args := []string{"import"}
		for _, f := range []struct{ name, value string }{{"from", from}, {"cloud", cloud}, {"user", user},
			{"secrets", secrets}, {"config", config}, {"data-dir", dataDir}} {
			if f.value != "" {
				args = append(args, "--"+f.name+"="+f.value)
			}
		}
		for _, f := range []struct {
			name string
			on   bool
		}{{"ask", ask}, {"dry-run", dry}} {
			if f.on {
				args = append(args, "--"+f.name)
			}
		}
		path, err := ingotdPath(ingotd)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = p.stdin, p.stdout, p.stderr
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = 30 * time.Second
		if err := cmd.Run(); err != nil {
			var ended *exec.ExitError
			if errors.As(err, &ended) {
				return errors.New("the import is not complete: ingotd said above why. It can be run again")
			}
			return fmt.Errorf("run %s: %w", path, err)
		}
		return nil
	})
	return group(&cobra.Command{Use: "import", Short: "Take over the nodes of another system"}, c)
}

// ingotdPath finds the conductor's program.
func ingotdPath(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "ingotd")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath("ingotd")
	if err != nil {
		return "", errors.New("there is no ingotd on this machine: the import runs where the conductor is, or name the program with --ingotd")
	}
	return path, nil
}
