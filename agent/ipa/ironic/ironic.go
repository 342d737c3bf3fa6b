// Package ironic is a client of the three routes of Ironic's API that an agent uses: lookup, heartbeat and
// continue_inspection.
//
// The API may be at several URLs; the next is asked when one can't be reached. Answers are bounded. Errors name the URL
// and say what the conductor answered; they never contain the agent's token.
package ironic

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Versions of the API that this client knows: the newest of lookup and of heartbeat, the first that has tokens, and the
// first that takes the agent's certificate.
const (
	lookupVersion    = 62
	heartbeatVersion = 68
	// TokenVersion is the first minor version whose lookup makes a token for the agent.
	TokenVersion = 62
	// CertificateVersion is the first minor version whose heartbeat takes a certificate.
	CertificateVersion = 68
)

const (
	requestTimeout = time.Minute
	maxAnswer      = 8 << 20
	maxFault       = 300 // characters of a conductor's error that are shown
)

// Options of a Client.
type Options struct {
	URLs      []string // of the API, without a version
	RequestID string   // sent as X-OpenStack-Request-ID; may be empty
	Roots     *x509.CertPool
	Insecure  bool // the API's certificate is not verified
	// TLSMin is the least version of TLS; zero: 1.2.
	TLSMin uint16
}

// Client asks one Ironic.
type Client struct {
	o     Options
	http  *http.Client
	minor int // of the server's newest version; 0: unknown so far
}

// New returns a client.
func New(o Options) *Client {
	t := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		ResponseHeaderTimeout:  requestTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        30 * time.Second, // less than a load balancer's, whose reset would be an error
		TLSClientConfig: &tls.Config{MinVersion: max(o.TLSMin, tls.VersionTLS12), RootCAs: o.Roots,
			InsecureSkipVerify: o.Insecure}, //nolint:gosec the operator's ipa-insecure
	}
	// A redirect could send the token elsewhere.
	return &Client{o: o, http: &http.Client{Transport: t, Timeout: requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// StatusError is an answer that is no success.
type StatusError struct {
	Doing  string
	Status int
	Fault  string // the server's reason; may be empty
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("%s: Ironic answered %d %s", e.Doing, e.Status, http.StatusText(e.Status))
	if e.Fault != "" {
		text += ": " + e.Fault
	}
	return text
}

// Conflict reports whether the node was locked, which passes.
func Conflict(err error) bool {
	var e *StatusError
	return errors.As(err, &e) && e.Status == http.StatusConflict
}

// Passing reports whether an error of a request may pass: no answer, a locked node, or a server in trouble.
func Passing(err error) bool {
	var e *StatusError
	return err != nil && (!errors.As(err, &e) || e.Status == http.StatusConflict ||
		e.Status >= http.StatusInternalServerError)
}

// Discover asks for the server's newest version and its clock. An unreadable answer counts as version 1.31.
func (c *Client) Discover(ctx context.Context) (minor int, clock time.Time, err error) {
	var root struct {
		Default struct {
			Version string `json:"version"`
		} `json:"default_version"`
	}
	head, err := c.do(ctx, request{doing: "ask for Ironic's version", method: http.MethodGet, path: "/", minor: -1},
		&root)
	var status *StatusError
	if err != nil && !errors.As(err, &status) && head == nil {
		return 0, time.Time{}, err
	}
	if _, m, ok := strings.Cut(root.Default.Version, "."); ok {
		c.minor, _ = strconv.Atoi(m)
	}
	if c.minor <= 0 {
		c.minor = 31
	}
	if head != nil {
		clock, _ = http.ParseTime(head.Get("Date")) // the zero time without one
	}
	return c.minor, clock, nil
}

// First is the first URL of the API; "" without one.
func (c *Client) First() string {
	if len(c.o.URLs) == 0 {
		return ""
	}
	return c.o.URLs[0]
}

// Minor is the server's newest minor version; zero before Discover.
func (c *Client) Minor() int { return c.minor }

// Node is the node as lookup shows it.
type Node struct {
	UUID string `json:"uuid"`
}

// Settings are the conductor's, for its agents.
type Settings struct {
	HeartbeatTimeout float64  `json:"heartbeat_timeout"` // seconds
	Token            string   `json:"agent_token"`
	Formats          []string `json:"permitted_image_formats"`
	// MD5 says whether MD5 sums of images are accepted; nil: the conductor is older than the question, and sends them.
	MD5    *bool  `json:"agent_md5_checksum_enable"`
	TLSMin string `json:"tls_min_version"`
}

// Masked stands in lookup's answer for a token that was given out before.
const Masked = "******"

// Lookup finds the machine's node by its addresses, or by the UUID that an inspection returned.
func (c *Client) Lookup(ctx context.Context, macs []string, uuid string) (Node, Settings, error) {
	q := url.Values{}
	if len(macs) > 0 {
		q.Set("addresses", strings.Join(macs, ","))
	}
	if uuid != "" {
		q.Set("node_uuid", uuid)
	}
	var got struct {
		Node   Node     `json:"node"`
		Config Settings `json:"config"`
	}
	_, err := c.do(ctx, request{doing: "look this machine up", method: http.MethodGet, path: "/v1/lookup",
		query: q, minor: min(c.minor, lookupVersion)}, &got)
	if err == nil && (got.Node.UUID == "" || got.Config.HeartbeatTimeout <= 0) {
		err = errors.New("look this machine up: Ironic's answer lacks the node's uuid or heartbeat_timeout")
	}
	return got.Node, got.Config, err
}

// Beat is the body of a heartbeat.
type Beat struct {
	CallbackURL string `json:"callback_url"`
	Version     string `json:"agent_version"`
	Token       string `json:"agent_token,omitempty"`
	VerifyCA    string `json:"agent_verify_ca,omitempty"`
}

// Heartbeat reports to the conductor that the agent is there and may have results.
func (c *Client) Heartbeat(ctx context.Context, node string, b Beat) error {
	_, err := c.do(ctx, request{doing: "send a heartbeat", method: http.MethodPost,
		path: "/v1/heartbeat/" + url.PathEscape(node), minor: min(c.minor, heartbeatVersion), body: b}, nil)
	return err
}

// ContinueInspection posts an inventory and returns the UUID of the node that it belongs to; "" if the server names
// none. Its URLs are complete.
func (c *Client) ContinueInspection(ctx context.Context, urls []string, body any) (string, error) {
	var got struct {
		UUID string `json:"uuid"`
		Node Node   `json:"node"`
	}
	one := *c
	one.o.URLs = urls
	_, err := one.do(ctx, request{doing: "hand in the inventory", method: http.MethodPost, minor: -1, body: body}, &got)
	if got.UUID == "" {
		got.UUID = got.Node.UUID
	}
	return got.UUID, err
}

type request struct {
	doing, method, path string
	query               url.Values
	minor               int // of the version that is asked for; negative: none
	body                any
}

// do sends a request to the first URL that can be reached, and decodes a successful answer into v, unless it is nil.
// The header is nil if there was no answer.
func (c *Client) do(ctx context.Context, r request, v any) (http.Header, error) {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return nil, fmt.Errorf("%s: %w", r.doing, err)
		}
	}
	err := fmt.Errorf("%s: no URL of Ironic's API is known", r.doing)
	for _, at := range c.o.URLs {
		var head http.Header
		var unreachable bool
		if head, unreachable, err = c.ask(ctx, r, at, body, v); !unreachable || ctx.Err() != nil {
			return head, err
		}
	}
	return nil, err
}

