package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"mime"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/catalog"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/api/own"
	"github.com/ingot-metal/ingot/conductor/api/parts"
	"github.com/ingot-metal/ingot/conductor/api/pools"
	"github.com/ingot-metal/ingot/conductor/api/ports"
	"github.com/ingot-metal/ingot/conductor/api/states"
	"github.com/ingot-metal/ingot/conductor/api/volumes"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/inspect"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/events"
	"github.com/ingot-metal/ingot/conductor/peer"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
	"github.com/ingot-metal/ingot/conductor/store"
)

// storage is the part of the store that the API needs.
type storage interface {
	CreateNode(ctx context.Context, n *node.Node) error
	Node(ctx context.Context, ident string) (*node.Node, error)
	Nodes(ctx context.Context, q store.Query) ([]*node.Node, error)
	UpdateNode(ctx context.Context, uuid string, change func(*node.Node) error) (*node.Node, error)
	Change(ctx context.Context, uuid string, change func(*node.Node, *node.SideEffects) error) (*node.Node, error)
	DeleteNode(ctx context.Context, uuid string, allowed ...func(*node.Node) error) error
	CreatePort(ctx context.Context, p *node.Port) error
	Port(ctx context.Context, uuid string) (*node.Port, error)
	Ports(ctx context.Context, q store.PortQuery) ([]*node.Port, error)
	UpdatePort(ctx context.Context, uuid string, change func(*node.Port) error) (*node.Port, error)
	DeletePort(ctx context.Context, uuid string) error
	History(ctx context.Context, nodeUUID string, limit int) ([]node.HistoryEntry, error)
	Log(ctx context.Context, q node.LogQuery) ([]node.LogLine, error)
	Marks(ctx context.Context, nodeUUID, jobID string) ([]node.Mark, error)
	Results(ctx context.Context, nodeUUID string) (map[string]json.RawMessage, error)
	Inventory(ctx context.Context, nodeUUID string) ([]byte, error)
	Backfill(ctx context.Context, a *node.Allocation, nodeUUID string,
		fits func(a *node.Allocation, n *node.Node) error) error
	DeleteAllocation(ctx context.Context, uuid, user string,
		removable func(a *node.Allocation, n *node.Node) error) error
	Erasures(ctx context.Context, nodeUUID string) ([]erasure.Kept, error)
	Reading(ctx context.Context, nodeUUID string) (node.Reading, error)
	Fault() error
	Away() error
	AwaySince() time.Time
	tables
}

// tables are where the store keeps all resources beside nodes and ports.
type tables interface {
	Chassis() *store.Table[node.Chassis]
	Portgroups() *store.Table[node.Portgroup]
	VolumeConnectors() *store.Table[node.VolumeConnector]
	VolumeTargets() *store.Table[node.VolumeTarget]
	DeployTemplates() *store.Table[node.DeployTemplate]
	Runbooks() *store.Table[node.Runbook]
	InspectionRules() *store.Table[node.InspectionRule]
	Allocations() *store.Table[node.Allocation]
	Pools() *store.Table[node.Pool]
	PoolMembers(ctx context.Context) (map[string]node.PoolMember, error)
	Reservations() *store.Table[node.Reservation]
	Promises(ctx context.Context) ([]node.Promise, error)
	Reserve(ctx context.Context, r *node.Reservation, most store.MostReservations,
		choose func(*node.Reservation, []store.Reservable) ([]string, error)) error
	ExtendReservation(ctx context.Context, uuid string, change func(*node.Reservation) error,
		choose func(*node.Reservation, []store.Reservable) ([]string, error)) (*node.Reservation, error)
	DeleteReservation(ctx context.Context, uuid string, allowed func(*node.Reservation) error) error
	UpdatePortgroup(ctx context.Context, uuid string, change func(*node.Portgroup) error) (*node.Portgroup, error)
}

