package oscloud

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
)

// Cloud is an entry of a file of clouds, as OpenStack's client reads it. It logs in when that is first needed, once for
// all that use it, and anew when a service refuses its token. The file is read at each login, so that a changed
// password needs no restart. Safe for concurrent use.
type Cloud struct {
	file, name string
	turn       chan struct{} // held while logging in, and to read what follows
	now        *session
	failed     error // the last login
	until      time.Time
}

// session is a login.
type session struct {
	token   string
	project string // ID; "" for a login that is for none
	catalog *tokens.ServiceCatalog
	region  string
	side    string // the interface: public, internal or admin
	trust   *tls.Config
}

// CloudError says that a cloud can't be logged in to. Its text is for an operator, and holds nothing of the file but
// the cloud's name.
type CloudError struct {
	Cloud, File string
	// Refused: Keystone does not accept the credentials. Missing: the file has no such cloud, or can't be read.
	Refused, Missing bool
	Reason           string
	err              error
}

func (e *CloudError) Error() string {
	return fmt.Sprintf("log in to cloud %q of %s: %s", clean.Line(e.Cloud, 64), e.File, e.Reason)
}

func (e *CloudError) Unwrap() error { return e.err }

// NewCloud makes a Cloud. It neither reads nor connects.
func NewCloud(file, name string) *Cloud {
	return &Cloud{file: file, name: name, turn: make(chan struct{}, 1)}
}

// Pauses after a login that failed: hundreds of nodes may ask, and some Keystones lock users after a few refusals.
const (
	refusedPause = 30 * time.Second
	failedPause  = 5 * time.Second
)

// Login returns a token.
func (c *Cloud) Login(ctx context.Context) (string, error) {
	s, err := c.session(ctx)
	if err != nil {
		return "", err
	}
	return s.token, nil
}

// Project is the ID of the project that the login is for.
func (c *Cloud) Project(ctx context.Context) (string, error) {
	s, err := c.session(ctx)
	if err == nil && s.project == "" {
		err = &CloudError{Cloud: c.name, File: c.file, Missing: true, Reason: "the login is for no project: set project_name"}
	}
	if err != nil {
		return "", err
	}
	return s.project, nil
}

// Forget drops a token that a service refused.
func (c *Cloud) Forget(token string) {
	c.turn <- struct{}{}
	if c.now != nil && c.now.token == token {
		c.now = nil
	}
	<-c.turn
}

func (c *Cloud) session(ctx context.Context) (*session, error) {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-c.turn }()
	switch {
	case c.now != nil:
		return c.now, nil
	case c.failed != nil && time.Now().Before(c.until):
		return nil, c.failed
	}
	s, err := c.login(ctx)
	if err == nil {
		c.now, c.failed = s, nil
		return s, nil
	}
	if ctx.Err() != nil {
		return nil, err // which says nothing about the cloud
	}
	c.failed, c.until = err, time.Now().Add(failedPause)
	var e *CloudError
	if errors.As(err, &e) && e.Refused {
		c.until = time.Now().Add(refusedPause)
	}
	return nil, err
}

// Names lists the clouds of a file, of which there has to be one. The texts of YAML's errors are left out, since they
// quote the file.
func Names(file string) ([]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the file can't be read: %w", cause(err))
	}
	var all struct {
		Clouds map[string]any `yaml:"clouds"`
	}
	if yaml.Unmarshal(b, &all) != nil || len(all.Clouds) == 0 {
		return nil, errors.New("the file is not YAML with clouds, as OpenStack's client reads it")
	}
	return slices.Sorted(maps.Keys(all.Clouds)), nil
}

// read finds the cloud in its file.
func (c *Cloud) read() (o gophercloud.AuthOptions, e gophercloud.EndpointOpts, trust *tls.Config, err error) {
	missing := func(reason string, cause error) error {
		return &CloudError{Cloud: c.name, File: c.file, Missing: true, Reason: reason, err: cause}
	}
	names, err := Names(c.file)
	if err != nil {
		return o, e, nil, missing(err.Error(), err)
	}
	if !slices.Contains(names, c.name) {
		return o, e, nil, missing("the file has no cloud of this name", nil)
	}
	o, e, trust, err = clouds.Parse(clouds.WithCloudName(c.name), clouds.WithLocations(c.file), clouds.WithRegion(""),
		clouds.WithEndpointType(""))
	if err != nil {
		return o, e, nil, missing("its entry, or that of secure.yaml beside the file, is not one that OpenStack's client reads"+
			of(err), err)
	}
	u, err := url.Parse(o.IdentityEndpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return o, e, nil, missing("its auth_url is not an address such as https://keystone.example:5000", nil)
	}
	if o.ApplicationCredentialID != "" || o.ApplicationCredentialName != "" {
		o.Scope, o.TenantID, o.TenantName = nil, "", "" // Keystone refuses a scope beside them: they have one
	}
	o.AllowReauth = false
	return o, e, trust, nil
}

// cause is the fault of a file, without its path.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// of names the file that an error is about, such as a certificate; "" if it is about none.
func of(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return ": " + p.Error()
	}
	return ""
}

