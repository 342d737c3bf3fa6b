package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/oci"
	"github.com/ingot-metal/ingot/images/publish"
)

func (p *program) imageVerify() *cobra.Command {
	var keys []string
	var quiet bool
	return local(&cobra.Command{
		Use:   "verify FILE|URL|oci://REGISTRY/REPOSITORY:TAG",
		Short: "Verify every object of a published image",
		Long: `Read a published image, every object of it, and check it down to the digest of the whole disk. FILE is the NAME.ingot of a folder;
URL is the same where a web server has it, as in image_source. With --key it must be signed, too, by that key.`,
		Example: `  ingot image verify /srv/images/debian-12.ingot --key minisign.pub
  ingot image verify https://images.example.com/debian-12.ingot`,
		Args: oneArg("one published image: the file or URL of its .ingot, or its place in a registry"),
	}, []option{
		opt("key", &keys, "public key of minisign or cosign, or a file with one; may be repeated"),
		opt("quiet,q", &quiet, "only the result"),
	}, func(ctx context.Context, args []string) error {
		return remedied(p.verify(ctx, args[0], keys, quiet))
	})
}

// readKey takes a public key, or a file with one.
func readKey(s string) (index.Key, error) {
	b, ferr := os.ReadFile(s)
	if ferr != nil {
		b = []byte(s)
	}
	k, err := index.ParseKey(string(b))
	switch {
	case err == nil:
		return k, nil
	case ferr == nil:
		return k, fmt.Errorf("--key %s: %w", s, err)
	case strings.HasPrefix(s, "RW"), strings.HasPrefix(s, "-----BEGIN"):
		return k, err
	}
	return k, advise(fmt.Errorf("--key %s is neither a public key nor a file with one: %w", s, ferr),
		"Give the file, the line of a minisign key that begins with RW, or the PEM of a cosign key.")
}

func (p *program) verify(ctx context.Context, place string, keyTexts []string, quiet bool) error {
	start := time.Now()
	var keys []index.Key
	for _, s := range keyTexts {
		k, err := readKey(s)
		if err != nil {
			return err
		}
		keys = append(keys, k)
	}
	img, err := p.openPublished(ctx, place)
	if err != nil {
		return err
	}
	defer img.close()
	place = img.name
	x, err := index.Parse(img.index)
	if err != nil {
		return fmt.Errorf("%s: %w", place, err)
	}
	if len(keys) > 0 {
		err := advise(fmt.Errorf("%s is not signed", place), "Publish it again with --sign-key or --cosign-key.")
		if img.noSignature != nil {
			err = fmt.Errorf("signature: %w", img.noSignature)
		}
		for _, s := range img.signatures {
			if err = index.VerifySignature(img.index, s, keys); err == nil {
				break
			}
			err = advise(fmt.Errorf("%s: %w", place, err),
				"Give the public key of who has signed it, or publish it again with --sign-key or --cosign-key.")
		}
		if err != nil {
			return err
		}
	}
	var m publish.Meter
	show := p.meter("verify", quiet, func() (int64, int64) { return m.Done.Load(), m.Total.Load() })
	err = publish.Verify(ctx, x, img, &m)
	show()
	unfit := new(publish.UnfitError)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("verify %s: %w", place, context.Cause(ctx))
	case errors.As(err, &unfit):
		return fmt.Errorf("%s is whole and undamaged, but no agent would deploy it: %w", place, unfit.Err)
	case err != nil:
		return advise(fmt.Errorf("%s is damaged or not complete:\n%w", place, err), "%s", img.remedy)
	}
	stored, objects := x.Stored()
	return p.result(map[string]any{"image_os_hash_algo": "sha256",
		"image_os_hash_value": hex.EncodeToString(sum(img.index)), "virtual_bytes": x.Size, "stored_bytes": stored,
		"objects": objects, "signed": len(keys) > 0, "seconds": time.Since(start).Seconds()},
		"%s is complete and right: %s in %d objects%s; sha256 of its index: %x", place, size(uint64(stored)), objects,
		choose(len(keys) > 0, ", and signed by a key that was given", ""), sum(img.index))
}

func sum(b []byte) []byte {
	o := index.Of(b)
	return o.Sum[:]
}

// publishedImage is one to verify.
type publishedImage struct {
	publish.Objects
	name       string // without user and password
	index      []byte
	signatures [][]byte
	close      func()
	remedy     string // when it is damaged

	noSignature error // why none could be fetched, if not because there is none
}

