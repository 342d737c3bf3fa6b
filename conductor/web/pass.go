package web

import (
	"net/http"
	"strings"
)

// Headers of a page's request that are not the API's business, or that this server sets itself.
var withheld = []string{"Authorization", "Cookie", "Origin", "Referer", "X-Auth-Token", Header, passive}

// passive is a header of requests that a page makes by itself: they don't keep a session alive.
const passive = "X-Ingot-Passive"

// pass hands a request of a page to the API, with the credentials of the session's user.
func (s *Server) pass(w http.ResponseWriter, r *http.Request) {
	ses, err := s.open(r)
	switch {
	case !s.ownSite(r):
		s.refuse(w, http.StatusForbidden, "The request comes from a page of another site.")
		return
	case err != nil:
		s.unread(w, r, err)
		return
	case ses == nil:
		s.refuse(w, http.StatusUnauthorized, "You are not signed in, or your session has ended: sign in again.")
		return
	case !ses.known(r.Header.Get(Header)):
		s.refuse(w, http.StatusForbidden, "The request lacks the header "+Header+" of its session.")
		return
	}
	// A stream ends with the session that it was opened in: the page opens the next one with its present cookie.
	ctx, end := s.ending(r.Context(), ses)
	defer end()
	if now := s.cfg.Now(); r.Header.Get(passive) == "" && now.Sub(ses.Used) >= moved {
		used := *ses
		used.Used = now
		s.keep(w, r, s.vault.seal(&used), used.end())
	}
	out := r.Clone(ctx)
	out.URL.Path = strings.TrimPrefix(r.URL.Path, "/ui/api")
	out.URL.RawPath = strings.TrimPrefix(r.URL.RawPath, "/ui/api")
	out.RequestURI = out.URL.RequestURI()
	for _, name := range withheld {
		out.Header.Del(name)
	}
	ses.authorize(out)
	s.api.ServeHTTP(&answer{ResponseWriter: w}, out)
}

// answer is the API's answer on its way to a page.
type answer struct {
	http.ResponseWriter
	done bool
}

// WriteHeader implements http.ResponseWriter. A challenge would make the browser ask for a password by itself.
func (a *answer) WriteHeader(status int) {
	if h := a.Header(); !a.done {
		a.done = true
		h.Del("WWW-Authenticate")
		if h.Get("Cache-Control") == "" {
			h.Set("Cache-Control", "no-store")
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	if !a.done {
		a.WriteHeader(http.StatusOK)
	}
	return a.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
