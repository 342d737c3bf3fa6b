// Package oci stores published images in OCI registries: Open pulls one, Push pushes one. It is the only package below
// images that uses the network, because the agent pulls and the command line pushes, and both must agree on the layout
// of an image in a registry.
//
// Every object of the image is a blob, whose digest is the SHA-256 that the index holds anyway. A manifest has the
// index, its signatures and then the objects as layers; an image with more objects than a manifest may have layers gets
// an OCI index with several manifests, of which the first begins with the index. The manifests protect the objects from
// garbage collection; a client needs only the first manifest, and then fetches the objects it wants by digest.
//
// A registry is not trusted: everything it sends is bounded and compared with a digest. Only the digest of a tag is
// taken from the registry; for more safety, pin the digest in the reference, know the index's digest, or check a
// signature.
package oci

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
)

// Media and artifact types.
const (
	ArtifactType = "application/vnd.ingot.image.v1"   // of the manifest that begins with the index
	objectsType  = "application/vnd.ingot.objects.v1" // of manifests that only hold objects
	indexType    = "application/vnd.ingot.index.v1"
	objectType   = "application/vnd.ingot.object.v1"
)

// signatureTypes are the types of signatures, by the suffix that they have as files.
var signatureTypes = map[string]string{
	".minisig": "application/vnd.ingot.signature.minisign.v1",
	".sig":     "application/vnd.ingot.signature.cosign.v1",
}

const (
	maxManifest = 4 << 20 // accepted by registries
	maxLayers   = 1000
	// read of a manifest or an OCI index; the largest image needs about 530 manifests
	maxDescriptors = 10 * maxLayers
)

// Credential for a registry. The zero Credential is anonymous, which is enough for public repositories.
type Credential struct {
	User, Password string
	Refresh        string // an identity token, which docker's configuration may hold instead
}

// ParseSecret parses Ironic's image_pull_secret: "user:password", or the same in base64 as under "auth" in docker's
// config.json. Anything else is a token, sent as a password without a user.
func ParseSecret(s string) Credential {
	s = strings.TrimSpace(s)
	user, password, ok := strings.Cut(s, ":")
	if !ok {
		if b, err := base64.StdEncoding.DecodeString(s); err == nil {
			if user, password, ok = strings.Cut(string(b), ":"); ok {
				password = strings.TrimRight(password, "\x00\r\n")
			}
		}
	}
	if !ok {
		return Credential{Password: s}
	}
	return Credential{User: user, Password: password}
}

// Options for access to a registry.
type Options struct {
	// Login returns the credential for a registry (host and port); nil: anonymous.
	Login func(ctx context.Context, registry string) (Credential, error)
	// Client sends the requests; nil for one with the defaults. It is copied.
	Client *http.Client
}

// Static returns one credential for the registry of a reference, and none for others.
func Static(ref Reference, c Credential) func(context.Context, string) (Credential, error) {
	return func(_ context.Context, host string) (Credential, error) {
		if host == ref.ref.Host() {
			return c, nil
		}
		return Credential{}, nil
	}
}

// Reference to an image in a registry.
type Reference struct {
	ref   registry.Reference
	plain bool // http
	text  string
}

// IsReference reports whether a URL is a reference for ParseReference.
func IsReference(url string) bool {
	return strings.HasPrefix(url, "oci://") || strings.HasPrefix(url, "oci+http://")
}

