// Package manual makes the manual pages of a command line from its table of commands.
//
// There is one page for each command below the program that has commands itself, and one for the program with all
// others, like the pages in docs/reference. The form is roff with the macros of man(7).
package manual

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Pages returns the pages by their file names, such as ingot-node.1. Equal commands and days give equal bytes.
func Pages(root *cobra.Command, day time.Time) map[string][]byte {
	p := writer{day: day, program: root.Name()}
	first, single := p.page(root, root), []*cobra.Command{}
	also := []string{}
	pages := map[string][]byte{}
	for _, c := range root.Commands() {
		switch {
		case !c.IsAvailableCommand():
		case c.HasAvailableSubCommands():
			page := p.page(root, c)
			page.section("COMMANDS")
			for _, sub := range Leaves(c) {
				page.command(sub)
			}
			page.section("SEE ALSO")
			page.line(".BR %s (1)", escape(root.Name()))
			pages[file(c)] = []byte(page.String())
			also = append(also, fmt.Sprintf(".BR %s (1)", escape(title(c))))
		default:
			single = append(single, c)
		}
	}
	if len(single) > 0 {
		first.section("COMMANDS")
	}
	for _, c := range single {
		first.command(c)
	}
	first.section("FLAGS OF ALL COMMANDS")
	first.verbatim(root.PersistentFlags().FlagUsagesWrapped(width))
	first.section("SEE ALSO")
	first.line("%s", strings.Join(also, ",\n"))
	pages[file(root)] = []byte(first.String())
	return pages
}

// Leaves lists the commands below c that do something, in the order of the help.
func Leaves(c *cobra.Command) (all []*cobra.Command) {
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		if sub.Runnable() {
			all = append(all, sub)
		}
		all = append(all, Leaves(sub)...)
	}
	return all
}

// width is that of the lists of flags: a terminal of 80 columns without the margin of a section.
const width = 72

func title(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

func file(c *cobra.Command) string { return title(c) + ".1" }

type writer struct {
	strings.Builder
	day     time.Time
	program string
}

// page begins the page of a command.
func (w *writer) page(root, c *cobra.Command) *writer {
	p := &writer{day: w.day, program: w.program}
	p.line(".TH %s 1 %s %s %s", quoted(strings.ToUpper(title(c))), quoted(p.day.UTC().Format(time.DateOnly)),
		quoted(p.program), quoted(root.Short))
	p.section("NAME")
	p.line("%s \\- %s", escape(title(c)), escape(c.Short))
	p.section("SYNOPSIS")
	p.line(".B %s", escape(c.CommandPath()))
	p.line(".I command")
	if c.Long != "" {
		p.section("DESCRIPTION")
		p.text(c.Long)
	}
	return p
}

func (w *writer) command(c *cobra.Command) {
	w.line(".SS %s", quoted(c.UseLine()))
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	w.text(text)
	if c.Example != "" {
		w.verbatim(c.Example)
	}
	if usages := c.LocalNonPersistentFlags().FlagUsagesWrapped(width); usages != "" {
		w.verbatim(usages)
	}
}

// text writes paragraphs. What is aligned or indented stays as it is.
func (w *writer) text(s string) {
	for paragraph := range strings.SplitSeq(strings.TrimSpace(s), "\n\n") {
		if strings.Contains("\n"+paragraph, "\n ") {
			w.verbatim(paragraph)
			continue
		}
		w.line(".PP")
		w.lines(paragraph)
	}
}

func (w *writer) verbatim(s string) {
	w.line(".PP\n.nf")
	w.lines(strings.TrimRight(s, "\n"))
	w.line(".fi")
}

func (w *writer) lines(s string) {
	for line := range strings.SplitSeq(s, "\n") {
		w.line("%s", escape(line))
	}
}

func (w *writer) section(name string) { w.line(".SH %s", quoted(name)) }

func (w *writer) line(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

// special are the characters that roff takes for something else. A hyphen is one for breaking words, not the one to
// type.
var special = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", "\\(ga", "^", `\(ha`, "~", `\(ti`)

// escape makes text of a line: a period in front would make it a request, an apostrophe too.
func escape(s string) string {
	s = special.Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}

// quoted is one argument of a request.
func quoted(s string) string { return `"` + strings.ReplaceAll(special.Replace(s), `"`, `\(dq`) + `"` }
