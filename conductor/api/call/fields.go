package call

import (
	"github.com/ingot-metal/ingot/conductor/rest"
)

// Selected reads ?fields=; nil means all.
func Selected[T any](c *Call, fields rest.Fields[T]) ([]string, *rest.Error) {
	f := c.Text("fields")
	if f == nil {
		return nil, nil
	}
	if c.Version < rest.VersionSelectFields {
		return nil, rest.NotAcceptable()
	}
	return fields.Select(c.Version, *f)
}

// NoDetail is the answer to ?detail= in a version that does not know it.
func NoDetail(c *Call) *rest.Error {
	return rest.BadRequest("Invalid query parameter ?detail=%s received.", c.Query.Get("detail"))
}

// ListFields reads ?fields= and ?detail= of a list, which exclude each other.
func ListFields[T any](c *Call, fields rest.Fields[T], short []string) (names []string, detail bool, err *rest.Error) {
	d, err := c.Flag("detail")
	if err != nil {
		return nil, false, err
	}
	if d != nil && c.Version < rest.VersionDetailQuery {
		return nil, false, NoDetail(c)
	}
	names, err = Selected(c, fields)
	if err != nil {
		return nil, false, err
	}
	detail = d != nil && *d
	if detail && names != nil {
		return nil, false, rest.BadRequest("Can not specify ?detail=True and fields in the same request.")
	}
	if names == nil {
		names = short
	}
	return names, detail, nil
}