// machines is all that the API asks of the engine.
type machines interface {
	Provision(ctx context.Context, ident string, r engine.Request) error
	DryRun(ctx context.Context, ident string, r engine.Request) (engine.Dry, error)
	SetPower(ctx context.Context, ident, target string, timeout time.Duration, user string) error
	SetBootDevice(ctx context.Context, ident, device string, persistent bool, user string) error
	BootDevice(ctx context.Context, ident string) (device string, persistent bool, err error)
	BootDevices(ctx context.Context, ident string) ([]string, error)
	Validate(ctx context.Context, ident string) (map[string]engine.Validation, error)
	ImageURL(source string) string
	Progress(nodeUUID string) (node.Progress, bool)
	Quarantine(ctx context.Context, ident, reason, user string) (*node.Node, error)
	Unquarantine(ctx context.Context, ident, user string) (*node.Node, error)
	BreakLock(ctx context.Context, ident, user string) (engine.Lock, error)
	ResetNetwork(ctx context.Context, ident, user string) error
	SetControllerPassword(ctx context.Context, ident, password, user string) error
	PhoneHome(ctx context.Context, token, from string) error
	ExportOf(n *node.Node) (*engine.Export, error)
	ExportFailed(ctx context.Context, ident, id, why, user string) error
	PowerOffDeletedNode(ctx context.Context, nodeUUID string)
	Here(n *node.Node) error
}

// Config is the configuration of a Server.
type Config struct {
	// Hostname names this conductor on the API.
	Hostname string
	// Several says that other conductors can share the database, and Conductors knows them; nil: there is only this
	// one.
	Several    bool
	Conductors catalog.Conductors
	// MaxVersion is the newest microversion on offer; zero is rest.MaxVersion.
	MaxVersion rest.Version
	// Authenticate finds the sender of a request. Nil permits everything to all, which is right on a loopback listener
	// only. An error is an *access.Refusal, or a fault of the server (500).
	Authenticate func(r *http.Request) (*access.Actor, error)
	// VIFs is the service whose ports the virtual interfaces of some nodes are; nil: there is none.
	VIFs ports.VIFs
	// Allocate has an allocation that was stored processed soon; it does not wait for that. With nil it waits for a
	// conductor.
	Allocate func(uuid string)
	// PublicURL is the address that links in answers begin with, without a slash at its end; empty: as the request had
	// it, if that is the address that it came to, loopback or one of HostNames.
	PublicURL string
	HostNames []string
	// Bodies bounds the memory of all requests' bodies; nil: no bound.
	Bodies *limit.Budget
	// ResendCredentials requires stored credentials from every caller who changes their destination, and not only from
	// those without a role in the system.
	ResendCredentials bool
	// LockWait is how long a request for a node that is locked waits for it before it is refused; zero: not at all.
	LockWait time.Duration
	// MaskRules says from which inspection rules secrets are kept when one is tried out; empty: from all.
	MaskRules inspect.Masking
	// NoRamdisk leaves out the routes that stock agents call without authentication.
	NoRamdisk bool
	// Drivers are the enabled hardware types; with nil all are.
	Drivers *driver.Table
	// Events is the source of the stream of events; nil: the stream is off.
	Events *events.Hub
	// Leaving says why clients had better go to another server, as this one stops soon; "" or nil: they need not.
	Leaving func() string
	// Progress is how far running work is; nil when that is not known.
	Progress own.Progress
	// Hardware implements the nodes' interfaces; with nil none can do anything but power and boot devices.
	Hardware *hardware.Set
	// Consoles are sessions at the consoles of this conductor's nodes; nil: none can be opened.
	Consoles parts.Consoles
	// Images looks at images that users are about to deploy; nil: none are looked at.
	Images states.Images
	// ErasureKey is the public key with which reports of erased disks are verified, as PEM.
	ErasureKey string
	// Settings are those in use, without secrets; nil: they are not shown.
	Settings func() []rest.Setting
	// ImageFiles are the images that this conductor serves; nil: it serves none.
	ImageFiles func() (rest.ImageFiles, error)
	// Certificates are the conductor's own, with their ends; nil when there are none.
	Certificates func() ([]rest.Certificate, error)
	// Warmth makes available nodes warm and turns them off again; with nil none can be.
	Warmth pools.Machines
	// PoolPace is how often pools repeat failed actions, so that the API can show the next time.
	PoolPace pools.Pace
	// Prepare is how long before a reservation's start its machines are out of ordinary use.
	Prepare time.Duration
	// Logs returns the lines of a node's agent log after a number; nil when no logs are kept.
	Logs func(nodeUUID string, after uint64) []rest.LogLine
	// Meter, unless nil, counts requests. Those that another conductor has forwarded are counted there.
	Meter meter
	// Tracer, unless nil, makes a span of each request, and Audit, unless nil, a line of each that would change
	// something; From returns the address of a request's client for that.
	Tracer tracer
	Audit  auditor
	From   func(r *http.Request) string
	// Metrics answers scrapes at /metrics; nil: they are not answered here.
	Metrics http.Handler
	// Forward has the owner of a node answer what only it can; nil: such requests are answered with 503.
	Forward forwarder
}

