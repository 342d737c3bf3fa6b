package packages

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
)

// kubernetes is the release whose description of the API objects are checked against, with the module's checksum.
const kubernetes, kubernetesSum = "v1.35.4", "h1:o/8dBC/pHVpYoGV4OAIytAlNPZbdYVTXJHoYvXC4qzM="

// schema is a schema of Kubernetes' OpenAPI 2 document, as far as objects are described with it.
type schema struct {
	Ref        string                                  `json:"$ref"`
	Type       string                                  `json:"type"`
	Format     string                                  `json:"format"`
	Properties map[string]*schema                      `json:"properties"`
	Additional *schema                                 `json:"additionalProperties"`
	Items      *schema                                 `json:"items"`
	Required   []string                                `json:"required"`
	Kinds      []struct{ Group, Version, Kind string } `json:"x-kubernetes-group-version-kind"`
}

// schemas are those of a release of Kubernetes, by name.
type schemas map[string]*schema

// kubernetesSchemas reads them from the module k8s.io/kubernetes, of which nothing else is used: as a requirement in
// a go.mod it would need all its parts at versions that are not published.
func kubernetesSchemas(t *testing.T) schemas {
	t.Helper()
	var module struct{ Dir, Sum, Error string }
	out := kit.Run(t, "go", "mod", "download", "-json", "k8s.io/kubernetes@"+kubernetes)
	if err := json.Unmarshal([]byte(out), &module); err != nil || module.Error != "" {
		t.Fatalf("download Kubernetes' module: %v %s", err, module.Error)
	}
	if module.Sum != kubernetesSum {
		t.Fatalf("Kubernetes' module has the checksum %s, want %s", module.Sum, kubernetesSum)
	}
	b, err := os.ReadFile(filepath.Join(module.Dir, "api/openapi-spec/swagger.json"))
	if err != nil {
		t.Fatal(err)
	}
	var document struct{ Definitions schemas }
	if err := json.Unmarshal(b, &document); err != nil {
		t.Fatal(err)
	}
	return document.Definitions
}

// check returns what is wrong with an object: fields that there are not, those that are missing, other types.
func (s schemas) check(object map[string]any) []string {
	group, version, ok := strings.Cut(text(object["apiVersion"]), "/")
	if !ok {
		group, version = "", group
	}
	kind := text(object["kind"])
	for _, candidate := range s {
		for _, k := range candidate.Kinds {
			if k.Group == group && k.Version == version && k.Kind == kind {
				return s.compare(candidate, kind, object)
			}
		}
	}
	return []string{fmt.Sprintf("Kubernetes has no kind %s in %q", kind, object["apiVersion"])}
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func (s schemas) compare(want *schema, at string, value any) []string {
	for want.Ref != "" {
		name := strings.TrimPrefix(want.Ref, "#/definitions/")
		if want = s[name]; want == nil {
			return []string{at + ": there is no " + name}
		}
	}
	if want.Format == "int-or-string" {
		switch value.(type) {
		case string, float64:
			return nil
		}
		return []string{fmt.Sprintf("%s: %v is neither a number nor a text", at, value)}
	}
	right := true
	var faults []string
	switch want.Type {
	case "object", "":
		var object map[string]any
		if object, right = value.(map[string]any); right {
			faults = s.compareObject(want, at, object)
		}
	case "array":
		var list []any
		if list, right = value.([]any); right {
			for i, item := range list {
				faults = append(faults, s.compare(want.Items, fmt.Sprintf("%s[%d]", at, i), item)...)
			}
		}
	case "string":
		var content string
		content, right = value.(string)
		if _, err := base64.StdEncoding.DecodeString(content); want.Format == "byte" && err != nil {
			faults = append(faults, at+": "+err.Error())
		}
	case "boolean":
		_, right = value.(bool)
	case "integer":
		var n float64
		n, right = value.(float64)
		right = right && n == float64(int64(n))
	case "number":
		_, right = value.(float64)
	default:
		return []string{fmt.Sprintf("%s: the test does not know the type %s", at, want.Type)}
	}
	if !right {
		faults = append(faults, fmt.Sprintf("%s: %v is of type %T, want %s", at, value, value, want.Type))
	}
	return faults
}

func (s schemas) compareObject(want *schema, at string, object map[string]any) (faults []string) {
	for _, key := range want.Required {
		if object[key] == nil {
			faults = append(faults, fmt.Sprintf("%s: %s is missing", at, key))
		}
	}
	for key, value := range object {
		switch field := want.Properties[key]; {
		case field != nil:
			faults = append(faults, s.compare(field, at+"."+key, value)...)
		case want.Additional != nil:
			faults = append(faults, s.compare(want.Additional, at+"."+key, value)...)
		case len(want.Properties) > 0:
			faults = append(faults, fmt.Sprintf("%s: there is no field %s", at, key))
		}
	}
	slices.Sort(faults)
	return faults
}
