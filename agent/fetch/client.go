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

// Client is an HTTP client for what is no plain file. It waits for answers as long as an Origin does, but never tries
// again. How long an answer's body may take is left to the caller, who finds an *http.Transport in it.
func Client(ca string, wait Patience) (*http.Client, error) {
	t, err := newTransport(ca, wait)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: t, CheckRedirect: checkRedirect}, nil
}

// RegistryClient is a Client for a registry. In its bodies silence is an error after wait.Stall, in those of manifests
// and tokens, too, which are read where nobody can watch over them.
func RegistryClient(ca string, wait Patience) (*http.Client, error) {
	t, err := newTransport(ca, wait)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &watched{t, wait.Stall}, CheckRedirect: checkRedirect}, nil
}

// watched is a transport whose bodies may not be silent for as long as stall.
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

// watchedBody closes a body that is silent while somebody waits for it. One that nobody reads may be silent.
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
		err = errSilent // not what closing looks like
	}
	return n, err
}

// newTransport makes what all requests go through. Proxies are those of the environment.
func newTransport(ca string, wait Patience) (*http.Transport, error) {
	t := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		ResponseHeaderTimeout:  wait.Stall, // for all of the headers, however they dribble
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true, // offsets and digests must be those of the file
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
