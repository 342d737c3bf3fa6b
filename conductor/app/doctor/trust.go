package doctor

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/agents/erasure"
	"github.com/ingot-metal/ingot/conductor/config"
	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
	"github.com/ingot-metal/ingot/conductor/store"
)

// checkPermissions looks at every key that is there.
func checkPermissions(_ context.Context, p Patient) []Finding {
	keys := []string{p.Config.API.TLSKey}
	for _, name := range append(agents.KeyFiles(), store.KeyFile, erasure.KeyFile) {
		keys = append(keys, filepath.Join(p.Config.DataDir, name))
	}
	var out []Finding
	there := 0
	for _, file := range keys {
		if file == "" {
			continue
		}
		_, err := keyfile.Read(file)
		var open *keyfile.ReadableError
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // the check that needs it reports it
		case errors.As(err, &open):
			out = append(out,
				finding(Fault, open.Command, "the key %s (mode %04o) is open to others than this user", file,
					open.Mode)...)
		case err != nil:
			out = append(out, finding(Fault, "make it readable by the conductor's user alone", "%v", err)...)
		}
		there++
	}
	if out == nil {
		return ok("%d keys, readable by the conductor's user alone", there)
	}
	return out
}

// used reports whether the data directory belongs to a database.
func used(p Patient) bool {
	sign := store.DatabaseFile
	if p.Config.Store.Server() != "" {
		sign = store.InstallationFile
	}
	_, err := os.Stat(filepath.Join(p.Config.DataDir, sign))
	return err == nil
}

// checkKeys looks at the key that the database's secrets are sealed with.
func checkKeys(_ context.Context, p Patient) []Finding {
	if p.Config.Store.Key != "" {
		return ok("the database's key comes from the configuration or the environment")
	}
	file := filepath.Join(p.Config.DataDir, store.KeyFile)
	if !used(p) {
		return ok("there is no database yet; the first start makes a key")
	}
	if _, err := store.ReadKey(file); err != nil {
		var open *keyfile.ReadableError
		if errors.As(err, &open) {
			return finding(Fault, open.Command, "%v", err)
		}
		return finding(Fault,
			"put the copy of "+file+" back that you keep elsewhere, or restore a backup that has it (ingotd restore)",
			"%v", err)
	}
	return ok("%s; keep a copy of it elsewhere", file)
}

func checkCA(_ context.Context, p Patient) []Finding {
	ca, err := agents.ReadCA(p.Config.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		if used(p) {
			return finding(Warning,
				"restore a backup to keep the CA that running agents and ramdisks know; else the next start makes another", "there is none, though there is a database")
		}
		return ok("there is none yet; the first start makes one")
	}
	if err != nil {
		return finding(Fault, "restore it from a backup (ingotd restore)", "%v", err)
	}
	return ok("fingerprint %s", ca.Fingerprint())
}

// soon is how long before its end a certificate is reported.
const soon = 30 * 24 * time.Hour

// End is that of a certificate.
type End struct {
	Name   string
	Short  string // "ca" or "api"
	At     time.Time
	Remedy string
}

// Ends are those of the certificates of a conductor, as far as they can be read.
func Ends(cfg config.Config) (ends []End, err error) {
	if ca, err := agents.ReadCA(cfg.DataDir); err == nil {
		ends = append(ends, End{"the CA", "ca", ca.Ends(), "ingotd ca rotate"})
	}
	if file := cfg.API.TLSCert; file != "" {
		cert, err := firstCertificate(file)
		if err != nil {
			return ends, fmt.Errorf("the API's certificate: %w", err)
		}
		ends = append(ends,
			End{"the API's certificate " + file, "api", cert.NotAfter,
				"renew it; ingotd reads the files again when they change"})
	}
	return ends, nil
}

// Certificates says of each certificate when it ends.
func Certificates(cfg config.Config, now time.Time) []Finding {
	var out []Finding
	ends, err := Ends(cfg)
	if err != nil {
		out = finding(Fault, "put a certificate in PEM there, or correct api.tls_cert", "%v", err)
	}
	for _, e := range ends {
		left, day := e.At.Sub(now), e.At.UTC().Format(time.DateOnly)
		switch {
		case left <= 0:
			out = append(out, finding(Fault, e.Remedy, "%s ended on %s", e.Name, day)...)
		case left < soon:
			out = append(out,
				finding(Warning, e.Remedy, "%s ends on %s, in %d days", e.Name, day, int(left.Hours()/24))...)
		default:
			out = append(out, ok("%s ends on %s", e.Name, day)...)
		}
	}
	return out
}

func checkCertificates(_ context.Context, p Patient) []Finding {
	if out := Certificates(p.Config, p.Now()); out != nil {
		return out
	}
	return ok("there are none yet")
}

func firstCertificate(file string) (*x509.Certificate, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New(file + " does not begin with a certificate in PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}