func (p *program) openPublished(ctx context.Context, place string) (*publishedImage, error) {
	if oci.IsReference(place) {
		ref, err := oci.ParseReference(place)
		if err != nil {
			return nil, err
		}
		o, err := p.registry()
		if err != nil {
			return nil, err
		}
		img, err := oci.Open(ctx, ref, o)
		if err != nil {
			return nil, err
		}
		return &publishedImage{Objects: pulled{img}, name: place, index: img.Index, signatures: img.Signatures,
			close:  func() {},
			remedy: "A registry may keep what is damaged when it is sent again: delete the image there, run the registry's garbage collection, then publish it again."}, nil
	}
	if isURL(place) {
		return openServed(ctx, place)
	}
	b, err := readIndex(place)
	if err != nil {
		return nil, err
	}
	img := &publishedImage{Objects: publish.Dir(filepath.Dir(place)), name: place, index: b, close: func() {},
		remedy: "Publish the image into that folder again: what is damaged or missing is stored anew."}
	for _, suffix := range index.SignatureSuffixes {
		if s, err := os.ReadFile(place + suffix); err == nil {
			img.signatures = append(img.signatures, s)
		}
	}
	return img, nil
}

// readIndex reads an index that is a file, not more of it than an index may have.
func readIndex(place string) ([]byte, error) {
	if info, err := os.Stat(place); err == nil && info.IsDir() {
		var there []string
		files, err := os.ReadDir(place)
		for _, f := range files {
			if strings.HasSuffix(f.Name(), index.Suffix) {
				there = append(there, filepath.Join(place, f.Name()))
			}
		}
		if err != nil {
			return nil, err
		}
		if there == nil {
			return nil, advise(fmt.Errorf("%s is a folder, and there is no published image in it", place),
				"Give the NAME%s of a published image.", index.Suffix)
		}
		return nil, advise(fmt.Errorf("%s is a folder with published images", place), "Give one of them: %s",
			strings.Join(there, " "))
	}
	f, err := os.Open(place)
	if err != nil {
		if urlLike.MatchString(place) {
			err = usage("%s is neither a file nor an http or https URL nor oci://REGISTRY/REPOSITORY:TAG", place)
		}
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, index.MaxIndex+1)) // what is longer is refused by who reads it
}

// pulled checks what comes out of a registry.
type pulled struct{ img *oci.Image }

func (p pulled) Object(ctx context.Context, o index.Object) ([]byte, error) {
	body, err := p.img.Object(ctx, o)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return publish.ReadObject(body, o)
}

// served is a published image on a web server, with its files where nodes look for them.
type served struct {
	client *http.Client
	index  *url.URL
}

func openServed(ctx context.Context, source string) (*publishedImage, error) {
	u, err := parseURL(source)
	if err != nil {
		return nil, err
	}
	tr := newTransport()
	s := served{&http.Client{Transport: retry.NewTransport(tr)}, u}
	img := &publishedImage{Objects: s, name: remote(ctx, s.client, u).name, close: tr.CloseIdleConnections,
		remedy: "See that the server has all of the folder, and that it is right there: ingot image verify FOLDER/" +
			path.Base(u.Path)}
	if img.index, err = s.read(ctx, u, index.MaxIndex); err != nil {
		return nil, err
	}
	var failed error
	for _, suffix := range index.SignatureSuffixes {
		b, err := s.read(ctx, s.at("./"+path.Base(u.Path)+suffix), index.MaxSignature)
		var answer *statusError
		switch {
		case err == nil:
			img.signatures = append(img.signatures, b)
		case !errors.As(err, &answer) || answer.code != http.StatusNotFound:
			failed = err
		}
	}
	if len(img.signatures) == 0 {
		img.noSignature = failed
	}
	return img, nil
}

// at is the URL of a file beside the index. What the index's URL ends with, a signature perhaps, is for the whole
// folder.
func (s served) at(file string) *url.URL {
	u := s.index.ResolveReference(&url.URL{Path: file})
	u.RawQuery = s.index.RawQuery
	return u
}

func (s served) open(ctx context.Context, u *url.URL) (io.ReadCloser, error) {
	return remote(ctx, s.client, u).from(0)
}

func (s served) read(ctx context.Context, u *url.URL, limit int64) ([]byte, error) {
	body, err := s.open(ctx, u)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(io.LimitReader(body, limit+1)) // what is longer is refused by who reads it
}

// Object fetches an object and checks it.
func (s served) Object(ctx context.Context, o index.Object) ([]byte, error) {
	body, err := s.open(ctx, s.at(o.Path()))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return publish.ReadObject(body, o)
}
