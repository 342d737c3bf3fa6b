package rescue

import (
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"

	"golang.org/x/crypto/bcrypt"
)

// SHA-crypt hashes ($5$ and $6$, by Ulrich Drepper's specification of 2008) are what Ironic makes of a rescue password.

const (
	shaRounds    = 5000 // without a number in the hash
	leastRounds  = 1000
	mostRounds   = 1_000_000 // bounds the work per password check
	maxSalt      = 16
	shaAlphabet  = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	prefixSHA256 = "$5$"
	prefixSHA512 = "$6$"
)

// shaHash is a parsed SHA-crypt hash.
type shaHash struct {
	long   bool // SHA-512
	rounds int
	salt   string
	sum    string
}

func isSHA(text string) bool {
	return strings.HasPrefix(text, prefixSHA256) || strings.HasPrefix(text, prefixSHA512)
}

func parseSHA(text string) (shaHash, error) {
	h := shaHash{long: strings.HasPrefix(text, prefixSHA512), rounds: shaRounds}
	rest := text[len(prefixSHA256):]
	if n, ok := strings.CutPrefix(rest, "rounds="); ok {
		number, after, _ := strings.Cut(n, "$")
		var err error
		if h.rounds, err = strconv.Atoi(number); err != nil || h.rounds < leastRounds {
			return h, errors.New("the password's hash has no number of rounds that can be used")
		}
		if h.rounds > mostRounds {
			return h, fmt.Errorf("the password's hash has %d rounds, and may have %d", h.rounds, mostRounds)
		}
		rest = after
	}
	var ok bool
	h.salt, h.sum, ok = strings.Cut(rest, "$")
	want := 43
	if h.long {
		want = 86
	}
	if !ok || len(h.salt) > maxSalt || len(h.sum) != want {
		return h, errors.New("the password's hash is damaged")
	}
	return h, nil
}

// matches reports whether a password has this hash.
func (h shaHash) matches(password []byte) bool {
	return subtle.ConstantTimeCompare([]byte(h.of(password)), []byte(h.sum)) == 1
}

// of computes the last part of the hash of a password.
func (h shaHash) of(password []byte) string {
	fresh, size := sha256.New, sha256.Size
	if h.long {
		fresh, size = sha512.New, sha512.Size
	}
	salt := []byte(h.salt)
	sum := func(parts ...[]byte) []byte {
		d := fresh()
		for _, p := range parts {
			d.Write(p)
		}
		return d.Sum(nil)
	}
	b := sum(password, salt, password)
	d := fresh()
	d.Write(password)
	d.Write(salt)
	d.Write(repeated(b, len(password)))
	for n := len(password); n > 0; n >>= 1 {
		if n&1 != 0 {
			d.Write(b)
		} else {
			d.Write(password)
		}
	}
	a := d.Sum(nil)
	p := repeated(manyTimes(fresh(), password, len(password)), len(password))
	s := repeated(manyTimes(fresh(), salt, 16+int(a[0])), len(salt))
	for i := range h.rounds {
		d := fresh()
		if i&1 != 0 {
			d.Write(p)
		} else {
			d.Write(a)
		}
		if i%3 != 0 {
			d.Write(s)
		}
		if i%7 != 0 {
			d.Write(p)
		}
		if i&1 != 0 {
			d.Write(a)
		} else {
			d.Write(p)
		}
		a = d.Sum(a[:0])
	}
	return encodeSHA(a, size)
}

// repeated is a digest, repeated and cut to n bytes.
func repeated(digest []byte, n int) []byte {
	out := make([]byte, 0, n+len(digest))
	for len(out) < n {
		out = append(out, digest...)
	}
	return out[:n]
}

func manyTimes(d hash.Hash, what []byte, n int) []byte {
	for range n {
		d.Write(what)
	}
	return d.Sum(nil)
}

// encodeSHA writes a digest in the order and the alphabet of the specification.
func encodeSHA(a []byte, size int) string {
	var out strings.Builder
	put := func(v uint32, n int) {
		for range n {
			out.WriteByte(shaAlphabet[v&0x3f])
			v >>= 6
		}
	}
	x, y, z := 0, size/3, size/3*2
	for range size / 3 {
		put(uint32(a[x])<<16|uint32(a[y])<<8|uint32(a[z]), 4)
		if size == sha256.Size {
			x, y, z = z+1, x+1, y+1
		} else {
			x, y, z = y+1, z+1, x+1
		}
	}
	if size == sha256.Size {
		put(uint32(a[31])<<8|uint32(a[30]), 3)
	} else {
		put(uint32(a[63]), 2)
	}
	return out.String()
}

// checkHash validates a password's hash.
func checkHash(text string) error {
	if isSHA(text) {
		_, err := parseSHA(text)
		return err
	}
	switch cost, err := bcrypt.Cost([]byte(text)); {
	case err != nil:
		return errors.New("the password is not given as a bcrypt or SHA-crypt hash")
	case cost > maxCost:
		return fmt.Errorf("the password's hash has cost %d, and may have %d", cost, maxCost)
	}
	return nil
}

// matches reports whether a password has a hash, which was checked.
func matches(text string, password []byte) bool {
	if isSHA(text) {
		h, err := parseSHA(text)
		return err == nil && h.matches(password)
	}
	return bcrypt.CompareHashAndPassword([]byte(text), password) == nil
}
