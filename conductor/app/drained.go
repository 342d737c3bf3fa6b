package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/app/drain"
	"github.com/ingot-metal/ingot/conductor/engine"
)

// stopDrain bounds how long a conductor that was told to stop hands its nodes over before it stops: less than service
// managers wait.
const stopDrain = 15 * time.Second

// Times of `ingotd drain`: between two questions, and between two lines about the same nodes.
const (
	drainPoll = 200 * time.Millisecond
	drainLine = 5 * time.Second
)

// drainNodes has the running conductor hand its nodes over, and waits until it has.
func drainNodes(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	c, _ := find([]string{"drain"})
	fl := c.flags(stderr)
	var where site
	where.flags(fl)
	limit := fl.Duration("timeout", 5*time.Minute, "how long to wait until no node is left")
	stop := fl.Bool("stop", false, "stop the conductor when no node is left")
	undo := fl.Bool("undo", false, "have the conductor take nodes again")
	if done, err := parse(fl, args); done || err != nil {
		return err
	}
	switch {
	case fl.NArg() > 0:
		return fmt.Errorf("ingotd drain takes no arguments, only flags; %q is none", fl.Arg(0))
	case *undo && *stop:
		return errors.New("--undo and --stop contradict each other: give one of them")
	case *limit <= 0:
		return errors.New("--timeout is a time of more than 0s")
	}
	cfg, err := where.settings(environ)
	if err != nil {
		return err
	}
	running := drain.NewClient(cfg.DataDir)
	if *undo {
		s, err := running.Undo(ctx)
		if err == nil {
			fmt.Fprintf(stdout, "%s takes nodes again.\n", s.Conductor)
		}
		return err
	}
	if _, err = running.Begin(ctx); errors.Is(err, drain.ErrAlone) {
		return errors.New(
			"this conductor is the only one that takes nodes: none of its nodes can move, and nothing was changed; it can be stopped as it is, agents go on with their plans, and the next start goes on with the rest")
	} else if err != nil {
		return err
	}
	s, err := untilDrained(ctx, running, *limit, stdout)
	if err != nil {
		return err
	}
	if !*stop {
		fmt.Fprintf(stdout, "%s has no nodes: stop it, or let it take nodes again with ingotd drain --undo.\n", s.Conductor)
		return nil
	}
	if err := running.Stop(ctx); err != nil {
		return err
	}
	for inUse(cfg.DataDir) {
		if err := pause(ctx, drainPoll); err != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "%s has stopped.\n", s.Conductor)
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// untilDrained shows how the draining gets on, until no node is left.
func untilDrained(ctx context.Context, running *drain.Client, limit time.Duration,
	stdout io.Writer) (drain.Status, error) {
	const goesOn = "it drains until `ingotd drain --undo` ends that"
	end := time.Now().Add(limit)
	shown, at := -1, time.Time{}
	for {
		s, err := running.Status(ctx)
		if err != nil {
			return s, err
		}
		known, since := s.Rounds+s.Total > 0, time.Since(at)
		if known && s.Left != shown && (s.Over() || since >= time.Second) || since >= drainLine {
			fmt.Fprintf(stdout, "%s: %d of %d nodes left\n", s.Conductor, s.Left, s.Total)
			shown, at = s.Left, time.Now()
		}
		switch {
		case !s.Draining:
			return s, fmt.Errorf("%s takes nodes again, as another command has asked", s.Conductor)
		case s.Over() && s.Left == 0:
			return s, nil
		case s.Over():
			return s, fmt.Errorf(
				"%s keeps %d of %d nodes: %s; while it is stopped nothing is done to them; %s", s.Conductor, s.Stay,
				s.Total, listed(s.Staying, s.Stay), goesOn)
		case time.Now().After(end):
			all := append(s.Busy, s.Staying...)
			why := listed(all, s.Left)
			if s.LastFail != "" {
				why += "; " + s.LastFail
			}
			return s, fmt.Errorf("%s: %d of %d nodes are left after %s: %s; %s", s.Conductor, s.Left, s.Total, limit, why, goesOn)
		}
		if err := pause(ctx, drainPoll); err != nil {
			return s, fmt.Errorf("%d of %d nodes are left, and %s: %w", s.Left, s.Total, goesOn, err)
		}
	}
}

// listed names nodes that are left, those with the same reason together.
func listed(left []engine.Left, all int) string {
	var reasons []string
	names := map[string][]string{}
	for _, l := range left {
		name := l.UUID
		if l.Name != "" {
			name = l.Name
		}
		if names[l.Why] == nil {
			reasons = append(reasons, l.Why)
		}
		names[l.Why] = append(names[l.Why], name)
	}
	var out []string
	for _, why := range reasons {
		out = append(out, strings.Join(names[why], ", ")+" ("+why+")")
	}
	if more := all - len(left); more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, "; ")
}