func (c *Client) ask(ctx context.Context, r request, at string, body []byte, v any) (head http.Header,
	unreachable bool, err error) {
	full := at
	if r.path != "" {
		full = strings.TrimRight(at, "/") + r.path
	}
	if len(r.query) > 0 {
		full += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, full, bytes.NewReader(body))
	if err != nil {
		return nil, true, fmt.Errorf("%s: %w", r.doing, bare(err))
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "ingot-agent")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.minor >= 0 {
		req.Header.Set("X-OpenStack-Ironic-API-Version", "1."+strconv.Itoa(r.minor))
	}
	if c.o.RequestID != "" {
		req.Header.Set("X-OpenStack-Request-ID", c.o.RequestID)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, true, fmt.Errorf("%s at %s: %w", r.doing, shown(req.URL), bare(err))
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return resp.Header, false, fmt.Errorf("%s at %s: read the answer: %w", r.doing, shown(req.URL), bare(err))
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return resp.Header, false, &StatusError{Doing: r.doing + " at " + shown(req.URL), Status: resp.StatusCode,
			Fault: fault(got)}
	}
	if v != nil {
		if err := json.Unmarshal(got, v); err != nil {
			return resp.Header, false, fmt.Errorf("%s at %s: the answer is no JSON of the expected form: %w", r.doing,
				shown(req.URL), err)
		}
	}
	return resp.Header, false, nil
}

// shown is a URL without user, password and query.
func shown(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// bare removes net/http's URL, which would be there twice.
func bare(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// fault finds the reason in Ironic's error: error_message is an object, or a string that holds one.
func fault(body []byte) string {
	var outer struct {
		Message json.RawMessage `json:"error_message"`
	}
	if json.Unmarshal(body, &outer) != nil {
		return ""
	}
	inner := outer.Message
	var text string
	if json.Unmarshal(inner, &text) == nil {
		inner = json.RawMessage(text)
	}
	var f struct {
		String string `json:"faultstring"`
	}
	if json.Unmarshal(inner, &f) != nil || f.String == "" {
		f.String = text
	}
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, f.String)
	if r := []rune(clean); len(r) > maxFault {
		clean = string(r[:maxFault]) + "..."
	}
	return clean
}
