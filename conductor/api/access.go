package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// ruling is the access that a route requires.
type ruling struct {
	rule access.Rule
	// inBody: the object is named in the body or the query, or the rule depends on them, or on the resource's owner. A
	// caller whom the rule could ever let through reaches the handler, which checks again with Call.May, Call.MayFor or
	// Finder.Visible.
	inBody bool
	// unseen: a caller whom the rule never lets through reaches the handler, too, for which the object is not there.
	unseen bool
}

// rulings are the routes with a rule of their own. The others have the rule of their Access (see fallback), which is
// the stricter the less is known about them: what belongs to no node can be read by readers of the system and changed
// by its administrators.
var rulings = map[string]ruling{
	"GET /v1/nodes":          {rule: access.NodeList},
	"POST /v1/nodes":         {rule: access.NodeCreateOwn},
	"DELETE /v1/nodes":       {rule: access.NodeList}, // only ever an error
	"GET /v1/nodes/detail":   {rule: access.NodeList},
	"GET /v1/nodes/validate": {rule: access.NodeGet, inBody: true, unseen: true},
	"GET /v1/nodes/{node}":   {rule: access.NodeGet},
	// Which attributes may be changed is patchRules' to say.
	"PATCH /v1/nodes/{node}":                                {rule: access.NodeGet, inBody: true},
	"DELETE /v1/nodes/{node}":                               {rule: access.NodeDelete},
	"GET /v1/nodes/{node}/validate":                         {rule: access.NodeValidate},
	"GET /v1/nodes/{node}/states":                           {rule: access.NodeGetStates},
	"PUT /v1/nodes/{node}/states/power":                     {rule: access.NodePower},
	"PUT /v1/nodes/{node}/states/provision":                 {rule: access.NodeProvision},
	"PUT /v1/nodes/{node}/states/raid":                      {rule: access.NodeRAID},
	"PUT /v1/nodes/{node}/states/boot_mode":                 {rule: access.NodeBootMode},
	"PUT /v1/nodes/{node}/states/secure_boot":               {rule: access.NodeSecureBoot},
	"GET /v1/nodes/{node}/states/console":                   {rule: access.NodeGetConsole},
	"PUT /v1/nodes/{node}/states/console":                   {rule: access.NodeSetConsole},
	"PUT /v1/nodes/{node}/maintenance":                      {rule: access.NodeMaintenance},
	"DELETE /v1/nodes/{node}/maintenance":                   {rule: access.NodeMaintenance},
	"GET /v1/nodes/{node}/management/boot_device":           {rule: access.NodeGetBootDevice},
	"GET /v1/nodes/{node}/management/boot_device/supported": {rule: access.NodeGetBootDevice},
	"PUT /v1/nodes/{node}/management/boot_device":           {rule: access.NodeSetBootDevice},
	"PUT /v1/nodes/{node}/management/inject_nmi":            {rule: access.NodeNMI},
	"GET /v1/nodes/{node}/management/indicators":            {rule: access.NodeGetIndicator},
	"GET /v1/nodes/{node}/ports":                            {rule: access.PortGet},
	"GET /v1/nodes/{node}/ports/detail":                     {rule: access.PortGet},
	"GET /v1/nodes/{node}/portgroups":                       {rule: access.PortgroupGet},
	"GET /v1/nodes/{node}/portgroups/detail":                {rule: access.PortgroupGet},
	"GET /v1/nodes/{node}/volume":                           {rule: access.VolumeGet},
	"GET /v1/nodes/{node}/volume/connectors":                {rule: access.VolumeGet},
	"GET /v1/nodes/{node}/volume/targets":                   {rule: access.VolumeGet},
	"GET /v1/nodes/{node}/vifs":                             {rule: access.NodeVIFList},
	"POST /v1/nodes/{node}/vifs":                            {rule: access.NodeVIFAttach},
	"DELETE /v1/nodes/{node}/vifs/{vif}":                    {rule: access.NodeVIFDetach},
	"GET /v1/nodes/{node}/traits":                           {rule: access.NodeTraitsList},
	"PUT /v1/nodes/{node}/traits":                           {rule: access.NodeTraitsSet},
	"PUT /v1/nodes/{node}/traits/{trait}":                   {rule: access.NodeTraitsSet},
	"DELETE /v1/nodes/{node}/traits":                        {rule: access.NodeTraitsDelete},
	"DELETE /v1/nodes/{node}/traits/{trait}":                {rule: access.NodeTraitsDelete},
	"GET /v1/nodes/{node}/bios":                             {rule: access.NodeBIOS},
	"GET /v1/nodes/{node}/bios/{setting}":                   {rule: access.NodeBIOS},
	"GET /v1/nodes/{node}/history":                          {rule: access.NodeHistory},
	"GET /v1/nodes/{node}/history/{event}":                  {rule: access.NodeHistory},
	"GET /v1/nodes/{node}/inventory":                        {rule: access.NodeInventory},
	"GET /ingot/v1/nodes/{node}/erasures":                   {rule: access.NodeHistory},
	"GET /ingot/v1/nodes/{node}/erasures/{erasure}":         {rule: access.NodeHistory},
	"GET /v1/nodes/{node}/vendor_passthru/methods":          {rule: access.NodeVendorPassthru},
	"GET /v1/nodes/{node}/vendor_passthru":                  {rule: access.NodeVendorPassthru},
	"GET /v1/nodes/{node}/vendor_passthru/{method}":         {rule: access.NodeVendorPassthru},
	"POST /v1/nodes/{node}/vendor_passthru":                 {rule: access.NodeVendorPassthru},
	"POST /v1/nodes/{node}/vendor_passthru/{method}":        {rule: access.NodeVendorPassthru},
	"PUT /v1/nodes/{node}/vendor_passthru":                  {rule: access.NodeVendorPassthru},
	"PUT /v1/nodes/{node}/vendor_passthru/{method}":         {rule: access.NodeVendorPassthru},
	"DELETE /v1/nodes/{node}/vendor_passthru":               {rule: access.NodeVendorPassthru},
	"DELETE /v1/nodes/{node}/vendor_passthru/{method}":      {rule: access.NodeVendorPassthru},
	"GET /v1/ports":                                         {rule: access.PortList},
	"GET /v1/ports/detail":                                  {rule: access.PortList},
	"POST /v1/ports":                                        {rule: access.PortCreate, inBody: true},
	"GET /v1/ports/{port}":                                  {rule: access.PortGet},
	"PATCH /v1/ports/{port}":                                {rule: access.PortUpdate},
	"DELETE /v1/ports/{port}":                               {rule: access.PortDelete},
	"GET /v1/portgroups":                                    {rule: access.PortgroupList},
	"GET /v1/portgroups/detail":                             {rule: access.PortgroupList},
	"POST /v1/portgroups":                                   {rule: access.PortgroupCreate, inBody: true},
	"GET /v1/portgroups/{portgroup}":                        {rule: access.PortgroupGet},
	"PATCH /v1/portgroups/{portgroup}":                      {rule: access.PortgroupUpdate},
	"DELETE /v1/portgroups/{portgroup}":                     {rule: access.PortgroupDelete},
	"GET /v1/portgroups/{portgroup}/ports":                  {rule: access.PortGet},
	"GET /v1/portgroups/{portgroup}/ports/detail":           {rule: access.PortGet},
	"GET /v1/volume":                                        {rule: access.VolumeGet},
	"GET /v1/volume/connectors":                             {rule: access.VolumeList},
	"POST /v1/volume/connectors":                            {rule: access.VolumeCreate, inBody: true},
	"GET /v1/volume/connectors/{connector}":                 {rule: access.VolumeGet},
	"PATCH /v1/volume/connectors/{connector}":               {rule: access.VolumeUpdate},
	"DELETE /v1/volume/connectors/{connector}":              {rule: access.VolumeDelete},
	"GET /v1/volume/targets":                                {rule: access.VolumeList},
	"POST /v1/volume/targets":                               {rule: access.VolumeCreate, inBody: true},
	"GET /v1/volume/targets/{target}":                       {rule: access.VolumeGet},
	"PATCH /v1/volume/targets/{target}":                     {rule: access.VolumeUpdate},
	"DELETE /v1/volume/targets/{target}":                    {rule: access.VolumeDelete},
	"GET /v1/inspection_rules":                              {rule: access.InspectionRuleGet},
	"POST /v1/inspection_rules":                             {rule: access.InspectionRuleCreate},
	"GET /v1/inspection_rules/{rule}":                       {rule: access.InspectionRuleGet},
	"PATCH /v1/inspection_rules/{rule}":                     {rule: access.InspectionRuleUpdate},
	"DELETE /v1/inspection_rules/{rule}":                    {rule: access.InspectionRuleDelete},
	"GET /v1/chassis":                                       {rule: access.ChassisGet},
	"GET /v1/chassis/detail":                                {rule: access.ChassisGet},
	"POST /v1/chassis":                                      {rule: access.ChassisCreate},
	"GET /v1/chassis/{chassis}":                             {rule: access.ChassisGet},
	"PATCH /v1/chassis/{chassis}":                           {rule: access.ChassisUpdate},
	"DELETE /v1/chassis/{chassis}":                          {rule: access.ChassisDelete},
	"GET /v1/chassis/{chassis}/nodes":                       {rule: access.NodeList},
	"GET /v1/chassis/{chassis}/nodes/detail":                {rule: access.NodeList},
	"GET /v1/allocations":                                   {rule: access.AllocationList},
	"POST /v1/allocations":                                  {rule: access.AllocationCreate, inBody: true},
	"GET /v1/allocations/{allocation}":                      {rule: access.AllocationGet, inBody: true},
	"PATCH /v1/allocations/{allocation}":                    {rule: access.AllocationUpdate, inBody: true},
	"DELETE /v1/allocations/{allocation}":                   {rule: access.AllocationDelete, inBody: true},
	"GET /ingot/v1/reservations":                            {rule: access.AllocationList},
	"POST /ingot/v1/reservations":                           {rule: access.AllocationCreate, inBody: true},
	"GET /ingot/v1/reservations/{reservation}":              {rule: access.AllocationGet, inBody: true},
	"PATCH /ingot/v1/reservations/{reservation}":            {rule: access.AllocationUpdate, inBody: true},
	"DELETE /ingot/v1/reservations/{reservation}":           {rule: access.AllocationDelete, inBody: true},
	// The rule of the allocation is checked once there is one.
	"GET /v1/nodes/{node}/allocation":                       {rule: access.NodeGet, inBody: true},
	"DELETE /v1/nodes/{node}/allocation":                    {rule: access.NodeGet, inBody: true},
	"GET /v1/deploy_templates":                              {rule: access.TemplateGet},
	"POST /v1/deploy_templates":                             {rule: access.TemplateCreate},
	"GET /v1/deploy_templates/{template}":                   {rule: access.TemplateGet},
	"PATCH /v1/deploy_templates/{template}":                 {rule: access.TemplateUpdate},
	"DELETE /v1/deploy_templates/{template}":                {rule: access.TemplateDelete},
	"GET /v1/runbooks":                                      {rule: access.RunbookList},
	"POST /v1/runbooks":                                     {rule: access.RunbookCreate},
	"GET /v1/runbooks/{runbook}":                            {rule: access.RunbookList},
	"PATCH /v1/runbooks/{runbook}":                          {rule: access.RunbookUpdate, inBody: true},
	"DELETE /v1/runbooks/{runbook}":                         {rule: access.RunbookDelete, inBody: true},
	"GET /v1/runbooks/{runbook}/traits":                     {rule: access.RunbookGet, inBody: true},
	"PUT /v1/runbooks/{runbook}/traits":                     {rule: access.RunbookUpdate, inBody: true},
	"PUT /v1/runbooks/{runbook}/traits/{trait}":             {rule: access.RunbookUpdate, inBody: true},
	"DELETE /v1/runbooks/{runbook}/traits":                  {rule: access.RunbookUpdate, inBody: true},
	"DELETE /v1/runbooks/{runbook}/traits/{trait}":          {rule: access.RunbookUpdate, inBody: true},
	"GET /v1/drivers":                                       {rule: access.DriverGet},
	"GET /v1/drivers/{driver}":                              {rule: access.DriverGet},
	"GET /v1/drivers/{driver}/properties":                   {rule: access.DriverGet},
	"GET /v1/drivers/{driver}/raid/logical_disk_properties": {rule: access.DriverGet},
	"GET /v1/drivers/{driver}/vendor_passthru/methods":      {rule: access.DriverPassthru},
	"GET /v1/drivers/{driver}/vendor_passthru":              {rule: access.DriverPassthru},
	"GET /v1/drivers/{driver}/vendor_passthru/{method}":     {rule: access.DriverPassthru},
	"POST /v1/drivers/{driver}/vendor_passthru":             {rule: access.DriverPassthru},
	"POST /v1/drivers/{driver}/vendor_passthru/{method}":    {rule: access.DriverPassthru},
	"PUT /v1/drivers/{driver}/vendor_passthru":              {rule: access.DriverPassthru},
	"PUT /v1/drivers/{driver}/vendor_passthru/{method}":     {rule: access.DriverPassthru},
	"DELETE /v1/drivers/{driver}/vendor_passthru":           {rule: access.DriverPassthru},
	"DELETE /v1/drivers/{driver}/vendor_passthru/{method}":  {rule: access.DriverPassthru},
	"GET /v1/conductors":                                    {rule: access.ConductorGet},
	"GET /v1/conductors/{conductor}":                        {rule: access.ConductorGet},
	"GET /v1/shards":                                        {rule: access.ShardsGet},
	"GET /ingot/v1/nodes/{node}/progress":                   {rule: access.IngotProgress},
	"GET /ingot/v1/progress":                                {rule: access.IngotEvents},
	"GET /ingot/v1/nodes/{node}/health":                     {rule: access.NodeHistory},
	"GET /ingot/v1/nodes/{node}/root_disk":                  {rule: access.NodeInventory},
	"GET /ingot/v1/nodes/{node}/timeline":                   {rule: access.IngotProgress},
	"GET /ingot/v1/medians":                                 {rule: access.IngotEvents},
	"GET /ingot/v1/access":                                  {rule: access.NodeList},
	"GET /ingot/v1/capabilities":                            {rule: access.DriverGet},
	"GET /ingot/v1/log":                                     {rule: access.IngotEvents},
	"GET /ingot/v1/events":                                  {rule: access.IngotEvents},
	"GET /ingot/v1/nodes/{node}/lock":                       {rule: access.NodeGetReservation},
	"DELETE /ingot/v1/nodes/{node}/lock":                    {rule: access.IngotBreakLock},
	"GET /ingot/v1/nodes/{node}/quarantine":                 {rule: access.NodeGet},
	"POST /ingot/v1/nodes/{node}/quarantine":                {rule: access.IngotQuarantine},
	"DELETE /ingot/v1/nodes/{node}/quarantine":              {rule: access.IngotQuarantine},
	"GET /ingot/v1/nodes/{node}/logs":                       {rule: access.IngotLogs},
	"GET /ingot/v1/exports":                                 {rule: access.IngotExports},
	"POST /ingot/v1/nodes/{node}/export_failure":            {rule: access.IngotExports},
	"GET /ingot/v1/nodes/{node}/steps":                      {rule: access.IngotProgress},
	"POST /ingot/v1/nodes/{node}/console":                   {rule: access.NodeSetConsole},
	"GET /ingot/v1/nodes/{node}/console/{session}":          {rule: access.NodeSetConsole},
	"POST /ingot/v1/nodes/{node}/console/{session}":         {rule: access.NodeSetConsole},
	"DELETE /ingot/v1/nodes/{node}/console/{session}":       {rule: access.NodeSetConsole},
	"POST /ingot/v1/nodes/{node}/plan":                      {rule: access.NodeProvision},
	"POST /ingot/v1/nodes/{node}/image_check":               {rule: access.NodeProvision},
	"POST /ingot/v1/nodes/{node}/rule_check":                {rule: access.InspectionRuleCreate},

	// Parts of nodes that came later.
	"GET /v1/nodes/{node}/management/indicators/{indicator}": {rule: access.NodeGetIndicator},
	"PUT /v1/nodes/{node}/management/indicators/{indicator}": {rule: access.NodeSetIndicator},
	"GET /v1/nodes/{node}/firmware":                          {rule: access.NodeFirmware},
	"GET /v1/nodes/{node}/children":                          {rule: access.NodeGet},
	"GET /v1/nodes/{node}/vmedia":                            {rule: access.NodeMediaGet},
	"POST /v1/nodes/{node}/vmedia":                           {rule: access.NodeMediaAttach},
	"DELETE /v1/nodes/{node}/vmedia":                         {rule: access.NodeMediaDetach},
	"POST /v1/events":                                        {rule: access.EventsPost},
}

