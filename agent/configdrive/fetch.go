package configdrive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/ingot-metal/ingot/agent/step"
)

const (
	fetchTries = 5
	fetchLimit = 2 * time.Minute // for one try
	// base64 with line breaks of the largest drive, not compressed.
	fetchMax = MaxSize/3*4 + MaxSize/16
)

// fetch gets a config drive from a URL. It is small: a broken connection begins again. The URL is as secret as the drive.
func fetch(ctx context.Context, rawURL string) ([]byte, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Host == "" {
		return nil, step.Failf("correct the config drive's URL", "its URL can't be understood")
	}
	where := (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
	wait := 500 * time.Millisecond
	for try := 1; ; try++ {
		body, final, err := get(ctx, u.String())
		if err == nil {
			return body, nil
		}
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		err = fmt.Errorf("fetch %s: %w", where, err)
		if final || ctx.Err() != nil {
			return nil, step.Fail("correct the config drive's URL, or put the config drive there", err)
		}
		if try == fetchTries {
			return nil, step.Retryable("check that its server runs and that the provisioning network leads to it", err)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, context.Cause(ctx)
		case <-t.C:
		}
		wait *= 2
	}
}

// get tries once; final says that trying again is of no use.
func get(ctx context.Context, u string) (body []byte, final bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, true, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		code := resp.StatusCode
		return nil, code < 500 && code != http.StatusTooManyRequests && code != http.StatusRequestTimeout,
			fmt.Errorf("the server answered %d %s", code, http.StatusText(code))
	}
	if resp.ContentLength > fetchMax {
		return nil, true, errTooLarge()
	}
	if resp.ContentLength >= 0 { // so that it need not grow
		body = make([]byte, resp.ContentLength)
		_, err = io.ReadFull(resp.Body, body)
		return body, false, err
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, fetchMax+1))
	if err == nil && len(body) > fetchMax {
		return nil, true, errTooLarge()
	}
	return body, false, err
}
