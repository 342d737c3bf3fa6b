package images

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/zeebo/blake3"
)

// Algorithms of digests, in Ironic's spelling.
const (
	SHA256 = "sha256"
	SHA512 = "sha512"
	BLAKE3 = "blake3"
	MD5    = "md5" // protects only against accidents: needs permission
)

// algorithms are ordered: of two kinds of digest for one file the later one is used.
var algorithms = []struct {
	name  string
	bytes int
	make  func() hash.Hash
}{
	{MD5, md5.Size, md5.New},
	{SHA256, sha256.Size, sha256.New},
	{BLAKE3, 32, func() hash.Hash { return blake3.New() }},
	{SHA512, sha512.Size, sha512.New},
}

func rank(algo string) int {
	for i, a := range algorithms {
		if a.name == algo {
			return i
		}
	}
	return -1
}

// Digest is the expected digest of an image file.
type Digest struct {
	Algo string // SHA256, SHA512, BLAKE3 or MD5
	Sum  []byte
}

// String returns "sha256:<hex>", or "" for no digest.
func (d Digest) String() string {
	if d.Algo == "" {
		return ""
	}
	return d.Algo + ":" + hex.EncodeToString(d.Sum)
}

// New returns a hash of the digest's kind, SHA-256 for no digest.
func (d Digest) New() hash.Hash {
	if i := rank(d.Algo); i >= 0 {
		return algorithms[i].make()
	}
	return sha256.New()
}

// Matches reports whether sum is the expected one.
func (d Digest) Matches(sum []byte) bool { return d.Algo != "" && bytes.Equal(d.Sum, sum) }

const (
	remedyDigest = "give image_os_hash_algo (sha256, sha512 or blake3) and image_os_hash_value of the image file"
	remedyMD5    = remedyDigest + "; if there is nothing but MD5, the conductor's setting deploy.allow_md5 accepts it"
)

// algorithm finds an algorithm by name: case, hyphens and openssl's "SHA2-256" are accepted.
func algorithm(name string) string {
	name = strings.ReplaceAll(strings.ToLower(strings.TrimSpace(name)), "-", "")
	switch name {
	case "sha2256":
		return SHA256
	case "sha2512":
		return SHA512
	case "b3":
		return BLAKE3
	}
	return name
}

// ParseDigest parses a digest from an algorithm's name and hexadecimal digits. MD5 is accepted only if allow names it.
func ParseDigest(algo, value string, allow ...string) (Digest, error) {
	algo = algorithm(algo)
	i := rank(algo)
	switch {
	case algo == MD5 && !slices.Contains(allow, MD5):
		return Digest{}, refuse(remedyMD5, "an MD5 sum does not protect an image and is not accepted")
	case algo == "":
		return Digest{}, refuse(remedyDigest, "the digest's algorithm is not given")
	case i < 0:
		return Digest{}, refuse(remedyDigest, "digests of kind %q are not accepted", algo)
	}
	sum, err := hex.DecodeString(strings.TrimSpace(value))
	if want := algorithms[i].bytes; err != nil || len(sum) != want {
		return Digest{}, refuse(remedyDigest, "%q is not a %s digest of %d hexadecimal digits", value, algo, 2*want)
	}
	return Digest{algo, sum}, nil
}

// DigestOf parses a digest from digits only, whose number implies the kind, or from "sha256:<digits>". BLAKE3, which
// has the length of SHA-256, must be named so.
func DigestOf(value string, allow ...string) (Digest, error) {
	value = strings.TrimSpace(value)
	if algo, digits, ok := strings.Cut(value, ":"); ok {
		return ParseDigest(algo, digits, allow...)
	}
	switch len(value) {
	case 2 * md5.Size:
		return ParseDigest(MD5, value, allow...)
	case 2 * sha256.Size:
		return ParseDigest(SHA256, value)
	case 2 * sha512.Size:
		return ParseDigest(SHA512, value)
	case 40:
		return Digest{}, refuse(remedyDigest, "a SHA-1 sum does not protect an image and is not accepted")
	}
	return Digest{}, refuse(remedyDigest, "%q is not a SHA-256 or SHA-512 digest", value)
}

// Sums says how to interpret a checksum file.
type Sums struct {
	Algo string // of lines that don't name theirs; "": from their length and Name
	// of the checksum file, or its URL: lines of B3SUMS or disk.raw.b3 are BLAKE3, which has the length of SHA-256
	Name  string
	Allow []string // MD5, or nothing
}

