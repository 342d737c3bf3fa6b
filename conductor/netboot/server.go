// Package netboot answers machines that boot from the network: the answers, as pure functions, and the DHCP, TFTP and
// HTTP loops that send them.
//
// Only admitted machines are answered (admit.go). A machine whose MAC is a port of a node gets an address while an
// agent is expected or at work on it, and when its instance lives on this network. It gets a boot file only while the
// node's boot window is open, or when its node has a workload that runs from memory (workload.go). A node without ports
// is recognised by its system GUID, during inspection alone. All other machines are ignored, unless discovery is on
// (discover.go): then an unknown machine boots the agent once, to be enrolled.
//
// The boot sequence of a machine: firmware → DHCP → iPXE over TFTP (or HTTP) → DHCP again → boot script over HTTP →
// kernel and initramfs, by names that hold their SHA-256. Network cards with iPXE built in skip the first half. These
// needs of firmware were found by trying:
//
//   - iPXE waits seconds for a ProxyDHCP server unless option 175.176 says that none exists, and longer for IPv6
//     routers unless its solicitation is answered with an advertisement that offers nothing (ra.go).
//   - EDK2's PXE takes an offer with option 60 "PXEClient" but without option 43 for a promise of a boot server on port
//     4011, and fails when none answers. So mode server leaves option 60 out. EDK2's HTTP boot, however, requires
//     "HTTPClient" in the answer.
//   - iPXE prefers the boot file of the server that leases the address to a ProxyDHCP offer's, unless the latter has a
//     higher priority (option 175.1).
//   - A ProxyDHCP offer carries PXE_DISCOVERY_CONTROL bit 3 (PXE 2.1, table 2-1: boot the file that is named here) so
//     that clients need not ask port 4011; those that ask anyway are answered there.
package netboot

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/netboot/probe"
	"github.com/ingot-metal/ingot/conductor/node"
)

// Mode is the role of this conductor in the network's DHCP.
type Mode string

// Modes.
const (
	Off    Mode = "off"    // another DHCP server points machines to boot.ipxe
	Proxy  Mode = "proxy"  // another server leases addresses, boot files come from here
	Leases Mode = "server" // addresses and boot files come from here
)

// records is the part of the store that netboot needs.
type records interface {
	Node(ctx context.Context, ident string) (*node.Node, error)
	NodeByGUID(ctx context.Context, guid string) (*node.Node, error)
	PortByMAC(ctx context.Context, mac string) (*node.Port, error)
	Change(ctx context.Context, uuid string, change func(*node.Node, *node.SideEffects) error) (*node.Node, error)
	AddMark(ctx context.Context, m node.Mark) error
	Marks(ctx context.Context, nodeUUID, jobID string) ([]node.Mark, error)
	Lease(ctx context.Context, mac string) (node.Lease, error)
	LeaseByIP(ctx context.Context, ip string) (node.Lease, error)
	Leases(ctx context.Context) ([]node.Lease, error)
	PutLease(ctx context.Context, l node.Lease) error
	DeleteLease(ctx context.Context, mac string) error
}

