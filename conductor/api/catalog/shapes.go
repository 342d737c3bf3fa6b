package catalog

import (
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// What the answers are like, and the arguments of lists.
var (
	versionShape = rest.SchemaOf(
		rest.Object{{Name: "id", Value: ""}, {Name: "links", Value: []rest.Link{}}, {Name: "status", Value: ""},
			{Name: "min_version", Value: ""}, {Name: "version", Value: ""}}).Called("Version")
	rootShape = rest.Object{{Name: "name", Value: ""}, {Name: "description", Value: ""},
		{Name: "default_version", Value: versionShape}, {Name: "versions", Value: rest.ListOf(versionShape)}}

	driverArgs = call.Args{"type": call.Text.From(rest.VersionDriverDetails),
		"detail": call.Truth.From(rest.VersionDriverDetails), "fields": call.Texts.From(rest.VersionDriverFields)}
	conductorArgs = call.PageArgs.With(call.Args{"marker": call.Text, "detail": call.Truth, "fields": call.Texts})

	// conductorShape has all possible fields: answers have fewer without detail, or those that were chosen.
	conductorShape = chosen("Conductor",
		rest.Object{{Name: "created_at", Value: rest.NullTime{}}, {Name: "updated_at", Value: rest.NullTime{}},
			{Name: "hostname", Value: ""}, {Name: "conductor_group", Value: ""}, {Name: "drivers", Value: []string{}},
			{Name: "links", Value: []rest.Link{}}, {Name: "alive", Value: false}})
)

// kindSince are the versions that brought kinds of interface later than drivers have them.
var kindSince = map[string]rest.Version{"bios": 40, "rescue": rest.VersionRescue, "storage": 33,
	"firmware": rest.VersionFirmware}

// chosen describes an object of which ?fields= may choose any members.
func chosen(name string, o rest.Object) *rest.Schema {
	s := rest.SchemaOf(o).Called(name)
	s.Required = nil
	return s
}

func v1Shape() rest.Object {
	o := rest.Object{{Name: "id", Value: ""}, {Name: "links", Value: []rest.Link{}},
		{Name: "media_types", Value: rest.Object{{Name: "base", Value: ""}, {Name: "type", Value: ""}}},
		{Name: "version", Value: versionShape}}
	for _, r := range resources {
		o = append(o, rest.Member{Name: r.name, Value: rest.SchemaOf([]rest.Link{}).From(r.since)})
	}
	return o
}

func driverShape() *rest.Schema {
	o := rest.Object{{Name: "name", Value: ""}, {Name: "hosts", Value: []string{}},
		{Name: "links", Value: []rest.Link{}},
		{Name: "properties", Value: rest.SchemaOf([]rest.Link{}).From(rest.VersionStateLinks)},
		{Name: "type", Value: call.Text.From(rest.VersionDriverDetails)}}
	for _, kind := range driver.Kinds {
		since := max(kindSince[kind], rest.VersionDriverDetails)
		o = append(o, rest.Member{Name: "default_" + kind + "_interface",
			Value: rest.SchemaOf(rest.Null("")).From(since)},
			rest.Member{Name: "enabled_" + kind + "_interfaces", Value: rest.SchemaOf([]string{}).From(since)})
	}
	return chosen("Driver", o)
}
