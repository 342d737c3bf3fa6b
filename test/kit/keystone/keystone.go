// Package keystone runs a real Keystone of Debian's package python3-keystone, on loopback, with SQLite and everything
// else in one folder.
package keystone

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/port"
	"github.com/ingot-metal/ingot/test/kit/proc"
)

// Package is Debian's.
const Package = "python3-keystone"

// Server is a running Keystone. Its methods are for one caller at a time.
type Server struct {
	URL string // with /v3

	run   *proc.Process
	life  time.Duration
	token string
	made  time.Time
	ids   map[[2]string]string // by kind and name
}

// threaded serves Keystone with threads: the package's own server for tests takes one connection after the other, and
// one that a client opens ahead and does not use would stop it.
const threaded = `
import socketserver, sys, wsgiref.simple_server as simple
from keystone.server.wsgi import initialize_public_application
class Server(socketserver.ThreadingMixIn, simple.WSGIServer):
    daemon_threads = True
    request_queue_size = 128
host, port = sys.argv[1:3]
del sys.argv[1:3]
simple.make_server(host, int(port), initialize_public_application(), Server).serve_forever()
`

// Start starts one with its data in a folder that is there and empty; programs has Package. Tokens live for life. It
// has one user, the administrator of the system.
func Start(ctx context.Context, programs debian.Tree, dir string, life time.Duration) (*Server, error) {
	addr, err := port.Free()
	if err != nil {
		return nil, err
	}
	me, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf("start Keystone: %w", err)
	}
	conf := filepath.Join(dir, "keystone.conf")
	text := fmt.Sprintf(`[database]
connection = sqlite:///%[1]s/keystone.db
[fernet_tokens]
key_repository = %[1]s/fernet
[credential]
key_repository = %[1]s/credential
[token]
provider = fernet
expiration = %[2]d
[identity]
password_hash_rounds = 4
[cache]
enabled = false
`, dir, int(life.Seconds()))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("configure Keystone: %w", err)
	}
	for _, d := range []string{"fernet", "credential"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("configure Keystone: %w", err)
		}
	}
	program := func(name, log string, args ...string) proc.Program {
		return proc.Program{Name: name, Args: append([]string{debian.Python, programs.Program(name)}, args...),
			Log: filepath.Join(dir, log+".log"),
			Env: append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LC_ALL=C.UTF-8"}, programs.Env...)}
	}
	manage := func(command string, args ...string) error {
		p := program("keystone-manage", command, append([]string{"--config-file", conf, command}, args...)...)
		p.Name += " " + command
		return proc.Run(ctx, p)
	}
	owner := []string{"--keystone-user", me.Username, "--keystone-group", me.Username}
	errs := make([]error, 3)
	var wg sync.WaitGroup
	wg.Go(func() { errs[0] = manage("db_sync") })
	wg.Go(func() { errs[1] = manage("fernet_setup", owner...) })
	wg.Go(func() { errs[2] = manage("credential_setup", owner...) })
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	// Keystone may write while a connection of its own still reads, which SQLite refuses otherwise ("database is
	// locked").
	if err := proc.Run(ctx, proc.Program{Name: "SQLite", Log: filepath.Join(dir, "sqlite.log"),
		Args: []string{debian.Python, "-c",
			"import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('PRAGMA journal_mode=WAL')",
			filepath.Join(dir, "keystone.db")}}); err != nil {
		return nil, err
	}
	s := &Server{URL: "http://" + addr + "/v3", life: life, ids: map[[2]string]string{}}
	if err := manage("bootstrap", "--bootstrap-password", "admin", "--bootstrap-region-id", "RegionOne",
		"--bootstrap-public-url", s.URL); err != nil {
		return nil, err
	}
	host, number, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	p := program("Keystone", "keystone")
	p.Args = []string{debian.Python, "-c", threaded, host, number, "--config-file", conf}
	if s.run, err = proc.Start(p); err != nil {
		return nil, err
	}
	ready, stop := context.WithTimeout(ctx, 2*time.Minute)
	defer stop()
	if err := s.run.Ready(ready, proc.Answers(s.URL)); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Stop ends it. Its folder is the caller's.
func (s *Server) Stop() { s.run.Stop() }

// The scope of a token: a project by name, or one of these.
const (
	System   = ""
	Unscoped = "-"
)

var domain = object{"id": "default"}

type object map[string]any

// Token logs in, at any Keystone's address with /v3.
func Token(ctx context.Context, url, user, password, scope string) (string, error) {
	auth := object{"identity": object{"methods": []string{"password"},
		"password": object{"user": object{"name": user, "domain": domain, "password": password}}}}
	switch scope {
	case Unscoped:
	case System:
		auth["scope"] = object{"system": object{"all": true}}
	default:
		auth["scope"] = object{"project": object{"name": scope, "domain": domain}}
	}
	header, err := ask(ctx, http.MethodPost, url+"/auth/tokens", nil, object{"auth": auth}, nil)
	if err != nil {
		return "", fmt.Errorf("log in to Keystone as %s: %w", user, err)
	}
	return header.Get("X-Subject-Token"), nil
}

// Revoke ends a token with its own power.
func Revoke(ctx context.Context, url, token string) error {
	_, err := ask(ctx, http.MethodDelete, url+"/auth/tokens",
		http.Header{"X-Auth-Token": {token}, "X-Subject-Token": {token}}, nil, nil)
	return err
}

// ask sends a request and decodes the answer.
func ask(ctx context.Context, method, url string, header http.Header, in, out any) (http.Header, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	if in == nil {
		body = nil
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, b)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(b, out)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, url, err)
	}
	return resp.Header, nil
}

