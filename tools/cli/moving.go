package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/tools/toironic"
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

// exportCommand writes what an Ironic takes.
func (p *program) exportCommand() *cobra.Command {
	dir, secrets, version := ".", "", rest.Version(82).String()
	c := p.online(&cobra.Command{
		Use: "ironic", Short: "Write a file and a script that bring all nodes to an Ironic",
		Long: `Write ironic.json, a file for openstack baremetal create, and ironic.sh, a script that runs it, creates the rest and brings each node
into its state. Nothing is written to disks: active nodes are adopted, and cleaning is off while available ones are provided. What can't be
carried is named at the head of the script. Both files may hold passwords.

Stop ingotd before the script runs: two conductors must not manage the same machines.`,
	}, []option{
		opt("dir", &dir, "folder for the two files, which must not be there yet"),
		opt("secrets", &secrets, "file (YAML) of what the API masks: node name or UUID, or \"*\" for all, to keys of driver_info and their values"),
		opt("api-version", &version, "newest version that both the API of that Ironic and its openstack command know; Debian 12's command knows 1.78").freeText(),
	}, func(ctx context.Context, c *client.Client, _ []string) error {
		minor, err := strconv.Atoi(strings.TrimPrefix(version, "1."))
		if err != nil || minor < 60 || minor > int(rest.MaxVersion) {
			return usage("--api-version %q is not one of 1.60 to %s", version, rest.MaxVersion)
		}
		var given toironic.Secrets
		if secrets != "" {
			b, err := p.read(secrets)
			if err != nil {
				return err
			}
			if err := yaml.Unmarshal(b, &given); err != nil {
				return fmt.Errorf("read %s: want node names with keys of driver_info under them: %w", secrets, err)
			}
		}
		var things toironic.Things
		for _, l := range []struct {
			to         *[]toironic.Object
			path, name string
		}{
			{&things.Drivers, "/v1/drivers?detail=true", "drivers"}, {&things.Nodes, "/v1/nodes?detail=true&include_children=true", "nodes"},
			{&things.Ports, "/v1/ports?detail=true", "ports"}, {&things.Chassis, "/v1/chassis?detail=true", "chassis"},
			{&things.Portgroups, "/v1/portgroups?detail=true", "portgroups"},
			{&things.Connectors, "/v1/volume/connectors?detail=true", "connectors"},
			{&things.Targets, "/v1/volume/targets?detail=true", "targets"},
			{&things.Allocations, "/v1/allocations", "allocations"},
			{&things.Templates, "/v1/deploy_templates?detail=true", "deploy_templates"},
			{&things.Runbooks, "/v1/runbooks?detail=true", "runbooks"},
			{&things.Rules, "/v1/inspection_rules?detail=true", "inspection_rules"},
		} {
			if *l.to, err = c.Objects(ctx, l.path, l.name); err != nil {
				return err
			}
		}
		made, err := toironic.Make(things, given, rest.Version(minor), "ironic.json")
		if err != nil {
			return err
		}
		if err := writeNew(filepath.Join(dir, "ironic.json"), made.File, 0o600); err != nil {
			return err
		}
		if err := writeNew(filepath.Join(dir, "ironic.sh"), made.Script, 0o700); err != nil {
			return err
		}
		for _, note := range made.Notes {
			p.note("not carried: %s", clean.Line(note, 1000))
		}
		return p.say("%d nodes are in %s; run ironic.sh there", made.Nodes, filepath.Join(dir, "ironic.json"))
	})
	return group(&cobra.Command{Use: "export", Short: "Write what another system takes"}, c)
}

// writeNew writes a file that does not exist yet.
func writeNew(path string, b []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
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
