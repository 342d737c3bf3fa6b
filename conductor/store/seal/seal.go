// Package seal encrypts secrets in the database's files, with AES-256-GCM and a key of 32 bytes.
//
// A seal is a version byte, a random nonce and the ciphertext. The purpose ("driver_info of node X") is authenticated
// with it, so that seals can't be moved from row to row.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/ingot-metal/ingot/conductor/guard/keyfile"
)

// Sealer seals and opens with one key. Safe for concurrent use.
type Sealer struct {
	aead cipher.AEAD
	mac  []byte // the key of MAC
}

const version = 1

// New returns the sealer of a key of 32 bytes.
func New(key []byte) (*Sealer, error) {
	if len(key) != 32 {
		return nil, fmt.Errorf("the encryption key has %d bytes, want 32", len(key))
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("use encryption key: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("use encryption key: %w", err)
	}
	return &Sealer{aead, sum(key, "ingot mac 1", nil)}, nil
}

// MAC proves that text was written with the key. The purpose is authenticated with it.
func (s *Sealer) MAC(purpose, text string) []byte { return sum(s.mac, purpose, []byte(text)) }

func sum(key []byte, purpose string, text []byte) []byte {
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "%d %s ", len(purpose), purpose)
	h.Write(text)
	return h.Sum(nil)
}

// Is reports whether data is a seal rather than a JSON document.
func Is(data []byte) bool { return len(data) > 0 && data[0] == version }

// Seal encrypts plain for a purpose.
func (s *Sealer) Seal(purpose string, plain []byte) []byte {
	out := make([]byte, 1+s.aead.NonceSize(), 1+s.aead.NonceSize()+len(plain)+s.aead.Overhead())
	out[0] = version
	rand.Read(out[1:])
	return s.aead.Seal(out, out[1:], plain, []byte(purpose))
}

// Open decrypts what Seal made for the same purpose with the same key.
func (s *Sealer) Open(purpose string, sealed []byte) ([]byte, error) {
	n := 1 + s.aead.NonceSize()
	if len(sealed) < n || sealed[0] != version {
		return nil, fmt.Errorf("open seal of %s: not a seal", purpose)
	}
	plain, err := s.aead.Open(nil, sealed[1:n], sealed[n:], []byte(purpose))
	if err != nil {
		return nil, fmt.Errorf("open seal of %s: damaged, or another key", purpose)
	}
	return plain, nil
}

// Decode reads a key as a key file, or a variable of the environment, has it.
func Decode(text string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(key) != 32 {
		return nil, errors.New("it is not 32 bytes in base64")
	}
	return key, nil
}

// Encode makes the content of a key file.
func Encode(key []byte) []byte { return []byte(base64.StdEncoding.EncodeToString(key) + "\n") }

// KeyFile reads the key, or makes it when the database is fresh. With data but without its key there is nothing to
// make.
func KeyFile(path string, fresh bool) ([]byte, error) {
	b, err := keyfile.Read(path)
	if err == nil {
		key, err := Decode(string(b))
		if err != nil {
			return nil, fmt.Errorf("key file %s can't be used: %w", path, err)
		}
		return key, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	if !fresh {
		return nil, fmt.Errorf("key file %s is missing, without which the secrets in the database can't be read", path)
	}
	key := make([]byte, 32)
	rand.Read(key)
	if err := keyfile.Write(path, Encode(key), 0o600); err != nil {
		return nil, fmt.Errorf("write key file: %w", err)
	}
	return key, nil
}