// Config is the configuration of a Server.
type Config struct {
	Mode      Mode
	Interface string       // of the provisioning network; needed for DHCP
	Address   netip.Addr   // of this conductor there, IPv4
	Virtual   netip.Addr   // that machines are led to, on this host or on another conductor's; zero: Address
	Prefix    netip.Prefix // of that network; the zero value takes it from Interface

	RangeStart, RangeEnd netip.Addr // of leased addresses
	Gateway              netip.Addr // offered to machines; zero: none
	DNS                  []netip.Addr
	LeaseTime            time.Duration

	// ProbeEvery is how often the network of Interface is looked at for other DHCP servers; zero: never.
	ProbeEvery time.Duration

	HTTPPort int
	// HTTPSPort, unless 0, serves boot images over TLS, for controllers that check certificates; TLS is its
	// configuration, Authority the certificate (PEM) of the authority that signed its own.
	HTTPSPort int
	TLS       *tls.Config
	Authority func() string
	// Connections bounds those to the HTTP server; the zero value does not.
	Connections limit.Connections
	TFTP        bool

	LoaderDir    string       // has undionly.kpxe and snponly.efi; empty: only machines with iPXE built in can boot
	RamdiskDir   string       // has manifest.json
	ImagesDir    string       // served below /images/; empty: nothing
	Glance       http.Handler // serves images of OpenStack's image service at /glance/ID; nil: none
	KernelParams string       // added to the ramdisk's command line
	TokenLife    time.Duration

	Conductor string // HOST:PORT as agents reach it
	// Others, unless nil, returns the HOST:PORT of other conductors on the same database, for agents that can't reach
	// this one any more; some of them are named in boot parameters.
	Others func() []string
	CA     string // SHA-256 of its CA's certificate, hex
	NextCA string // of the CA that follows it, while it is rotated; else empty
	// ExternalURL is the address of the HTTP server as controllers reach it; "": the one of machines.
	ExternalURL string
	// ImageKey makes the addresses and tokens of boot images.
	ImageKey []byte
	// Short, unless nil, is called with each error of opening, receiving or sending: the process may be out of file
	// descriptors.
	Short func(err error)
	// Trust, unless nil, returns the present CA and NextCA: a rotation can end while the server runs.
	Trust    func() (ca, next string)
	Hostname string // of this conductor, for histories

	// Invite makes the boot token of an unknown machine; nil: unknown machines are not answered. InviteLimit is how
	// many of them may boot in an hour.
	Invite      func(mac string) (string, error)
	InviteLimit int

	// SystemSeen is called with the MAC of each operating system that asks for an address, on any machine: not for
	// firmware, not for our agent. Nil is allowed.
	SystemSeen func(ctx context.Context, mac string)
	// SystemStarted is called for a node whose installed system was seen although the agent is to boot, when
	// Boot.System says so. Nil is allowed.
	SystemStarted func(ctx context.Context, nodeUUID string)
	// PhoneHome is called when a deployed system calls with a token. An error for which NotFound holds is answered as
	// such. Nil: the route is off.
	PhoneHome func(ctx context.Context, token, from string) error

	// NotFound reports whether an error of the store means that the object does not exist.
	NotFound func(error) bool
	// Groups returns a node's port groups with the addresses of their members; nil: no groups.
	Groups func(ctx context.Context, nodeUUID string) ([]Group, error)
	// HasPorts reports whether a node has ports.
	HasPorts func(ctx context.Context, nodeUUID string) (bool, error)
	// OnFlatNetwork reports whether a node's instance is on the provisioning network and gets its address here.
	OnFlatNetwork func(*node.Node) bool
	// Workload reports whether a node runs from memory (deploy interface ramdisk), so that its machine gets its
	// workload at each start; nil: none does.
	Workload func(*node.Node) bool
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Meter counts answers and refusals; nil: nothing is counted.
	Meter meter
}

// Server serves booting machines. Make it with New.
type Server struct {
	store     records
	cfg       Config
	log       *slog.Logger
	now       func() time.Time
	pool      *pool
	files     *files
	marked    onceEach
	refused   quiet
	strangers rate
	invites   invites
	booting   recently
	transfers tftpLimits
	replies   replies
	installed replies // requests of installed systems that are looked into
	waits     waits
	seeds     seeds
	images    bootImages

	mu       sync.Mutex
	machines map[string]string // the nodes as which machines were recognised, by MAC

	turns     func() func(key string) int // nil: no other conductor is on this network
	link      func() string               // the interface of the provisioning network, "" if there is none
	neighbour func(netip.Addr) string

	dhcp, boot dhcpConn       // ports 67 and 4011
	tftp       []*net.UDPConn // by address
	probeWait  time.Duration
	ra         *advertiser
	http       net.Listener
	https      net.Listener // nil without HTTPSPort
}

