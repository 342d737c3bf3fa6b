// Package own answers requests below /ingot/v1, for functions that Ironic lacks: quarantine, breaking a lock, work in
// progress, the stream of events, the log over all nodes, and the real features of the hardware types.
package own

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/events"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// nodeStore is the part of the store that these routes need: nodes and their past.
type nodeStore interface {
	Node(ctx context.Context, ident string) (*node.Node, error)
	Nodes(ctx context.Context, q store.Query) ([]*node.Node, error)
	Log(ctx context.Context, q node.LogQuery) ([]node.LogLine, error)
	Marks(ctx context.Context, nodeUUID, jobID string) ([]node.Mark, error)
	Results(ctx context.Context, nodeUUID string) (map[string]json.RawMessage, error)
	Erasures(ctx context.Context, nodeUUID string) ([]erasure.Kept, error)
	Reading(ctx context.Context, nodeUUID string) (node.Reading, error)
	Inventory(ctx context.Context, nodeUUID string) ([]byte, error)
	Fault() error
}

// machines does the work.
type machines interface {
	Progress(nodeUUID string) (node.Progress, bool)
	Quarantine(ctx context.Context, ident, reason, user string) (*node.Node, error)
	Unquarantine(ctx context.Context, ident, user string) (*node.Node, error)
	BreakLock(ctx context.Context, ident, user string) (engine.Lock, error)
	ResetNetwork(ctx context.Context, ident, user string) error
	SetControllerPassword(ctx context.Context, ident, password, user string) error
	Here(n *node.Node) error
	ExportOf(n *node.Node) (*engine.Export, error)
	ExportFailed(ctx context.Context, ident, id, why, user string) error
}

// Progress is how far running work is, by node UUID: of this conductor's nodes, and of all as far as is known or after
// the other conductors have been asked.
type Progress interface {
	Local() map[string]node.Progress
	All() map[string]node.Progress
	Now(ctx context.Context) map[string]node.Progress
}

// Config is the configuration of Handlers.
type Config struct {
	// Authenticate finds out who reads a stream, which lives longer than a login may.
	Authenticate func(r *http.Request) (*access.Actor, *call.Reply, *rest.Error)
	// Drivers are the enabled hardware types, Hardware implements their interfaces.
	Drivers  *driver.Table
	Hardware *hardware.Set
	// Leaving says why clients had better go to another server; "": they need not.
	Leaving func() string
	// Events is the source of the stream of events; nil: the stream is off.
	Events *events.Hub
	// Progress is how far running work is, by node UUID; nil when that is not known.
	Progress Progress
	// Hostname is this conductor's.
	Hostname string
	// Logs returns the lines of a node's agent log after a number; nil when no logs are kept.
	Logs func(nodeUUID string, after uint64) []rest.LogLine
	// ErasureKey is the public key with which reports of erased disks are verified, as PEM.
	ErasureKey string
	// Settings are the settings in use, without secrets; nil when they are not shown.
	Settings func() []rest.Setting
	// ImageFiles are the images that this conductor serves; nil: it serves none.
	ImageFiles func() (rest.ImageFiles, error)
	// Certificates are the conductor's own, with their ends; nil when there are none.
	Certificates func() ([]rest.Certificate, error)
}

// Handlers answer the requests.
type Handlers struct {
	store  nodeStore
	engine machines
	find   *finder.Finder
	cfg    Config
	log    *slog.Logger
}

// New makes Handlers.
func New(st nodeStore, en machines, find *finder.Finder, cfg Config, log *slog.Logger) *Handlers {
	return &Handlers{store: st, engine: en, find: find, cfg: cfg, log: log}
}

// What may be in the queries of routes.
var (
	logArgs = call.Args{"node": call.Text, "user": call.Text, "project": call.Text, "type": call.Text,
		"severity": call.Text, "text": call.Text, "since": call.Text, "until": call.Text, "limit": call.Number,
		"marker": call.Text, "sort_dir": call.PageArgs["sort_dir"]}
	eventArgs    = call.Args{"node": call.Text, "type": call.Text, "since": call.Number}
	stepArgs     = call.Args{"full": call.Truth}
	timelineArgs = call.Args{"job": call.Text}
	medianArgs   = call.Args{"phase": call.Text}
	runningArgs  = call.Args{"conductor": call.Text}
	tailArgs     = call.Args{"after": call.Number}
)

