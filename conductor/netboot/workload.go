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
	"github.com/ingot-metal/ingot/conductor/node/ramdiskdeploy"
)

// workloadScript boots the workload of a node with deploy_interface "ramdisk", at each of its starts. The machine
// itself fetches the URLs of instance_info; only the config drive comes from here. The drive stands before the
// initramfs: its length is a multiple of 512, so the kernel finds the initramfs, however that is compressed. A machine
// that can't fetch something tries again, with a new script each time: booting anything else, such as a system that an
// earlier tenant left on a disk, would be wrong. Every value that is filled in has passed a grammar without iPXE's
// special characters.
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

// A config drive is secret, and a machine that boots without an agent can't prove its identity. So the drive is served
// only in the window after a start of the machine (node.DriveWindow), below a name that can't be guessed, and to one
// address: the one that is leased to the machine; in the modes in which other servers lease them, the first that
// fetches the boot script. The engine opens the window when it turns the machine on or resets it, and closes it at the
// system's sign of life; here it is opened when a booting machine requests an address, as after a restart of its own,
// and closed when the started system requests one.

// seedLife is how long a machine may take from its boot script to its config drive.
const seedLife = node.DriveTime

// Reasons why there is no config drive.
var (
	errNoWindow     = errors.New("nothing that Ingot knows of has started the machine")
	errOtherAddress = errors.New("another address has fetched the boot script behind this start of the machine")
)

// seeds are the addresses of config drives that boot scripts contain. They are secret, and each is valid for the
// machine that got the script, until its next one. A restart of the conductor drops them: the machine then requests a
// new script.
type seeds struct {
	mu     sync.Mutex
	byHash map[[32]byte]seed
	byNode map[string][32]byte
}

type seed struct {
	node    string
	from    netip.Addr
	window  time.Time // when it was opened
	expires time.Time
}

// add makes the secret of a node's newest boot, which voids the one before.
func (s *seeds) add(nodeUUID string, from netip.Addr, window, now time.Time) string {
	b := make([]byte, 32)
	rand.Read(b)
	secret := base64.RawURLEncoding.EncodeToString(b)
	hash := sha256.Sum256([]byte(secret))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byHash == nil {
		s.byHash, s.byNode = map[[32]byte]seed{}, map[string][32]byte{}
	}
	delete(s.byHash, s.byNode[nodeUUID])
	s.byHash[hash], s.byNode[nodeUUID] = seed{nodeUUID, from, window, now.Add(seedLife)}, hash
	return secret
}

// find returns the seed whose config drive a machine may have.
func (s *seeds) find(secret string, from netip.Addr, now time.Time) (w seed, ok bool) {
	hash := sha256.Sum256([]byte(secret))
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok = s.byHash[hash]
	return w, ok && w.from == from && now.Before(w.expires)
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
	w, err := ramdiskdeploy.Of(n, s.imagesURL())
	if err != nil {
		return "", s.tellNode(ctx, n, "the workload is not booted", err)
	}
	line := strings.TrimSpace(w.Params + " BOOTIF=01-" + strings.ReplaceAll(mac, ":", "-"))
	if len("initrd=drive initrd=rd "+line) > maxCommandLine {
		return "", s.tellNode(ctx, n, "the workload is not booted",
			fmt.Errorf("its kernel command line has %d bytes, more than the kernel takes: shorten kernel_append_params",
				len(line)))
	}
	fill := map[string]any{"Node": shownName(n), "ISO": w.ISO, "Kernel": w.Kernel, "Ramdisk": w.Ramdisk, "Line": line,
		"Drive": "", "Again": scriptURL(request{mac: mac}, s.cfg)}
	if w.Drive != nil {
		window, err := s.claimDrive(ctx, n, from)
		switch {
		case errors.Is(err, errNoWindow):
			err = s.tell(ctx, n, "WARNING", "no window",
				fmt.Sprintf("the machine at %s boots its workload without its config drive: %v; restart it by its power state", from, err))
			if err != nil {
				return "", err
			}
		case errors.Is(err, errOtherAddress):
			terr := s.tell(ctx, n, "WARNING", "other address",
				fmt.Sprintf("%s asked for the boot script and got none: %v, and it names the config drive; if %s is the machine, set its power state to rebooting, and find out who asked before", from, err, from))
			return "", errors.Join(fmt.Errorf("%w: %w", errNotExpected, err), terr)
		case err != nil:
			return "", err
		default:
			secret := s.seeds.add(n.UUID, from, window, s.now())
			fill["Drive"] = s.base() + "/workload/" + secret + "/config-drive.cpio"
		}
	}
	var b strings.Builder
	if err := workloadScript.Execute(&b, fill); err != nil {
		return "", fmt.Errorf("write the boot script: %w", err)
	}
	what := plainURL(w.ISO + w.Kernel)
	s.log.Info("boot script of the workload served", "node", n.UUID, "mac", mac, "from", from, "boots", what)
	return b.String(), s.noteWorkload(ctx, n, mac, what, from)
}

// mayFetch returns why an address may not fetch a node's config drive at a time, or nil. The client that asked for the
// script was looked up before, so in mode server the lease has shown that it is the machine.
func (s *Server) mayFetch(n *node.Node, from netip.Addr, now time.Time) error {
	switch w := n.DriveWindow; {
	case !w.IsOpen(now):
		return errNoWindow
	case s.cfg.Mode != Leases && w.Address != "" && w.Address != from.String():
		return errOtherAddress
	}
	return nil
}

