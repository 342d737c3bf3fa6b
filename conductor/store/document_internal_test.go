package store

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Documents hold what is set and nothing else; those of earlier versions, which held all fields, are read the same.
func TestDocuments(t *testing.T) {
	const now = `{"Name":"n","Driver":"x","Extra":{},"Provision":"enroll","AutomatedClean":false,"Traits":[],"CreatedAt":"2026-01-02T03:04:05Z"}`
	const earlier = `{"UUID":"a3ce70fe-7634-47ff-860a-9f0f4d61b604","Name":"n","Driver":"x","DriverInfo":null,"Properties":null,"Extra":{},"InstanceInfo":null,
		"InstanceUUID":"","Provision":"enroll","ReservedAt":"0001-01-01T00:00:00Z","Maintenance":false,"AutomatedClean":false,"Quarantine":null,"Traits":[],"Interfaces":null,
		"SecureBoot":null,"Fence":0,"Job":null,"CreatedAt":"2026-01-02T03:04:05Z","UpdatedAt":"0001-01-01T00:00:00Z","Version":0}`
	var nodes [2]node.Node
	for i, doc := range []string{now, earlier} {
		if err := decode(row{doc: []byte(doc), secret: []byte(`{}`)}, &nodes[i]); err != nil {
			t.Fatal(err)
		}
		nodes[i].UUID = "a3ce70fe-7634-47ff-860a-9f0f4d61b604" // as scanNode does
		r, err := encode(&nodes[i])
		if err != nil {
			t.Fatal(err)
		}
		if string(r.doc) != now {
			t.Errorf("document = %s, want %s", r.doc, now)
		}
	}
	if diff := cmp.Diff(nodes[0], nodes[1]); diff != "" {
		t.Errorf("nodes differ (-now +earlier):\n%s", diff)
	}
}
