package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/ingot-metal/ingot/conductor/app/doctor"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// certificates are those that end some day, for the API.
func certificates(cfg config.Config) func() ([]rest.Certificate, error) {
	return func() ([]rest.Certificate, error) {
		ends, err := doctor.Ends(cfg)
		out := []rest.Certificate{}
		for _, e := range ends {
			out = append(out, rest.Certificate{Name: e.Name, NotAfter: e.At.UTC().Format(time.RFC3339)})
		}
		return out, err
	}
}

// watchCertificates logs once a day each certificate that ends within thirty days, or has ended.
func watchCertificates(ctx context.Context, cfg config.Config, log *slog.Logger, now func() time.Time) {
	tick := time.NewTicker(24 * time.Hour)
	defer tick.Stop()
	for {
		for _, f := range doctor.Certificates(cfg, now()) {
			if f.Status != doctor.OK {
				log.Warn(f.Detail, "remedy", f.Remedy)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
