package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/api"
	"github.com/ingot-metal/ingot/conductor/app/drain"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/console"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/engine/program"
	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/guard/dial"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/power/fake"
	"github.com/ingot-metal/ingot/conductor/imagecheck"
	"github.com/ingot-metal/ingot/conductor/member"
	"github.com/ingot-metal/ingot/conductor/netboot"
	"github.com/ingot-metal/ingot/conductor/netboot/mdns"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/node/ramdiskdeploy"
	"github.com/ingot-metal/ingot/conductor/observe/audit"
	"github.com/ingot-metal/ingot/conductor/observe/events"
	"github.com/ingot-metal/ingot/conductor/observe/health"
	"github.com/ingot-metal/ingot/conductor/observe/logs"
	"github.com/ingot-metal/ingot/conductor/observe/shortage"
	"github.com/ingot-metal/ingot/conductor/observe/spans"
	"github.com/ingot-metal/ingot/conductor/observe/trace"
	"github.com/ingot-metal/ingot/conductor/peer"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/schedule/alloc"
	"github.com/ingot-metal/ingot/conductor/store"
	"github.com/ingot-metal/ingot/conductor/store/postgres"
)

// lockWait is how long the API waits for a node that something else is done to: as long as Ironic tries.
const lockWait = 3 * time.Second

// fewFiles is a limit on open files that a few hundred nodes and callers can come to.
const fewFiles = 4096

// lastTraces is how long the traces that are queued may take to be sent when the conductor stops.
const lastTraces = 3 * time.Second

// stopLimit is how long connections may take to end by themselves when the conductor stops.
const stopLimit = 10 * time.Second

// Run is ingotd: it reads its configuration and serves until ctx ends. args lacks the program's name; environ has the
// form of os.Environ. A request for help or for the configuration prints it and is no error.
func Run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	if c, ok := find(args); ok {
		return c.run(ctx, args[1:], environ, stdout, stderr)
	}
	cfg, print, err := config.Load(args, environ, stdout)
	switch {
	case errors.Is(err, config.ErrHelp):
		help(stdout)
		return nil
	case errors.Is(err, config.ErrExample):
		return nil
	case err != nil:
		return err
	case print:
		return cfg.Write(stdout)
	}
	return serve(ctx, cfg, logger(cfg, stderr))
}

// logger makes the log of a conductor.
func logger(cfg config.Config, w io.Writer) *logs.Log {
	o := logs.Options{Level: cfg.LogLevel, Replace: redact.Attr, Trace: spans.TraceID}
	if cfg.LogFormat == "json" {
		o.JSON, o.Replace = true, func(a slog.Attr) slog.Attr { return quoted(redact.Attr(a)) }
	}
	return logs.New(w, o)
}

// quoted is an attribute whose text does nothing to a terminal. The text format quotes such texts itself; JSON lets
// those through that are not ASCII.
func quoted(a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindString {
		s := a.Value.String()
		if strings.IndexFunc(s, func(r rune) bool { return r >= 0x7f }) >= 0 {
			a.Value = slog.StringValue(clean.Quote(s))
		}
	}
	return a
}

// storeOptions says where the configuration has the data.
func storeOptions(cfg config.Config) (store.Options, error) {
	password, err := postgres.ReadPassword(cfg.Store.PasswordFile)
	return store.Options{Dir: cfg.DataDir, URL: cfg.Store.Server(), Password: password, Key: cfg.Store.Bytes(),
		Ephemeral: cfg.Store.Ephemeral}, err
}

