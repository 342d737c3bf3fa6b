package publish

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"

	"aead.dev/minisign"
	"golang.org/x/crypto/nacl/secretbox"
	"golang.org/x/crypto/scrypt"
)

// Signer signs an index.
type Signer interface {
	// Suffix is appended to the index's name for the signature file.
	Suffix() string
	// Sign returns the contents of the signature file.
	Sign(index []byte) ([]byte, error)
}

const remedySecret = "give the secret key file that `minisign -G` or `cosign generate-key-pair` made, and its password"

// Minisign reads a secret key of minisign. password is called only if the key has one.
func Minisign(key []byte, password func() (string, error)) (Signer, error) {
	var k minisign.PrivateKey
	if !minisign.IsEncrypted(key) {
		if err := k.UnmarshalText(bytes.TrimSpace(key)); err != nil {
			return nil, refuse(remedySecret, "read the secret key: %w", err)
		}
		return minisigner{k}, nil
	}
	pass, err := password()
	if err != nil {
		return nil, err
	}
	if k, err = minisign.DecryptKey(pass, key); err != nil {
		return nil, refuse(remedySecret, "unlock the secret key: the password is wrong, or the file is damaged")
	}
	return minisigner{k}, nil
}

type minisigner struct{ key minisign.PrivateKey }

func (minisigner) Suffix() string { return ".minisig" }

func (s minisigner) Sign(index []byte) ([]byte, error) {
	// Prehashed, minisign's default since 0.10, and without a time: the same index gets the same signature.
	r := minisign.NewReader(bytes.NewReader(index))
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, err
	}
	comment := fmt.Sprintf("ingot index sha256:%x", sha256.Sum256(index))
	return r.SignWithComments(s.key, comment, fmt.Sprintf("signature from minisign secret key %016X", s.key.ID())), nil
}

// Cosign reads a secret key of cosign, encrypted or not, or another ECDSA P-256 key in PEM.
func Cosign(key []byte, password func() (string, error)) (Signer, error) {
	block, _ := pem.Decode(key)
	if block == nil {
		return nil, refuse(remedySecret, "the secret key is not a PEM file")
	}
	der := block.Bytes
	switch block.Type {
	case "ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY":
		pass, err := password()
		if err != nil {
			return nil, err
		}
		if der, err = unlock(der, pass); err != nil {
			return nil, refuse(remedySecret, "unlock the secret key: %w", err)
		}
	case "EC PRIVATE KEY":
		k, err := x509.ParseECPrivateKey(der)
		return cosigner{k}, checkCurve(k, err)
	case "PRIVATE KEY":
	default:
		return nil, refuse(remedySecret, "a %q is not a secret key that signs images", block.Type)
	}
	any, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, refuse(remedySecret, "read the secret key: %w", err)
	}
	k, _ := any.(*ecdsa.PrivateKey)
	return cosigner{k}, checkCurve(k, nil)
}

func checkCurve(k *ecdsa.PrivateKey, err error) error {
	if err != nil {
		return refuse(remedySecret, "read the secret key: %w", err)
	}
	if k == nil || k.Curve != elliptic.P256() {
		return refuse(remedySecret, "the secret key is not of the kind ECDSA P-256")
	}
	return nil
}

type cosigner struct{ key *ecdsa.PrivateKey }

func (cosigner) Suffix() string { return ".sig" }

func (s cosigner) Sign(index []byte) ([]byte, error) {
	sum := sha256.Sum256(index)
	der, err := ecdsa.SignASN1(rand.Reader, s.key, sum[:])
	return []byte(base64.StdEncoding.EncodeToString(der) + "\n"), err
}

// unlock decrypts a key file of cosign: JSON with the parameters of scrypt, and a NaCl secret box.
func unlock(text []byte, password string) ([]byte, error) {
	var f struct {
		KDF struct {
			Name   string
			Params struct{ N, R, P int }
			Salt   []byte
		}
		Cipher struct {
			Name  string
			Nonce []byte
		}
		Ciphertext []byte
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, err
	}
	p := f.KDF.Params
	if f.KDF.Name != "scrypt" || f.Cipher.Name != "nacl/secretbox" || len(f.Cipher.Nonce) != 24 {
		return nil, fmt.Errorf("it is locked with %q and %q, which are not known", f.KDF.Name, f.Cipher.Name)
	}
	// cosign uses N=65536, r=8, p=1: 64 MiB.
	if p.N > 1<<20 || p.R > 16 || p.P > 16 {
		return nil, fmt.Errorf("its scrypt parameters %d, %d, %d are absurd", p.N, p.R, p.P)
	}
	k, err := scrypt.Key([]byte(password), f.KDF.Salt, p.N, p.R, p.P, 32)
	if err != nil {
		return nil, err
	}
	der, ok := secretbox.Open(nil, f.Ciphertext, (*[24]byte)(f.Cipher.Nonce), (*[32]byte)(k))
	if !ok {
		return nil, fmt.Errorf("the password is wrong, or the file is damaged")
	}
	return der, nil
}
