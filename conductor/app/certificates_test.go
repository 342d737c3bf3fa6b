package app

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/config"
)

// TestEndsOfCertificatesAreLogged: thirty days before, not earlier; and the API has them always.
func TestEndsOfCertificatesAreLogged(t *testing.T) {
	cfg := config.Default()
	cfg.DataDir = t.TempDir()
	ca, err := agents.OpenCA(cfg.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := certificates(cfg)(); err != nil || len(list) != 1 ||
		list[0].NotAfter != ca.Ends().UTC().Format(time.RFC3339) {
		t.Errorf("certificates = %+v, %v", list, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for before, lines := range map[time.Duration]int{31 * 24 * time.Hour: 0, 29 * 24 * time.Hour: 1, -time.Hour: 1} {
		var log bytes.Buffer
		watchCertificates(ctx, cfg, slog.New(slog.NewTextHandler(&log, nil)),
			func() time.Time { return ca.Ends().Add(-before) })
		if n := strings.Count(log.String(), "ingotd ca rotate"); n != lines {
			t.Errorf("%v before its end: %d lines, want %d:\n%s", before, n, lines, log.String())
		}
	}
}
