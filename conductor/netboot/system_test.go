package netboot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/store"
)

// TestSystemSeen: every operating system that asks for an address is reported, whether or not it is answered, and by
// whichever server.
func TestSystemSeen(t *testing.T) {
	class := func(s string) dhcpv4.Modifier { return dhcpv4.WithOption(dhcpv4.OptClassIdentifier(s)) }
	for _, mode := range []Mode{Leases, Proxy} {
		t.Run(string(mode), func(t *testing.T) {
			var seen []string
			r := newRig(t, mode, func(c *Config) {
				c.SystemSeen = func(_ context.Context, mac string) { seen = append(seen, mac) }
			})
			n := r.node(node.DeployWait, false, nil)
			r.port(n, testMAC, true)
			for _, c := range []struct {
				name string
				typ  dhcpv4.MessageType
				mods []dhcpv4.Modifier
				want bool
			}{
				{"dhclient", dhcpv4.MessageTypeDiscover, nil, true},
				{"dhcpcd", dhcpv4.MessageTypeRequest, []dhcpv4.Modifier{class("dhcpcd-9.4.1:Linux")}, true},
				{"Windows", dhcpv4.MessageTypeDiscover, []dhcpv4.Modifier{class("MSFT 5.0")}, true},
				{"inform", dhcpv4.MessageTypeInform, []dhcpv4.Modifier{dhcpv4.WithClientIP(net.IPv4(10, 77, 0, 9))},
					true},
				{"our agent", dhcpv4.MessageTypeDiscover, []dhcpv4.Modifier{class("ingot-agent")}, false},
				{"its release", dhcpv4.MessageTypeRelease, nil, false},
				{"decline", dhcpv4.MessageTypeDecline, nil, false},
				{"PXE", dhcpv4.MessageTypeDiscover, pxe(iana.INTEL_X86PC, "PXEClient"), false},
				{"iPXE", dhcpv4.MessageTypeDiscover, ipxePacket(iana.EFI_X86_64), false},
				{"HTTP boot", dhcpv4.MessageTypeDiscover, pxe(iana.EFI_X86_64_HTTP, "HTTPClient"), false},
			} {
				seen = nil
				r.ask(c.typ, c.mods...)
				if got := slices.Equal(seen, []string{testMAC.String()}); got != c.want {
					t.Errorf("%s: told of %q, want it told: %v", c.name, seen, c.want)
				}
			}
		})
	}
}

// TestSystemSeenOnTheWire sends what real clients send through a real socket: the agent's is not told of, the system's
// behind it is.
func TestSystemSeenOnTheWire(t *testing.T) {
	machine := onWire(t)
	if machine == "" {
		return
	}
	seen := make(chan string, 1000)
	r := newRig(t, Leases, func(c *Config) {
		c.Interface, c.Prefix = "prov", netip.Prefix{}
		c.SystemSeen = func(_ context.Context, mac string) { seen <- mac }
		c.OnFlatNetwork = func(*node.Node) bool { return true }
	})
	n := r.node(node.DeployWait, false, nil)
	r.port(n, testMAC, true)
	serve(t, r.s)
	lease := func(class string) {
		in(t, machine, func() error {
			c, err := nclient4.New("eth0", nclient4.WithTimeout(5*time.Second))
			if err != nil {
				return err
			}
			defer c.Close()
			got, err := c.Request(t.Context(), dhcpv4.WithOption(dhcpv4.OptClassIdentifier(class)))
			if err != nil {
				return err
			}
			if !got.ACK.YourIPAddr.To4().Equal(got.Offer.YourIPAddr.To4()) {
				return fmt.Errorf("leased %s after an offer of %s", got.ACK.YourIPAddr, got.Offer.YourIPAddr)
			}
			return nil
		})
	}
	lease("ingot-agent")
	if len(seen) != 0 {
		t.Errorf("the agent was taken for a system")
	}
	lease("dhcpcd-9.4.1:Linux-6.1.0")
	if mac := <-seen; mac != testMAC.String() {
		t.Errorf("told of %s", mac)
	}
}

func TestPhoneHomeByHTTP(t *testing.T) {
	var got []string
	answer := error(nil)
	r := newRig(t, Leases, func(c *Config) {
		c.PhoneHome = func(_ context.Context, token, from string) error {
			got = append(got, token+" "+from)
			return answer
		}
	})
	call := func(method string) int {
		req := httptest.NewRequest(method, "/ingot/v1/phone_home/tok", strings.NewReader("instance_id=x"))
		req.RemoteAddr = "10.77.0.9:1234"
		w := httptest.NewRecorder()
		r.s.Handler().ServeHTTP(w, req)
		return w.Code
	}
	for _, c := range []struct {
		method string
		err    error
		want   int
		calls  int
	}{
		{http.MethodPost, nil, 204, 1}, {http.MethodGet, nil, 204, 1}, {http.MethodHead, nil, 404, 0},
		{http.MethodPut, nil, 405, 0}, {http.MethodPost, store.ErrNotFound, 404, 1},
		{http.MethodPost, errors.New("disk full"), 503, 1},
	} {
		got, answer = nil, c.err
		if code := call(c.method); code != c.want || len(got) != c.calls || c.calls > 0 && got[0] != "tok 10.77.0.9" {
			t.Errorf("%s (%v) = %d, told %q; want %d and %d calls", c.method, c.err, code, got, c.want, c.calls)
		}
	}
	if r.log.count("phone_home/tok") != 0 {
		t.Error("the token is in the log")
	}
}
