package api

import "github.com/ingot-metal/ingot/conductor/rest"

// Parts of documents: what a client may send is null, absent or of the type that the schema asks for.

func textIn(d map[string]any, name string) string {
	v, _ := d[name].(string)
	return v
}

func objectIn(d map[string]any, name string) map[string]any {
	m, _ := d[name].(map[string]any)
	return rest.Clone(m)
}

func textOrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
