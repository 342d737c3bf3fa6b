package ipa

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/agent/ipa/ironic"
	"github.com/ingot-metal/ingot/agent/ipa/steps"
	"github.com/ingot-metal/ingot/agent/step"
)

// tries is how often an inventory is handed in before the agent goes on without an inspection.
const tries = 5

// inspect takes the inventory and hands it in, if the boot parameters ask for it. It returns the node's UUID, if the
// answer has it. That the inventory is refused is no error: the lookup decides.
func (a *Agent) inspect(ctx context.Context) (string, error) {
	urls := a.o.Config.Callbacks
	if len(urls) == 0 || a.state.Node != "" {
		return "", nil
	}
	if urls[0] == MulticastDNS {
		at, err := a.find(ctx, "baremetal-introspection")
		if err != nil {
			return "", err
		}
		urls = []string{strings.TrimRight(at, "/") + "/v1/continue"}
	}
	a.o.Status("taking the inventory")
	if err := a.o.System.Settle(ctx); err != nil {
		a.log.Warn("devices may be missing in the inventory", "err", err)
	}
	body, err := a.report(ctx)
	if err != nil {
		return "", err
	}
	client := ironic.New(ironic.Options{RequestID: a.o.Config.RequestID, Roots: a.o.Roots,
		Insecure: a.o.Config.Insecure, TLSMin: tlsVersions[a.o.Config.TLSMin]})
	for n := range tries {
		uuid, err := client.ContinueInspection(ctx, urls, body)
		switch {
		case err == nil:
			a.log.Info("inventory handed in", "node", uuid)
			return uuid, nil
		case ctx.Err() != nil:
			return "", err
		case !ironic.Passing(err):
			a.log.Error("the inventory was refused, going on with the lookup", "err", err)
			a.o.Status("the inventory was refused: %v", err)
			return "", nil
		}
		a.log.Warn("the inventory could not be handed in", "err", err)
		a.o.Status("the inventory could not be handed in: %v", err)
		if n == tries-1 {
			return "", fmt.Errorf("hand in the inventory: %w", err)
		}
		pause := min(time.Duration(5)<<n, 30) * a.o.Patience
		if err := step.Sleep(ctx, pause); err != nil {
			return "", err
		}
	}
	return "", nil
}

// report is the body of an inspection: what the step inspect found, and what Ironic's agent says beside it.
func (a *Agent) report(ctx context.Context) (map[string]any, error) {
	body := map[string]any{"error": nil}
	collectors := a.o.Config.Collectors
	if len(collectors) == 0 {
		collectors = []string{"default", "logs"}
	}
	results, err := a.runner.Run(ctx, step.Inspect, a.state.Node,
		step.Planned{Interface: "inspect", Name: "inspect", Args: json.RawMessage("{}")})
	if err != nil {
		// It is handed in all the same: the conductor fails the inspection with this text.
		body["error"] = steps.Text(err)
	} else if err := json.Unmarshal(results[0], &body); err != nil {
		return nil, fmt.Errorf("read the result of the inspection: %w", err)
	}
	body["configuration"] = map[string]any{"collectors": collectors,
		"managers": []map[string]string{{"name": steps.Manager, "version": a.o.Version}}}
	if slices.Contains(collectors, "logs") && a.o.Logs != nil {
		if b, err := a.o.Logs(); err == nil {
			body["logs"] = base64.StdEncoding.EncodeToString(b)
		}
	}
	return body, nil
}
