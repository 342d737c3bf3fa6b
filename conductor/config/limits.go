package config

import (
	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// Limits bound the concurrent load of ingotd. Connections and requests beyond them are closed, or answered with 503 and
// Retry-After; docs/reference/limits.md has them with the limits that can't be set.
type Limits struct {
	APIConnections             int `yaml:"api_connections"`
	APIConnectionsPerAddress   int `yaml:"api_connections_per_address"`
	AgentConnections           int `yaml:"agent_connections"`
	AgentConnectionsPerAddress int `yaml:"agent_connections_per_address"`
	BootConnections            int `yaml:"boot_connections"`
	BootConnectionsPerAddress  int `yaml:"boot_connections_per_address"`
	BodyBytes                  int `yaml:"body_bytes"`
	BodyBytesAuthenticated     int `yaml:"body_bytes_authenticated"`
}

// API returns the limits of the REST API's listener.
func (l Limits) API() limit.Connections {
	return limit.Connections{Total: l.APIConnections, PerAddress: l.APIConnectionsPerAddress}
}

// Agents returns the limits of the agents' listener.
func (l Limits) Agents() limit.Connections {
	return limit.Connections{Total: l.AgentConnections, PerAddress: l.AgentConnectionsPerAddress}
}

// Boot returns the limits of the HTTP server of the provisioning network.
func (l Limits) Boot() limit.Connections {
	return limit.Connections{Total: l.BootConnections, PerAddress: l.BootConnectionsPerAddress}
}
