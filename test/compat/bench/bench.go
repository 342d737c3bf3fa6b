// Package bench runs a conductor inside a test: real store, engine and API with machines that exist only in memory.
package bench

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/ingot-metal/ingot/conductor/api"
	"github.com/ingot-metal/ingot/conductor/engine"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/power/fake"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/observe/events"
	"github.com/ingot-metal/ingot/conductor/observe/progress"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/store"
)

// Conductor is one that runs.
type Conductor struct {
	URL    string
	Store  *store.Store
	Engine *engine.Engine
}

// machines opens fake machines for nodes of every type.
type machines struct{ fake.Machines }

func (m *machines) Open(n *node.Node) (power.Driver, error) {
	info := power.Info{"fake_id": n.UUID}
	if d, ok := n.DriverInfo["fake_delay"]; ok {
		info["fake_delay"] = d
	}
	return m.Machines.Open(info, nil)
}

func (m *machines) Interface(n *node.Node, kind string) string { return driver.Interfaces(n)[kind] }

// Start runs a conductor until the test ends. wrap, if not nil, stands between clients and its API.
func Start(t testing.TB, wrap func(http.Handler) http.Handler) *Conductor {
	t.Helper()
	level := slog.LevelError
	if testing.Verbose() {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	en := engine.New(st, &machines{}, nil, nil, engine.Config{Hostname: "bench", AutomatedClean: true}, log)
	hub := events.New(st)
	hub.Start(st.Announce(hub.Publish))
	srv, err := api.New(st, en,
		api.Config{Hostname: "bench", Warmth: en, Events: hub,
			Progress: progress.New(progress.Source{Local: en.Progresses}),
			Logs:     func(string, uint64) []rest.LogLine { return nil }}, log)
	if err != nil {
		t.Fatal(err)
	}
	var h http.Handler = srv
	if wrap != nil {
		h = wrap(h)
	}
	web := httptest.NewServer(h)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- en.Run(ctx) }()
	t.Cleanup(func() {
		hub.Close()
		web.Close()
		stop()
		if err := <-done; err != nil {
			t.Errorf("engine: %v", err)
		}
		if err := st.Close(); err != nil {
			t.Errorf("store: %v", err)
		}
	})
	return &Conductor{URL: web.URL, Store: st, Engine: en}
}
