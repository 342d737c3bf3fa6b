// Package keystonetest is a Keystone for tests: users, projects, roles and tokens of its identity API v3, as far as
// clients need them to log in and services to validate. It behaves: wrong passwords, tokens that have ended or been
// revoked, and validators without the role are refused as Keystone refuses them.
package keystonetest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"
)

// Server is a Keystone on loopback.
type Server struct {
	*httptest.Server

	mu       sync.Mutex
	users    map[string]*user
	projects map[string]string // name -> ID
	catalog  map[string]string // service type -> URL
	tokens   map[string]*token
	keys     map[string]credential // by ID
	made     int
	life     time.Duration
	asked    int
	broken   int           // answer with this status instead; 0: don't
	slow     time.Duration // before each validation
}

type user struct {
	name, password string
	roles          map[string][]string // project's name, or "" for the system
}

type token struct {
	user    *user
	project string
	system  bool
	ends    time.Time
}

type credential struct{ secret, user, project string }

// Start makes a Keystone that ends with the test.
func Start(t testing.TB) *Server {
	s := &Server{users: map[string]*user{}, projects: map[string]string{}, catalog: map[string]string{},
		tokens: map[string]*token{}, keys: map[string]credential{}, life: time.Hour}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v3", s.version)
	mux.HandleFunc("GET /v3/{$}", s.version)
	mux.HandleFunc("GET /{$}", s.versions)
	mux.HandleFunc("POST /v3/auth/tokens", s.login)
	mux.HandleFunc("GET /v3/auth/tokens", s.validate)
	mux.HandleFunc("DELETE /v3/auth/tokens", s.revoke)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		status := s.broken
		s.mu.Unlock()
		if status != 0 {
			refuse(w, status)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// AddUser makes a user; "" stands for the default domain everywhere.
func (s *Server) AddUser(name, password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[name] = &user{name: name, password: password, roles: map[string][]string{}}
}

// AddCredential makes an application credential of a user for a project.
func (s *Server) AddCredential(id, secret, user, project string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[id] = credential{secret, user, project}
}

// SetPassword changes a user's password, which ends its tokens.
func (s *Server) SetPassword(name, password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[name].password = password
	for id, t := range s.tokens {
		if t.user.name == name {
			delete(s.tokens, id)
		}
	}
}

// Project creates a project if it does not exist, and returns its ID.
func (s *Server) Project(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.projects[name] = cmp.Or(s.projects[name], fmt.Sprintf("%032x", len(s.projects)+0xab0))
	return s.projects[name]
}

// Grant gives a user roles in a project, or in the system when that is "". Implied roles have to be named too.
func (s *Server) Grant(name, project string, roles ...string) {
	if project != "" {
		s.Project(project)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[name].roles[project] = roles
}

// AddEndpoint puts a service into the catalog.
func (s *Server) AddEndpoint(kind, url string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catalog[kind] = url
}

// TokenLife sets how long the tokens live that are made from now on.
func (s *Server) TokenLife(d time.Duration) { s.mu.Lock(); defer s.mu.Unlock(); s.life = d }

// Break has every request answered with a status; 0 mends it.
func (s *Server) Break(status int) { s.mu.Lock(); defer s.mu.Unlock(); s.broken = status }

// Slow delays each validation.
func (s *Server) Slow(d time.Duration) { s.mu.Lock(); defer s.mu.Unlock(); s.slow = d }

// Asked returns how often tokens were validated.
func (s *Server) Asked() int { s.mu.Lock(); defer s.mu.Unlock(); return s.asked }

// Token makes a token for a user in a project, or in the system when that is "".
func (s *Server) Token(name, project string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token(&token{user: s.users[name], project: project, system: project == "", ends: time.Now().Add(s.life)})
}

func (s *Server) token(t *token) string {
	s.made++
	id := fmt.Sprintf("gAAAA-%d", s.made)
	s.tokens[id] = t
	return id
}

// Revoke ends a token.
func (s *Server) Revoke(id string) { s.mu.Lock(); defer s.mu.Unlock(); delete(s.tokens, id) }

func refuse(w http.ResponseWriter, status int) {
	send(w, status, map[string]any{
		"error": map[string]any{"code": status, "title": http.StatusText(status), "message": "refused"}})
}

func send(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		panic(http.ErrAbortHandler) // the client is gone
	}
}

func (s *Server) document() map[string]any {
	return map[string]any{"id": "v3.14", "status": "stable", "updated": "2020-04-07T00:00:00Z",
		"links": []any{map[string]any{"rel": "self", "href": s.URL + "/v3/"}},
		"media-types": []any{
			map[string]any{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}}}
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	send(w, http.StatusOK, map[string]any{"version": s.document()})
}

func (s *Server) versions(w http.ResponseWriter, _ *http.Request) {
	send(w, http.StatusMultipleChoices, map[string]any{"versions": map[string]any{"values": []any{s.document()}}})
}

func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Auth struct {
			Identity struct {
				Password struct {
					User struct{ Name, Password string }
				}
				Credential struct{ ID, Secret string } `json:"application_credential"`
			}
			Scope struct {
				Project struct{ ID, Name string }
				System  struct{ All bool }
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		refuse(w, http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u, sc := s.users[in.Auth.Identity.Password.User.Name], in.Auth.Scope
	good := u != nil && u.password == in.Auth.Identity.Password.User.Password
	if as := in.Auth.Identity.Credential; as.ID != "" { // it has its scope
		k := s.keys[as.ID]
		u, good = s.users[k.user], as.Secret == k.secret && k.user != "" && sc.Project.Name+sc.Project.ID == ""
		sc.Project.Name = k.project
	}
	if !good {
		refuse(w, http.StatusUnauthorized)
		return
	}
	t := &token{user: u, system: sc.System.All, project: sc.Project.Name, ends: time.Now().Add(s.life)}
	for name, id := range s.projects {
		if id == sc.Project.ID {
			t.project = name
		}
	}
	if sc.Project.ID != "" && t.project == "" || (t.system || t.project != "") && len(u.roles[t.project]) == 0 {
		refuse(w, http.StatusUnauthorized)
		return
	}
	w.Header().Set("X-Subject-Token", s.token(t))
	send(w, http.StatusCreated, s.show(t, true))
}

func (s *Server) show(t *token, catalog bool) map[string]any {
	domain := map[string]any{"id": "default", "name": "Default"}
	o := map[string]any{"methods": []string{"password"},
		"expires_at": t.ends.UTC().Format("2006-01-02T15:04:05.000000Z"),
		"user":       map[string]any{"id": "id-of-" + t.user.name, "name": t.user.name, "domain": domain}}
	var roles []any
	for _, r := range t.user.roles[t.project] {
		roles = append(roles, map[string]any{"id": "role-" + r, "name": r})
	}
	switch {
	case t.system:
		o["system"], o["roles"] = map[string]any{"all": true}, roles
	case t.project != "":
		o["project"], o["roles"] = map[string]any{"id": s.projects[t.project], "name": t.project, "domain": domain},
			roles
	}
	if catalog {
		var services []any
		for kind, url := range s.catalog {
			services = append(services, map[string]any{"type": kind, "name": kind, "id": kind, "endpoints": []any{
				map[string]any{"id": kind + "-1", "interface": "public", "region": "RegionOne",
					"region_id": "RegionOne", "url": url}}})
		}
		o["catalog"] = services
	}
	return map[string]any{"token": o}
}

// asker checks that a client may validate tokens.
func (s *Server) asker(w http.ResponseWriter, r *http.Request) bool {
	t := s.tokens[r.Header.Get("X-Auth-Token")]
	if t == nil || !time.Now().Before(t.ends) {
		refuse(w, http.StatusUnauthorized)
		return false
	}
	roles := t.user.roles[t.project]
	if !slices.Contains(roles, "admin") && !slices.Contains(roles, "service") &&
		r.Header.Get("X-Auth-Token") != r.Header.Get("X-Subject-Token") {
		refuse(w, http.StatusForbidden)
		return false
	}
	return true
}

func (s *Server) validate(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	d := s.slow
	s.mu.Unlock()
	select {
	case <-time.After(d):
	case <-r.Context().Done():
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if !s.asker(w, r) {
		return
	}
	t := s.tokens[r.Header.Get("X-Subject-Token")]
	if t == nil || !time.Now().Before(t.ends) {
		refuse(w, http.StatusNotFound)
		return
	}
	w.Header().Set("X-Subject-Token", r.Header.Get("X-Subject-Token"))
	send(w, http.StatusOK, s.show(t, !r.URL.Query().Has("nocatalog")))
}

func (s *Server) revoke(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asker(w, r) {
		return
	}
	if s.tokens[r.Header.Get("X-Subject-Token")] == nil {
		refuse(w, http.StatusNotFound)
		return
	}
	delete(s.tokens, r.Header.Get("X-Subject-Token"))
	w.WriteHeader(http.StatusNoContent)
}
