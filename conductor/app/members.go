package app

import (
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/member"
)

// about describes this conductor to the others. reach is where agents reach it.
func about(cfg config.Config, types *driver.Table, reach string) member.About {
	return member.About{Agents: reach, Group: cfg.ConductorGroup, Types: types.Names(),
		Weight: float64(cfg.ConductorWeight)}
}
