// Package mdns announces the conductor by multicast DNS, as Ironic announces its API: the service
// baremetal._openstack._tcp, with the path and protocol of the API in its text and the address for Ingot's agents.
package mdns

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/url"
	"strconv"

	"github.com/hashicorp/mdns"
)

// Config is the configuration of a Server.
type Config struct {
	// Interface of the network to announce in; "" is the one that the kernel takes for groups.
	Interface string
	// Hostname is the conductor's name; Addresses are where its API is reached.
	Hostname  string
	Addresses []net.IP
	// API is the address of the API, Agents (IP:PORT) that of the listener for agents.
	API    *url.URL
	Agents string
}

// Start answers questions until the returned function is called.
func Start(c Config) (stop func() error, err error) {
	port, err := strconv.Atoi(c.API.Port())
	if err != nil {
		port = map[string]int{"http": 80, "https": 443}[c.API.Scheme]
	}
	// The name of the host is that of this segment: answers have its addresses.
	zone, err := mdns.NewMDNSService("baremetal", "_openstack._tcp", "local.", c.Hostname+".local.", port, c.Addresses,
		[]string{"protocol=" + c.API.Scheme, "path=" + c.API.Path, "ingot_agents=" + c.Agents})
	if err != nil {
		return nil, fmt.Errorf("announce by multicast DNS: %w", err)
	}
	var ifi *net.Interface
	if c.Interface != "" {
		if ifi, err = net.InterfaceByName(c.Interface); err != nil {
			return nil, fmt.Errorf("announce by multicast DNS on %s: %w", c.Interface, err)
		}
	}
	// It would log each packet that is no question.
	s, err := mdns.NewServer(&mdns.Config{Zone: zone, Iface: ifi, Logger: log.New(io.Discard, "", 0)})
	if err != nil {
		return nil, fmt.Errorf("announce by multicast DNS: %w", err)
	}
	return s.Shutdown, nil
}
