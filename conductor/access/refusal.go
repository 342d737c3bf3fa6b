package access

import (
	"net/http"
	"time"
)

// Refusal is an error of authentication: the sender is unknown, or can't be identified now.
type Refusal struct {
	Status     int    // 400, 401, 429 or 503
	Message    string // for the client
	Challenge  string // WWW-Authenticate, with 401
	RetryAfter time.Duration
}

func (e *Refusal) Error() string { return e.Message }

// malformed is a header that is not what its standard says.
func malformed(text string) *Refusal {
	return &Refusal{Status: http.StatusBadRequest, Message: text}
}