// serve starts the parts in order and stops them in the reverse one.
func serve(ctx context.Context, cfg config.Config, lines *logs.Log) (err error) {
	log := lines.Part("main")
	if cfg.OpenStack.CloudsFile != "" { // it is read again at each login; a missing one is to be known now
		if _, err := oscloud.Names(cfg.OpenStack.CloudsFile); err != nil {
			return fmt.Errorf("openstack.clouds_file %s: %w", cfg.OpenStack.CloudsFile, err)
		}
	}
	release, err := lockDir(cfg.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()

	short := &shortage.Watch{Dir: cfg.DataDir, Log: log}
	if files, err := shortage.RaiseFiles(); err != nil || files < fewFiles {
		log.Warn("few files may be open at once: raise the limit (LimitNOFILE= of the service, or ulimit -Hn)", "limit",
			files, "wanted", shortage.MostFiles, "err", err)
	}
	o, err := storeOptions(cfg)
	if err != nil {
		return err
	}
	numbers := newNumbers(cfg, lines.Part("metrics"))
	asked, err := audit.Open(audit.Config{Conductor: cfg.Name(), File: cfg.Audit.File, Syslog: cfg.Audit.Syslog,
		Count: numbers.Audit, Log: lines.Part("audit")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, asked.Close()) }()
	o.Meter = numbers
	o.Log, o.Alone, o.Keep, o.NewInstallation = lines.Part("store"), true, keep(cfg.History), cfg.NewInstallation
	o.Name = cfg.Name() // where a database can be shared
	if o.URL == "" {    // else it is another machine's disk
		o.Full = func() { short.Note(shortage.Disk, "dir", cfg.DataDir) }
	}
	st, err := store.Open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()

	newest, err := st.Newest(ctx)
	if err != nil {
		return err
	}
	ca, key, err := openKeys(ctx, cfg.DataDir, sharedIn(o, st))
	if err != nil {
		return err
	}
	others := member.New(cfg.Name(), st)
	if next := ca.NextFingerprint(); next != "" {
		log.Info("the CA is being rotated: both are accepted, and from the end on the next one alone", "next", next,
			"end", ca.Until())
	}
	book := &erasure.Book{Key: key, Store: st, Conductor: cfg.Name()}
	addr, err := provisioningAddress(cfg)
	if err != nil {
		return err
	}
	reach, err := advertised(cfg, addr)
	if err != nil {
		return err
	}
	ramdisk, err := readManifest(cfg.Netboot.RamdiskDir)
	if err != nil {
		return err
	}

	types, err := hardwareTypes(cfg)
	if err != nil {
		return err
	}
	inspections, err := inspection(cfg)
	if err != nil {
		return err
	}
	discoveries, err := discovery(cfg, types)
	if err != nil {
		return err
	}
	clients, err := limit.ParseClients(cfg.API.TrustedProxies)
	if err != nil {
		return fmt.Errorf("api.trusted_proxies: %w", err)
	}
	who, err := authentication(cfg, clients, lines.Part("login"))
	if err != nil {
		return err
	}
	images, err := imageService(cfg, who.keystone, ca, machinesReach(cfg, addr), st, lines.Part("images"))
	if err != nil {
		return err
	}
	machines := new(fake.Machines)
	hub := events.New(st)
	hub.Start(st.Announce(hub.Publish))
	bmcs, err := services(cfg, lines.Part("controllers"))
	if err != nil {
		return err
	}
	defer func() { bmcs.close(context.WithoutCancel(ctx)) }()
	var en *engine.Engine
	var nb *netboot.Server
	configured := map[string]networkPlug{}
	if cfg.Switches.File != "" {
		if configured["switch"], err = switchPlug(cfg, st, lines.Part("switches")); err != nil {
			return err
		}
	}
	inNeutron, err := openNeutron(cfg, who.keystone, book.Key.PEM(), st, types,
		func(n *node.Node) bool { return en.Mine(n) },
		func(mac string, uefi bool) []netboot.Option { return nb.Options(mac, uefi) }, lines.Part("neutron"))
	if err != nil {
		return err
	}
	count, err := openPlacement(cfg, who.keystone, book.Key.PEM(), st, hub, lines.Part("placement"))
	if err != nil {
		return err
	}
	if inNeutron.Service != nil {
		configured["neutron"] = inNeutron
	}
	ask := func(ctx context.Context, id string, f func(context.Context, *node.Node, power.Driver) error) error {
		return en.WithController(ctx, id, f)
	}
	nets, behind := networkPlugs(types, configured, cabling{st}.detach), plugs(types, machines, bmcs, ask)
	toAgents := new(agentLink)
	ec := engineConfig(cfg, addr, ramdisk)
	if ec.PhoneHomeKey, err = ca.PhoneHomeKey(); err != nil {
		return err
	}
	var sent *spans.Exporter
	if cfg.Traces.Endpoint != "" {
		if sent, err = spans.New(ctx, spans.Config{Endpoint: cfg.Traces.Endpoint, Percent: cfg.Traces.Percent,
			Hostname: cfg.Name(), Marks: st, Count: numbers.Spans, Log: lines.Part("traces")}); err != nil {
			return err
		}
		ec.TraceID = trace.ID
		defer func() {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTraces)
			defer cancel()
			sent.Close(last)
		}()
	}
	if images != nil {
		ec.Images = images
	}
	ec.Inspection, ec.Meter = inspections, work{numbers, sent}
	if o.URL != "" {
		ec.Conductors = others
	}
	open := drivers{powerDrivers(machines, toAgents, bmcs), types, lines.Part("controllers")}
	en = engine.New(st, open, nil, nets, ec, lines.Part("engine"))
	reachHost, _, err := net.SplitHostPort(reach)
	if err != nil {
		return fmt.Errorf("agents.advertise: %w", err)
	}
	bodies := limit.NewBudget(int64(cfg.Limits.BodyBytes), int64(cfg.Limits.BodyBytesAuthenticated))
	st.Touched(en.Wake)
	st.Moved(en.Rescan)
	var between *peers // conductors
	together := others
	if o.URL == "" {
		together = nil
	}
	meet, relay := swarmOf(cfg, st, together, func() *peers { return between }, lines.Part("swarms"))
	ag, err := agents.New(st, en, ca, agents.Config{
		Elsewhere: elsewhere(en, others), Others: agentsOf(others, cfg.Name()),
		Dir: cfg.DataDir, Swarm: meet, Discovery: discoveries, Names: []string{reachHost, cfg.Name()},
		Hostname: cfg.Name(), Erased: erased(book, st), Bodies: bodies, Count: numbers.Agent,
		NotFound: func(err error) bool { return errors.Is(err, store.ErrNotFound) },
	}, lines.Part("agents"))
	if err != nil {
		return err
	}
	en.SetLink(ag)
	toAgents.server.Store(ag)
	en.SetPlugs(behind)
	for _, name := range en.UnknownPriorities() {
		log.Warn("the configuration gives a priority to what is no step of the agent or of an interface: it has no effect; docs/reference/steps.md and docs/reference/hardware.md list the names", "step", name)
	}

	boot, err := bootServer(cfg, st, nets, addr, reach, ca)
	if err != nil {
		return err
	}
	if boot != nil {
		boot.SystemSeen, boot.SystemStarted, boot.PhoneHome = en.DHCPSeen, en.SystemStarted, en.PhoneHome
		if images != nil {
			boot.Glance = images
		}
		boot.Others, boot.Meter = agentsOf(others, cfg.Name()), numbers
		boot.Short = func(err error) {
			if shortage.OutOfFiles(err) {
				short.Note(shortage.Files, "listener", "network boot")
			}
		}
		if boot.ImageKey, err = ca.BootImageKey(); err != nil {
			return err
		}
		if nb, err = netboot.New(st, *boot, lines.Part("boot")); err != nil {
			return err
		}
		en.SetBootImages(nb)
	}
	segment := segmentOf(cfg, nb)
	if segment != nil {
		nb.SetTurns(func() func(string) int { return others.Turns(*segment) })
	}

	allocator := alloc.New(st, lines.Part("allocations"))
	// What serves ends with run: when ctx ends, or a command stops this process, nodes are handed over first.
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ending, end := context.WithCancel(ctx)
	defer end()
	reachPeer := ""
	if o.URL != "" {
		if between, err = openPeers(cfg, ca, others, reach, short.Listener, lines.Part("peers")); err != nil {
			return err
		}
		defer between.close()
		reachPeer = between.address
	}
	said := about(cfg, types, reach, reachPeer, segment)
	drainer := drain.New(en, drain.Config{Name: cfg.Name(), Others: others.Others, Stop: end,
		Describe: func(ctx context.Context, draining, leaving bool) error {
			state, said := postgres.Up, said
			if draining {
				state = postgres.Draining
			}
			said.Leaving = leaving
			return st.Describe(ctx, state, said.Text())
		}}, lines.Part("drain"))
	ac := api.Config{
		Leaving: drainer.Leaving,
		Warmth:  en, PoolPace: poolPace(cfg), Prepare: cfg.Reservations.Prepare,
		Hostname: cfg.Name(), LockWait: lockWait,
		Several: o.URL != "", Conductors: others,
		Bodies: bodies, Drivers: types,
		Events: hub, Progress: running(en.Progresses, between, others, cfg.Name(), log),
		MaskRules: inspections.Mask, ErasureKey: string(book.Key.PEM()),
		Certificates: certificates(cfg), Settings: settings(cfg), ImageFiles: imageFiles(cfg.Netboot.ImagesDir),
		Authenticate: who.who, NoRamdisk: !cfg.API.Ramdisk, PublicURL: strings.TrimSuffix(cfg.API.PublicURL, "/"),
		HostNames: hostNames(cfg), ResendCredentials: cfg.API.ResendCredentials, Allocate: allocator.Wake,
		Hardware: behind, Logs: func(node string, after uint64) []rest.LogLine {
			var out []rest.LogLine
			for _, l := range ag.Logs(node, after) {
				out = append(out, logLine(l))
			}
			return out
		},
	}
	ac.Meter, ac.From = numbers, func(r *http.Request) string { return clients.Address(r).String() }
	consoles := console.New(func(n *node.Node) (power.Driver, error) {
		d, err := open.Open(n)
		if err != nil {
			return nil, err
		}
		return power.Checked(d, func() error { return en.Here(n) }, nil), nil
	}, lines.Part("consoles"))
	ac.Consoles = consoles
	ac.Images = imagecheck.New(ec.Guard.Transport(nil))
	if sent != nil {
		ac.Tracer = sent
	}
	if inNeutron.Service != nil {
		ac.VIFs = inNeutron
	}
	if asked != nil {
		ac.Audit = asked
	}
	if cfg.Metrics.API {
		ac.Metrics = numbers.Handler()
	}
	if between != nil {
		ac.Forward = between.client
	}
	handler, err := api.New(st, en, ac, lines.Part("api"))
	if err != nil {
		return err
	}
	defer handler.Wait()

	apiListener, err := inherited(os.Getenv)
	if err != nil {
		return fmt.Errorf("take over the API's socket: %w", err)
	}
	if apiListener == nil {
		if apiListener, err = net.Listen("tcp", cfg.API.Listen); err != nil {
			return fmt.Errorf("listen for the API: %w", err)
		}
	}
	if err := guarded(cfg, apiListener.Addr()); err != nil {
		return errors.Join(err, apiListener.Close())
	}
	limited := limit.ListenHTTP
	if cfg.API.TLSCert != "" {
		limited = limit.Listen
	}
	apiListener = limited(short.Listener(apiListener), "api", cfg.Limits.API(), clients, lines.Part("api"))
	if apiListener, err = encrypted(cfg, apiListener, lines.Part("api")); err != nil {
		return errors.Join(err, apiListener.Close())
	}
	agentListener, err := net.Listen("tcp", cfg.Agents.Listen)
	if err != nil {
		return errors.Join(fmt.Errorf("listen for agents: %w", err), apiListener.Close())
	}
	agentListener = limit.Listen(agentListener, "agents", cfg.Limits.Agents(), nil, lines.Part("agents"))

	scraped, err := openScrapes(cfg, numbers.Handler(), who.who, short.Listener, lines.Part("metrics"))
	if err != nil {
		return errors.Join(err, apiListener.Close(), agentListener.Close())
	}
	numbers.Ask(sources(cfg, st, en, ag, hub, others))

	if nb != nil {
		if err := nb.Listen(); err != nil {
			return errors.Join(err, apiListener.Close(), agentListener.Close(), scraped.close())
		}
	}

	if err := st.Describe(ctx, postgres.Up, said.Text()); err != nil {
		return fmt.Errorf("tell the other conductors of this one: %w", err)
	}
	stopping := sync.OnceFunc(func() {
		if err := notify(os.Getenv, "STOPPING=1"); err != nil {
			log.Warn("service manager", "err", err)
		}
	})
	g, gctx := errgroup.WithContext(run)
	// The engine outlives the listeners, so that their last events are still stored and acted on.
	engineCtx, stopEngine := context.WithCancel(context.WithoutCancel(ctx))
	engineDone := make(chan error, 1)
	go func() { engineDone <- en.Run(engineCtx) }()
	defer func() {
		stopEngine()
		err = errors.Join(err, <-engineDone)
	}()

	// On a damaged database the conductor acts on no machine. The listeners stay: the API reports the fault, and agents
	// are told to send their results again later.
	actCtx, stopActs := context.WithCancel(gctx)
	g.Go(func() error {
		select {
		case <-st.Damaged():
			stopActs()
			stopEngine()
			if o.URL != "" && errors.Is(st.Fault(), store.ErrLost) { // others go on; started again, it is one of them
				return st.Fault()
			}
		case <-gctx.Done():
			stopActs()
		}
		return nil
	})
	for _, run := range []func(){
		func() { short.Run(gctx, newest) },
		func() { saveMemory(gctx, os.Getenv) },
		func() { watchCertificates(gctx, cfg, log, time.Now) },
		func() { drainer.Run(actCtx) },
		func() { inNeutron.repair(actCtx, cfg.Neutron.RepairEvery) },
		func() { count(actCtx) },
		func() { allocator.Run(actCtx) },
		func() { sent.Run(gctx) },
		func() { reopen(gctx, asked, log) },
		func() { poolRunner(cfg, st, en, hub, lines.Part("pools")).Run(actCtx) },
		func() { reservationRunner(cfg, st, en, hub, lines.Part("reservations")).Run(actCtx) },
		func() {
			health.New(st, behind, health.Config{Hostname: cfg.Name(), Here: en.Here, Interval: cfg.Health.Interval,
				AtOnce: cfg.Health.AtOnce, Faults: cfg.Health.Faults,
				Meter: healthNumbers{numbers, types}}, lines.Part("health")).Run(actCtx)
		},
	} {
		g.Go(func() error {
			run()
			return nil
		})
	}
	g.Go(func() error {
		if err := drainer.Serve(gctx, cfg.DataDir, levels(lines)); err != nil {
			log.Warn("ingotd drain and log-level can't reach this conductor", "err", err)
		}
		return nil
	})
	g.Go(func() error {
		defer stop()
		select {
		case <-ending.Done():
		case <-gctx.Done():
			return nil
		}
		stopping()
		last, cancel := context.WithTimeout(actCtx, stopDrain)
		defer cancel()
		drainer.Leave(last)
		if !others.Remains() {
			st.ComesBack()
		}
		return nil
	})
	g.Go(func() error { return ag.Serve(short.Listener(agentListener)) })
	if nb != nil {
		g.Go(func() error { return nb.Serve(gctx) })
	}
	if cfg.Netboot.MDNS {
		stop, err := announceMDNS(cfg, addr, apiListener.Addr(), reach)
		if err != nil {
			return err
		}
		defer func() {
			if err := stop(); err != nil {
				log.Warn("stop multicast DNS", "err", err)
			}
		}()
	}
	root, err := dashboard(cfg, handler, st, who, ca, clients, bodies, lines.Part("dashboard"))
	if err != nil {
		return err
	}
	web := limit.HTTP(root, lines.Part("api"))
	g.Go(func() error {
		if err := web.Serve(apiListener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the API: %w", err)
		}
		return nil
	})
	if between != nil {
		var swarms peer.Message
		if relay != nil {
			swarms = relay.Answer
			g.Go(func() error {
				relay.Run(gctx)
				return nil
			})
		}
		between.answer(handler, swarms, bodies, lines.Part("peers"))
		g.Go(between.serve)
	}
	if scraped != nil {
		g.Go(scraped.serve)
	}
	g.Go(func() error {
		<-gctx.Done()
		stopping()
		last, cancel := context.WithTimeout(context.WithoutCancel(gctx), stopLimit)
		defer cancel()
		hub.Close() // those who follow would keep it waiting, and so would those who work at consoles
		consoles.Stop()
		err := web.Shutdown(last)
		if errors.Is(err, context.DeadlineExceeded) {
			err = web.Close()
		}
		if between != nil {
			err = errors.Join(err, between.stop(last))
		}
		if scraped != nil {
			err = errors.Join(err, scraped.stop(last))
		}
		ag.Stop(last)
		return err
	})
	log.Info("ingotd is up", "api", apiListener.Addr().String(), "agents", reach, "conductors", reachPeer, "dhcp",
		cfg.Netboot.DHCP, "ca", ca.Fingerprint())
	if err := notify(os.Getenv, "READY=1"); err != nil {
		log.Warn("service manager", "err", err)
	}
	watched := make(chan struct{})
	watchCtx, stopWatch := context.WithCancel(context.WithoutCancel(ctx)) // the end takes its time, too
	go func() {
		defer close(watched)
		watchdog(watchCtx, os.Getenv, func(ctx context.Context) bool { return answers(ctx, handler) }, log)
	}()
	defer func() {
		stopWatch()
		<-watched
	}()
	err = g.Wait()
	log.Info("ingotd stops")
	return err
}

