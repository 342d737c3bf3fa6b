// Package dell has the parts of a Redfish service that only Dell's controllers have: the action that clears the job
// queue, the import of a configuration by which a machine boots from virtual media, the state of the Lifecycle
// Controller, and the restart of the controller, after which it is not ready for a while.
//
// Paths and parameters are those of sushy's part for Dell.
package dell

import (
	"context"
	"encoding/xml"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/tasks"
)

// Behaviours of Dell's controllers.
const (
	// ImportTargetIsList declines an import whose Target is a text.
	ImportTargetIsList = "import wants a list of targets"
	// ImportsNothing takes an import, and its job fails.
	ImportsNothing = "import fails"
	// NoDellTree has no resources below /redfish/v1/Dell: they are below their manager.
	NoDellTree = "no /redfish/v1/Dell"
)

const registry = "IDRAC.2.8."

type object = odata.Object

// Options are how a controller behaves.
type Options struct {
	// Has reports whether the controller behaves in some way.
	Has func(behaviour string) bool
	// Manager is the path of the manager.
	Manager string
	// Tasks is the work of the controller.
	Tasks *tasks.Service
	// Restart restarts the controller, which takes the time Down; its Lifecycle Controller then takes it again.
	Restart func()
	Down    time.Duration
	// Boot has the machine boot from the controller's virtual disc: once, or always.
	Boot func(persistent bool)
}

// Controller is the parts of a service that only Dell's controllers have. A nil one has none.
type Controller struct {
	opt Options

	mu        sync.Mutex
	restarted time.Time // zero: never
}

// New makes it.
func New(opt Options) *Controller { return &Controller{opt: opt} }

// Leave puts a job into the queue that waits for a start of the machine, such as a forgotten one.
func (c *Controller) Leave() {
	c.opt.Tasks.Add(tasks.Work{Name: "Configure: BIOS.Setup.1-1", Type: "BIOSConfiguration",
		Stages: []tasks.Stage{{AtStart: true}}})
}

// has reports whether a job of the queue is in a state.
func (c *Controller) has(state string) bool {
	return slices.ContainsFunc(c.opt.Tasks.Unfinished(), func(id string) bool {
		return c.opt.Tasks.Resource(c.opt.Manager + "/Oem/Dell/Jobs/" + id)["JobState"] == state
	})
}

// Ready reports whether the Lifecycle Controller has started.
func (c *Controller) Ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.restarted) >= 2*c.opt.Down
}

// root is where Dell's services of the manager are.
func (c *Controller) root() string {
	if c.opt.Has(NoDellTree) {
		return c.opt.Manager + "/Oem/Dell"
	}
	return odata.Root + "/Dell" + strings.TrimPrefix(c.opt.Manager, odata.Root)
}

// The actions of Dell's services, by the name of the service.
var actions = map[string]string{"DellLCService": "GetRemoteServicesAPIStatus", "DellJobService": "DeleteJobQueue"}

func (c *Controller) action(service string) string {
	return c.root() + "/" + service + "/Actions/" + service + "." + actions[service]
}
func (c *Controller) reset() string { return c.opt.Manager + "/Actions/Manager.Reset" }
func (c *Controller) importing() string {
	return c.opt.Manager + "/Actions/Oem/EID_674_Manager.ImportSystemConfiguration"
}

// Extend adds links and actions to the manager.
func (c *Controller) Extend(path string, o object) {
	if c == nil || path != c.opt.Manager {
		return
	}
	c.mu.Lock()
	at := c.restarted
	c.mu.Unlock()
	if at.IsZero() {
		at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	}
	o["LastResetTime"] = at.UTC().Format(time.RFC3339Nano)
	o["Actions"] = object{
		"#Manager.Reset": object{"target": c.reset(),
			"ResetType@Redfish.AllowableValues": []string{"GracefulRestart"}},
		"Oem": object{"OemManager.v1_0_0#OemManager.ImportSystemConfiguration": object{"target": c.importing()}}}
	links := o["Links"].(object)["Oem"].(object)["Dell"].(object)
	for service := range actions {
		links[service] = odata.Link(c.root() + "/" + service)
	}
}

// Resource returns one of Dell's services; nil if there is none at the path.
func (c *Controller) Resource(path string) object {
	if c == nil {
		return nil
	}
	for service, action := range actions {
		if path == c.root()+"/"+service {
			return object{"@odata.id": path, "@odata.type": "#" + service + ".v1_1_0." + service, "Id": service,
				"Name":    service,
				"Actions": object{"#" + service + "." + action: object{"target": c.action(service)}}}
		}
	}
	return nil
}

