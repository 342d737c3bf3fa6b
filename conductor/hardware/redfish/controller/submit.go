package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
)

// Reply is the answer of a service to a request that it took.
type Reply struct {
	Status int
	// Location is the path in the header of that name: of what was made, or of the monitor of a task. "": none.
	Location string
	// Body is JSON; nil when there is none.
	Body json.RawMessage
}

// Submit sends a request without If-Match, with a body in JSON unless that is nil, and returns the whole answer. A POST
// whose answer was lost is not sent again: it may have been carried out.
func (c *Controller) Submit(ctx context.Context, method, path string, body any) (Reply, error) {
	api, err := c.client(ctx)
	if err != nil {
		return Reply{}, err
	}
	var in io.ReadSeeker
	kind := ""
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return Reply{}, err
		}
		in, kind = bytes.NewReader(b), "application/json"
	}
	resp, err := api.RunRawRequestWithHeaders(method, path, in, kind, nil)
	if err != nil {
		return Reply{}, err
	}
	return replyOf(resp)
}

func replyOf(resp *http.Response) (Reply, error) {
	defer resp.Body.Close()
	r := Reply{Status: resp.StatusCode}
	if u, err := url.Parse(resp.Header.Get("Location")); err == nil {
		r.Location = u.Path // whatever host it names: it is this service
	}
	b, err := io.ReadAll(resp.Body)
	if json.Valid(b) {
		r.Body = b
	}
	return r, err
}
