// Package seal encrypts what must not be readable in the database's files, with AES-256-GCM and a key of 32 bytes.
//
// A seal is a version byte, a random nonce and the ciphertext. The purpose ("driver_info of node X") is authenticated with it, so that
// seals can't be moved from row to row.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Sealer seals and opens with one key. Safe for concurrent use.
type Sealer struct{ aead cipher.AEAD }

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
	return &Sealer{aead}, nil
}

// Seal encrypts plain for a purpose.
func (s *Sealer) Seal(purpose string, plain []byte) ([]byte, error) {
	out := make([]byte, 1+s.aead.NonceSize(), 1+s.aead.NonceSize()+len(plain)+s.aead.Overhead())
	out[0] = version
	if _, err := rand.Read(out[1:]); err != nil {
		return nil, fmt.Errorf("make nonce: %w", err)
	}
	return s.aead.Seal(out, out[1:], plain, []byte(purpose)), nil
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

// KeyFile reads the key, or makes it when the database is fresh. With data but without its key there is nothing to make.
func KeyFile(path string, fresh bool) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err == nil {
		key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(b)))
		if err != nil || len(key) != 32 {
			return nil, fmt.Errorf("key file %s is not 32 bytes in base64: restore it from a backup", path)
		}
		return key, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	if !fresh {
		return nil, fmt.Errorf("key file %s is missing, without which the secrets in the database can't be read: restore it from a backup", path)
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	if err := writeDurably(path, []byte(base64.StdEncoding.EncodeToString(key)+"\n")); err != nil {
		return nil, fmt.Errorf("write key file: %w", err)
	}
	return key, nil
}

// writeDurably makes the file at path, complete or not at all: a key that a power cut takes away takes the data with it.
func writeDurably(path string, b []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(b); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
