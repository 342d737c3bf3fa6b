package netboot

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/netboot/bootiso"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/netdata"
)

// Images for virtual media are served at an address that can't be guessed: the boot's, made from the node, the boot's
// number and a key of this installation, so that a conductor that restarts goes on serving it, with the same token in
// the image. It is valid while the boot goes on. Controllers read an image in thousands of ranges, so the node is read
// from the store once a second at most.

const (
	recheck   = time.Second // a node is believed to boot still
	imageIdle = time.Hour   // then an image that is not read is forgotten, and made again
)

// bootImages are the images of the boots that go on.
type bootImages struct {
	mu sync.Mutex
	by map[string]*bootImage // by node
}

// bootImage is the image of one boot of a node. It does not change, whatever happens to the node or the ramdisk.
type bootImage struct {
	image   *bootiso.Image
	of      *ramdisk
	tag     string // strong ETag
	made    time.Time
	name    string // its secret name
	node    *node.Node
	checked time.Time

	sent, requests atomic.Int64 // bytes that controllers read, and in how many requests
	loaded         atomic.Bool  // the ramdisk was read to its end
}

// derived is a secret of a node's present boot.
func (s *Server) derived(what string, n *node.Node) []byte {
	h := hmac.New(sha256.New, s.cfg.ImageKey)
	fmt.Fprintf(h, "%s\n%s\n%d\n%d", what, n.UUID, n.Boot.Generation, n.Boot.OpenedAt.UnixMicro())
	return h.Sum(nil)
}

// imageName is the secret part of the address of a node's boot image.
func (s *Server) imageName(n *node.Node) string {
	return n.UUID + "." + hex.EncodeToString(s.derived("name", n)[:16])
}

// imageToken is the boot token in a node's boot image.
func (s *Server) imageToken(n *node.Node) string {
	return n.UUID + "." + base64.RawURLEncoding.EncodeToString(s.derived("token", n))
}

// BootImage returns the image that boots the agent on a node's machine from virtual media, and the SHA-256 (hex) of the
// token in it. The error says what prevents it.
func (s *Server) BootImage(ctx context.Context, n *node.Node) (image power.BootImage, tokenHash string, err error) {
	if n.Boot == nil || n.Boot.Ended {
		return image, "", errNotExpected
	}
	if _, err := s.composed(ctx, n); err != nil {
		return image, "", err
	}
	base, err := s.imageBase(n)
	if err != nil {
		return image, "", err
	}
	path := node.BootImagePath + s.imageName(n) + "/ingot.iso"
	image.Address, image.Plain = cmp.Or(base, s.base())+path, cmp.Or(base, s.base())+path
	if s.cfg.HTTPSPort != 0 {
		image.Authority = s.cfg.Authority()
		if base == "" {
			host := net.JoinHostPort(s.cfg.bootAddress().String(), strconv.Itoa(s.cfg.HTTPSPort))
			image.Address = "https://" + host + path
		}
	}
	sum := sha256.Sum256([]byte(s.imageToken(n)))
	return image, hex.EncodeToString(sum[:]), nil
}

// imageBase is the address of this conductor's HTTP server as the node's controller reaches it; "" is the server's own.
func (s *Server) imageBase(n *node.Node) (string, error) {
	base := s.cfg.ExternalURL
	if own := n.DriverInfo["external_http_url"]; own != nil && own != "" {
		text, _ := own.(string)
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
			u.RawQuery != "" || u.Fragment != "" {
			return "", errors.New("driver_info/external_http_url is not an address such as http://192.0.2.1:8080")
		}
		base = text
	}
	return strings.TrimSuffix(base, "/"), nil
}

// composed returns the image of a node's present boot, and makes it if it is the first use.
func (s *Server) composed(ctx context.Context, n *node.Node) (*bootImage, error) {
	name, now := s.imageName(n), s.now()
	s.images.mu.Lock()
	defer s.images.mu.Unlock()
	if b := s.images.by[n.UUID]; b != nil && b.name == name {
		b.node, b.checked = n, now
		return b, nil
	}
	b, err := s.compose(ctx, n)
	if err != nil {
		return nil, err
	}
	b.name, b.node, b.made, b.checked = name, n, now, now
	if s.images.by == nil {
		s.images.by = map[string]*bootImage{}
	}
	for id, old := range s.images.by { // of nodes that are deleted, or that nothing asked for any more
		if now.Sub(old.checked) > imageIdle {
			delete(s.images.by, id)
		}
	}
	s.images.by[n.UUID] = b
	return b, nil
}

// compose makes the image of a node's present boot.
func (s *Server) compose(ctx context.Context, n *node.Node) (*bootImage, error) {
	rd, err := s.files.currentRamdisk()
	if err != nil {
		return nil, err
	}
	template, err := rd.layout()
	if err != nil {
		return nil, err
	}
	own, err := nodeParams(n)
	if err != nil {
		return nil, err
	}
	var groups []Group
	if s.cfg.Groups != nil {
		if groups, err = s.cfg.Groups(ctx, n.UUID); err != nil {
			return nil, err
		}
	}
	c := s.currentConfig()
	params, err := kernelParams(c, own)
	if err != nil {
		return nil, err
	}
	data, err := netdata.JSON(n.NetworkData)
	if err != nil {
		return nil, err
	}
	of := bootiso.Node{NetworkData: data, CommandLine: strings.Join(params, " "),
		Params: strings.Join(append(agentParams(c, s.imageToken(n)), bondParams(groups)...), " ")}
	if len(of.CommandLine) > maxCommandLine {
		return nil, tooLong(len(of.CommandLine))
	}
	image, err := template.Image(of)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(rd.Kernel.SHA256 + rd.Initrd.SHA256 + "\n" + of.CommandLine + "\n" + of.Params + "\n" +
		string(data)))
	return &bootImage{image: image, of: rd, tag: `"` + hex.EncodeToString(sum[:]) + `"`}, nil
}

