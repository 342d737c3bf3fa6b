package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/initramfs/archive"
)

// addShell adds the console commands to /bin. The agent decides whether they can be used.
func addShell(ctx context.Context, a *archive.Tree, o Options) error {
	source := o.Source
	if source == "" {
		var err error
		if source, err = FindSource(); err != nil {
			return fmt.Errorf("make the shell of profile %s: %w", o.Profile, err)
		}
	}
	program, commands, err := compileShell(ctx, filepath.Join(source, "initramfs/shell"), o)
	if err != nil {
		return fmt.Errorf("make the shell of profile %s: %w", o.Profile, err)
	}
	if err := a.File("bin/bb", program, 0o755); err != nil {
		return err
	}
	for _, c := range commands {
		if err := a.Symlink("bin/"+c, "bb"); err != nil {
			return err
		}
	}
	// The program looks at the last link that it was called through.
	return a.Symlink("bin/sh", "gosh")
}

// compileShell compiles the commands, or takes them from the cache if they were compiled from the same sources with the
// same Go.
func compileShell(ctx context.Context, dir string, o Options) (program []byte, commands []string, err error) {
	version, err := output(exec.CommandContext(ctx, "go", "version"))
	if err != nil {
		return nil, nil, err
	}
	h := sha256.New()
	h.Write(version)
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, nil, fmt.Errorf("read the list of commands: %w", err)
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(data), data)
	}
	kept := filepath.Join(o.Cache, "shell", hex.EncodeToString(h.Sum(nil))[:20])
	if program, commands, err := readShell(kept); err == nil {
		return program, commands, nil
	}
	o.Log.Info("compiling the shell's commands; this takes a minute or two, once")
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		return nil, nil, err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(kept), "compile-*")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(tmp)
	cmd := exec.CommandContext(ctx, "go", "run", ".", filepath.Join(tmp, "bb"))
	cmd.Dir = dir
	// The compiling program is built with the agent's flags, so that the standard library is compiled once. It then
	// needs GOROOT explicitly.
	goroot, err := output(exec.CommandContext(ctx, "go", "env", "GOROOT"))
	if err != nil {
		return nil, nil, err
	}
	cmd.Env = append(os.Environ(), "GOFLAGS=-trimpath", "GOROOT="+strings.TrimSpace(string(goroot)), "GOGC=400",
		"GOWORK=off", "GOAMD64=v1", "CGO_ENABLED=0")
	list, err := output(cmd)
	if err != nil {
		return nil, nil, fmt.Errorf("compile the commands: %w", err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "commands"), list, 0o644); err != nil {
		return nil, nil, err
	}
	if err := os.Rename(tmp, kept); err != nil && !errors.Is(err, os.ErrExist) { // another build may have been first
		return nil, nil, fmt.Errorf("keep the compiled commands: %w", err)
	}
	return readShell(kept)
}

func readShell(dir string) ([]byte, []string, error) {
	program, err := os.ReadFile(filepath.Join(dir, "bb"))
	if err != nil {
		return nil, nil, err
	}
	list, err := os.ReadFile(filepath.Join(dir, "commands"))
	if err != nil {
		return nil, nil, err
	}
	commands := strings.Fields(string(list))
	if !slices.Contains(commands, "gosh") || slices.Contains(commands, "bb") {
		return nil, nil, fmt.Errorf("%s: the list of commands has no shell", dir)
	}
	return program, commands, nil
}