// keep is how much of the past the store keeps.
func keep(h config.History) store.Keep {
	return store.Keep{
		Requests: store.Kept{PerNode: h.RequestsPerNode, Total: h.RequestsTotal, Age: h.RequestsAge},
		Reports:  store.Kept{PerNode: h.ReportsPerNode, Total: h.ReportsTotal, Age: h.ReportsAge},
		Erasures: store.Kept{PerNode: limit.KeptErasures, Age: h.ErasuresAge},
	}
}

// logLine is a line of an agent's log as the API shows it.
func logLine(l agents.LogLine) rest.LogLine {
	text := strings.Join(append([]string{l.Message}, l.Attrs...), " ")
	if l.Lost > 0 {
		text = fmt.Sprintf("[%d lines lost before this one] %s", l.Lost, text)
	}
	return rest.LogLine{Seq: l.Number, At: l.At.UTC().Format(time.RFC3339Nano), Level: l.Level, Text: text}
}

// machinesReach is the address of network boot that machines are led to.
func machinesReach(cfg config.Config, addr netip.Addr) netip.Addr {
	if virtual, err := netip.ParseAddr(cfg.Netboot.Virtual); err == nil && addr.IsValid() {
		return virtual
	}
	return addr
}

func engineConfig(cfg config.Config, addr netip.Addr, m *manifest) engine.Config {
	c := engine.Config{
		Hostname: cfg.Name(), AllowUnverified: cfg.Deploy.AllowUnverified, AllowMD5: cfg.Deploy.AllowMD5,
		AllowExport:    cfg.Export.Allow,
		AutomatedClean: cfg.Deploy.AutomatedClean, FastTrack: cfg.Deploy.FastTrack, BootMode: cfg.Deploy.BootMode,
		BootTimeout: cfg.Deploy.BootTimeout, SessionGrace: cfg.Deploy.SessionGrace, Silence: cfg.Deploy.Silence,
		MaxBoots: cfg.Deploy.MaxBoots, PlanTries: cfg.Deploy.Tries, PowerTimeout: cfg.Power.Timeout,
		PowerSync: cfg.Power.SyncInterval, ForcePower: cfg.Power.Force, CallTimeout: cfg.Power.CallTimeout,
		RetryTries: cfg.Power.Retries,
	}
	if hosts, err := cfg.Export.Hosts(); err == nil { // Validate has seen to it
		for _, h := range hosts {
			c.Writers = append(c.Writers, program.Writer(h))
		}
	}
	if c.Restarts = cfg.Deploy.InstalledSystemRetries; c.Restarts == 0 {
		c.Restarts = -1
	}
	if addr.IsValid() {
		c.DHCP = cfg.Netboot.DHCP
	}
	at := machinesReach(cfg, addr)
	boots := "http://" + netip.AddrPortFrom(at, uint16(cfg.Netboot.HTTPPort)).String()
	var images []netip.AddrPort // the one listener of this host that users' URLs may name
	if cfg.Netboot.ImagesDir != "" && addr.IsValid() {
		c.ImageBase = boots + "/images/"
		for _, a := range []netip.Addr{addr, at} {
			images = append(images, netip.AddrPortFrom(a, uint16(cfg.Netboot.HTTPPort)))
		}
	}
	if allow, err := dial.Parse(cfg.Fetch.Allow); err == nil { // Validate has seen to both
		c.Guard = dial.New(allow, images...)
	}
	if networks, err := dial.Parse(cfg.SignOfLife.Networks); err == nil {
		c.SignNetworks = networks
	}
	c.BootInstance, c.KexecDelay = cfg.Deploy.BootInstance, cfg.Deploy.KexecDelay
	c.SignOfLife, c.SignTimeout = cfg.Deploy.SignOfLife, cfg.Deploy.SignOfLifeTimeout
	switch {
	case cfg.Deploy.PhoneHomeURL != "":
		c.PhoneHomeURL = cfg.Deploy.PhoneHomeURL
	case cfg.API.PublicURL != "":
		c.PhoneHomeURL = cfg.API.PublicURL
	case addr.IsValid():
		c.PhoneHomeURL = boots
	}
	if all, err := cfg.Steps.Priorities(); err == nil { // Validate has seen to it
		c.Priorities = map[node.Phase]map[string]int{}
		for phase, steps := range all {
			c.Priorities[node.Phase(phase)] = steps
		}
	}
	if m != nil {
		c.AgentSteps, c.StepsDigest = m.Steps, m.StepsDigest
	}
	return c
}

