package peer

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// Message answers what the relays of two conductors say to each other.
type Message func(conductor string, message []byte) (answer []byte, err error)

// Handler answers a request that another conductor has authenticated.
type Handler func(w http.ResponseWriter, r *http.Request, from Origin)

// Server is the side of the owner.
type Server struct {
	id     *Identity
	handle Handler
	swarms Message
	bodies *limit.Budget
	log    *slog.Logger
}

// NewServer makes a Server whose requests are answered by handle, and messages about swarms by swarms, unless nil.
// Their bodies count in bodies.
func NewServer(id *Identity, handle Handler, swarms Message, bodies *limit.Budget, log *slog.Logger) *Server {
	return &Server{id, handle, swarms, bodies, cmp.Or(log, slog.New(slog.DiscardHandler))}
}

// Connections are how many a Server should have open.
var Connections = limit.Connections{Total: limit.PeerConnections, PerAddress: limit.PeerConnectionsPerAddress}

// Listener puts TLS above l.
func (s *Server) Listener(l net.Listener) net.Listener {
	return tls.NewListener(l, s.id.tls(func(string) error { return nil })) // any conductor
}

// ServeHTTP implements http.Handler, for the connections of Listener.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.TLS == nil {
		http.Error(w, "without TLS", http.StatusForbidden)
		return
	}
	// A connection may be kept for longer than the certificate, or the CA, is good for.
	name, err := s.id.check(*r.TLS)
	if err != nil {
		w.Header().Set("Connection", "close")
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	message := func() ([]byte, error) { // with an error it is answered
		b, status, err := s.read(w, r)
		if err != nil {
			s.refuse(w, name, status, err)
		}
		return b, err
	}
	switch {
	case r.Method == http.MethodPost && r.URL.Path == path:
		if b, err := message(); err == nil {
			s.forwarded(w, r, name, b)
		}
	case r.Method == http.MethodPost && r.URL.Path == swarmPath && s.swarms != nil:
		b, err := message()
		if err != nil {
			return
		}
		answer, err := s.swarms(name, b)
		if err != nil {
			s.refuse(w, name, http.StatusBadRequest, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer) // if this fails, the other end finds out
	default:
		http.Error(w, "this conductor knows no such message", http.StatusNotFound)
	}
}

// refuse answers what makes no sense.
func (s *Server) refuse(w http.ResponseWriter, conductor string, status int, err error) {
	s.log.Warn("another conductor sent what is no request", "conductor", conductor, "err", err)
	http.Error(w, err.Error(), status)
}

// forwarded answers a request of a client that the conductor of a name passes on.
func (s *Server) forwarded(w http.ResponseWriter, r *http.Request, name string, message []byte) {
	var req Request
	if err := decode(message, &req); err != nil {
		s.refuse(w, name, http.StatusBadRequest,
			fmt.Errorf("the message is not of the form that this conductor knows: %w", err))
		return
	}
	inner, err := http.NewRequestWithContext(r.Context(), req.Method, "/", bytes.NewReader(req.Body))
	var at *url.URL
	if err == nil {
		at, err = url.ParseRequestURI(req.URL) // as net/http reads it from a request: a path may begin with //
	}
	if err != nil || req.Actor == nil || req.ID == "" {
		http.Error(w, "the message lacks method, address, actor or ID", http.StatusBadRequest)
		return
	}
	inner.URL, inner.RequestURI, inner.Host, inner.RemoteAddr = at, req.URL, req.Host, r.RemoteAddr
	inner.Header = passed(req.Header)
	if len(req.Body) == 0 {
		inner.Body = http.NoBody
	}
	rec := &recorder{header: http.Header{}}
	s.handle(rec, inner, Origin{Conductor: name, ID: req.ID, Actor: req.Actor, Base: req.Base})
	if rec.full {
		s.log.Error("the answer to a request of another conductor is too long", "conductor", name, "request", req.ID,
			"allowed", limit.PeerAnswer)
	}
	b, err := json.Marshal(
		Answer{Status: cmp.Or(rec.status, http.StatusOK), Header: rec.header, Body: rec.body.Bytes()})
	if err != nil || rec.full {
		// The deed is done, and only its answer is missing: the other end has to take it for lost.
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // if this fails, the other end finds out
}

// read reads a message. With an error it returns the status of the answer.
func (s *Server) read(w http.ResponseWriter, r *http.Request) ([]byte, int, error) {
	body := s.bodies.Open(w, r, limit.PeerMessage, true)
	defer body.Close()
	b, err := io.ReadAll(body)
	var tooLarge *limit.TooLargeError
	switch {
	case errors.As(err, &tooLarge):
		return nil, http.StatusRequestEntityTooLarge, err
	case errors.Is(err, limit.ErrBusy):
		return nil, http.StatusServiceUnavailable, err
	case err != nil:
		return nil, http.StatusBadRequest, err
	}
	return b, 0, nil
}

// decode reads one JSON value without unknown members, and nothing after it.
func decode(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON")
	}
	return nil
}

// recorder keeps an answer.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
	full   bool
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= http.StatusOK {
		r.status = status
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.full = r.full || r.body.Len()+len(b) > limit.PeerAnswer; r.full {
		return 0, errors.New("the answer is too long")
	}
	return r.body.Write(b)
}
