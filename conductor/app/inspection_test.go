package app

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/inspect/hook"
)

// TestInspectionSettings: the configuration's defaults are the engine's, and what can't be used is told at the start.
func TestInspectionSettings(t *testing.T) {
	got, err := inspection(config.Default())
	want := hook.Default()
	if err != nil || !reflect.DeepEqual(got.Hooks, want) || got.Mask != "always" || len(got.BuiltIn) != 0 {
		t.Errorf("by default: %+v (%v), want %+v", got, err, want)
	}
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(rules, []byte("[{uuid: mine, actions: [{op: frobnicate}]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*config.Config){
		`rule 1 (mine): unsupported action operator "frobnicate"`: func(c *config.Config) {
			c.Inspection.RulesFile = rules
		},
		"inspection.rules_file: open": func(c *config.Config) {
			c.Inspection.RulesFile = rules + "x"
		},
		`there is no hook "frobnicate"`: func(c *config.Config) {
			c.Inspection.Hooks = []string{"frobnicate"}
		},
	} {
		c := config.Default()
		change(&c)
		if _, err := inspection(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("inspection = %v, want %s", err, want)
		}
	}
	types, err := hardwareTypes(config.Default())
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	if d, err := discovery(c, types); d != nil || err != nil {
		t.Errorf("discovery by default = %v, %v", d, err)
	}
	c.Discovery.Enabled = true
	if d, err := discovery(c, types); err != nil || d.Driver != "ipmi" || d.LimitPerHour != 60 {
		t.Errorf("discovery = %+v, %v", d, err)
	}
	c.Discovery.Interfaces = []string{"network=frobnicate"}
	if _, err := discovery(c, types); err == nil || !strings.Contains(err.Error(), "discovery.interfaces") {
		t.Errorf("discovery = %v", err)
	}
	c.Discovery.Driver = "frobnicate"
	if _, err := discovery(c, types); err == nil || !strings.Contains(err.Error(), "discovery.driver") {
		t.Errorf("discovery = %v", err)
	}
}
