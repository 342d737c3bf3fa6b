package keyfile

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// Trust is for connections to servers with certificates of the authorities in a PEM file, and of no others.
func Trust(file string) (*tls.Config, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}
