package chunked

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/oci"
)

// shelf is a registry with one image, under the tag 1. It is a server, and a transport without a network.
type shelf struct {
	x        *index.Index
	manifest []byte
	blobs    map[string][]byte // by digest, the index among them
	body     func(name string, b []byte) io.Reader
}

func newShelf(t *testing.T, img []byte) *shelf {
	x, st := publish(img)
	s := &shelf{x: x, blobs: map[string][]byte{}}
	for _, o := range append(append([]index.Object{}, x.Chunks...), x.Lists...) {
		if o.Len > 0 {
			s.blobs[o.String()] = st.objects[o.Sum]
		}
	}
	b := x.Marshal()
	s.blobs[index.Of(b).String()] = b
	layer := map[string]any{"mediaType": "application/vnd.ingot.index.v1", "digest": index.Of(b).String(),
		"size": len(b)}
	var err error
	s.manifest, err = json.Marshal(
		map[string]any{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageManifest,
			"artifactType": oci.ArtifactType, "layers": []any{layer}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// RoundTrip gives the answers that ServeHTTP sends.
func (s *shelf) RoundTrip(req *http.Request) (*http.Response, error) {
	name := path.Base(req.URL.Path)
	b := s.blobs[name]
	resp := &http.Response{StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Request: req}
	if strings.Contains(req.URL.Path, "/manifests/") {
		b = s.manifest
		resp.Header.Set("Content-Type", ocispec.MediaTypeImageManifest)
		resp.Header.Set("Docker-Content-Digest", index.Of(b).String())
	}
	body := io.Reader(bytes.NewReader(b))
	if s.body != nil {
		body = s.body(name, b)
	}
	resp.Header.Set("Content-Length", fmt.Sprint(len(b)))
	resp.ContentLength, resp.Body = int64(len(b)), io.NopCloser(body)
	return resp, nil
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resp, _ := s.RoundTrip(r)
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	for r.Method == http.MethodGet {
		b := make([]byte, 32<<10)
		n, err := resp.Body.Read(b)
		w.Write(b[:n])
		w.(http.Flusher).Flush()
		if errors.Is(err, errSilence) {
			<-r.Context().Done()
		}
		if err != nil {
			return
		}
	}
}

var (
	errReset   = errors.New("connection reset")
	errSilence = errors.New("silence") // the server sends no more, and does not close either
)

// slowly is a body that takes its time, and breaks with an error after some bytes.
type slowly struct {
	b    []byte
	rate int // bytes a second; 0: no limit
	left int // bytes until it breaks
	err  error
}

func (s *slowly) Read(p []byte) (int, error) {
	switch {
	case s.left == 0:
		return 0, s.err
	case len(s.b) == 0:
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 16<<10, s.left)], s.b)
	if s.rate > 0 {
		time.Sleep(time.Duration(n) * time.Second / time.Duration(s.rate))
	}
	s.b, s.left = s.b[n:], s.left-n
	return n, nil
}

// TestSlowRegistry: on a slow link an object may take longer than an outage may last, and a connection that breaks in
// it is made again. But not for ever when it always breaks at the same place.
func TestSlowRegistry(t *testing.T) {
	wait := fetch.DefaultPatience
	for name, c := range map[string]struct {
		breaks int // times
		ok     bool
		most   time.Duration
	}{
		"never": {0, true, 200 * time.Second}, "once": {1, true, 400 * time.Second},
		"at the same place for ever": {20, false, 400 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t, full(1, 2*chunk))
			o := s.x.Chunks[1]
			synctest.Test(t, func(t *testing.T) {
				left := c.breaks
				s.body = func(name string, b []byte) io.Reader {
					body := &slowly{b: b, left: len(b) + 1}
					if name == o.String() {
						body.rate = len(b) / 200 // 200 s in all
						if left--; left >= 0 {
							body.left, body.err = len(b)*4/5, errReset
						}
					}
					return body
				}
				ref, err := oci.ParseReference("oci://h/a:1")
				if err != nil {
					t.Fatal(err)
				}
				r := &registry{wait: wait, log: slog.New(slog.DiscardHandler)}
				if r.image, err = oci.Open(t.Context(), ref,
					oci.Options{Client: &http.Client{Transport: s}}); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				err = r.Object(t.Context(), o, make([]byte, o.Len))
				if took := time.Since(began); (err == nil) != c.ok || took > c.most+time.Second {
					t.Errorf("%v after %s", err, took)
				}
				if err != nil && !step.AsError(err).Retryable {
					t.Errorf("not to be tried again: %v", err)
				}
			})
		})
	}
}

// TestSilentRegistry: a registry that falls silent in the manifest or in the index is asked again.
func TestSilentRegistry(t *testing.T) {
	s := newShelf(t, content(1, chunk))
	for name, kind := range map[string][]byte{"manifest": s.manifest, "index": s.x.Marshal()} {
		t.Run(name, func(t *testing.T) {
			var before atomic.Bool
			s.body = func(_ string, b []byte) io.Reader {
				if bytes.Equal(b, kind) && !before.Swap(true) {
					return &slowly{b: b, left: len(b) / 2, err: errSilence}
				}
				return bytes.NewReader(b)
			}
			srv := httptest.NewServer(s)
			defer srv.Close()
			defer srv.CloseClientConnections()
			wait := fetch.Patience{Start: time.Minute, Outage: time.Minute, Stall: time.Second, First: time.Millisecond,
				Longest: time.Second, Restarts: 5}
			ctx, cancel := context.WithTimeout(t.Context(), wait.Start/2)
			defer cancel()
			img, err := Open(ctx,
				Where{URLs: []string{"oci://" + strings.TrimPrefix(srv.URL, "http://") + "/a:1"}, Wait: wait},
				Trust{Unverified: true})
			if err != nil {
				t.Fatal(err)
			}
			img.Close()
			if !before.Load() {
				t.Error("it was not silent")
			}
		})
	}
}
