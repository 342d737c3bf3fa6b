// Package command serves ironic-python-agent's command API: it takes commands over HTTPS, runs one at a time, and
// keeps their results in the order in which they were issued.
//
// A command needs the agent's token, which is compared before a byte of the request's body is read. Results may be read
// without it until a client has read some with it: conductors before Ironic 29.0 send none. What listens here is open
// to the whole provisioning network, so connections, headers, bodies and times are bounded. It knows no command.
package command

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of the listener.
const (
	maxConns        = 64
	maxConnsPerPeer = 16
	maxHeader       = 16 << 10
	// MaxBody is the largest command: a config drive that comes in the request, twice, is most of it.
	MaxBody = 64 << 20

	headerTimeout = 10 * time.Second
	bodyTimeout   = time.Minute
	writeTimeout  = 30 * time.Second
	idleTimeout   = 75 * time.Second
	// waitTimeout bounds an answer that waits for a command; the conductor gives up after a minute.
	waitTimeout = 10 * time.Minute
)

// Options of a Server.
type Options struct {
	Commands Table
	Token    string // clients must send it; empty: every command is refused
	Version  string // of the agent
	Started  time.Time
	Log      *slog.Logger // nil is silent
	// Ended is called after each asynchronous command, so that the conductor is told at once; nil: no one is.
	Ended func()
	// Changed is called when a command has been listed, before it runs, and when it has ended; nil: no one is.
	Changed func()
}

// Server serves the command API. New makes one, Serve runs it.
type Server struct {
	o       Options
	list    list
	reading sync.Mutex  // one command is read at a time, which bounds the memory of bodies
	strict  atomic.Bool // a client has read results with the token
}

// New returns a server whose commands run until ctx ends.
func New(ctx context.Context, o Options) *Server {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	s := &Server{o: o, list: list{ctx: ctx, table: o.Commands, log: o.Log, ended: o.Ended}}
	if o.Ended == nil {
		s.list.ended = func() {}
	}
	if s.list.changed = o.Changed; o.Changed == nil {
		s.list.changed = func() {}
	}
	return s
}

// Serve answers on ln, with TLS if conf is not nil, until ctx ends. It does not wait for commands.
func (s *Server) Serve(ctx context.Context, ln net.Listener, conf *tls.Config) error {
	ln = &limited{Listener: ln, peers: map[string]int{}}
	if conf != nil {
		conf = conf.Clone()
		conf.NextProtos = []string{"http/1.1"} // HTTP/2 would be another set of things to bound
		ln = tls.NewListener(ln, conf)
	}
	srv := &http.Server{Handler: s, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout + bodyTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug)}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Wait returns when no command runs any more.
func (s *Server) Wait() { s.list.work.Wait() }

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	switch {
	case r.URL.Path == "/":
		s.only(w, r, http.MethodGet, s.root)
	case path == "/" || path == "":
		s.slashed(w, r, http.MethodGet, s.v1)
	case path == "/status":
		s.only(w, r, http.MethodGet, s.status)
	case (path == "/commands/" || path == "/commands") && r.Method == http.MethodPost:
		s.slashed(w, r, http.MethodPost, s.run)
	case path == "/commands/" || path == "/commands":
		s.slashed(w, r, http.MethodGet, s.all)
	case strings.HasPrefix(path, "/commands/") && strings.Count(path, "/") == 2:
		s.only(w, r, http.MethodGet, s.one)
	default:
		s.fail(w, http.StatusNotFound, "404 Not Found: The requested URL was not found on the server.")
	}
}

func (s *Server) only(w http.ResponseWriter, r *http.Request, method string, h http.HandlerFunc) {
	if r.Method != method && !(method == http.MethodGet && r.Method == http.MethodHead) {
		w.Header().Set("Allow", method)
		s.fail(w, http.StatusMethodNotAllowed,
			"405 Method Not Allowed: The method is not allowed for the requested URL.")
		return
	}
	h(w, r)
}

// slashed redirects to the path with a slash at its end.
func (s *Server) slashed(w http.ResponseWriter, r *http.Request, method string, h http.HandlerFunc) {
	if strings.HasSuffix(r.URL.Path, "/") {
		s.only(w, r, method, h)
		return
	}
	to := *r.URL
	to.Path += "/"
	w.Header().Set("Location", to.RequestURI())
	w.WriteHeader(http.StatusPermanentRedirect)
}

type link struct {
	Href string `json:"href"`
	Rel  string `json:"rel"`
	Type string `json:"type,omitempty"`
}

const docsURL = "https://docs.openstack.org/ironic-python-agent"

func base(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

func versionOf(r *http.Request) map[string]any {
	return map[string]any{"id": "v1", "links": []link{
		{Href: base(r) + "/v1", Rel: "self"}, {Href: docsURL + "/", Rel: "describedby", Type: "text/html"}}}
}

func (s *Server) root(w http.ResponseWriter, r *http.Request) {
	s.answer(w, map[string]any{"name": "OpenStack Ironic Python Agent API",
		"description": "Ingot's agent, which speaks the protocol of the Ironic Python Agent",
		"versions":    []any{versionOf(r)}, "default_version": versionOf(r)})
}

func (s *Server) v1(w http.ResponseWriter, r *http.Request) {
	links := func(what string) []link {
		return []link{{Href: base(r) + "/v1/" + what, Rel: "self"}, {Href: base(r) + "/" + what, Rel: "bookmark"}}
	}
	v := versionOf(r)
	v["commands"], v["status"] = links("commands"), links("status")
	v["media_types"] = []map[string]string{{"base": "application/json",
		"type": "application/vnd.openstack.ironic-python-agent.v1+json"}}
	s.answer(w, v)
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	s.answer(w, map[string]any{"version": s.o.Version,
		"started_at": float64(s.o.Started.UnixMilli()) / 1000})
}

// known reports whether the request has the token. given: it has one at all.
func (s *Server) known(r *http.Request) (ok, given bool) {
	token := r.URL.Query().Get("agent_token")
	// Digests of equal length: the comparison does not show the token's length.
	a, b := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(s.o.Token))
	return s.o.Token != "" && subtle.ConstantTimeCompare(a[:], b[:]) == 1, token != ""
}

