// Package bios has the settings of a virtual machine's firmware as a Redfish service shows them: attributes, their
// registry, and pending changes, which a start of the machine makes. Nothing else of the machine depends on them.
package bios

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
)

type object = odata.Object

// Options are how a controller behaves.
type Options struct {
	// Forgets takes changes and resets, and does not make them.
	Forgets bool
	// NoRegistry shows no registry of the settings.
	NoRegistry bool
	// POST is how long after its start the machine has made the changes.
	POST time.Duration
	// Starts counts the starts of the machine.
	Starts func() int64
}

// attribute is a setting as its registry describes it.
type attribute struct {
	name, kind   string // kind: Enumeration, String, Integer, Boolean, Password
	def          any
	values       []string
	lower, upper int // of an integer; of a string its length
	readOnly     bool
	unique       bool
}

func toggle(name, def string) attribute {
	return attribute{name: name, kind: "Enumeration", def: def, values: []string{"Enabled", "Disabled"}}
}

var standard = []attribute{toggle("ProcVirtualization", "Enabled"), toggle("NumLock", "Enabled"),
	{name: "BootMode", kind: "Enumeration", def: "Uefi", values: []string{"Uefi", "Legacy"}},
	{name: "AssetTag", kind: "String", def: "", upper: 10, unique: true},
	{name: "BootRetries", kind: "Integer", def: 3, upper: 10}, {name: "QuietBoot", kind: "Boolean", def: true},
	{name: "SerialNumber", kind: "String", def: "LAB1", upper: 20, readOnly: true, unique: true},
	{name: "AdminPassword", kind: "Password", def: nil, lower: 1, upper: 20}}

// shape is how a personality shows its settings.
type shape struct {
	settings   string   // name of the resource with pending settings
	whole      bool     // all settings are pending, not only those that change
	applyTimes []string // none: a change must not have one
	registry   string   // name of the registry, before its version
	more       []attribute
}

var (
	atReset = []string{"OnReset"}
	dell    = "BiosAttributeRegistry"
)

var idrac9 = shape{"Settings", false, []string{"OnReset", "AtMaintenanceWindowStart"}, dell, []attribute{
	toggle("SriovGlobalEnable", "Disabled"),
	{name: "SysMemSize", kind: "String", def: "256 GB", upper: 32, readOnly: true}}}

// shapes are those of personalities that differ from the generic one. Names of Dell's and HPE's settings are theirs.
var shapes = map[string]shape{
	"":              {"Settings", false, atReset, "BiosAttributeRegistryLab", nil},
	"dell-idrac9":   idrac9,
	"dell-idrac9-5": idrac9,
	"dell-idrac10":  {"Settings", false, atReset, dell, []attribute{toggle("SriovGlobalEnable", "Disabled")}},
	"hpe-gen9":      {"Settings", true, nil, "HpBiosAttributeRegistryP89", []attribute{toggle("Sriov", "Enabled")}},
	"hpe-ilo5":      {"settings", true, nil, "BiosAttributeRegistryU30", []attribute{toggle("Sriov", "Enabled")}},
	"hpe-ilo6":      {"settings", true, nil, "BiosAttributeRegistryU54", []attribute{toggle("Sriov", "Enabled")}},
	"lenovo-xcc":    {"Pending", true, atReset, "BiosAttributeRegistry", nil},
	"ami":           {"SD", false, nil, "BiosAttributeRegistry0ACGE", nil},
}

// Machine is the settings of one machine.
type Machine struct {
	path string // of the resource
	opt  Options
	shape
	attributes []attribute

	mu           sync.Mutex
	now, pending map[string]any
	reset        bool // the next start resets all
	starts       int64
	due          time.Time // when the changes of the newest start are made; zero: they are
}

// New makes the settings of a machine of a personality, whose system has this path.
func New(personality, system string, opt Options) *Machine {
	sh, ok := shapes[personality]
	if !ok {
		sh = shapes[""]
	}
	m := &Machine{path: system + "/Bios", opt: opt, shape: sh, attributes: append(slices.Clone(standard), sh.more...),
		pending: map[string]any{}, starts: opt.Starts()}
	m.now = m.defaults()
	return m
}

