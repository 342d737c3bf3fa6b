package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// imageServer serves files of a folder the way bad servers do. The first word of the path says how:
//
//	/slow/FILE       at BytesPerSecond
//	/cut/FILE        promises the whole file and is gone after half of it, however often it is asked to go on
//	/short/FILE      says that half of the file is all there is
//	/html/FILE       an error page with status 200
//	/missing/FILE    404
type imageServer struct {
	dir            string
	bytesPerSecond atomic.Int64
	sent           atomic.Int64 // body bytes
	url            string
}

// startImageServer serves dir on l until the test ends.
func startImageServer(t *testing.T, l net.Listener, dir string) *imageServer {
	t.Helper()
	s := &imageServer{dir: dir, url: "http://" + l.Addr().String()}
	s.bytesPerSecond.Store(4 << 20)
	srv := &http.Server{Handler: s}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return s
}

func (s *imageServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	how, name, _ := strings.Cut(strings.TrimPrefix(path.Clean(r.URL.Path), "/"), "/")
	if how == "html" {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w,
			"<!DOCTYPE html><html><head><title>Sign in</title></head><body>The session has expired.</body></html>")
		return
	}
	f, err := os.Open(filepath.Join(s.dir, name))
	if err != nil || how == "missing" {
		http.NotFound(w, r)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("ETag", fmt.Sprintf(`"%x-%x"`, info.ModTime().UnixNano(), info.Size()))
	switch how {
	case "cut":
		var from int64
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
		http.ServeContent(&cutWriter{ResponseWriter: w, left: max(0, info.Size()/2-from)}, r, "", info.ModTime(), f)
	case "short":
		http.ServeContent(w, r, "", info.ModTime(), io.NewSectionReader(f, 0, info.Size()/2))
	default:
		http.ServeContent(&slowWriter{ResponseWriter: w, r: r, s: s}, r, "", info.ModTime(), f)
	}
}

// slowWriter paces a body to the server's rate.
type slowWriter struct {
	http.ResponseWriter
	r *http.Request
	s *imageServer
}

func (w *slowWriter) Write(p []byte) (int, error) {
	const piece = 64 << 10
	done := 0
	for len(p) > 0 {
		n := min(piece, len(p))
		pause := time.NewTimer(time.Duration(float64(n) / float64(w.s.bytesPerSecond.Load()) * float64(time.Second)))
		select {
		case <-pause.C:
		case <-w.r.Context().Done():
			pause.Stop()
			return done, w.r.Context().Err()
		}
		m, err := w.ResponseWriter.Write(p[:n])
		done += m
		w.s.sent.Add(int64(m))
		if err != nil {
			return done, err
		}
		p = p[n:]
	}
	return done, nil
}

// cutWriter drops the connection after so many bytes.
type cutWriter struct {
	http.ResponseWriter
	left int64
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if int64(len(p)) >= w.left {
		w.ResponseWriter.Write(p[:w.left])
		panic(http.ErrAbortHandler)
	}
	n, err := w.ResponseWriter.Write(p)
	w.left -= int64(n)
	return n, err
}