// bootImageNamed returns the image with a name, while its boot goes on, and its node.
func (s *Server) bootImageNamed(ctx context.Context, name string) (*bootImage, *node.Node, error) {
	uuid, _, _ := strings.Cut(name, ".")
	if len(uuid) != 36 { // the store would take a node's name as well
		return nil, nil, errNotExpected
	}
	s.images.mu.Lock()
	b := s.images.by[uuid]
	var n *node.Node
	if b != nil && s.now().Sub(b.checked).Abs() < recheck {
		n = b.node
	}
	s.images.mu.Unlock()
	if n != nil && subtle.ConstantTimeCompare([]byte(name), []byte(b.name)) == 1 {
		return b, n, nil
	}
	n, err := s.store.Node(ctx, uuid)
	if err != nil && !s.cfg.NotFound(err) {
		return nil, nil, err
	}
	if err != nil || !bootsFromImage(n, s.now()) ||
		subtle.ConstantTimeCompare([]byte(name), []byte(s.imageName(n))) != 1 {
		return nil, nil, errNotExpected
	}
	b, err = s.composed(ctx, n)
	return b, n, err
}

// bootsFromImage reports whether a node's machine may read its boot image: it is expected, or the agent that it booted
// is at work.
func bootsFromImage(n *node.Node, now time.Time) bool {
	return n.Boot != nil && n.Boot.Media && (n.Boot.WindowOpen(now) || atWork(n))
}

// getBootImage serves a boot image by ranges.
func (s *Server) getBootImage(w http.ResponseWriter, r *http.Request) {
	from := remoteAddr(r)
	b, n, err := s.bootImageNamed(r.Context(), r.PathValue("name"))
	var content *bootiso.Reader
	if err == nil {
		err = errors.Join(b.of.Kernel.unchanged(), b.of.Initrd.unchanged())
	}
	if err == nil {
		content, err = b.image.Open()
	}
	switch {
	case errors.Is(err, errNotExpected):
		s.seldom("boot image "+from.String()).Warn("boot image not served: no boot that goes on has this address", "from",
			from)
		http.NotFound(w, r)
		return
	case err != nil:
		s.short(err)
		s.seldom("boot image "+err.Error()).Error("serve boot image", "from", from, "err", err)
		http.Error(w, "there is no boot image now; the conductor's log says why", http.StatusServiceUnavailable)
		return
	}
	defer content.Close()
	h := w.Header()
	h.Set("ETag", b.tag)
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	c := &counter{ResponseWriter: w}
	http.ServeContent(c, r, "", b.made, content)
	if r.Method != http.MethodGet {
		return
	}
	s.mark(r.Context(), n, node.MarkMediaRead, from.String())
	sent, requests, loaded := b.sent.Add(c.n), b.requests.Add(1), b.image.Loaded()
	if first, end := c.sent(); first < loaded && end >= loaded && b.loaded.CompareAndSwap(false, true) {
		s.mark(r.Context(), n, node.MarkRamdisk,
			fmt.Sprintf("%s has read %d bytes in %d requests", from, sent, requests))
	}
}

// layOut makes the layout of the ramdisk's images. Their files stay open, so that machines that boot from one go on
// when another ramdisk takes its place.
func (r *ramdisk) layOut() (*bootiso.Template, error) {
	p := bootiso.Parts{Loaders: map[string][]byte{}, Time: r.Kernel.at}
	for rf, part := range map[*ramdiskFile]*bootiso.File{&r.Kernel: &p.Kernel, &r.Initrd: &p.Initramfs} {
		if err := rf.hold(r.root); err != nil {
			return nil, err
		}
		*part = bootiso.File{Size: rf.Size, Open: func() (bootiso.Content, error) { return rf.reopen() }}
	}
	for _, l := range r.Loaders {
		b, err := r.root.ReadFile(l.File)
		if err != nil {
			return nil, err
		}
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != l.SHA256 {
			return nil, fmt.Errorf("the boot loader %s is not the one that manifest.json names", l.File)
		}
		p.Loaders[l.File] = b
	}
	return bootiso.New(p)
}

// hold keeps a file open.
func (rf *ramdiskFile) hold(root *os.Root) (err error) {
	if rf.held, err = openRegular(root, rf.File); err != nil {
		return err
	}
	return rf.unchanged()
}

// unchanged says whether a file that is held is as it was when its digest was checked: a build replaces files, but one
// that is written over changes what machines read.
func (rf *ramdiskFile) unchanged() error {
	if info, err := rf.held.Stat(); err != nil || !info.ModTime().Equal(rf.at) || info.Size() != rf.Size {
		return errors.Join(fmt.Errorf("%s was changed while machines boot from it; build the ramdisk again", rf.File), err)
	}
	return nil
}

// reopen opens a file that is held once more, with a position of its own.
func (rf *ramdiskFile) reopen() (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", rf.held.Fd()))
}
