package index

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"aead.dev/minisign"
)

// SignatureSuffixes are appended to an index's name for its signature's: of minisign, of cosign.
var SignatureSuffixes = []string{".minisig", ".sig"}

// MaxSignature is more than any signature file takes, in bytes.
const MaxSignature = 16 << 10

// maxSignatures is the maximum number of signatures read from one file.
const maxSignatures = 8

// JoinSignatures joins several signature files into one for VerifySignature: each signature once, in their order, with
// an empty line between them. It returns nil if that exceeds the limits of VerifySignature.
func JoinSignatures(files ...[]byte) []byte {
	var all [][]byte
	for _, f := range files {
		for _, s := range apart(f) {
			if len(s) > 0 && !slices.ContainsFunc(all, func(known []byte) bool { return bytes.Equal(known, s) }) {
				all = append(all, s)
			}
		}
	}
	b := append(bytes.Join(all, []byte("\n\n")), '\n')
	if len(all) == 0 || len(all) > maxSignatures || len(b) > MaxSignature {
		return nil
	}
	return b
}

// apart returns the signatures in a file.
func apart(file []byte) [][]byte {
	return bytes.Split(bytes.TrimSpace(bytes.ReplaceAll(file, []byte("\r\n"), []byte("\n"))), []byte("\n\n"))
}

// Key is a public key for published images: of minisign, or of cosign (ECDSA P-256).
type Key struct {
	mini  *minisign.PublicKey
	ecdsa *ecdsa.PublicKey
}

const remedyKey = "give a minisign public key (the line that begins with RW) or a cosign public key (the PEM of cosign.pub)"

// ParseKey parses a public key: the base64 line of minisign, with or without the comment above it, or the PEM of an
// ECDSA P-256 key.
func ParseKey(s string) (Key, error) {
	s = strings.TrimSpace(strings.ReplaceAll(s, "\r\n", "\n"))
	if strings.HasPrefix(s, "-----BEGIN") {
		block, rest := pem.Decode([]byte(s))
		if block == nil || len(bytes.TrimSpace(rest)) > 0 {
			return Key{}, refuse(remedyKey, "the trusted key is not one PEM block")
		}
		if block.Type != "PUBLIC KEY" {
			return Key{}, refuse(remedyKey, "the trusted key is a %q, not a public key", block.Type)
		}
		pub, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return Key{}, refuse(remedyKey, "read the trusted key: %w", err)
		}
		k, ok := pub.(*ecdsa.PublicKey)
		if !ok || k.Curve != elliptic.P256() {
			return Key{}, refuse(remedyKey, "the trusted key is not of the kind ECDSA P-256")
		}
		return Key{ecdsa: k}, nil
	}
	var k minisign.PublicKey
	if err := k.UnmarshalText([]byte(s)); err != nil {
		return Key{}, refuse(remedyKey, "read the trusted key: %w", err)
	}
	return Key{mini: &k}, nil
}

// String identifies the key for logs: its kind, and for minisign its ID as in minisign's output.
func (k Key) String() string {
	if k.mini != nil {
		return fmt.Sprintf("minisign key %016X", k.mini.ID())
	}
	if k.ecdsa != nil {
		der, err := x509.MarshalPKIXPublicKey(k.ecdsa)
		if err != nil {
			return "cosign key"
		}
		return fmt.Sprintf("cosign key %x", sha256.Sum256(der))[:len("cosign key ")+16]
	}
	return "no key"
}

// VerifySignature checks that sig, the contents of a signature file, is a signature of the index's bytes by one of the
// keys: one of minisign (legacy or prehashed; its trusted comment is verified as well), or one of `cosign sign-blob`
// (base64). Neither the index nor the signature may be trusted before.
//
// A file may hold several signatures separated by empty lines, of which one must be valid. While an index is being
// replaced, its file holds the old signature and the new one, because two files can't be replaced at the same time.
func VerifySignature(index, sig []byte, keys []Key) error {
	const remedy = "sign the index with a key that this node trusts (image_keys), or add the public key to those"
	if len(keys) == 0 {
		return refuse(remedy, "there are no trusted keys to check the image's signature with")
	}
	if len(sig) > MaxSignature {
		return refuse(remedy, "the image's signature is %d bytes long, which no signature is", len(sig))
	}
	parts := apart(sig)
	if len(parts) > maxSignatures {
		return refuse(remedy, "the file of the image's signature has %d parts, which no signature has", len(parts))
	}
	var faults []error
	for _, s := range parts {
		check := verifyCosign
		if bytes.HasPrefix(s, []byte("untrusted comment:")) {
			check = verifyMinisign
		}
		err := check(index, s, keys)
		if err == nil {
			return nil
		}
		faults = append(faults, err)
	}
	if len(faults) == 1 {
		return refuse(remedy, "the image's signature does not hold: %w", faults[0])
	}
	return refuse(remedy, "none of the image's %d signatures holds; the last: %w", len(faults), faults[len(faults)-1])
}

func verifyMinisign(index, sig []byte, keys []Key) error {
	var s minisign.Signature
	if err := s.UnmarshalText(sig); err != nil {
		return err
	}
	// The library's base64 ignores some bits and line ends. Only the canonical form is accepted.
	if text, err := s.MarshalText(); err != nil || !bytes.Equal(bytes.TrimSpace(text), bytes.TrimSpace(sig)) {
		return errors.New("it is not written the way minisign does")
	}
	var known []string
	for _, k := range keys {
		if k.mini == nil {
			continue
		}
		known = append(known, k.String())
		if k.mini.ID() != s.KeyID {
			continue
		}
		if minisign.Verify(*k.mini, index, sig) {
			return nil
		}
		return fmt.Errorf("it was not made by the %s for this index", k)
	}
	if known == nil {
		return errors.New("it is one of minisign, and none of the trusted keys is")
	}
	return fmt.Errorf("it was made by minisign key %016X, and trusted are %s", s.KeyID, strings.Join(known, ", "))
}

func verifyCosign(index, sig []byte, keys []Key) error {
	der, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSpace(string(sig)))
	if err != nil {
		return errors.New("it is neither one of minisign nor one of cosign sign-blob")
	}
	sum, known := sha256.Sum256(index), false
	for _, k := range keys {
		if k.ecdsa == nil {
			continue
		}
		known = true
		if ecdsa.VerifyASN1(k.ecdsa, sum[:], der) {
			return nil
		}
	}
	if !known {
		return errors.New("it is one of cosign, and none of the trusted keys is")
	}
	return errors.New("it was not made for this index by any of the trusted keys")
}
