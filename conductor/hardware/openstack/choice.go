package openstack

import (
	"strings"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

// Keys of a server's metadata. Nova keeps there what a controller would keep of its machine, for whichever conductor
// asks next.
const (
	choiceKey = "ingot:boot"
	patchKey  = "libvirt:pxe-first" // as openstack-virtual-baremetal and sushy-tools have it
)

// choice is the boot device that was chosen for a server.
type choice struct {
	device     power.Device // pxe, disk, or none
	persistent bool
	mode       string // as it was asked for; the firmware of a server is that of its image
	// begun says that the way to boot from the network has been gone for this choice: Nova was asked to rescue the
	// server, or has written iPXE onto its disk.
	begun bool
}

const (
	wordPersistent = "persistent"
	wordBegun      = "begun"
)

// readChoice reads metadata; what is not a choice is none.
func readChoice(metadata map[string]string) choice {
	c := choice{device: power.BootNone}
	for i, word := range strings.Split(metadata[choiceKey], ",") {
		switch {
		case i == 0 && (word == string(power.BootPXE) || word == string(power.BootDisk)):
			c.device = power.Device(word)
		case word == wordPersistent:
			c.persistent = true
		case word == wordBegun:
			c.begun = true
		case word == "bios" || word == "uefi":
			c.mode = word
		}
	}
	if c.device == power.BootNone {
		c.persistent, c.begun = false, false
	}
	return c
}

// text is the choice as metadata.
func (c choice) text() string {
	words := []string{string(c.device)}
	if c.persistent {
		words = append(words, wordPersistent)
	}
	if c.begun {
		words = append(words, wordBegun)
	}
	if c.mode != "" {
		words = append(words, c.mode)
	}
	return strings.Join(words, ",")
}

// network reports whether the next start is from the network.
func (c choice) network() bool { return c.device == power.BootPXE }

// used is the choice after the server has been started by it.
func (c choice) used() choice {
	c.begun = false
	if !c.persistent {
		c.device = power.BootNone
	}
	return c
}

// metadata are those that are written for a choice.
func (c choice) metadata(way string) map[string]string {
	m := map[string]string{choiceKey: c.text()}
	if way == ByMetadata {
		m[patchKey] = ""
		if c.network() {
			m[patchKey] = "1"
		}
	}
	return m
}
