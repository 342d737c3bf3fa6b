package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingot-metal/ingot/agent/step"
)

// Site is an ingotd for a fleet, all on loopback.
type Site struct {
	Dir    string // gets the configuration, the ramdisk and the data; absolute
	API    string // HOST:PORT
	Agents string // HOST:PORT
	Boot   int    // port of the HTTP server for booting machines, on 127.0.0.1
	// Settings are further keys of the configuration, by section.
	Settings map[string]map[string]any
	// Own are steps that the ramdisk has beside the agent's.
	Own []step.Row
}

// Write writes the configuration of an ingotd, and the ramdisk that it serves, whose kernel and initramfs are a few
// bytes: nothing boots them. It returns the name of the configuration.
func (s Site) Write() (config string, err error) {
	ramdisk := filepath.Join(s.Dir, "ramdisk")
	if err := os.MkdirAll(ramdisk, 0o755); err != nil {
		return "", fmt.Errorf("make folder of the ramdisk: %w", err)
	}
	var errs []error
	file := func(name string) map[string]any {
		text := []byte(strings.Repeat("simulated "+name+"\n", 4)) // the boot program has room for a table
		errs = append(errs, os.WriteFile(filepath.Join(ramdisk, name), text, 0o644))
		sum := sha256.Sum256(text)
		return map[string]any{"file": name, "size": len(text), "sha256": hex.EncodeToString(sum[:])}
	}
	table, err := step.Describe(withOwn(s.Own))
	if err != nil {
		return "", err
	}
	manifest, err := json.MarshalIndent(map[string]any{"format": 1, "kernel": file("vmlinuz"),
		"initramfs": file("initramfs.cpio.zst"), "loaders": []any{file("shimx64.efi"), file("grubx64.efi"),
			file("isolinux.bin"), file("ldlinux.c32")}, "steps": table.Steps, "steps_digest": table.Digest}, "", "  ")
	if err != nil {
		return "", fmt.Errorf("write manifest of the ramdisk: %w", err)
	}
	conf := map[string]map[string]any{
		"api":    {"listen": s.API},
		"agents": {"listen": s.Agents, "advertise": s.Agents},
		"netboot": {"dhcp": "off", "address": "127.0.0.1", "http_port": s.Boot, "tftp": false, "loader_dir": "",
			"images_dir": "", "ramdisk_dir": ramdisk},
	}
	top := map[string]any{"data_dir": filepath.Join(s.Dir, "data"), "hostname": "fleet"}
	for section, keys := range s.Settings {
		if conf[section] == nil {
			conf[section] = map[string]any{}
		}
		for k, v := range keys {
			conf[section][k] = v
		}
	}
	for section, keys := range conf {
		top[section] = keys
	}
	text, err := json.MarshalIndent(top, "", "  ") // JSON is YAML
	if err != nil {
		return "", fmt.Errorf("write configuration of ingotd: %w", err)
	}
	config = filepath.Join(s.Dir, "ingotd.yaml")
	errs = append(errs, os.WriteFile(filepath.Join(ramdisk, "manifest.json"), manifest, 0o644),
		os.WriteFile(config, append(text, '\n'), 0o600))
	if err := errors.Join(errs...); err != nil {
		return "", fmt.Errorf("write files of ingotd: %w", err)
	}
	return config, nil
}
