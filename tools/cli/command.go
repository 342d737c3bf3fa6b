package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
)

// completion says which words a shell may offer.
type completion = func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective)

// noFiles keeps a shell from offering names of files.
const noFiles = cobra.ShellCompDirectiveNoFileComp

// option is a flag of a command.
type option struct {
	name     string // with a comma and a letter after it where there is a short form
	to       any    // where its value goes; the value that is there is the default
	usage    string
	complete completion // nil: names of files
}

// commaList is a flag that takes several values, also with commas between them.
type commaList []string

// opt is a row of a command's flags. A shell offers values, if there are any.
func opt(name string, to any, usage string, values ...string) option {
	o := option{name: name, to: to, usage: usage}
	if len(values) > 0 {
		o.complete = cobra.FixedCompletions(values, noFiles)
	}
	return o
}

// offering makes a shell offer what f returns when no argument is given.
func (o option) offering(f completion) option {
	o.complete = func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return f(cmd, nil, prefix)
	}
	return o
}

// freeText keeps a shell from offering names of files.
func (o option) freeText() option { return o.offering(cobra.NoFileCompletions) }

// addFlags gives a command its flags.
func addFlags(cmd *cobra.Command, options []option) {
	f := cmd.Flags()
	for _, o := range options {
		name, short, _ := strings.Cut(o.name, ",")
		switch to := o.to.(type) {
		case *string:
			f.StringVarP(to, name, short, *to, o.usage)
		case *bool:
			f.BoolVarP(to, name, short, *to, o.usage)
		case *int:
			f.IntVarP(to, name, short, *to, o.usage)
		case *int64:
			f.Int64VarP(to, name, short, *to, o.usage)
		case *float64:
			f.Float64VarP(to, name, short, *to, o.usage)
		case *time.Duration:
			f.DurationVarP(to, name, short, *to, o.usage)
		case *[]string:
			f.StringArrayVarP(to, name, short, *to, o.usage)
		case *commaList:
			f.StringSliceVarP((*[]string)(to), name, short, *to, o.usage)
		default:
			panic(fmt.Sprintf("flag --%s has type %T, which addFlags does not know", name, to))
		}
		if o.complete == nil {
			continue
		}
		if err := cmd.RegisterFlagCompletionFunc(name, o.complete); err != nil {
			panic(err) // it has a completion already: a bug that every test would find
		}
	}
}

// group is a command that only has commands below it.
func group(cmd *cobra.Command, below ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(below...)
	return cmd
}

// local is a command that needs no conductor. One without Args takes no arguments.
func local(cmd *cobra.Command, options []option, run func(ctx context.Context, args []string) error) *cobra.Command {
	if cmd.Args == nil {
		cmd.Args, cmd.ValidArgsFunction = cobra.NoArgs, cobra.NoFileCompletions
	}
	addFlags(cmd, options)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return run(cmd.Context(), args) }
	return cmd
}

// online is a command that needs the conductor. One without Args takes no arguments.
func (p *program) online(cmd *cobra.Command, options []option,
	run func(ctx context.Context, c *client.Client, args []string) error) *cobra.Command {
	return local(cmd, options, func(ctx context.Context, args []string) error {
		c, err := p.client(ctx)
		if err != nil {
			return err
		}
		return run(ctx, c, args)
	})
}

// onNode is a command that needs the conductor and one node. Its errors are about that node.
func (p *program) onNode(cmd *cobra.Command, options []option,
	run func(ctx context.Context, c *client.Client, name string) error) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = oneNode, p.completeNode
	return p.online(cmd, options, func(ctx context.Context, c *client.Client, args []string) error {
		return about(args[0], run(ctx, c, args[0]))
	})
}

// deletion is a command that deletes one object of a kind.
func (p *program) deletion(kind string, cmd *cobra.Command,
	del func(c *client.Client, ctx context.Context, id string) error) *cobra.Command {
	return p.online(cmd, nil, func(ctx context.Context, c *client.Client, args []string) error {
		if err := del(c, ctx, args[0]); err != nil {
			return err
		}
		return p.say("%s %s is deleted", kind, args[0])
	})
}

// oneNode wants exactly one argument, a node.
var oneNode = oneArg("the name or UUID of one node; `ingot node list` shows them")

// oneArg wants one argument, described for those who give none or more.
func oneArg(what string) cobra.PositionalArgs {
	return wants(what, func(args []string) bool { return len(args) == 1 && args[0] != "" })
}

// nodes wants one node or several.
func nodes(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return oneNode(cmd, args)
	}
	return nil
}

// wants wants arguments that are right, and says what they should be.
func wants(what string, right func(args []string) bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if !right(args) {
			return usage("%s wants %s", cmd.CommandPath(), what)
		}
		return nil
	}
}

// completeNames completes the first argument with names that the conductor knows.
func (p *program) completeNames(list func(c *client.Client, ctx context.Context) ([]string, error)) completion {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, noFiles
		}
		// A shell that hangs on Tab is worse than one that completes nothing.
		ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
		defer cancel()
		c, err := p.client(ctx)
		if err != nil {
			return nil, noFiles
		}
		names, _ := list(c, ctx) // for the same reason
		return slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, prefix) }), noFiles
	}
}

// completeNode completes the first argument with the names of nodes.
func (p *program) completeNode(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return p.completeNames((*client.Client).Names)(cmd, args, prefix)
}

// completeWord completes the first argument with words, and the second with the names of nodes.
func (p *program) completeWord(words ...string) completion {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return words, noFiles
		}
		return p.completeNode(cmd, args[1:], prefix)
	}
}
