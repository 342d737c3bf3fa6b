package config

import (
	"fmt"
	"time"

	"github.com/ingot-metal/ingot/conductor/config/rule"
)

// Glance is OpenStack's image service.
type Glance struct {
	URL       string `yaml:"url"`
	CAFile    string `yaml:"ca_file"`
	Container string `yaml:"swift_container"`
	KeyFile   string `yaml:"swift_key_file"`
}

// Neutron is OpenStack's network service. The names of networks and security groups are those of Ironic's section.
type Neutron struct {
	URL         string        `yaml:"url"`
	CAFile      string        `yaml:"ca_file"`
	RepairEvery time.Duration `yaml:"repair_interval"`
	DHCPOptions bool          `yaml:"dhcp_options"`

	ProvisioningNetwork string   `yaml:"provisioning_network"`
	ProvisioningGroups  []string `yaml:"provisioning_network_security_groups"`
	CleaningNetwork     string   `yaml:"cleaning_network"`
	CleaningGroups      []string `yaml:"cleaning_network_security_groups"`
	InspectionNetwork   string   `yaml:"inspection_network"`
	InspectionGroups    []string `yaml:"inspection_network_security_groups"`
	RescuingNetwork     string   `yaml:"rescuing_network"`
	RescuingGroups      []string `yaml:"rescuing_network_security_groups"`
}

// OpenStack is about machines that are servers of OpenStack clouds.
type OpenStack struct {
	CloudsFile string `yaml:"clouds_file"`
}

// Placement is OpenStack's count of machines, for schedulers other than Nova.
type Placement struct {
	URL        string        `yaml:"url"`
	CAFile     string        `yaml:"ca_file"`
	Interval   time.Duration `yaml:"interval"`
	Aggregates []string      `yaml:"aggregates"`
}

func openstackSettings(g *Glance, n *Neutron, p *Placement, o *OpenStack) []setting {
	all := []setting{
		{"glance.url", &g.URL, nil, nil, "Address of Glance, whose images image_source may name, by ID or by name."},
		{"glance.ca_file", &g.CAFile, nil, nil, "Certificates that sign Glance's and Swift's."},
		{"glance.swift_container", &g.Container, nil, nil,
			"URL of the container in Swift where Glance keeps its images, such as https://swift.example/v1/AUTH_ID/glance. Agents get temporary URLs of it."},
		{"glance.swift_key_file", &g.KeyFile, nil, nil,
			"File with the key that signs them. Empty: the account's own, if Ingot's user may read it."},
		{"neutron.url", &n.URL, nil, nil,
			"Address of Neutron. With it nodes may have the network interface neutron."},
		{"neutron.ca_file", &n.CAFile, nil, nil, "Certificates that sign Neutron's."},
		{"neutron.repair_interval", &n.RepairEvery, 5 * time.Minute, positive{},
			"Time between two searches for ports in Neutron that were left over; the first is at the start."},
		{"neutron.dhcp_options", &n.DHCPOptions, nil, nil,
			"Neutron's DHCP serves the networks of ramdisks: give it the options by which machines boot from here."},
	}
	for _, p := range []struct {
		name, when string
		network    *string
		groups     *[]string
	}{
		{"provisioning", "during a deployment", &n.ProvisioningNetwork, &n.ProvisioningGroups},
		{"cleaning", "while it is cleaned", &n.CleaningNetwork, &n.CleaningGroups},
		{"inspection", "while it is inspected", &n.InspectionNetwork, &n.InspectionGroups},
		{"rescuing", "while it is in rescue", &n.RescuingNetwork, &n.RescuingGroups},
	} {
		key := p.name + "_network"
		all = append(all,
			setting{"neutron." + key, p.network, nil, nil, "Network, by ID or name, that a machine is in " + p.when +
				". The key " + key + " in a node's driver_info takes precedence."},
			setting{"neutron." + key + "_security_groups", p.groups, nil, nil,
				"Security groups of the machine's ports there. Also in driver_info."})
	}
	return append(all,
		setting{"placement.url", &p.URL, nil, nil,
			"Address of Placement, to which nodes with a resource class are reported. Not where Nova's Ironic driver reports them."},
		setting{"placement.ca_file", &p.CAFile, nil, nil, "Certificates that sign Placement's."},
		setting{"placement.interval", &p.Interval, time.Minute, positive{},
			"Time between two comparisons without a reported change."},
		setting{"placement.aggregates", &p.Aggregates, nil, rule.UUIDs{},
			"Aggregates of the nodes of conductor groups. Empty: aggregates are left as they are."},
		setting{"openstack.clouds_file", &o.CloudsFile, nil, nil,
			"File of clouds, as OpenStack's client reads it, for nodes of hardware type openstack: driver_info names the cloud. All who may change driver_info can use each cloud in it. With secure.yaml beside it; read at each login."})
}

// checkOpenStack looks at the services that are asked with a token of Keystone's.
func (c Config) checkOpenStack() (checks []check) {
	for _, s := range []struct{ key, url, name string }{
		{"glance.url", c.Glance.URL, "glance.example:9292"},
		{"neutron.url", c.Neutron.URL, "neutron.example:9696"},
		{"placement.url", c.Placement.URL, "placement.example:8778"},
	} {
		checks = append(checks,
			check{s.url != "" && !isAddress(s.url), s.key,
				fmt.Sprintf("%q is not an address such as https://%s", s.url, s.name)},
			check{s.url != "" && c.API.Auth != "keystone", s.key,
				"needs api.auth keystone: the service wants a token of Keystone's"})
	}
	checks = append(checks,
		check{c.Glance.Container != "" && c.Glance.URL == "", "glance.swift_container", "needs glance.url"},
		check{c.Glance.KeyFile != "" && c.Glance.Container == "", "glance.swift_key_file",
			"needs glance.swift_container"})
	return append(checks, check{c.Neutron.DHCPOptions && (c.Netboot.DHCP != "off" || c.Netboot.Address == "" &&
		c.Netboot.Interface == ""), "neutron.dhcp_options",
		"needs netboot.dhcp off, for Neutron's server answers, and netboot.address, where machines find what to boot"})
}
