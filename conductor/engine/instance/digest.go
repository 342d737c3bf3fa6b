package instance

import (
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"strings"

	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// digits is how many hexadecimal digits a digest has.
var digits = map[string]int{"md5": 32, "sha256": 64, "sha512": 128, "blake3": 64}

// webURL reports whether a text looks like a URL that can be fetched.
func webURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
}

// checkDigest refuses a digest that no image can have. algo is in small letters, or empty.
func checkDigest(key, algo, value string) error {
	value = strings.TrimSpace(value)
	if strings.Contains(value, "/") || strings.HasPrefix(value, "file:") {
		if webURL(value) {
			return nil // of a checksum file, which the agent reads
		}
		return node.Invalidf("%s is neither a digest nor the http or https URL of a checksum file", key)
	}
	if name, rest, ok := strings.Cut(value, ":"); ok && algo == "" {
		algo, value = plainAlgo(name), rest
	}
	if algo == "" {
		switch len(value) {
		case 32, 64, 128:
		case 40:
			return node.Invalidf("%s is a SHA-1 sum, which does not protect an image: give a SHA-256 or SHA-512 digest", key)
		default:
			return node.Invalidf("%s has %d characters: a SHA-256 digest has 64 hexadecimal digits, a SHA-512 digest 128",
				key, len(value))
		}
	} else if want, ok := digits[algo]; !ok {
		return node.Invalidf("%s is of a kind that is not supported: use sha256, sha512 or blake3", key)
	} else if len(value) != want {
		return node.Invalidf("%s has %d characters: a digest of kind %s has %d hexadecimal digits", key, len(value), algo,
			want)
	}
	if _, err := hex.DecodeString(value); err != nil {
		return node.Invalidf("%s has characters that are no hexadecimal digits", key)
	}
	return nil
}

// plainAlgo writes the name of an algorithm one way.
func plainAlgo(name string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimSpace(name)), "-", "")
}

// DriveText reads a config drive that is given as a text: the text of an object, which it returns, an http or https
// URL, or an image in base64. ok is false for anything else, such as the path of a file, some of which look like
// base64.
func DriveText(text string) (object map[string]any, ok bool) {
	if exact.Unmarshal([]byte(text), &object) == nil && object != nil {
		return object, true
	}
	packed := strings.Join(strings.Fields(text), "")
	if webURL(text) || packed == "" || packed[0] == '/' {
		return nil, webURL(text)
	}
	_, padded := base64.StdEncoding.DecodeString(packed)
	_, bare := base64.RawStdEncoding.DecodeString(packed)
	return nil, padded == nil || bare == nil
}

// CheckDrive refuses a config drive in instance_info that could not be put on a disk.
func CheckDrive(info map[string]any) error {
	switch v := info["configdrive"].(type) {
	case nil, map[string]any:
	case string:
		if _, ok := DriveText(v); !ok && v != "" && v != redact.Stars { // where nodes are read without theirs
			return node.Invalidf(
				"instance_info's configdrive is neither a JSON object, nor an http or https URL, nor an image in base64")
		}
	default:
		return node.Invalidf("instance_info's configdrive is neither an object nor a text")
	}
	return nil
}
