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

	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/importer"
	"github.com/ingot-metal/ingot/conductor/store"
)

// importNodes takes over the nodes of a running Ironic into this conductor's data directory, which no ingotd may be
// using.
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
	from := fl.String("from", env("OS_ENDPOINT"), "`URL` of Ironic's API; default is OS_ENDPOINT")
	user := fl.String("user", env("OS_USERNAME"),
		"`user` for HTTP basic, with the password in OS_PASSWORD; default is OS_USERNAME. A Keystone token goes into OS_TOKEN")
	secretFile := fl.String("secrets", "",
		"`file` (YAML) of what the API does not tell: node name or UUID, or \"*\" for all, to keys of driver_info and their values")
	if done, err := parse(fl, args); done || err != nil {
		return err
	}
	if fl.NArg() > 0 || *from == "" {
		return errors.New(
			"ingotd import takes --from URL, the address of Ironic's API, and no arguments; --help shows its flags")
	}
	secrets, err := readSecrets(*secretFile)
	if err != nil {
		return err
	}
	cfg, err := at.settings(environ)
	if err != nil {
		return err
	}
	dir := cfg.DataDir
	release, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	o, err := storeOptions(cfg)
	if err != nil {
		return err
	}
	st, err := store.Open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	src := &importer.Source{URL: *from, Token: env("OS_TOKEN")}
	if src.Token == "" {
		src.User, src.Password = *user, env("OS_PASSWORD")
	}
	rep, err := importer.Run(ctx, src, st, driver.All(), secrets)
	tell(stdout, src, rep)
	if err == nil && len(rep.Refused) > 0 {
		return fmt.Errorf("%d things were not taken over, see above", len(rep.Refused))
	}
	return err
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
func tell(w io.Writer, src *importer.Source, rep *importer.Report) {
	if rep.Version == "" {
		return // nothing was read
	}
	fmt.Fprintf(w, "Read from %s, API version %s.\n", src.URL, rep.Version)
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
