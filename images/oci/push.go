package oci

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/ingot-metal/ingot/images/index"
)

// pushes is the number of concurrent pushes.
const pushes = 6

// Upload is an image to push.
type Upload struct {
	Name       string // of the image
	Index      []byte
	Signatures map[string][]byte // by the suffix of their files
	// Object returns the stored bytes of an object.
	Object func(ctx context.Context, o index.Object) ([]byte, error)
	// Done counts the bytes of objects in the registry.
	Done *atomic.Int64

	layers int // in one manifest; 0: maxLayers
}

// Pushed is the result of Push.
type Pushed struct {
	Ref     Reference // with the digest
	New     int       // new blobs
	Written int64     // their bytes
}

// Prepare checks that images can be pushed to a place, before hours are spent on making one: it pushes a blob that all
// images have.
func Prepare(ctx context.Context, ref Reference, o Options) error {
	if err := ref.pushable(); err != nil {
		return err
	}
	// Pushed even if present: a check alone would succeed with read access.
	empty := []byte("{}")
	if err := ref.repository(o).Blobs().Push(ctx, describe(ocispec.MediaTypeEmptyJSON, index.Of(empty)),
		bytes.NewReader(empty)); err != nil {
		return explain(ref, err)
	}
	return nil
}

func (r Reference) pushable() error {
	if r.Pinned() {
		return refuse("leave the digest out", "an image is pushed to a tag, and %s has a digest", r)
	}
	return nil
}

// Push stores an image in a registry under a tag. The tag changes last: a client sees the old image or the complete new
// one. Existing blobs of the repository are not sent again.
func Push(ctx context.Context, ref Reference, u Upload, o Options) (*Pushed, error) {
	if err := ref.pushable(); err != nil {
		return nil, err
	}
	x, err := index.Parse(u.Index)
	if err != nil {
		return nil, err
	}
	u.Done = cmp.Or(u.Done, new(atomic.Int64))
	u.layers = cmp.Or(u.layers, maxLayers)
	p := &push{Upload: u, repo: ref.repository(o), ref: ref}
	objects := distinct(x)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(pushes)
	for _, obj := range objects {
		if gctx.Err() != nil {
			break
		}
		group.Go(func() error {
			return p.blob(gctx, describe(objectType, obj), func() ([]byte, error) { return u.Object(gctx, obj) })
		})
	}
	if err := group.Wait(); err != nil {
		return nil, explain(ref, err)
	}
	digest, err := p.manifests(ctx, objects)
	if err != nil {
		return nil, explain(ref, err)
	}
	return &Pushed{Ref: ref.WithDigest(digest), New: int(p.fresh.Load()), Written: p.written.Load()}, nil
}

// distinct returns every object of an image once, block lists first.
func distinct(x *index.Index) []index.Object {
	seen := map[index.Object]bool{{}: true}
	var all []index.Object
	for _, o := range slices.Concat(x.Lists, x.Chunks) {
		if !seen[o] {
			seen[o] = true
			all = append(all, o)
		}
	}
	return all
}

type push struct {
	Upload
	repo           *remote.Repository
	ref            Reference
	fresh, written atomic.Int64
}

// blob pushes a blob that the repository does not have. An existing blob of another length is damaged and is pushed
// again, although docker's registry keeps the old one. Damage without a change of length is not detected: that would
// require fetching the whole image.
func (p *push) blob(ctx context.Context, d ocispec.Descriptor, get func() ([]byte, error)) error {
	there, err := p.repo.Blobs().Resolve(ctx, d.Digest.String())
	switch {
	case errors.Is(err, errdef.ErrNotFound):
		err = p.send(ctx, d, get)
	case err == nil && there.Size != d.Size:
		if err = p.send(ctx, d, get); err == nil {
			err = p.mended(ctx, d, there.Size)
		}
	}
	if err != nil {
		return err
	}
	p.Done.Add(d.Size)
	return nil
}

func (p *push) send(ctx context.Context, d ocispec.Descriptor, get func() ([]byte, error)) error {
	b, err := get()
	if err != nil {
		return err
	}
	if err := p.repo.Blobs().Push(ctx, d, bytes.NewReader(b)); err != nil {
		return fmt.Errorf("push %s: %w", d.Digest, err)
	}
	p.fresh.Add(1)
	p.written.Add(d.Size)
	return nil
}

// mended reads back a blob that was damaged before the push.
func (p *push) mended(ctx context.Context, d ocispec.Descriptor, was int64) error {
	_, err := content.FetchAll(ctx, p.repo.Blobs(), d)
	if err != nil && ctx.Err() == nil {
		return refuse(remedyKept,
			"the registry's blob %s is damaged: it has %d bytes instead of %d, and stays so when it is sent again",
			d.Digest, was, d.Size)
	}
	return err
}

const remedyKept = "delete what uses the blob from the registry, run the registry's garbage collection, and publish the image again"

// small pushes a blob from memory and returns its layer.
func (p *push) small(ctx context.Context, mediaType, title string, b []byte) (ocispec.Descriptor, error) {
	d := describe(mediaType, index.Of(b))
	err := p.blob(ctx, d, func() ([]byte, error) { return b, nil })
	return titled(d, title), err
}

// titled sets a layer's path in a directory, to which generic tools pull it.
func titled(d ocispec.Descriptor, title string) ocispec.Descriptor {
	if title != "" {
		d.Annotations = map[string]string{ocispec.AnnotationTitle: title}
	}
	return d
}

// manifests pushes the manifests of the image, and returns the digest of the top one.
func (p *push) manifests(ctx context.Context, objects []index.Object) (string, error) {
	config, err := p.small(ctx, ocispec.MediaTypeEmptyJSON, "", []byte("{}"))
	if err != nil {
		return "", err
	}
	first, err := p.small(ctx, indexType, p.Name+index.Suffix, p.Index)
	if err != nil {
		return "", err
	}
	layers := []ocispec.Descriptor{first}
	for _, suffix := range slices.Sorted(maps.Keys(p.Signatures)) {
		l, err := p.small(ctx, signatureTypes[suffix], p.Name+index.Suffix+suffix, p.Signatures[suffix])
		if err != nil {
			return "", err
		}
		layers = append(layers, l)
	}
	for _, o := range objects {
		layers = append(layers, titled(describe(objectType, o), o.Path()))
	}
	var manifests []ocispec.Descriptor
	tags := p.repo.Manifests().(registry.ReferencePusher)
	for part := range slices.Chunk(layers, p.layers) {
		m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
			ArtifactType: ArtifactType, Config: config, Layers: part}
		if manifests != nil {
			m.ArtifactType = objectsType
		}
		b, d, err := encode(m, m.MediaType, m.ArtifactType)
		if err != nil {
			return "", err
		}
		if len(layers) <= p.layers {
			return d.Digest.String(), tags.PushReference(ctx, d, bytes.NewReader(b), p.ref.ref.Reference)
		}
		if err := p.repo.Manifests().Push(ctx, d, bytes.NewReader(b)); err != nil {
			return "", err
		}
		manifests = append(manifests, d)
	}
	x := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		ArtifactType: ArtifactType, Manifests: manifests}
	b, d, err := encode(x, x.MediaType, x.ArtifactType)
	if err != nil {
		return "", err
	}
	return d.Digest.String(), tags.PushReference(ctx, d, bytes.NewReader(b), p.ref.ref.Reference)
}

func encode(v any, mediaType, artifactType string) ([]byte, ocispec.Descriptor, error) {
	b, err := json.Marshal(v)
	d := describe(mediaType, index.Of(b))
	d.ArtifactType = artifactType
	return b, d, err
}
