package configdrive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	remote "github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/proto/drive"
)

// fetchMax is the size of the largest drive in base64 with line breaks, uncompressed.
const fetchMax = MaxSize/3*4 + MaxSize/16

// Servers holds the settings for config drives given as a URL.
type Servers struct {
	// certificates in PEM form, one of which must have signed the server's; empty: the system's
	CA  string
	Log *slog.Logger // nil is silent
}

// fetch downloads a config drive. The URL is as secret as the drive: errors contain no user and query.
func (s Servers) fetch(ctx context.Context, url string) ([]byte, error) {
	o, err := remote.OriginOf("config drive", "the config drive's URL", []string{url}, s.CA, remote.DefaultPatience,
		s.Log)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	b, err := o.GetUpTo(ctx, "", fetchMax)
	if errors.Is(err, remote.ErrTooLong) {
		return nil, errTooLarge()
	}
	return b, err
}

// IsURL reports whether a config drive is given as a URL.
func IsURL(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || raw[0] != '"' {
		return false
	}
	text, err := unquote(raw)
	return err == nil && isURL(text)
}

// isURL checks only the beginning: the rest may be a whole drive.
func isURL(text []byte) bool { return drive.IsURL(string(text[:min(len(text), len("https://"))])) }
