package parts

import (
	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// What hand-made answers are like.
var (
	consoleShape = rest.Object{{Name: "console_enabled", Value: false},
		{Name: "console_info", Value: &rest.Schema{Types: []string{"object", "null"}}}}
	mediaShape = rest.SchemaOf(rest.Object{{Name: "media_types", Value: []string{}}, {Name: "inserted", Value: false},
		{Name: "image", Value: rest.Null("")}}).Called("VirtualMedia")
	methodShape = rest.SchemaOf(rest.Object{{Name: "http_methods", Value: []string{}}, {Name: "async", Value: false},
		{Name: "description", Value: ""}, {Name: "attach", Value: false},
		{Name: "require_exclusive_lock", Value: false}}).Called("VendorMethod")
	indicatorShape = rest.SchemaOf(
		rest.Object{{Name: "name", Value: ""}, {Name: "component", Value: ""}, {Name: "readonly", Value: false},
			{Name: "states", Value: []string{}}, {Name: "links", Value: []rest.Link{}}}).Called("Indicator")
)

// chosenArgs choose the shown fields of BIOS settings and firmware.
func chosenArgs(since rest.Version) call.Args {
	return call.Args{"fields": call.Texts.From(since), "detail": call.Truth.From(since)}
}