// Server answers the API. It is an http.Handler.
type Server struct {
	store  storage
	engine machines
	cfg    Config
	log    *slog.Logger
	routes *router
	hosts  *hosts

	// What handles the parts of the API. The others are in the table of routes only.
	find    *finder.Finder
	ports   *ports.Handlers
	volumes *volumes.Handlers
	parts   *parts.Handlers

	description func() ([]byte, error) // of the API, see describe

	answers sync.Pool // of *[]byte: what long lists were written into is used again
}

// New makes a Server. It fails when a route has no access rule.
func New(st storage, en machines, cfg Config, log *slog.Logger) (*Server, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	cfg.MaxVersion = cmp.Or(cfg.MaxVersion, rest.MaxVersion)
	if cfg.Drivers == nil {
		cfg.Drivers = driver.All()
	}
	s := &Server{store: st, engine: en, cfg: cfg, log: log, hosts: newHosts(cfg.HostNames)}
	if err := s.assemble(); err != nil {
		return nil, err
	}
	return s, nil
}

// Wait returns when all work that goes on after its answer has ended.
func (s *Server) Wait() { s.parts.Wait() }

// Limits of a request's body, unless its route has another. JSON nested deeper than any client needs is an attack.
const (
	maxDepth = 25
)

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.answer(w, r, requestID(), nil) }

// answer answers a request with an ID. from is where a forwarded one came from.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, id string, from *peer.Origin) {
	seen := served{id: id, began: time.Now()}
	if s.cfg.Tracer != nil {
		ctx, end := s.cfg.Tracer.Request(r.Context(), r)
		r = r.WithContext(ctx)
		s.cfg.Tracer.Pass(ctx, w.Header())
		defer func() { end(seen.path(), seen.status) }()
	}
	defer func() { s.served(r, &seen, from) }() // also of a request that is broken off by a panic
	s.reply(w, r, id, from, &seen)
}

