package metrics

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// format is the one that all scrapers read.
const format = "text/plain; version=0.0.4; charset=utf-8"

// Handler answers all scrapes: the caller has decided who may send them.
func (s *Set) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "metrics are read with GET", http.StatusMethodNotAllowed)
			return
		}
		select {
		case s.scraping <- struct{}{}:
			defer func() { <-s.scraping }()
		default:
			w.Header().Set("Retry-After", strconv.Itoa(int(limit.RetryAfter.Seconds())))
			http.Error(w, fmt.Sprintf("%d scrapes are being answered already", limit.ScrapesAtOnce), http.StatusServiceUnavailable)
			return
		}
		began := time.Now()
		w.Header().Set("Content-Type", format)
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Vary", "Accept-Encoding")
		if r.Method == http.MethodHead {
			return
		}
		out := io.Writer(w)
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			w.Header().Set("Content-Encoding", "gzip")
			z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level is valid
			defer z.Close()
			out = z
		}
		if err := s.Write(out); err != nil {
			s.log.Debug("answer a scrape", "err", err)
		}
		s.scraped.Observe(time.Since(began).Seconds())
	})
}

// Write writes all metrics in the text format.
func (s *Set) Write(w io.Writer) error {
	machines, series, dropped := s.nodes.shown(s.now())
	s.series.WithLabelValues("shown").Set(float64(series))
	s.series.WithLabelValues("left out").Set(float64(dropped))
	families, err := s.reg.Gather()
	if err != nil { // what could be had is there
		s.log.Error("some metrics can't be read", "err", err)
	}
	b := bufio.NewWriterSize(w, 64<<10)
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(b, f); err != nil {
			return err
		}
	}
	return write(b, machines)
}
