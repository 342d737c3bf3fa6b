// Package bios reads the settings of a machine's firmware at its Redfish service, with their registry, and has them
// changed.
//
// A service takes changes as pending, and the firmware makes them at a later start, or not: what a service says to a
// change is never what became of it. State.Compare says that, from what is read. Texts are cleaned and bounded.
package bios

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/node"
)

// State is the settings as they are read.
type State struct {
	// Now are the settings that the machine runs with, Pending those of its next start: on some controllers only the
	// ones that change, on others all.
	Now, Pending map[string]any
	// ResetPending means that the next start resets all.
	ResetPending bool

	name     string            // of the registry
	registry map[string]*entry // nil: not read, or the service shows none
	target   string            // of changes
	etag     string
	times    []string // apply times that changes may have
	reset    string   // target of the action that resets all
	clean    func(string) string
}

// entry is a setting in the registry.
type entry struct {
	Name  string `json:"AttributeName"`
	Type  string
	Value []struct {
		Name string `json:"ValueName"`
	}
	DefaultValue            any
	LowerBound, UpperBound  *float64
	MinLength, MaxLength    *float64
	ReadOnly, ResetRequired *bool
	Unique                  *bool `json:"IsSystemUniqueProperty"`
}

// password is the type of settings that are passwords.
const password = "Password"

var errNone = errors.New("the controller shows no BIOS settings")

// hint is the remedy for settings that can't be used.
const hint = "set the node's bios_interface to no-bios, or update the controller's firmware"

// Read reads the settings; Describe adds what their registry says.
func Read(ctx context.Context, c *controller.Controller, s *controller.System) (*State, error) {
	ctx = controller.Bounded(ctx)
	var doc struct {
		Attributes        map[string]any
		AttributeRegistry string
		ResetPending      bool `json:"ResetBiosToDefaultsPending"`
		Settings          struct {
			SettingsObject      schemas.Link
			SupportedApplyTimes []string
		} `json:"@Redfish.Settings"`
		Actions struct {
			Reset struct{ Target string } `json:"#Bios.ResetBios"`
		}
	}
	path, etag, err := string(s.Bios), "", error(nil)
	if path != "" {
		etag, err = c.Read(ctx, path, &doc)
	}
	switch {
	case err != nil && !controller.Declined(err):
		return nil, err
	case err != nil || len(doc.Attributes) == 0:
		return nil, &power.Error{Kind: power.Unsupported, Err: errNone, Hint: hint}
	case len(doc.Attributes) > limit.RedfishSettings:
		return nil, &power.Error{Kind: power.Refused, Hint: hint,
			Err: fmt.Errorf("the controller shows %d BIOS settings, more than %d", len(doc.Attributes),
				limit.RedfishSettings)}
	}
	st := &State{Now: doc.Attributes, ResetPending: doc.ResetPending, target: path, etag: etag,
		name: doc.AttributeRegistry, times: doc.Settings.SupportedApplyTimes, reset: doc.Actions.Reset.Target,
		clean: c.Clean}
	if settings := string(doc.Settings.SettingsObject); settings != "" {
		var pending struct{ Attributes map[string]any }
		st.target, st.etag = settings, ""
		if tag, err := c.Read(ctx, settings, &pending); err == nil {
			st.etag, st.Pending = tag, pending.Attributes
		} else if !controller.Declined(err) {
			return nil, err
		}
	}
	return st, nil
}

// Describe reads the registry, which is long: some controllers take ten seconds for it.
func (st *State) Describe(ctx context.Context, c *controller.Controller) (err error) {
	if st.name != "" && st.registry == nil {
		st.registry, err = readRegistry(controller.Bounded(ctx), c, st.name)
	}
	return err
}

