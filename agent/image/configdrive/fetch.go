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

// fetchMax is base64 with line breaks of the largest drive, not compressed.
const fetchMax = MaxSize/3*4 + MaxSize/16

// Servers are those of config drives that are given as a URL.
type Servers struct {
	// certificates in PEM form, one of which has signed the server's; empty: those that this machine trusts
	CA  string
	Log *slog.Logger // nil is silent
}

// fetch gets a config drive from a URL. The URL is as secret as the drive: what is told of it has no user and query.
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

// IsURL tells whether a config drive is given as the address of one.
func IsURL(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || raw[0] != '"' {
		return false
	}
	text, err := unquote(raw)
	return err == nil && isURL(text)
}

// isURL looks at the beginning alone: the rest may be a whole drive.
func isURL(text []byte) bool { return drive.IsURL(string(text[:min(len(text), len("https://"))])) }
