package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"log/slog"
	"math/big"
	"testing"
	"testing/synctest"
	"time"
)

// TestCertificateIsRenewedInTime: in a session of a year the certificate never expires, even if the conductor is
// unreachable for weeks, and requests are no more frequent than necessary.
func TestCertificateIsRenewedInTime(t *testing.T) {
	const day = 24 * time.Hour
	for _, tt := range []struct {
		name       string
		life       time.Duration
		from, to   time.Duration // when the conductor refuses
		most       int           // renewals
		leastAhead time.Duration // before its end
	}{
		{"undisturbed", 90 * day, 0, 0, 6, 30 * day},
		{"a month without", 90 * day, 55 * day, 85 * day, 8, 2 * day},
		{"short lives", 6 * time.Hour, 0, 0, 365 * 6, 2 * time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
				if err != nil {
					t.Fatal(err)
				}
				var ends time.Time
				issue := func() []byte {
					ends = time.Now().Add(tt.life).Truncate(time.Second)
					tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: ends}
					der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
					if err != nil {
						t.Error(err)
					}
					return der
				}
				begin := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 365*day)
				defer cancel()
				asked := 0
				renew(ctx, issue(), func(context.Context) ([]byte, error) {
					asked++
					if at := time.Since(begin); at >= tt.from && at < tt.to {
						return nil, errors.New("the conductor is not there")
					}
					if ahead := time.Until(ends); ahead < tt.leastAhead {
						t.Errorf("renewed %v before its end, want %v at least", ahead, tt.leastAhead)
					}
					return issue(), nil
				}, slog.New(slog.DiscardHandler))
				if time.Until(ends) <= 0 || asked > tt.most {
					t.Errorf("after a year it ends in %v, and %d requests were made, want %d at most", time.Until(ends),
						asked, tt.most)
				}
			})
		})
	}
}
