package chunked

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/image/trace"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/oci"
)

// Where is the location of a published image.
type Where struct {
	// of the index, on each server that has all of the image; or one reference to a registry (oci://)
	URLs       []string
	Signature  string // URL of the index's signature; empty: the index's URL with a suffix
	CA         string // certificates in PEM form that must have signed the servers'
	PullSecret string // for a registry: see oci.ParseSecret
	Wait       fetch.Patience
	Log        *slog.Logger
}

// Trust says how the index is verified. All given values must match. Without a digest and keys, a reference to a
// registry must have a digest, or the image must be Unverified.
type Trust struct {
	Digest     images.Digest // of the index
	Keys       []index.Key
	Unverified bool
}

// Image is a published image with a verified index.
type Image struct {
	Index   *index.Index
	Sum     [sha256.Size]byte // of the index's bytes
	Digest  string            // "sha256:<hex>", or of the requested kind
	Name    string            // for logs
	Fetched int64             // bytes of the index and its signature
	Objects Objects
	close   func()
}

// Close closes the connections. No object can be fetched any more.
func (i *Image) Close() { i.close() }

// Open fetches an index and verifies it.
func Open(ctx context.Context, w Where, t Trust) (*Image, error) {
	w.Log = cmp.Or(w.Log, slog.New(slog.DiscardHandler))
	if len(w.URLs) > 0 && oci.IsReference(w.URLs[0]) {
		return openRegistry(ctx, w, t)
	}
	return openWeb(ctx, w, t)
}

const remedySignature = "sign the image's index with a key that this node trusts (image_keys) and put the signature beside it, or set image_signature"

// openWeb takes the index from the first server with a valid copy: a mirror may be outdated.
func openWeb(ctx context.Context, w Where, t Trust) (*Image, error) {
	origin, err := fetch.NewOrigin(w.URLs, w.CA, w.Wait, w.Log)
	if err != nil {
		return nil, err
	}
	img, err := openAt(ctx, w, t, origin)
	for i := 0; err != nil && ctx.Err() == nil && len(w.URLs) > 1 && i < len(w.URLs); i++ {
		one, oerr := fetch.NewOrigin(w.URLs[i:i+1], w.CA, w.Wait, w.Log)
		if oerr != nil {
			break
		}
		w.Log.Warn("the index of the image is not accepted; another server is asked", "url", one.Name(), "err", err)
		again, oerr := openAt(ctx, w, t, one)
		one.Close()
		if oerr == nil {
			img, err = again, nil
		}
	}
	if err != nil {
		origin.Close()
		return nil, err
	}
	img.Objects, img.Name, img.close = web{origin}, origin.Name(), origin.Close
	return img, nil
}

func openAt(ctx context.Context, w Where, t Trust, o *fetch.Origin) (*Image, error) {
	b, err := o.GetUpTo(ctx, "", index.MaxIndex)
	if err != nil {
		return nil, err
	}
	var signatures [][]byte
	if len(t.Keys) > 0 {
		if signatures, err = signatureOf(ctx, w, o); err != nil {
			return nil, err
		}
	}
	return believe(b, signatures, t, false)
}

// signatureOf fetches the signature of an index.
func signatureOf(ctx context.Context, w Where, o *fetch.Origin) ([][]byte, error) {
	if w.Signature != "" {
		at, err := fetch.OriginOf("signature", "image_signature", []string{w.Signature}, w.CA, w.Wait, w.Log)
		if err != nil {
			return nil, fmt.Errorf("image_signature: %w", err)
		}
		defer at.Close()
		b, err := at.GetUpTo(ctx, "", index.MaxSignature)
		if err != nil {
			return nil, fmt.Errorf("signature of the image: %w", err)
		}
		return [][]byte{b}, nil
	}
	u, err := url.Parse(w.URLs[0])
	if err != nil {
		return nil, step.Failf("correct image_source", "the image's URL can't be understood")
	}
	var all [][]byte
	var failed error
	for _, suffix := range index.SignatureSuffixes {
		b, err := o.GetUpTo(ctx, "./"+url.PathEscape(path.Base(u.Path)+suffix), index.MaxSignature)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err == nil:
			all = append(all, b)
		case failed == nil || step.AsError(err).Retryable:
			failed = err
		}
	}
	if len(all) == 0 {
		if step.AsError(failed).Retryable {
			return nil, fmt.Errorf("signature of the image: %w", failed)
		}
		return nil, step.Fail(remedySignature,
			fmt.Errorf("the image has no signature, and this node accepts signed images only: %w", failed))
	}
	return all, nil
}

