package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/glance"
	"github.com/ingot-metal/ingot/conductor/store"
)

// imageService returns OpenStack's, where Ingot is the user that it is to Keystone; nil when the configuration names
// none. Agents get the images at an address of network boot.
func imageService(cfg config.Config, k *access.Keystone, ca *agents.CA, at netip.Addr, st *store.Store,
	log *slog.Logger) (*glance.Service, error) {
	if cfg.Glance.URL == "" {
		return nil, nil
	}
	key, err := ca.GlanceKey()
	if err != nil {
		return nil, err
	}
	s, err := glance.New(glance.Config{
		URL: cfg.Glance.URL, CAFile: cfg.Glance.CAFile, Login: k.OwnToken, Forget: k.Forget,
		Base: "http://" + netip.AddrPortFrom(at, uint16(cfg.Netboot.HTTPPort)).String(), Key: key, Node: st.Node,
		NotFound: func(err error) bool { return errors.Is(err, store.ErrNotFound) },
	}, log)
	if err != nil {
		return nil, fmt.Errorf("glance: %w", err)
	}
	return s, nil
}
