package catalog

import (
	_ "embed"
	"fmt"
)

// builtinSteps is made from agent/steps.go by go test ./test/arch -run Steps -update, which also holds it to that.
//
//go:embed agentsteps.json
var builtinSteps []byte

// BuiltinSteps is the agent's table as this version of Ingot has it, for when no ramdisk's manifest is at hand.
func BuiltinSteps() Table {
	steps, err := Parse(builtinSteps)
	if err != nil {
		panic(fmt.Sprintf("the table of the agent's steps in this program: %v", err))
	}
	return steps
}
