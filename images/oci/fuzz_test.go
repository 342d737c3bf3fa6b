package oci

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
)

// answers is a registry without a network.
type answers func(req *http.Request) (contentType string, body []byte)

func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	contentType, b := a(req)
	resp := &http.Response{Status: "404 Not Found", StatusCode: 404, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: req}
	if b == nil {
		return resp, nil
	}
	resp.Status, resp.StatusCode, resp.ContentLength = "200 OK", 200, int64(len(b))
	resp.Header.Set("Content-Type", contentType)
	resp.Header.Set("Docker-Content-Digest", index.Of(b).String())
	if req.Method == http.MethodGet {
		resp.Body = io.NopCloser(bytes.NewReader(b))
	}
	return resp, nil
}

// partSize is the length of the padded part of the OCI index, as in its descriptor.
const partSize = 2000

// partDigest stands for the part's digest, which no fuzzer would find.
var partDigest = "sha256:" + strings.Repeat("c", 64)

// FuzzOpen holds that no manifest and no OCI index makes Open panic, access another repository, or return data that no
// digest covers.
func FuzzOpen(f *testing.F) {
	idx := image(3, 7).x.Marshal()
	signature := []byte("untrusted comment:")
	manifest := func(layers ...any) []byte {
		b, err := json.Marshal(
			map[string]any{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageManifest,
				"artifactType": ArtifactType, "layers": layers})
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	layer := func(mediaType string, b []byte) any {
		return map[string]any{"mediaType": mediaType, "digest": index.Of(b).String(), "size": len(b)}
	}
	first, signed := layer(indexType, idx), layer(signatureTypes[".minisig"], signature)
	whole := manifest(first, signed, layer(signatureTypes[".sig"], signature), layer(objectType, idx))
	top := []byte(fmt.Sprintf(
		`{"schemaVersion": 2, "manifests": [{"mediaType": %q, "artifactType": %q, "digest": %q, "size": %d}]}`,
		ocispec.MediaTypeImageManifest, ArtifactType, partDigest, partSize))
	for _, b := range [][]byte{whole, manifest(first), manifest(signed, first), manifest(first, signed, signed, signed),
		manifest(), []byte("{}"), []byte("null"), nil, bytes.ReplaceAll(whole, []byte("sha256:"), []byte("sha512:")),
		bytes.ReplaceAll(whole, []byte(`"size":`), []byte(`"size":-`)),
		bytes.ReplaceAll(whole, []byte(`"layers"`), []byte(`"config":[],"layers"`)), whole[:len(whole)/2]} {
		f.Add(false, b, []byte{})
		f.Add(true, top, b)
	}
	f.Add(true, []byte(`{"manifests": [{}, {"artifactType": "`+ArtifactType+`"}]}`), whole)
	f.Add(true, bytes.ReplaceAll(top, []byte(ocispec.MediaTypeImageManifest), []byte(ocispec.MediaTypeImageIndex)), top)
	f.Fuzz(func(t *testing.T, isIndex bool, b, part []byte) {
		if len(part) > partSize {
			return
		}
		part = append(bytes.Clone(part), bytes.Repeat([]byte(" "), partSize-len(part))...)
		b = append(bytes.ReplaceAll(b, []byte(partDigest), []byte(index.Of(part).String())), ' ')
		contentType := ocispec.MediaTypeImageManifest
		if isIndex {
			contentType = ocispec.MediaTypeImageIndex
		}
		asked := 0
		registry := answers(func(req *http.Request) (string, []byte) {
			asked++
			place, rest, ok := strings.Cut(strings.TrimPrefix(req.URL.Path, "/v2/a/"), "/")
			if req.URL.Host != "h" || !ok || req.Method != http.MethodGet && req.Method != http.MethodHead {
				t.Fatalf("%s %s is asked for", req.Method, req.URL)
			}
			for _, blob := range [][]byte{idx, signature} {
				if place == "blobs" && rest == index.Of(blob).String() {
					return "application/octet-stream", blob
				}
			}
			switch {
			case place == "manifests" && rest == "1":
				return contentType, b
			case place == "manifests" && rest == index.Of(part).String():
				return ocispec.MediaTypeImageManifest, part
			}
			return "", nil
		})
		img, err := Open(t.Context(), parse(t, "oci://h/a:1"), Options{Client: &http.Client{Transport: registry}})
		if asked > 3+len(signatureTypes) {
			t.Errorf("%d requests", asked)
		}
		if err != nil {
			return
		}
		if !bytes.Equal(img.Index, idx) && !bytes.Equal(img.Index, signature) ||
			len(img.Signatures) > len(signatureTypes) || digestOf(img.Ref) != index.Of(b).String() {
			t.Errorf("an index of %d bytes, %d signatures, %s", len(img.Index), len(img.Signatures), img.Ref)
		}
		for _, s := range img.Signatures {
			if !bytes.Equal(s, idx) && !bytes.Equal(s, signature) {
				t.Errorf("a signature of %d bytes", len(s))
			}
		}
	})
}

// FuzzParseReference holds that a reference's text is its input, and that it can be pinned.
func FuzzParseReference(f *testing.F) {
	sum := "sha256:" + strings.Repeat("ab", 32)
	for _, s := range []string{"oci://registry.example.com/a/b:1", "oci://localhost:5000/a:1", "oci://[::1]:5000/a:1",
		"oci+http://10.0.0.1/a:1", "oci://h/a@" + sum, "oci://h/a:1@" + sum, "oci://h/a:\x00@" + sum,
		"oci://h/a:@" + sum, "oci://user:pw@h/a:1", "oci://h/a@sha512:" + strings.Repeat("ab", 64), "oci://h/../a:1",
		"oci://h/a:t/x", "oci://h/a?b:1", "oci://", "http://h/a:1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseReference(s)
		if err != nil {
			var refused *images.Error
			if !errors.As(err, &refused) || refused.Remedy == "" {
				t.Errorf("%q: %v, without a remedy", s, err)
			}
			return
		}
		host, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(s, "oci+http://"), "oci://"), "/")
		if !IsReference(s) || r.String() != s || r.ref.Registry != host || strings.Contains(host, "@") ||
			strings.ContainsAny(s, " \n\x00?#") {
			t.Errorf("%q is %+v", s, r)
		}
		if strings.HasPrefix(s, "oci+http://") && !r.plain {
			t.Errorf("%q is not talked to in the clear", s)
		}
		pinned := r.WithDigest(sum)
		again, err := ParseReference(pinned.String())
		if err != nil || !again.Pinned() || again.ref != pinned.ref || again.plain != r.plain {
			t.Errorf("%q, pinned: %q, %+v, %v", s, pinned, again, err)
		}
	})
}

// FuzzParseSecret holds that of a secret nothing is lost, and that a user's name has no colon.
func FuzzParseSecret(f *testing.F) {
	for _, s := range []string{"u:p", "u:p:q", "dTpw", "dTpwAA==", "token", "u:", ":p", " u:p\n", "", "=",
		base64.StdEncoding.EncodeToString([]byte(":"))} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c := ParseSecret(s)
		s = strings.TrimSpace(s)
		whole := c.User + ":" + c.Password
		plain, err := base64.StdEncoding.DecodeString(s)
		switch {
		case strings.Contains(c.User, ":") || c.Refresh != "":
			t.Errorf("%q is %+v", s, c)
		case whole == s, c.User == "" && c.Password == s:
		case err != nil || !strings.HasPrefix(string(plain), whole) ||
			strings.Trim(string(plain[len(whole):]), "\x00\r\n") != "":
			t.Errorf("%q is %+v", s, c)
		}
	})
}
