package arch

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rooms says which top-level folders the packages of one may import, in addition to the table of packages. `proto` is
// shared by agent and conductor, `images` is shared by all for data: neither knows its users.
var rooms = map[string][]string{
	"proto":     {"images"}, // the config drive is an ISO 9660 image
	"images":    {"initramfs"},
	"initramfs": {},
	"agent":     {"proto", "images", "initramfs"},
	"conductor": {"proto", "images"},
	"tools":     {"proto", "images", "initramfs", "conductor", "agent"}, // the agent: simulated machines alone
}

func TestRooms(t *testing.T) {
	for _, p := range list(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		room, _, _ := strings.Cut(name, "/")
		if room == "test" {
			continue
		}
		allowed, ok := rooms[room]
		if !ok {
			t.Errorf("%s is in a room that test/arch does not know", name)
		}
		for _, i := range p.Imports {
			if ours, ok := strings.CutPrefix(i, module); ok {
				if to, _, _ := strings.Cut(ours, "/"); to != room && !slices.Contains(allowed, to) {
					t.Errorf("%s imports %s: packages of %s must not know those of %s", name, ours, room, to)
				}
			}
		}
	}
}

// Lines of Go from which on a package needs a reason; tests and generated code are not counted.
const largest = 1500

// large lists packages that are larger, and why they are one package.
var large = map[string]string{
	"agent":                "the table of steps, session, plan and their state share one lock",
	"agent/boot/bootentry": "three boot loaders' configurations and UEFI's entries, one grammar each",
	"agent/burnin":         "four kinds of strain with one way to measure and report",
	"agent/disk":           "list, choose, partition and commit work on one view of a disk",
	"agent/disk/erase":     "one file per way to erase, and the order in which they are tried",
	"agent/disk/raid":      "create, delete and read back of one format",
	"agent/fetch":          "one stream: mirrors, ranges, resumption and read-ahead know each other's state",
	"agent/image/chunked":  "a plan's stages share its memory and its queues",
	"agent/image/swarm":    "both ends of one protocol",
	"agent/inventory":      "one probe per part of the inventory",
	"agent/machine/fake": "disks, ATA, NVMe, SCSI and Opal drives that behave: they share what a disk holds and what a" +
		" power cut does to it",
	"agent/machine/netup":    "DHCPv4, router advertisements, given addresses, bonds and VLANs of one set of links",
	"agent/machine/linux":    "access to the kernel, one file for each part of it",
	"agent/machine/passthru": "commands of ATA, NVMe, SCSI and Opal; one file each",
	"tools/lab/bmc/redfish":  "one service: tree, sessions, accounts, who behaves how; machine parts have packages",
	"conductor/access":       "three ways to log in and the one table of rules that they lead to",
	"conductor/agents":       "the server side of the contract: one session with all that may come through it",
	"conductor/api":          "one file per group of routes; what several need is in packages below",
	"conductor/app":          "the wiring: it alone knows all parts",
	"conductor/config":       "one table of all settings with their checks; what a rule is has a package",
	"conductor/engine":       "the loop and the verbs; what needs nothing of it is in packages below",
	"conductor/hardware/redfish": "one file per interface of the hardware type; what needs no driver is in packages" +
		" below",
	"conductor/inspect":         "rules of inspection: their language and their effects",
	"conductor/netboot":         "one answer to a booting machine, for DHCP, TFTP, HTTP and router advertisements",
	"conductor/node":            "node, states and transitions: one vocabulary, which everything imports",
	"conductor/rest":            "the shapes of all resources with their versions, one file each",
	"conductor/store":           "one transaction spans several kinds of objects; one file per kind",
	"conductor/store/storetest": "one suite of everything that each database must hold, one file per kind",
	"images":                    "detection and one decoder for each compression behind one function, Open",
	"images/fs/ext4":            "reads hostile file systems and writes ours by one set of structures",
	"images/qcow2":              "the format's tables and their checks, versions 2 and 3",
	"tools/cli":                 "one command line: a file for each group of commands",
	"tools/lab/fleet":           "one machine's boots, steps and faults, and who takes its node through its states",
	"tools/lab":                 "machines, wires, consoles and their one daemon",
}

func TestPackageSize(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range list(t, "./...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(name, "test/") {
			continue
		}
		lines := 0
		for _, f := range p.GoFiles {
			b, err := os.ReadFile(filepath.Join(p.Dir, f))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(b, []byte("// Code generated ")) {
				lines += bytes.Count(b, []byte("\n"))
			}
		}
		seen[name] = true
		switch why := large[name]; {
		case lines > largest && why == "":
			t.Errorf("%s has %d lines, more than %d: split it, or give the reason in test/arch", name, lines, largest)
		case lines <= largest && why != "":
			t.Errorf("%s has %d lines: it needs no reason in test/arch any more", name, lines)
		}
	}
	for name := range large {
		if !seen[name] {
			t.Errorf("test/arch has a reason for the size of %s, which does not exist", name)
		}
	}
}
