package openstack

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
)

// Ways to boot a server from the network, of which a cloud allows some.
const (
	// ByMetadata sets the metadata libvirt:pxe-first, which a patched Nova reads when it starts a server.
	ByMetadata = "metadata"
	// ByRescue has Nova's rescue boot an image of iPXE beside the server's disks.
	ByRescue = "rescue"
	// ByRebuild writes an image of iPXE over the server's root disk.
	ByRebuild = "rebuild"
)

// Ways are all, in the order in which they are shown.
var Ways = []string{ByMetadata, ByRescue, ByRebuild}

// Properties describes the keys of driver_info.
var Properties = []power.Property{
	{Name: "openstack_cloud", Required: true,
		Description: "name of the cloud in the file openstack.clouds_file, which has its address and credentials."},
	{Name: "openstack_server", Required: true, Description: "UUID of the server in that cloud that is the machine."},
	{Name: "openstack_boot", Required: true,
		Description: "how the server is booted from the network, by what the cloud allows: metadata (libvirt:pxe-first, where Nova is patched), rescue (with openstack_boot_image), or rebuild (writes openstack_boot_image over the root disk)."},
	{Name: "openstack_boot_image",
		Description: "UUID of the image with iPXE, for openstack_boot rescue and rebuild."},
}

// options are what driver_info says.
type options struct {
	cloud, server string
	way, image    string
}

// mostName bounds the name of a cloud.
const mostName = 255

// parse reads driver_info and reports all faults at once.
func parse(info power.Info) (options, error) {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	text := func(key string) string {
		switch v := info[key].(type) {
		case nil:
			return ""
		case string:
			return strings.TrimSpace(v)
		}
		bad("%s is not a text", key)
		return ""
	}
	id := func(key, of string) string {
		v := text(key)
		u, err := uuid.Parse(v)
		if v != "" && (err != nil || len(v) != 36) {
			bad("%s is not the UUID of one of the cloud's %ss: openstack %s list shows them", key, of, of)
			return ""
		}
		if v == "" {
			return ""
		}
		return u.String()
	}
	o := options{cloud: text("openstack_cloud"), server: id("openstack_server", "server"), way: text("openstack_boot"),
		image: id("openstack_boot_image", "image")}
	if o.cloud == "" || len(o.cloud) > mostName {
		bad("openstack_cloud does not name a cloud of the file openstack.clouds_file")
	}
	if info["openstack_server"] == nil {
		bad("openstack_server is missing: the UUID of the server that is the machine")
	}
	switch {
	case !slices.Contains(Ways, o.way):
		bad("openstack_boot is not one of %s: how the cloud boots the server from the network",
			strings.Join(Ways, ", "))
	case o.way != ByMetadata && info["openstack_boot_image"] == nil:
		bad("openstack_boot_image is missing, which openstack_boot %s boots: the UUID of an image with iPXE", o.way)
	case o.way == ByMetadata && o.image != "":
		bad("openstack_boot_image is not for openstack_boot metadata, where the firmware loads iPXE itself")
	}
	return o, errors.Join(errs...)
}
