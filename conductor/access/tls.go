package access

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
)

// Certificate is a TLS certificate and its key in files, read again when they change. Safe for concurrent use.
type Certificate struct {
	cert, key string
	log       *slog.Logger

	mu     sync.Mutex
	now    *tls.Certificate
	stamp  [2]stamp
	looked time.Time
	bad    string
}

type stamp struct {
	size     int64
	modified time.Time
}

// OpenCertificate reads both files, which have to be good at the start.
func OpenCertificate(cert, key string, log *slog.Logger) (*Certificate, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	c := &Certificate{cert: cert, key: key, log: log, looked: time.Now()}
	st, err := c.stamps()
	if err != nil {
		return nil, err
	}
	return c, c.read(st)
}

func (c *Certificate) stamps() (out [2]stamp, err error) {
	for i, name := range []string{c.cert, c.key} {
		st, err := os.Stat(name)
		if err != nil {
			return out, fmt.Errorf("read the API's certificate: %w", err)
		}
		out[i] = stamp{st.Size(), st.ModTime()}
	}
	return out, nil
}

func (c *Certificate) read(st [2]stamp) error {
	cert, err := os.ReadFile(c.cert)
	if err != nil {
		return fmt.Errorf("read the API's certificate: %w", err)
	}
	key, err := keyfile.Read(c.key)
	if err != nil {
		return fmt.Errorf("read the key of the API's certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("read the API's certificate %s and its key %s: %w", c.cert, c.key, err)
	}
	c.now, c.stamp, c.bad = &pair, st, ""
	return nil
}

// Config is for the listener.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(), nil }}
}

// current is the newest pair that is good; one that is half written, or does not fit its key yet, does not count.
func (c *Certificate) current() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < lookEvery {
		return c.now
	}
	c.looked = time.Now()
	st, err := c.stamps()
	if err == nil && st == c.stamp {
		return c.now
	}
	if err == nil {
		if err = c.read(st); err == nil {
			c.log.Info("the API's certificate was read again", "file", c.cert)
		}
	}
	if err != nil && err.Error() != c.bad {
		c.bad = err.Error()
		c.log.Error("the API's certificate changed and can't be used; the one before stays", "err", err)
	}
	return c.now
}
