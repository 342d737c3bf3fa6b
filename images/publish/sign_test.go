package publish

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/test/kit"
)

func contents(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func asked(t *testing.T) func() (string, error) {
	return func() (string, error) { t.Error("a password was asked for"); return "", nil }
}

// TestSignedByUsCheckedByThem: our signatures are valid for minisign and openssl, and for index.VerifySignature.
func TestSignedByUsCheckedByThem(t *testing.T) {
	kit.NeedPrograms(t, "minisign", "openssl")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	kit.Run(t, "minisign", "-G", "-W", "-p", in("mini.pub"), "-s", in("mini.key"))
	kit.Run(t, "openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", in("sec1.key"))
	kit.Run(t, "openssl", "pkcs8", "-topk8", "-nocrypt", "-in", in("sec1.key"), "-out", in("pkcs8.key"))
	kit.Run(t, "openssl", "ec", "-in", in("sec1.key"), "-pubout", "-out", in("ec.pub"))
	mini, err := Minisign(contents(t, in("mini.key")), asked(t))
	if err != nil {
		t.Fatal(err)
	}
	ec, err := Cosign(contents(t, in("sec1.key")), asked(t))
	if err != nil {
		t.Fatal(err)
	}
	r := publish(t, disk(5*mib, 1), dir, Options{Sign: []Signer{mini, ec}})
	kit.Run(t, "minisign", "-V", "-p", in("mini.pub"), "-m", r.Path) // finds test.ingot.minisig itself
	der, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(contents(t, r.Path+".sig"))))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in("der"), der, 0o600); err != nil {
		t.Fatal(err)
	}
	kit.Run(t, "openssl", "dgst", "-sha256", "-verify", in("ec.pub"), "-signature", in("der"), r.Path)
	for _, k := range []string{"mini.pub", "ec.pub"} {
		key, err := index.ParseKey(string(contents(t, in(k))))
		if err != nil {
			t.Fatal(err)
		}
		suffix := map[string]string{"mini.pub": ".minisig", "ec.pub": ".sig"}[k]
		if err := index.VerifySignature(contents(t, r.Path), contents(t, r.Path+suffix), []index.Key{key}); err != nil {
			t.Error(err)
		}
	}
	// A signature of minisign has no time in it: published again, it is the same.
	before := contents(t, r.Path+".minisig")
	pkcs8, err := Cosign(contents(t, in("pkcs8.key")), asked(t))
	if err != nil {
		t.Fatal(err)
	}
	publish(t, disk(5*mib, 1), dir, Options{Sign: []Signer{mini, pkcs8}})
	if !bytes.Equal(before, contents(t, r.Path+".minisig")) {
		t.Error("the same index got another signature")
	}
	// Published without keys, the old signatures are invalid.
	publish(t, disk(5*mib, 2), dir, Options{})
	for _, suffix := range index.SignatureSuffixes {
		if _, err := os.Stat(r.Path + suffix); err == nil {
			t.Errorf("the signature %s of the last index is still there", suffix)
		}
	}
}
