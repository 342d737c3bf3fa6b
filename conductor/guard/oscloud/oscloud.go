// Package oscloud makes clients of OpenStack's services for gophercloud: with this server's own token, limits on time
// and on the size of answers, and errors for an operator.
//
// A service's answer may be huge, endless or hostile: it is cut at limit.KeystoneBody, what an error shows of it is one
// clean line, and the token goes to the configured host only, whatever links an answer holds.
package oscloud

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// Config says where a service is, and as whom it is asked.
type Config struct {
	Name   string      // for people, such as Neutron
	URL    string      // with or without the version
	Path   string      // of the version, such as /v2.0; may be empty
	CAFile string      // certificates that sign the service's; empty: those of the machine
	TLS    *tls.Config // instead of CAFile
	// Login returns a token of this server's own user, and Forget drops one that the service refused.
	Login  func(ctx context.Context) (string, error)
	Forget func(token string)
	// Header is sent with each request.
	Header map[string]string
}

// Timeout bounds one exchange, as Ironic's request_timeout does.
const Timeout = 45 * time.Second

// New makes a client. It does not connect: the service may come up later.
func New(c Config) (*gophercloud.ServiceClient, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("the address of %s is not an http or https address such as https://%s.example", c.Name,
			strings.ToLower(c.Name))
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), c.Path) + c.Path + "/"
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	if c.CAFile != "" {
		if c.TLS, err = keyfile.Trust(c.CAFile); err != nil {
			return nil, fmt.Errorf("read the CA of %s: %w", c.Name, err)
		}
	}
	p := &gophercloud.ProviderClient{HTTPClient: client(&transport{c: c,
		next: &bounded{host: u.Host, next: wire(c.TLS)}})}
	return &gophercloud.ServiceClient{ProviderClient: p, Endpoint: u.String(), MoreHeaders: c.Header}, nil
}

// client follows no redirects: tokens and passwords are for the service, not for whomever it might redirect to.
func client(t http.RoundTripper) http.Client {
	return http.Client{Timeout: Timeout, Transport: t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// wire connects to a service.
func wire(trust *tls.Config) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: Timeout / 3}).DialContext
	t.MaxResponseHeaderBytes = limit.KeystoneHeader
	if trust != nil {
		t.TLSClientConfig = trust.Clone()
		t.TLSClientConfig.MinVersion = max(t.TLSClientConfig.MinVersion, tls.VersionTLS12)
	}
	return t
}

// bounded sends requests to one host only, and bounds the answer.
type bounded struct {
	host string
	next http.RoundTripper
}

func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != b.host {
		return nil, errElsewhere
	}
	resp, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, limit.KeystoneBody), resp.Body}
	return resp, nil
}

// transport adds the token, and renews one that is refused.
type transport struct {
	c    Config
	next *bounded
}

// errElsewhere is the error of a request to another host, as a link in an answer may ask for.
var errElsewhere = errors.New("it names another server in a link, to which no token is sent")

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != t.next.host { // before a token is got for it
		return nil, errElsewhere
	}
	for again := false; ; again = true {
		token, err := t.c.Login(r.Context())
		if err != nil {
			return nil, err
		}
		req := r.Clone(r.Context())
		if r.GetBody != nil {
			if req.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
		req.Header.Set("X-Auth-Token", token)
		resp, err := t.next.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode == http.StatusUnauthorized && !again {
			resp.Body.Close()
			t.c.Forget(token)
			continue
		}
		return resp, nil
	}
}

// Error is a failed exchange with a service. Its text is for an operator, and holds no address with credentials.
type Error struct {
	Service, Op string
	Status      int    // 0: there was no answer, or none that can be read
	Reason      string // the service's own, clean and short; or why there is no answer
	err         error
}

func (e *Error) Error() string {
	text := e.Op + ": "
	switch {
	case e.Status == 0:
		return text + fmt.Sprintf("%s can't be asked: %s", e.Service, e.Reason)
	case e.Status == http.StatusForbidden && strings.Contains(e.Reason, "Quota exceeded"): // in Nova's words
		text += "a quota of the project is used up (403)"
	case e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden:
		text += fmt.Sprintf("%s does not let this server's user in Keystone do that (%d): give it the role that the service asks for, as docs/howto/openstack.md says", e.Service, e.Status)
	default:
		text += fmt.Sprintf("%s answered %d", e.Service, e.Status)
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

func (e *Error) Unwrap() error { return e.err }

// mostReason bounds what is shown of a service's answer.
const mostReason = 300

// Explain turns an error of gophercloud into an *Error; nil stays nil. op says what was being done.
func Explain(service, op string, err error) error {
	if err == nil {
		return nil
	}
	e := &Error{Service: service, Op: op, err: err}
	var code gophercloud.ErrUnexpectedResponseCode
	var u *url.Error
	switch {
	case errors.As(err, &code):
		e.Status, e.Reason = code.Actual, clean.Line(said(code.Body), mostReason)
	case errors.As(err, &u): // without the address, which has names and IDs that others chose
		e.Reason = clean.Line(u.Err.Error(), mostReason)
	default:
		e.Reason = clean.Line("its answer can't be read: "+err.Error(), mostReason)
	}
	return e
}

// said is the message in the body of an error: the services have it under different names.
func said(body []byte) string {
	var top map[string]json.RawMessage
	if json.Unmarshal(body, &top) != nil {
		return ""
	}
	var texts []string
	for _, v := range top {
		var in struct {
			Message string `json:"message"`
			Detail  string `json:"detail"`
		}
		var list []struct {
			Detail string `json:"detail"`
		}
		var text string
		switch {
		case json.Unmarshal(v, &in) == nil && in.Message+in.Detail != "":
			texts = append(texts, cmp.Or(in.Message, in.Detail))
		case json.Unmarshal(v, &list) == nil && len(list) > 0:
			texts = append(texts, list[0].Detail)
		case json.Unmarshal(v, &text) == nil:
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, " ")
}

// Is reports whether a service answered with a status.
func Is(err error, status int) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == status
}

// Passing reports whether an error may pass by itself: there was no answer, or one that says so.
func Passing(err error) bool {
	var e *Error
	return errors.As(err, &e) && !errors.Is(err, errElsewhere) && (e.Status == 0 || e.Status >= 500 ||
		e.Status == http.StatusTooManyRequests)
}
