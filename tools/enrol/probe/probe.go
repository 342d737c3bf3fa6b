// Package probe finds out what a controller with Redfish is and can do: it follows the links of its tree, within
// bounds, and judges what it read. The answers can be kept in an archive without what is private, and judged again.
package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/quirk"
)

// Bounds of a probe.
const (
	mostCalls = 1000
	mostBytes = 32 << 20
	mostTime  = 10 * time.Minute
)

const root = "/redfish/v1/"

// left are parts of paths that are not followed: long, or about people and not about the machine.
var left = []string{"/Entries", "/JsonSchemas", "/Registries/", "/Sessions", "/Accounts", "/Roles", "/Subscriptions",
	"/Certificates", "/$metadata", "/odata", "/TelemetryService", "/MetricReports"}

// Getter asks a controller for a path.
type Getter interface {
	Get(ctx context.Context, path string) (status int, body []byte, err error)
}

// Call is one request, and what came of it.
type Call struct {
	Path   string `json:"path"`
	Status int    `json:"status,omitempty"` // 0 without an answer
	Millis int64  `json:"ms"`
	Bytes  int    `json:"bytes"`
	Fault  string `json:"fault,omitempty"`
}

// Machine is a system of the controller.
type Machine struct {
	Path         string `json:"path"`
	Manufacturer string `json:"manufacturer,omitempty"`
	Model        string `json:"model,omitempty"`
	Firmware     string `json:"controller_firmware,omitempty"`
	// Can are its abilities and Lacks what it has not, in words.
	Can   []string `json:"can"`
	Lacks []string `json:"lacks,omitempty"`
	// Rows are those of the table of controllers that differ.
	Rows []string `json:"rows,omitempty"`
}

// Report has the findings of a probe.
type Report struct {
	Vendor   string    `json:"vendor,omitempty"`
	Product  string    `json:"product,omitempty"`
	Version  string    `json:"redfish_version,omitempty"`
	Machines []Machine `json:"machines"`
	Calls    []Call    `json:"calls"`
	// Notes say what was not looked at.
	Notes []string `json:"notes,omitempty"`
}

// Run probes a controller. With everything false, only the service root is read, which needs no account. The answers
// are returned, too, by path.
func Run(ctx context.Context, g Getter, everything bool) (*Report, map[string]json.RawMessage) {
	ctx, cancel := context.WithTimeout(ctx, mostTime)
	defer cancel()
	r, answers, bytes := &Report{}, map[string]json.RawMessage{}, 0
	todo, known := []string{root}, map[string]bool{root: true}
	for len(todo) > 0 {
		if len(r.Calls) == mostCalls || bytes > mostBytes || ctx.Err() != nil {
			r.Notes = append(r.Notes, fmt.Sprintf("ended after %d requests: at least %d paths were not looked at",
				len(r.Calls), len(todo)))
			break
		}
		path := todo[0]
		todo = todo[1:]
		begun := time.Now()
		status, body, err := g.Get(ctx, path)
		call := Call{Path: path, Status: status, Millis: time.Since(begun).Milliseconds(), Bytes: len(body)}
		bytes += len(body)
		var doc any
		switch {
		case err != nil:
			call.Fault = text(err.Error())
		case status == http.StatusOK && json.Unmarshal(body, &doc) != nil:
			call.Fault = "the answer is no JSON"
		case status == http.StatusOK:
			answers[path] = body
		}
		r.Calls = append(r.Calls, call)
		if path == root && doc == nil {
			break // no service is there
		}
		if !everything {
			r.Notes = append(r.Notes, "without a user name only the service root was read")
			break
		}
		for _, link := range links(doc) {
			if !known[link] && follows(link) {
				known[link] = true
				todo = append(todo, link)
			}
		}
	}
	r.judge(answers)
	return r, answers
}

// Refused reports whether the controller showed its service root, which is for everyone, and declined the rest.
func (r *Report) Refused() bool {
	return len(r.Calls) > 1 && !slices.ContainsFunc(r.Calls[1:], func(c Call) bool {
		return c.Status != http.StatusUnauthorized && c.Status != http.StatusForbidden
	})
}

// follows reports whether a path is looked at.
func follows(path string) bool {
	odd := func(r rune) bool { return r <= ' ' || r > '~' || r == '#' || r == '?' }
	return strings.HasPrefix(path, root) && len(path) < 300 && !strings.ContainsFunc(path, odd) &&
		!slices.ContainsFunc(left, func(part string) bool { return strings.Contains(path, part) })
}