// fault is a problem whose message is of Dell's registry.
func fault(id string) *odata.Problem { return &odata.Problem{ID: id, Registry: registry} }

// Unready declines a change while the Lifecycle Controller starts.
func (c *Controller) Unready(method, path string) *odata.Problem {
	if c == nil || method == http.MethodGet || method == http.MethodHead || path == c.action("DellLCService") ||
		strings.HasPrefix(path, odata.Root+"/SessionService") || c.Ready() {
		return nil
	}
	return fault("SYS518")
}

// Answer carries out an action; ok is false if the path is none.
func (c *Controller) Answer(w http.ResponseWriter, path string, body object) (ok bool, problem *odata.Problem) {
	if c == nil {
		return false, nil
	}
	switch path {
	case c.reset():
		if body["ResetType"] != "GracefulRestart" {
			return true, odata.Fault("ActionParameterValueNotInList", fmt.Sprint(body["ResetType"]), "ResetType",
				"Manager.Reset")
		}
		c.mu.Lock()
		c.restarted = time.Now()
		c.mu.Unlock()
		c.opt.Restart()
		w.WriteHeader(http.StatusNoContent)
	case c.action("DellLCService"):
		status := map[bool]string{true: "Ready", false: "NotInitialized"}[c.Ready()]
		odata.Write(w, http.StatusOK, object{"LCStatus": status, "RTStatus": status, "ServerStatus": "OutOfPOST",
			"Status": status})
	case c.action("DellJobService"):
		if body["JobID"] != "JID_CLEARALL" {
			return true, odata.Fault("ActionParameterValueNotInList", fmt.Sprint(body["JobID"]), "JobID",
				"DellJobService.DeleteJobQueue")
		}
		c.opt.Tasks.Clear()
		w.WriteHeader(http.StatusOK)
	case c.importing():
		return true, c.take(w, body)
	default:
		return false, nil
	}
	return true, nil
}

// configuration is the document of an import.
type configuration struct {
	XMLName    xml.Name `xml:"SystemConfiguration"`
	Text       string   `xml:",chardata"`
	Components []struct {
		FQDD       string `xml:",attr"`
		Text       string `xml:",chardata"`
		Attributes []struct {
			Name  string `xml:",attr"`
			Value string `xml:",chardata"`
		} `xml:"Attribute"`
	} `xml:"Component"`
}

// take makes the job of an import.
func (c *Controller) take(w http.ResponseWriter, body object) *odata.Problem {
	const action = "OemManager.ImportSystemConfiguration"
	share, _ := body["ShareParameters"].(object)
	text, isText := body["ImportBuffer"].(string)
	_, isList := share["Target"].([]any)
	_, isOne := share["Target"].(string)
	switch {
	case !isText:
		return odata.Fault("ActionParameterMissing", action, "ImportBuffer")
	case !isList && (!isOne || c.opt.Has(ImportTargetIsList)):
		return odata.Fault("ActionParameterValueTypeError", fmt.Sprint(share["Target"]), "Target", action)
	}
	switch {
	case c.has("Running"):
		return fault("RAC0679")
	case c.has("Scheduled"):
		return fault("LC068")
	}
	c.opt.Tasks.Accepted(w, c.opt.Tasks.Add(tasks.Work{Name: "Configure: Import system configuration XML file",
		Type:   "ImportConfiguration",
		Stages: []tasks.Stage{{Do: func(context.Context) error { return c.apply(text) }}}}))
	return nil
}

// apply makes a configuration's choice of the boot device. Space between elements fails it, as it does at Dell's.
func (c *Controller) apply(text string) error {
	var doc configuration
	if err := xml.Unmarshal([]byte(text), &doc); err != nil || doc.Text != "" || c.opt.Has(ImportsNothing) {
		return fmt.Errorf("the import of the configuration failed")
	}
	set := map[string]string{}
	for _, component := range doc.Components {
		if component.Text != "" || !strings.HasSuffix(c.opt.Manager, "/"+component.FQDD) {
			return fmt.Errorf("there is no component %q", component.FQDD)
		}
		for _, a := range component.Attributes {
			set[a.Name] = a.Value
		}
	}
	const device, once = "ServerBoot.1#FirstBootDevice", "ServerBoot.1#BootOnce"
	if set[device] != "VCD-DVD" || !slices.Contains([]string{"Enabled", "Disabled"}, set[once]) || len(set) != 2 {
		return fmt.Errorf("the configuration has other attributes than the boot device: %v", set)
	}
	c.opt.Boot(set[once] == "Disabled")
	return nil
}