// ParseReference reads oci://REGISTRY/REPOSITORY:TAG or @sha256:DIGEST or both. Registries are talked to by https, but
// for those on this machine; oci+http:// says that one is to be talked to in the clear.
func ParseReference(url string) (Reference, error) {
	const remedy = "write oci://registry/repository:tag, or oci://registry/repository@sha256:digest"
	rest, plain := strings.CutPrefix(url, "oci+http://")
	if !plain {
		var ok bool
		if rest, ok = strings.CutPrefix(url, "oci://"); !ok {
			return Reference{}, refuse(remedy, "%q does not begin with oci://", url)
		}
	}
	if host, _, _ := strings.Cut(rest, "/"); strings.Contains(host, "@") {
		return Reference{},
			refuse("give user and password by image_pull_secret, or by docker's configuration",
				"a reference to a registry can't hold a password")
	}
	ref, err := registry.ParseReference(rest)
	if err != nil {
		return Reference{}, refuse(remedy, "%q is no reference to an image in a registry: %w", url, err)
	}
	// The library does not check a tag before a digest.
	if name, _, pinned := strings.Cut(rest, "@"); pinned {
		if _, err := registry.ParseReference(name); err != nil {
			return Reference{}, refuse(remedy, "%q is no reference to an image in a registry: %w", url, err)
		}
	}
	if ref.Reference == "" {
		return Reference{}, refuse(remedy, "%q has neither tag nor digest", url)
	}
	if d, err := ref.Digest(); err == nil && d.Algorithm() != digest.SHA256 {
		return Reference{}, refuse(remedy, "%q has a digest that is not SHA-256", url)
	}
	return Reference{ref, plain || loopback(ref.Registry), url}, nil
}

func loopback(registry string) bool {
	host := registry
	if h, _, err := net.SplitHostPort(registry); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// String returns the reference as written.
func (r Reference) String() string { return r.text }

// Pinned reports whether the reference has a digest, and so stands for exactly one image.
func (r Reference) Pinned() bool { return strings.Contains(r.ref.Reference, ":") }

// WithDigest returns the reference pinned to a digest.
func (r Reference) WithDigest(digest string) Reference {
	url, _, _ := strings.Cut(r.text, "@")
	r.text, r.ref.Reference = url+"@"+digest, digest
	return r
}

// repository returns the client of the reference's repository.
func (r Reference) repository(o Options) *remote.Repository {
	c := http.Client{Transport: http.DefaultTransport}
	if o.Client != nil {
		c = *o.Client
	}
	if !r.plain {
		c.Transport = &httpsOnly{c.Transport}
	}
	return &remote.Repository{
		Reference: r.ref, PlainHTTP: r.plain,
		Client: &auth.Client{Client: &c, Cache: auth.NewCache(),
			Credential: func(ctx context.Context, host string) (auth.Credential, error) {
				if o.Login == nil {
					return auth.EmptyCredential, nil
				}
				l, err := o.Login(ctx, host)
				return auth.Credential{Username: l.User, Password: l.Password, RefreshToken: l.Refresh}, err
			}},
	}
}

// httpsOnly refuses to send a request unencrypted, where a password or an image could be read.
type httpsOnly struct{ http.RoundTripper }

func (h *httpsOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" {
		return nil, refuse("let the registry use https for its token service and its storage, too",
			"the registry sends to %s://%s, which is not encrypted", req.URL.Scheme, req.URL.Host)
	}
	next := cmp.Or(h.RoundTripper, http.DefaultTransport)
	return next.RoundTrip(req)
}

// Image is a published image in a registry.
type Image struct {
	Ref        Reference // pinned to the digest that was found
	Index      []byte    // its digest fits the manifest; see index.Parse
	Signatures [][]byte  // for index.VerifySignature; the publisher chose the method
	repo       *remote.Repository
}

