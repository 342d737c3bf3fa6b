package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// unfenced are changes of the source by which a conductor that was replaced does not notice, and goes on with the nodes
// that it had.
var unfenced = map[string][][2]string{
	"conductor/store/postgres/hold.go": {
		{`h.Name != "" && left <= 0`, `false && left <= 0`},
		{"if tag.RowsAffected() != 1 {", "if tag.RowsAffected() > 1 {"},
		{"if err == nil && !lives {", "if err == nil && lives && !lives {"},
		{"FROM conductors WHERE epoch = %d AND state <> '` +\n\tGone + `'`", "FROM (SELECT %d) AS anybody`"},
	},
	"conductor/engine/own.go": {
		{"if owner = n.Conductor; owner != e.cfg.Hostname {", "if false {"},
		{"if n.Fence != fence {", "if n.Fence != fence && fence == 0 {"},
	},
	"conductor/engine/conductors.go": {
		{"{ return e.ownerOf(n) == e.cfg.Hostname }",
			"{ _, had := e.fence(n.UUID); return had || e.ownerOf(n) == e.cfg.Hostname }"},
	},
}

// plant builds an ingotd whose fencing is off, into dir. The checks of a run have to find that out.
func plant(ctx context.Context, dir string) (bin string, err error) {
	replace := map[string]string{}
	for file, changes := range unfenced {
		name, err := filepath.Abs(file)
		if err != nil {
			return "", err
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("a planted fault is built from the source: %w", err)
		}
		text := string(b)
		for _, c := range changes {
			if strings.Count(text, c[0]) != 1 {
				return "", fmt.Errorf("%s has not one place with %q", name, c[0])
			}
			text = strings.Replace(text, c[0], c[1], 1)
		}
		replace[name] = filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(replace[name], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	overlay := filepath.Join(dir, "overlay.json")
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		return "", err
	}
	bin = filepath.Join(dir, "ingotd-unfenced")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-overlay", overlay, "-o", bin,
		"./conductor/cmd/ingotd")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build with fencing off: %w: %s", err, out)
	}
	return bin, nil
}
