package netboot

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
	"github.com/ingot-metal/ingot/conductor/node"
)

// bootScript is the script for iPXE. "imgfree" drops images that a failed attempt left in memory; the name given to the
// initramfs is needed for EFI, where the kernel looks for it by that name. Every value that is filled in has passed a
// grammar without iPXE's special characters.
var bootScript = template.Must(template.New("boot.ipxe").Parse(`#!ipxe
# Boots Ingot's agent into memory, once: the token below is good for one enrolment.
set tries:int32 0
:start
echo
echo Ingot: loading the agent for node {{.Node}}
echo Ingot: from {{.Base}}
kernel {{.Base}}/ramdisk/{{.Kernel.SHA256}}/{{.Kernel.File}}{{.Key}} initrd=rd {{.Line}} || goto failed
initrd --name rd {{.Base}}/ramdisk/{{.Initrd.SHA256}}/{{.Initrd.File}}{{.Key}} || goto failed
echo Ingot: starting the agent
boot || goto failed
:failed
imgfree
inc tries
iseq ${tries} {{.Tries}} && goto gone ||
echo Ingot: that did not work, the line above says why. Trying again in 5 seconds
sleep 5
goto start
:gone
echo Ingot: giving up. Check that this machine reaches {{.Base}}, then ask for the operation again.
sleep 10
exit 1
`))

// scriptTries is how often iPXE tries to fetch kernel and initramfs.
const scriptTries = 5

// plainName is a node's name that can be printed by a script; others are shown by UUID.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// Reasons why a script is not served. The client does not see them.
var (
	errNotExpected = errors.New("this machine is not expected to boot")
	errTooMany     = errors.New("the boot script has been fetched too often in this boot")
)

// askAgain returns a script that makes iPXE request its script once more, with the MACs of all its cards, first that of
// the one that it booted from. Only iPXE knows that card ("netX", the one opened last), while the URL of the first
// request comes from a DHCP server's configuration and often names net0. said is the MAC in that request, for an iPXE
// without netX.
func askAgain(base, said string) string {
	q := "mac=${netX/mac}"
	if mac, ok := parseMAC(said); ok {
		q += "&mac=" + mac
	}
	for i := range 8 {
		q += fmt.Sprintf("&mac=${net%d/mac}", i)
	}
	return "#!ipxe\nchain --replace " + base + "/boot.ipxe?" + q + "&uuid=${uuid}\n"
}

// maxCards is how many MACs of a machine are looked at.
const maxCards = 10

// script makes the boot script for the machine with an address, with a new token that voids the previous one. In mode
// server macs and uuid are ignored: the lease identifies the machine. In the other modes the first MAC is that of the
// card that the machine booted from.
func (s *Server) script(ctx context.Context, from netip.Addr, macs []string, uuid string) (string, error) {
	a, mac, err := s.whoBoots(ctx, from, macs, uuid)
	if err != nil {
		return "", err
	}
	if a.disk {
		s.seldom("disk "+a.node.UUID).Info("boot script served: the machine starts the system on its disk", "node",
			a.node.UUID, "mac", mac, "from", from)
		return diskScript, nil
	}
	if a.work {
		return s.workload(ctx, a.node, mac, from)
	}
	rd, err := s.files.currentRamdisk()
	if err != nil {
		return "", err
	}
	if a.invited {
		return s.inviteScript(rd, mac, from)
	}
	own, err := nodeParams(a.node)
	if err != nil {
		return "", err
	}
	token, hash := newToken(a.node.UUID)
	var groups []Group
	if s.cfg.Groups != nil {
		if groups, err = s.cfg.Groups(ctx, a.node.UUID); err != nil {
			return "", err
		}
	}
	line, err := commandLine(s.currentConfig(), token, mac, own, bondParams(groups)...)
	if err != nil {
		return "", s.tellNode(ctx, a.node, "no boot script", err)
	}
	text, err := s.writeScript(rd, shownName(a.node), line, "?boot="+bootKey(a.node.UUID, hash))
	if err != nil {
		return "", err
	}
	if err := s.voidAndStore(ctx, a.node.UUID, hash, from); err != nil {
		if errors.Is(err, errTooMany) {
			return "", s.tellNode(ctx, a.node, "no boot script", err)
		}
		return "", err
	}
	s.recognised(mac, a.node)
	s.log.Info("boot script served", "node", a.node.UUID, "mac", mac, "from", from)
	return text, nil
}

// shownName returns the name of a node for a script.
func shownName(n *node.Node) string {
	if plainName.MatchString(n.Name) {
		return n.Name
	}
	return n.UUID
}

// writeScript fills the boot script in. key, "" or what begins with "?", follows the files' names.
func (s *Server) writeScript(rd *ramdisk, shown, line, key string) (string, error) {
	var b strings.Builder
	err := bootScript.Execute(&b,
		map[string]any{"Node": shown, "Base": s.base(), "Kernel": rd.Kernel, "Initrd": rd.Initrd, "Line": line,
			"Key": key, "Tries": scriptTries})
	if err != nil {
		return "", fmt.Errorf("write the boot script: %w", err)
	}
	return b.String(), nil
}