// do sends an administrator's request and decodes the answer.
func (s *Server) do(ctx context.Context, method, path string, in, out any) (err error) {
	if time.Since(s.made) > s.life/2 {
		s.made = time.Now()
		if s.token, err = Token(ctx, s.URL, "admin", "admin", System); err != nil {
			return err
		}
	}
	_, err = ask(ctx, method, s.URL+path, http.Header{"X-Auth-Token": {s.token}}, in, out)
	return err
}

// id makes an object of a kind, or finds the one that has its name, and returns its ID.
func (s *Server) id(ctx context.Context, kind, name string, more object) (string, error) {
	if id := s.ids[[2]string{kind, name}]; id != "" {
		return id, nil
	}
	var list map[string]json.RawMessage
	if err := s.do(ctx, http.MethodGet, "/"+kind+"s?name="+name, nil, &list); err != nil {
		return "", err
	}
	var have []struct{ ID string }
	if err := json.Unmarshal(list[kind+"s"], &have); err != nil {
		return "", err
	}
	if len(have) == 0 {
		in, out := object{"name": name}, map[string]struct{ ID string }{}
		for k, v := range more {
			in[k] = v
		}
		if err := s.do(ctx, http.MethodPost, "/"+kind+"s", object{kind: in}, &out); err != nil {
			return "", err
		}
		have = append(have, out[kind])
	}
	s.ids[[2]string{kind, name}] = have[0].ID
	return have[0].ID, nil
}

// AddUser makes a user.
func (s *Server) AddUser(ctx context.Context, name, password string) error {
	_, err := s.id(ctx, "user", name, object{"password": password, "domain_id": "default"})
	return err
}

// Project returns the ID of a project, which is made when needed.
func (s *Server) Project(ctx context.Context, name string) (string, error) {
	return s.id(ctx, "project", name, object{"domain_id": "default"})
}

// Grant gives a user roles in a project, or in the System. The project and the roles are made when needed.
func (s *Server) Grant(ctx context.Context, user, project string, roles ...string) error {
	id, err := s.id(ctx, "user", user, nil)
	if err != nil {
		return err
	}
	path := "/system/users/"
	if project != System {
		p, err := s.Project(ctx, project)
		if err != nil {
			return err
		}
		path = "/projects/" + p + "/users/"
	}
	for _, r := range roles {
		role, err := s.id(ctx, "role", r, nil)
		if err != nil {
			return err
		}
		if err := s.do(ctx, http.MethodPut, path+id+"/roles/"+role, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// AddEndpoint adds a service to the catalogue.
func (s *Server) AddEndpoint(ctx context.Context, kind, url string) error {
	service, err := s.id(ctx, "service", kind, object{"type": kind})
	if err != nil {
		return err
	}
	return s.do(ctx, http.MethodPost, "/endpoints",
		object{"endpoint": object{"interface": "public", "region_id": "RegionOne", "url": url, "service_id": service}},
		nil)
}

// SetPassword changes a user's password.
func (s *Server) SetPassword(ctx context.Context, user, password string) error {
	id, err := s.id(ctx, "user", user, nil)
	if err != nil {
		return err
	}
	return s.do(ctx, http.MethodPatch, "/users/"+id, object{"user": object{"password": password}}, nil)
}
