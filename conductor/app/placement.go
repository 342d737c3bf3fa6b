package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"strings"

	"github.com/ingot-metal/ingot/conductor/access"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/guard/oscloud"
	"github.com/ingot-metal/ingot/conductor/observe/events"
	"github.com/ingot-metal/ingot/conductor/placement"
	"github.com/ingot-metal/ingot/conductor/store"
)

// openPlacement returns what reports nodes to Placement until its context ends; it does nothing when the configuration
// names no Placement. key is a public one that only this installation has, for the mark of its providers.
func openPlacement(cfg config.Config, k *access.Keystone, key []byte, st *store.Store, hub *events.Hub,
	log *slog.Logger) (run func(context.Context), err error) {
	o := cfg.Placement
	if o.URL == "" {
		return func(context.Context) {}, nil
	}
	client, err := oscloud.New(oscloud.Config{Name: "Placement", URL: o.URL, CAFile: o.CAFile, Login: k.OwnToken,
		Forget: k.Forget, Header: placement.Header})
	if err != nil {
		return nil, err
	}
	var groups map[string]string
	for _, pair := range o.Aggregates {
		if groups == nil {
			groups = map[string]string{}
		}
		group, id, _ := strings.Cut(pair, "=") // the configuration was checked
		groups[group] = strings.ToLower(id)
	}
	mark := sha256.Sum256(key)
	return placement.New(st, hub, placement.Config{Client: client, Hostname: cfg.Name(),
		Mark: hex.EncodeToString(mark[:8]), Groups: groups, Interval: o.Interval}, log).Run, nil
}
