package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
	"github.com/ingot-metal/ingot/conductor/store"
)

// rotation is the common part of the commands that exchange keys: they are called as `ingotd WHAT rotate`, on a data
// directory that no ingotd uses and that has the file named by has. A directory without that file has nothing to
// exchange, and nothing is made there.
func rotation(what, has string, args, environ []string, stderr io.Writer, flags func(*flag.FlagSet),
	do func(cfg config.Config) error) (err error) {
	c, _ := find([]string{what})
	fl := c.flags(stderr)
	var at site
	at.flags(fl)
	flags(fl)
	if done, err := parse(fl, args); done || err != nil {
		return err
	}
	verb, err := one(fl, "rotate")
	if err != nil {
		return err
	}
	if verb != "rotate" {
		return fmt.Errorf("ingotd %s %s is not known: there is only ingotd %s rotate", what, verb, what)
	}
	cfg, err := at.settings(environ)
	if err != nil {
		return err
	}
	if has == store.DatabaseFile && cfg.Store.Server() != "" {
		has = store.InstallationFile
	}
	switch _, err := os.Stat(filepath.Join(cfg.DataDir, has)); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf(
			"%s has no %s, so no ingotd has worked there: name the conductor's data directory with --data-dir, or its configuration with --config", cfg.DataDir, has)
	case err != nil:
		return err
	}
	release, err := lockDir(cfg.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	return do(cfg)
}

// rotateKey seals the database with another key.
func rotateKey(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	var file string
	return rotation("key", store.DatabaseFile, args, environ, stderr, func(fl *flag.FlagSet) {
		fl.StringVar(&file, "new", "",
			"`file` with the new key, where the configuration or the environment gives the present one (store.key)")
	}, func(cfg config.Config) error {
		key := cfg.Store.Bytes()
		var to []byte
		var err error
		switch {
		case key == nil && file != "":
			return errors.New(
				"--new is for a key that the configuration or the environment gives; the key file is replaced by a new one that is made")
		case key != nil && file == "":
			return errors.New(
				"the key comes from the configuration or the environment (store.key): give the new one with --new FILE, and change store.key afterwards")
		case key != nil:
			if to, err = store.ReadKey(file); err != nil {
				return err
			}
		}
		kept := filepath.Join(cfg.DataDir, "key.until-"+time.Now().UTC().Format("20060102T150405Z"))
		if key == nil { // kept first, or a kill would leave backups that can't be read
			old, err := store.ReadKey(filepath.Join(cfg.DataDir, store.KeyFile))
			if err != nil {
				return err
			}
			if err := keyfile.Write(kept, store.EncodeKey(old), 0o600); err != nil {
				return fmt.Errorf("keep the old key: %w", err)
			}
		}
		o, err := storeOptions(cfg)
		if err != nil {
			return err
		}
		if err := store.RotateKey(ctx, o, to); err != nil {
			return err
		}
		if key != nil {
			fmt.Fprintf(stdout,
				"The database has the new key: set store.key (INGOT_STORE_KEY) to it before ingotd starts. Backups made until now need the old one.\n")
			return nil
		}
		fmt.Fprintf(stdout,
			"The database has a new key, %s: keep a copy of it elsewhere.\nBackups made until now need the old one, which is in %s: move it to where those are, or remove it.\n",
			filepath.Join(cfg.DataDir, store.KeyFile), kept)
		return nil
	})
}

// rotateCA makes another CA for agents.
func rotateCA(_ context.Context, args, environ []string, stdout, stderr io.Writer) error {
	var (
		overlap time.Duration
		none    bool
	)
	return rotation("ca", agents.CACertFile, args, environ, stderr, func(fl *flag.FlagSet) {
		fl.DurationVar(&overlap, "overlap", defaultOverlap,
			"how long both CAs are accepted; agents that were booted before and still run then are booted again")
		fl.BoolVar(&none, "no-overlap", false,
			"refuse all that the old CA issued at once, as when somebody else may have its key")
	}, func(cfg config.Config) error {
		if none {
			overlap = 0
		} else if overlap < time.Hour {
			return fmt.Errorf("--overlap %v is less than an hour: give more time to agents at work, or --no-overlap",
				overlap)
		}
		ca, err := agents.RotateCA(cfg.DataDir, time.Now(), overlap)
		if err != nil {
			return err
		}
		if none {
			fmt.Fprintf(stdout, "The CA is a new one, with fingerprint %s, and what the old one issued is refused.\n"+
				"Agents at work can't come back: their machines are booted again when their work allows it. Ramdisks with the old CA built in have to be built again (ingot ramdisk build --ca %s).\n",
				ca.Fingerprint(), filepath.Join(cfg.DataDir, agents.CACertFile))
			return nil
		}
		fmt.Fprintf(stdout,
			"The next CA has fingerprint %s. Until %s both are accepted, and boot scripts name both; the first start of ingotd after that drops the old one.\n"+
				"Ramdisks with the old CA built in have to be built again until then (ingot ramdisk build --ca %s).\n",
			ca.NextFingerprint(), ca.Until().UTC().Format(time.RFC3339), filepath.Join(cfg.DataDir, "ca.next.crt"))
		return nil
	})
}

// defaultOverlap is as long as an agent's certificate is good for.
const defaultOverlap = 90 * 24 * time.Hour
