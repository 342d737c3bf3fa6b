package engine

import (
	"bytes"
	"encoding/json"
	"math"
)

// checkType refuses an argument that is not of the type that the step declares: the agent would refuse it too, but only after the machine
// was booted for it. null stands for an argument that is not given.
func checkType(step string, arg AgentStepArg, v any) error {
	if v == nil || ofType(v, arg.Type) {
		return nil
	}
	return invalidf("argument %s of step %s is %s, but has to be %s", arg.Name, step, withArticle(typeOf(v)), withArticle(arg.Type))
}

func ofType(v any, typ string) bool {
	switch typ {
	case "integer":
		f, ok := v.(float64)
		return ok && f == math.Trunc(f) && math.Abs(f) < 1<<53
	case "string", "boolean", "object", "array", "number":
		return typeOf(v) == typ
	}
	return true // "any", and what a newer agent may declare
}

// typeOf names the type of a JSON value.
func typeOf(v any) string {
	switch v.(type) {
	case string:
		return "string"
	case bool:
		return "boolean"
	case float64:
		return "number"
	case map[string]any:
		return "object"
	case []any:
		return "array"
	}
	return "null"
}

func withArticle(typ string) string {
	switch typ {
	case "integer", "object", "array":
		return "an " + typ
	}
	return "a " + typ
}

// noArgs tells whether a step comes without arguments.
func noArgs(args json.RawMessage) bool {
	return len(args) == 0 || bytes.Equal(bytes.TrimSpace(args), []byte("{}")) || bytes.Equal(args, []byte("null"))
}