// readRegistry finds a registry by its name; nil if the service does not show it.
func readRegistry(ctx context.Context, c *controller.Controller, name string) (map[string]*entry, error) {
	var root struct{ Registries schemas.Link }
	if _, err := c.Read(ctx, "/redfish/v1/", &root); err != nil {
		return nil, err
	}
	all, err := c.Members(ctx, string(root.Registries))
	if err != nil && !controller.Declined(err) {
		return nil, err
	}
	base, _, _ := strings.Cut(name, ".")
	var files []string
	for _, m := range all { // a path has the name in it, with the version or without
		if strings.Contains(strings.ToLower(m.Path), strings.ToLower(base)) {
			files = append(files, m.Path)
		}
	}
	slices.SortStableFunc(files, func(a, b string) int { // the one of the whole name first
		return strings.Compare(rank(a, name), rank(b, name))
	})
	for _, file := range files[:min(len(files), 10)] {
		var f struct {
			ID       string `json:"Id"`
			Registry string
			Location []struct {
				Language string
				URI      string `json:"Uri"`
			}
		}
		if ok, err := c.Try(ctx, file, &f); err != nil {
			return nil, err
		} else if !ok || f.Registry != name && f.ID != name && f.ID != base {
			continue
		}
		for _, l := range f.Location {
			var doc struct {
				RegistryEntries struct{ Attributes []*entry }
			}
			if l.Language != "" && !strings.HasPrefix(l.Language, "en") && l.Language != "default" {
				continue
			}
			if ok, err := c.Try(ctx, l.URI, &doc); err != nil {
				return nil, err
			} else if !ok {
				continue
			}
			entries := map[string]*entry{}
			for _, e := range doc.RegistryEntries.Attributes {
				if e != nil {
					entries[e.Name] = e
				}
			}
			return entries, nil
		}
	}
	return nil, nil
}

func rank(path, name string) string {
	if strings.Contains(strings.ToLower(path), strings.ToLower(name)) {
		return "0"
	}
	return "1"
}

// Settings are the settings for a node's record, by name.
func (st *State) Settings() []node.BIOSSetting {
	var out []node.BIOSSetting
	for _, name := range slices.Sorted(maps.Keys(st.Now)) {
		s := node.BIOSSetting{Name: st.clean(name), Value: st.clean(text(st.Now[name]))}
		if e := st.registry[name]; e != nil {
			s.AttributeType = st.clean(e.Type)
			s.ReadOnly, s.ResetRequired, s.Unique = e.ReadOnly, e.ResetRequired, e.Unique
			s.LowerBound, s.UpperBound = whole(e.LowerBound), whole(e.UpperBound)
			s.MinLength, s.MaxLength = whole(e.MinLength), whole(e.MaxLength)
			for _, v := range e.Value[:min(len(e.Value), limit.RedfishValues)] {
				s.Allowable = append(s.Allowable, st.clean(v.Name))
			}
			if e.Type == password {
				s.Value = "" // some services show what it is made of
			}
		}
		out = append(out, s)
	}
	return out
}

func whole(f *float64) *int {
	if f == nil || math.Abs(*f) > 1<<53 {
		return nil
	}
	return new(int(*f))
}

// text is a value in Ironic's words.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case bool:
		return map[bool]string{true: "True", false: "False"}[v]
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

// Check turns wanted settings into what the service takes, after Describe: by the registry or, where it has no entry,
// by the present value. The error names all that can't be made.
func (st *State) Check(wanted []hardware.Setting) (map[string]any, error) {
	out, faults := map[string]any{}, []string{}
	for _, w := range wanted {
		v, fault := st.check(w)
		if out[w.Name] = v; fault != "" {
			faults = append(faults, st.clean(w.Name)+" "+fault)
		}
	}
	if len(faults) == 0 {
		return out, nil
	}
	n := len(faults)
	if n > 10 {
		faults = append(faults[:10], fmt.Sprintf("and %d more", n-10))
	}
	return nil, fmt.Errorf("nothing was changed: %s; GET /v1/nodes/{node}/bios?detail=true lists the settings",
		strings.Join(faults, "; "))
}