var (
	gnuLine = regexp.MustCompile(`^\\?([0-9A-Fa-f]{32,128})(?:\s+\*?(\S.*))?$`)
	bsdLine = regexp.MustCompile(`^(SHA-?256|SHA-?512|SHA2-256|SHA2-512|BLAKE3|MD5)\s*\((.*)\)\s*=\s*([0-9A-Fa-f]+)$`)
	b3Name  = regexp.MustCompile(`(?i)(^|[^a-z0-9])(b3|b3sums?|blake3|blake3sums?)([^a-z0-9]|$)`)
)

// Find finds the digest of a file in the text of a checksum file: lines of sha256sum, sha512sum, b3sum or md5sum, of
// BSD's and openssl's "SHA256 (name) = digest", or one digest alone, also within a clear-signed message, whose
// signature is not checked. The file is its path, or its URL. Its directories may differ from those in the text, but
// the line whose name matches more of the path wins; of two kinds the stronger digest is used.
func (s Sums) Find(text, file string) (Digest, error) {
	whole := file
	file = path.Base(file)
	const remedy = "correct image_checksum: it must be a digest, or the URL of a checksum file that names the image"
	var found, alone Digest
	var weak error // why a digest of this file was refused
	var lines, named, best int
	for line := range strings.Lines(text) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "- ") // as clear-signing escapes
		if strings.HasPrefix(line, "-----BEGIN PGP SIGNATURE-----") {
			break
		}
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "-----") ||
			strings.HasPrefix(line, "Hash: ") {
			continue
		}
		lines++
		var d Digest
		var name string
		var err error
		if m := gnuLine.FindStringSubmatch(line); m != nil {
			name = m[2]
			d, err = s.bare(m[1])
		} else if m := bsdLine.FindStringSubmatch(line); m != nil {
			name = m[2]
			d, err = ParseDigest(m[1], m[3], s.Allow...)
		} else {
			continue
		}
		if name == "" {
			alone, weak = d, err
			continue
		}
		named++
		switch n := alike(strings.TrimSpace(name), whole); {
		case n == 0 || n < best:
			continue
		case n > best: // the previous match is another file with the same name
			best, found, weak = n, Digest{}, nil
		}
		if err != nil { // there may be a better one for the same file
			weak = err
			continue
		}
		if found.Algo == d.Algo && !found.Matches(d.Sum) {
			return Digest{}, refuse(remedy, "the checksum file has two different digests for %s", file)
		}
		if rank(d.Algo) > rank(found.Algo) {
			found = d
		}
	}
	switch {
	case found.Algo != "":
		return found, nil
	case alone.Algo != "" && lines == 1:
		return alone, nil
	case weak != nil:
		return Digest{}, weak
	case named > 0:
		return Digest{}, refuse(remedy, "the checksum file names %d files, but not %s", named, file)
	}
	return Digest{}, refuse(remedy, "the checksum file has no digest of %s in it", file)
}

// alike rates how well a name in a checksum file matches the path of a file: 0 for another file, more for each equal
// directory, and still more if the whole name is the path's end.
func alike(name, file string) int {
	split := func(s string) []string { return strings.Split(strings.TrimPrefix(path.Clean(s), "/"), "/") }
	a, b := split(name), split(file)
	n := 0
	for n < min(len(a), len(b)) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	if n == len(a) {
		n += len(b)
	}
	return n
}

// bare parses the digest of a line without its kind.
func (s Sums) bare(value string) (Digest, error) {
	algo := s.Algo
	if algo == "" && len(value) == 64 && b3Name.MatchString(path.Base(s.Name)) {
		algo = BLAKE3
	}
	if i := rank(algorithm(algo)); i >= 0 && len(value) == 2*algorithms[i].bytes {
		return ParseDigest(algo, value, s.Allow...)
	}
	return DigestOf(value, s.Allow...)
}

// Mismatch is the error for an image with another digest, with the remedy.
func (d Digest) Mismatch(got []byte) error {
	return refuse("check that the digest belongs to this version of the image file; if it does, fetch or publish the file again",
		"the image's digest is wrong: %s is %s, not %s", d.Algo, hex.EncodeToString(got), fmt.Sprintf("%x", d.Sum))
}
