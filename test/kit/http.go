package kit

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
)

// Request sends a request of a version of Ironic's API, with body as JSON unless it is nil, and returns the status and
// the object of the answer. Headers are names and values. A test whose server does not answer so is over.
func Request(t testing.TB, method, url, version string, body any, headers ...string) (status int,
	answer map[string]any) {
	t.Helper()
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, in)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-OpenStack-Ironic-API-Version", version)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > 0 {
		if err := json.Unmarshal(b, &answer); err != nil {
			t.Fatalf("%s %s: %s: %s: %v", method, url, resp.Status, b, err)
		}
	}
	return resp.StatusCode, answer
}
