// Package logs makes the loggers of the conductor's parts, in one stream, whose least severities can be changed while
// the conductor runs, each by itself.
package logs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Options say how lines are written.
type Options struct {
	Level string // least severity: "debug", "info", "warn" or "error"; anything else is info
	JSON  bool   // else text
	// Replace changes attributes before they are written; nil leaves them.
	Replace func(slog.Attr) slog.Attr
	// Trace returns the ID of the trace of a context, "" without one; nil: there are none.
	Trace func(ctx context.Context) string
}

// Log is the stream. Safe for concurrent use.
type Log struct {
	handler slog.Handler
	trace   func(ctx context.Context) string
	usual   slog.Level

	mu    sync.Mutex
	parts map[string]*slog.LevelVar
}

// New makes a Log that writes to w.
func New(w io.Writer, o Options) *Log {
	l := &Log{trace: o.Trace, parts: map[string]*slog.LevelVar{}}
	if l.usual.UnmarshalText([]byte(o.Level)) != nil {
		l.usual = slog.LevelInfo
	}
	h := &slog.HandlerOptions{Level: slog.Level(-100)} // each part has its own
	if o.Replace != nil {
		h.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr { return o.Replace(a) }
	}
	if o.JSON {
		l.handler = slog.NewJSONHandler(w, h)
	} else {
		l.handler = slog.NewTextHandler(w, h)
	}
	return l
}

// Part returns the logger of a part of the conductor, whose lines name it. The same name is the same part.
func (l *Log) Part(name string) *slog.Logger {
	l.mu.Lock()
	defer l.mu.Unlock()
	level := l.parts[name]
	if level == nil {
		level = new(slog.LevelVar)
		level.Set(l.usual)
		l.parts[name] = level
	}
	h := l.handler.WithAttrs([]slog.Attr{slog.String("part", name)})
	return slog.New(handler{h, level, l.trace})
}

// Levels are the least severities of all parts.
func (l *Log) Levels() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]string{}
	for name, level := range l.parts {
		out[name] = strings.ToLower(level.Level().String())
	}
	return out
}

// severities are those that a level can be set to.
var severities = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn,
	"error": slog.LevelError}

// Set sets the least severity of a part; of all, if part is "".
func (l *Log) Set(part, severity string) error {
	level, ok := severities[severity]
	if !ok {
		return fmt.Errorf("%.20q is no level: it is debug, info, warn or error", severity)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if part == "" {
		for _, v := range l.parts {
			v.Set(level)
		}
		return nil
	}
	v := l.parts[part]
	if v == nil {
		return fmt.Errorf("there is no part %.40q; the parts are %s", part,
			strings.Join(slices.Sorted(maps.Keys(l.parts)), ", "))
	}
	v.Set(level)
	return nil
}

// handler is the stream for one part.
type handler struct {
	slog.Handler
	level *slog.LevelVar
	trace func(ctx context.Context) string
}

// Enabled implements slog.Handler.
func (h handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level.Level() }

// Handle implements slog.Handler. Lines about a request that is traced name the trace.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if h.trace != nil && ctx != nil {
		if id := h.trace(ctx); id != "" {
			r = r.Clone()
			r.AddAttrs(slog.String("trace", id))
		}
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.Handler = h.Handler.WithAttrs(attrs)
	return h
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	h.Handler = h.Handler.WithGroup(name)
	return h
}
