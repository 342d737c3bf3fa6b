package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/importer"
	"github.com/ingot-metal/ingot/conductor/store"
)

// importNodes takes over the nodes of an Ironic into this conductor's store, which no ingotd may be using.
func importNodes(ctx context.Context, args, environ []string, stdout, stderr io.Writer) (err error) {
	c, _ := find([]string{"import"})
	fl := c.flags(stderr)
	var at site
	at.flags(fl)
	env := func(name string) string {
		for _, kv := range environ {
			if v, ok := strings.CutPrefix(kv, name+"="); ok {
				return v
			}
		}
		return ""
	}
	from := fl.String("from", "", "`URL` of Ironic's API (default: OS_ENDPOINT, or that of Keystone's catalog), or of its database as in Ironic's configuration: mysql+pymysql://USER:PASSWORD@HOST/ironic, postgresql://...")
	cloud := fl.String("cloud", "", "`name` of the cloud in clouds.yaml; default is OS_CLOUD")
	user := fl.String("user", env("OS_USERNAME"),
		"`user` for HTTP basic, with the password in OS_PASSWORD; default is OS_USERNAME. OS_AUTH_URL and its kin log in to Keystone, OS_CACERT names certificates to trust")
	secretFile := fl.String("secrets", "",
		"`file` (YAML) of what the API does not tell: node name or UUID, or \"*\" for all, to keys of driver_info and their values")
	ask := fl.Bool("ask", false, "ask on the terminal for what the API does not tell and the file of secrets does not have")
	dry := fl.Bool("dry-run", false, "report what would be done, and change nothing")
	if done, err := parse(fl, args); done || err != nil {
		return err
	}
	if fl.NArg() > 0 {
		return errors.New("ingotd import takes no arguments; --help shows its flags")
	}
	secrets, err := readSecrets(*secretFile)
	if err != nil {
		return err
	}
	o := importer.Options{Types: driver.All(), Secrets: secrets, DryRun: *dry}
	if *ask {
		if !term.IsTerminal(int(os.Stdin.Fd())) {
			return errors.New("--ask needs a terminal: give --secrets FILE instead")
		}
		o.Ask = askFor(stderr)
	}
	src, err := sourceAt(ctx, *from, *cloud, func(name string) string {
		if name == "OS_USERNAME" {
			return *user
		}
		return env(name)
	})
	if err != nil {
		return err
	}
	cfg, err := at.settings(environ)
	if err != nil {
		return err
	}
	release, err := lockDir(cfg.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	so, err := storeOptions(cfg)
	if err != nil {
		return err
	}
	st, err := store.Open(ctx, so)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	rep, err := importer.Run(ctx, src, st, o)
	tell(stdout, rep, *dry)
	if err == nil && len(rep.Refused) > 0 {
		return fmt.Errorf("%d things were not taken over, see above", len(rep.Refused))
	}
	return err
}

// sourceAt is the Ironic to read.
func sourceAt(ctx context.Context, from, cloud string, env func(string) string) (importer.Source, error) {
	if importer.IsDatabase(from) {
		return &importer.Database{URL: from}, nil
	}
	api, err := importer.Login(ctx, from, cloud, env)
	if err != nil {
		return nil, err
	}
	if api.URL == "" {
		return nil, errors.New(
			"ingotd import wants --from URL, the address of Ironic's API or database; --help shows its flags")
	}
	return api, nil
}

// askFor asks for secrets on the terminal. An empty answer takes the one that was given before for the same key.
func askFor(w io.Writer) func(nodeName, key string) (string, error) {
	last := map[string]string{}
	return func(nodeName, key string) (string, error) {
		hint := "leaves it out"
		if last[key] != "" {
			hint = "takes the one before"
		}
		fmt.Fprintf(w, "%s of node %s (Enter %s): ", key, clean.Line(nodeName, 255), hint)
		b, err := term.ReadPassword(int(os.Stdin.Fd()))
		fmt.Fprintln(w)
		if err != nil {
			return "", fmt.Errorf("read a secret: %w", err)
		}
		if len(b) > 0 {
			last[key] = string(b)
		}
		return last[key], nil
	}
}

func readSecrets(file string) (importer.Secrets, error) {
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read secrets: %w", err)
	}
	var s importer.Secrets
	if err := yaml.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("read secrets %s: want node names with keys of driver_info under them: %w", file, err)
	}
	return s, nil
}

// tell prints what an import did.
func tell(w io.Writer, rep *importer.Report, dry bool) {
	if rep.Version == "" {
		return // nothing was read
	}
	fmt.Fprintf(w, "Read from %s, %s.\n", rep.Source, rep.Version)
	if dry {
		fmt.Fprintln(w, "Dry run: nothing was changed. An import would do this:")
	}
	kinds := slices.Sorted(maps.Keys(rep.Made))
	for kind := range rep.Kept {
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	for _, kind := range kinds {
		fmt.Fprintf(w, "  %d %s taken over, %d were here already\n", rep.Made[kind], kind, rep.Kept[kind])
	}
	for _, part := range []struct {
		title string
		lines []string
	}{{"Completed:", rep.Changed}, {"To know:", rep.Notes}, {"Not taken over:", rep.Refused}} {
		if len(part.lines) > 0 {
			fmt.Fprintln(w, part.title)
		}
		for _, line := range part.lines {
			fmt.Fprintln(w, "  "+line)
		}
	}
}
