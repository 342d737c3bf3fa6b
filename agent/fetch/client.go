package fetch

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

// Client is an HTTP client for what is no plain file: a registry. It waits for answers as long as an Origin does, but never tries again.
func Client(ca string, wait Patience) (*http.Client, error) {
	t, err := newTransport(ca, wait)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: t, CheckRedirect: checkRedirect}, nil
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
