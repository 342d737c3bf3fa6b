package limit

import (
	"cmp"
	"log/slog"
	"net/http"
	"time"
)

// HTTP makes a server with the time-outs of this package. Its answers have no time of their own: a connection from
// Listen ends them when the peer stops reading.
func HTTP(h http.Handler, log *slog.Logger) *http.Server {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	return &http.Server{
		Handler:           bodies(h),
		ReadHeaderTimeout: HeaderTime,
		IdleTimeout:       IdleTime,
		MaxHeaderBytes:    Header,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 64, MaxReceiveBufferPerConnection: 1 << 20,
			SendPingTimeout: StallTime, PingTimeout: HeaderTime, WriteByteTimeout: StallTime},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// bodies limits the time of each request's body, whether the handler reads it or not: net/http reads the rest before it
// uses the connection again, and that would wait for as long as the client likes.
func bodies(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			deadline(w, time.Now().Add(BodyTime))
		}
		h.ServeHTTP(w, r)
	})
}

// deadline bounds the reading of a request's body; the zero time takes the bound away.
func deadline(w http.ResponseWriter, at time.Time) {
	// What can't be bounded is no connection, or one that is gone: both end by themselves.
	_ = http.NewResponseController(w).SetReadDeadline(at)
}
