package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/observe/trace"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (p *program) nodeTimeline() *cobra.Command {
	var job, phase, otlp string
	var asJSON, marks bool
	return p.online(&cobra.Command{
		Use: "timeline NAME", Short: "Show how long each phase of an operation took", Args: oneNode,
		ValidArgsFunction: p.completeNode,
		Long: `Show how the time of a node's job was spent, of the last one unless another is chosen: a waterfall of spans from the request to the end, with
bytes and rates of what was written. Every instant belongs to one span; time without a mark is shown as unknown.

  ingot node timeline web-1 --phase deploy
  ingot node timeline web-1 --json                  all jobs that are kept, spans and marks
  ingot node timeline web-1 --otlp trace.json       for OpenTelemetry, as a file
  ingot node timeline web-1 --otlp http://collector:4318`,
	}, []option{
		opt("job", &job, "of the job with this ID"),
		opt("phase", &phase, "of the last job of this kind: deploy, clean, inspect, ...", "deploy", "clean", "inspect",
			"verify", "delete", "service", "rescue", "unrescue", "adopt", "warm", "power"),
		opt("json", &asJSON, "as JSON, like -o json"),
		opt("marks", &marks, "show the points that were recorded instead of what lies between them"),
		opt("otlp", &otlp, "write it in OpenTelemetry's OTLP/JSON to this file, or send it to this http(s) URL"),
	}, func(ctx context.Context, c *client.Client, args []string) error {
		name := args[0]
		if job != "" && phase != "" {
			return usage("--job names the job: --phase has nothing to choose")
		}
		tl, err := c.Timeline(ctx, name, job)
		if err != nil {
			return about(name, err)
		}
		chosen := trace.Last(tl.Traces, phase)
		switch {
		case chosen == nil && (job != "" || phase != ""):
			return fmt.Errorf(
				"node %s has no such job on its time line: `ingot node timeline %s --json` shows those that it has",
				name, name)
		case otlp != "":
			list := tl.Traces
			if job != "" || phase != "" {
				list = []rest.Trace{*chosen}
			}
			return p.export(ctx, otlp, tl.NodeUUID, list)
		case asJSON || p.values():
			if phase != "" {
				tl.Traces, tl.Marks = []rest.Trace{*chosen}, marksOf(tl.Marks, chosen.JobID)
			}
			return p.print(tl)
		case chosen == nil:
			p.note("Nothing was done with node %s yet.", name)
			return nil
		case marks:
			return p.table([]string{"AT", "TOOK", "WHAT", "DETAIL"}, timeRows(marksOf(tl.Marks, chosen.JobID)))
		}
		if !p.format.ForPeople() {
			return p.table([]string{"BEGIN", "SECONDS", "KIND", "NAME", "BYTES", "DETAIL"},
				spanRows(chosen.Begin, chosen.Spans))
		}
		width, ok := isTerminal(p.terminal)
		if !ok {
			width = 120
		}
		return trace.Waterfall(p.stdout, *chosen, width)
	})
}

// spanRows are the spans of a job for programs, those inside others after them, with the seconds since its begin.
func spanRows(begin time.Time, spans []rest.Span) (rows [][]string) {
	for _, s := range spans {
		rows = append(rows, []string{fmt.Sprintf("%.3f", s.Begin.Sub(begin).Seconds()), fmt.Sprintf("%.3f", s.Seconds),
			s.Kind, s.Name, fmt.Sprint(s.Bytes), s.Detail})
		rows = append(rows, spanRows(begin, s.Spans)...)
	}
	return rows
}

func marksOf(marks []rest.Mark, job string) []rest.Mark {
	return slices.DeleteFunc(slices.Clone(marks), func(m rest.Mark) bool { return string(m.JobID) != job })
}

// timeRows shows each mark with the time since the first and since the one before.
func timeRows(marks []rest.Mark) [][]string {
	var rows [][]string
	var start, before time.Time
	for i, m := range marks {
		at, err := time.Parse(time.RFC3339Nano, m.At)
		if err != nil {
			continue
		}
		if i == 0 {
			start, before = at, at
		}
		rows = append(rows,
			[]string{fmt.Sprintf("%8.2f s", at.Sub(start).Seconds()), fmt.Sprintf("%+.2f s", at.Sub(before).Seconds()),
				m.Name, string(m.Detail)})
		before = at
	}
	return rows
}

// export writes traces for OpenTelemetry into a file, or sends them to a collector.
func (p *program) export(ctx context.Context, to, nodeUUID string, traces []rest.Trace) error {
	raw, err := trace.OTLP(nodeUUID, traces)
	if err != nil {
		return err
	}
	if !isURL(to) {
		if err := os.WriteFile(to, append(raw, '\n'), 0o644); err != nil {
			return fmt.Errorf("write the trace: %w", err)
		}
		return nil
	}
	u, err := url.Parse(to)
	if err != nil {
		return usage("--otlp %q is not a URL", to)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces" // where collectors have it
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(raw))
	if err != nil {
		return fmt.Errorf("send the trace: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("send the trace: %w", err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("send the trace: read the answer: %w", err)
	}
	if res.StatusCode >= 300 {
		return fmt.Errorf("send the trace to %s: %s: %s", u.Redacted(), res.Status, strings.TrimSpace(string(answer)))
	}
	return nil
}
