// Package ipa is the agent under a real Ironic: it speaks the protocol of ironic-python-agent.
//
// It finds its node by lookup, sends heartbeats, and takes commands over HTTPS on port 9999 with the token and the
// certificate of this boot. A command becomes steps of the agent's own table, run by the same runner as a conductor's
// plan; nothing here knows disks. write_image commits the disk before it has succeeded: Ironic has no later call that
// every deployment makes.
//
// A worker that died leaves its token, certificate and results to the next one, for the conductor accepts no others in
// the same boot.
package ipa

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/agent/ipa/command"
	"github.com/ingot-metal/ingot/agent/ipa/ironic"
	"github.com/ingot-metal/ingot/agent/ipa/steps"
	"github.com/ingot-metal/ingot/agent/rescue"
	"github.com/ingot-metal/ingot/agent/step"
	"golang.org/x/sync/errgroup"
)

// system is the part of the machine that the agent itself uses; steps declare their own.
type system interface {
	SetClock(t time.Time) error
	// Sync flushes everything that was written.
	Sync()
	// End flushes and unmounts everything it can and ends this boot: "reboot" or "off". It returns only if that failed.
	End(ctx context.Context, how string) error
	// Settle waits, for a limited time, until the drivers have initialized their devices.
	Settle(ctx context.Context) error
}

// network is the part of the network that the agent uses.
type network interface {
	// Wait returns when there is an address and a route to Ironic.
	Wait(ctx context.Context) error
	// Rotate prefers another link, if there is a suitable one.
	Rotate()
	// Leave releases leases and takes links down.
	Leave(ctx context.Context) error
	// Summary lists the machine's addresses for the console.
	Summary() string
}

// Options of an Agent.
type Options struct {
	Config  Config
	Version string
	BootID  string // the kernel's random name of this boot
	Steps   []step.Step
	MACs    func() []string // addresses of the present interfaces
	System  system
	Network network
	Rescue  *rescue.Host
	Logs    func() ([]byte, error) // a compressed archive of the machine's logs
	Roots   *x509.CertPool         // for Ironic's API; nil: the system's
	// Find asks multicast DNS for the URL of an OpenStack service by its type; nil: there is none.
	Find   func(ctx context.Context, service string) (string, error)
	State  string       // file for the state of this boot; empty: none is kept
	Reason string       // why the last worker of this boot ended
	Log    *slog.Logger // nil is silent
	// Status receives lines for the console; nil: none.
	Status func(format string, args ...any)
	// Progress receives the progress of the running step for the console; nil: none.
	Progress func(name string, p step.Progress)
	// Clock returns the time; nil: time.Now.
	Clock func() time.Time
	// Patience is the unit of all pauses; zero: a second.
	Patience time.Duration
}

// Agent is one agent in one boot of its machine.
type Agent struct {
	o        Options
	log      *slog.Logger
	api      *ironic.Client
	state    *state
	settings ironic.Settings
	runner   *steps.Runner
	beat     chan struct{} // a heartbeat is due at once
	saving   sync.Mutex
}

