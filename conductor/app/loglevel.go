package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/ingot-metal/ingot/conductor/app/drain"
	"github.com/ingot-metal/ingot/conductor/observe/audit"
	"github.com/ingot-metal/ingot/conductor/observe/logs"
)

// levels are the commands about the log's levels.
func levels(lines *logs.Log) map[string]http.HandlerFunc {
	show := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(lines.Levels()) // if this fails, the command is gone
	}
	return map[string]http.HandlerFunc{
		"GET /log-level": func(w http.ResponseWriter, _ *http.Request) { show(w) },
		"PUT /log-level": func(w http.ResponseWriter, r *http.Request) {
			part, level := r.URL.Query().Get("part"), r.URL.Query().Get("level")
			if err := lines.Set(part, level); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			lines.Part("main").Warn("a command changed what is logged", "of", part, "level", level)
			show(w)
		},
	}
}

// logLevel shows or changes the levels of the running conductor.
func logLevel(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	c, _ := find([]string{"log-level"})
	fl := c.flags(stderr)
	var where site
	where.flags(fl)
	if done, err := parse(fl, args); done || err != nil {
		return err
	}
	cfg, err := where.settings(environ)
	if err != nil {
		return err
	}
	running := drain.NewClient(cfg.DataDir)
	now := map[string]string{}
	for _, arg := range fl.Args() {
		part, level, ok := strings.Cut(arg, "=")
		if !ok {
			part, level = "", arg
		}
		q := url.Values{"part": {part}, "level": {level}}
		if err := running.Ask(ctx, http.MethodPut, "log-level?"+q.Encode(), &now); err != nil {
			return err
		}
	}
	if fl.NArg() == 0 {
		if err := running.Ask(ctx, http.MethodGet, "log-level", &now); err != nil {
			return err
		}
	}
	for _, part := range slices.Sorted(maps.Keys(now)) {
		fmt.Fprintf(stdout, "%-12s %s\n", part, now[part])
	}
	return nil
}

// reopen opens the audit log anew at each SIGHUP, until ctx ends. Without an audit log the signal does nothing: it is
// what programs that rotate logs send.
func reopen(ctx context.Context, asked *audit.Log, log *slog.Logger) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-hup:
		case <-ctx.Done():
			return
		}
		if err := asked.Reopen(); err != nil {
			log.Error("the audit log is not opened anew, and goes on into the old file", "err", err)
		} else {
			log.Info("the audit log was opened anew")
		}
	}
}