// reply sends the answer, and notes in seen what is known of the request.
func (s *Server) reply(w http.ResponseWriter, r *http.Request, id string, from *peer.Origin, seen *served) {
	w.Header().Set("Openstack-Request-Id", id)
	defer func() {
		p := recover()
		if p == nil || p == http.ErrAbortHandler { //nolint:errorlint the value net/http compares with
			if p != nil {
				panic(p)
			}
			return
		}
		s.log.Error("a request made a handler panic", "method", r.Method, "path", r.URL.Path, "request", id, "err",
			fmt.Sprint(p), "stack", string(debug.Stack()))
		seen.status = http.StatusInternalServerError
		s.fail(w, r, rest.Fault(http.StatusInternalServerError,
			"The server has a fault; its log has details under request %s.", id))
	}()
	rep, err := s.serve(w, r, id, from, seen)
	if err != nil {
		seen.status = err.Status
		s.fail(w, r, err)
		return
	}
	seen.status, seen.location = rep.Status, rep.Location
	if rep.Location != "" {
		w.Header().Set("Location", rep.Location)
	}
	if rep.Challenge != "" {
		w.Header().Set("WWW-Authenticate", rep.Challenge)
	}
	if rep.ETag != "" {
		w.Header().Set("ETag", rep.ETag)
		if unchanged(r, rep) {
			seen.status = http.StatusNotModified
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	if rep.Stream != nil {
		if seen.route != nil && seen.route.Stream {
			seen.took = time.Since(seen.began) // it ends when the client goes
		}
		rep.Stream(w)
		return
	}
	if rep.Body == nil {
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(rep.Status)
		return
	}
	buf, ok := s.answers.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	b, jerr := rest.Append((*buf)[:0], rep.Body)
	if jerr != nil {
		s.log.Error("an answer is not JSON", "path", r.URL.Path, "request", id, "err", jerr)
		seen.status = http.StatusInternalServerError
		s.fail(w, r, rest.Fault(http.StatusInternalServerError,
			"The server has a fault; its log has details under request %s.", id))
		return
	}
	send(w, r, rep.Status, b)
	if *buf = b; cap(b) <= maxKeptAnswer {
		s.answers.Put(buf)
	}
}

// maxKeptAnswer is the largest buffer that is kept for other answers: that of a page of a thousand nodes in detail.
const maxKeptAnswer = 8 << 20

// unrouted gives an error of the version's own address, to which no routing leads, the shape of a fault.
func unrouted(path []string, err *rest.Error) *rest.Error {
	if len(path) != 1 {
		return err
	}
	fault := *err
	fault.IsRouting = false
	fault.Message = cmp.Or(fault.Message, http.StatusText(fault.Status))
	return &fault
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, id string, from *peer.Origin,
	seen *served) (*call.Reply, *rest.Error) {
	path, ours := normalise(r.URL.EscapedPath())
	if r.Method == http.MethodOptions && len(path) > 0 {
		return &call.Reply{Status: http.StatusOK}, nil
	}
	version, ranged, verr := rest.Negotiate(r.Header, s.cfg.MaxVersion)
	query := r.URL.RawQuery
	if !ours && verr == nil {
		path, query = s.routes.usual(r.Method, version, path, query)
	}
	method := r.Method
	// Only the root accepts these methods, for monitoring.
	if len(path) == 0 && (method == http.MethodHead || method == http.MethodOptions) {
		method = http.MethodGet
	}
	if method == http.MethodHead && slices.Contains(path, "vendor_passthru") {
		method = http.MethodGet // the vendor's method is asked, and refuses
	}
	rt, values, missing := s.routes.find(method, path)
	if rt != nil && method != r.Method && len(path) > 0 && path[len(path)-1] == "methods" {
		rt, values, missing = s.routes.find(r.Method, path)
	}
	seen.route = rt
	who := access.Anybody()
	base := ""
	switch {
	case from != nil:
		if err := s.admitOrigin(from); err != nil {
			return nil, err
		}
		who, base = from.Actor, from.Base
	case missing != nil || rt.Access != call.Public:
		a, refused, err := s.authenticate(r)
		if refused != nil || err != nil {
			return refused, err
		}
		who = a
	}
	c := &call.Call{Request: r, Version: s.cfg.MaxVersion, Base: cmp.Or(base, s.base(r)), Path: values, Actor: who,
		User: who.String(), ResendAll: s.cfg.ResendCredentials, Began: seen.began}
	seen.call = c
	if rt != nil {
		c.Mixed, c.Args = rt.Query == call.Members, rt.Args
	}
	if len(path) > 0 && !ours {
		if ranged {
			w.Header().Set(rest.MinVersionHeader, rest.MinVersion.String())
			w.Header().Set(rest.MaxVersionHeader, s.cfg.MaxVersion.String())
		}
		if verr != nil {
			return nil, unrouted(path, verr)
		}
		w.Header().Set(rest.VersionHeader, version.String())
		w.Header().Set("Vary", rest.VersionHeader+", "+rest.ServiceHeader)
		if version >= rest.VersionRequestID {
			w.Header().Set("X-OpenStack-Request-Id", id)
		}
		c.Version = version
	}
	if missing != nil {
		if missing.Status == http.StatusMethodNotAllowed {
			if late := s.routes.late(path, c.Version); late != nil {
				return nil, late
			}
			w.Header().Set("Allow", s.routes.methods(path))
			missing = unrouted(path, missing)
		}
		return nil, missing
	}
	if misnamed := rt.Misnamed(values, c.Version); misnamed != nil {
		return nil, misnamed
	}
	early := c.Version < rt.Since
	if early && !rt.Late && rt.Routed() {
		return nil, rt.TooNew(c.Version)
	}
	if !rt.Stream && !rt.Text && !acceptsJSON(r.Header.Values("Accept")) {
		return nil, rest.Routing(http.StatusNotAcceptable,
			"The answers of this API are application/json, which the Accept header excludes.")
	}
	var err *rest.Error
	if c.Query, err = parseQuery(query, rest.Repr); err != nil {
		return nil, err
	}
	// The query is checked before the object's owner, as in Ironic. With a body, a form in it is part of it.
	if rt.Method == http.MethodGet {
		if err := c.CheckQuery(rt); err != nil {
			return nil, err
		}
	}
	// Of what the version does not have no handler asks who may, unless it looks for the node first.
	if rt.Access != call.Public && (rt.Late || !early) {
		if err := s.admit(r.Context(), c, rt); err != nil {
			answer := s.translate(err, c, id)
			if answer.Status == http.StatusForbidden {
				s.log.InfoContext(r.Context(), "somebody asked for what they may not do", "user", c.User, "method", r.Method, "path",
					r.URL.Path, "request", id)
			}
			return nil, answer
		}
	}
	var raw, sent []byte // sent is as it came
	if rt.Method != http.MethodGet || rt.Takes != nil {
		most := int64(limit.RequestBody)
		if rt.Body > 0 {
			most = rt.Body
		}
		var body *limit.Body
		if rt.Parts {
			body = limit.OpenStream(w, r, most)
		} else {
			body = s.cfg.Bodies.Open(w, r, most, rt.Access != call.Public)
		}
		defer body.Close()
		switch {
		case rt.Parts:
			c.Parts = body
		case rt.Form:
			r.Body = io.NopCloser(body)
		default:
			if raw, err = readBody(body); err == nil {
				sent = raw
			}
			if err == nil && raw != nil && isForm(r) {
				c.Query, err = withForm(query, raw)
				raw = nil
			}
			if err == nil {
				c.Body, err = decode(raw)
			}
			// Where there is nothing to send, members are arguments.
			if sent, is := c.Body.(map[string]any); is && rt.Method == http.MethodDelete && rt.Takes == nil {
				for name, v := range sent {
					text, is := v.(string)
					if !is {
						text = rest.Repr(v)
					}
					c.Query.Add(name, text)
				}
			}
		}
		if err != nil {
			return nil, err
		}
	}
	s.look(r.Context(), seen)
	if err := c.CheckQuery(rt); err != nil {
		return nil, err
	}
	if early {
		return nil, s.late(r.Context(), c, rt, id)
	}
	tags, err := matches(r, rt)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	ctx := r.Context()
	if rt.Access != call.Public { // those are machines
		ctx = node.WithRequester(ctx, node.Requester{User: c.User, Project: who.ProjectID,
			Trusted: who.All || who.System || who.Trusted})
	}
	rep, elsewhere, answer := s.attempt(ctx, rt, c, id, tags)
	for pause := firstPause; answer != nil && answer.Again && time.Since(began)+
		pause <= s.cfg.LockWait; pause = min(2*pause, longestPause) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, answer
		}
		if s.cfg.Meter != nil {
			s.cfg.Meter.Repeated()
		}
		c.Body, _ = decode(raw) // again, because a handler may have changed its copy; decoding succeeded before
		rep, elsewhere, answer = s.attempt(ctx, rt, c, id, tags)
	}
	switch {
	case elsewhere == nil:
	case from != nil: // it was the last hop
		rep, _, answer = s.elsewhere(ctx, c, elsewhere, id, sent, false, rep)
		if answer != nil {
			answer.Moved = true
		}
	default:
		rep, answer = s.atOwner(ctx, rt, c, id, tags, elsewhere, rep, raw, sent)
	}
	if c.User != "" && r.Method != http.MethodGet && !rt.Session {
		status := 0
		if answer != nil {
			status = answer.Status
		} else {
			status = rep.Status
		}
		s.log.InfoContext(ctx, "somebody asked for a change", "user", c.User, "method", r.Method, "path", r.URL.Path,
			"status", status, "took", time.Since(began).Round(time.Microsecond), "request", id)
	}
	return rep, answer
}