// New returns an agent.
func New(o Options) (*Agent, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Patience = cmp.Or(o.Patience, time.Second)
	if o.Status == nil {
		o.Status = func(string, ...any) {}
	}
	if o.Progress == nil {
		o.Progress = func(string, step.Progress) {}
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	a := &Agent{o: o, log: o.Log, beat: make(chan struct{}, 1)}
	a.state = loadState(o.State, o.BootID, o.Log)
	var err error
	a.runner, err = steps.New(steps.Options{Table: o.Steps, Version: o.Version, Machine: o.System, Rescue: o.Rescue,
		Guard: o.Config.Guard, InjectFiles: o.Config.InjectFiles, Log: o.Log, Status: o.Status, Progress: o.Progress},
		a.state.Done)
	if err != nil {
		return nil, err
	}
	return a, nil
}

// errOver ends the agent's work without an error: nothing is to be done until the machine is switched off.
var errOver = errors.New("the agent has nothing more to do")

// Run serves Ironic until ctx ends or the boot is over.
func (a *Agent) Run(ctx context.Context) error {
	a.log.Info("agent started under Ironic", "version", a.o.Version)
	a.o.Status("waiting for the network")
	if err := a.o.Network.Wait(ctx); err != nil {
		return err
	}
	a.o.Status("network: %s", a.o.Network.Summary())
	err := a.serve(ctx)
	if errors.Is(err, errOver) {
		<-ctx.Done() // exiting would only cause a restart
		return nil
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (a *Agent) serve(ctx context.Context) error {
	if a.state.Rescue != nil {
		if err := a.o.Rescue.Restore(a.state.Rescue); err != nil {
			a.log.Error("rescue could not be reopened: logins are not possible", "err", err)
		}
		return errOver
	}
	uuid, err := a.inspect(ctx)
	if err != nil {
		return err
	}
	if len(a.o.Config.APIs) == 0 {
		a.o.Status("the inventory was handed in; nothing more to do")
		return errOver
	}
	if err := a.connect(ctx); err != nil {
		return err
	}
	if err := a.lookup(ctx, uuid); err != nil {
		return err
	}
	host, err := a.advertised()
	if err != nil {
		return err
	}
	if a.state.Pair.Cert == nil || a.state.Host != host {
		if a.state.Pair, err = newPair(host, a.o.Clock()); err != nil {
			return err
		}
		a.state.Host = host
	}
	a.save(nil)
	conf, err := a.state.Pair.config(max(tlsVersions[a.o.Config.TLSMin], tlsVersions[a.settings.TLSMin]))
	if err != nil {
		return err
	}
	at := ":" + strconv.Itoa(int(a.o.Config.Port))
	if a.o.Config.Listen.IsValid() {
		at = net.JoinHostPort(a.o.Config.Listen.String(), strconv.Itoa(int(a.o.Config.Port)))
	}
	ln, err := net.Listen("tcp", at)
	if err != nil {
		return fmt.Errorf("listen for the conductor's commands: %w", err)
	}
	return a.work(ctx, ln, func(ctx context.Context, s *command.Server) error { return s.Serve(ctx, ln, conf) }, host)
}

// work serves commands and sends heartbeats until one of them ends.
func (a *Agent) work(ctx context.Context, ln net.Listener,
	serve func(context.Context, *command.Server) error, host string) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// Commands end with the worker, not with the service: one of them ends that.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	port := a.o.Config.PublicPort
	if t, ok := ln.Addr().(*net.TCPAddr); ok && a.o.Config.PublicPort == a.o.Config.Port {
		port = uint16(t.Port)
	}
	callback := "https://" + net.JoinHostPort(host, strconv.Itoa(int(port)))
	var server *command.Server
	server = command.New(life, command.Options{Token: a.state.Token, Version: a.o.Version, Started: a.o.Clock(),
		Log: a.log, Commands: a.commands(stop), Ended: a.pulse,
		Changed: func() { a.save(server.Results()) }})
	server.Restore(a.state.Commands, "the agent died while it ran ("+
		cmp.Or(a.o.Reason, "the agent was started again")+"); try again, and report it as a bug of the agent")
	a.o.Status("serving Ironic's commands at %s", callback)
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serve(gctx, server) })
	group.Go(func() error { return a.heartbeats(gctx, callback) })
	err := group.Wait()
	end()
	server.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, errOver) {
		return cause
	}
	return err
}

// pulse has the next heartbeat sent soon.
func (a *Agent) pulse() {
	select {
	case a.beat <- struct{}{}:
	default:
	}
}

// connect finds the API and asks for its version and clock.
func (a *Agent) connect(ctx context.Context) error {
	urls := a.o.Config.APIs
	if len(urls) > 0 && urls[0] == MulticastDNS {
		at, err := a.find(ctx, "baremetal")
		if err != nil {
			return err
		}
		urls = []string{at}
	}
	a.api = ironic.New(ironic.Options{URLs: urls, RequestID: a.o.Config.RequestID, Roots: a.o.Roots,
		Insecure: a.o.Config.Insecure, TLSMin: tlsVersions[a.o.Config.TLSMin]})
	return a.retried(ctx, "Ironic does not answer", func() error {
		minor, clock, err := a.api.Discover(ctx)
		if err != nil {
			return err
		}
		a.setClock(clock)
		if minor < ironic.CertificateVersion {
			return &final{fmt.Errorf("this Ironic's API ends at version 1.%d, and the agent needs 1.%d (Ironic 17.0): "+
				"use a newer Ironic, or its own ramdisk", minor, ironic.CertificateVersion)}
		}
		return nil
	})
}

// largeOffset is a clock error with which the conductor would find the agent's certificate expired or not yet valid.
const largeOffset = 30 * time.Minute

// setClock sets a clock that is far off, such as one with an empty battery, by the API's own.
func (a *Agent) setClock(t time.Time) {
	if t.IsZero() || a.o.Clock().Sub(t).Abs() < largeOffset {
		return
	}
	if err := a.o.System.SetClock(t); err != nil {
		a.log.Warn("the clock is wrong and can't be set", "err", err)
		return
	}
	a.log.Info("the clock was wrong and has been set by Ironic's", "time", t)
}

// find asks multicast DNS until a service answers.
func (a *Agent) find(ctx context.Context, service string) (at string, err error) {
	if a.o.Find == nil {
		return "", errors.New("multicast DNS is not available here: give a URL in ipa-api-url")
	}
	err = a.retried(ctx, "no Ironic answers to multicast DNS", func() (err error) {
		at, err = a.o.Find(ctx, service)
		return err
	})
	return at, err
}

// final is an error that another try does not mend.
type final struct{ error }

func (f *final) Unwrap() error { return f.error }

// Pauses between tries, in units of Patience.
const (
	firstPause   = 1
	longestPause = 60
)

// lockedPauses are those while the node is locked.
var lockedPauses = []time.Duration{5, 10, 30}

