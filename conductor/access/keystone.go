package access

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// KeystoneConfig says how Keystone is reached and who Ingot is to it.
type KeystoneConfig struct {
	// AuthURL is Keystone's address, with or without /v3.
	AuthURL string
	// PublicURL is the address where clients get tokens; empty: AuthURL.
	PublicURL string
	// Own is as whom Ingot logs in, and for which project or the system: a user that may validate other people's tokens
	// (role service or admin), or an application credential of one. It is called at each login, so that a changed file
	// needs no restart. Its errors say what to do.
	Own func() (gophercloud.AuthOptions, error)
	// ServiceProject is a project, in the domain ProjectDomain, whose users with the role service count as members of
	// the system; empty: none does.
	ServiceProject, ProjectDomain string
	// CAFile has certificates that Keystone's is signed by; empty: those of the machine.
	CAFile string
	// CacheTime is how long a validated token is good for without asking again: at most a minute, so that a revoked one
	// does not live longer. Zero: 30 seconds.
	CacheTime time.Duration
	// Timeout bounds one exchange with Keystone. Zero: 10 seconds.
	Timeout time.Duration

	now func() time.Time
}

// Bounds of caches and of concurrent work.
const (
	maxTokens   = 10_000
	maxBad      = 1_000
	maxToken    = 8 << 10
	refusedLife = 10 * time.Second // an unknown token does not become a known one
	renewBefore = 2 * time.Minute
)

// Keystone authenticates by tokens of OpenStack's identity service (X-Auth-Token), which it has validated there. Safe
// for concurrent use.
type Keystone struct {
	cfg  KeystoneConfig
	base string // with /v3
	http *http.Client
	log  *slog.Logger
	ask  chan struct{} // bounds how many tokens are being validated

	mu sync.Mutex
	// valid and invalid tokens apart, so that a client with bad tokens does not push valid ones out
	tokens map[[sha256.Size]byte]verdict
	bad    map[[sha256.Size]byte]verdict
	asking map[[sha256.Size]byte]*question

	guesses *guesses // of people who log in here
	key     [sha256.Size]byte

	login sync.Mutex // held while the own token is renewed
	own   string
	until time.Time
	name  string // of whom it is, for people
}

// verdict is Keystone's answer about a token: the actor, or nil for an invalid one.
type verdict struct {
	actor *Actor
	until time.Time
}

// question is a validation under way, for which all requests with the same token wait.
type question struct {
	done  chan struct{}
	actor *Actor
	err   error
}

