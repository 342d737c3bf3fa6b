package rescue

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/crypto/ssh"
)

// Access says who may log in. One of the two has to be there.
type Access struct {
	PasswordHash string   `json:"password_hash,omitempty"` // bcrypt; empty: no passwords
	Keys         []string `json:"ssh_keys,omitempty"`      // lines as of an authorized_keys file, without options
}

// maxKeys is more than anybody needs for one machine.
const maxKeys = 64

// maxCost bounds the work that a hash asks of this machine for each password it is compared with.
const maxCost = 14

// check finds faults, and reads the keys.
func (a Access) check() ([]ssh.PublicKey, error) {
	if a.PasswordHash == "" && len(a.Keys) == 0 {
		return nil, errors.New("neither a password nor an ssh key is given")
	}
	if a.PasswordHash != "" {
		switch cost, err := bcrypt.Cost([]byte(a.PasswordHash)); {
		case err != nil:
			return nil, errors.New("the password is not given as a bcrypt hash")
		case cost > maxCost:
			return nil, fmt.Errorf("the password's hash has cost %d, and may have %d", cost, maxCost)
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

// parseKey reads one line of an authorized_keys file. Options restrict what a key may do; one that would be ignored is
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