// late is the answer of a route that the version does not have, of which Ironic's handler finds that out.
func (s *Server) late(ctx context.Context, c *call.Call, rt *call.Route, id string) *rest.Error {
	if !rt.Late && rt.Query != call.Members {
		if fault := rt.Takes.Check(cmp.Or(c.Body, any(map[string]any{}))); fault != "" && rt.Method != http.MethodGet {
			return rest.BadRequest("Schema error for body: %s", fault)
		}
		return rt.TooNew(c.Version)
	}
	if err := c.Typed(rt.Takes); err != nil {
		return err
	}
	if rt.Late {
		if _, err := s.find.Node(ctx, c); err != nil {
			return s.translate(err, c, id)
		}
	}
	return rt.TooNew(c.Version)
}

// How long a request waits for a locked node before it looks again: at first, and in the end.
const (
	firstPause   = 20 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

// attempt has the route's handler answer. tags are those of the If-Match, nil without one. An error that says that
// another conductor has to be asked comes beside its answer.
func (s *Server) attempt(ctx context.Context, rt *call.Route, c *call.Call, id string,
	tags *rest.Tags) (*call.Reply, *engine.ElsewhereError, *rest.Error) {
	if tags != nil {
		expecting, e, err := s.expect(ctx, c, rt, tags)
		if err != nil {
			return nil, nil, s.translate(err, c, id)
		}
		defer e.End() // the client does not wait for work after the answer
		ctx = expecting
	}
	rep, err := rt.Handle(ctx, c)
	if err != nil {
		var elsewhere *engine.ElsewhereError
		errors.As(err, &elsewhere)
		rep = nil // some handlers have made it before they knew
		if lesser := (*call.LesserError)(nil); errors.As(err, &lesser) {
			rep = lesser.Reply
		}
		return rep, elsewhere, s.translate(err, c, id)
	}
	return rep, nil, nil
}

// fail sends an error. HEAD has no body, but the length it would have.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, e *rest.Error) {
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	if e.Moved {
		w.Header().Set(peer.MovedHeader, "1")
	}
	send(w, r, e.Status, e.Body())
}

