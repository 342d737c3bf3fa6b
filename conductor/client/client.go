// Package client is a Go client of the public API, for the command line, the lab and tests.
//
// It uses the newest microversion that conductor/rest has and decodes into that package's structs. An answer other than
// success is a *rest.Error with the server's own words. 503, and 409 of a node that is locked, are tried again a few
// times, because they mean that the same request may succeed a moment later. Every call ends when its context
// does. Against a plain Ironic everything works but Ingot's additions below /ingot/v1; Progress then reports the states
// alone.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// Client talks to one server. Safe for concurrent use. Make it with New.
type Client struct {
	endpoint *url.URL
	http     *http.Client

	// Login adds the credentials; nil means none, or those in the endpoint's URL.
	Login Credentials

	// Retries is how often such requests are tried again, Pause how long after; New sets 5 and one second.
	Retries int
	Pause   time.Duration
	// Poll is how often a wait looks; New sets half a second: often enough for a bar to move, seldom enough for many
	// waits at once.
	Poll time.Duration

	match string  // sent as If-Match with what changes something
	tag   *string // where the ETag of an answer is put
}

// IfMatch is the client whose requests change something only if it still has this ETag; else the server's answer is a
// *rest.Error with status 412.
func (c *Client) IfMatch(tag string) *Client {
	d := *c
	d.match = tag
	return &d
}

// Tag returns a client that puts the ETag of each answer into tag, "" for none: of a node, port or another resource
// that is read, made or changed. A change with IfMatch of it is refused if another client was faster.
func (c *Client) Tag(tag *string) *Client {
	d := *c
	d.tag = tag
	return &d
}

// New makes a client of the server at endpoint, such as http://127.0.0.1:6385; user and password in it are sent as
// basic authentication. A path (with or without /v1) is kept in front of the API's own. hc nil is a client with a 60 s
// limit per request.
func New(endpoint string, hc *http.Client) (*Client, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("endpoint %q is not an http or https address such as http://127.0.0.1:6385", endpoint)
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v1")
	u.RawQuery, u.Fragment = "", ""
	if hc == nil {
		hc = plain()
	}
	c := &Client{endpoint: u, http: hc, Retries: 5, Pause: time.Second, Poll: time.Second / 2}
	if u.User != nil {
		pw, _ := u.User.Password()
		c.Login = Basic{u.User.Username(), pw}
	}
	return c, nil
}

// Endpoint is the address of the server, without credentials.
func (c *Client) Endpoint() string { return c.endpoint.Redacted() }

// ConnectError says that the server could not be reached at all.
type ConnectError struct {
	Endpoint string
	Err      error
}

func (e *ConnectError) Error() string {
	return fmt.Sprintf("reach the conductor at %s: %v", e.Endpoint, e.Err)
}

// Unwrap returns the cause.
func (e *ConnectError) Unwrap() error { return e.Err }

// maxAnswer bounds the size of answers: an inventory with logs is the largest.
const maxAnswer = 64 << 20

// do sends a request and decodes the answer into out (nil: it is thrown away). path may carry a query.
func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	// A conductor takes an escaped slash for a slash, as Ironic does: the request would go to another address.
	address, _, _ := strings.Cut(path, "?")
	for part := range strings.SplitSeq(address, "/") {
		if name, err := url.PathUnescape(part); err == nil && strings.Contains(name, "/") {
			return fmt.Errorf("%q can't be the name of anything: it has a slash in it", name)
		}
	}
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
	}
	for try := 0; ; try++ {
		err := c.once(ctx, method, path, body, out, false)
		var answer *rest.Error
		if errors.As(err, &answer) && answer.Status == http.StatusUnauthorized && c.Login != nil {
			err = c.once(ctx, method, path, body, out, true)
		}
		if !errors.As(err, &answer) || !answer.Again || try >= c.Retries {
			return err
		}
		select {
		case <-time.After(c.Pause):
		case <-ctx.Done():
			return err // the server's answer says more than a timeout
		}
	}
}

func (c *Client) once(ctx context.Context, method, path string, body []byte, out any, again bool) error {
	var rd io.Reader
	if body != nil {
		rd = bytes.NewReader(body)
	}
	base := *c.endpoint
	base.User = nil
	req, err := http.NewRequestWithContext(ctx, method, base.String()+path, rd)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	if c.Login != nil {
		if err := c.Login.Add(ctx, req.Header, again); err != nil {
			return err
		}
	}
	req.Header.Set(rest.VersionHeader, rest.MaxVersion.String())
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.match != "" && method != http.MethodGet {
		req.Header.Set(rest.IfMatch, c.match)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return &ConnectError{Endpoint: base.String(), Err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read answer of %s %s: %w", method, path, err)
	}
	if c.tag != nil {
		*c.tag = resp.Header.Get("ETag")
	}
	if resp.StatusCode >= 300 {
		return rest.DecodeError(resp.StatusCode, b)
	}
	if out == nil || len(b) == 0 {
		return nil
	}
	if err := exact.Unmarshal(b, out); err != nil {
		return fmt.Errorf("read answer of %s %s: %w", method, path, err)
	}
	return nil
}

// ask sends a request that is answered with one object.
func ask[T any](ctx context.Context, c *Client, method, path string, in any) (*T, error) {
	var out T
	if err := c.do(ctx, method, path, in, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// seg makes one segment of a path.
func seg(s string) string { return url.PathEscape(s) }

// all reads a list to its end: page after page, as the server's "next" links say.
func all[T any](ctx context.Context, c *Client, path, name string) ([]T, error) {
	var out []T
	for path != "" {
		page := map[string]json.RawMessage{}
		if err := c.do(ctx, http.MethodGet, path, nil, &page); err != nil {
			return nil, err
		}
		var items []T
		if err := exact.Unmarshal(page[name], &items); err != nil {
			return nil, fmt.Errorf("read list of %s: %w", name, err)
		}
		out = append(out, items...)
		path = ""
		var next string
		if raw, ok := page["next"]; ok && json.Unmarshal(raw, &next) == nil && next != "" && len(items) > 0 {
			u, err := url.Parse(next)
			if err != nil {
				return nil, fmt.Errorf("read address of the next page: %w", err)
			}
			// the host is the one we know, whatever a proxy in between made of it
			path = strings.TrimPrefix(u.EscapedPath(), c.endpoint.EscapedPath())
			if u.RawQuery != "" {
				path += "?" + u.RawQuery
			}
		}
	}
	return out, nil
}
