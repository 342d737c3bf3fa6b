package catalog

import (
	_ "embed"
	"fmt"
	"slices"
	"sync"
)

// agentSteps is made from agent/steps.go by go test ./test/arch -run Steps -update, which also holds it to that.
//
//go:embed agentsteps.json
var agentSteps []byte

// builtin is read once: plans of every node look at it.
var builtin = sync.OnceValue(func() Table {
	steps, err := Parse(agentSteps)
	if err != nil {
		panic(fmt.Sprintf("the table of the agent's steps in this program: %v", err))
	}
	return steps
})

// BuiltinSteps is the agent's table as this version of Ingot has it, for when no ramdisk's manifest is at hand. The
// list is the caller's, what its rows point at is not.
func BuiltinSteps() Table { return slices.Clone(builtin()) }