func send(w http.ResponseWriter, r *http.Request, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // if this fails, the client is gone
	}
}

func requestID() string {
	b := make([]byte, 16)
	rand.Read(b)
	return "req-" + hex.EncodeToString(b)
}

// base is the scheme and host that links in answers begin with.
func (s *Server) base(r *http.Request) string {
	if s.cfg.PublicURL != "" {
		return s.cfg.PublicURL
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	host, ok := s.hosts.of(r)
	if !ok && s.hosts.warned.CompareAndSwap(false, true) {
		s.log.Warn("a request came by a name that is not known as this server's, so links in its answer begin with the server's address: set api.public_url, or list the name in api.host_names", "host", r.Host, "used", host)
	}
	return scheme + "://" + host
}

// normalise splits a path into decoded segments. Paths without a version are those of /v1, and trailing slashes don't
// count; ours reports that it belongs to Ingot's own part, which has no microversions.
func normalise(escaped string) (segments []string, ours bool) {
	// A slash may be written %2F, as in Ironic.
	path, err := url.PathUnescape(escaped)
	if err != nil {
		path = escaped
	}
	segments = strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
	if len(segments) == 0 {
		return nil, false
	}
	if segments[0] == "ingot" || len(segments) == 1 && slices.Contains([]string{descriptionPath[1:], metricsPath[1:]},
		segments[0]) {
		return segments, true
	}
	if segments[0] != "v1" {
		segments = append([]string{"v1"}, segments...)
	}
	return segments, false
}

func acceptsJSON(accept []string) bool {
	if len(accept) == 0 {
		return true
	}
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		kind, _, _ := strings.Cut(strings.TrimSpace(part), ";")
		switch strings.ToLower(strings.TrimSpace(kind)) {
		case "", "*/*", "application/*", "application/json", "application/vnd.openstack.ironic.v1+json":
			return true
		}
	}
	return false
}