// links are the paths that a document leads to, without a slash at their end, sorted.
func links(doc any) (all []string) {
	switch v := doc.(type) {
	case map[string]any:
		if path, ok := v["@odata.id"].(string); ok {
			all = append(all, strings.TrimSuffix(path, "/"))
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			all = append(all, links(v[name])...)
		}
	case []any:
		for _, one := range v {
			all = append(all, links(one)...)
		}
	}
	return all
}

type link struct {
	ID string `json:"@odata.id"`
}

// judge fills the report from the answers.
func (r *Report) judge(answers map[string]json.RawMessage) {
	read := func(path string, to any) bool {
		if path != root {
			path = strings.TrimSuffix(path, "/")
		}
		return json.Unmarshal(answers[path], to) == nil
	}
	var service struct {
		Vendor, Product, RedfishVersion                                   string
		Systems, UpdateService, EventService, TaskService, SessionService link
	}
	if !read(root, &service) {
		return
	}
	r.Vendor, r.Product, r.Version = text(service.Vendor), text(service.Product),
		text(service.RedfishVersion)
	var systems struct{ Members []link }
	if !read(service.Systems.ID, &systems) {
		return
	}
	var update struct {
		Actions struct {
			Simple struct{ Target string } `json:"#UpdateService.SimpleUpdate"`
		}
	}
	read(service.UpdateService.ID, &update)
	for _, member := range systems.Members {
		r.machine(read, member.ID, quirk.Identity{Vendor: service.Vendor, Product: service.Product}, []ability{
			{"sessions", service.SessionService.ID != ""}, {"events", service.EventService.ID != ""},
			{"tasks", service.TaskService.ID != ""},
			{"firmware updates by URL", update.Actions.Simple.Target != ""}})
	}
}

// ability is something that a controller may have.
type ability struct {
	name string
	has  bool
}

// machine judges one system.
func (r *Report) machine(read func(string, any) bool, path string, id quirk.Identity, all []ability) {
	var s struct {
		Manufacturer, Model string
		Boot                struct {
			Target []string `json:"BootSourceOverrideTarget@Redfish.AllowableValues"`
			Mode   string   `json:"BootSourceOverrideMode"`
			URI    *string  `json:"HttpBootUri"`
		}
		Bios, SecureBoot, Storage, EthernetInterfaces, VirtualMedia link
		Actions                                                     struct {
			Reset struct {
				Types []string `json:"ResetType@Redfish.AllowableValues"`
			} `json:"#ComputerSystem.Reset"`
		}
		Links struct{ ManagedBy []link }
	}
	if !read(path, &s) {
		return
	}
	m := Machine{Path: path, Manufacturer: text(s.Manufacturer), Model: text(s.Model)}
	id.Manufacturer, id.Model = s.Manufacturer, s.Model
	media := s.VirtualMedia.ID
	if len(s.Links.ManagedBy) > 0 {
		var manager struct {
			Model, FirmwareVersion string
			VirtualMedia           link
		}
		read(s.Links.ManagedBy[0].ID, &manager)
		id.Manager, id.Firmware, m.Firmware = manager.Model, manager.FirmwareVersion,
			text(manager.FirmwareVersion)
		if media == "" {
			media = manager.VirtualMedia.ID
		}
	}
	list := func(name string, words []string) ability {
		return ability{text(name + " (" + strings.Join(words, ", ") + ")"), len(words) > 0}
	}
	all = append([]ability{list("power", s.Actions.Reset.Types), list("boot device", s.Boot.Target),
		{"boot mode", s.Boot.Mode != ""}, {"UEFI boot by HTTP from a given address", s.Boot.URI != nil},
		{"Secure Boot", s.SecureBoot.ID != ""}, {"BIOS settings", s.Bios.ID != ""},
		{"virtual media", hasDrive(read, media)}, {"storage", s.Storage.ID != ""},
		{"network cards", s.EthernetInterfaces.ID != ""}}, all...)
	for _, a := range all {
		if a.has {
			m.Can = append(m.Can, a.name)
		} else {
			m.Lacks = append(m.Lacks, strings.TrimSuffix(a.name, " ()"))
		}
	}
	for _, row := range quirk.Match(quirk.Table, id) {
		m.Rows = append(m.Rows, row.Name+": "+string(row.Does))
	}
	r.Machines = append(r.Machines, m)
}

// hasDrive reports whether a collection has a drive for virtual media.
func hasDrive(read func(string, any) bool, home string) bool {
	var drives struct{ Members []link }
	if home == "" || !read(home, &drives) {
		return false
	}
	return slices.ContainsFunc(drives.Members, func(l link) bool {
		var drive struct{ MediaTypes []string }
		return read(l.ID, &drive) && len(drive.MediaTypes) > 0
	})
}

// text is a text of a controller, short and without what a terminal would obey.
func text(s string) string { return clean.Line(s, 200) }
