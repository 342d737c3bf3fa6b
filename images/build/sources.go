package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// hostSources lists the files with apt sources of this machine.
func hostSources() ([]string, error) {
	var out []string
	for _, pattern := range []string{"/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list",
		"/etc/apt/sources.list.d/*.sources"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// sourcesOf returns the sources in files for a suite, or one derived from it (bookworm-security), with the component
// main, one line each. Other sources of the machine have other suites or components.
func sourcesOf(files []string, suite string) (string, error) {
	var lines []string
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return "", fmt.Errorf("read apt sources: %w", err)
		}
		if strings.HasSuffix(f, ".sources") {
			lines = append(lines, paragraphs(string(data), suite)...)
		} else {
			lines = append(lines, oneLine(string(data), suite)...)
		}
	}
	if len(lines) == 0 {
		return "", fmt.Errorf("this machine's apt sources (%s) have no suite %s: name a file with sources that do",
			strings.Join(files, ", "), suite)
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n") + "\n", nil
}

func serves(word, suite string) bool { return word == suite || strings.HasPrefix(word, suite+"-") }

// oneLine parses lines of the form: deb [options] URI suite component...
func oneLine(text, suite string) []string {
	var out []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb ")
		if !ok {
			continue
		}
		options := ""
		if rest = strings.TrimSpace(rest); strings.HasPrefix(rest, "[") {
			options, rest, _ = strings.Cut(rest, "]")
			options += "] "
		}
		if f := strings.Fields(rest); len(f) > 2 && serves(f[1], suite) && slices.Contains(f[2:], "main") {
			out = append(out, "deb "+options+f[0]+" "+f[1]+" main")
		}
	}
	return out
}

// paragraphs parses deb822 files. An inline key is ignored, in favour of apt's trusted keys.
func paragraphs(text, suite string) []string {
	var out []string
	for para := range strings.SplitSeq(text, "\n\n") {
		field := map[string]string{}
		key := ""
		for line := range strings.Lines(para) {
			switch {
			case strings.HasPrefix(line, "#"):
			case strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t"):
				field[key] += " " + strings.TrimSpace(line)
			default:
				name, value, _ := strings.Cut(line, ":")
				key = strings.ToLower(strings.TrimSpace(name))
				field[key] = strings.TrimSpace(value)
			}
		}
		if strings.EqualFold(field["enabled"], "no") || !slices.Contains(strings.Fields(field["types"]), "deb") ||
			!slices.Contains(strings.Fields(field["components"]), "main") {
			continue
		}
		options := ""
		if k := field["signed-by"]; strings.HasPrefix(k, "/") && !strings.Contains(k, " ") {
			options = "[signed-by=" + k + "] "
		}
		for uri := range strings.FieldsSeq(field["uris"]) {
			for s := range strings.FieldsSeq(field["suites"]) {
				if serves(s, suite) {
					out = append(out, "deb "+options+uri+" "+s+" main")
				}
			}
		}
	}
	return out
}

// aptSettings returns this machine's settings for reaching its apt sources: proxies, certificates, old snapshots.
func aptSettings(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-config", "dump").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read apt's settings: %w", err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(out)) {
		for _, p := range []string{"Acquire::http::", "Acquire::https::", "Acquire::Check-", "Acquire::Retries",
			"Acquire::ForceIPv"} {
			if strings.HasPrefix(line, p) && !strings.Contains(line, "User-Agent") {
				b.WriteString(line)
			}
		}
	}
	return b.String(), nil
}