func (s *Server) refuse(w http.ResponseWriter) {
	w.Header().Set("Connection", "close") // nothing of a body is read
	s.fail(w, http.StatusUnauthorized, "401 Unauthorized: Token invalid.")
}

// mayRead decides about a request for results.
func (s *Server) mayRead(r *http.Request) bool {
	ok, given := s.known(r)
	if ok {
		s.strict.Store(true)
		return true
	}
	return !given && !s.strict.Load()
}

func (s *Server) all(w http.ResponseWriter, r *http.Request) {
	if !s.mayRead(r) {
		s.refuse(w)
		return
	}
	s.answer(w, map[string]any{"commands": s.list.show("", false)})
}

func (s *Server) one(w http.ResponseWriter, r *http.Request) {
	if !s.mayRead(r) {
		s.refuse(w)
		return
	}
	id := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	done := s.list.find(id)
	if done == nil {
		s.failed(w, notFound("Command with id "+strconv.Quote(id[:min(len(id), 64)])+" not found."))
		return
	}
	if wants(r) {
		s.join(r, done)
	}
	if got := s.list.show(id, false); len(got) == 1 {
		s.answer(w, got[0])
		return
	}
	s.failed(w, notFound("Command with id "+id+" not found."))
}

func wants(r *http.Request) bool { return strings.EqualFold(r.URL.Query().Get("wait"), "true") }

// join waits for a command, the client, or the longest time.
func (s *Server) join(r *http.Request, done <-chan struct{}) {
	select {
	case <-done:
	case <-r.Context().Done():
	case <-time.After(waitTimeout):
	}
}

func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	if ok, _ := s.known(r); !ok {
		s.refuse(w)
		return
	}
	if !s.reading.TryLock() {
		w.Header().Set("Connection", "close")
		s.failed(w, busy("another, which is still being sent"))
		return
	}
	name, params, err := read(w, r)
	s.reading.Unlock()
	if err != nil {
		s.failed(w, err)
		return
	}
	// The deadline for the body would end a wait.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	answered := make(chan struct{})
	defer close(answered)
	res, err := s.list.issue(name, params, answered)
	if err != nil {
		s.failed(w, err)
		return
	}
	if c := s.list.table[extensionOf(name)][res.Name]; !c.Async || wants(r) {
		s.join(r, res.done)
	}
	s.answer(w, s.list.show(res.ID, true)[0])
	_ = http.NewResponseController(w).Flush() // before an Ending's end
}

func extensionOf(name string) string {
	extension, _, _ := strings.Cut(name, ".")
	return extension
}

// read reads a command.
func read(w http.ResponseWriter, r *http.Request) (string, Params, error) {
	missing := &Error{Type: "BadRequest", Code: http.StatusBadRequest, Message: "400 Bad Request",
		Details: "Missing or invalid name or params"}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return "", nil, &Error{Type: "RequestEntityTooLarge", Code: http.StatusRequestEntityTooLarge,
			Message: "413 Request Entity Too Large",
			Details: "the command has more than " + strconv.Itoa(MaxBody>>20) +
				" MiB; give a large config drive as a URL ([deploy]configdrive_use_object_store)"}
	case err != nil:
		return "", nil, missing
	}
	var c struct {
		Name   string `json:"name"`
		Params Params `json:"params"`
	}
	if json.Unmarshal(body, &c) != nil || c.Name == "" || c.Params == nil {
		return "", nil, missing
	}
	return c.Name, c.Params, nil
}

func (s *Server) failed(w http.ResponseWriter, err error) {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Code: http.StatusInternalServerError, Message: "500 Internal Server Error", Details: err.Error()}
	}
	s.fail(w, e.Code, e.Error())
}

// fail answers with an error. Conductors look for text in faultstring without checking that there is one.
func (s *Server) fail(w http.ResponseWriter, code int, text string) {
	fault := map[string]string{"faultcode": "Client", "faultstring": text}
	if code >= http.StatusInternalServerError {
		fault["faultcode"] = "Server"
	}
	s.write(w, code, fault)
}

func (s *Server) answer(w http.ResponseWriter, v any) { s.write(w, http.StatusOK, v) }

func (s *Server) write(w http.ResponseWriter, code int, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // conductors compare text
	if err := enc.Encode(v); err != nil {
		s.o.Log.Error("put an answer into JSON", "err", err)
		code = http.StatusInternalServerError
		b.Reset()
		b.WriteString(`{"faultcode":"Server","faultstring":"the answer can't be put into JSON"}`)
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes()) // the client is gone
}

// limited is a listener that closes connections beyond the bounds, in all and from one address.
type limited struct {
	net.Listener
	mu    sync.Mutex
	total int
	peers map[string]int
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil {
			peer = c.RemoteAddr().String()
		}
		if l.enter(peer) {
			return &counted{Conn: c, leave: sync.OnceFunc(func() { l.leave(peer) })}, nil
		}
		c.Close()
	}
}

func (l *limited) enter(peer string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= maxConns || l.peers[peer] >= maxConnsPerPeer {
		return false
	}
	l.total++
	l.peers[peer]++
	return true
}

func (l *limited) leave(peer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.peers[peer]--; l.peers[peer] == 0 {
		delete(l.peers, peer)
	}
}

// counted gives its place back when it is closed.
type counted struct {
	net.Conn
	leave func()
}

func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}
