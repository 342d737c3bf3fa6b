package web

import (
	"errors"
	"math"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// about is the answer of /ui/session: how people sign in here, and who has.
type about struct {
	Auth      string `json:"auth"`
	Conductor string `json:"conductor,omitempty"`
	SignedIn  bool   `json:"signed_in"`
	User      string `json:"user,omitempty"`
	CSRF      string `json:"csrf,omitempty"`
	// Idle is after how many seconds without use the session ends, Ends when it does in any case.
	Idle int        `json:"idle_seconds,omitempty"`
	Ends *time.Time `json:"ends,omitempty"`
}

// login is the body that the page to sign in sends.
type login struct {
	User          string `json:"user"`
	Password      string `json:"password"`
	Token         string `json:"token"`
	UserDomain    string `json:"user_domain"`
	Project       string `json:"project"`
	ProjectDomain string `json:"project_domain"`
	System        bool   `json:"system"`
}

// session reports the session, begins one, and ends it.
func (s *Server) session(w http.ResponseWriter, r *http.Request) {
	if !s.ownSite(r) {
		s.refuse(w, http.StatusForbidden, "The request comes from a page of another site.")
		return
	}
	switch r.Method {
	case http.MethodGet:
		s.who(w, r)
	case http.MethodPost:
		s.signIn(w, r)
	case http.MethodDelete:
		s.signOut(w, r)
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		s.refuse(w, http.StatusMethodNotAllowed, "A session is read, begun (POST) or ended (DELETE).")
	}
}

// who answers whose session the request has. Without authentication there is always one.
func (s *Server) who(w http.ResponseWriter, r *http.Request) {
	ses, err := s.open(r)
	if err != nil {
		s.unread(w, r, err)
		return
	}
	if ses == nil && s.cfg.Auth == None {
		ses = s.vault.begin()
		s.keep(w, r, s.vault.seal(ses), ses.end())
	}
	if ses == nil {
		s.answer(w, http.StatusOK, about{Auth: s.cfg.Auth})
		return
	}
	actor, err := s.actor(r, ses)
	var refusal *access.Refusal
	switch {
	case errors.As(err, &refusal) && refusal.Status == http.StatusUnauthorized:
		s.keep(w, r, "", time.Time{}) // a password that was changed, a token that has ended
		s.answer(w, http.StatusOK, about{Auth: s.cfg.Auth})
	case err != nil:
		s.refused(w, err)
	default:
		s.answer(w, http.StatusOK, s.about(ses, actor))
	}
}

func (s *Server) about(ses *session, actor *access.Actor) about {
	ends := ses.Began.Add(limit.SessionLife).UTC()
	return about{Auth: s.cfg.Auth, Conductor: s.cfg.Hostname, SignedIn: true, User: actor.String(), CSRF: ses.CSRF,
		Idle: int(limit.SessionIdle.Seconds()), Ends: &ends}
}

// actor authenticates a session's user, as the API does.
func (s *Server) actor(r *http.Request, ses *session) (*access.Actor, error) {
	if s.cfg.Authenticate == nil {
		return access.Anybody(), nil
	}
	as := r.Clone(r.Context())
	as.Header = http.Header{}
	if forwarded := r.Header.Values("X-Forwarded-For"); forwarded != nil {
		as.Header["X-Forwarded-For"] = forwarded
	}
	ses.authorize(as)
	return s.cfg.Authenticate(as)
}

// signIn begins a session for who proves to be a user.
func (s *Server) signIn(w http.ResponseWriter, r *http.Request) {
	// A form of another site can't send this, nor can a script without being asked for it by the browser first.
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		s.refuse(w, http.StatusUnsupportedMediaType, "The body of a sign-in is application/json.")
		return
	}
	var l login
	if status, err := s.body(w, r, &l); err != nil {
		s.refuse(w, status, err.Error())
		return
	}
	ses := s.vault.begin()
	switch {
	case s.cfg.Auth == Basic && l.User != "":
		ses.User, ses.Password = l.User, l.Password
	case s.cfg.Auth == Keystone && l.Token != "":
		ses.Token = l.Token
	case s.cfg.Auth == Keystone && l.User != "" && s.cfg.Identity != nil:
		token, err := s.cfg.Identity.Login(r.Context(), s.cfg.Clients.Address(r), access.Login{User: l.User,
			Password: l.Password, UserDomain: l.UserDomain, Project: l.Project, ProjectDomain: l.ProjectDomain,
			System: l.System})
		if err != nil {
			s.refused(w, err)
			return
		}
		ses.Token, ses.Ours = token, true
	case s.cfg.Auth == None:
	default:
		s.refuse(w, http.StatusBadRequest, "Give a user and a password, or with Keystone a token.")
		return
	}
	actor, err := s.actor(r, ses)
	if err != nil {
		s.refused(w, err)
		return
	}
	ses.Whose = whose(actor.String())
	value := s.vault.seal(ses)
	if value == "" {
		s.refuse(w, http.StatusBadRequest,
			"The token is longer than a browser can keep: sign in with user and password instead.")
		return
	}
	s.log.Info("somebody signed in to the dashboard", "user", actor.String(), "from", s.cfg.Clients.Address(r))
	s.keep(w, r, value, ses.end())
	s.answer(w, http.StatusOK, s.about(ses, actor))
}

// refused answers with the error of an authentication.
func (s *Server) refused(w http.ResponseWriter, err error) {
	var refusal *access.Refusal
	if !errors.As(err, &refusal) {
		s.log.Error("a sign-in failed for a reason of the server's own", "err", err)
		s.refuse(w, http.StatusInternalServerError, "It could not be found out who you are; the server's log says why.")
		return
	}
	if refusal.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(refusal.RetryAfter.Seconds()))))
	}
	s.refuse(w, refusal.Status, refusal.Message)
}

// unread answers where the store can't say whether a session has ended, or keep that it has.
func (s *Server) unread(w http.ResponseWriter, r *http.Request, err error) {
	note := s.log.Error
	if r.Context().Err() != nil { // the client is gone
		note = s.log.Debug
	}
	note("sessions that were signed out can't be read or kept", "err", err)
	s.refuse(w, http.StatusServiceUnavailable, "The server can't reach its database: try again.")
}

// signOut ends a session.
func (s *Server) signOut(w http.ResponseWriter, r *http.Request) {
	if ses := s.vault.open(r); ses != nil {
		if !ses.known(r.Header.Get(Header)) {
			s.refuse(w, http.StatusForbidden, "The request lacks the header "+Header+" of its session.")
			return
		}
		if err := s.forget(r.Context(), ses); err != nil {
			s.unread(w, r, err)
			return
		}
		if ses.Ours && s.cfg.Identity != nil {
			s.cfg.Identity.Logout(r.Context(), ses.Token)
		}
	}
	s.keep(w, r, "", time.Time{})
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}
