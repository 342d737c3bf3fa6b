package build

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const module = "github.com/ingot-metal/ingot"

// FindSource finds Ingot's source directory: the module of the working directory, else the one of this program.
func FindSource() (string, error) {
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, dir := range starts {
		for {
			data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
			if err == nil && strings.HasPrefix(string(data), "module "+module+"\n") {
				return dir, nil
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return "", errors.New(
		"the source of Ingot is not here: run this inside it, name its folder, or name a built ingot-agent")
}

// compileAgent compiles the agent reproducibly: equal sources give equal bytes, independent of their path.
func compileAgent(ctx context.Context, source, version, out string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace",
		"-ldflags", "-s -w -buildid= -X main.version="+version, "-o", out, "./agent/cmd/ingot-agent")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOAMD64=v1", "GOFLAGS=")
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("compile the agent: %w", err)
	}
	return nil
}

// describeAgent asks a built agent for its version and its table of steps, including the site's steps below siteSteps.
func describeAgent(ctx context.Context,
	file, siteSteps string) (version string, steps json.RawMessage, digest string, err error) {
	file, err = filepath.Abs(file)
	if err != nil {
		return "", nil, "", fmt.Errorf("find the agent: %w", err)
	}
	ask := exec.CommandContext(ctx, file, "steps", "--json")
	ask.Env = append(os.Environ(), "INGOT_SITE_STEPS="+siteSteps) // not those of the build machine
	out, err := output(ask)
	if err != nil {
		return "", nil, "", fmt.Errorf("ask the agent for its steps: %w", err)
	}
	var table struct {
		Steps  json.RawMessage `json:"steps"`
		Digest string          `json:"digest"`
	}
	if err := json.Unmarshal(out, &table); err != nil || len(table.Steps) == 0 || !hex64.MatchString(table.Digest) {
		return "", nil, "",
			fmt.Errorf("ask the agent for its steps: %s printed no table of steps (%v): it is not an ingot-agent of this version", file, err)
	}
	out, err = output(exec.CommandContext(ctx, file, "version"))
	if err != nil {
		return "", nil, "", fmt.Errorf("ask the agent for its version: %w", err)
	}
	return strings.TrimSpace(string(out)), table.Steps, table.Digest, nil
}

// output runs a program and returns its standard output; an error has the last lines of its standard error.
func output(cmd *exec.Cmd) ([]byte, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(errs.String())
		if len(said) > 2000 {
			said = "... " + said[len(said)-2000:]
		}
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, said)
	}
	return out.Bytes(), nil
}
