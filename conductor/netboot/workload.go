package netboot

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"text/template"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/workload"
)

// workloadScript boots what a node with deploy_interface "ramdisk" runs, at each of its starts. The machine itself fetches the URLs of
// instance_info; only the config drive comes from here. The drive stands before the initramfs: its length is a multiple of 512, so the
// kernel finds what follows, however that is compressed. A machine that can't fetch something goes on trying, with a new script each time:
// booting anything else, such as what an earlier tenant left on a disk, would be wrong. Everything that is filled in has passed a grammar
// without iPXE's special characters.
var workloadScript = template.Must(template.New("workload.ipxe").Parse(`#!ipxe
# Boots the workload of a node into memory.
echo
echo Ingot: loading the workload of node {{.Node}}
imgfree
{{- if .ISO}}
echo Ingot: booting {{.ISO}}
sanboot --no-describe {{.ISO}} || goto failed
{{- else}}
kernel {{.Kernel}}{{if .Drive}} initrd=drive{{end}}{{if .Ramdisk}} initrd=rd{{end}} {{.Line}} || goto failed
{{- if .Drive}}
initrd --name drive {{.Drive}} || goto failed
{{- end}}
{{- if .Ramdisk}}
initrd --name rd {{.Ramdisk}} || goto failed
{{- end}}
echo Ingot: starting the workload
boot || goto failed
{{- end}}
:failed
imgfree
echo Ingot: that did not work, the line above says why. Trying again in 10 seconds
sleep 10
chain --replace {{.Again}} || goto failed
`))

// seedLife is how long a machine may take from its boot script to its config drive: kernel and the rest may be large.
const seedLife = 30 * time.Minute

// seeds are the addresses of config drives that boot scripts have been given. They are secret, and each is good for the machine that got the
// script, until its next one. A restart of the conductor forgets them: the machine then asks for a new script.
type seeds struct {
	mu     sync.Mutex
	byHash map[[32]byte]seed
	byNode map[string][32]byte
}

type seed struct {
	node    string
	from    netip.Addr
	expires time.Time
}

// add makes the secret of a node's newest boot, which voids the one before.
func (s *seeds) add(nodeUUID string, from netip.Addr, now time.Time) (string, error) {
	b := make([]byte, 32)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("make a secret: %w", err)
	}
	secret := base64.RawURLEncoding.EncodeToString(b)
	hash := sha256.Sum256([]byte(secret))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byHash == nil {
		s.byHash, s.byNode = map[[32]byte]seed{}, map[string][32]byte{}
	}
	delete(s.byHash, s.byNode[nodeUUID])
	s.byHash[hash], s.byNode[nodeUUID] = seed{nodeUUID, from, now.Add(seedLife)}, hash
	return secret, nil
}

// find gives the node whose config drive a machine may have.
func (s *seeds) find(secret string, from netip.Addr, now time.Time) (nodeUUID string, ok bool) {
	hash := sha256.Sum256([]byte(secret))
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.byHash[hash]
	if !ok || w.from != from || !now.Before(w.expires) {
		return "", false
	}
	return w.node, true
}

// imagesURL is where files are that instance_info names without saying where; "" when none are served.
func (s *Server) imagesURL() string {
	if s.files.images == nil {
		return ""
	}
	return s.base() + "/images"
}

// workload makes the boot script of a machine that is to boot its node's workload.
func (s *Server) workload(ctx context.Context, n *node.Node, mac string, from netip.Addr) (string, error) {
	w, err := workload.Of(n, s.imagesURL())
	if err != nil {
		return "", s.tellNode(ctx, n, "the workload is not booted", err)
	}
	line := strings.TrimSpace(w.Params + " BOOTIF=01-" + strings.ReplaceAll(mac, ":", "-"))
	if len("initrd=drive initrd=rd "+line) > maxCommandLine {
		return "", s.tellNode(ctx, n, "the workload is not booted", fmt.Errorf("its kernel command line has %d bytes, more than the kernel takes: shorten kernel_append_params", len(line)))
	}
	fill := map[string]any{"Node": shownName(n), "ISO": w.ISO, "Kernel": w.Kernel, "Ramdisk": w.Ramdisk, "Line": line, "Drive": "",
		"Again": scriptURL(request{mac: mac}, s.cfg)}
	if w.Drive != nil {
		secret, err := s.seeds.add(n.UUID, from, s.now())
		if err != nil {
			return "", err
		}
		fill["Drive"] = s.base() + "/workload/" + secret + "/config-drive.cpio"
	}
	var b strings.Builder
	if err := workloadScript.Execute(&b, fill); err != nil {
		return "", fmt.Errorf("write the boot script: %w", err)
	}
	what := plainURL(w.ISO + w.Kernel)
	s.log.Info("boot script of the workload served", "node", n.UUID, "mac", mac, "from", from, "boots", what)
	return b.String(), s.noteWorkload(ctx, n, mac, what, from)
}

// noteWorkload puts into the node's history that its machine boots its workload: once in a while, since one that can't fetch it goes on asking.
func (s *Server) noteWorkload(ctx context.Context, n *node.Node, mac, what string, from netip.Addr) error {
	if !s.refused.speak("workload "+n.UUID, s.now()) {
		return nil
	}
	_, err := s.store.Change(ctx, n.UUID, func(n *node.Node, also *node.Also) error {
		now := s.now().UTC().Truncate(time.Microsecond)
		also.History = append(also.History, node.HistoryEntry{At: now, Type: "boot", Severity: "INFO", Conductor: s.cfg.Hostname,
			Event: fmt.Sprintf("the machine boots its workload %s from the network (by %s)", what, mac)})
		if n.Job != nil {
			also.Marks = append(also.Marks, node.Mark{JobID: n.Job.ID, Name: node.MarkBootScript, At: now, Detail: from.String()})
		}
		return nil
	})
	return err
}

// plainURL is a URL without what may be secret in it.
func plainURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "of an odd URL"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// getSeed serves the config drive of a workload to the machine that boots it, and to nobody else.
func (s *Server) getSeed(w http.ResponseWriter, r *http.Request) {
	from := remoteAddr(r)
	id, ok := s.seeds.find(r.PathValue("secret"), from, s.now())
	if !ok {
		if s.refused.speak("seed "+from.String(), s.now()) {
			s.log.Warn("config drive of a workload not served: the address is not of a boot that goes on", "from", from)
		}
		http.NotFound(w, r)
		return
	}
	b, err := s.seedOf(r.Context(), id)
	if err != nil {
		s.log.Error("make the config drive of a workload", "node", id, "err", err)
		http.Error(w, "there is no config drive now; the conductor's log says why", http.StatusServiceUnavailable)
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
}

func (s *Server) seedOf(ctx context.Context, nodeUUID string) ([]byte, error) {
	n, err := s.store.Node(ctx, nodeUUID)
	if err != nil {
		return nil, err
	}
	if !s.bootsWorkload(n) {
		return nil, errNotExpected
	}
	w, err := workload.Of(n, s.imagesURL())
	if err != nil {
		return nil, err
	}
	if w.Drive == nil {
		return nil, errors.New("the node has no config drive any more")
	}
	return w.Seed(n.UUID, s.now())
}

// bootsWorkload tells whether a machine that starts is to boot its node's workload.
func (s *Server) bootsWorkload(n *node.Node) bool {
	return s.cfg.Workload(n) && !n.Boot.WindowOpen(s.now()) && workload.Boots(n)
}