// parseQuery reads a query. shown writes the values of an argument that is there twice.
func parseQuery(raw string, shown func(any) string) (url.Values, *rest.Error) {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return nil, rest.BadRequest("The query of the address is not well formed: %v", err)
	}
	for k, v := range q {
		if len(v) > 1 {
			list := make([]any, len(v))
			for i := range v {
				list[i] = v[i]
			}
			return nil, rest.BadRequest("Expected string for %s: %s", k, shown(list))
		}
	}
	return q, nil
}

func isForm(r *http.Request) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == "application/x-www-form-urlencoded"
}

// maxMembers is how many members a form may have: more than any request knows.
const maxMembers = 100

// withForm returns the arguments of a query and of the form in a body. JSON that is declared as a form is refused with
// no more than its first character: it may hold secrets.
func withForm(query string, raw []byte) (url.Values, *rest.Error) {
	raw = bytes.TrimSpace(raw)
	switch {
	case raw[0] == '{' || raw[0] == '[':
		return nil, rest.BadRequest(
			"Unexpected arguments: %c...: the body is JSON, and its Content-Type is that of a form.", raw[0])
	case bytes.Count(raw, []byte("&")) >= maxMembers:
		return nil, rest.BadRequest("The form in the body has more than %d members.", maxMembers)
	}
	return parseQuery(query+"&"+string(raw), rest.Shown)
}

// valueCost is about the memory of a JSON value, besides its text; limit.Values bounds how many a body may have.
const (
	valueCost = 48
)

// readBody returns a body that is not too large and not nested too deeply, or nil for none. What will be made of it is
// charged to its budget.
func readBody(body *limit.Body) ([]byte, *rest.Error) {
	b, err := io.ReadAll(body)
	if err != nil {
		return nil, call.BodyError(err)
	}
	b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")) // a byte order mark
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, nil
	}
	values, deep := survey(b, maxDepth)
	switch {
	case deep:
		return nil, rest.BadRequest("The body is nested deeper than %d levels.", maxDepth)
	case values > limit.Values:
		return nil, rest.Fault(http.StatusRequestEntityTooLarge, "The body has more than %d values.", limit.Values)
	case !body.Charge(int64(values) * valueCost):
		return nil, call.BodyError(limit.ErrBusy)
	}
	return b, nil
}

// decode decodes a body that readBody returned; the values are the caller's own.
func decode(raw []byte) (v any, _ *rest.Error) {
	if raw == nil {
		return nil, nil
	}
	if err := exact.Unmarshal(raw, &v); err != nil {
		return nil, rest.BadRequest("The body is not JSON: %v", err)
	}
	return v, nil
}

// survey counts values and brackets outside of strings: no decoder has to be trusted with hostile depth.
func survey(b []byte, limit int) (values int, deep bool) {
	depth, inString := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			values++
			if depth++; depth > limit {
				return values, true
			}
		case c == '}' || c == ']':
			depth--
		case c == ',':
			values++
		}
	}
	return values, false
}