// probeEvery is how often the provisioning network is looked at for other DHCP servers. Those log each time.
const probeEvery = 5 * time.Minute

// bootServer is the configuration of network boot; nil when this conductor boots no machines.
func bootServer(cfg config.Config, st *store.Store, plugs networks, addr netip.Addr, reach string,
	ca *agents.CA) (*netboot.Config, error) {
	n := cfg.Netboot
	if !addr.IsValid() {
		return nil, nil
	}
	c := netboot.Config{
		Mode: netboot.Mode(n.DHCP), Interface: n.Interface, Address: addr, LeaseTime: n.LeaseTime,
		ProbeEvery: probeEvery, HTTPPort: n.HTTPPort, Connections: cfg.Limits.Boot(), TFTP: n.TFTP,
		LoaderDir: n.LoaderDir, RamdiskDir: n.RamdiskDir, ImagesDir: n.ImagesDir, KernelParams: n.KernelParams,
		TokenLife: n.TokenLife, Conductor: reach, CA: ca.Fingerprint(), NextCA: ca.NextFingerprint(),
		Hostname: cfg.Name(), Trust: func() (string, string) { return ca.Fingerprint(), ca.NextFingerprint() },
		NotFound: func(err error) bool { return errors.Is(err, store.ErrNotFound) }, HasPorts: st.HasPorts,
		Groups:        groupsOf(st),
		OnFlatNetwork: plugs.servesInstance, ExternalURL: n.ExternalHTTPURL, HTTPSPort: n.HTTPSPort,
		Authority: func() string { return string(ca.PEM()) },
		Workload:  func(n *node.Node) bool { return plugs.types.Interface(n, "deploy") == ramdiskdeploy.Interface },
	}
	var faults []error
	parse := func(key, s string) netip.Addr {
		if s == "" {
			return netip.Addr{}
		}
		a, err := netip.ParseAddr(s)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", key, err))
		}
		return a
	}
	c.RangeStart, c.RangeEnd = parse("netboot.range_start", n.RangeStart), parse("netboot.range_end", n.RangeEnd)
	c.Gateway, c.Virtual = parse("netboot.gateway", n.Gateway), parse("netboot.virtual_address", n.Virtual)
	for _, d := range n.DNS {
		c.DNS = append(c.DNS, parse("netboot.dns", d))
	}
	if n.HTTPSPort != 0 {
		names := []string{addr.String()}
		if n.Virtual != "" {
			names = append(names, n.Virtual)
		}
		if u, err := url.Parse(n.ExternalHTTPURL); err == nil && u.Hostname() != "" {
			names = append(names, u.Hostname())
		}
		var err error
		c.TLS, err = ca.ControllerTLS(names)
		faults = append(faults, err)
	}
	if cfg.Discovery.Enabled {
		c.Invite = func(mac string) (string, error) { return ca.Invite(mac, time.Now()) }
		c.InviteLimit = cfg.Discovery.LimitPerHour
	}
	return &c, errors.Join(faults...)
}