// Open resolves an image and pulls its index and signatures.
func Open(ctx context.Context, ref Reference, o Options) (*Image, error) {
	repo := ref.repository(o)
	desc, body, err := repo.Manifests().FetchReference(ctx, ref.ref.Reference)
	if err != nil {
		return nil, explain(ref, err)
	}
	img := &Image{Ref: ref.WithDigest(desc.Digest.String()), repo: repo}
	b, err := readAll(body, desc, maxManifest)
	if err != nil {
		return nil, explain(ref, err)
	}
	const remedy = "give the reference of an image that `ingot image publish` pushed"
	if desc.MediaType == ocispec.MediaTypeImageIndex {
		x, err := parseManifest(b)
		if err != nil {
			return nil, refuse(remedy, "the registry's OCI index of %s is damaged: %w", ref, err)
		}
		desc = ocispec.Descriptor{}
		for _, m := range x.Manifests {
			if m.ArtifactType == ArtifactType {
				desc = m.oci()
				break
			}
		}
		if desc.Digest == "" {
			return nil, refuse(remedy, "%s is not a published image", ref)
		}
		if b, err = img.read(ctx, repo.Manifests(), desc, maxManifest); err != nil {
			return nil, err
		}
	}
	m, err := parseManifest(b)
	if err != nil {
		return nil, refuse(remedy, "the registry's manifest of %s is damaged: %w", ref, err)
	}
	if desc.MediaType != ocispec.MediaTypeImageManifest || m.ArtifactType != ArtifactType || len(m.Layers) == 0 ||
		m.Layers[0].MediaType != indexType {
		return nil, refuse(remedy, "%s is not a published image", ref)
	}
	if img.Index, err = img.read(ctx, repo.Blobs(), m.Layers[0].oci(), index.MaxIndex); err != nil {
		return nil, err
	}
	for _, l := range m.Layers[1:] {
		for _, t := range signatureTypes {
			if l.MediaType != t || len(img.Signatures) >= len(signatureTypes) {
				continue
			}
			s, err := img.read(ctx, repo.Blobs(), l.oci(), index.MaxSignature)
			if err != nil {
				return nil, err
			}
			img.Signatures = append(img.Signatures, s)
		}
	}
	return img, nil
}

// manifest holds the used fields of a manifest or an OCI index. Other fields are dropped while decoding, so that 4 MiB
// from an untrusted registry don't become a hundred times as much: annotations could be many, and a descriptor of
// ocispec takes 120 bytes for the three of "{},".
type manifest struct {
	ArtifactType string      `json:"artifactType"`
	Layers       descriptors `json:"layers"`
	Manifests    descriptors `json:"manifests"`
}

type descriptor struct {
	MediaType    string        `json:"mediaType"`
	ArtifactType string        `json:"artifactType"`
	Digest       digest.Digest `json:"digest"`
	Size         int64         `json:"size"`
}

func (d descriptor) oci() ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: d.MediaType, ArtifactType: d.ArtifactType, Digest: d.Digest, Size: d.Size}
}

func parseManifest(b []byte) (m manifest, err error) {
	if !utf8.Valid(b) { // encoding/json would triple its length
		return m, errors.New("it is not in UTF-8")
	}
	err = json.Unmarshal(b, &m)
	return m, err
}

// descriptors are decoded one by one, at most maxDescriptors.
type descriptors []descriptor

func (d *descriptors) UnmarshalJSON(b []byte) error {
	if *d != nil {
		return errors.New("it has a list twice")
	}
	*d = descriptors{}
	dec := json.NewDecoder(bytes.NewReader(b))
	switch start, err := dec.Token(); {
	case err != nil:
		return err
	case start == nil: // null
		return nil
	case start != json.Delim('['):
		return errors.New("it has no list where a list should be")
	}
	for dec.More() {
		if len(*d) == maxDescriptors {
			return fmt.Errorf("it lists more than %d things", maxDescriptors)
		}
		var one descriptor
		if err := dec.Decode(&one); err != nil {
			return err
		}
		*d = append(*d, one)
	}
	return nil
}

func (i *Image) read(ctx context.Context, from content.Fetcher, d ocispec.Descriptor, limit int64) ([]byte, error) {
	if d.Digest.Validate() != nil || d.Digest.Algorithm() != digest.SHA256 {
		return nil, refuse("publish the image again", "the registry's manifest of %s names something without a SHA-256",
			i.Ref)
	}
	if d.Size < 0 || d.Size > limit {
		return nil, tooLong(d, limit)
	}
	body, err := from.Fetch(ctx, d)
	if err != nil {
		return nil, explain(i.Ref, err)
	}
	b, err := readAll(body, d, limit)
	if err != nil {
		return nil, explain(i.Ref, err)
	}
	return b, nil
}

