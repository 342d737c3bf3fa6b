package doctor

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ingot-metal/ingot/conductor/agents"
	"github.com/ingot-metal/ingot/conductor/erasure"
	"github.com/ingot-metal/ingot/conductor/keyfile"
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
			continue // whoever needs it says so
		case errors.As(err, &open):
			out = append(out, finding(Fault, open.Command, "the key %s (mode %04o) is open to others than this user", file, open.Mode)...)
		case err != nil:
			out = append(out, finding(Fault, "let the conductor's user, and nobody else, read it", "%v", err)...)
		}
		there++
	}
	if out == nil {
		return ok("%d keys, which nobody else can read", there)
	}
	return out
}

// checkKeys looks at the key that the database's secrets are sealed with.
func checkKeys(_ context.Context, p Patient) []Finding {
	if p.Config.Store.Key != "" {
		return ok("the database's key comes from the configuration or the environment")
	}
	file := filepath.Join(p.Config.DataDir, store.KeyFile)
	if _, err := os.Stat(filepath.Join(p.Config.DataDir, store.DatabaseFile)); err != nil {
		return ok("there is no database yet; the first start makes a key")
	}
	if _, err := store.ReadKey(file); err != nil {
		var open *keyfile.ReadableError
		if errors.As(err, &open) {
			return finding(Fault, open.Command, "%v", err)
		}
		return finding(Fault, "put the copy of "+file+" back that you keep elsewhere, or restore a backup that has it (ingotd restore)", "%v", err)
	}
	return ok("%s; keep a copy of it elsewhere", file)
}

func checkCA(_ context.Context, p Patient) []Finding {
	ca, err := agents.ReadCA(p.Config.DataDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(filepath.Join(p.Config.DataDir, store.DatabaseFile)); err == nil {
			return finding(Warning, "restore a backup to keep the CA that running agents and ramdisks know; else the next start makes another", "there is none, though there is a database")
		}
		return ok("there is none yet; the first start makes one")
	case err != nil:
		return finding(Fault, "restore it from a backup (ingotd restore)", "%v", err)
	}
	return ok("fingerprint %s", ca.Fingerprint())
}

// soon is how long before its end a certificate is told of.
const soon = 30 * 24 * time.Hour

func checkCertificates(_ context.Context, p Patient) []Finding {
	var out []Finding
	end := func(what string, at time.Time, remedy string) {
		left := at.Sub(p.Now())
		day := at.UTC().Format(time.DateOnly)
		switch {
		case left <= 0:
			out = append(out, finding(Fault, remedy, "%s ended on %s", what, day)...)
		case left < soon:
			out = append(out, finding(Warning, remedy, "%s ends on %s, in %d days", what, day, int(left.Hours()/24))...)
		default:
			out = append(out, ok("%s ends on %s", what, day)...)
		}
	}
	if ca, err := agents.ReadCA(p.Config.DataDir); err == nil {
		end("the CA", ca.Ends(), "ingotd ca rotate")
	}
	if file := p.Config.API.TLSCert; file != "" {
		cert, err := firstCertificate(file)
		if err != nil {
			out = append(out, finding(Fault, "put a certificate in PEM there, or correct api.tls_cert", "the API's certificate: %v", err)...)
		} else {
			end("the API's certificate "+file, cert.NotAfter, "renew it; ingotd reads the files again when they change")
		}
	}
	if out == nil {
		return ok("there are none yet")
	}
	return out
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
