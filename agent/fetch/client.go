package fetch

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// Client returns an HTTP client for anything but plain files. It waits for responses as long as an Origin does, but
// never retries. The caller limits the time of a body, through the client's *http.Transport.
func Client(ca string, wait Patience) (*http.Client, error) {
	t, err := newTransport(ca, wait)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: t, CheckRedirect: checkRedirect}, nil
}

// RegistryClient is a Client for a registry. A silence of wait.Stall in a body is an error, including bodies of
// manifests and tokens, whose reader has no timeout.
func RegistryClient(ca string, wait Patience) (*http.Client, error) {
	t, err := newTransport(ca, wait)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &watched{t, wait.Stall}, CheckRedirect: checkRedirect}, nil
}

// watched is a transport whose bodies fail after a silence of stall.
type watched struct {
	*http.Transport
	stall time.Duration
}

func (w *watched) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.Transport.RoundTrip(req)
	if err == nil && resp.Body != http.NoBody {
		resp.Body = &watchedBody{ReadCloser: resp.Body, stall: w.stall}
	}
	return resp, err
}

// watchedBody closes a body that is silent during a read. Without a read there is no timeout.
type watchedBody struct {
	io.ReadCloser
	stall  time.Duration
	timer  *time.Timer
	silent atomic.Bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	if b.timer == nil {
		b.timer = time.AfterFunc(b.stall, func() {
			b.silent.Store(true)
			b.Close()
		})
	} else {
		b.timer.Reset(b.stall)
	}
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop()
	if err != nil && err != io.EOF && b.silent.Load() {
		err = errSilent // not the error of the close
	}
	return n, err
}

// newTransport returns the transport of all requests. Proxies come from a request's Access, or the environment.
func newTransport(ca string, wait Patience) (*http.Transport, error) {
	t := &http.Transport{
		Proxy:                  proxy,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		ResponseHeaderTimeout:  wait.Stall, // for the complete headers
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true, // offsets and digests must refer to the file
		ReadBufferSize:         64 << 10,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        90 * time.Second,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if ca != "" {
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(ca)) {
			return nil, step.Failf("correct image_ca", "image_ca holds no certificate in PEM form")
		}
	}
	return t, nil
}