// fallback is the rule of a route that has none of its own.
func fallback(rt *call.Route) ruling {
	ofNode := strings.Contains(rt.Path, "/{node}")
	switch {
	case ofNode && rt.Access == call.Read:
		return ruling{rule: access.NodeGet}
	case ofNode && rt.Access == call.Use:
		return ruling{rule: access.NodeProvision}
	case ofNode && rt.Access == call.Write:
		return ruling{rule: access.NodeUpdateDriverInfo}
	case rt.Access == call.Read:
		return ruling{rule: access.IngotRead}
	}
	return ruling{rule: access.IngotAdmin}
}

func rulingOf(rt *call.Route) ruling {
	if r, ok := rulings[rt.Method+" "+rt.Path]; ok {
		return r
	}
	return fallback(rt)
}

// openToRamdisks leaves out, where so configured, the routes that every host which reaches the API may call.
func (s *Server) openToRamdisks(rs []call.Route) []call.Route {
	if !s.cfg.NoRamdisk {
		return rs
	}
	return slices.DeleteFunc(rs, func(rt call.Route) bool { return rt.Access == call.Public })
}

// authenticate identifies the caller.
func (s *Server) authenticate(r *http.Request) (*access.Actor, *call.Reply, *rest.Error) {
	if s.cfg.Authenticate == nil {
		return access.Anybody(), nil, nil
	}
	a, err := s.cfg.Authenticate(r)
	if err == nil && a != nil {
		return a, nil, nil
	}
	var refusal *access.Refusal
	switch {
	case err == nil:
		err = errors.New("no authenticator accepted the request")
	case errors.As(err, &refusal) &&
		(refusal.Status == http.StatusServiceUnavailable || refusal.Status == http.StatusTooManyRequests):
		e := rest.Fault(refusal.Status, "%s", refusal.Message)
		e.RetryAfter = refusal.RetryAfter
		return nil, nil, e
	case errors.As(err, &refusal):
		o := rest.Object{{Name: "message", Value: refusal.Message}, {Name: "code", Value: refusal.Status}}
		if strings.HasPrefix(refusal.Challenge, "Keystone") { // as Keystone's own middleware says it
			o = append(o, rest.Member{Name: "title", Value: http.StatusText(refusal.Status)})
		}
		return nil, &call.Reply{Status: refusal.Status, Challenge: refusal.Challenge,
			Body: rest.Object{{Name: "error", Value: o}}}, nil
	}
	if gone(r) {
		return nil, nil, rest.Fault(http.StatusServiceUnavailable, "The request was given up.")
	}
	s.log.Error("authentication failed for a reason of the server's own", "path", r.URL.Path, "err", err)
	return nil, nil,
		rest.Fault(http.StatusInternalServerError, "It could not be found out who you are; the server's log says why.")
}

