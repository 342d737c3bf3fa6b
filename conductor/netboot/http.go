package netboot

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/netboot/bootiso"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Handler serves boot scripts, boot programs, ramdisks and images over HTTP.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /boot.ipxe", s.getScript)
	mux.HandleFunc("GET /loader/{file}", s.getLoader)
	mux.HandleFunc("GET /ramdisk/{sha256}/{file}", s.getRamdisk)
	mux.HandleFunc("GET /images/{file...}", s.getImage)
	mux.HandleFunc("GET "+node.BootImagePath+"{name}/ingot.iso", s.getBootImage)
	if s.cfg.Glance != nil {
		mux.Handle("GET /glance/{id}", s.cfg.Glance)
	}
	mux.HandleFunc("GET /workload/{secret}/config-drive.cpio", s.getSeed)
	// the API has the same, but is often not where machines are
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		mux.HandleFunc(method+" /ingot/v1/phone_home/{token}", s.phoneHome)
	}
	return s.logged(mux)
}

// secureHandler answers what controllers ask over HTTPS.
func (s *Server) secureHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+node.BootImagePath+"{name}/ingot.iso", s.getBootImage)
	return s.logged(mux)
}

// kinds are what machines fetch over HTTP, by the first part of the path.
var kinds = map[string]string{"boot.ipxe": "script", "loader": "boot program", "ramdisk": "ramdisk", "images": "image",
	"glance": "image", "boot-image": "boot image", "workload": "config drive", "ingot": "phone home"}

// logged counts requests, and logs them at level debug.
func (s *Server) logged(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		c := &counter{ResponseWriter: w}
		h.ServeHTTP(c, r)
		if s.cfg.Meter != nil {
			first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
			s.cfg.Meter.Fetched(kinds[first], cmp.Or(c.status, http.StatusOK), c.n, time.Since(begin))
		}
		s.log.Debug("HTTP", "method", r.Method, "path", secretPath.ReplaceAllString(r.URL.Path, "$1..."), "range",
			r.Header.Get("Range"), "from", r.RemoteAddr, "status", c.status, "bytes", c.n, "took",
			time.Since(begin).Round(time.Millisecond))
	})
}

// secretPath is the part of a path that must not appear in logs.
var secretPath = regexp.MustCompile(`^(/workload/|/boot-image/|/ingot/v1/phone_home/)[^/]*`)

// phoneHome takes the call of a deployed system. What it sends besides is of no interest.
func (s *Server) phoneHome(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodPost || s.cfg.PhoneHome == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	err := s.cfg.PhoneHome(r.Context(), r.PathValue("token"), remoteAddr(r).String())
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case s.cfg.NotFound(err):
		http.NotFound(w, r)
	default:
		s.log.Error("take the call of a deployed system", "from", r.RemoteAddr, "err", err)
		http.Error(w, "not now; the conductor's log says why", http.StatusServiceUnavailable)
	}
}

func remoteAddr(r *http.Request) netip.Addr {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap()
}

// getScript makes a token: so GET alone, and nothing in between may keep the answer.
func (s *Server) getScript(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet { // the mux lets HEAD through
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "only GET", http.StatusMethodNotAllowed)
		return
	}
	from := remoteAddr(r)
	var text string
	var err error
	if q := r.URL.Query(); s.cfg.Mode != Leases && len(q["mac"]) <= 1 && strings.HasPrefix(r.UserAgent(), "iPXE/") {
		text = askAgain(s.base(), q.Get("mac"))
	} else {
		text, err = s.script(r.Context(), from, q["mac"], q.Get("uuid"))
	}
	if err != nil {
		s.seldom("script "+from.String()+err.Error()).Warn("boot script not served", "from", from, "err", err)
		status := http.StatusServiceUnavailable
		if errors.Is(err, errNotExpected) || errors.Is(err, errTooMany) {
			status = http.StatusForbidden
		}
		http.Error(w, "no boot script for this machine now; the conductor's log says why", status)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if _, err := io.WriteString(w, text); err != nil {
		s.log.Debug("send boot script", "from", from, "err", err)
	}
}

func (s *Server) getLoader(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	f, err := s.files.loader(name)
	if s.absent(w, r, err) || !s.send(w, r, f, "") {
		return
	}
	s.log.Info("boot program fetched", "file", name, "from", remoteAddr(r), "over", "HTTP")
	s.mark(r.Context(), s.client(r.Context(), remoteAddr(r)), node.MarkBootProgram, name)
}

