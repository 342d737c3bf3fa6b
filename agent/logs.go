package agent

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	agentv1 "github.com/ingot-metal/ingot/proto/agentv1"
)

// logHandler passes records to a local handler (the log file) and to the conductor's queue.
type logHandler struct {
	local  slog.Handler
	q      *queue
	level  slog.Level // minimum level for the conductor
	prefix []string   // attributes of With
	group  string
}

func (h *logHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.level || h.local.Enabled(ctx, l)
}

func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= h.level {
		line := &agentv1.LogLine{Level: r.Level.String(), Message: r.Message, Attrs: append([]string(nil), h.prefix...)}
		r.Attrs(func(a slog.Attr) bool {
			// A panic's stack is for the local log: it would displace all other lines of the ring.
			if a.Key != "stack" {
				line.Attrs = append(line.Attrs, h.format(a))
			}
			return true
		})
		h.q.log(line)
	}
	if h.local.Enabled(ctx, r.Level) {
		return h.local.Handle(ctx, r)
	}
	return nil
}

func (h *logHandler) format(a slog.Attr) string {
	return h.group + a.Key + "=" + fmt.Sprint(a.Value.Resolve())
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.local = h.local.WithAttrs(attrs)
	c.prefix = append([]string(nil), h.prefix...)
	for _, a := range attrs {
		c.prefix = append(c.prefix, h.format(a))
	}
	return &c
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	c := *h
	c.local = h.local.WithGroup(name)
	c.group = h.group + name + "."
	return &c
}

// maxBundleFile bounds each file of a log bundle, so that the archive fits into one message (gRPC takes 4 MiB).
const maxBundleFile = 1 << 20

// BundleLogs packs the kernel's log and the agent's log files, the newest part of each, into a compressed archive.
func BundleLogs(sys interface{ KernelLog() ([]byte, error) }, files ...string) ([]byte, error) {
	var buf bytes.Buffer
	gz := gzip.NewWriter(&buf)
	tw := tar.NewWriter(gz)
	var errs []error
	add := func(name string, data []byte, err error) {
		if errors.Is(err, os.ErrNotExist) {
			return
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("collect %s: %w", name, err))
			return
		}
		if n := len(data) - maxBundleFile; n > 0 {
			data = data[n:]
		}
		h := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(data)), ModTime: time.Now(), Format: tar.FormatPAX}
		if err := tw.WriteHeader(h); err != nil {
			errs = append(errs, err)
			return
		}
		_, err = tw.Write(data)
		errs = append(errs, err)
	}
	kernel, err := sys.KernelLog()
	add("kernel.log", kernel, err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		add(filepath.Base(f), data, err)
	}
	errs = append(errs, tw.Close(), gz.Close())
	return buf.Bytes(), errors.Join(errs...)
}
