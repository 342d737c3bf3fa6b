package importer

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/rest"
)

// Source is the Ironic that is read: an *API or a *Database.
type Source interface {
	// open connects, and returns which version is read. It must be called first, and close last.
	open(ctx context.Context) (version string, err error)
	close() error
	name() string
	// list returns all objects of a collection as the API shows them, none if this Ironic is too old to have it.
	list(ctx context.Context, c collection) ([]json.RawMessage, error)
	// history returns the lines of a node's history, oldest first.
	history(ctx context.Context, nodeUUID string) ([]json.RawMessage, error)
}

// collection is where the objects of one kind are.
type collection struct {
	table        string // of the database
	path, member string // of the API
	query        url.Values
}

// API is that of a running Ironic. It masks secrets.
type API struct {
	URL            string // http://host:6385, with or without /v1
	Token          string // of Keystone; empty: none
	User, Password string // for HTTP basic; empty: none
	TLS            *tls.Config

	client  *http.Client
	version string
	minor   int
}

const (
	versionHeader = "X-OpenStack-Ironic-API-Version"
	maxHeader     = "X-OpenStack-Ironic-API-Maximum-Version"
	newestMinor   = int(rest.MaxVersion) // newer versions are not understood here
	pageSize      = 500
	maxAnswer     = 256 << 20
)

// errAbsent means that the API has no such collection: it is older, or it is switched off.
var errAbsent = errors.New("the API has no such resource")

// open finds out which version to speak.
func (s *API) open(ctx context.Context) (string, error) {
	u, err := url.Parse(s.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("%q is not the address of a Bare Metal API, such as http://ironic.example.org:6385",
			redacted(s.URL))
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v1")
	if u.User != nil && s.User == "" {
		s.User = u.User.Username()
		s.Password, _ = u.User.Password()
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	s.URL = u.String()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = s.TLS
	// A server must not send the credentials on to another server.
	s.client = &http.Client{Timeout: 2 * time.Minute, Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	s.version = ""
	resp, err := s.send(ctx, "/v1/")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	major, minor, _ := strings.Cut(resp.Header.Get(maxHeader), ".")
	n, err := strconv.Atoi(minor)
	if err != nil || major != "1" {
		return "", fmt.Errorf("%s is not a Bare Metal API: its answer has no header %s", s.URL, maxHeader)
	}
	s.minor = min(n, newestMinor)
	s.version = "1." + strconv.Itoa(s.minor)
	return "API version " + s.version, nil
}

// redacted is an address without its password.
func redacted(s string) string {
	if u, err := url.Parse(s); err == nil {
		return u.Redacted()
	}
	return "the address"
}

func (s *API) send(ctx context.Context, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	if s.version != "" {
		r.Header.Set(versionHeader, s.version)
	}
	if s.Token != "" {
		r.Header.Set("X-Auth-Token", s.Token)
	}
	if s.User != "" {
		r.SetBasicAuth(s.User, s.Password)
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.URL+path, err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return resp, nil
	case http.StatusNotFound, http.StatusNotAcceptable:
		err = errAbsent
	case http.StatusUnauthorized:
		err = errors.New(
			"it asks who is calling (401): give --user and OS_PASSWORD for HTTP basic; for Keystone name a cloud of clouds.yaml with --cloud, set OS_AUTH_URL and its kin, or OS_TOKEN (openstack token issue -f value -c id)")
	case http.StatusForbidden:
		err = errors.New(
			"it refuses (403): the import needs somebody who may see all nodes, such as the system's administrator or reader")
	default:
		err = fmt.Errorf("it answered %s", resp.Status)
	}
	return nil, errors.Join(fmt.Errorf("read %s: %w", s.URL+path, err), resp.Body.Close())
}

// list reads a whole collection, page by page; nothing when the API has no such collection.
func (s *API) list(ctx context.Context, c collection) ([]json.RawMessage, error) {
	path, member := c.path, c.member
	var all []json.RawMessage
	seen := map[string]bool{}
	q := url.Values{"limit": {strconv.Itoa(pageSize)}}
	maps.Copy(q, c.query)
	if c.table == "nodes" && s.minor >= int(rest.VersionChildren) {
		q.Set("include_children", "true") // or those that have a parent are left out
	}
	for {
		resp, err := s.send(ctx, path+"?"+q.Encode())
		if errors.Is(err, errAbsent) && len(all) == 0 {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		var page map[string]json.RawMessage
		err = errors.Join(json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&page), resp.Body.Close())
		var items []json.RawMessage
		if err == nil {
			err = json.Unmarshal(page[member], &items)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: the answer is not a list of %s: %w", s.URL+path, member, err)
		}
		all = append(all, items...)
		var next string
		if raw, ok := page["next"]; ok {
			if err := json.Unmarshal(raw, &next); err != nil {
				return nil, fmt.Errorf("read %s: the link to the next page: %w", s.URL+path, err)
			}
		}
		if next == "" || len(items) == 0 {
			return all, nil
		}
		// Only the place is taken from the link: behind a proxy its address is often unreachable from here.
		var last struct{ UUID string }
		if err := json.Unmarshal(items[len(items)-1], &last); err != nil {
			return nil, fmt.Errorf("read %s: %w", s.URL+path, err)
		}
		if last.UUID == "" || seen[last.UUID] {
			return nil, fmt.Errorf("read %s: the pages go in a circle at %q", s.URL+path, last.UUID)
		}
		seen[last.UUID] = true
		q.Set("marker", last.UUID)
	}
}

func (s *API) history(ctx context.Context, nodeUUID string) ([]json.RawMessage, error) {
	if s.minor < int(rest.VersionHistory) {
		return nil, nil
	}
	newest, err := s.list(ctx, collection{path: "/v1/nodes/" + url.PathEscape(nodeUUID) + "/history", member: "history",
		query: url.Values{"detail": {"true"}}})
	slices.Reverse(newest)
	return newest, err
}

func (s *API) name() string { return s.URL }

func (s *API) close() error { //nolint:unparam that of a Database can fail
	s.client.CloseIdleConnections()
	return nil
}
