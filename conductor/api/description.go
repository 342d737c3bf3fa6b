package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/ingot-metal/ingot/conductor/api/call"
)

// descriptionPath is where the description of the API is, for those who write clients.
const descriptionPath = "/openapi.json"

// describe returns its route. The document is made at the first request, and public: it says nothing of the site.
func (s *Server) describe() []call.Route {
	return []call.Route{
		{Method: http.MethodGet, Path: descriptionPath, Access: call.Public, Answers: call.OK(map[string]any{}),
			Handle: func(_ context.Context, c *call.Call) (*call.Reply, error) {
				doc, err := s.description()
				if err != nil {
					return nil, err
				}
				return &call.Reply{Status: http.StatusOK, Stream: func(w http.ResponseWriter) {
					sum := sha256.Sum256(doc)
					w.Header().Set("Content-Type", "application/json")
					w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:16])+`"`)
					// clients may store it, but must revalidate: another release has another
					w.Header().Set("Cache-Control", "no-cache")
					http.ServeContent(w, c.Request, "", time.Time{}, bytes.NewReader(doc))
				}}, nil
			}}}
}
