package configdrive

import (
	"bytes"
	"context"
	"log/slog"

	remote "github.com/ingot-metal/ingot/agent/fetch"
)

// fetchMax is base64 with line breaks of the largest drive, not compressed.
const fetchMax = MaxSize/3*4 + MaxSize/16

// Servers are those of config drives that are given as a URL.
type Servers struct {
	CA   string          // certificates in PEM form, one of which has signed the server's; empty: those that this machine trusts
	Wait remote.Patience // zero: remote.DefaultPatience
	Log  *slog.Logger    // nil is silent
}

// fetch gets a config drive from a URL. The URL is as secret as the drive: what is told of it has no user and query.
func (s Servers) fetch(ctx context.Context, url string) ([]byte, error) {
	if s.Wait == (remote.Patience{}) {
		s.Wait = remote.DefaultPatience
	}
	o, err := remote.OriginOf("config drive", "the config drive's URL", []string{url}, s.CA, s.Wait, s.Log)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	return o.GetUpTo(ctx, "", fetchMax)
}

// isURL tells whether a config drive is given as the address of one.
func isURL(text []byte) bool {
	return bytes.HasPrefix(text, []byte("http://")) || bytes.HasPrefix(text, []byte("https://"))
}
