package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/migrate"
	"github.com/ingot-metal/ingot/conductor/store/postgres"
)

// progressEvery is how often the copy of a large table says how far it is.
const progressEvery = 5 * time.Second

// migrateStore moves the data from SQLite to PostgreSQL or back.
func migrateStore(ctx context.Context, args, environ []string, stdout, stderr io.Writer) (err error) {
	c, _ := find([]string{"migrate-store"})
	fl := c.flags(stderr)
	var at site
	at.flags(fl)
	const forms = "sqlite: (the data directory), sqlite:DIR, or postgres://USER@HOST:PORT/DATABASE without a password"
	from := fl.String("from", "", "`URL` of the database that has the data: "+forms)
	to := fl.String("to", "", "`URL` of the database to fill, which has no tables yet; as --from")
	passwordFile := fl.String("password-file", "",
		"`file` with the password for PostgreSQL; default is store.password_file, then PGPASSWORD and PGPASSFILE")
	o := migrate.Options{}
	fl.BoolVar(&o.DryRun, "dry-run", false, "read and count everything, and write nothing")
	fl.BoolVar(&o.ReplaceBad, "replace-bad-text", false,
		"put U+FFFD in place of U+0000, and of bytes that are no UTF-8, which PostgreSQL can't keep in texts")
	if done, err := parse(fl, args); done || err != nil {
		return err
	}
	if fl.NArg() > 0 || *from == "" || *to == "" {
		return errors.New("ingotd migrate-store takes --from URL and --to URL, and no arguments; --help shows its flags")
	}
	cfg, err := at.settings(environ)
	if err != nil {
		return err
	}
	password, err := postgres.ReadPassword(cmp.Or(*passwordFile, cfg.Store.PasswordFile))
	if err != nil {
		return err
	}
	place := func(flag, url string) (store.Options, error) {
		s := store.Options{Dir: cfg.DataDir, Key: cfg.Store.Bytes()}
		scheme, rest, _ := strings.Cut(url, ":")
		switch {
		case scheme == "postgres" || scheme == "postgresql":
			s.URL, s.Password = url, password
			if _, err := postgres.Parse(url, password); err != nil {
				return s, fmt.Errorf("%s: %w", flag, err)
			}
		case scheme != "sqlite" || strings.HasPrefix(rest, "//"): // which is not shown: it may hold a password
			return s, fmt.Errorf("%s is none of the addresses that are known: %s", flag, forms)
		case rest != "":
			s.Dir, err = filepath.Abs(rest)
		}
		return s, err
	}
	if o.From, err = place("--from", *from); err != nil {
		return err
	}
	if o.To, err = place("--to", *to); err != nil {
		return err
	}
	release, err := lockMoved(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	var next time.Time
	o.Progress = func(table string, rows int64) {
		if now := time.Now(); now.After(next) {
			fmt.Fprintf(stderr, "table %s: %d rows\n", table, rows)
			next = now.Add(progressEvery)
		}
	}
	rep, err := migrate.Run(ctx, o)
	if err != nil {
		return fmt.Errorf("move the data: %w", err)
	}
	tellMove(stdout, o, rep, cfg.DataDir)
	return nil
}

// lockMoved locks the data directory of the database that is SQLite. A dry run changes nothing in a target.
func lockMoved(o migrate.Options) (release func() error, err error) {
	none := func() error { return nil }
	if (o.From.URL == "") == (o.To.URL == "") {
		return none, nil // Run refuses it
	}
	if o.From.URL == "" {
		path := filepath.Join(o.From.Dir, store.DatabaseFile)
		if _, err := os.Stat(path); err != nil { // the lock would make the directory
			return nil, fmt.Errorf("%s can't be read (%w): name the conductor's data directory", path, err)
		}
		return lockDir(o.From.Dir)
	}
	if !o.DryRun {
		return lockDir(o.To.Dir)
	}
	if inUse(o.To.Dir) {
		return nil, fmt.Errorf("another ingotd uses the data directory %s: stop it", o.To.Dir)
	}
	return none, nil
}

// tellMove prints what has been moved, and what is to be done next. home is the data directory of the configuration.
func tellMove(w io.Writer, o migrate.Options, rep migrate.Report, home string) {
	var rows int64
	for _, t := range rep.Tables {
		fmt.Fprintf(w, "%-16s %d\n", t.Name, t.Rows)
		rows += t.Rows
	}
	if o.DryRun {
		fmt.Fprintf(w, "%d rows of %s can be moved to %s. This was a dry run: nothing was written.\n", rows, rep.From,
			rep.To)
		return
	}
	fmt.Fprintf(w, "%s has all %d rows of %s; they were read back and compared.\n", rep.To, rows, rep.From)
	if o.To.URL != "" {
		fmt.Fprintf(w,
			"Before ingotd starts, set store.url to it, and keep %s as data_dir: the key of the secrets, the CA of the agents and more are only there. Move the old files %s* in it away.\n",
			o.From.Dir, store.DatabaseFile)
		return
	}
	fmt.Fprintln(w,
		"Before ingotd starts, set store.url to sqlite:, remove store.password_file, and make sure that none starts on PostgreSQL again.")
	if _, err := os.Stat(filepath.Join(o.To.Dir, store.InstallationFile)); err != nil {
		fmt.Fprintf(w,
			"Copy the other files of the data directory (%s) to %s and set data_dir to that: the key of the secrets, the CA of the agents and more are only there.\n",
			home, o.To.Dir)
	}
}
