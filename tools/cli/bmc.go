package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/tools/enrol"
	"github.com/ingot-metal/ingot/tools/enrol/discover"
)

func (p *program) bmcCommand() *cobra.Command {
	return group(&cobra.Command{Use: "bmc", Short: "Controllers of machines"}, p.bmcDiscover(), p.bmcProbe(),
		p.bmcMove(), p.bmcPassword())
}

// discovery has the flags of a discovery.
type discovery struct {
	file               string
	enrol, yes         bool
	user, passwordFile string
	verifyCA, class    string
}

func (p *program) bmcDiscover() *cobra.Command {
	var d discovery
	return local(&cobra.Command{
		Use:   "discover ADDRESS | NETWORK | RANGE ... | -f FILE",
		Short: "Find controllers with Redfish, and enrol their machines",
		Long: `Find controllers with Redfish: each address is asked who it is, without credentials, and the table has its vendor and the fingerprint of its
certificate.

With --enrol, the machines behind those that were found are enrolled. For that, user name and password go to each of them, so look at the table
first: keep it in a file, strike out lines that are not yours, and give it with --file. A fingerprint in the file is accepted by that, and a
controller with another certificate gets no password. Without a file you are asked once, or say --yes.

A machine's node gets the UUID that its controller reports, and the serial number as its name. What is enrolled already is left alone.`,
		Example: `  ingot bmc discover 192.0.2.0/24 198.51.100.10-198.51.100.50 > controllers
  ingot bmc discover -f controllers --enrol --bmc-user admin --bmc-password-file pw`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}, []option{
		opt("file,f", &d.file, "file with an address, network or range in each line, or the table of an earlier discovery; - is standard input"),
		opt("enrol", &d.enrol, "enrol the machines behind the controllers"),
		opt("bmc-user", &d.user, "user name at the controllers"),
		opt("bmc-password-file", &d.passwordFile, "file with the password"),
		opt("yes,y", &d.yes, "do not ask whether the controllers that were found may have the password"),
		opt("verify-ca", &d.verifyCA, "redfish_verify_ca of the nodes: true, false or a file in the conductor's folder (default: the certificate that was found)").freeText(),
		opt("resource-class", &d.class, "resource class of the nodes"),
	}, func(ctx context.Context, args []string) error {
		targets, err := p.targets(d.file, args)
		if err != nil {
			return err
		}
		if !d.enrol && (d.user != "" || d.passwordFile != "" || d.verifyCA != "" || d.class != "") {
			return usage("without --enrol no credentials are needed")
		}
		if d.enrol && d.user == "" {
			return usage("--enrol needs --bmc-user")
		}
		found := discover.Find(ctx, targets)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !d.enrol {
			return p.showControllers(found, len(targets) == 1)
		}
		return p.enrolFound(ctx, d, targets, found)
	})
}

// targets are those of the command line and of a file.
func (p *program) targets(file string, args []string) (all []discover.Target, err error) {
	for _, word := range args {
		some, err := discover.Parse(word)
		if err != nil {
			return nil, usage("%v", err)
		}
		all = append(all, some...)
	}
	if file != "" {
		data, err := p.read(file)
		if err != nil {
			return nil, fmt.Errorf("read the list: %w", err)
		}
		some, err := discover.ReadTargets(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, some...)
	}
	if len(all) == 0 {
		return nil, usage("where? Name addresses, networks (192.0.2.0/24) or ranges (192.0.2.10-192.0.2.50), or a --file")
	}
	return all, nil
}

// showControllers prints what was found. Addresses where nothing listens are left out, unless one alone was asked for.
func (p *program) showControllers(found []discover.Controller, all bool) error {
	var shown []discover.Controller
	for i := range found {
		if all || !found[i].Absent() {
			shown = append(shown, found[i])
		}
	}
	if p.values() {
		return p.print(shown)
	}
	if len(shown) == 0 {
		p.note("Nothing answers at any of %d addresses.", len(found))
		return nil
	}
	return p.table([]string{"ADDRESS", "FINGERPRINT", "VENDOR", "PRODUCT", "REDFISH", "FAULT"},
		mapped(shown, func(c *discover.Controller) []string {
			return []string{c.Address, cmp.Or(c.Fingerprint, "-"), cmp.Or(c.Vendor, "-"), cmp.Or(c.Product, "-"),
				cmp.Or(c.Version, "-"), cmp.Or(c.Fault, "-")}
		}))
}

