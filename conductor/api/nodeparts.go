package api

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// nodePartRoutes are the routes of parts of a node: children, firmware, BIOS settings, indicators, virtual media, RAID, boot mode,
// console, and the vendor's own methods. What stands behind most of them is conductor/hardware's; a node whose interfaces can't do
// a thing is answered as clients know it from drivers without the feature.
func (s *Server) nodePartRoutes() []call.Route {
	const get, post, put, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete
	rs := []call.Route{
		{Method: get, Path: "/v1/nodes/{node}/states/console", Access: call.Use, Handle: s.getConsole},
		{Method: put, Path: "/v1/nodes/{node}/states/console", Access: call.Use, Handle: s.putConsole},
		{Method: put, Path: "/v1/nodes/{node}/states/raid", Access: call.Write, Since: rest.VersionRAID, Handle: s.putRAID},
		{Method: put, Path: "/v1/nodes/{node}/states/boot_mode", Access: call.Write, Since: rest.VersionSetBootMode, Hidden: true, Handle: s.putBootMode},
		{Method: put, Path: "/v1/nodes/{node}/states/secure_boot", Access: call.Write, Since: rest.VersionSetBootMode, Hidden: true, Handle: s.putSecureBoot},
		{Method: put, Path: "/v1/nodes/{node}/management/inject_nmi", Access: call.Use, Since: rest.VersionNMI, Hidden: true, Handle: s.injectNMI},
		{Method: get, Path: "/v1/nodes/{node}/management/indicators", Access: call.Read, Since: rest.VersionIndicators, Hidden: true, Handle: s.listIndicators},
		{Method: get, Path: "/v1/nodes/{node}/management/indicators/{indicator}", Access: call.Read, Since: rest.VersionIndicators, Hidden: true, Handle: s.getIndicator},
		{Method: put, Path: "/v1/nodes/{node}/management/indicators/{indicator}", Access: call.Use, Since: rest.VersionIndicators, Hidden: true, Handle: s.putIndicator},
		{Method: get, Path: "/v1/nodes/{node}/bios", Access: call.Read, Since: 40, Hidden: true, Handle: s.listBIOS},
		{Method: get, Path: "/v1/nodes/{node}/bios/{setting}", Access: call.Read, Since: 40, Hidden: true, Handle: s.getBIOS},
		{Method: get, Path: "/v1/nodes/{node}/firmware", Access: call.Read, Since: rest.VersionFirmware, Hidden: true, Handle: s.listFirmware},
		{Method: get, Path: "/v1/nodes/{node}/children", Access: call.Read, Since: rest.VersionChildren, Hidden: true, Handle: s.listChildren},
		{Method: get, Path: "/v1/nodes/{node}/vmedia", Access: call.Read, Since: rest.VersionGetMedia, Hidden: true, Handle: s.getMedia},
		{Method: post, Path: "/v1/nodes/{node}/vmedia", Access: call.Write, Since: rest.VersionAttachMedia, Hidden: true, Handle: s.attachMedia},
		{Method: del, Path: "/v1/nodes/{node}/vmedia", Access: call.Write, Since: rest.VersionAttachMedia, Hidden: true, Handle: s.detachMedia},
		{Method: get, Path: "/v1/nodes/{node}/vendor_passthru/methods", Access: call.Write, Handle: s.listVendorMethods},
		{Method: get, Path: "/v1/drivers/{driver}/raid/logical_disk_properties", Access: call.Read, Since: rest.VersionRAID, Handle: s.getDiskProperties},
		{Method: get, Path: "/v1/drivers/{driver}/vendor_passthru/methods", Access: call.Admin, Handle: s.listDriverMethods},
	}
	for _, method := range []string{get, post, put, del} {
		rs = append(rs,
			call.Route{Method: method, Path: "/v1/nodes/{node}/vendor_passthru", Access: call.Write, Handle: s.callVendor},
			call.Route{Method: method, Path: "/v1/drivers/{driver}/vendor_passthru", Access: call.Admin, Handle: s.callDriver},
			// The method in the address is how python-ironicclient calls it.
			call.Route{Method: method, Path: "/v1/nodes/{node}/vendor_passthru/{method}", Access: call.Write, Handle: s.callVendor},
			call.Route{Method: method, Path: "/v1/drivers/{driver}/vendor_passthru/{method}", Access: call.Admin, Handle: s.callDriver},
		)
	}
	return rs
}

