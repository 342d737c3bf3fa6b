package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/tools/enrol/discover"
	"github.com/ingot-metal/ingot/tools/enrol/probe"
)

// probing has the flags of a probe.
type probing struct {
	user, passwordFile string
	save, from         string
	private            bool
}

func (p *program) bmcProbe() *cobra.Command {
	var f probing
	return local(&cobra.Command{
		Use:   "probe ADDRESS | --from FILE",
		Short: "Find out what a controller with Redfish is and can do",
		Long: `Find out what a controller with Redfish is, what it can do, and which rows of the table of controllers that differ apply to it; and show each request
with its time and answer. Everything is only read. Without a user name only the service root is read.

The password goes to the controller at this address, whatever its certificate: look at the fingerprint that "ingot bmc discover" shows before.

With --save, the answers are written to a file that you can add to a report of a fault. Users, passwords, licences, addresses, names of hosts, UUIDs
and serial numbers are replaced, unless you ask for them with --private; look into it before you give it away, since vendors have properties of
their own. --from shows the same of such a file.`,
		Example: `  ingot bmc probe 192.0.2.10
  INGOT_BMC_PASSWORD=secret ingot bmc probe 192.0.2.10 --bmc-user admin --save r640.zip
  ingot bmc probe --from r640.zip`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, []option{
		opt("bmc-user", &f.user, "user name at the controller"),
		opt("bmc-password-file", &f.passwordFile, "file with the password, or take $INGOT_BMC_PASSWORD"),
		opt("save", &f.save, "file to write the answers to, as a zip archive; it must not exist"),
		opt("private", &f.private, "leave what is private in the file of --save"),
		opt("from", &f.from, "file of an earlier --save, to be looked at instead of a controller"),
	}, func(ctx context.Context, args []string) error {
		switch {
		case len(args) > 1, (len(args) == 1) == (f.from != ""):
			return usage("name one address, or a file with --from")
		case f.from != "" && (f.user != "" || f.save != ""):
			return usage("--from needs no user name and writes no file")
		case f.private && f.save == "":
			return usage("--private is for --save")
		}
		if f.from != "" {
			data, err := p.read(f.from)
			if err != nil {
				return err
			}
			a, err := probe.Read(data)
			if err != nil {
				return fmt.Errorf("%s: %w", f.from, err)
			}
			r, _ := probe.Run(ctx, a, len(a.Calls) > 1)
			r.Calls = a.Calls // with the times of then
			return p.showProbe(r)
		}
		return p.probe(ctx, f, args[0])
	})
}

func (p *program) probe(ctx context.Context, f probing, address string) error {
	targets, err := discover.Parse(address)
	if err != nil || len(targets) != 1 {
		return usage("%s: %v", address, cmp.Or(err, errors.New("name one address")))
	}
	var account *discover.Account
	if f.user != "" {
		password := p.getenv("INGOT_BMC_PASSWORD")
		if f.passwordFile != "" {
			if password, err = p.secret("", f.passwordFile, ""); err != nil {
				return err
			}
		}
		account = &discover.Account{User: f.user, Password: password}
	}
	found := discover.Find(ctx, targets)[0]
	if found.Fault != "" {
		return fmt.Errorf("%s: %s", address, found.Fault)
	}
	g, err := found.Open(account)
	if err != nil {
		return err
	}
	defer g.Close()
	r, answers := probe.Run(ctx, g, account != nil)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if account != nil && r.Refused() {
		return fmt.Errorf("%s: wrong user name or password, or an account without the right to read", address)
	}
	if f.save != "" {
		if err := saveProbe(f, probe.Archive{Calls: r.Calls, Answers: answers}); err != nil {
			return err
		}
		p.note("%d answers are in %s.", len(answers), f.save)
	}
	return p.showProbe(r)
}

// saveProbe writes an archive, which only its owner may read.
func saveProbe(f probing, a probe.Archive) error {
	if !f.private {
		var err error
		if a, err = probe.Redact(a); err != nil {
			return err
		}
	}
	to, err := os.OpenFile(f.save, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: choose another name", f.save)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(a.Write(to), to.Close()); err != nil {
		return errors.Join(err, os.Remove(f.save))
	}
	return nil
}

// showProbe prints a report.
func (p *program) showProbe(r *probe.Report) error {
	if p.values() {
		return p.print(r)
	}
	rows := [][]string{{"vendor", cmp.Or(r.Vendor, "-")}, {"product", cmp.Or(r.Product, "-")},
		{"Redfish", cmp.Or(r.Version, "-")}}
	for _, m := range r.Machines {
		rows = append(rows, []string{"machine", strings.TrimSpace(m.Path + "  " + m.Manufacturer + " " + m.Model)},
			[]string{"controller's firmware", cmp.Or(m.Firmware, "-")})
		rows = append(rows, listed("can", m.Can)...)
		rows = append(rows, listed("has not", m.Lacks)...)
		rows = append(rows, listed("row", m.Rows)...)
	}
	rows = append(rows, listed("note", r.Notes)...)
	if err := p.table([]string{"WHAT", "VALUE"}, rows); err != nil {
		return err
	}
	fmt.Fprintln(p.stdout)
	return p.table([]string{"MS", "STATUS", "BYTES", "PATH", "FAULT"},
		mapped(r.Calls, func(c *probe.Call) []string {
			return []string{fmt.Sprint(c.Millis), fmt.Sprint(c.Status), fmt.Sprint(c.Bytes), c.Path,
				cmp.Or(c.Fault, "-")}
		}))
}

// listed are rows of one name.
func listed(name string, all []string) (rows [][]string) {
	for _, v := range all {
		rows = append(rows, []string{name, v})
	}
	return rows
}