// login asks Keystone for a token and the catalog.
func (c *Cloud) login(ctx context.Context) (*session, error) {
	o, e, trust, err := c.read()
	if err != nil {
		return nil, err
	}
	base := strings.TrimSuffix(strings.TrimSuffix(o.IdentityEndpoint, "/"), "/v3") + "/v3/"
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("address of Keystone: %w", err)
	}
	keystone := &gophercloud.ServiceClient{Endpoint: base, ProviderClient: &gophercloud.ProviderClient{
		HTTPClient: client(&bounded{host: u.Host, next: wire(trust)})}}
	answer := tokens.Create(ctx, keystone, &o)
	token, err := answer.ExtractTokenID()
	var s *session
	if err == nil {
		s = &session{token: token, region: e.Region, trust: trust,
			side: string(cmp.Or(e.Availability, gophercloud.AvailabilityPublic))}
		s.catalog, err = answer.ExtractServiceCatalog()
	}
	if err == nil {
		var p *tokens.Project
		if p, err = answer.ExtractProject(); p != nil {
			s.project = p.ID
		}
	}
	switch err = Explain("Keystone", "get a token", err); {
	case err == nil:
		return s, nil
	case Is(err, http.StatusUnauthorized), Is(err, http.StatusForbidden):
		return nil, &CloudError{Cloud: c.name, File: c.file, Refused: true, err: err,
			Reason: "Keystone refuses: check user or application credential, password, domains and project in the file"}
	}
	return nil, &CloudError{Cloud: c.name, File: c.file, Reason: err.Error(), err: err}
}

// paths are those of the services' versions, for addresses in a catalog that lack them.
var paths = map[string]string{"network": "/v2.0", "image": "/v2"}

// Service makes a client for a service of the cloud by its type in the catalog, such as "compute". name is for people.
func (c *Cloud) Service(ctx context.Context, kind, name string) (*gophercloud.ServiceClient, error) {
	s, err := c.session(ctx)
	if err != nil {
		return nil, err
	}
	for _, entry := range s.catalog.Entries {
		for _, at := range entry.Endpoints {
			if entry.Type != kind || at.Interface != s.side || s.region != "" && at.Region != s.region && at.RegionID !=
				s.region {
				continue
			}
			sc, err := New(Config{Name: name, URL: at.URL, Path: paths[kind], TLS: s.trust, Login: c.Login,
				Forget: c.Forget})
			if err != nil {
				return nil, err
			}
			sc.Type = kind
			return sc, nil
		}
	}
	return nil, &CloudError{Cloud: c.name, File: c.file, Missing: true, Reason: fmt.Sprintf(
		"the catalog of Keystone has no service of type %s with interface %s in region %q: check region_name and interface in the file",
		kind, s.side, s.region)}
}

var versionIn = regexp.MustCompile(`/v2\.[0-9]+/`)

// Negotiate has a client of Nova's use the newest microversion that both sides know; newest is 2.newest.
func Negotiate(ctx context.Context, sc *gophercloud.ServiceClient, newest int) error {
	const service, op = "Nova", "choose a version of its API"
	u, err := url.Parse(sc.Endpoint)
	if err != nil {
		return fmt.Errorf("address of Nova: %w", err)
	}
	at := versionIn.FindStringIndex(u.Path)
	if at == nil {
		return &Error{Service: service, Op: op, Status: http.StatusOK,
			Reason: "the address in the catalog of Keystone is not that of version 2.1"}
	}
	u.Path = u.Path[:at[1]] // without a project, which old catalogs have after it
	var doc struct {
		Version struct {
			Version string
			Min     string `json:"min_version"`
		}
	}
	_, err = sc.Get(ctx, u.String(), &doc, nil) //nolint:bodyclose gophercloud closes what it has decoded
	if err != nil {
		return Explain(service, op, err)
	}
	if least := Minor(doc.Version.Min); least > newest {
		return &Error{Service: service, Op: op, Status: http.StatusOK, Reason: fmt.Sprintf(
			"it needs 2.%d at least, and Ingot knows those up to 2.%d", least, newest)}
	}
	sc.Microversion = "2." + strconv.Itoa(max(1, min(Minor(doc.Version.Version), newest)))
	return nil
}

// Minor is 93 of the microversion "2.93"; 0 of what is none of version 2.
func Minor(version string) int {
	major, minor, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(minor)
	if major != "2" || err != nil {
		return 0
	}
	return n
}

// File finds a file of clouds where OpenStack's client would.
func File(getenv func(string) string) (string, error) {
	if file := getenv("OS_CLIENT_CONFIG_FILE"); file != "" {
		return file, nil
	}
	home := cmp.Or(getenv("XDG_CONFIG_HOME"), getenv("HOME")+"/.config")
	files := []string{"clouds.yaml", home + "/openstack/clouds.yaml", "/etc/openstack/clouds.yaml"}
	for _, file := range files {
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("there is no clouds.yaml: looked for %s; OS_CLIENT_CONFIG_FILE names another",
		strings.Join(files, ", "))
}
