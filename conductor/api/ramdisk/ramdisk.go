// Package ramdisk answers a stock agent (ironic-python-agent): lookup, heartbeat, continue_inspection.
//
// Ingot's own agent has a session of its own and uses none of them.
package ramdisk

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/api/finder"
	"github.com/ingot-metal/ingot/conductor/api/nodes"
	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// nodeStore is the part of the store that a ramdisk's requests need.
type nodeStore interface {
	Node(ctx context.Context, ident string) (*node.Node, error)
	Nodes(ctx context.Context, q store.Query) ([]*node.Node, error)
	Ports(ctx context.Context, q store.PortQuery) ([]*node.Port, error)
	UpdateNode(ctx context.Context, uuid string, change func(*node.Node) error) (*node.Node, error)
	Change(ctx context.Context, uuid string, change func(*node.Node, *node.SideEffects) error) (*node.Node, error)
}

// Handlers answer the requests.
type Handlers struct {
	store    nodeStore
	find     *finder.Finder
	nodes    *nodes.Handlers
	hostname string
	reading  chan struct{} // one inventory that is larger than an ordinary body is read at a time
}

// New makes Handlers of the conductor hostname.
func New(st nodeStore, find *finder.Finder, ns *nodes.Handlers, hostname string) *Handlers {
	return &Handlers{store: st, find: find, nodes: ns, hostname: hostname, reading: make(chan struct{}, 1)}
}

// Routes are the calls of a stock agent (ironic-python-agent). Ingot's own agent has a session of its own and uses none
// of them. A stock agent finds its node and gets a token as it does from Ironic, but is not driven: its first valid
// heartbeat is refused with a sentence that says so, which its log and the node's history show. The calls are public,
// as in Ironic: a ramdisk has no password.
func (s *Handlers) Routes() []call.Route {
	return []call.Route{
		{Method: http.MethodGet, Path: "/v1/lookup", Access: call.Public, Query: call.Named, Since: rest.VersionRamdisk,
			Hidden: true, Args: call.Args{"addresses": call.Texts, "node_uuid": call.Text},
			Answers: call.OK(lookupShape()), Handle: s.lookup},
		{Method: http.MethodPost, Path: "/v1/heartbeat/{node}", Access: call.Public, Since: rest.VersionRamdisk,
			Hidden: true, Query: call.Members,
			Takes:   call.Body([]string{"callback_url"}, call.Dated(rest.HeartbeatParameters, nil)),
			Answers: call.Answers{}, Handle: s.heartbeat},
		{Method: http.MethodPost, Path: "/v1/continue_inspection", Access: call.Public, Query: call.Named,
			Body: limit.Inspection, Parts: true, Args: call.Args{"node_uuid": call.Text}, Takes: inspectionSchema,
			Answers: call.Answers{}, Handle: s.continueInspection},
	}
}

// lookupIn are the states in which a ramdisk is expected to look up its node.
var lookupIn = []node.State{node.Deploying, node.DeployWait, node.Cleaning, node.CleanWait, node.Inspecting,
	node.InspectWait, node.Rescuing, node.RescueWait, node.ServiceWait}

// unknownNode is lookup's answer both for a missing node and for one in the wrong state: callers must not learn which.
func unknownNode() *rest.Error { return rest.NotFound("Resource could not be found.") }

func (s *Handlers) lookup(ctx context.Context, c *call.Call) (*call.Reply, error) {
	id := c.Query.Get("node_uuid")
	if c.Query.Has("node_uuid") && !document.IsUUID(id) {
		return nil, rest.BadRequest("Expected UUID for node_uuid: %s", id)
	}
	var macs []string
	for a := range strings.SplitSeq(c.Query.Get("addresses"), ",") {
		if mac, ok := document.HardwareAddress(strings.TrimSpace(a)); ok {
			macs = append(macs, mac)
		}
	}
	if id == "" && len(macs) == 0 {
		return nil, rest.BadRequest("At least one of 'addresses' and 'node_uuid' parameters is required")
	}
	n, err := s.ramdiskNode(ctx, id, macs, lookupIn)
	if err != nil {
		return nil, err
	}
	token := ""
	if c.Version >= rest.VersionToken {
		if n, token, err = s.giveToken(ctx, n); err != nil {
			return nil, err
		}
	}
	return &call.Reply{Status: http.StatusOK, Body: s.showToRamdisk(c, n, token)}, nil
}

// ramdiskNode finds the node that a ramdisk is on, by its UUID or by the addresses of its ports, if it is in one of the
// states.
func (s *Handlers) ramdiskNode(ctx context.Context, id string, macs []string, in []node.State) (*node.Node, error) {
	if id == "" {
		for _, mac := range macs {
			ports, err := s.store.Ports(ctx, store.PortQuery{Address: &mac})
			if err != nil {
				return nil, err
			}
			for _, p := range ports {
				if id != "" && id != p.NodeUUID {
					return nil, unknownNode() // one machine with ports of several nodes
				}
				id = p.NodeUUID
			}
		}
	}
	if id == "" {
		return nil, unknownNode()
	}
	n, err := s.store.Node(ctx, id)
	if errors.Is(err, store.ErrNotFound) || err == nil &&
		(!slices.Contains(in, n.Provision) || n.UUID != strings.ToLower(id)) {
		return nil, unknownNode()
	}
	return n, err
}