// check returns a setting's value, or why there is none. It never repeats the value: it may be a secret.
func (st *State) check(w hardware.Setting) (any, string) {
	now, is := st.Now[w.Name]
	if !is {
		return nil, "is not among the machine's settings"
	}
	e := st.registry[w.Name]
	if e == nil {
		e = &entry{Type: "String"}
		switch now.(type) {
		case bool:
			e.Type = "Boolean"
		case float64:
			e.Type = "Integer"
		}
	}
	if e.ReadOnly != nil && *e.ReadOnly {
		return nil, "can only be read"
	}
	given := text(w.Value)
	switch e.Type {
	case password:
		return nil, "is a password, which is not set this way"
	case "Boolean":
		on, err := strconv.ParseBool(strings.ToLower(given))
		if err != nil {
			return nil, "must be true or false"
		}
		return on, ""
	case "Integer":
		f, err := strconv.ParseFloat(given, 64)
		switch {
		case err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53:
			return nil, "must be a whole number"
		case e.LowerBound != nil && f < *e.LowerBound, e.UpperBound != nil && f > *e.UpperBound:
			return nil, "must be " + between(e.LowerBound, e.UpperBound)
		}
		return int64(f), ""
	case "Enumeration":
		for _, v := range e.Value {
			if v.Name == given {
				return given, ""
			}
		}
		if len(e.Value) > 0 {
			var names []string
			for _, v := range e.Value[:min(len(e.Value), 20)] {
				names = append(names, st.clean(v.Name))
			}
			return nil, "must be one of " + strings.Join(names, ", ")
		}
	}
	n := float64(len([]rune(given)))
	if e.MinLength != nil && n < *e.MinLength || e.MaxLength != nil && n > *e.MaxLength {
		return nil, "must have " + between(e.MinLength, e.MaxLength) + " characters"
	}
	return given, ""
}

// between is a range in words.
func between(lower, upper *float64) string {
	switch {
	case lower == nil:
		return "at most " + text(*upper)
	case upper == nil:
		return "at least " + text(*lower)
	}
	return text(*lower) + " to " + text(*upper)
}

// Compare sorts wanted settings by what became of them: those that are to be made yet at the next start, and those that
// are neither made nor pending. The rest is as wanted.
func (st *State) Compare(wanted []hardware.Setting) (pending, other []string) {
	for _, w := range wanted {
		switch {
		case same(st.Now[w.Name], w.Value):
		case st.Pending[w.Name] != nil && same(st.Pending[w.Name], w.Value):
			pending = append(pending, w.Name)
		default:
			other = append(other, w.Name)
		}
	}
	return pending, other
}

// Overruled are those of wanted settings that are made, and that the next start makes otherwise: somebody else asked.
func (st *State) Overruled(wanted []hardware.Setting) (names []string) {
	for _, w := range wanted {
		if p := st.Pending[w.Name]; p != nil && same(st.Now[w.Name], w.Value) && !same(p, w.Value) {
			names = append(names, w.Name)
		}
	}
	return names
}

// same compares a value that was read with one that is wanted, which clients may write as text.
func same(read, wanted any) bool {
	want := text(wanted)
	switch read := read.(type) {
	case nil:
		return wanted == nil
	case bool:
		on, err := strconv.ParseBool(strings.ToLower(want))
		return err == nil && on == read
	case float64:
		f, err := strconv.ParseFloat(want, 64)
		return err == nil && f == read
	}
	return text(read) == want
}

// Set asks for settings, of those that Check returned.
func (st *State) Set(ctx context.Context, c *controller.Controller, settings map[string]any) error {
	body := map[string]any{"Attributes": settings}
	if slices.Contains(st.times, "OnReset") {
		body["@Redfish.SettingsApplyTime"] = map[string]any{"ApplyTime": "OnReset"}
	}
	return c.Patch(ctx, st.target, st.etag, body)
}

// Reset asks for the reset of all settings at the next start.
func (st *State) Reset(ctx context.Context, c *controller.Controller) error {
	if st.reset == "" {
		return &power.Error{Kind: power.Unsupported,
			Err:  errors.New("the controller has no action to reset BIOS settings"),
			Hint: "set them one by one with bios.apply_configuration"}
	}
	return c.Post(ctx, st.reset, map[string]any{})
}

// Changed are settings, at most a few, that are not as their registry delivers them: a reset changes them. Empty: there
// are none, or that is not known.
func (st *State) Changed() map[string]string {
	const few = 20
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(st.Now)) {
		e := st.registry[name]
		if e == nil || e.DefaultValue == nil || e.Type == password || is(e.ReadOnly) || is(e.Unique) {
			continue
		}
		now := text(st.Now[name])
		if now != text(e.DefaultValue) && len(now) < 200 && len(out) < few && st.clean(name) == name {
			out[name] = now
		}
	}
	return out
}

// Same are those of some settings that are still as they were.
func (st *State) Same(before map[string]string) (same []string) {
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if text(st.Now[name]) == before[name] {
			same = append(same, name)
		}
	}
	return same
}

func is(b *bool) bool { return b != nil && *b }
