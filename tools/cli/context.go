package cli

import (
	"cmp"
	"context"
	"crypto/x509"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/tools/cli/contexts"
)

// chooseContext takes the context that the command line or the environment names, or else the one in use, unless one
// of the two has an address. Then nothing else of the environment counts for the login: credentials of one site must
// not go to another.
func (p *program) chooseContext() error {
	switch {
	case p.endpoint != "" && p.context != "":
		return usage("--endpoint and --context contradict each other: give one of them")
	case p.endpoint != "":
		return nil
	}
	name := cmp.Or(p.context, p.getenv("INGOT_CONTEXT"), p.getenv("OS_CLOUD"))
	for _, key := range []string{"INGOT_ENDPOINT", "OS_ENDPOINT", "OS_AUTH_URL", "OS_AUTH_TYPE", "OS_TOKEN"} {
		if name == "" && p.getenv(key) != "" {
			return nil
		}
	}
	known, err := contexts.Load(p.getenv)
	if err != nil {
		return err
	}
	if name = cmp.Or(name, known.Current); name == "" {
		return nil
	}
	s, err := known.Find(name)
	if err != nil {
		return usage("%v", err)
	}
	environ := p.getenv
	p.getenv = func(key string) string {
		if key == "INGOT_ENDPOINT" || strings.HasPrefix(key, "OS_") {
			return s.Env[key]
		}
		return environ(key)
	}
	return nil
}

func (p *program) contextList() *cobra.Command {
	return local(&cobra.Command{Use: "list", Short: "List contexts"}, nil, func(context.Context, []string) error {
		known, err := contexts.Load(p.getenv)
		if err != nil {
			return err
		}
		type shown struct {
			Name     string `json:"name"`
			Used     bool   `json:"used"`
			Endpoint string `json:"endpoint"`
			User     string `json:"user"`
			File     string `json:"file"`
		}
		var all []shown
		for _, s := range known.All() {
			all = append(all, shown{s.Name, s.Name == known.Current, cmp.Or(s.Env["OS_ENDPOINT"], s.Env["OS_AUTH_URL"]),
				s.Env["OS_USERNAME"], s.File})
		}
		if len(all) == 0 && p.format.ForPeople() {
			p.note("There are no contexts. Add one: ingot context set NAME --endpoint URL")
			return nil
		}
		return list(p, all, []string{"NAME", "USED", "ENDPOINT", "USER", "FILE"}, func(s *shown) []string {
			return []string{s.Name, choose(s.Used, "*", ""), s.Endpoint, dash(s.User), s.File}
		})
	})
}

func (p *program) contextUse() *cobra.Command {
	return local(&cobra.Command{Use: "use NAME", Short: `Make a context the one that counts when none is named; "" for none`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: p.completeContext}, nil,
		func(_ context.Context, args []string) error {
			known, err := contexts.Load(p.getenv)
			if err != nil {
				return err
			}
			if err := known.Use(args[0]); err != nil {
				return usage("%v", err)
			}
			return p.say("%s", choose(args[0] == "", "no context is in use", "context "+args[0]+" is in use"))
		})
}

func (p *program) contextSet() *cobra.Command {
	var user, password, cacert string
	return local(&cobra.Command{Use: "set NAME", Short: "Add a context, or change one",
		Example: `  ingot context set lab --endpoint http://127.0.0.1:6385
  ingot context set rack1 --endpoint https://rack1.example:6385 --user root --cacert rack1.pem`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: p.completeContext}, []option{
		opt("user", &user, "log in by HTTP basic as this user; the password is asked for, or in $OS_PASSWORD").freeText(),
		opt("cacert", &cacert, "file with the certificates to trust"),
	}, func(_ context.Context, args []string) error {
		known, err := contexts.Load(p.getenv)
		if err != nil {
			return err
		}
		if p.endpoint != "" && !isURL(p.endpoint) {
			return usage("--endpoint %q is not an address such as https://rack1.example:6385", p.endpoint)
		}
		if err := absolute(&cacert); err != nil { // the context is used from other folders, too
			return err
		}
		if cacert != "" {
			if pem, err := os.ReadFile(cacert); err != nil || !x509.NewCertPool().AppendCertsFromPEM(pem) {
				return usage("--cacert %s is no file with certificates in PEM", cacert)
			}
		}
		if user != "" {
			if password = p.getenv("OS_PASSWORD"); password == "" {
				if password, _, err = p.ask("Password of " + user + ": "); err != nil {
					return err
				}
			}
			if password == "" {
				return usage("--user needs a password: set OS_PASSWORD")
			}
		}
		if err := known.Set(args[0], p.endpoint, user, password, cacert); err != nil {
			return usage("%v", err)
		}
		return p.say("context %s is set; use it with --context %s, or always with: ingot context use %s", args[0], args[0],
			args[0])
	})
}

func (p *program) contextDelete() *cobra.Command {
	return local(&cobra.Command{Use: "delete NAME", Short: "Delete a context that ingot context set has written",
		Args: cobra.ExactArgs(1), ValidArgsFunction: p.completeContext}, nil,
		func(_ context.Context, args []string) error {
			known, err := contexts.Load(p.getenv)
			if err != nil {
				return err
			}
			if err := known.Remove(args[0]); err != nil {
				return usage("%v", err)
			}
			return p.say("context %s is deleted", args[0])
		})
}

// completeContext offers the names of contexts.
func (p *program) completeContext(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	known, err := contexts.Load(p.getenv)
	if err != nil || len(args) > 0 {
		return nil, noFiles
	}
	return mapped(known.All(), func(s *contexts.Context) string { return s.Name }), noFiles
}

// contextCommand has the commands for contexts.
func (p *program) contextCommand() *cobra.Command {
	return group(&cobra.Command{Use: "context", Short: "Choose among several sites",
		Long: `A context is a site: the address of its conductor, and how to log in. Those are the entries of clouds.yaml, as for the
openstack command, and those that ingot context set writes. Each command takes --context NAME (or $INGOT_CONTEXT,
$OS_CLOUD); without one, and without an address in the environment, the one that is in use counts.`},
		p.contextList(), p.contextUse(), p.contextSet(), p.contextDelete())
}