// Era identifies the validity of a token: one boot of the agent, in one job.
func Era(n *node.Node) string {
	if n.Job == nil {
		return fmt.Sprintf("%d", n.Generation)
	}
	return fmt.Sprintf("%d %s", n.Generation, n.Job.ID)
}

// tokenHash returns the hash of the token of the node's agent; "" when it has none that is still valid.
func tokenHash(n *node.Node) string {
	hash, of, _ := strings.Cut(n.AgentTokenHash, " ")
	if of != Era(n) {
		return ""
	}
	return hash
}

// HashToken returns the form in which an agent token is stored.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// giveToken gives the agent its token, once: a second request gets the mask, because the first may have come from
// another host.
func (s *Handlers) giveToken(ctx context.Context, n *node.Node) (*node.Node, string, error) {
	token := rest.Masked
	n, err := s.store.UpdateNode(ctx, n.UUID, func(n *node.Node) error {
		if !slices.Contains(lookupIn, n.Provision) {
			return unknownNode()
		}
		token = rest.Masked
		if tokenHash(n) != "" {
			return nil
		}
		b := make([]byte, 32)
		rand.Read(b)
		token = base64.RawURLEncoding.EncodeToString(b)
		n.AgentTokenHash, n.AgentURL = HashToken(token)+" "+Era(n), ""
		return nil
	})
	return n, token, err
}

// showToRamdisk makes the answer of lookup. Any client that knows an address gets it, so it has only what an agent
// reads: of instance_info the capabilities, which say how to boot, and of driver_internal_info the agent's fields.
func (s *Handlers) showToRamdisk(c *call.Call, n *node.Node, token string) rest.Object {
	shown := s.nodes.Show(c, n, "properties", "links")
	shown.Properties = redact.Map(n.Properties)
	shown.InstanceInfo = map[string]any{}
	if v, ok := n.InstanceInfo["capabilities"]; ok {
		shown.InstanceInfo["capabilities"] = redact.Value(v)
	}
	shown.DriverInternalInfo = map[string]any{}
	if tokenHash(n) != "" {
		shown.DriverInternalInfo["agent_secret_token"] = rest.Masked
	}
	return rest.Object{
		{Name: "node", Value: rest.NodeFields.Render(&shown, max(c.Version, 3), toRamdisk)},
		{Name: "config", Value: rest.Object{
			{Name: "metrics", Value: rest.Object{
				{Name: "backend", Value: "noop"}, {Name: "prepend_host", Value: false},
				{Name: "prepend_uuid", Value: false}, {Name: "prepend_host_reverse", Value: true},
				{Name: "global_prefix", Value: nil},
			}},
			{Name: "metrics_statsd",
				Value: rest.Object{{Name: "statsd_host", Value: s.hostname}, {Name: "statsd_port", Value: 8125}}},
			{Name: "heartbeat_timeout", Value: 300},
			{Name: "agent_token", Value: rest.Null(token)},
			{Name: "agent_token_required", Value: true},
			{Name: "disable_deep_image_inspection", Value: false},
			{Name: "permitted_image_formats", Value: []string{"raw", "qcow2", "iso"}},
			{Name: "enable_bios_bootloader_install", Value: true},
		}},
	}
}

// lookupShape is the answer of lookup.
func lookupShape() rest.Object {
	n := rest.NodeFields.Schema().Called("RamdiskNode")
	maps.DeleteFunc(n.Props, func(name string, _ *rest.Schema) bool { return !slices.Contains(toRamdisk, name) })
	// agents of all versions get their token there
	n.Props["driver_internal_info"] = n.Props["driver_internal_info"].From(0)
	return rest.Object{{Name: "node", Value: n}, {Name: "config", Value: map[string]any{}}}
}

// toRamdisk are the fields of a node that a ramdisk is shown.
var toRamdisk = []string{"uuid", "properties", "instance_info", "driver_internal_info", "links"}

// notDriven is why a stock agent's work ends before it begins.
const notDriven = "Node %s can't be worked on by this agent: this conductor drives its own agent only. Boot the machine from the network of the conductor, or from an image made by \"ingot ramdisk\"."