// NewKeystone checks the configuration. It does not connect: Keystone may come up later.
func NewKeystone(cfg KeystoneConfig, log *slog.Logger) (*Keystone, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	if cfg.CacheTime <= 0 {
		cfg.CacheTime = 30 * time.Second
	}
	cfg.CacheTime = min(cfg.CacheTime, time.Minute)
	if cfg.Timeout <= 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.now == nil {
		cfg.now = time.Now
	}
	u, err := url.Parse(cfg.AuthURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf(
			"the address of Keystone %q is not an http or https address such as https://keystone.example:5000",
			cfg.AuthURL)
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v3")
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	cfg.PublicURL = cmp.Or(cfg.PublicURL, u.String())
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = limit.KeystoneRequests
	transport.MaxConnsPerHost = limit.KeystoneRequests + 1 // and the own login
	transport.MaxResponseHeaderBytes = limit.KeystoneHeader
	if cfg.CAFile != "" {
		trust, err := keyfile.Trust(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read Keystone's CA: %w", err)
		}
		transport.TLSClientConfig = trust
	}
	k := &Keystone{
		cfg: cfg, base: u.String() + "/v3", log: log, ask: make(chan struct{}, limit.KeystoneRequests),
		// Tokens and passwords are for Keystone, not for whomever it might redirect to.
		http: &http.Client{Transport: transport, Timeout: cfg.Timeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		tokens: map[[sha256.Size]byte]verdict{}, bad: map[[sha256.Size]byte]verdict{},
		asking: map[[sha256.Size]byte]*question{}, guesses: newGuesses(limit.KeystoneRequests, cfg.now),
	}
	rand.Read(k.key[:])
	return k, nil
}

// Authenticate finds out who sent a request. An error is a *Refusal.
func (k *Keystone) Authenticate(r *http.Request) (*Actor, error) {
	values := r.Header["X-Auth-Token"]
	if len(values) != 1 || values[0] == "" || len(values[0]) > maxToken || !tokenText(values[0]) {
		return nil, k.unauthorized()
	}
	a, err := k.actor(r.Context(), values[0])
	if err != nil {
		return nil, err
	}
	if a == nil {
		k.log.Info("a token was refused", "from", r.RemoteAddr)
		return nil, k.unauthorized()
	}
	return a, nil
}

// tokenText reports whether a token consists of visible ASCII: no Keystone issues any other.
func tokenText(s string) bool {
	return !slices.ContainsFunc([]byte(s), func(c byte) bool { return c <= ' ' || c > '~' })
}

func (k *Keystone) unauthorized() *Refusal {
	return &Refusal{Status: http.StatusUnauthorized, Message: "The request you have made requires authentication.",
		Challenge: "Keystone uri=" + quote(k.cfg.PublicURL)}
}

func quote(s string) string { return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"` }

// actor returns the owner of a token; nil if it is not valid, or not any more.
func (k *Keystone) actor(ctx context.Context, token string) (*Actor, error) {
	id := sha256.Sum256([]byte(token)) // tokens are not kept, nor compared byte by byte
	k.mu.Lock()
	for _, known := range []map[[sha256.Size]byte]verdict{k.tokens, k.bad} {
		if v, ok := known[id]; ok && k.cfg.now().Before(v.until) {
			k.mu.Unlock()
			return v.actor, nil
		}
	}
	q, ok := k.asking[id]
	if !ok && len(k.asking) >= limit.KeystoneWaiting {
		k.mu.Unlock()
		return nil, &Refusal{Status: http.StatusServiceUnavailable,
			Message: "Too many logins are under way; try again."}
	}
	if !ok {
		q = &question{done: make(chan struct{})}
		k.asking[id] = q
		// The answer is for all that wait for it, so it does not end with the request that happened to be first. The
		// time of one exchange and of a login bounds it.
		go k.find(context.WithoutCancel(ctx), id, token, q)
	}
	k.mu.Unlock()
	select {
	case <-q.done:
		return q.actor, q.err
	case <-ctx.Done():
		return nil, &Refusal{Status: http.StatusServiceUnavailable,
			Message: "The request ended before Keystone had answered who you are."}
	}
}

func (k *Keystone) find(ctx context.Context, id [sha256.Size]byte, token string, q *question) {
	ctx, cancel := context.WithTimeout(ctx, 3*k.cfg.Timeout)
	defer cancel()
	until := time.Time{}
	select {
	case k.ask <- struct{}{}:
		q.actor, until, q.err = k.validate(ctx, token)
		<-k.ask
	case <-ctx.Done():
		q.err = ctx.Err()
	}
	if q.err != nil {
		k.log.Error("Keystone could not be asked whose a token is", "err", q.err)
		q.err = &Refusal{Status: http.StatusServiceUnavailable,
			Message: "Keystone, which knows who you are, can not be asked now: try again in a moment."}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.asking, id)
	if q.err == nil {
		k.keep(id, verdict{q.actor, until})
	}
	close(q.done)
}

// keep remembers a verdict. Called with mu held.
func (k *Keystone) keep(id [sha256.Size]byte, v verdict) {
	to, most := k.tokens, maxTokens
	if v.actor == nil {
		to, most = k.bad, maxBad
		delete(k.tokens, id)
	}
	if len(to) >= most {
		now := k.cfg.now()
		maps.DeleteFunc(to, func(_ [sha256.Size]byte, old verdict) bool { return !now.Before(old.until) })
		if len(to) >= most {
			clear(to)
		}
	}
	to[id] = v
}

// validate asks Keystone about a token, and once more with a new token of its own when the old one is not good any
// more.
func (k *Keystone) validate(ctx context.Context, token string) (*Actor, time.Time, error) {
	for again := false; ; again = true {
		own, err := k.ownToken(ctx)
		if err != nil {
			return nil, time.Time{}, err
		}
		status, body, _, err := k.send(ctx, http.MethodGet, "/auth/tokens?nocatalog",
			map[string]string{"X-Auth-Token": own, "X-Subject-Token": token}, nil)
		now := k.cfg.now()
		switch {
		case err != nil:
			return nil, time.Time{}, err
		case status == http.StatusOK:
			a, expires, err := k.read(body)
			if err != nil {
				return nil, time.Time{}, err
			}
			until := now.Add(k.cfg.CacheTime)
			if expires.Before(until) {
				until = expires
			}
			if !now.Before(expires) {
				a, until = nil, now.Add(refusedLife)
			}
			return a, until, nil
		case status == http.StatusNotFound || status == http.StatusBadRequest:
			return nil, now.Add(refusedLife), nil
		case status == http.StatusUnauthorized && !again:
			k.forget(own)
		case status == http.StatusUnauthorized, status == http.StatusForbidden:
			k.forget(own) // the role may be given meanwhile
			return nil, time.Time{},
				fmt.Errorf("validate a token: Keystone at %s does not let %s validate tokens (%d): give it the role service or admin in the project or system it logs in to", k.base, k.ownName(), status)
		default:
			return nil, time.Time{}, fmt.Errorf("validate a token: Keystone at %s answered %d", k.base, status)
		}
	}
}

// answer is Keystone's description of a token.
type answer struct {
	Token struct {
		ExpiresAt time.Time `json:"expires_at"`
		User      struct {
			ID     string `json:"id"`
			Name   string `json:"name"`
			Domain named  `json:"domain"`
		} `json:"user"`
		Project *struct {
			ID     string `json:"id"`
			Name   string `json:"name"`
			Domain named  `json:"domain"`
		} `json:"project"`
		System map[string]bool `json:"system"`
		Roles  []named         `json:"roles"`
	} `json:"token"`
}

type named struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

func (k *Keystone) read(body []byte) (*Actor, time.Time, error) {
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, time.Time{}, fmt.Errorf("read Keystone's answer about a token: %w", err)
	}
	t := a.Token
	if t.User.ID == "" || t.ExpiresAt.IsZero() {
		return nil, time.Time{}, errors.New("read Keystone's answer about a token: it has no user or no end")
	}
	var roles []string
	for _, r := range t.Roles {
		roles = append(roles, r.Name)
	}
	out := &Actor{UserID: t.User.ID, UserName: t.User.Name, System: t.System["all"]}
	if t.User.Domain.ID != "default" {
		out.Domain = t.User.Domain.Name
	}
	out.Role, out.Service = roleOf(roles)
	if p := t.Project; p != nil && !out.System {
		out.ProjectID, out.ProjectName = p.ID, p.Name
		if p.Domain.ID != "default" {
			out.ProjectName += "@" + p.Domain.Name
		}
		// The name alone would trust a user who may create projects in another domain and makes one of this name.
		out.Trusted = out.Service && k.cfg.ServiceProject != "" && p.Name == k.cfg.ServiceProject &&
			(p.Domain.Name == k.cfg.ProjectDomain || p.Domain.ID == k.cfg.ProjectDomain)
	}
	return out, t.ExpiresAt, nil
}

// OwnToken returns a token of this server's own user, for another service of OpenStack.
func (k *Keystone) OwnToken(ctx context.Context) (string, error) { return k.ownToken(ctx) }

// Forget drops a token of OwnToken's that a service has refused.
func (k *Keystone) Forget(token string) { k.forget(token) }

// ownToken returns the token by which this server is known to Keystone.
func (k *Keystone) ownToken(ctx context.Context) (string, error) {
	k.login.Lock()
	defer k.login.Unlock()
	if k.own != "" && k.cfg.now().Before(k.until) {
		return k.own, nil
	}
	o, err := k.cfg.Own()
	if err != nil {
		return "", err
	}
	scope, err := o.ToTokenV3ScopeMap()
	if err != nil {
		return "", fmt.Errorf("log in to Keystone: %w", err)
	}
	doc, err := o.ToTokenV3CreateMap(scope)
	if err != nil {
		return "", fmt.Errorf("log in to Keystone: %w", err)
	}
	in, err := json.Marshal(doc)
	if err != nil {
		return "", fmt.Errorf("log in to Keystone: %w", err)
	}
	k.name = nameOf(o)
	status, body, header, err := k.send(ctx, http.MethodPost, "/auth/tokens?nocatalog", nil, in)
	if err != nil {
		return "", err
	}
	token := header.Get("X-Subject-Token")
	if status == http.StatusUnauthorized {
		return "", fmt.Errorf(
			"log in to Keystone at %s as %s: it refuses: check api.keystone.username, password, user_domain, project and project_domain, or the application credential", k.base, k.name)
	}
	if status != http.StatusCreated || token == "" {
		return "", fmt.Errorf("log in to Keystone at %s as %s: it answered %d", k.base, k.name, status)
	}
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		return "", fmt.Errorf("read Keystone's answer to the login: %w", err)
	}
	if a.Token.ExpiresAt.IsZero() {
		return "", errors.New("read Keystone's answer to the login: it does not say when the token ends")
	}
	k.own, k.until = token, a.Token.ExpiresAt.Add(-renewBefore)
	return token, nil
}

// ownName is whom Keystone knows this server as, for people.
func (k *Keystone) ownName() string {
	k.login.Lock()
	defer k.login.Unlock()
	return k.name
}

func nameOf(o gophercloud.AuthOptions) string {
	if credential := cmp.Or(o.ApplicationCredentialID, o.ApplicationCredentialName); credential != "" {
		return "application credential " + credential
	}
	return "user " + cmp.Or(o.Username, o.UserID)
}

// forget drops the own token, if it is still this one.
func (k *Keystone) forget(own string) {
	k.login.Lock()
	defer k.login.Unlock()
	if k.own == own {
		k.own = ""
	}
}

// send makes one exchange; what failed on the way is tried once more, since both requests can be repeated.
func (k *Keystone) send(ctx context.Context, method, path string, header map[string]string,
	body []byte) (int, []byte, http.Header, error) {
	for again := false; ; again = true {
		req, err := http.NewRequestWithContext(ctx, method, k.base+path, bytes.NewReader(body))
		if err != nil {
			return 0, nil, nil, fmt.Errorf("ask Keystone: %w", err)
		}
		for name, v := range header {
			req.Header.Set(name, v)
		}
		req.Header.Set("Accept", "application/json")
		if body != nil {
			req.Header.Set("Content-Type", "application/json")
		}
		resp, err := k.http.Do(req)
		if err == nil {
			var b []byte
			b, err = io.ReadAll(io.LimitReader(resp.Body, limit.KeystoneBody))
			resp.Body.Close()
			if err == nil {
				return resp.StatusCode, b, resp.Header, nil
			}
		}
		if again || ctx.Err() != nil {
			return 0, nil, nil, fmt.Errorf("ask Keystone: %w", err)
		}
	}
}