// inviteScript makes the boot script of an unknown machine. Its token holds its own scope, so nothing is stored.
func (s *Server) inviteScript(rd *ramdisk, mac string, from netip.Addr) (string, error) {
	if !s.invites.script(mac) {
		return "", errTooMany
	}
	token, err := s.cfg.Invite(mac)
	if err != nil {
		return "", err
	}
	line, err := commandLine(s.currentConfig(), token, mac, "")
	if err != nil {
		return "", fmt.Errorf("no boot script: %w", err)
	}
	s.log.Info("boot script served to an unknown machine", "mac", mac, "from", from)
	return s.writeScript(rd, mac+", which is new here", line, "")
}

// whoBoots returns which node's machine requests its script, and which card it booted from.
func (s *Server) whoBoots(ctx context.Context, from netip.Addr, said []string, uuid string) (admission, string, error) {
	if s.cfg.Mode != Leases {
		var macs []string
		for _, text := range said {
			if mac, ok := parseMAC(text); ok && !slices.Contains(macs, mac) && len(macs) < maxCards {
				macs = append(macs, mac)
			}
		}
		if len(macs) == 0 {
			return admission{}, "",
				fmt.Errorf("%w: its URL has no MAC: it has to end in ?mac=${netX/mac}&uuid=${uuid}", errNotExpected)
		}
		mac := macs[0]
		a, err := s.admitCards(ctx, macs, spellings(uuid))
		if err == nil {
			a = s.admitUnknown(a, mac, true)
		}
		if err == nil && !a.boot && !a.disk {
			err = fmt.Errorf("%w: %s", errNotExpected, a.why)
		}
		return a, mac, err
	}
	l, err := s.store.LeaseByIP(ctx, from.String())
	if err != nil && !s.cfg.NotFound(err) {
		return admission{}, "", err
	}
	if err != nil || !l.ExpiresAt.After(s.now()) {
		return admission{}, "", fmt.Errorf("%w: its address is not leased to a machine", errNotExpected)
	}
	a, err := s.admit(ctx, l.MAC, nil)
	if err != nil {
		return a, "", err
	}
	a = s.admitUnknown(a, l.MAC, false)
	if a.node != nil && !a.boot {
		// Its MAC is no port: then the lease says which node it was recognised as when it requested the address.
		if _, err := s.store.PortByMAC(ctx, l.MAC); s.cfg.NotFound(err) {
			if a, err = s.admitGUID(ctx, a.node); err != nil {
				return a, "", err
			}
		}
	}
	if !a.boot && !a.disk {
		return admission{}, "", fmt.Errorf("%w: %s", errNotExpected, a.why)
	}
	return a, l.MAC, nil
}

// spellings returns a UUID as text in both byte orders.
func spellings(uuid string) []string {
	b, err := hex.DecodeString(strings.ReplaceAll(strings.ToLower(uuid), "-", ""))
	if err != nil {
		return nil
	}
	return guidTexts(b)
}

func newToken(nodeUUID string) (token, hash string) {
	b := make([]byte, 32)
	rand.Read(b)
	token = nodeUUID + "." + base64.RawURLEncoding.EncodeToString(b)
	sum := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(sum[:])
}

// nodeParams is the node's own addition to the kernel's command line. It comes from driver_info, which is the
// operators': tenants, who write instance_info, have no say in what runs in the ramdisk.
func nodeParams(n *node.Node) (string, error) {
	switch p := n.DriverInfo["kernel_append_params"].(type) {
	case nil:
		return "", nil
	case string:
		return p, nil
	default:
		return "", fmt.Errorf("driver_info/kernel_append_params of node %s is not a text", n.UUID)
	}
}

// voidAndStore makes a token the node's only one.
func (s *Server) voidAndStore(ctx context.Context, nodeUUID, hash string, from netip.Addr) error {
	_, err := s.store.Change(ctx, nodeUUID, func(n *node.Node, effects *node.SideEffects) error {
		now := s.now().UTC()
		b := n.Boot
		if !b.WindowOpen(now) {
			return fmt.Errorf("%w: its boot window has just closed", errNotExpected)
		}
		if b.TokensServed >= limit.BootScripts {
			return errTooMany
		}
		b.TokenHash, b.TokenExpires = hash, now.Add(s.cfg.TokenLife)
		b.TokensServed++
		if n.Job != nil {
			effects.Marks = append(effects.Marks,
				node.Mark{JobID: n.Job.ID, Name: node.MarkBootScript, At: now, Detail: from.String()})
		}
		return nil
	})
	return err
}

// tellNode puts something into the node's history that only an operator can mend, once in a while, and returns it.
func (s *Server) tellNode(ctx context.Context, n *node.Node, doing string, cause error) error {
	err := fmt.Errorf("%s: %w", doing, cause)
	return errors.Join(err, s.tell(ctx, n, "ERROR", err.Error(), err.Error()))
}

// tell puts an event into the node's history: once in a while of those with the same key.
func (s *Server) tell(ctx context.Context, n *node.Node, severity, key, event string) error {
	if !s.refused.speak("history "+n.UUID+key, s.now()) {
		return nil
	}
	_, err := s.store.Change(ctx, n.UUID, func(_ *node.Node, effects *node.SideEffects) error {
		effects.History = append(effects.History,
			node.HistoryEntry{At: s.now().UTC().Truncate(time.Microsecond), Type: "boot", Severity: severity,
				Event: event, Conductor: s.cfg.Hostname})
		return nil
	})
	return err
}
