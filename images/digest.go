package images

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"path"
	"regexp"
	"strings"
)

// Digest is what an image file must hash to.
type Digest struct {
	Algo string // "sha256" or "sha512"
	Sum  []byte
}

// String gives "sha256:<hex>", or "" for no digest.
func (d Digest) String() string {
	if d.Algo == "" {
		return ""
	}
	return d.Algo + ":" + hex.EncodeToString(d.Sum)
}

// New makes a hash of the digest's kind.
func (d Digest) New() hash.Hash {
	if d.Algo == "sha512" {
		return sha512.New()
	}
	return sha256.New()
}

// Matches says whether sum is the wanted one.
func (d Digest) Matches(sum []byte) bool { return bytes.Equal(d.Sum, sum) }

const remedyDigest = "give image_os_hash_algo (sha256 or sha512) and image_os_hash_value of the image file"

// ParseDigest makes a digest of an algorithm's name and hexadecimal digits.
func ParseDigest(algo, value string) (Digest, error) {
	algo = strings.ReplaceAll(strings.ToLower(strings.TrimSpace(algo)), "-", "")
	want := map[string]int{"sha256": sha256.Size, "sha512": sha512.Size}[algo]
	if want == 0 {
		return Digest{}, refuse(remedyDigest, "digests of kind %q are not accepted", algo)
	}
	sum, err := hex.DecodeString(strings.TrimSpace(value))
	if err != nil || len(sum) != want {
		return Digest{}, refuse(remedyDigest, "%q is not a %s digest of %d hexadecimal digits", value, algo, 2*want)
	}
	return Digest{algo, sum}, nil
}

// DigestOf makes a digest of digits alone, whose number tells the kind.
func DigestOf(value string) (Digest, error) {
	switch value = strings.TrimSpace(value); len(value) {
	case 2 * sha256.Size:
		return ParseDigest("sha256", value)
	case 2 * sha512.Size:
		return ParseDigest("sha512", value)
	case 32:
		return Digest{}, refuse(remedyDigest, "an MD5 sum does not protect an image and is not accepted")
	case 40:
		return Digest{}, refuse(remedyDigest, "a SHA-1 sum does not protect an image and is not accepted")
	}
	return Digest{}, refuse(remedyDigest, "%q is not a SHA-256 or SHA-512 digest", value)
}

var (
	gnuLine = regexp.MustCompile(`^\\?([0-9A-Fa-f]{64}|[0-9A-Fa-f]{128})(?:\s+\*?(\S.*))?$`)
	bsdLine = regexp.MustCompile(`^(SHA-?256|SHA-?512)\s*\((.*)\)\s*=\s*([0-9A-Fa-f]+)$`)
)

// ParseSums finds the digest of a file in the text of a checksum file: lines of sha256sum or sha512sum, of BSD's "SHA256 (name) =
// digest", or one digest alone. The file is known by its name without folders; of two kinds the longer digest is taken.
func ParseSums(text, file string) (Digest, error) {
	file = path.Base(file)
	const remedy = "correct image_checksum: it must be a digest, or the URL of a checksum file that names the image"
	var found, alone Digest
	var lines, named int
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "-----") {
			continue
		}
		lines++
		var d Digest
		var name string
		var err error
		if m := gnuLine.FindStringSubmatch(line); m != nil {
			name = m[2]
			d, err = DigestOf(m[1])
		} else if m := bsdLine.FindStringSubmatch(line); m != nil {
			name = m[2]
			d, err = ParseDigest(m[1], m[3])
		} else {
			continue
		}
		if err != nil {
			return Digest{}, err
		}
		if name == "" {
			alone = d
			continue
		}
		named++
		if path.Base(strings.TrimSpace(name)) != file {
			continue
		}
		if found.Algo == d.Algo && !found.Matches(d.Sum) {
			return Digest{}, refuse(remedy, "the checksum file has two different digests for %s", file)
		}
		if len(d.Sum) > len(found.Sum) {
			found = d
		}
	}
	switch {
	case found.Algo != "":
		return found, nil
	case alone.Algo != "" && lines == 1:
		return alone, nil
	case named > 0:
		return Digest{}, refuse(remedy, "the checksum file names %d files, but not %s", named, file)
	}
	return Digest{}, refuse(remedy, "the checksum file has no SHA-256 or SHA-512 digest in it")
}

// Mismatch says that an image has another digest, and what to do.
func (d Digest) Mismatch(got []byte) error {
	return refuse("check that the digest belongs to this version of the image file; if it does, fetch or publish the file again",
		"the image's digest is wrong: %s is %s, not %s", d.Algo, hex.EncodeToString(got), fmt.Sprintf("%x", d.Sum))
}