// believe verifies an index before parsing it.
func believe(b []byte, signatures [][]byte, t Trust, pinned bool) (*Image, error) {
	img := &Image{Sum: sha256.Sum256(b), Fetched: int64(len(b))}
	img.Digest = "sha256:" + fmt.Sprintf("%x", img.Sum)
	if t.Digest.Algo != "" {
		h := t.Digest.New()
		h.Write(b)
		if got := h.Sum(nil); !t.Digest.Matches(got) {
			return nil, t.Digest.Mismatch(got)
		}
		img.Digest = t.Digest.String()
	}
	if len(t.Keys) > 0 {
		err := error(step.Failf(remedySignature,
			"the image has no signature, and this node accepts signed images only"))
		for _, s := range signatures {
			img.Fetched += int64(len(s))
			if err = index.VerifySignature(b, s, t.Keys); err == nil {
				break
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if t.Digest.Algo == "" && len(t.Keys) == 0 && !pinned && !t.Unverified {
		return nil, step.Failf(
			"set image_os_hash_algo and image_os_hash_value in instance_info, or sign the image and set image_keys",
			"the image has neither digest nor signature, and images without one are not allowed here")
	}
	var err error
	img.Index, err = index.Parse(b)
	return img, err
}

// web fetches objects from web servers.
type web struct{ *fetch.Origin }

func (w web) Object(ctx context.Context, o index.Object, dst []byte) error {
	got, err := w.GetChecked(ctx, o.Path(), o.Len, dst, func(b []byte) error { return verify(ctx, o, b) })
	if err != nil {
		return incomplete(err)
	}
	if len(got) > 0 && &got[0] != &dst[0] {
		copy(dst, got)
	}
	return nil
}

// clockKey is of the clock that runs while objects are fetched.
type clockKey struct{}

// verify checks an object that has been fetched. This is no time of the network's.
func verify(ctx context.Context, o index.Object, stored []byte) error {
	if clock, ok := ctx.Value(clockKey{}).(*step.Clock); ok {
		clock.Leave()
		defer clock.Enter()
	}
	track := trace.Of(ctx)
	track.Spent(trace.Fetch)
	defer track.Spent(trace.Digest)
	return o.Verify(stored)
}

// incomplete adds the publisher's remedy to an error that a retry won't fix.
func incomplete(err error) error {
	var se *step.Error
	if errors.As(err, &se) && !se.Retryable {
		return step.Fail(
			"see whether all objects of the image are on the server (ingot image verify), and publish the image again if not", err)
	}
	return err
}

// openRegistry takes the index from a registry.
func openRegistry(ctx context.Context, w Where, t Trust) (*Image, error) {
	if len(w.URLs) > 1 {
		return nil, step.Failf("leave out image_mirrors", "an image in a registry can't have mirrors")
	}
	ref, err := oci.ParseReference(w.URLs[0])
	if err != nil {
		return nil, err
	}
	client, err := fetch.RegistryClient(w.CA, w.Wait)
	if err != nil {
		return nil, err
	}
	o := oci.Options{Client: client}
	if w.PullSecret != "" {
		o.Login = oci.Static(ref, oci.ParseSecret(w.PullSecret))
	}
	r := &registry{wait: w.Wait, log: w.Log}
	var found *oci.Image
	if err := r.patiently(ctx, "index", func(ctx context.Context) error {
		found, err = oci.Open(ctx, ref, o)
		return err
	}); err != nil {
		return nil, err
	}
	r.image = found
	signatures := found.Signatures
	if w.Signature != "" && len(t.Keys) > 0 {
		if signatures, err = signatureOf(ctx, w, nil); err != nil {
			return nil, err
		}
	}
	img, err := believe(slices.Clone(found.Index), signatures, t, ref.Pinned())
	if err != nil {
		return nil, err
	}
	found.Index = nil // parsed; it may be large
	img.Objects, img.Name, img.close = r, strings.TrimSpace(found.Ref.String()), client.CloseIdleConnections
	return img, nil
}
