package call

import (
	"errors"
	"net/http"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// BodyError is the answer to a request whose body was not read to its end.
func BodyError(err error) *rest.Error {
	var tooLarge *limit.TooLargeError
	switch {
	case errors.As(err, &tooLarge):
		return rest.Fault(http.StatusRequestEntityTooLarge, "%s", tooLarge.Error())
	case errors.Is(err, limit.ErrBusy):
		return Busy("The request was not read: %s.", limit.ErrBusy.Error())
	case errors.Is(err, limit.ErrSlow):
		return rest.Fault(http.StatusRequestTimeout, "The request was given up: %s.", limit.ErrSlow.Error())
	}
	return rest.BadRequest("The body could not be read: %v", err)
}

// Busy is the answer to a request that may succeed in a moment.
func Busy(format string, args ...any) *rest.Error {
	e := rest.Fault(http.StatusServiceUnavailable, format, args...)
	e.RetryAfter = limit.RetryAfter
	return e
}