// Routes are the routes under /ingot/v1 that this package answers.
func (s *Handlers) Routes() []call.Route {
	const quarantine, lock = "/ingot/v1/nodes/{node}/quarantine", "/ingot/v1/nodes/{node}/lock"
	return append(append(s.erasureRoutes(), s.exportRoutes()...), []call.Route{
		{Method: http.MethodGet, Path: "/ingot/v1/health", Access: call.Public, Answers: call.OK(rest.Health{}),
			Handle: s.getHealth},
		{Method: http.MethodGet, Path: "/ingot/v1/certificates", Access: call.Read,
			Answers: call.OK(rest.Certificates{}), Handle: s.getCertificates},
		{Method: http.MethodGet, Path: "/ingot/v1/settings", Access: call.Read, Answers: call.OK(rest.Settings{}),
			Handle: s.getSettings},
		{Method: http.MethodGet, Path: "/ingot/v1/images", Access: call.Read, Answers: call.OK(rest.ImageFiles{}),
			Handle: s.getImages},
		{Method: http.MethodGet, Path: quarantine, Access: call.Read, Answers: call.OK(rest.Quarantine{}),
			Handle: s.find.Named(s.getQuarantine)},
		{Method: http.MethodPost, Path: quarantine, Access: call.Write,
			Takes: call.Body([]string{"reason"}, call.Args{"reason": call.Text}), Answers: call.OK(rest.Quarantine{}),
			Handle: s.postQuarantine},
		{Method: http.MethodDelete, Path: quarantine, Access: call.Write, Answers: call.None(http.StatusNoContent),
			Handle: s.find.Named(s.deleteQuarantine)},
		{Method: http.MethodGet, Path: lock, Access: call.Read, Answers: call.OK(rest.Lock{}),
			Handle: s.find.Named(s.getLock)},
		{Method: http.MethodDelete, Path: lock, Access: call.Admin, Answers: call.OK(rest.Lock{}),
			Handle: s.find.Named(s.breakLock)},
		{Method: http.MethodPost, Path: "/ingot/v1/nodes/{node}/network_reset", Access: call.Write,
			Answers: call.None(http.StatusNoContent), Handle: s.find.Named(s.resetNetwork)},
		{Method: http.MethodPost, Path: "/ingot/v1/nodes/{node}/controller_password", Access: call.Write,
			Takes:   call.Body([]string{"password"}, call.Args{"password": call.Text}),
			Answers: call.None(http.StatusNoContent), Handle: s.setControllerPassword},
		{Method: http.MethodGet, Path: "/ingot/v1/access", Access: call.Read, Answers: call.OK(rest.Access{}),
			Handle: s.getAccess},
		{Method: http.MethodGet, Path: "/ingot/v1/capabilities", Access: call.Read,
			Answers: call.OK(rest.Capabilities{}), Handle: s.getCapabilities},
		{Method: http.MethodGet, Path: "/ingot/v1/log", Access: call.Read, Query: call.Named, Args: logArgs,
			Answers: call.OK(rest.Log{}), Handle: s.searchLog},
		{Method: http.MethodGet, Path: "/ingot/v1/events", Access: call.Read, Query: call.Named, Stream: true,
			Args: eventArgs, Answers: call.OK(rest.Event{}), Handle: s.followEvents},
		{Method: http.MethodGet, Path: "/ingot/v1/progress", Access: call.Read, Query: call.Named, Args: runningArgs,
			Answers: call.OK(rest.Running{}), Handle: s.getRunning},
		{Method: http.MethodGet, Path: "/ingot/v1/nodes/{node}/progress", Access: call.Read,
			Answers: call.OK(rest.Progress{}), Handle: s.find.Named(s.getProgress)},
		{Method: http.MethodGet, Path: "/ingot/v1/nodes/{node}/root_disk", Access: call.Read,
			Answers: call.OK(rest.RootDisk{}), Handle: s.find.Named(s.getRootDisk)},
		{Method: http.MethodGet, Path: "/ingot/v1/nodes/{node}/health", Access: call.Read,
			Answers: call.OK(rest.MachineHealth{}), Handle: s.find.Named(s.getMachineHealth)},
		{Method: http.MethodGet, Path: "/ingot/v1/nodes/{node}/steps", Access: call.Read, Query: call.Named,
			Args: stepArgs, Answers: call.OK(rest.Steps{}), Handle: s.getSteps},
		{Method: http.MethodGet, Path: "/ingot/v1/nodes/{node}/timeline", Access: call.Read, Query: call.Named,
			Args: timelineArgs, Answers: call.OK(rest.Timeline{}), Handle: s.find.Named(s.getTimeline)},
		{Method: http.MethodGet, Path: "/ingot/v1/medians", Access: call.Read, Query: call.Named, Args: medianArgs,
			Answers: call.OK(rest.Medians{}), Handle: s.getMedian},
		{Method: http.MethodGet, Path: "/ingot/v1/nodes/{node}/logs", Access: call.Read, Query: call.Named,
			Args: tailArgs, Answers: call.OK(rest.Logs{}), Handle: s.getLogs},
	}...)
}

