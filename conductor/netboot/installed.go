package netboot

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/node"
)

// firmwareAsks lists the options that firmware requests when it wants an address for something other than PXE: EDK2's
// IPv4 driver requests mask, router and DNS, its iSCSI driver the root path as well.
var firmwareAsks = []uint8{1, 3, 6, 17, 54}

// iscsiClasses are parts of the classes of adapters that boot over iSCSI ("BRCM ISAN", "QLGC ISAN", ...).
var iscsiClasses = []string{"ISAN", "IBFT", "ISCSI"}

// maxClass is how much of a DHCP client's class is kept, in bytes.
const maxClass = 64

// isInstalled reports whether the packet certainly comes from an operating system other than our agent's: it has
// something that firmware does not send. isSystem does not suffice, because it takes a packet without any mark for a
// system's, and a machine is turned off because of this answer.
func (q request) isInstalled() bool {
	m := q.packet
	if !q.isSystem() || m.Options.Has(dhcpv4.OptionClientSystemArchitectureType) ||
		m.Options.Has(dhcpv4.OptionClientNetworkInterfaceIdentifier) ||
		m.Options.Has(optUUID) || m.Options.Has(optEtherboot) {
		return false
	}
	class := m.ClassIdentifier()
	upper := strings.ToUpper(class)
	if slices.ContainsFunc(iscsiClasses, func(s string) bool { return strings.Contains(upper, s) }) {
		return false
	}
	return class != "" || m.Options.Has(dhcpv4.OptionHostName) || m.Options.Has(dhcpv4.OptionFQDN) ||
		slices.ContainsFunc(m.ParameterRequestList(),
			func(c dhcpv4.OptionCode) bool { return !slices.Contains(firmwareAsks, c.Code()) })
}

// expectsAgent reports whether a machine of n that starts is to boot the agent, and nothing else was seen on it so far.
func (s *Server) expectsAgent(n *node.Node) bool {
	return n != nil && n.Job != nil && n.Boot.WindowOpen(s.now()) && n.Boot.EnrolledAt.IsZero() && n.Boot.System == nil
}

// errSeen means that a boot is over meanwhile, or that its record has a system already.
var errSeen = errors.New("nothing to record")

// noteInstalled records in the boot of n, once, that an installed system requests an address although the agent is to
// boot. The engine decides what follows. Once the agent's kernel has been fetched, the request may come from it (kernel
// parameter ip=), so that only a mark is written.
func (s *Server) noteInstalled(ctx context.Context, q request, n *node.Node) {
	if !s.expectsAgent(n) || !q.isInstalled() || !s.installed.take(q.mac, s.now()) {
		return
	}
	ctx = context.WithoutCancel(ctx)
	seen := node.SystemSeen{At: s.now().UTC().Truncate(time.Microsecond), MAC: q.mac,
		Class: clean.Line(q.packet.ClassIdentifier(), maxClass)}
	detail := strings.TrimSpace(seen.MAC + " " + seen.Class)
	fetched, err := s.kernelFetched(ctx, n)
	if err != nil {
		s.log.Error("look up how far the agent's boot is", "node", n.UUID, "err", err)
		return
	}
	if fetched {
		s.mark(ctx, n, node.MarkSystem, detail+", after the kernel was fetched")
		return
	}
	_, err = s.store.Change(ctx, n.UUID, func(now *node.Node, effects *node.SideEffects) error {
		if !s.expectsAgent(now) || now.Boot.Generation != n.Boot.Generation {
			return errSeen
		}
		now.Boot.System = &seen
		effects.Marks = append(effects.Marks,
			node.Mark{JobID: now.Job.ID, Name: node.MarkSystem, At: seen.At, Detail: detail})
		effects.History = append(effects.History,
			node.HistoryEntry{At: seen.At, Type: "boot", Severity: "WARNING", Conductor: s.cfg.Hostname,
				Event: "the installed system started instead of the agent: " + seen.String()})
		return nil
	})
	switch {
	case errors.Is(err, errSeen):
	case err != nil:
		s.log.Error("record that the installed system started instead of the agent", "node", n.UUID, "err", err)
	default:
		s.log.Warn("the installed system started instead of the agent", "node", n.UUID, "mac", seen.MAC, "class",
			seen.Class)
		if s.cfg.SystemStarted != nil {
			s.cfg.SystemStarted(ctx, n.UUID)
		}
	}
}

// kernelFetched reports whether the machine has fetched the agent's kernel, or more, in the current boot. Another job
// may have begun that boot.
func (s *Server) kernelFetched(ctx context.Context, n *node.Node) (bool, error) {
	for _, job := range []string{n.Job.ID, n.Job.Adopted} {
		if job == "" {
			continue
		}
		marks, err := s.store.Marks(ctx, n.UUID, job)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(marks, func(m node.Mark) bool {
			return (m.Name == node.MarkKernel || m.Name == node.MarkRamdisk) &&
				!m.At.Before(n.Boot.OpenedAt.Truncate(time.Microsecond))
		}) {
			return true, nil
		}
	}
	return false, nil
}