func tooLong(d ocispec.Descriptor, limit int64) error {
	return refuse("check what the registry serves",
		"%s in the registry has %d bytes, more than the %d that are allowed", d.MediaType, d.Size, limit)
}

// readAll reads the content of d and checks its digest.
func readAll(body io.ReadCloser, d ocispec.Descriptor, limit int64) ([]byte, error) {
	defer body.Close()
	if d.Size < 0 || d.Size > limit {
		return nil, tooLong(d, limit)
	}
	return content.ReadAll(body, d)
}

// Object fetches an object. Its bytes are unchecked: the caller must bound the read and call Object.Verify.
func (i *Image) Object(ctx context.Context, o index.Object) (io.ReadCloser, error) {
	body, err := i.repo.Blobs().Fetch(ctx, describe(objectType, o))
	if err != nil {
		return nil, explain(i.Ref, err)
	}
	return body, nil
}

func describe(mediaType string, o index.Object) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.NewDigestFromBytes(digest.SHA256, o.Sum[:]),
		Size: o.Len}
}

func refuse(remedy, format string, args ...any) error {
	return &images.Error{Err: fmt.Errorf(format, args...), Remedy: remedy}
}

// explain turns a registry's refusal into an error for operators.
func explain(ref Reference, err error) error {
	var own *images.Error
	var answer *errcode.ErrorResponse
	switch {
	case errors.As(err, &own):
		return own // net/http's text around it has a URL
	case errors.Is(err, errdef.ErrNotFound):
		return refuse("check the reference, and that the image was pushed", "the registry does not have it: %s: %s",
			ref, said(ref, err))
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return refuse("give a user and password", "the registry of %s requires a user and a password, and there is none",
			ref)
	case errors.As(err, &answer):
		switch answer.StatusCode {
		case http.StatusUnauthorized:
			return refuse("check the user and the password, and that they are for this registry",
				"the registry does not accept the user and password for %s: %s", ref, said(ref, err))
		case http.StatusForbidden:
			return refuse("check what the user may do in this repository",
				"the registry does not allow this for %s: %s", ref, said(ref, err))
		case http.StatusNotFound:
			return refuse("check the reference, and that the image was pushed", "the registry does not have it: %s: %s",
				ref, said(ref, err))
		}
	}
	return &failure{fmt.Sprintf("registry of %s: %s", ref, said(ref, err)), err}
}

// failure is an error with another text.
type failure struct {
	text string
	err  error
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.err }

var urlSecrets = regexp.MustCompile(`(?i)(https?://)(?:[^\s"/?#]*@)?([^\s"?#]*)(?:[?#][^\s"]*)?`)

// said returns an error's text without its URLs: the reference is in the text anyway, and the query of a registry's
// redirect is as good as a password for the object. A host other than the registry is named.
func said(ref Reference, err error) string {
	at := func(u *url.URL, text string) string {
		if u != nil && u.Host != "" && u.Host != ref.ref.Host() {
			text = u.Host + ": " + text
		}
		return text
	}
	var answer *errcode.ErrorResponse
	var failed *url.Error
	text := err.Error()
	switch {
	case errors.As(err, &answer):
		text = fmt.Sprintf("status %d, %s", answer.StatusCode, http.StatusText(answer.StatusCode))
		if len(answer.Errors) > 0 {
			text += ": " + answer.Errors.Error()
		}
		text = at(answer.URL, text)
	case errors.As(err, &failed):
		text = failed.Err.Error()
		if strings.Contains(text, "Location header") { // quotes it
			text = "it redirects to an invalid URL"
		}
		u, _ := url.Parse(failed.URL)
		text = at(u, text)
	}
	return urlSecrets.ReplaceAllString(strings.TrimPrefix(text, ref.ref.String()+": "), "$1$2")
}
