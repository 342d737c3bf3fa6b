package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ingot-metal/ingot/conductor/engine/catalog"
)

// manifest holds the facts that the conductor needs about the ramdisk: the steps of its agent.
type manifest struct {
	Steps       catalog.Table `json:"steps"`
	StepsDigest string        `json:"steps_digest"`
}

// readManifest reads the ramdisk's manifest in dir; nil without a ramdisk, as on a conductor that boots no machines.
func readManifest(dir string) (*manifest, error) {
	b, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the ramdisk's manifest: %w", err)
	}
	var m manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("read the ramdisk's manifest in %s: %w; build the ramdisk again (ingot ramdisk build)",
			dir, err)
	}
	m.Steps.Complete()
	return &m, nil
}
