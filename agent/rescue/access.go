package rescue

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Access says who may log in. A password hash or a key is required.
type Access struct {
	PasswordHash string   `json:"password_hash,omitempty"` // bcrypt or SHA-crypt; empty: no password login
	Keys         []string `json:"ssh_keys,omitempty"`      // authorized_keys lines without options
}

// maxKeys is more than one machine needs.
const maxKeys = 64

// maxCost bounds the bcrypt work per password check.
const maxCost = 14

// check validates the access data and parses the keys.
func (a Access) check() ([]ssh.PublicKey, error) {
	if a.PasswordHash == "" && len(a.Keys) == 0 {
		return nil, errors.New("neither a password nor an ssh key is given")
	}
	if a.PasswordHash != "" {
		if err := checkHash(a.PasswordHash); err != nil {
			return nil, err
		}
	}
	if len(a.Keys) > maxKeys {
		return nil, fmt.Errorf("%d ssh keys are given; there may be %d", len(a.Keys), maxKeys)
	}
	var keys []ssh.PublicKey
	for i, line := range a.Keys {
		k, err := parseKey(line)
		if err != nil {
			return nil, fmt.Errorf("ssh key %d: %w", i+1, err)
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// parseKey parses an authorized_keys line. Options restrict a key; since they would be ignored, a line with options is
// refused.
func parseKey(line string) (ssh.PublicKey, error) {
	k, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	switch {
	case err != nil:
		return nil, errors.New("it is no line of an authorized_keys file")
	case len(options) > 0:
		return nil, fmt.Errorf("its options (%s) are not supported", strings.Join(options, ","))
	case len(bytes.TrimSpace(rest)) > 0:
		return nil, errors.New("it has more than one line")
	}
	if _, ok := k.(*ssh.Certificate); ok {
		return nil, errors.New("it is a certificate, which is not supported")
	}
	return k, nil
}
