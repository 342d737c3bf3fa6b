package signoflife

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
)

// Path is where the one-time address leads, below the conductor's.
const Path = "/ingot/v1/phone_home/"

// Token returns the token that the system of a job on a node shows: it can't be made without the key, and none is valid
// for another job.
func Token(key []byte, nodeUUID, jobID string) string {
	id, err := hex.DecodeString(strings.ReplaceAll(nodeUUID, "-", ""))
	if err != nil || len(id) != 16 {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(append(id, seal(key, nodeUUID, jobID)...))
}

// NodeOf returns the node of a token, without verifying it; "" for a text that can't be a token.
func NodeOf(token string) string {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) != 16+sha256.Size {
		return ""
	}
	id := hex.EncodeToString(b[:16])
	return strings.Join([]string{id[:8], id[8:12], id[12:16], id[16:20], id[20:]}, "-")
}

// Good reports whether a token is the one of this job.
func Good(key []byte, token, nodeUUID, jobID string) bool {
	want := Token(key, nodeUUID, jobID)
	return len(key) > 0 && want != "" && hmac.Equal([]byte(want), []byte(token))
}

func seal(key []byte, nodeUUID, jobID string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("ingot phone home 1\x00" + nodeUUID + "\x00" + jobID))
	return h.Sum(nil)
}
