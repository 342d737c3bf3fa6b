package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
)

// mark is a moment of the new system's first boot, as its console showed it.
type mark struct {
	name string
	at   time.Time
}

// osStarts is the first thing that the new system's kernel says.
const osStarts = "operating system starts"

// ansi matches escape sequences of terminals.
var ansi = regexp.MustCompile(`\x1b(\[[0-9;?=]*[A-Za-z]|[()][A-Z0-9]|[=>78c])`)

// watchConsole follows the machine's console behind offset from, shows what the new system says, and ends when it has
// shown its login prompt and cloud-init has applied the user data.
func (d *demo) watchConsole(ctx context.Context, from int64) <-chan error {
	done := make(chan error, 1)
	go func() {
		done <- d.followConsole(ctx, from)
	}()
	return done
}

func (d *demo) followConsole(ctx context.Context, from int64) error {
	f, err := os.Open(d.node.ConsoleLog)
	if err != nil {
		return fmt.Errorf("look at the machine's console: %w", err)
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return fmt.Errorf("look at the machine's console: %w", err)
	}
	d.osMarks = nil
	// The agent's boot may come first, then the system's. Marks count from the last power-on, if there is one.
	wanted := []struct{ name, text string }{
		{osStarts, "Linux version"},
		{"login prompt", hostname + " login:"},
		{"cloud-init has applied the config drive", applied},
	}
	seen := map[string]bool{}
	shown := map[string]bool{}
	r := bufio.NewReader(f)
	line := ""
	for {
		part, err := r.ReadString('\n')
		line += part
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("look at the machine's console: %w", err)
		}
		if strings.Contains(line, "=== lab") && strings.Contains(line, "power on") {
			seen = map[string]bool{}
			d.osMarks = nil
		}
		for _, w := range wanted {
			if !seen[w.name] && strings.Contains(line, w.text) {
				seen[w.name] = true
				d.osMarks = append(d.osMarks, mark{w.name, time.Now()})
				if w.name != osStarts && !shown[w.name] {
					shown[w.name] = true
					d.say("  %s", strings.TrimSpace(ansi.ReplaceAllString(line, "")))
				}
			}
		}
		if seen["login prompt"] && seen["cloud-init has applied the config drive"] {
			return nil
		}
		if err == nil {
			line = ""
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