// claimDrive takes the config drive for an address that fetches the boot script, and returns which window of the node
// it is good for. The window lasts as long as its machine goes on asking.
func (s *Server) claimDrive(ctx context.Context, n *node.Node, from netip.Addr) (window time.Time, err error) {
	now := s.now().UTC()
	if err := s.mayFetch(n, from, now); err != nil {
		return time.Time{}, err
	}
	if w := n.DriveWindow; w.Address == from.String() && w.ClosesAt.Sub(now) > seedLife/2 {
		return w.OpenedAt, nil
	}
	n, err = s.store.Change(ctx, n.UUID, func(n *node.Node, _ *node.SideEffects) error {
		if err := s.mayFetch(n, from, now); err != nil {
			return err
		}
		n.DriveWindow.Address, n.DriveWindow.ClosesAt = from.String(), now.Add(seedLife)
		return nil
	})
	if err != nil {
		return time.Time{}, err
	}
	return n.DriveWindow.OpenedAt, nil
}

// startSeen opens the window of a machine that requests an address to boot with. An open one stays unchanged, with its
// address.
func (s *Server) startSeen(ctx context.Context, n *node.Node) {
	if now := s.now().UTC(); !n.DriveWindow.IsOpen(now) {
		s.changeWindow(ctx, n, func(n *node.Node) {
			if !n.DriveWindow.IsOpen(now) {
				n.OpenDrive(now)
			}
		})
	}
}

// systemSeen closes the window of a machine whose system, being started, requests an address, if it has fetched its
// config drive: firmware that looks like a system may ask before.
func (s *Server) systemSeen(ctx context.Context, n *node.Node) {
	if fetched(n) {
		s.changeWindow(ctx, n, func(n *node.Node) {
			if fetched(n) {
				n.DriveWindow = nil
			}
		})
	}
}

func fetched(n *node.Node) bool { return n.DriveWindow != nil && !n.DriveWindow.FetchedAt.IsZero() }

func (s *Server) changeWindow(ctx context.Context, n *node.Node, change func(*node.Node)) {
	_, err := s.store.Change(context.WithoutCancel(ctx), n.UUID, func(n *node.Node, _ *node.SideEffects) error {
		change(n)
		return nil
	})
	if err != nil {
		s.log.Error("record when the config drive of a workload may be fetched", "node", n.UUID, "err", err)
	}
}

// noteWorkload puts into the node's history that its machine boots its workload: once in a while, since one that can't
// fetch it goes on asking.
func (s *Server) noteWorkload(ctx context.Context, n *node.Node, mac, what string, from netip.Addr) error {
	if !s.refused.speak("workload "+n.UUID, s.now()) {
		return nil
	}
	_, err := s.store.Change(ctx, n.UUID, func(n *node.Node, effects *node.SideEffects) error {
		now := s.now().UTC().Truncate(time.Microsecond)
		effects.History = append(effects.History,
			node.HistoryEntry{At: now, Type: "boot", Severity: "INFO", Conductor: s.cfg.Hostname,
				Event: fmt.Sprintf("the machine boots its workload %s from the network (by %s)", what, mac)})
		if n.Job != nil {
			effects.Marks = append(effects.Marks,
				node.Mark{JobID: n.Job.ID, Name: node.MarkBootScript, At: now, Detail: from.String()})
		}
		return nil
	})
	return err
}

// plainURL returns a URL without its possibly secret parts.
func plainURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "of an odd URL"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// getSeed serves the config drive of a workload to the machine that boots it, and to no other client.
func (s *Server) getSeed(w http.ResponseWriter, r *http.Request) {
	from := remoteAddr(r)
	own, ok := s.seeds.find(r.PathValue("secret"), from, s.now())
	var b []byte
	err := errNoWindow
	if ok {
		b, err = s.seedOf(r.Context(), own)
	}
	if errors.Is(err, errNoWindow) || errors.Is(err, errOtherAddress) {
		s.seldom("seed "+from.String()).Warn(
			"config drive of a workload not served: the address is not of a boot that goes on", "from", from)
		http.NotFound(w, r)
		return
	}
	if err != nil {
		s.log.Error("make the config drive of a workload", "node", own.node, "err", err)
		http.Error(w, "there is no config drive now; the conductor's log says why", http.StatusServiceUnavailable)
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
}

// seedOf makes the config drive of a seed, if it may be fetched still.
func (s *Server) seedOf(ctx context.Context, own seed) ([]byte, error) {
	n, err := s.store.Node(ctx, own.node)
	if err != nil {
		return nil, err
	}
	if !s.bootsWorkload(n) {
		return nil, errNotExpected
	}
	now := s.now().UTC()
	if err := s.mayFetch(n, own.from, now); err != nil {
		return nil, err
	}
	if !n.DriveWindow.OpenedAt.Equal(own.window) {
		return nil, errNoWindow
	}
	if s.cfg.Mode == Leases {
		l, err := s.store.LeaseByIP(ctx, own.from.String())
		if err != nil && !s.cfg.NotFound(err) {
			return nil, err
		}
		if err != nil || l.NodeUUID != n.UUID || !l.ExpiresAt.After(now) {
			return nil, errOtherAddress
		}
	}
	w, err := ramdiskdeploy.Of(n, s.imagesURL())
	if err != nil {
		return nil, err
	}
	if w.Drive == nil {
		return nil, errors.New("the node has no config drive any more")
	}
	b, err := w.Seed(n.UUID, s.now())
	if err == nil && !fetched(n) {
		s.changeWindow(ctx, n, func(n *node.Node) {
			if w := n.DriveWindow; w != nil && w.OpenedAt.Equal(own.window) {
				w.FetchedAt = now
			}
		})
	}
	return b, err
}

// bootsWorkload reports whether a machine that starts is to boot its node's workload.
func (s *Server) bootsWorkload(n *node.Node) bool {
	return s.cfg.Workload(n) && !n.Boot.WindowOpen(s.now()) && ramdiskdeploy.Boots(n)
}
