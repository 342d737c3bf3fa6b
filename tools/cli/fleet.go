package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// fleetRun holds the options of `ingot lab fleet`.
type fleetRun struct {
	fleet.Options
	seed            int64
	target, prepare string
	tries           int
	leave, verbose  bool
}

func (p *program) labFleet() *cobra.Command {
	r := fleetRun{Options: fleet.Options{Nodes: 10, BootURL: "http://127.0.0.1:8080", Boot: 45 * time.Second,
		Write: time.Minute, Step: 5 * time.Second, Trouble: 20 * time.Second}, seed: 1, target: "active", tries: 3}
	return p.online(&cobra.Command{
		Use: "fleet", Short: "Simulate many machines for a running ingotd",
		Long: `Simulate machines for an ingotd on this host, which are enrolled, inspected, cleaned and deployed as real ones are: each has a controller
that speaks IPMI at an address of its own (127.77.0.1 and on, port 6230), boots over HTTP from ingotd, and runs the real agent's session.
What the agent's steps do takes time and touches nothing. No root, no network but loopback.

Prepare an ingotd and start it, then the fleet in another terminal:

  ingot lab fleet --prepare /tmp/fleet
  ingotd --config /tmp/fleet/ingotd.yaml
  ingot lab fleet --nodes 100

A line every 10 s, and at SIGUSR1, says how many nodes are in which state. The machines stay until Ctrl-C. A machine needs one file
descriptor for its controller and one for its agent (ulimit -n).`,
	}, []option{
		opt("nodes", &r.Nodes, "number of machines"),
		opt("seed", &r.seed, "of all that is drawn; the same seed gives the same machines"),
		opt("to", &r.target, "state that the nodes are taken to: manageable, available or active; none: no nodes are made",
			append(slices.Clone(fleet.Targets), "none")...),
		opt("tries", &r.tries, "how often a node's failed work is repeated"),
		opt("leave", &r.leave, "end when every node is in the state of --to; fail if some can't get there"),
		opt("boot", &r.Boot, "time from power-on to the boot script; single times are between half and one and a half"),
		opt("write", &r.Write, "time to write an image"),
		opt("step", &r.Step, "time of every other step"),
		opt("die", &r.Rates.Die, "rate (0 to 1) of steps in which the agent dies; the machine stays on"),
		opt("freeze", &r.Rates.Freeze, "rate of steps in which the machine falls silent, with its connections open"),
		opt("lie", &r.Rates.Lie, "rate of power actions that a controller does not do, or denies for a while"),
		opt("fail", &r.Rates.Fail, "rate of power actions after which a controller is busy or silent for a while"),
		opt("slow", &r.Rates.Slow, "share of controllers that take a fortieth of --trouble for each answer"),
		opt("trouble", &r.Trouble, "time that a controller lies or is out of order"),
		opt("boot-url", &r.BootURL, "ingotd's HTTP server for booting machines; of several conductors all, separated by commas").freeText(),
		opt("prepare", &r.prepare, "write the configuration and the ramdisk of an ingotd into this folder, and end"),
		opt("verbose", &r.verbose, "say what fails"),
	}, func(ctx context.Context, c *client.Client, _ []string) error {
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
		defer stop()
		return p.runFleet(ctx, c, r)
	})
}

func (p *program) runFleet(ctx context.Context, c *client.Client, r fleetRun) error {
	if r.target != "none" && !slices.Contains(fleet.Targets, r.target) {
		return usage("--to %q is none of %s, none", r.target, strings.Join(fleet.Targets, ", "))
	}
	if r.Nodes < 1 || r.Nodes > fleet.Most {
		return usage("--nodes %d: a fleet has 1 to %d machines", r.Nodes, fleet.Most)
	}
	if r.Boot <= 0 || r.Write <= 0 || r.Step <= 0 || r.Trouble <= 0 {
		return usage("--boot, --write, --step and --trouble are times of more than 0s")
	}
	if r.prepare != "" {
		if err := absolute(&r.prepare); err != nil {
			return err
		}
		conf, err := fleet.Site{Dir: r.prepare, API: "127.0.0.1:6385", Agents: "127.0.0.1:6386", Boot: 8080}.Write()
		if err != nil {
			return err
		}
		p.note("Next: ingotd --config %s", conf)
		return nil
	}
	level := slog.LevelError
	if r.verbose {
		level = slog.LevelDebug
	}
	r.Log = slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: level}))
	r.Seed = uint64(r.seed)
	if _, err := c.Drivers(ctx); err != nil { // before sockets are opened
		return err
	}
	f, err := fleet.Start(ctx, r.Options)
	if err != nil {
		return err
	}
	var d *fleet.Driver
	if r.target != "none" {
		d = fleet.NewDriver(c, r.target, r.tries, r.Log)
	}
	done := make(chan error, 1)
	work, end := context.WithCancel(ctx)
	go func() { done <- p.driveFleet(work, f, d, r.leave) }()
	err = p.reportFleet(f, d, done)
	end()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil // Ctrl-C
	}
	return errors.Join(err, f.Close())
}

// driveFleet makes the nodes and takes them to their state. It returns then, if it is to leave, or at the end of ctx.
func (p *program) driveFleet(ctx context.Context, f *fleet.Fleet, d *fleet.Driver, leave bool) error {
	began := time.Now()
	if d != nil {
		if err := d.Create(ctx, f.Machines); err != nil {
			return err
		}
		if err := d.Run(ctx); err != nil {
			return err
		}
		failed := d.Failed()
		p.note("%d nodes arrived and %d were given up after %s", len(f.Machines)-len(failed), len(failed),
			time.Since(began).Round(time.Second))
		if len(failed) > 0 {
			names := slices.Sorted(maps.Keys(failed))
			p.note("given up: %s (%s), ...; `ingot node show` says why", names[0], failed[names[0]])
		}
		if leave && len(failed) > 0 {
			return fmt.Errorf("%d nodes did not arrive", len(failed))
		}
	}
	if leave {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// reportFleet writes lines until done.
func (p *program) reportFleet(f *fleet.Fleet, d *fleet.Driver, done <-chan error) error {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGUSR1)
	defer signal.Stop(asked)
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-asked:
		case err := <-done:
			p.note("%s", f.Summary(d))
			return err
		}
		p.note("%s  %s", time.Now().Format(time.TimeOnly), f.Summary(d))
	}
}
