package rest

import (
	"net/http"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// Oversized returns the refusal of a document that is too large, or has an attribute that is, or nil. names are the
// attributes to look at; nil: all. was is the limit.DocumentSize that it had before, 0 for a new one.
func Oversized(doc map[string]any, names []string, was int) *Error {
	if err := limit.Oversized(doc, names, was); err != nil {
		return Fault(http.StatusRequestEntityTooLarge, "%s Nothing was changed.", err.Error())
	}
	return nil
}