// keep stores what came of an act on a node's hardware, with a line in its history.
func (s *Server) keep(ctx context.Context, c *call.Call, n *node.Node, event string, set func(*node.Node)) error {
	_, err := s.store.Change(ctx, n.UUID, func(n *node.Node, also *node.Also) error {
		set(n)
		also.History = append(also.History, node.HistoryEntry{Type: "management", Severity: "INFO", Event: event, Conductor: s.cfg.Hostname, User: c.User})
		return nil
	})
	return err
}

func (s *Server) getConsole(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow(); err != nil {
		return nil, err
	}
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	info, err := s.cfg.Hardware.Console(n).Info(ctx, n)
	if isUnsupported(err) || err != nil && n.ConsoleEnabled {
		return nil, err
	}
	shown := any(info)
	if !n.ConsoleEnabled {
		shown = nil
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.Object{{Name: "console_enabled", Value: n.ConsoleEnabled}, {Name: "console_info", Value: shown}}}, nil
}

func (s *Server) putConsole(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Arguments("enabled")
	if err != nil {
		return nil, err
	}
	v, ok := b["enabled"]
	if !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: enabled")
	}
	on, err := document.Boolean("enabled", v)
	if err != nil {
		return nil, err
	}
	n, nerr := s.find.Free(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	act, event := s.cfg.Hardware.Console(n).Stop, "console stopped"
	if on {
		act, event = s.cfg.Hardware.Console(n).Start, "console started"
	}
	if err := act(ctx, n); err != nil {
		return nil, err
	}
	if on != n.ConsoleEnabled {
		if err := s.keep(ctx, c, n, event, func(n *node.Node) { n.ConsoleEnabled = on }); err != nil {
			return nil, err
		}
	}
	return call.Accepted(c, "states/console"), nil
}