// admit lets a request through to its handler, or not. The object in the address is looked up first: an invisible one
// counts as missing.
func (s *Server) admit(ctx context.Context, c *call.Call, rt *call.Route) error {
	if c.Actor.All {
		return nil
	}
	r := rulingOf(rt)
	o, err := s.object(ctx, c)
	if err != nil {
		return err
	}
	if r.unseen || r.inBody && c.Actor.MayEver(r.rule) {
		return nil
	}
	return c.MayFor(r.rule, o)
}

// object returns the owner and lessee of the object in the address; the zero value if it does not exist or has no
// owner.
func (s *Server) object(ctx context.Context, c *call.Call) (access.Object, error) {
	if _, ok := c.Path["node"]; ok {
		n, err := s.find.Node(ctx, c)
		if err != nil {
			return access.Object{}, err
		}
		c.Remember(n, c.Path["node"])
		return access.Of(n), nil
	}
	if _, ok := c.Path["port"]; ok {
		p, err := s.ports.Port(ctx, c)
		if err != nil {
			return access.Object{}, err
		}
		n, err := s.find.Visible(ctx, c, p.NodeUUID)
		if err != nil {
			return access.Object{}, err
		}
		return access.Of(n), nil
	}
	if ident, ok := c.Path["portgroup"]; ok {
		return s.ports.Groups().Object(ctx, c, ident)
	}
	if ident, ok := c.Path["connector"]; ok {
		return s.volumes.Connectors().Object(ctx, c, ident)
	}
	if ident, ok := c.Path["target"]; ok {
		return s.volumes.Targets().Object(ctx, c, ident)
	}
	return access.Object{}, nil
}