func (m *Machine) defaults() map[string]any {
	all := map[string]any{}
	for _, a := range m.attributes {
		all[a.name] = a.def
	}
	return all
}

// Set changes a setting, as a person does at the machine's setup.
func (m *Machine) Set(name string, value any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now[name] = value
}

// Now are the settings that the machine runs with.
func (m *Machine) Now() map[string]any {
	m.advance()
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.now)
}

// advance makes pending changes if the machine was started since they were asked for, and is out of POST.
func (m *Machine) advance() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if starts := m.opt.Starts(); starts > m.starts {
		m.starts, m.due = starts, time.Now().Add(m.opt.POST)
	}
	if !m.due.IsZero() && !time.Now().Before(m.due) {
		m.makeLocked()
	}
}

// makeLocked ends the POST of the newest start, if it is not over: what is asked for later is for the next start.
func (m *Machine) makeLocked() {
	if m.due.IsZero() {
		return
	}
	m.due = time.Time{}
	if !m.opt.Forgets {
		if m.reset {
			unique := map[string]any{}
			for _, a := range m.attributes {
				if a.unique {
					unique[a.name] = m.now[a.name]
				}
			}
			m.now = m.defaults()
			maps.Copy(m.now, unique)
		}
		maps.Copy(m.now, m.pending)
	}
	m.reset = false
	clear(m.pending)
}

func (m *Machine) file() string    { return odata.Root + "/Registries/" + m.registry }
func (m *Machine) version() string { return m.registry + ".v1_0_0" }
func (m *Machine) action() string  { return m.path + "/Actions/Bios.ResetBios" }

// Registry is the name of the registry's resource; "" if it is not shown.
func (m *Machine) Registry() string {
	if m.opt.NoRegistry {
		return ""
	}
	return m.registry
}

// IsRegistry reports whether a path is that of the registry itself.
func (m *Machine) IsRegistry(path string) bool { return path == m.file()+"/en.json" }

// IsSettings reports whether a path is that of pending settings.
func (m *Machine) IsSettings(path string) bool { return path == m.path+"/"+m.settings }

// IsReset reports whether a path is that of the action that resets all settings.
func (m *Machine) IsReset(path string) bool { return path == m.action() }

// Extend adds links to the settings and the registries to a resource of the service.
func (m *Machine) Extend(path string, o object) {
	switch {
	case path+"/Bios" == m.path:
		o["Bios"] = odata.Link(m.path)
	case path == odata.Root:
		o["Registries"] = odata.Link(odata.Root + "/Registries")
	}
}

// Resource returns the settings, the pending ones, or a registry; nil if there is none at the path.
func (m *Machine) Resource(path string) object {
	m.advance()
	m.mu.Lock()
	defer m.mu.Unlock()
	file := m.file()
	switch path {
	case m.path:
		settings := object{"@odata.type": "#Settings.v1_3_5.Settings",
			"SettingsObject": odata.Link(m.path + "/" + m.settings)}
		if m.applyTimes != nil {
			settings["SupportedApplyTimes"] = m.applyTimes
		}
		return object{"@odata.id": path, "@odata.type": "#Bios.v1_2_3.Bios", "Id": "Bios", "Name": "BIOS settings",
			"AttributeRegistry": m.version(), "Attributes": maps.Clone(m.now), "@Redfish.Settings": settings,
			"ResetBiosToDefaultsPending": m.reset,
			"Actions":                    object{"#Bios.ResetBios": object{"target": m.action()}}}
	case m.path + "/" + m.settings:
		pending := map[string]any{}
		if m.whole {
			maps.Copy(pending, m.now)
		}
		maps.Copy(pending, m.pending)
		return object{"@odata.id": path, "@odata.type": "#Bios.v1_2_3.Bios", "Id": m.settings,
			"Name": "Pending BIOS settings", "AttributeRegistry": m.version(), "Attributes": pending}
	case file:
		return object{"@odata.id": path, "@odata.type": "#MessageRegistryFile.v1_1_4.MessageRegistryFile",
			"Id": m.registry, "Name": "BIOS settings", "Registry": m.version(), "Languages": []string{"en"},
			"Location": []any{object{"Language": "en", "Uri": file + "/en.json"}}}
	case file + "/en.json":
		var list []any
		for _, a := range m.attributes {
			list = append(list, a.entry())
		}
		return object{"@odata.id": path, "@odata.type": "#AttributeRegistry.v1_3_8.AttributeRegistry", "Id": m.registry,
			"Name": "BIOS settings", "Language": "en", "OwningEntity": "Lab", "RegistryVersion": "1.0.0",
			"RegistryEntries": object{"Attributes": list}}
	}
	return nil
}

