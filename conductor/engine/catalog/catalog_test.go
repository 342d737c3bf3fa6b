package catalog

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/steparg"
)

func TestArgumentTypes(t *testing.T) {
	for _, c := range []struct {
		typ  string
		good []string
		bad  []string
	}{
		{"string", []string{`"x"`, `""`, `null`}, []string{`1`, `true`, `{}`, `[]`}},
		{"integer", []string{`1`, `-3`, `2.0`, `null`}, []string{`1.5`, `"1"`, `true`, `1e300`}},
		{"number", []string{`1.5`, `1`}, []string{`"1"`}},
		{"boolean", []string{`true`, `false`}, []string{`"true"`, `1`}},
		{"object", []string{`{}`}, []string{`[]`, `"{}"`}},
		{"array", []string{`[]`, `["a"]`}, []string{`{}`, `"a"`}},
		{"any", []string{`1`, `"x"`, `{}`, `[]`, `true`}, nil},
	} {
		table := Table{{Interface: "deploy", Name: "s", Args: []steparg.Arg{{Name: "a", Type: c.typ}}}}
		try := func(v string) error {
			_, err := table.Ask(node.JobStep{Interface: "deploy", Name: "s", Args: json.RawMessage(`{"a":` + v + `}`)})
			return err
		}
		for _, v := range c.good {
			if err := try(v); err != nil {
				t.Errorf("%s for %s: %v", v, c.typ, err)
			}
		}
		for _, v := range c.bad {
			var invalid *node.InvalidError
			if err := try(v); !errors.As(err, &invalid) ||
				!strings.Contains(err.Error(), "argument a of step deploy.s is a") {
				t.Errorf("%s for %s: %v", v, c.typ, err)
			}
		}
	}
	var invalid *node.InvalidError
	for _, args := range []string{`[]`, `"x"`, `{"no_such":1}`, `{"skip_block_devices":{}}`} {
		if _, err := Table(BuiltinSteps()).Ask(
			node.JobStep{Interface: "deploy", Name: "erase_devices_metadata", Args: json.RawMessage(args)}); !errors.As(
			err, &invalid) {
			t.Errorf("arguments %s: %v", args, err)
		}
	}
}

// TestNoManifestGivesTrustAway: whatever a manifest says of an argument, who deploys can neither set what is the
// operator's to set nor see what is secret.
func TestNoManifestGivesTrustAway(t *testing.T) {
	for _, row := range []steparg.Row{
		{When: steparg.WhenDisk, Repeatable: true, Provides: []string{"image"}}, // as of this release, without owners
		{}, // as of an earlier one
	} {
		row.Interface, row.Name = "deploy", "write_image"
		row.Args = []steparg.Arg{{Name: "image_keys", Type: "array"}, {Name: "allow_md5", Type: "boolean"}}
		table := Table{row}
		table.Complete()
		for _, args := range []string{`{"image_keys":["mine"]}`, `{"image_keys":null}`, `{"allow_md5":true}`} {
			var invalid *node.InvalidError
			_, err := table.Ask(node.JobStep{Interface: "deploy", Name: "write_image", Args: json.RawMessage(args)})
			if !errors.As(err, &invalid) {
				t.Errorf("%+v takes %s: %v", row, args, err)
			}
		}
	}
	table := Table{{Interface: "rescue", Name: "rescue", Repeatable: true,
		Args: []steparg.Arg{{Name: "password_hash", Type: "string"}}}}
	table.Complete()
	if !table[0].Args[0].Secret {
		t.Error("a manifest makes the hash of a rescue's password no secret")
	}
}
