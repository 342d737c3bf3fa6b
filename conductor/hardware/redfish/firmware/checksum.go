package firmware

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"

	"github.com/ingot-metal/ingot/conductor/guard/limit"
)

// Compare reads the file of an update and compares its checksum: a damaged or wrong file is found before the controller
// is asked, which reads it by itself. Errors name the host alone.
func Compare(ctx context.Context, files http.RoundTripper, u Update) error {
	at, err := url.Parse(u.URL)
	if err != nil {
		return fmt.Errorf("the URL of %s can't be read", u.Component)
	}
	op := fmt.Sprintf("compare the checksum of the file for %s at %s", u.Component, at.Host)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.URL, http.NoBody)
	if err != nil {
		return fmt.Errorf("%s: it is no URL", op)
	}
	resp, err := (&http.Client{Transport: files}).Do(r)
	if err != nil {
		for wrapped := (*url.Error)(nil); errors.As(err, &wrapped); {
			err = wrapped.Err // without the URL
		}
		return fmt.Errorf("%s: %w", op, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: the server answers %d", op, resp.StatusCode)
	}
	var sum hash.Hash = sha256.New()
	if len(u.Checksum) == 2*sha512.Size {
		sum = sha512.New()
	}
	n, err := io.Copy(sum, io.LimitReader(resp.Body, limit.FirmwareFile+1))
	switch got := hex.EncodeToString(sum.Sum(nil)); {
	case err != nil:
		return fmt.Errorf("%s: the file ends after %d bytes: %w", op, n, err)
	case n > limit.FirmwareFile:
		return fmt.Errorf("%s: it is larger than %d MiB", op, limit.FirmwareFile>>20)
	case got != u.Checksum:
		return fmt.Errorf("%s: it is %s, not %s", op, got, u.Checksum)
	}
	return nil
}
