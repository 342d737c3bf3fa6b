package mdns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// URL returns the URL of a service from an answer: host and port of its SRV record, protocol and path of its text. A
// name below .local stands for the address that comes with it.
func URL(b []byte, service string) (string, error) {
	var m dnsmessage.Message
	if err := m.Unpack(b); err != nil || !m.Response {
		return "", errors.Join(err, errors.New("this is no answer"))
	}
	var srv *dnsmessage.SRVResource
	words := map[string]string{}
	var addrs []netip.Addr
	for _, r := range append(m.Answers, m.Additionals...) {
		ours := strings.EqualFold(r.Header.Name.String(), service)
		switch body := r.Body.(type) {
		case *dnsmessage.SRVResource:
			if ours && srv == nil {
				srv = body
			}
		case *dnsmessage.TXTResource:
			for _, w := range body.TXT {
				if key, value, ok := strings.Cut(w, "="); ok && ours {
					words[key] = value
				}
			}
		case *dnsmessage.AResource:
			addrs = append(addrs, netip.AddrFrom4(body.A))
		case *dnsmessage.AAAAResource:
			addrs = append(addrs, netip.AddrFrom16(body.AAAA))
		}
	}
	if srv == nil || srv.Port == 0 {
		return "", fmt.Errorf("the answer has no place of %s", service)
	}
	host := strings.TrimSuffix(srv.Target.String(), ".")
	if strings.HasSuffix(strings.ToLower(host), ".local") {
		host = ""
		for _, a := range addrs {
			if !a.IsLoopback() && !a.IsMulticast() && !a.IsUnspecified() {
				host = a.String()
				break
			}
		}
	}
	if host == "" {
		return "", fmt.Errorf("the answer has no address of %s", service)
	}
	protocol := words["protocol"]
	switch {
	case protocol == "" && srv.Port == 80:
		protocol = "http"
	case protocol == "":
		protocol = "https"
	case protocol != "http" && protocol != "https":
		return "", fmt.Errorf("%s speaks %q", service, protocol)
	}
	at := protocol + "://" + net.JoinHostPort(host, strconv.Itoa(int(srv.Port))) + words["path"]
	if u, err := url.Parse(at); err != nil || u.Hostname() != host || u.RawQuery != "" {
		return "", fmt.Errorf("%q is no URL", at)
	}
	return at, nil
}
