package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/api"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/member"
	"github.com/ingot-metal/ingot/conductor/peer"
	"github.com/ingot-metal/ingot/conductor/store/postgres"
)

// peers is how this conductor and the others of its database pass requests to each other.
type peers struct {
	client  *peer.Client
	id      *peer.Identity
	address string // by which others reach it
	served
}

// openPeers makes the side that asks others, and opens the listener of the side that is asked: its address is a part of
// how this conductor describes itself.
func openPeers(cfg config.Config, ca *agents.CA, others *member.Conductors, reach string,
	wrap func(net.Listener) net.Listener, log *slog.Logger) (*peers, error) {
	id, err := peer.NewIdentity(cfg.Name(), ca, nil)
	if err != nil {
		return nil, err
	}
	database, err := postgres.Parse(cfg.Store.Server(), "")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", cfg.PeerListen())
	if err != nil {
		return nil, fmt.Errorf("listen for other conductors (another address can be set in peer.listen): %w", err)
	}
	p := &peers{id: id, address: cfg.Peer.Advertise,
		served: served{"other conductors", limit.Listen(wrap(l), "conductors", peer.Connections, nil, log), nil},
		client: peer.NewClient(id, func(name string) (string, bool) {
			m, _ := others.Find(name)
			return m.Peer, m.Alive
		}, log)}
	if p.address == "" {
		if p.address, err = peerAddress(l.Addr(), database.Address(), reach); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return p, nil
}

// answer makes the side that is asked.
func (p *peers) answer(handler *api.Server, swarms peer.Message, bodies *limit.Budget, log *slog.Logger) {
	server := peer.NewServer(p.id, handler.Forwarded, swarms, bodies, log)
	p.server, p.listener = limit.HTTP(server, log), server.Listener(p.listener)
}

// close closes a listener that nothing has served; one that was served is closed.
func (p *peers) close() {
	p.client.Close()
	_ = p.listener.Close()
}

// peerAddress is host:port by which other conductors reach a listener: its own address, if it has one; else that of
// this host towards the database, which all of them can reach; else, with the database on this host, that of agents.
func peerAddress(at net.Addr, database, reach string) (string, error) {
	own, err := netip.ParseAddrPort(at.String())
	if err != nil {
		return "", fmt.Errorf("listen for other conductors: %w", err)
	}
	if !own.Addr().IsUnspecified() {
		return own.String(), nil
	}
	host, _, err := net.SplitHostPort(reach)
	if err != nil {
		return "", fmt.Errorf("agents.advertise: %w", err)
	}
	if database != "" {
		// Nothing is sent: the kernel only chooses the way.
		if c, err := net.Dial("udp", database); err == nil {
			from, err := netip.ParseAddrPort(c.LocalAddr().String())
			if err == nil && !from.Addr().IsLoopback() {
				host = from.Addr().String()
			}
			if err := c.Close(); err != nil {
				return "", fmt.Errorf("find the address towards the database: %w", err)
			}
		}
	}
	return net.JoinHostPort(host, fmt.Sprint(own.Port())), nil
}

// served is a server at its listener; whom is for errors.
type served struct {
	whom     string
	listener net.Listener
	server   *http.Server
}

// serve serves until stop.
func (s *served) serve() error {
	if err := s.server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", s.whom, err)
	}
	return nil
}

// stop waits for the requests under way, for as long as ctx lasts.
func (s *served) stop(ctx context.Context) error {
	err := s.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.server.Close()
	}
	return err
}
