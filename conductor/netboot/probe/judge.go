package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// Judgement is the finding about a server that answered, or about the absence of one.
type Judgement struct {
	Warning bool
	Text    string
	Remedy  string // of a warning
}

const (
	removeFile = "remove the boot file there (dnsmasq: dhcp-boot; ISC dhcpd: filename and next-server; Kea: boot-file-name and next-server; elsewhere options 66 and 67)"
	removePXE  = "turn it off for this network, or have it ignore the machines of Ingot's nodes (dnsmasq: remove pxe-service and pxe-prompt, or dhcp-host=MAC,ignore; others: remove option 60 PXEClient)"
)

// Judge says of servers whether they fit netboot.dhcp, which is mode, on a conductor with this address. There is always
// something to say.
func Judge(mode string, us netip.Addr, found []Server, more bool) []Judgement {
	var out []Judgement
	say := func(remedy, format string, args ...any) {
		out = append(out, Judgement{Warning: remedy != "", Text: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	gives := false
	for _, s := range found {
		gives = gives || s.Gives
		switch mode {
		case "server":
			judgeServer(s, us, say)
		case "proxy":
			judgeProxy(s, us, say)
		default:
			judgeOff(s, us, say)
		}
	}
	switch {
	case more:
		say("look for a program that makes up answers", "more than %d DHCP servers answer on this network", limit.ProbeServers)
	case mode == "server" && len(found) == 0:
		say("", "no other DHCP server and no other boot server answers on this network")
	case mode != "server" && !gives:
		remedy := "start one, or let it answer machines that it does not know; if it gives addresses to known machines alone, nothing has to be done"
		if mode == "proxy" {
			remedy += "; if there is to be none, set netboot.dhcp to server"
		} else {
			remedy += "; if machines are on other networks alone, set netboot.address and no netboot.interface"
		}
		say(remedy, "no DHCP server answers on this network, so machines get no address while netboot.dhcp is %s", mode)
	}
	return out
}

// Merge is now with those of before that did not answer now.
func Merge(now, before []Server) []Server {
	out := slices.Clone(now)
	for _, b := range before {
		if !slices.ContainsFunc(now, func(n Server) bool { return n.ID == b.ID && n.Gives == b.Gives }) {
			out = append(out, b)
		}
	}
	return out
}

// Remedy returns how to fix an error of Find.
func Remedy(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return "run ingotd with CAP_NET_RAW (AmbientCapabilities= of the service), or as root"
	}
	return "see to the interface"
}

type say func(remedy, format string, args ...any)

func judgeServer(s Server, us netip.Addr, say say) {
	if s.Gives {
		say("turn it off for this network, or set netboot.dhcp to proxy, so that it alone gives addresses",
			"%s gives addresses on this network as well: machines take those of whichever server is faster", s.name(us))
		return
	}
	say(removePXE, "%s answers on this network as well: machines may boot what it offers", s.name(us))
}

func judgeProxy(s Server, us netip.Addr, say say) {
	switch {
	case s.Gives && s.PXE:
		say(removePXE, "%s gives addresses and says that it is a PXE server (option 60): UEFI firmware boots from it%s, not from here", s.name(us), s.file())
	case s.Gives && s.File != "":
		say("", "%s gives addresses, and offers the boot file%s; what this conductor offers has priority for iPXE; if a machine boots the other file: %s",
			s.name(us), s.file(), removeFile)
	case s.Gives:
		say("", "%s gives addresses", s.name(us))
	default:
		say(removePXE, "%s answers on this network as well%s: which of the two a machine boots from is chance",
			s.name(us), s.file())
	}
}

func judgeOff(s Server, us netip.Addr, say say) {
	switch {
	case s.File == "" && s.Gives && !s.PXE:
		say("", "%s gives addresses, and offers UEFI firmware nothing to boot; if such machines are to boot, point it to %s (docs/howto/dhcp-servers.md)", s.name(us), us)
	case s.File == "":
		say(removePXE, "%s says that it is a PXE server (option 60), and names no boot file of this conductor",
			s.name(us))
	case s.Next == us.String():
		say("", "%s lets machines boot from this conductor:%s", s.name(us), s.file())
	default:
		say(fmt.Sprintf("name %s there as the host to boot from (docs/howto/dhcp-servers.md), or %s", us, removeFile),
			"%s lets machines boot%s, not from this conductor (%s)", s.name(us), s.file(), us)
	}
}

func (s Server) name(us netip.Addr) string {
	kind := "DHCP server"
	if !s.Gives {
		kind = "ProxyDHCP server"
	}
	if s.ID == us {
		return fmt.Sprintf("%s %s on this host", kind, s.ID)
	}
	if s.From != s.ID && s.From.IsValid() {
		return fmt.Sprintf("%s %s (answer from %s)", kind, s.ID, s.From)
	}
	return fmt.Sprintf("%s %s", kind, s.ID)
}

func (s Server) file() string {
	if s.File == "" {
		return ""
	}
	if s.Next == "" {
		return fmt.Sprintf(" %q", s.File)
	}
	return fmt.Sprintf(" %q of %s", s.File, s.Next)
}