func (a attribute) entry() object {
	o := object{"AttributeName": a.name, "Type": a.kind, "DefaultValue": a.def, "ReadOnly": a.readOnly,
		"ResetRequired": true, "DisplayName": a.name, "IsSystemUniqueProperty": a.unique}
	switch a.kind {
	case "Enumeration":
		var values []any
		for _, v := range a.values {
			values = append(values, object{"ValueName": v, "ValueDisplayName": v})
		}
		o["Value"] = values
	case "Integer":
		o["LowerBound"], o["UpperBound"] = a.lower, a.upper
	case "String", "Password":
		o["MinLength"], o["MaxLength"] = a.lower, a.upper
	}
	return o
}

// refuse says why a value can't be the setting's; nil if it can.
func (a attribute) refuse(v any) *odata.Problem {
	if a.readOnly {
		return odata.Fault("PropertyNotWritable", a.name)
	}
	text, isText := v.(string)
	number, isNumber := v.(float64)
	_, isBool := v.(bool)
	right := map[string]bool{"Enumeration": isText, "String": isText, "Boolean": isBool,
		"Integer": isNumber && number == math.Trunc(number)}
	switch {
	case !right[a.kind]:
		return odata.Fault("PropertyValueTypeError", fmt.Sprint(v), a.name)
	case a.kind == "Enumeration" && !slices.Contains(a.values, text), a.kind == "String" && len(text) > a.upper,
		a.kind == "Integer" && (number < float64(a.lower) || number > float64(a.upper)):
		return odata.Fault("PropertyValueNotInList", fmt.Sprint(v), a.name)
	}
	return nil
}

// Patch takes changes for the next start of the machine: all or none.
func (m *Machine) Patch(_ string, body object) *odata.Problem {
	m.advance()
	changes, _ := body["Attributes"].(object)
	apply, timed := body["@Redfish.SettingsApplyTime"].(object)
	for key := range body {
		if key != "Attributes" && (key != "@Redfish.SettingsApplyTime" || m.applyTimes == nil) {
			return odata.Fault("PropertyUnknown", key)
		}
	}
	if at, _ := apply["ApplyTime"].(string); timed && !slices.Contains(m.applyTimes, at) {
		return odata.Fault("PropertyValueNotInList", at, "ApplyTime")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, v := range changes {
		i := slices.IndexFunc(m.attributes, func(a attribute) bool { return a.name == name })
		if i < 0 {
			return odata.Fault("PropertyUnknown", name)
		}
		if problem := m.attributes[i].refuse(v); problem != nil {
			return problem
		}
	}
	m.makeLocked()
	maps.Copy(m.pending, changes)
	return nil
}

// Reset has the next start of the machine reset all settings. The action has no parameters.
func (m *Machine) Reset(parameters object) *odata.Problem {
	for key := range parameters {
		return odata.Fault("ActionParameterUnknown", "Bios.ResetBios", key)
	}
	m.advance()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.makeLocked()
	m.reset = true
	clear(m.pending)
	return nil
}
