package access

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/crypto/bcrypt"
)

// maxCost bounds the work per password: cost 16 takes some five seconds.
const maxCost = 16

// bcryptHash matches bcrypt's output, in the three spellings of its version that mean the same.
var bcryptHash = regexp.MustCompile(`^\$2[aby]\$[0-9]{2}\$[./A-Za-z0-9]{53}$`)

// parseHtpasswd reads the lines NAME:HASH of an htpasswd file, with bcrypt hashes and no others. Empty lines and those
// that begin with # are left out. One faulty line makes the whole file faulty: half a file would lock people out.
func parseHtpasswd(b []byte) (map[string][]byte, error) {
	users := map[string][]byte{}
	for i, line := range bytes.Split(b, []byte("\n")) {
		text := strings.TrimSpace(string(line))
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		name, hash, ok := strings.Cut(text, ":")
		switch {
		case !ok:
			return nil, fmt.Errorf("line %d is not NAME:HASH", i+1)
		case name == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
			return nil, fmt.Errorf("line %d has no name that can be used", i+1)
		case users[name] != nil:
			return nil, fmt.Errorf("line %d: %s is there twice", i+1, name)
		case !bcryptHash.MatchString(hash):
			return nil, fmt.Errorf("line %d: the hash of %s is not whole, or not bcrypt's: make it with htpasswd -B",
				i+1, name)
		}
		if cost, err := bcrypt.Cost([]byte(hash)); err != nil {
			return nil, fmt.Errorf("line %d: the hash of %s: %w", i+1, name, err)
		} else if cost > maxCost {
			return nil, fmt.Errorf(
				"line %d: the hash of %s has cost %d, with which each login takes minutes: use at most %d", i+1, name,
				cost, maxCost)
		}
		users[name] = []byte(hash)
	}
	if len(users) == 0 {
		return nil, fmt.Errorf("it has no users: add one with htpasswd -B -c FILE NAME")
	}
	return users, nil
}