// enrolFound enrols the machines of the controllers that may have the password.
func (p *program) enrolFound(ctx context.Context, d discovery, targets []discover.Target,
	found []discover.Controller) error {
	c, err := p.client(ctx)
	if err != nil {
		return err
	}
	good, unseen := 0, 0
	for i := range found {
		if found[i].Fault == "" {
			good++
			if targets[i].Fingerprint == "" {
				unseen++
			}
		}
	}
	if unseen > 0 && !d.yes {
		if _, ok := isTerminal(p.stdin); !ok {
			return usage("%d of %d controllers are in no list that you have seen: give the table of a discovery with --file, or say --yes",
				unseen, good)
		}
		if err := p.showControllers(found, false); err != nil {
			return err
		}
		if err := p.confirm(false, fmt.Sprintf("May these %d controllers have the password?", good)); err != nil {
			return err
		}
	}
	password, err := p.secret("", d.passwordFile, "Password at the controllers: ")
	if err != nil {
		return err
	}
	there, err := enrolledNodes(ctx, c)
	if err != nil {
		return err
	}
	account := discover.Account{User: d.user, Password: password}
	all, nodes := candidates(ctx, d, account, found)
	failed := 0
	for i := range all {
		if all[i].Error == "" && ctx.Err() == nil {
			enrolOne(ctx, c, there, nodes[i], &all[i])
		}
		if all[i].Error != "" {
			failed++
		}
	}
	if err := p.showEnrolled(all); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.New("interrupted; the same command goes on")
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d failed", failed, len(all))
	}
	return nil
}

// candidates asks the controllers for their machines: a row for each, and the node to create.
func candidates(ctx context.Context, d discovery, a discover.Account,
	found []discover.Controller) (all []enrolled, nodes []client.NewNode) {
	first := map[string]int{} // row of a UUID
	add := func(e enrolled, n client.NewNode, err error) {
		if err != nil {
			e.Result, e.Error = "failed", err.Error()
		}
		all, nodes = append(all, e), append(nodes, n)
	}
	for i := range found {
		ctl := &found[i]
		if ctl.Absent() {
			continue
		}
		e := enrolled{From: ctl.Address, Name: "-"}
		if ctl.Fault != "" {
			add(e, client.NewNode{}, errors.New(ctl.Fault))
			continue
		}
		machines, err := discover.Machines(ctx, ctl, a)
		if err != nil {
			add(e, client.NewNode{}, err)
			continue
		}
		for _, m := range machines {
			n, err := newNode(d, a, ctl, m)
			row := e
			row.Name, row.UUID = n.Name, n.UUID
			if at, twice := first[n.UUID]; twice && err == nil {
				err = fmt.Errorf("%s reports the same UUID; the firmware of one of them has a made-up one: enrol them by ingot node create",
					all[at].From)
				all[at].Result, all[at].Error = "failed", strings.Replace(err.Error(), all[at].From, ctl.Address, 1)
			} else if err == nil {
				first[n.UUID] = len(all)
			}
			add(row, n, err)
		}
	}
	return all, nodes
}

// unfit are characters that a node's name can't have.
var unfit = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// newNode is the node for a machine that a controller reports.
func newNode(d discovery, a discover.Account, ctl *discover.Controller, m discover.Machine) (client.NewNode, error) {
	n := client.NewNode{Driver: "redfish", ResourceClass: d.class,
		Name: strings.Trim(unfit.ReplaceAllString(cmp.Or(m.Serial, ctl.Address), "-"), "-."),
		DriverInfo: map[string]any{"redfish_address": ctl.Address, "redfish_username": a.User,
			"redfish_password": a.Password, "redfish_verify_ca": cmp.Or(d.verifyCA, ctl.PEM)},
		Properties: map[string]any{}}
	if m.SystemID != "" {
		n.DriverInfo["redfish_system_id"] = m.SystemID
	}
	id, err := uuid.Parse(m.UUID)
	if err != nil || id == uuid.Nil || id == uuid.Max {
		return n, errors.New("it reports no UUID of its machine, by which it would be found again: enrol it by ingot node create")
	}
	n.UUID = id.String()
	if d.verifyCA == "" && ctl.Named != nil {
		return n, errors.New("its certificate is not made for this address, so the conductor would refuse it: give it another, or say --verify-ca false")
	}
	return n, nil
}

// enrolOne creates a node, unless the machine has one.
func enrolOne(ctx context.Context, c *client.Client, there *enrolledFleet, n client.NewNode, e *enrolled) {
	if node := there.names[n.UUID]; node != nil {
		e.Name, e.Result = label(node), "there already"
		has := enrol.Controller(node.Driver, node.DriverInfo)
		if has != enrol.Controller("redfish", n.DriverInfo) {
			e.Result, e.Error = "failed", fmt.Sprintf("its node has the controller %s: if that has moved, correct the node with ingot node set", has)
		}
		return
	}
	node, err := there.find(n)
	switch {
	case err != nil:
		e.Result, e.Error = "failed", err.Error()
		return
	case node != nil:
		e.Name, e.UUID, e.Result = label(node), node.UUID, "there already"
		return
	}
	made, err := create(ctx, c, n, nil)
	if err != nil {
		e.Result, e.Error = "failed", err.Error()
		return
	}
	e.UUID, e.Result = made.UUID, "created"
}