// retried tries until it succeeds or ipa-lookup-timeout is over; then the worker ends, and the next one starts anew.
func (a *Agent) retried(ctx context.Context, status string, try func() error) error {
	deadline := time.Now().Add(a.o.Config.Lookup / time.Second * a.o.Patience)
	pause, locked := time.Duration(firstPause), 0
	for {
		err := try()
		var f *final
		if err == nil || errors.As(err, &f) || ctx.Err() != nil {
			return err
		}
		a.log.Warn("Ironic could not be asked, trying again", "err", err)
		a.o.Status("%s: %v", status, err)
		wait := pause/2 + rand.N(pause) // a rack that starts at once must not ask in step
		if ironic.Conflict(err) {
			wait = lockedPauses[min(locked, len(lockedPauses)-1)]
			locked++
		}
		if time.Now().Add(wait * a.o.Patience).After(deadline) {
			return fmt.Errorf("given up after %s: %w", a.o.Config.Lookup, err)
		}
		if err := step.Sleep(ctx, max(wait*a.o.Patience, a.o.Patience/2)); err != nil {
			return err
		}
		if pause = min(2*pause, longestPause); pause > 8*firstPause {
			a.o.Network.Rotate()
		}
	}
}

// minToken is the length below which a token is none.
const minToken = 32

// lookup finds the node and the token of this boot.
func (a *Agent) lookup(ctx context.Context, uuid string) error {
	if uuid == "" {
		uuid = a.state.Node
	}
	err := a.retried(ctx, "Ironic does not know this machine yet", func() (err error) {
		var n ironic.Node
		n, a.settings, err = a.api.Lookup(ctx, a.o.MACs(), uuid)
		a.state.Node = cmp.Or(n.UUID, a.state.Node)
		return err
	})
	if err != nil {
		return err
	}
	given := a.settings.Token
	own := cmp.Or(a.state.Token, string(a.o.Config.Token))
	switch {
	case len(given) >= minToken && given != ironic.Masked:
		own = given
	case len(own) < minToken:
		// Another agent of this boot has it, or an impostor: nothing may be served.
		a.o.Status("the token of this boot was given out before: reboot the machine through Ironic")
		a.log.Error("Ironic has given out this boot's token before, and this agent does not have it: it serves nothing. " +
			"Reboot the node through Ironic; if it happens again, look for another machine with this one's addresses")
		return errors.Join(errOver, a.o.Network.Leave(ctx))
	}
	a.state.Token = own
	a.o.Status("this machine is node %s of Ironic", a.state.Node)
	a.log.Info("node found", "node", a.state.Node, "heartbeat_timeout", a.settings.HeartbeatTimeout)
	return nil
}

// advertised is the host under which the conductor reaches this machine.
func (a *Agent) advertised() (string, error) {
	if h := a.o.Config.Advertised; h != "" {
		return h, nil
	}
	if a.state.Host != "" {
		return a.state.Host, nil // an address that changes in this boot would be refused
	}
	var err error
	for _, at := range a.o.Config.APIs {
		if at == MulticastDNS {
			at = a.api.First()
		}
		// No packet is sent: the kernel chooses the route and with it the address.
		var c net.Conn
		if c, err = net.Dial("udp", hostPort(at)); err != nil {
			continue
		}
		c.Close()
		if u, ok := c.LocalAddr().(*net.UDPAddr); ok {
			return u.IP.String(), nil
		}
	}
	return "", fmt.Errorf("find the address from which Ironic is reached: %w; set ipa-advertise-host", err)
}

// Heartbeats come at this fraction of their timeout, at random.
const (
	beatFrom = 0.3
	beatTo   = 0.6
	// leastBetween is the shortest time between two heartbeats, and the first pause after a failed one; of Patience.
	leastBetween = 5
)

// heartbeats sends heartbeats until ctx ends.
func (a *Agent) heartbeats(ctx context.Context, callback string) error {
	b := ironic.Beat{CallbackURL: callback, Version: a.o.Version, Token: a.state.Token, VerifyCA: a.state.Pair.pem()}
	for {
		timeout := time.Duration(a.settings.HeartbeatTimeout * float64(a.o.Patience))
		pause := time.Duration(float64(timeout) * (beatFrom + (beatTo-beatFrom)*rand.Float64()))
		err := a.api.Heartbeat(ctx, a.state.Node, b)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			// Refusals too: the conductor may be restarting, or in the middle of a reboot of this machine.
			a.log.Warn("heartbeat failed, trying again", "err", err)
			a.o.Status("Ironic does not take the heartbeat: %v", err)
			pause = leastBetween*a.o.Patience + rand.N(leastBetween*a.o.Patience)
		}
		if step.Sleep(ctx, min(pause, leastBetween*a.o.Patience)) != nil {
			return nil
		}
		select {
		case <-a.beat:
		case <-time.After(max(0, pause-leastBetween*a.o.Patience)):
		case <-ctx.Done():
			return nil
		}
	}
}
