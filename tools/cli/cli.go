// Package cli is the command line `ingot`: a client of the conductor's API, with the builders of ramdisks and
// images and the virtual lab.
//
// Run does all the work of the program, so that tests call it as a user would. Commands write what was asked for to
// stdout, in a table or as -o says (package render), and everything else (progress, warnings, questions) to stderr.
// A command that starts work on a node waits for its end and shows how far it is: a bar that is redrawn on a terminal,
// plain lines elsewhere. Ending the wait with Ctrl-C does not end the work. Message makes of an error what a user
// should read: what went wrong, and what to do.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/tools/cli/render"
)

// defaultEndpoint is where a conductor listens by default.
const defaultEndpoint = "http://127.0.0.1:6385"

// program is the state that all commands share.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	// stdout as it is, for what moves the cursor and for consoles; what comes from the API goes to stdout, which quotes
	terminal io.Writer
	getenv   func(string) string

	endpoint string
	context  string // name of one
	output   string
	format   render.Format // of output
}

// Run carries out a command line without the program's name in front. Its error is for Message.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer,
	getenv func(string) string) error {
	p := &program{stdin: stdin, stdout: clean.Writer{W: stdout}, terminal: stdout, stderr: stderr, getenv: getenv}
	root := p.root() //nolint:contextcheck commands take the context that cobra hands them
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.InitDefaultCompletionCmd() // writes to where the output goes by now
	for _, cmd := range root.Commands() {
		refuseUnknown(cmd)
	}
	return root.ExecuteContext(ctx)
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "ingot",
		Short: "Provision bare-metal servers",
		Long: `ingot talks to a conductor (ingotd), builds the ramdisk and images it needs, and runs a virtual lab.

A machine's way from power-off to a running system:

  ingot node create NAME --bmc ADDRESS --bmc-user USER --bmc-password PASSWORD
  ingot node manage NAME        check the credentials of its controller
  ingot node inspect NAME       boot the agent and look at the hardware
  ingot node provide NAME       clean it and make it available
  ingot node deploy NAME --image URL --checksum sha256:HEX --hostname NAME --ssh-key FILE

Credentials, where the conductor requires them, come from the environment, as for the openstack command:

  HTTP basic     OS_AUTH_TYPE=http_basic OS_USERNAME OS_PASSWORD
  Keystone       OS_AUTH_URL OS_USERNAME OS_PASSWORD OS_USER_DOMAIN_NAME, and
                 OS_PROJECT_NAME (or _ID) OS_PROJECT_DOMAIN_NAME, or OS_SYSTEM_SCOPE=all;
                 without an endpoint it is the one of Keystone's catalog (OS_REGION_NAME)
  a token        OS_TOKEN
  TLS            OS_CACERT, a file with the certificates to trust

or from a context, for several sites: see ingot context.

ingot --version prints the version.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) (err error) {
			if p.format, err = render.Parse(p.output); err != nil {
				return usage("%v", err)
			}
			return nil
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{fmt.Sprintf("%v; see `%s --help`", err, cmd.CommandPath())}
	})
	p.output = "table"
	addFlags(root, []option{
		opt("endpoint", &p.endpoint,
			"address of the conductor's API (default $INGOT_ENDPOINT, $OS_ENDPOINT or "+defaultEndpoint+")"),
		opt("context", &p.context, "name of the site to work on: see ingot context").offering(p.completeContext),
		opt("output,o", &p.output, "how to print: "+strings.Join(render.Formats, ", ")+"TEXT",
			render.Formats...),
	})
	root.PersistentFlags().AddFlagSet(root.Flags()) // the commands below have them too
	root.AddCommand(p.topCommand(), p.contextCommand(), p.nodeCommand(), p.bmcCommand(), p.portCommand(),
		p.driverCommand(), p.importCommand(), p.exportCommand(), p.ruleCommand(), p.poolCommand(),
		p.reservationCommand(), p.eventsCommand(), p.logCommand(), p.eraseCommand(), p.writerCommand(),
		p.ramdiskCommand(), p.imageCommand(), p.labCommand(), p.manualCommand())
	return root
}

// refuseUnknown makes a mistyped command below cmd an error: cobra does that for the first word alone, and prints help
// for all others.
func refuseUnknown(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		refuseUnknown(c)
	}
	if !cmd.HasSubCommands() || cmd.Runnable() {
		return
	}
	cmd.DisableFlagsInUseLine = true
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var names []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
		return usage("unknown command %q for %q; there are: %s", args[0], cmd.CommandPath(), strings.Join(names, ", "))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// client makes the client of the conductor.
func (p *program) client(ctx context.Context) (*client.Client, error) {
	if err := p.chooseContext(); err != nil {
		return nil, err
	}
	return p.login(ctx, cmp.Or(p.endpoint, p.getenv("INGOT_ENDPOINT"), p.getenv("OS_ENDPOINT")))
}

// usageError says that the command line itself is wrong.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usage(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// isTerminal reports whether w is a terminal, and its width.
func isTerminal(w any) (width int, ok bool) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		width = 80
	}
	return width, true
}

// maxInput bounds the bytes that read takes of a file. The largest files that commands read whole, a report on 100,000
// samples or a config drive, have less.
const maxInput = 256 << 20

// read reads a file, or the standard input when the name is -.
func (p *program) read(name string) ([]byte, error) {
	in := p.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	return io.ReadAll(io.LimitReader(in, maxInput))
}

// ask asks for a password on the terminal; without a terminal ok is false.
func (p *program) ask(question string) (answer string, ok bool, err error) {
	f, is := p.stdin.(*os.File)
	if !is || !term.IsTerminal(int(f.Fd())) {
		return "", false, nil
	}
	fmt.Fprint(p.stderr, question)
	b, err := term.ReadPassword(int(f.Fd()))
	fmt.Fprintln(p.stderr)
	if err != nil {
		return "", true, fmt.Errorf("read the password: %w", err)
	}
	return string(b), true, nil
}

// note prints a remark for the user beside the result.
func (p *program) note(format string, args ...any) {
	fmt.Fprintf(p.stderr, format+"\n", args...)
}

// confirm asks on a terminal before something that can't be undone.
func (p *program) confirm(yes bool, question string) error {
	if yes {
		return nil
	}
	if _, ok := isTerminal(p.stdin); !ok {
		return nil // a script's request is meant
	}
	fmt.Fprintf(p.stderr, "%s [y/N] ", question)
	var answer string
	_, _ = fmt.Fscanln(p.stdin, &answer) // an empty line, or none, means no
	if a := strings.ToLower(answer); a != "y" && a != "yes" {
		return errors.New("nothing was done")
	}
	return nil
}