// New makes a server and checks that it has the files it is going to offer. Listen opens its sockets.
func New(store records, cfg Config, log *slog.Logger) (*Server, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	s := &Server{store: store, cfg: cfg, log: log, now: cfg.Now, machines: map[string]string{},
		invites: invites{limit: cfg.InviteLimit}, probeWait: probe.Wait}
	if s.now == nil {
		s.now = time.Now
	}
	s.link = sync.OnceValue(func() string { return cmp.Or(cfg.Interface, linkOf(cfg.Address)) })
	s.neighbour = s.kernelNeighbour
	if s.cfg.NotFound == nil {
		s.cfg.NotFound = func(error) bool { return false }
	}
	if s.cfg.OnFlatNetwork == nil {
		s.cfg.OnFlatNetwork = func(*node.Node) bool { return false }
	}
	if s.cfg.Workload == nil {
		s.cfg.Workload = func(*node.Node) bool { return false }
	}
	if !cfg.Address.Is4() {
		return nil, errors.New(
			"network boot: the conductor has no IPv4 address on the provisioning network: set netboot.address or netboot.interface")
	}
	if !goodConductor(cfg.Conductor) || !digestForm.MatchString(cfg.CA) || cfg.NextCA != "" &&
		!digestForm.MatchString(cfg.NextCA) {
		return nil, fmt.Errorf(
			"network boot: agents can't be told where %q is, with CA fingerprint %q: set agents.advertise to HOST:PORT",
			cfg.Conductor, cfg.CA)
	}
	if err := checkParams(cfg.KernelParams, configured); err != nil {
		return nil, fmt.Errorf("netboot.kernel_params: %w", err)
	}
	var err error
	if s.files, err = openFiles(cfg, log); err != nil {
		return nil, err
	}
	if cfg.Mode == Leases {
		if !s.cfg.Prefix.IsValid() {
			if s.cfg.Prefix, err = prefixOf(cfg.Interface, cfg.Address); err != nil {
				return nil, err
			}
		}
		if s.pool, err = newPool(s.cfg); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Network is the network whose machines this server answers over DHCP; the zero Prefix without DHCP, or if it is not
// known.
func (s *Server) Network() netip.Prefix {
	p := s.cfg.Prefix
	if s.cfg.Mode == Proxy && !p.IsValid() {
		var err error
		if p, err = prefixOf(s.cfg.Interface, s.cfg.Address); err != nil {
			return netip.Prefix{}
		}
	}
	if s.cfg.Mode == Off || !p.IsValid() {
		return netip.Prefix{}
	}
	return p.Masked()
}

// prefixOf finds the network that an address of an interface belongs to.
func prefixOf(name string, addr netip.Addr) (netip.Prefix, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("netboot.interface %s: %w", name, err)
	}
	addrs, err := ifi.Addrs()
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("read addresses of %s: %w", name, err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == addr {
			return p, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("netboot.address %s is not an address of interface %s", addr, name)
}

// Listen opens all sockets, so that errors show before anything is offered.
func (s *Server) Listen() error {
	err := s.listen()
	if err != nil {
		s.close()
	}
	return err
}

//nolint:contextcheck opening a socket waits for nothing
func (s *Server) listen() (err error) {
	if s.http, err = s.cfg.listenTCP(s.cfg.HTTPPort); err != nil {
		return fmt.Errorf("listen for HTTP boot: %w", err)
	}
	s.http = noted{s.http, s.short}
	if s.cfg.Connections.Total > 0 {
		s.http = limit.ListenHTTP(s.http, "boot", s.cfg.Connections, nil, s.log)
	}
	if s.cfg.HTTPSPort != 0 {
		if s.https, err = s.cfg.listenTCP(s.cfg.HTTPSPort); err != nil {
			return fmt.Errorf("listen for boot images over HTTPS: %w", err)
		}
		s.https = noted{s.https, s.short}
		if s.cfg.Connections.Total > 0 {
			s.https = limit.ListenHTTP(s.https, "boot images", s.cfg.Connections, nil, s.log)
		}
	}
	if s.cfg.TFTP {
		for _, a := range s.cfg.addresses() {
			c, err := listenAt.ListenPacket(context.Background(), "udp4", netip.AddrPortFrom(a, 69).String())
			if err != nil {
				return fmt.Errorf("listen for TFTP: %w", err)
			}
			s.tftp = append(s.tftp, c.(*net.UDPConn))
		}
	}
	if s.cfg.Mode != Off {
		if s.dhcp, s.boot, err = openDHCP(s.cfg.Mode, s.cfg.Interface, s.cfg.addresses()...); err != nil {
			return err
		}
	}
	if s.cfg.Interface == "" {
		return nil // mode off, and the provisioning network's segment is unknown
	}
	if s.ra, err = newAdvertiser(s.cfg.Interface, s.bootsHere); err != nil {
		// A kernel without IPv6: no machine to advertise to either.
		s.log.Warn("router solicitations are not answered, so iPXE will boot slowly", "err", err)
	}
	return nil
}

// meter counts what machines are given, and what not.
type meter interface {
	// Answered counts an answer of a service ("dhcp", "tftp"), and Refused a request that got none, with one of a few
	// words for why.
	Answered(service, kind string)
	Refused(service, reason string)
	// Fetched counts a request over HTTP; kind is "" for what is not served.
	Fetched(kind string, status int, bytes int64, took time.Duration)
}

func (s *Server) answered(service, kind string) {
	if s.cfg.Meter != nil {
		s.cfg.Meter.Answered(service, kind)
	}
}

func (s *Server) refuse(service, reason string) {
	if s.cfg.Meter != nil {
		s.cfg.Meter.Refused(service, reason)
	}
}

func (s *Server) short(err error) {
	if s.cfg.Short != nil && err != nil {
		s.cfg.Short(err)
	}
}

// noted is a listener that reports connections that it could not accept.
type noted struct {
	net.Listener
	short func(error)
}

func (n noted) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	n.short(err)
	return c, err
}

func (s *Server) close() {
	for _, c := range []dhcpConn{s.dhcp, s.boot} {
		if c != nil {
			c.Close()
		}
	}
	for _, c := range s.tftp {
		c.Close()
	}
	if s.ra != nil {
		s.ra.close()
	}
	for _, l := range []net.Listener{s.http, s.https} {
		if l != nil {
			l.Close()
		}
	}
	s.files.close()
}

// Serve answers machines until ctx ends. Downloads get a moment to end by themselves.
func (s *Server) Serve(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	stopped := func(err error) error {
		if gctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return nil
		}
		return err
	}
	for _, c := range []dhcpConn{s.dhcp, s.boot} {
		if c != nil {
			g.Go(func() error { return stopped(s.serveDHCP(gctx, c)) })
		}
	}
	if s.cfg.ProbeEvery > 0 && s.cfg.Interface != "" {
		g.Go(func() error {
			s.watchNetwork(gctx)
			return nil
		})
	}
	if s.ra != nil {
		g.Go(func() error { return stopped(s.ra.serve(gctx, s.log)) })
	}
	for _, c := range s.tftp {
		g.Go(func() error { return stopped(s.serveTFTP(gctx, c)) })
	}
	type site struct {
		net.Listener
		*http.Server
	}
	webs := []site{{s.http, limit.HTTP(s.Handler(), s.log)}}
	if s.https != nil {
		webs = append(webs, site{tls.NewListener(s.https, s.cfg.TLS), limit.HTTP(s.secureHandler(), s.log)})
	}
	for _, web := range webs {
		g.Go(func() error {
			err := web.Serve(web.Listener)
			if errors.Is(err, http.ErrServerClosed) || stopped(err) == nil {
				return nil
			}
			return fmt.Errorf("serve HTTP boot: %w", err)
		})
	}
	g.Go(func() error {
		<-gctx.Done()
		last, cancel := context.WithTimeout(context.WithoutCancel(gctx), 2*time.Second)
		defer cancel()
		var errs []error
		for _, web := range webs {
			err := web.Shutdown(last)
			if errors.Is(err, context.DeadlineExceeded) {
				err = web.Server.Close() // agents resume what this cuts off
			}
			errs = append(errs, err)
		}
		s.close()
		return errors.Join(errs...)
	})
	s.log.Info("network boot is up", "dhcp", string(s.cfg.Mode), "interface", s.cfg.Interface, "http",
		s.http.Addr().String(), "tftp", s.cfg.TFTP)
	return g.Wait()
}

// base is the URL of everything that is served over HTTP.
func (s *Server) base() string { return baseURL(s.cfg) }

func baseURL(c Config) string {
	return "http://" + net.JoinHostPort(c.bootAddress().String(), strconv.Itoa(c.HTTPPort))
}

// bootAddress is the address that machines are led to for TFTP and HTTP.
func (c Config) bootAddress() netip.Addr {
	if c.Virtual.IsValid() {
		return c.Virtual
	}
	return c.Address
}

// addresses are those at which machines are served, this conductor's own first.
func (c Config) addresses() []netip.Addr {
	if c.Virtual.IsValid() && c.Virtual != c.Address {
		return []netip.Addr{c.Address, c.Virtual}
	}
	return []netip.Addr{c.Address}
}

// mark puts a point on the node's time line, once per boot, and only while there is one.
func (s *Server) mark(ctx context.Context, n *node.Node, name, detail string) {
	if n == nil || n.Boot == nil || n.Boot.Ended || n.Job == nil ||
		!s.marked.first(n.UUID, name+" "+detail, n.Boot.OpenedAt) {
		return
	}
	err := s.store.AddMark(context.WithoutCancel(ctx),
		node.Mark{NodeUUID: n.UUID, JobID: n.Job.ID, Name: name, Detail: detail, At: s.now().UTC()})
	if err != nil {
		s.log.Warn("write mark", "node", n.UUID, "err", err)
	}
}