func (s *Handlers) heartbeat(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Arguments(slices.Collect(maps.Keys(rest.HeartbeatParameters))...)
	if err != nil {
		return nil, err
	}
	text := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(b)) {
		v, ok := b[name].(string)
		if !ok && b[name] != nil {
			return nil, rest.BadRequest("Expected string for %s: %s", name, rest.Shown(redact.Map(b)[name]))
		}
		text[name] = v
	}
	if _, ok := b["callback_url"]; !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: callback_url")
	}
	switch {
	case text["agent_version"] != "" && c.Version < rest.HeartbeatParameters["agent_version"]:
		return nil, rest.BadRequest(`Field "agent_version" not recognised`)
	case (text["agent_status"] != "" || text["agent_status_message"] != "") &&
		c.Version < rest.HeartbeatParameters["agent_status"]:
		return nil, rest.BadRequest(`Fields "agent_status" and "agent_status_message" not recognised.`)
	case b["agent_verify_ca"] != nil && c.Version < rest.HeartbeatParameters["agent_verify_ca"]:
		return nil, rest.BadRequest(`Field "agent_verify_ca" not recognised in this version`)
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	callback, perr := url.Parse(text["callback_url"])
	if perr != nil || callback.Scheme != "http" && callback.Scheme != "https" || callback.Host == "" {
		return nil, rest.BadRequest(`An issue with the supplied "callback_url" has been detected.`)
	}
	status := text["agent_status"]
	switch {
	case b["agent_token"] == nil:
		return nil, rest.BadRequest("Agent token is required for heartbeat processing.")
	case status != "" && status != "start" && status != "end" && status != "error":
		return nil, rest.BadRequest("Agent status is invalid. Valid states are start,end,error.")
	}
	var answer *rest.Error
	_, nerr = s.store.Change(ctx, n.UUID, func(n *node.Node, effects *node.SideEffects) error {
		hash := tokenHash(n)
		switch {
		case !slices.Contains(lookupIn, n.Provision) || hash == "" ||
			subtle.ConstantTimeCompare([]byte(hash), []byte(HashToken(text["agent_token"]))) != 1:
			answer = rest.BadRequest("Invalid or missing agent token received.")
			return nil
		case text["agent_version"] == "":
			answer = rest.BadRequest(
				"Agent did not transmit a version, and a version is required. Please update the agent being used.")
			return nil
		case n.AgentURL != "" && n.AgentURL != callback.String():
			answer = rest.BadRequest(`Detected change in ramdisk provided "callback_url"`)
			return nil
		}
		answer = rest.BadRequest(notDriven, n.UUID)
		if n.AgentURL == "" { // once a boot: it will come again every minute or two
			n.AgentURL = callback.String()
			effects.History = append(effects.History,
				node.HistoryEntry{Type: "monitoring", Severity: "ERROR", Conductor: s.hostname,
					Event: fmt.Sprintf("a foreign agent, version %s, at %s, asked for work: %s",
						clean.Line(text["agent_version"], 64), clean.Line(redact.URL(callback.String()), 256),
						answer.Message)})
		}
		return nil
	})
	if nerr != nil {
		return nil, nerr
	}
	return nil, answer
}

// inspectionSchema is the least that an inventory must have.
var inspectionSchema = &rest.Schema{
	Types: []string{"object"}, Required: []string{"inventory"},
	Props: map[string]*rest.Schema{"inventory": {
		Types: []string{"object"}, Required: []string{"interfaces"},
		Props: map[string]*rest.Schema{
			"bmc_address": document.OptionalText, "bmc_v6address": document.OptionalText,
			"interfaces": {Types: []string{"array"}, MinLen: 1, Items: &rest.Schema{
				Types: []string{"object"}, Required: []string{"mac_address"},
				Props: map[string]*rest.Schema{"mac_address": {Types: []string{"string"}}},
			}},
		},
	}},
}

// continueInspection is where a stock ramdisk sends its results. Ingot's agent does not use the address, and requests
// here carry no proof of their sender: they are checked and refused.
func (s *Handlers) continueInspection(ctx context.Context, c *call.Call) (*call.Reply, error) {
	id := c.Query.Get("node_uuid")
	// 1.1 is there for agents that never learned of versions.
	if c.Version < rest.VersionContinue && (c.Version != rest.MinVersion || id != "") {
		return nil, rest.NotFound("API version %s or newer is required", rest.VersionContinue)
	}
	if id != "" && !document.IsUUID(id) {
		return nil, rest.BadRequest("Expected UUID for node_uuid: %s", id)
	}
	b, err := s.readInventory(ctx, c, strings.ToLower(id))
	if err != nil {
		return nil, err
	}
	if fault := inspectionSchema.Check(b); fault != "" {
		return nil, rest.BadRequest("Schema error for data: %s", fault)
	}
	inventory := b["inventory"].(map[string]any)
	var macs []string
	for _, i := range inventory["interfaces"].([]any) {
		if mac, ok := document.HardwareAddress(i.(map[string]any)["mac_address"].(string)); ok {
			macs = append(macs, mac)
		}
	}
	if len(macs) == 0 && id == "" && inventory["bmc_address"] == nil && inventory["bmc_v6address"] == nil {
		return nil, rest.BadRequest("No lookup information provided")
	}
	n, nerr := s.ramdiskNode(ctx, id, macs, []node.State{node.InspectWait})
	if nerr != nil {
		return nil, nerr
	}
	return nil, rest.BadRequest(notDriven, n.UUID)
}