func (s *Server) putRAID(ctx context.Context, c *call.Call) (*call.Reply, error) {
	config, err := c.Object("target_raid_config")
	if err != nil {
		return nil, err
	}
	n, nerr := s.find.Free(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	if err := s.cfg.Hardware.RAID(n).Check(n, config); err != nil {
		if isUnsupported(err) {
			return nil, rest.NotFound("%s", err.Error()) // not 400, as everywhere else
		}
		return nil, err
	}
	nerr = s.keep(ctx, c, n, "target RAID configuration set", func(n *node.Node) { n.TargetRAID = config })
	if nerr != nil {
		return nil, nerr
	}
	return call.NoContent(), nil
}

// settled refuses a change of how the machine boots while something is under way that depends on it.
func settled(n *node.Node, what string) error {
	if !n.Provision.IsStable() {
		return rest.Conflict("Node is in %s state. Since node is transitioning, the %s will not be set as this may interfere with ongoing changes and result in erroneous modification. Try again later.", n.Provision, what)
	}
	return nil
}

func (s *Server) putBootMode(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Arguments("target")
	if err != nil {
		return nil, err
	}
	v, ok := b["target"]
	if !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: target")
	}
	mode, _ := v.(string)
	if mode != "bios" && mode != "uefi" {
		return nil, rest.BadRequest("Invalid boot mode %s requested for node. Allowed boot modes are: bios, uefi", strings.Trim(rest.Repr(v), "'"))
	}
	n, nerr := s.find.Free(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	if err := settled(n, "boot mode"); err != nil {
		return nil, err
	}
	if err := s.cfg.Hardware.Management(n).SetBootMode(ctx, n, mode); err != nil {
		return nil, err
	}
	nerr = s.keep(ctx, c, n, "boot mode set to "+mode, func(n *node.Node) { n.BootMode = mode })
	if nerr != nil {
		return nil, nerr
	}
	return call.Accepted(c, "states"), nil
}

func (s *Server) putSecureBoot(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Arguments("target")
	if err != nil {
		return nil, err
	}
	v, ok := b["target"]
	if !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: target")
	}
	if v == nil {
		return nil, rest.BadRequest("Invalid secure_boot None requested for node. Allowed secure_boot states are: True, False) ")
	}
	on, err := document.Boolean("target", v)
	if err != nil {
		return nil, err
	}
	n, nerr := s.find.Free(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	if err := settled(n, "boot mode"); err != nil {
		return nil, err
	}
	if err := s.cfg.Hardware.Management(n).SetSecureBoot(ctx, n, on); err != nil {
		return nil, err
	}
	event := map[bool]string{true: "Secure Boot turned on", false: "Secure Boot turned off"}[on]
	if err := s.keep(ctx, c, n, event, func(n *node.Node) { n.SecureBoot = &on }); err != nil {
		return nil, err
	}
	return call.Accepted(c, "states"), nil
}

func (s *Server) injectNMI(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if _, err := c.Arguments(); err != nil {
		return nil, err
	}
	n, err := s.find.Free(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Hardware.Management(n).InjectNMI(ctx, n); err != nil {
		return nil, err
	}
	if err := s.keep(ctx, c, n, "non-maskable interrupt sent", func(*node.Node) {}); err != nil {
		return nil, err
	}
	return call.NoContent(), nil
}

// lampName splits "led@system".
func lampName(c *call.Call) (name, component string, err *rest.Error) {
	name, component, ok := strings.Cut(c.Path["indicator"], "@")
	if !ok {
		return "", "", rest.BadRequest("Malformed indicator name %q", c.Path["indicator"])
	}
	return name, component, nil
}

func (s *Server) listIndicators(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow(); err != nil {
		return nil, err
	}
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	lamps, err := s.cfg.Hardware.Management(n).Indicators(ctx, n, "")
	if err != nil {
		return nil, err
	}
	items := make([]rest.Object, len(lamps))
	for i, l := range lamps {
		name := l.Name + "@" + l.Component
		items[i] = rest.Object{
			{Name: "name", Value: name}, {Name: "component", Value: l.Component}, {Name: "readonly", Value: l.ReadOnly}, {Name: "states", Value: l.States},
			{Name: "links", Value: rest.Links(c.Base, "nodes/"+c.Path["node"]+"/management/indicators/"+name)},
		}
	}
	return call.List("indicators", items, ""), nil
}

func (s *Server) getIndicator(ctx context.Context, c *call.Call) (*call.Reply, error) {
	name, component, err := lampName(c)
	if err != nil {
		return nil, err
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	state, nerr := s.cfg.Hardware.Management(n).Indicator(ctx, n, component, name)
	if nerr != nil {
		return nil, nerr
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.Object{{Name: "state", Value: state}}}, nil
}

func (s *Server) putIndicator(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Arguments("state")
	if err != nil {
		return nil, err
	}
	v, ok := b["state"]
	if !ok {
		return nil, rest.BadRequest("Missing mandatory parameter: state")
	}
	state, ok := v.(string)
	if !ok {
		return nil, rest.BadRequest("Expected string for state: %s", rest.Repr(v))
	}
	name, component, err := lampName(c)
	if err != nil {
		return nil, err
	}
	n, nerr := s.find.Free(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	if err := s.cfg.Hardware.Management(n).SetIndicator(ctx, n, component, name, state); err != nil {
		return nil, err
	}
	return call.NoContent(), nil
}

func (s *Server) listChildren(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow(); err != nil {
		return nil, err
	}
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	nodes, err := s.store.Nodes(ctx, store.Query{ParentNode: &n.UUID, Project: c.Scope()})
	if err != nil {
		return nil, err
	}
	uuids := make([]string, len(nodes))
	for i, child := range nodes {
		uuids[i] = child.UUID
	}
	return &call.Reply{Status: http.StatusOK, Body: rest.Object{
		{Name: "children", Value: uuids},
		{Name: "links", Value: rest.Link{Href: c.Base + "/v1/nodes/?parent_node=" + n.UUID, Rel: "children"}},
	}}, nil
}

// queryOnly checks ?fields= and ?detail= of BIOS settings and firmware: which fields to show of each.
func queryOnly[T any](c *call.Call, fields rest.Fields[T], short []string, since rest.Version) ([]string, *rest.Error) {
	if err := c.Allow("fields", "detail"); err != nil {
		return nil, err
	}
	detail, err := c.Flag("detail")
	if err != nil {
		return nil, err
	}
	asked := c.Text("fields")
	if (detail != nil || asked != nil) && c.Version < since {
		return nil, rest.NotAcceptable()
	}
	all := detail != nil && *detail
	switch {
	case all && asked != nil:
		return nil, rest.BadRequest("Can not specify ?detail=True and fields in the same request.")
	case all:
		return nil, nil
	case asked == nil:
		return short, nil
	}
	names, err := fields.Select(c.Version, *asked)
	if err != nil {
		return nil, err
	}
	return append([]string{"created_at", "updated_at"}, slices.DeleteFunc(names, func(n string) bool { return n == "created_at" || n == "updated_at" })...), nil
}

func showBIOS(c *call.Call, ident string, b *node.BIOSSetting) rest.BIOSSetting {
	return rest.BIOSSetting{
		CreatedAt: rest.NullTime{Time: b.CreatedAt}, UpdatedAt: rest.NullTime{Time: b.UpdatedAt}, Name: b.Name, Value: rest.Null(b.Value),
		AttributeType: rest.Null(b.AttributeType), AllowableValues: b.Allowable, LowerBound: b.LowerBound, MaxLength: b.MaxLength,
		MinLength: b.MinLength, ReadOnly: b.ReadOnly, ResetRequired: b.ResetRequired, Unique: b.Unique, UpperBound: b.UpperBound,
		Links: rest.Links(c.Base, "nodes/"+ident+"/bios/"+b.Name),
	}
}

func (s *Server) listBIOS(ctx context.Context, c *call.Call) (*call.Reply, error) {
	names, err := queryOnly(c, rest.BIOSFields, rest.BIOSListFields, rest.VersionBIOSRegistry)
	if err != nil {
		return nil, err
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	items := make([]rest.Object, len(n.BIOS))
	for i := range n.BIOS {
		shown := showBIOS(c, c.Path["node"], &n.BIOS[i])
		items[i] = rest.BIOSFields.Render(&shown, c.Version, names)
	}
	return call.List("bios", items, ""), nil
}

func (s *Server) getBIOS(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow(); err != nil {
		return nil, err
	}
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	name := c.Path["setting"]
	i := slices.IndexFunc(n.BIOS, func(b node.BIOSSetting) bool { return b.Name == name })
	if i < 0 {
		return nil, rest.NotFound("Node %s doesn't have a BIOS setting '%s'", n.UUID, name)
	}
	shown := showBIOS(c, n.UUID, &n.BIOS[i])
	return &call.Reply{Status: http.StatusOK, Body: rest.Object{{Name: name, Value: rest.BIOSFields.Render(&shown, c.Version, nil)}}}, nil
}

func (s *Server) listFirmware(ctx context.Context, c *call.Call) (*call.Reply, error) {
	names, err := queryOnly(c, rest.FirmwareFields, nil, rest.VersionFirmware)
	if err != nil {
		return nil, err
	}
	n, nerr := s.find.Node(ctx, c)
	if nerr != nil {
		return nil, nerr
	}
	items := make([]rest.Object, len(n.Firmware))
	for i, f := range n.Firmware {
		shown := rest.Firmware{
			CreatedAt: rest.NullTime{Time: f.CreatedAt}, UpdatedAt: rest.NullTime{Time: f.UpdatedAt}, Component: f.Component,
			InitialVersion: rest.Null(f.InitialVersion), CurrentVersion: rest.Null(f.CurrentVersion), LastVersionFlashed: rest.Null(f.LastVersionFlashed),
		}
		items[i] = rest.FirmwareFields.Render(&shown, c.Version, names)
	}
	return call.List("firmware", items, ""), nil
}

// mediaDevices are the devices that an image can be put into.
var mediaDevices = []string{"disk", "cdrom", "floppy"}

var mediaSchema = &rest.Schema{
	Types: []string{"object"}, Closed: true, Required: []string{"device_type", "image_url"},
	Props: map[string]*rest.Schema{
		"device_type":           {Types: []string{"string"}, Enum: []any{"disk", "cdrom", "floppy"}},
		"image_url":             {Types: []string{"string"}},
		"image_download_source": {Types: []string{"string"}, Enum: []any{"http", "local", "swift"}},
	},
}

func (s *Server) getMedia(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow(); err != nil {
		return nil, err
	}
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	media, err := s.cfg.Hardware.Management(n).VirtualMedia(ctx, n)
	if err != nil {
		return nil, err
	}
	items := make([]rest.Object, len(media))
	for i, m := range media {
		items[i] = rest.Object{{Name: "media_types", Value: m.Types}, {Name: "inserted", Value: m.Inserted}, {Name: "image", Value: rest.Null(m.URL)}}
	}
	return &call.Reply{Status: http.StatusOK, Body: items}, nil
}

func (s *Server) attachMedia(ctx context.Context, c *call.Call) (*call.Reply, error) {
	b, err := c.Object("vmedia")
	if err != nil {
		return nil, err
	}
	if fault := mediaSchema.Check(b); fault != "" {
		return nil, rest.BadRequest("Schema error for vmedia: %s", fault)
	}
	device, address := b["device_type"].(string), b["image_url"].(string)
	scheme, _, _ := strings.Cut(address, ":")
	if !strings.Contains(address, "://") {
		scheme = ""
	}
	if !slices.Contains([]string{"http", "https", "nfs", "cifs", "smb"}, strings.ToLower(scheme)) {
		return nil, rest.BadRequest("Unsupported or missing URL scheme: %s", scheme)
	}
	if source := b["image_download_source"]; source != nil && source != "http" {
		return nil, rest.BadRequest("Images are given to the node's controller by their URL; set image_download_source to http.")
	}
	return s.media(ctx, c, "attach virtual media", "an image was put into the virtual "+device, func(ctx context.Context, n *node.Node) error {
		return s.cfg.Hardware.Management(n).AttachMedia(ctx, n, device, address)
	})
}

// mediaWait is how long a request waits for virtual media: whoever asks again at once should not find the node locked by the first request.
const mediaWait = time.Second

// media does something with virtual media behind the answer, as Ironic does: controllers fetch images slowly. The node is locked
// meanwhile, and what goes wrong is in its last_error and its history, even that its driver has no virtual media.
func (s *Server) media(ctx context.Context, c *call.Call, what, done string, act func(context.Context, *node.Node) error) (*call.Reply, error) {
	n, err := s.find.Node(ctx, c)
	if err != nil {
		return nil, err
	}
	release, err := s.lock(ctx, n)
	if err != nil {
		return nil, err
	}
	finished := make(chan struct{})
	bg, cancel := context.WithTimeout(context.WithoutCancel(ctx), vendorTime)
	s.background.Go(func() {
		defer close(finished)
		defer cancel()
		defer release(bg)
		if err := act(bg, n); err != nil {
			s.log.Warn("virtual media", "node", n.UUID, "err", err)
			s.complain(bg, c, n, what+": "+err.Error())
			return
		}
		if err := s.keep(bg, c, n, done, func(n *node.Node) { n.LastError = "" }); err != nil {
			s.log.Error("what was done with virtual media is not in the history", "node", n.UUID, "err", err)
		}
	})
	wait := time.NewTimer(mediaWait)
	defer wait.Stop()
	select {
	case <-finished:
	case <-wait.C:
	case <-ctx.Done():
	}
	return call.NoContent(), nil
}

func (s *Server) detachMedia(ctx context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow("device_types"); err != nil {
		return nil, err
	}
	var devices []string
	if asked := c.Text("device_types"); asked != nil && *asked != "" {
		devices = strings.Split(*asked, ",")
	}
	wrong := slices.DeleteFunc(slices.Clone(devices), func(d string) bool { return slices.Contains(mediaDevices, d) })
	if len(wrong) > 0 {
		return nil, rest.BadRequest("Invalid device type(s) %s (valid are %s)", strings.Join(wrong, ", "), strings.Join(mediaDevices, ", "))
	}
	return s.media(ctx, c, "detach virtual media", "virtual media were taken out", func(ctx context.Context, n *node.Node) error {
		return s.cfg.Hardware.Management(n).DetachMedia(ctx, n, devices)
	})
}

// getDiskProperties tells what a logical disk of a hardware type's default RAID interface may have.
func (s *Server) getDiskProperties(_ context.Context, c *call.Call) (*call.Reply, error) {
	if err := c.Allow(); err != nil {
		return nil, err
	}
	name := c.Path["driver"]
	if !s.driverExists(name) {
		return nil, unknownDriver(name)
	}
	n := &node.Node{Driver: name}
	props, err := s.cfg.Hardware.RAID(n).Properties(n)
	if isUnsupported(err) {
		return nil, rest.NotFound("%s", err.Error())
	}
	if err != nil {
		return nil, err
	}
	o := rest.Object{}
	for _, p := range props {
		o = append(o, rest.Member{Name: p.Name, Value: p.Description})
	}
	return &call.Reply{Status: http.StatusOK, Body: o}, nil
}

func isUnsupported(err error) bool {
	_, ok := err.(*hardware.UnsupportedError) //nolint:errorlint // it is what a Set gives, not wrapped
	return ok
}

// vendorTime is how long a vendor's method may take that nobody waits for.
const vendorTime = 10 * time.Minute
