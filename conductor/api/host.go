package api

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
)

// hosts are the names and addresses by which clients may call this server. A request's header Host is copied into links
// only if it is one of them: the client, or a host in between, may have written anything there.
type hosts struct {
	names  []string // lower case
	warned atomic.Bool
}

func newHosts(names []string) *hosts {
	h := new(hosts)
	for _, name := range names {
		if a, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
			name = a.Unmap().String()
		}
		h.names = append(h.names, strings.ToLower(strings.TrimSuffix(name, ".")))
	}
	return h
}

// of is the host, with port, that links in the answer to a request begin with; ok is false when it is not the one that
// the request has.
func (h *hosts) of(r *http.Request) (host string, ok bool) {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	tcp, _ := local.(*net.TCPAddr)
	name, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		name = strings.Trim(r.Host, "[]")
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "localhost" {
		return r.Host, true
	}
	if a, err := netip.ParseAddr(name); err == nil {
		a = a.Unmap()
		if a.IsLoopback() || tcp != nil && a == tcp.AddrPort().Addr().Unmap() {
			return r.Host, true
		}
		name = a.String()
	}
	switch {
	case slices.Contains(h.names, name):
		return r.Host, true
	case tcp != nil:
		return tcp.String(), false
	case len(h.names) > 0:
		return h.names[0], false
	}
	return "localhost", false
}

// Known reports whether a request names this server by a name or an address that is its own.
func (s *Server) Known(r *http.Request) bool {
	_, ok := s.hosts.of(r)
	return ok
}
