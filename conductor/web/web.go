package web

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// The ways to authenticate, as in the setting api.auth.
const (
	None     = "none"
	Basic    = "http_basic"
	Keystone = "keystone"
)

// Header is the header in which pages send their session's word.
const Header = "X-Ingot-CSRF"

// identity gets tokens from Keystone, and takes them back.
type identity interface {
	Login(ctx context.Context, from netip.Addr, l access.Login) (token string, err error)
	Logout(ctx context.Context, token string)
}

// ended keeps which sessions were signed out before their time, for all conductors.
type ended interface {
	EndSession(ctx context.Context, id, whose string, until time.Time, most int) error
	SessionEnded(ctx context.Context, id string) (bool, error)
}

// Config is the configuration of a Server.
type Config struct {
	// Auth is one of the ways to authenticate. Authenticate finds the sender of a request; nil with None.
	Auth         string
	Authenticate func(r *http.Request) (*access.Actor, error)
	// Identity is Keystone, with which people log in by password.
	Identity identity
	// Ended keeps which sessions were signed out; nil: they end by their time alone.
	Ended ended
	// Key is a secret that all conductors behind an address have in common.
	Key []byte
	// PublicURL is the address by which browsers know the server, if that is not the one that requests have.
	PublicURL string
	// Known reports whether a request names this server by a name that is its own; nil: all are.
	Known func(r *http.Request) bool
	// Clients finds a request's client; nil trusts no proxy.
	Clients *limit.Clients
	// Bodies bounds the memory of all bodies; nil: no bound.
	Bodies *limit.Budget
	// Hostname is this conductor's.
	Hostname string
	// Now is the clock of sessions; nil is time.Now.
	Now func() time.Time
}

// Server answers requests for the dashboard. It is an http.Handler.
type Server struct {
	cfg    Config
	api    http.Handler
	public *url.URL
	vault  *vault
	files  map[string]*file
	log    *slog.Logger
}

// file is one of the embedded files.
type file struct {
	kind, tag   string
	plain, gzip []byte
}

//go:embed ui/dist
var dist embed.FS

// New makes a Server in front of the API.
func New(api http.Handler, cfg Config, log *slog.Logger) (*Server, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	v, err := newVault(cfg.Key, cfg.Auth, cfg.Now)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, api: api, vault: v, files: map[string]*file{}, log: log}
	if s.public, err = url.Parse(cfg.PublicURL); err != nil {
		return nil, fmt.Errorf("api.public_url: %w", err)
	}
	return s, fs.WalkDir(dist, "ui/dist", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := read(name)
		s.files[strings.TrimPrefix(name, "ui/dist")] = f
		return err
	})
}

// kinds are the types of the embedded files.
var kinds = map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8"}

func read(name string) (*file, error) {
	b, err := dist.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the dashboard's pages: %w", err)
	}
	kind, ok := kinds[path.Ext(name)]
	if !ok {
		return nil, fmt.Errorf("read the dashboard's pages: %s has no type in the table of package web", name)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(b); err != nil {
		return nil, fmt.Errorf("pack the dashboard's pages: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("pack the dashboard's pages: %w", err)
	}
	sum := sha256.Sum256(b)
	return &file{kind: kind, tag: `"` + hex.EncodeToString(sum[:16]) + `"`, plain: b, gzip: packed.Bytes()}, nil
}

// Handler has requests for the dashboard answered by s, and all others by the API.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ui" || strings.HasPrefix(r.URL.Path, "/ui/") {
			s.ServeHTTP(w, r)
			return
		}
		s.api.ServeHTTP(w, r)
	})
}

// policy allows what the bundle needs, from this server, and nothing in the page itself.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"font-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	if !s.mayAsk(r) {
		s.refuse(w, http.StatusMisdirectedRequest, "The dashboard is not served by the name "+quoted(r.Host)+
			": use the server's address, or list the name in api.host_names.")
		return
	}
	at := strings.TrimPrefix(r.URL.Path, "/ui")
	switch {
	case at == "/session":
		s.session(w, r)
	case strings.HasPrefix(at, "/api/"):
		s.pass(w, r)
	default:
		s.page(w, r, at)
	}
}

// mayAsk reports whether a request names this server by a name of its own. Without authentication that matters: a page
// of another site could give its own name this server's address, and would then be one of ours to the browser.
func (s *Server) mayAsk(r *http.Request) bool {
	return s.cfg.Auth != None || s.cfg.Known == nil || s.public.Host != "" && r.Host == s.public.Host || s.cfg.Known(r)
}

func quoted(text string) string { return fmt.Sprintf("%.100q", text) }

// page sends an embedded file; an address without an extension is one of the program's own pages.
func (s *Server) page(w http.ResponseWriter, r *http.Request, at string) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		s.refuse(w, http.StatusMethodNotAllowed, "This address is only read.")
		return
	}
	if at == "" {
		http.Redirect(w, r, "/ui/", http.StatusFound)
		return
	}
	f := s.files[at]
	if f == nil && path.Ext(at) == "" {
		f = s.files["/index.html"]
	}
	if f == nil {
		s.refuse(w, http.StatusNotFound, "The dashboard has no such file.")
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", "no-cache") // asked for each time, and sent when it is another one
	h.Set("Vary", "Accept-Encoding")
	h.Set("ETag", f.tag)
	if strings.Contains(r.Header.Get("If-None-Match"), f.tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := f.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = f.gzip
	}
	h.Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodGet {
		_, _ = w.Write(body) // if this fails, the client is gone
	}
}

// ownSite reports whether a request is not one that the browser knows to be another site's.
func (s *Server) ownSite(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin":
	case "none": // what people type into the address bar; it can change nothing
		if r.Method != http.MethodGet {
			return false
		}
	default:
		return false
	}
	origin := r.Header.Values("Origin")
	if len(origin) == 0 {
		return true
	}
	u, err := url.Parse(origin[0])
	return err == nil && len(origin) == 1 && u.Host != "" && (u.Host == r.Host || u.Host == s.public.Host)
}

// secure reports whether the browser's connection is encrypted.
func (s *Server) secure(r *http.Request) bool { return r.TLS != nil || s.public.Scheme == "https" }

// keep gives the browser a session's cookie.
func (s *Server) keep(w http.ResponseWriter, r *http.Request, value string, until time.Time) {
	http.SetCookie(w, cookie(value, s.secure(r), until.Sub(s.cfg.Now())))
}

// refuse answers with an error in the shape of the API's.
func (s *Server) refuse(w http.ResponseWriter, status int, text string) {
	s.answer(w, status, map[string]any{"error": map[string]any{"code": status, "message": text}})
}

func (s *Server) answer(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		s.log.Error("an answer of the dashboard is not JSON", "err", err)
		status, b = http.StatusInternalServerError, nil
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b) // if this fails, the client is gone
}

// errNoBody is a body that can't be read.
var errNoBody = errors.New("the body is not the JSON that is expected here")

// body reads the small JSON body of a request without authentication.
func (s *Server) body(w http.ResponseWriter, r *http.Request, into any) (int, error) {
	b := s.cfg.Bodies.Open(w, r, limit.SignInBody, false)
	defer b.Close()
	dec := json.NewDecoder(b)
	dec.DisallowUnknownFields()
	err := dec.Decode(into)
	var large *limit.TooLargeError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge, err
	case errors.Is(err, limit.ErrSlow):
		return http.StatusRequestTimeout, err
	case errors.Is(err, limit.ErrBusy):
		return http.StatusServiceUnavailable, err
	}
	return http.StatusBadRequest, errNoBody // what the decoder says may quote a password
}
