package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/backup"
)

// command is something that ingotd does other than serving.
type command struct {
	name, arguments, about string
	run                    func(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error
}

// commands is the list of them. `ingotd COMMAND --help` shows the flags of each.
func commands() []command {
	return []command{
		{"setup", "[--interface NAME|none] [--dhcp server|proxy|off] [--auth http_basic|keystone|none] [--yes] [--force] ...",
			"make the configuration of a new conductor: ask, propose what fits what is found here, and check it", setUp},
		{"dev", "[--auth none|http_basic|keystone] [--listen HOST:PORT]",
			"serve fake machines from a temporary folder, to try clients out", dev},
		{"import", "[--from URL | --cloud NAME] [--secrets FILE] [--ask] [--dry-run]",
			"take over the nodes of an Ironic, from its API or its database, without touching a machine", importNodes},
		{"backup", "[--with-key] FILE", "copy all that the conductor keeps into a file, while it works", backUp},
		{"ca", "rotate [--overlap DURATION | --no-overlap]", "make another CA for agents, while ingotd is stopped",
			rotateCA},
		{"key", "rotate [--new FILE]", "encrypt all secrets in the database with another key, while ingotd is stopped",
			rotateKey},
		{"doctor", "[--json]",
			"look at everything that the conductor needs, whether it runs or not, and say what to do", examine},
		{"drain", "[--timeout DURATION] [--stop] | --undo",
			"hand the nodes of the running conductor over to the others, and wait until it has none", drainNodes},
		{"log-level", "[[PART=]LEVEL ...]",
			"show or change what the running conductor logs, by part or all of it, until it is stopped", logLevel},
		{"restore", "[--key FILE] FILE",
			"put a backup into a data directory that is empty, or whose database can't be used", restore},
		{"migrate-store", "--from URL --to URL [--dry-run]",
			"move all data from SQLite to PostgreSQL or back, while ingotd is stopped", migrateStore},
	}
}

// find returns the command that the arguments begin with.
func find(args []string) (command, bool) {
	if len(args) > 0 {
		for _, c := range commands() {
			if c.name == args[0] {
				return c, true
			}
		}
	}
	return command{}, false
}

// help lists the commands, after config's list of flags.
func help(w io.Writer) {
	fmt.Fprintf(w, "\nCommands other than serving:\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  ingotd %s %s\n      %s\n", c.name, c.arguments, c.about)
	}
}

// flags makes the flags of a command. Its help is c's line and the flags.
func (c command) flags(out io.Writer) *flag.FlagSet {
	fl := flag.NewFlagSet("ingotd "+c.name, flag.ContinueOnError)
	fl.SetOutput(out)
	fl.Usage = func() {
		fmt.Fprintf(out, "ingotd %s %s\n  %s\n\n", c.name, c.arguments, c.about)
		fl.PrintDefaults()
	}
	return fl
}

// site is where a command finds the conductor's data: the flags that say so, and the directory.
type site struct{ config, dir string }

func (s *site) flags(fl *flag.FlagSet) {
	fl.StringVar(&s.config, "config", "", "the conductor's configuration `file`, for its data_dir")
	fl.StringVar(&s.dir, "data-dir", "", "the conductor's data `directory`, if there is no configuration to tell")
}

// settings reads the configuration for its data directory and key; whatever else is wrong with it does not matter here.
func (s *site) settings(environ []string) (config.Config, error) {
	var args []string
	if s.config != "" {
		args = append(args, "--config", s.config)
	}
	if s.dir != "" {
		args = append(args, "--data-dir", s.dir)
	}
	cfg, _, err := config.Load(args, environ, io.Discard)
	if err != nil && !errors.Is(err, config.ErrInvalid) {
		return cfg, err
	}
	return cfg, nil
}

// one returns the only argument of a command.
func one(fl *flag.FlagSet, what string) (string, error) {
	if fl.NArg() != 1 || strings.TrimSpace(fl.Arg(0)) == "" {
		return "", fmt.Errorf("%s takes one argument, %s; --help shows its flags", fl.Name(), what)
	}
	return fl.Arg(0), nil
}

// parse reads a command's flags, which may stand before or after its arguments. done reports that help was requested
// and has been printed.
func parse(fl *flag.FlagSet, args []string) (done bool, err error) {
	var others []string
	for {
		err = fl.Parse(args)
		if errors.Is(err, flag.ErrHelp) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if fl.NArg() == 0 {
			break
		}
		others, args = append(others, fl.Arg(0)), fl.Args()[1:]
	}
	return false, fl.Parse(append([]string{"--"}, others...))
}

func backUp(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	c, _ := find([]string{"backup"})
	fl := c.flags(stderr)
	var at site
	at.flags(fl)
	withKey := fl.Bool("with-key", false,
		"put the key into the backup: every reader of the file then has all passwords in it")
	if done, err := parse(fl, args); done || err != nil {
		return err
	}
	file, err := one(fl, "the file to make")
	if err != nil {
		return err
	}
	cfg, err := at.settings(environ)
	if err != nil {
		return err
	}
	if cfg.Store.Server() != "" {
		return errors.New(
			"the nodes are in PostgreSQL (store.url): back that up with its own tools, such as pg_dump, and keep a copy of the data directory beside it")
	}
	dir := cfg.DataDir
	if err := backup.Write(ctx, dir, file, cfg.Store.Bytes(), *withKey); err != nil {
		return fmt.Errorf("back up %s: %w", dir, err)
	}
	fi, err := os.Stat(file)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s holds all of %s, %d bytes.\n", file, dir, fi.Size())
	if *withKey {
		fmt.Fprintln(stdout, "The key is in it: keep the file as secret as the passwords of all controllers.")
	} else {
		fmt.Fprintf(stdout,
			"The key is not in it, and without the key it can't be restored: keep a copy of %s elsewhere.\n",
			dir+"/"+store.KeyFile)
	}
	return nil
}

func restore(ctx context.Context, args, environ []string, stdout, stderr io.Writer) (err error) {
	c, _ := find([]string{"restore"})
	fl := c.flags(stderr)
	var at site
	at.flags(fl)
	keyFile := fl.String("key", "",
		"the key `file` of the conductor that the backup was made on, for a backup without it")
	if done, err := parse(fl, args); done || err != nil {
		return err
	}
	file, err := one(fl, "the backup")
	if err != nil {
		return err
	}
	var key []byte
	if *keyFile != "" {
		if key, err = store.ReadKey(*keyFile); err != nil {
			return err
		}
	}
	cfg, err := at.settings(environ)
	if err != nil {
		return err
	}
	if cfg.Store.Server() != "" {
		return errors.New(
			"the nodes are in PostgreSQL (store.url): restore them with its own tools, such as pg_restore, and the data directory from its copy")
	}
	dir, to := cfg.DataDir, backup.Target{Dir: cfg.DataDir, Key: key, Own: cfg.Store.Bytes()}
	release, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	aside, err := backup.Restore(ctx, file, to)
	if err != nil {
		return fmt.Errorf("restore into %s: %w", dir, err)
	}
	if aside != "" {
		fmt.Fprintf(stdout, "What could not be used any more is in %s: remove it when it is not needed.\n", aside)
	}
	fmt.Fprintf(stdout,
		"%s holds what %s held. ingotd can be started on it; make sure that the one the backup was made on is not running.\n", dir, file)
	return nil
}
