// Package mdns finds the conductor by multicast DNS (RFC 6762), as Ironic's agent finds its API: the service baremetal
// of OpenStack in the machine's own network segments. It finds an Ironic too.
//
// Answers can come from anyone in the segment. They are only an address to try: the agent talks there to the CA's
// server that it was told to trust, or to none.
package mdns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Service is the name of the service's one instance, and Key the word of its text that has the agents' address of the
// conductor: KEY=ADDRESS:PORT.
const (
	Service = "baremetal" + domain
	Key     = "ingot_agents"
)

const domain = "._openstack._tcp.local."

const (
	wait       = 2 * time.Second // for an answer
	maxMessage = 9000            // bytes; RFC 6762, section 17
	maxAnswers = 64              // messages that are looked at
)

// group is where questions go.
var group = &net.UDPAddr{IP: net.IPv4(224, 0, 0, 251), Port: 5353}

// ErrNone means that no conductor answered.
var ErrNone = errors.New("no conductor answers to multicast DNS: it needs netboot.mdns, and to be in the same network segment")

// Find returns the address (IP:PORT) of a conductor for agents. It asks in all network segments at once.
func Find(ctx context.Context) (string, error) {
	return ask(ctx, Service, Answer, ErrNone, dnsmessage.TypeTXT)
}

// FindURL returns the URL of an OpenStack service (baremetal, baremetal-introspection), as ironic-python-agent does.
func FindURL(ctx context.Context, service string) (string, error) {
	name := service + domain
	return ask(ctx, name, func(b []byte) (string, error) { return URL(b, name) },
		fmt.Errorf("no service %s answers to multicast DNS: it needs [conductor]enable_mdns of Ironic, and to be in "+
			"the same network segment", service), dnsmessage.TypeSRV, dnsmessage.TypeTXT)
}

// ask asks for records of a name in all network segments, and returns the first answer that can be read, or none.
func ask(ctx context.Context, name string, read func([]byte) (string, error), none error,
	types ...dnsmessage.Type) (string, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	q, err := question(name, types...)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	found, asked := make(chan string, len(ifs)), 0
	for _, ifi := range ifs {
		conn := open(ifi)
		if conn == nil {
			continue
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		defer conn.Close()
		if _, err := conn.WriteToUDP(q, group); err != nil {
			continue // the segment has no route, say
		}
		asked++
		go func() { found <- listen(conn, read) }()
	}
	for range asked {
		if at := <-found; at != "" {
			return at, nil
		}
	}
	return "", none
}

// open makes a socket whose questions leave by an interface; nil if it has no IPv4 address or takes none. A question
// from a port of its own is answered to that port (RFC 6762, section 6.7).
func open(ifi net.Interface) *net.UDPConn {
	addrs, err := ifi.Addrs()
	if err != nil || ifi.Flags&net.FlagUp == 0 || ifi.Flags&net.FlagMulticast == 0 {
		return nil
	}
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.To4() == nil {
			continue
		}
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: n.IP})
		if err != nil {
			continue
		}
		if leave(conn, n.IP) == nil {
			return conn
		}
		conn.Close()
	}
	return nil
}

// listen returns the first address in the answers; "" without any.
func listen(conn *net.UDPConn, read func([]byte) (string, error)) string {
	buf := make([]byte, maxMessage)
	for range maxAnswers {
		n, _, err := conn.ReadFromUDP(buf)
		if err != nil {
			return ""
		}
		if at, err := read(buf[:n]); err == nil {
			return at
		}
	}
	return ""
}

func question(service string, types ...dnsmessage.Type) ([]byte, error) {
	name, err := dnsmessage.NewName(service)
	if err != nil {
		return nil, err
	}
	const unicast = 1 << 15 // the answer is to come to the socket that asked
	m := dnsmessage.Message{}
	for _, t := range types {
		m.Questions = append(m.Questions,
			dnsmessage.Question{Name: name, Type: t, Class: dnsmessage.ClassINET | unicast})
	}
	return m.Pack()
}

// Answer returns the conductor's address in an answer.
func Answer(b []byte) (string, error) {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil || !h.Response {
		return "", errors.Join(err, errors.New("this is no answer"))
	}
	if err := p.SkipAllQuestions(); err != nil {
		return "", err
	}
	for {
		r, err := p.Answer()
		if err != nil {
			return "", fmt.Errorf("read an answer: %w", err)
		}
		txt, ok := r.Body.(*dnsmessage.TXTResource)
		if !ok || !strings.EqualFold(r.Header.Name.String(), Service) {
			continue
		}
		for _, word := range txt.TXT {
			key, value, _ := strings.Cut(word, "=")
			if key != Key {
				continue
			}
			at, err := netip.ParseAddrPort(value)
			if err != nil || at.Port() == 0 || at.Addr().IsMulticast() || at.Addr().IsUnspecified() {
				return "", fmt.Errorf("%q is no address", value)
			}
			return at.String(), nil
		}
	}
}
