package glance

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/url"

	"github.com/ingot-metal/ingot/conductor/engine/instance"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Path is where Handler serves images, below the HTTP server for machines.
const Path = "/glance/"

// Address returns where the agent of a node gets an image in the node's present job.
func (s *Service) Address(n *node.Node, id string) string {
	// "token" is a name by which the code is hidden wherever URLs are shown.
	q := url.Values{"node": {n.UUID}, "token": {s.code(n, id)}}
	return s.cfg.Base + Path + url.PathEscape(id) + "?" + q.Encode()
}

// code proves that a node may have an image in its present job.
func (s *Service) code(n *node.Node, id string) string {
	job := ""
	if n.Job != nil {
		job = n.Job.ID
	}
	h := hmac.New(sha256.New, s.cfg.Key)
	h.Write([]byte(n.UUID + "\n" + job + "\n" + id))
	return hex.EncodeToString(h.Sum(nil))
}

// admits reports whether a request is one of an agent that is to write the image.
func (s *Service) admits(r *http.Request, id string) (bool, error) {
	q := r.URL.Query()
	n, err := s.cfg.Node(r.Context(), q.Get("node"))
	if err != nil {
		if s.cfg.NotFound(err) {
			err = nil
		}
		return false, err
	}
	return n.Job != nil && n.Job.Phase == node.PhaseDeploy && n.Job.Failure == "" &&
		hmac.Equal([]byte(q.Get("token")), []byte(s.code(n, id))), nil
}

// ServeHTTP leads the agent that is to write an image to Swift, or streams the image to it. The digest is the ETag, so
// that a broken transfer goes on where it ended, at this conductor or another one.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, ok := instance.GlanceID(r.PathValue("id"))
	if ok {
		var err error
		if ok, err = s.admits(r, id); err != nil {
			s.log.Error("find the node that asks for an image", "err", err)
			http.Error(w, "not now; the conductor's log says why", http.StatusServiceUnavailable)
			return
		}
	}
	if !ok { // one answer for all reasons
		http.NotFound(w, r)
		return
	}
	if s.swift != nil {
		at, err := s.temporary(r.Context(), id)
		if err == nil {
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("Location", at)
			w.WriteHeader(http.StatusTemporaryRedirect)
			return
		}
		s.log.Warn("an image is passed on from Glance, and not fetched from Swift", "image", id, "err", err)
	}
	if err := s.relay(w, r, id); err != nil && r.Context().Err() == nil {
		s.log.Warn("an image of Glance is not served to its end", "image", id, "node", r.URL.Query().Get("node"), "err", err)
	}
}

// relay passes the image on. When Glance ends in the middle, so does the connection: the agent must not take a part for
// the whole.
func (s *Service) relay(w http.ResponseWriter, r *http.Request, id string) error {
	fail := func(err error) error {
		http.Error(w, "Glance does not deliver the image now; the conductor's log says why", http.StatusBadGateway)
		return err
	}
	var i image
	found, err := s.get(r.Context(), "/images/"+id, &i)
	if err != nil {
		return fail(err)
	}
	if !found {
		http.NotFound(w, r)
		return errors.New("it has been deleted in Glance")
	}
	tag := `"` + i.Hash + `"`
	ask := http.Header{}
	if old := r.Header.Get("If-Range"); i.Hash != "" && (old == "" || old == tag) && r.Header.Get("Range") != "" {
		ask.Set("Range", r.Header.Get("Range"))
	}
	resp, err := s.ask(r.Context(), http.MethodGet, "/images/"+id+"/file", ask)
	if err != nil {
		return fail(err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable:
	default:
		return fail(refused(resp.StatusCode))
	}
	h := w.Header()
	for _, name := range []string{"Content-Length", "Content-Range"} {
		if v := resp.Header.Get(name); v != "" {
			h.Set(name, v)
		}
	}
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if i.Hash != "" {
		h.Set("ETag", tag)
		h.Set("Accept-Ranges", "bytes")
	}
	w.WriteHeader(resp.StatusCode)
	if r.Method == http.MethodHead {
		return nil
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		s.log.Warn("an image of Glance is cut off", "image", id, "node", r.URL.Query().Get("node"), "err", err)
		panic(http.ErrAbortHandler)
	}
	return nil
}