func showQuarantine(c *call.Call, n *node.Node) rest.Quarantine {
	out := rest.Quarantine{NodeUUID: n.UUID}
	if q, v := n.Quarantine, c.View(n); q != nil {
		out.Quarantined, out.Reason = true, rest.Null(v.Error(q.Reason))
		if v.Sees(q.At) {
			out.Since, out.By = rest.NullTime{Time: q.At}, rest.Null(q.By)
		}
	}
	return out
}

func (s *Handlers) getQuarantine(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	return &call.Reply{Status: http.StatusOK, Body: showQuarantine(c, n)}, nil
}

func (s *Handlers) postQuarantine(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, aerr := c.Arguments("reason")
	if aerr != nil {
		return nil, aerr
	}
	reason, ok := b["reason"].(string)
	if !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: reason")
	}
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	if n, err = s.engine.Quarantine(ctx, n.UUID, reason, c.User); err != nil {
		return nil, err
	}
	return &call.Reply{Status: http.StatusOK, Body: showQuarantine(c, n)}, nil
}

func (s *Handlers) deleteQuarantine(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	_, err := s.engine.Unquarantine(ctx, n.UUID, c.User)
	return call.NoContent(), err
}

func showLock(n *node.Node, l engine.Lock) rest.Lock {
	out := rest.Lock{NodeUUID: n.UUID, Locked: l.Holder != "", Holder: rest.Null(l.Holder),
		Purpose: rest.Null(l.Purpose), Since: rest.NullTime{Time: l.Since}}
	if out.Locked && !l.Since.IsZero() {
		out.AgeSeconds = max(0, time.Since(l.Since).Seconds())
	}
	return out
}

func (s *Handlers) getLock(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	return &call.Reply{Status: http.StatusOK, Body: showLock(n, engine.LockOf(n))}, nil
}

// breakLock answers with the lock that was broken.
func (s *Handlers) breakLock(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	l, err := s.engine.BreakLock(ctx, n.UUID, c.User)
	if err != nil {
		return nil, err
	}
	return &call.Reply{Status: http.StatusOK, Body: showLock(n, l)}, nil
}

// longestPassword bounds what goes to a controller.
const longestPassword = 256

// setControllerPassword answers when the controller has taken the password, and it is proven and stored.
func (s *Handlers) setControllerPassword(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, aerr := c.Arguments("password")
	if aerr != nil {
		return nil, aerr
	}
	password, ok := b["password"].(string)
	if !ok || password == "" || len(password) > longestPassword || strings.ContainsFunc(password, unicode.IsControl) {
		return nil, rest.BadRequest("password must be a text of 1 to %d characters, all of them printable", longestPassword)
	}
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	return call.NoContent(), s.engine.SetControllerPassword(ctx, n.UUID, password, c.User)
}

// resetNetwork answers when the node's agent has been asked.
func (s *Handlers) resetNetwork(ctx context.Context, c *call.Call, n *node.Node) (*call.Reply, error) {
	return call.NoContent(), s.engine.ResetNetwork(ctx, n.UUID, c.User)
}