// announceMDNS has the conductor found by multicast DNS, until the returned function is called.
func announceMDNS(cfg config.Config, addr netip.Addr, listener net.Addr, reach string) (stop func() error, err error) {
	if !addr.IsValid() {
		return nil, errors.New("netboot.mdns: there is no provisioning network to announce in: set netboot.interface")
	}
	text := cfg.API.PublicURL
	if text == "" {
		scheme := "http"
		if cfg.API.TLSCert != "" {
			scheme = "https"
		}
		_, port, err := net.SplitHostPort(listener.String())
		if err != nil {
			return nil, err
		}
		text = scheme + "://" + net.JoinHostPort(addr.String(), port)
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("netboot.mdns: %w", err)
	}
	return mdns.Start(mdns.Config{Interface: cfg.Netboot.Interface, Hostname: cfg.Name(),
		Addresses: []net.IP{addr.AsSlice()}, API: u, Agents: reach})
}

// provisioningAddress returns the conductor's address on the provisioning network; the zero Addr without such a
// network.
func provisioningAddress(cfg config.Config) (netip.Addr, error) {
	if cfg.Netboot.Address != "" {
		return netip.ParseAddr(cfg.Netboot.Address)
	}
	if cfg.Netboot.Interface == "" {
		return netip.Addr{}, nil
	}
	ifi, err := net.InterfaceByName(cfg.Netboot.Interface)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("netboot.interface %s: %w", cfg.Netboot.Interface, err)
	}
	addrs, err := ifi.Addrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("read addresses of %s: %w", ifi.Name, err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() &&
			p.Addr().String() != cfg.Netboot.Virtual {
			return p.Addr(), nil
		}
	}
	return netip.Addr{},
		fmt.Errorf("netboot.interface %s has no IPv4 address, and network boot is IPv4 only: give it one, or set netboot.address", ifi.Name)
}

// advertised is host:port by which agents reach this conductor.
func advertised(cfg config.Config, addr netip.Addr) (string, error) {
	if cfg.Agents.Advertise != "" {
		return cfg.Agents.Advertise, nil
	}
	_, port, err := net.SplitHostPort(cfg.Agents.Listen)
	if err != nil {
		return "", fmt.Errorf("agents.listen: %w", err)
	}
	if !addr.IsValid() {
		return "", errors.New("agents.advertise is not set, and there is no provisioning address to use instead")
	}
	return net.JoinHostPort(strings.TrimSpace(addr.String()), port), nil
}
