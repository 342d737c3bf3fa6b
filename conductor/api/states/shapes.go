package states

import (
	"maps"
	"slices"

	"github.com/ingot-metal/ingot/conductor/api/call"
	"github.com/ingot-metal/ingot/conductor/api/document"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// oneOf describes a text that is one of those in a table of versions.
func oneOf(since map[string]rest.Version) *rest.Schema {
	s := &rest.Schema{Types: []string{"string"}, Sinces: since}
	for _, name := range slices.Sorted(maps.Keys(since)) {
		s.Enum = append(s.Enum, name)
	}
	return s
}

var powerShape = call.Body([]string{"target"}, call.Args{"target": oneOf(rest.PowerTargets),
	"timeout": (&rest.Schema{Types: []string{"integer", "null"}}).From(rest.VersionSoftPower)})

// typesOfProvision are the types in a request for a change of provision state.
var typesOfProvision = provisionShape()

// provisionShape is a change of provision state, with what goes with its target.
func provisionShape() *rest.Schema {
	drive := *driveSchema
	drive.Types, drive.Closed = []string{"object", "string", "null"}, true
	s := call.Body([]string{"target"},
		call.Args{"target": oneOf(rest.Verbs)}.With(call.Dated(rest.ProvisionParameters, call.Args{
			"configdrive": &drive, "clean_steps": listedSteps(rest.NewestVersion),
			"service_steps": listedSteps(rest.NewestVersion), "deploy_steps": prioritySteps(rest.NewestVersion),
			"disable_ramdisk": {Types: []string{"boolean", "null"}}, "runbook": document.OptionalText,
			"rescue_password": document.OptionalText,
		})))
	return s
}
