package record

import (
	"slices"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
)

// bootStages are the marks of a boot that gets on. A machine that goes round in circles makes the same ones again,
// which is no progress.
var bootStages = []string{node.MarkMediaRead, node.MarkDHCP, node.MarkBootProgram, node.MarkBootScript,
	node.MarkKernel, node.MarkRamdisk}

// Progress is when a boot first got as far as it is, by the marks of its job, oldest first.
func Progress(b *node.Boot, marks []node.Mark) time.Time {
	last, seen := b.OpenedAt, map[string]bool{}
	for _, m := range marks { // oldest first
		if m.At.Before(b.OpenedAt.Truncate(time.Microsecond)) || seen[m.Name] || !slices.Contains(bootStages, m.Name) {
			continue
		}
		seen[m.Name] = true
		if m.At.After(last) {
			last = m.At
		}
	}
	if b.EnrolledAt.After(last) {
		last = b.EnrolledAt
	}
	return last
}

// HowFar says how far a machine came that did not bring up its agent in time, and what that hints at; heard is false
// when that is nothing at all. dhcp is netboot.dhcp, "" where this conductor boots no machines: each mode sees
// something else.
func HowFar(b *node.Boot, marks []node.Mark, dhcp string) (far string, heard bool) {
	seen := map[string]node.Mark{}
	for _, m := range marks {
		if !m.At.Before(b.OpenedAt.Truncate(time.Microsecond)) {
			seen[m.Name] = m
		}
	}
	at := func(name string) string { return "at " + seen[name].At.Format("15:04:05") }
	has := func(name string) bool { _, ok := seen[name]; return ok }
	switch {
	case !b.EnrolledAt.IsZero():
		return "it enrolled at " + b.EnrolledAt.Format("15:04:05") +
			" but opened no session: look at the machine's console and at the port of the agents' service", true
	case has(node.MarkEnrolRefused):
		return "its enrolment was refused " + at(node.MarkEnrolRefused) + " (" + seen[node.MarkEnrolRefused].Detail +
			"): see the node's history", true
	case b.Media && has(node.MarkMediaRead) && !has(node.MarkRamdisk):
		return "last seen: boot image read by the controller " + at(node.MarkMediaRead) +
			", but not all of the ramdisk: look at the machine's console for whether it boots from the virtual drive (boot mode, Secure Boot)", true
	case b.Media && !has(node.MarkMediaRead):
		return "the controller has read nothing of the boot image: check that the conductor's HTTP server (netboot.external_http_url) is reachable from it", false
	case has(node.MarkRamdisk), has(node.MarkKernel):
		last := node.MarkRamdisk
		if !has(last) {
			last = node.MarkKernel
		}
		return "last seen: " + last + " " + at(last) +
			": look at the machine's console for what the kernel or the agent says (too little memory, no driver for its network card?)", true
	case has(node.MarkBootScript):
		return "last seen: boot script fetched " + at(node.MarkBootScript) +
			", but no kernel: check that the HTTP port is reachable from the machine", true
	case has(node.MarkBootProgram):
		second := "DHCP for iPXE"
		if dhcp == "off" {
			second = "the file that your DHCP server makes iPXE load"
		}
		return "last seen: boot program fetched " + at(node.MarkBootProgram) + ", but no boot script: check " + second +
			" and the HTTP port, and look at the machine's console", true
	case has(node.MarkDHCP) && dhcp == "proxy":
		return "last seen: DHCP request answered " + at(node.MarkDHCP) +
			", but no fetch of the machine: check that your DHCP server gave it an address in time, that no other boot file comes before this conductor's, and that TFTP and HTTP are reachable from the machine", true
	case has(node.MarkDHCP):
		return "last seen: DHCP request answered " + at(node.MarkDHCP) +
			", but nothing fetched: check that TFTP and HTTP are reachable from the machine", true
	}
	switch dhcp {
	case "server":
		return "no DHCP request of the machine was answered: check its cabling, that it boots from the network, and the addresses of its ports", false
	case "proxy":
		return "no DHCP request of the machine was answered: check its cabling, that it boots from the network, the addresses of its ports, and that its requests reach this conductor as well as your DHCP server", false
	case "off":
		return "nothing was fetched by the machine (its DHCP requests are not seen with netboot.dhcp off): check its cabling, that it boots from the network, and the file that your DHCP server makes it load", false
	}
	return "nothing can be seen here of how far it came, since this conductor has no network boot: look at the machine's console", false
}
