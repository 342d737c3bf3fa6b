package demo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/tools/lab"
)

// Times of the disturbances: a conductor may act for 10 s after its last sign of life, and is replaced after 15.
const (
	startAgain = 25 * time.Second // after its end, as a service manager does
	frozen     = 25 * time.Second
	changeTime = time.Minute // that a change of hands may take

	imagePort = 8080 // of the conductors, for images
)

// any asks the conductors in turn until one answers, and not those that are left out.
func (d *demo) any(ctx context.Context, ask func(context.Context, *client.Client) error) error {
	var errs []error
	for range 20 {
		errs = nil
		for _, c := range d.status.Conductors {
			api, err := client.New(c.URL, nil)
			if err != nil {
				return err
			}
			short, cancel := context.WithTimeout(ctx, 3*time.Second) // one that stands still takes the request
			err = ask(short, api)
			cancel()
			if err == nil || ctx.Err() != nil {
				return err
			}
			errs = append(errs, err)
		}
		<-time.After(time.Second)
	}
	return errors.Join(errs...)
}

func (d *demo) current(ctx context.Context) (n *rest.Node, err error) {
	err = d.any(ctx, func(ctx context.Context, c *client.Client) error {
		n, err = c.Node(ctx, machine)
		return err
	})
	return n, err
}

// elsewhere is the address of an image at a conductor that does not own the node: the owner is going to be killed.
func (d *demo) elsewhere(ctx context.Context, image string) (string, error) {
	n, err := d.current(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(names(true), func(name string) bool { return name != string(n.Conductor) })
	return fmt.Sprintf("http://10.77.0.%d:%d/images/%s", 1+i, imagePort, image), nil
}

// process returns the process of a conductor.
func (d *demo) process(ctx context.Context, name string) (int, error) {
	s, err := lab.Query(ctx, Name)
	if err != nil {
		return 0, err
	}
	for _, c := range s.Conductors {
		if strings.TrimSuffix(filepath.Base(c.Log), ".log") == name && c.PID > 0 {
			return c.PID, nil
		}
	}
	return 0, fmt.Errorf("%s does not run", name)
}

// until waits until the node is as wanted.
func (d *demo) until(ctx context.Context, limit time.Duration, what string, ok func(n *rest.Node) bool) (*rest.Node,
	error) {
	for end := time.Now().Add(limit); ; {
		n, err := d.current(ctx)
		if err != nil {
			return nil, err
		}
		if n.ProvisionState == "deploy failed" {
			return nil, fmt.Errorf("the deployment has failed: %s", n.LastError)
		}
		if ok(n) {
			return n, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%s: not within %s; the node is %s with %s", what, limit, n.ProvisionState, n.Conductor)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// disturbed carries out a deployment during which the database is restarted, its owner is killed, and the next owner
// stands still for longer than it may.
func (d *demo) disturbed(ctx context.Context, why string, args ...string) error {
	begun := time.Now()
	at := func() string { return fmt.Sprintf("%5.1f s", time.Since(begun).Seconds()) }
	if err := d.run(ctx, why, append(args, "--no-wait")...); err != nil {
		return err
	}
	n, err := d.until(ctx, bootWait, "the image is being written", func(n *rest.Node) bool {
		step, _ := n.DeployStep["step"].(string)
		return step == "write_image" && n.ProvisionState == "wait call-back"
	})
	if err != nil {
		return err
	}
	first := string(n.Conductor)
	pid, err := d.process(ctx, first)
	if err != nil {
		return err
	}
	d.say("  %s  the image is being written. PostgreSQL is restarted.", at())
	if err := d.restartDatabase(ctx); err != nil {
		return err
	}
	d.say("  %s  the node's conductor, %s, gets SIGKILL.", at(), first)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return err
	}
	if n, err = d.until(ctx, changeTime, "another conductor takes the node", func(n *rest.Node) bool {
		return string(n.Conductor) != first
	}); err != nil {
		return err
	}
	second := string(n.Conductor)
	if pid, err = d.process(ctx, second); err != nil {
		return err
	}
	d.say("  %s  %s has taken it over, and stands still for %s (SIGSTOP).", at(), second, frozen)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return err
	}
	thaw := time.After(frozen)
	n, err = d.until(ctx, changeTime, "a third conductor takes the node", func(n *rest.Node) bool {
		return string(n.Conductor) != second
	})
	if err == nil {
		d.say("  %s  %s has taken it over.", at(), n.Conductor)
	}
	<-thaw
	if kerr := unix.Kill(pid, unix.SIGCONT); kerr != nil {
		return errors.Join(err, kerr)
	}
	if err != nil {
		return err
	}
	d.say("  %s  %s goes on, finds that it has been replaced, writes nothing and ends.", at(), second)
	if n, err = d.until(ctx, bootWait, "the node is active", func(n *rest.Node) bool {
		return n.ProvisionState == "active"
	}); err != nil {
		return err
	}
	d.say("  %s  the node is active with %s.", at(), n.Conductor)
	return d.hands(ctx)
}

// restartDatabase ends PostgreSQL, which the lab starts again, and returns when it is back.
func (d *demo) restartDatabase(ctx context.Context) error {
	s, err := lab.Query(ctx, Name)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(s.Services, func(v lab.ServiceStatus) bool { return v.What == lab.Database && v.PID > 0 })
	if i < 0 {
		return errors.New("PostgreSQL does not run")
	}
	before := s.Services[i].PID
	if err := unix.Kill(before, unix.SIGINT); err != nil {
		return err
	}
	for end := time.Now().Add(changeTime); ; {
		if s, err = lab.Query(ctx, Name); err != nil {
			return err
		}
		if pid := s.Services[i].PID; pid > 0 && pid != before {
			_, err = d.current(ctx)
			return err
		}
		if time.Now().After(end) {
			return errors.New("PostgreSQL is not back within a minute")
		}
		<-time.After(100 * time.Millisecond)
	}
}

// hands shows who had the node, and that the image was written once.
func (d *demo) hands(ctx context.Context) error {
	var lines []client.Event
	if err := d.any(ctx, func(ctx context.Context, c *client.Client) (err error) {
		lines, err = c.History(ctx, machine)
		return err
	}); err != nil {
		return err
	}
	d.say("\n# The history says who had the node:")
	for _, l := range slices.Backward(lines) {
		if l.Type == "conductor" {
			d.say("  %s  %s", l.CreatedAt.Format(time.TimeOnly), l.Event)
		}
	}
	return nil
}
