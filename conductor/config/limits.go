package config

import (
	"fmt"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// Limits bound what can be asked of ingotd at one time. What is beyond them is closed, or answered with 503 and
// Retry-After; each is in docs/explanation/security.md with the limits that can't be set.
type Limits struct {
	// APIConnections is how many connections to the REST API may be open, APIConnectionsPerAddress how many from one
	// address. The proxies in api.trusted_proxies are not limited by themselves.
	APIConnections           int `yaml:"api_connections"`
	APIConnectionsPerAddress int `yaml:"api_connections_per_address"`
	// AgentConnections is for the listener of agents: each agent has one connection, and a second while it connects
	// again.
	AgentConnections           int `yaml:"agent_connections"`
	AgentConnectionsPerAddress int `yaml:"agent_connections_per_address"`
	// BootConnections is for the HTTP server of the provisioning network: an agent reads an image over up to 16
	// connections.
	BootConnections           int `yaml:"boot_connections"`
	BootConnectionsPerAddress int `yaml:"boot_connections_per_address"`
	// BodyBytes is how many bytes the bodies of all requests to the API may take in memory at one time;
	// BodyBytesAuthenticated is the part of it that only authenticated callers get.
	BodyBytes              int `yaml:"body_bytes"`
	BodyBytesAuthenticated int `yaml:"body_bytes_authenticated"`
}

func defaultLimits() Limits {
	return Limits{
		APIConnections: 4096, APIConnectionsPerAddress: 1024, AgentConnections: 16384, AgentConnectionsPerAddress: 256,
		BootConnections: 4096, BootConnectionsPerAddress: 128, BodyBytes: 256 << 20, BodyBytesAuthenticated: 224 << 20,
	}
}

// API gives the limits of the REST API's listener.
func (l Limits) API() limit.Connections {
	return limit.Connections{Total: l.APIConnections, PerAddress: l.APIConnectionsPerAddress}
}

// Agents gives the limits of the agents' listener.
func (l Limits) Agents() limit.Connections {
	return limit.Connections{Total: l.AgentConnections, PerAddress: l.AgentConnectionsPerAddress}
}

// Boot gives the limits of the HTTP server of the provisioning network.
func (l Limits) Boot() limit.Connections {
	return limit.Connections{Total: l.BootConnections, PerAddress: l.BootConnectionsPerAddress}
}

func (l Limits) validate() (faults []error) {
	// Less than this, and a fleet's clients shut each other out.
	const leastConnections, leastBody = 16, 128 << 20
	for key, n := range map[string]int{"api_connections": l.APIConnections,
		"api_connections_per_address": l.APIConnectionsPerAddress, "agent_connections": l.AgentConnections,
		"agent_connections_per_address": l.AgentConnectionsPerAddress, "boot_connections": l.BootConnections,
		"boot_connections_per_address": l.BootConnectionsPerAddress} {
		if n < leastConnections {
			faults = append(faults, fmt.Errorf("limits.%s: %d is less than %d", key, n, leastConnections))
		}
	}
	if l.BodyBytesAuthenticated < leastBody {
		faults = append(faults,
			fmt.Errorf("limits.body_bytes_authenticated: %d is less than %d, which one request with a config drive can take", l.BodyBytesAuthenticated, leastBody))
	}
	if least := l.BodyBytesAuthenticated + 4<<20; l.BodyBytes < least {
		faults = append(faults,
			fmt.Errorf("limits.body_bytes: %d is less than %d, 4 MiB above limits.body_bytes_authenticated",
				l.BodyBytes, least))
	}
	return faults
}