func (s *Server) getRamdisk(w http.ResponseWriter, r *http.Request) {
	rd, err := s.files.currentRamdisk()
	if err != nil {
		s.short(err)
		s.log.Error("serve ramdisk", "err", err)
		http.Error(w, "there is no ramdisk; the conductor's log says why", http.StatusServiceUnavailable)
		return
	}
	f, rf, err := rd.open(r.PathValue("sha256"), r.PathValue("file"))
	if s.absent(w, r, err) {
		return
	}
	w.Header().Set("Cache-Control", "public, immutable, max-age=31536000")
	if !s.send(w, r, f, `"`+rf.SHA256+`"`) {
		return
	}
	mark := node.MarkKernel
	if rf == &rd.Initrd {
		mark = node.MarkRamdisk
	}
	n := s.nodeOfKey(r.Context(), r.URL.Query().Get("boot"))
	if n == nil {
		n = s.client(r.Context(), remoteAddr(r))
	}
	s.mark(r.Context(), n, mark, "")
}

func (s *Server) getImage(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	// Cleaned names only: no "..", no empty parts, no folder by its trailing slash.
	if s.files.images == nil || name == "" || path.Clean("/"+name) != "/"+name {
		http.NotFound(w, r)
		return
	}
	f, err := openRegular(s.files.images, name)
	if s.absent(w, r, err) {
		return
	}
	n := s.client(r.Context(), remoteAddr(r))
	if r.Method == http.MethodGet {
		s.mark(r.Context(), n, node.MarkImageFetch, name)
	}
	if s.send(w, r, f, "") {
		s.mark(r.Context(), n, node.MarkImageFetched, name)
	}
}

// absent answers a request for a file that could not be opened, and reports whether err says that.
func (s *Server) absent(w http.ResponseWriter, r *http.Request, err error) bool {
	if err == nil {
		return false
	}
	s.short(err)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) { // it may well be there
		w.Header().Set("Retry-After", strconv.Itoa(int(limit.RetryAfter.Seconds())))
		http.Error(w, "the conductor is short of file descriptors, try again", http.StatusServiceUnavailable)
		return true
	}
	if !errors.Is(err, fs.ErrNotExist) {
		// A name that leads out of its root is logged here; the client gets the same answer as for an absent file.
		s.log.Warn("file not served", "path", r.URL.Path, "from", r.RemoteAddr, "err", err)
	}
	http.NotFound(w, r)
	return true
}

// send serves a file with ranges and closes it. It reports whether the file's last byte was sent. tag is the strong
// ETag; "" makes one.
func (s *Server) send(w http.ResponseWriter, r *http.Request, f *os.File, tag string) (toTheEnd bool) {
	defer f.Close()
	info, err := f.Stat()
	if s.absent(w, r, err) {
		return false
	}
	tag = cmp.Or(tag, etag(info))
	h := w.Header()
	h.Set("ETag", tag)
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	c := &counter{ResponseWriter: w}
	http.ServeContent(c, r, "", info.ModTime(), f)
	if r.Method != http.MethodGet {
		return false
	}
	_, end := c.sent()
	return end == info.Size()
}

// counter counts what goes through a ResponseWriter, and lets files still go out by sendfile.
type counter struct {
	http.ResponseWriter
	status int
	n      int64
}

func (c *counter) WriteHeader(status int) {
	if c.status == 0 && status >= 200 {
		c.status = status
	}
	c.ResponseWriter.WriteHeader(status)
}

func (c *counter) Write(b []byte) (int, error) {
	c.status = cmp.Or(c.status, http.StatusOK)
	n, err := c.ResponseWriter.Write(b)
	c.n += int64(n)
	return n, err
}

// ReadFrom hands a file, or the files that a boot image is made of, on to the connection, which the kernel then copies
// by itself.
func (c *counter) ReadFrom(src io.Reader) (int64, error) {
	c.status = cmp.Or(c.status, http.StatusOK)
	var n int64
	var err error
	part, _ := src.(*io.LimitedReader)
	var image *bootiso.Reader
	if part != nil {
		image, _ = part.R.(*bootiso.Reader)
	}
	if image != nil {
		n, err = image.CopyTo(c.ResponseWriter, part.N)
		part.N -= n
	} else if to, ok := c.ResponseWriter.(io.ReaderFrom); ok {
		n, err = to.ReadFrom(src)
	} else {
		n, err = io.Copy(struct{ io.Writer }{c.ResponseWriter}, src)
	}
	c.n += n
	return n, err
}

// sent returns the first byte of the file that went out and the one after the last; 0, -1 when none did.
func (c *counter) sent() (first, end int64) {
	switch c.status {
	case http.StatusOK:
		return 0, c.n
	case http.StatusPartialContent:
		if _, err := fmt.Sscanf(c.Header().Get("Content-Range"), "bytes %d-", &first); err == nil {
			return first, first + c.n
		}
	}
	return 0, -1
}

// Unwrap is for http.ResponseController.
func (c *counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// goodConductor reports whether a HOST:PORT is fit for a kernel's command line, where it ends up.
func goodConductor(hostport string) bool {
	host, port, err := net.SplitHostPort(hostport)
	if n, wrong := strconv.ParseUint(port, 10, 16); wrong != nil || n == 0 {
		return false
	}
	return err == nil && paramForm.MatchString(host) && !strings.ContainsAny(host, "=@%+,/")
}
