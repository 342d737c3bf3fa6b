package oci

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/test/kit"
)

// memory is a published image without files: n objects, the last of them the block list.
type memory struct {
	x       *index.Index
	objects map[index.Object][]byte
}

func image(n int, seed byte) *memory {
	m := &memory{x: &index.Index{Size: int64(n-1) * index.ChunkSize, Head: images.GPT, Source: "test"},
		objects: map[index.Object][]byte{}}
	r := rand.NewChaCha8([32]byte{seed})
	for i := range n {
		b := make([]byte, 100+i%7)
		r.Read(b)
		o := index.Of(b)
		m.objects[o] = b
		if i == n-1 {
			lists := (n - 1 + index.ListChunks - 1) / index.ListChunks
			for range lists {
				m.x.Lists = append(m.x.Lists, o)
			}
		} else {
			m.x.Chunks = append(m.x.Chunks, o)
		}
	}
	return m
}

func (m *memory) upload() Upload {
	return Upload{Name: "test", Index: m.x.Marshal(),
		Signatures: map[string][]byte{".sig": []byte("MEUC"), ".minisig": []byte("untrusted comment:")},
		Object:     func(_ context.Context, o index.Object) ([]byte, error) { return m.objects[o], nil }}
}

func parse(t *testing.T, url string) Reference {
	t.Helper()
	r, err := ParseReference(url)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// pull takes an image out of a registry and compares it.
func (m *memory) pull(t *testing.T, ref Reference, o Options) *Image {
	t.Helper()
	img, err := Open(t.Context(), ref, o)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(img.Index, m.x.Marshal()) || len(img.Signatures) != 2 || !img.Ref.Pinned() {
		t.Errorf("pulled an index of %d bytes, %d signatures, %s", len(img.Index), len(img.Signatures), img.Ref)
	}
	for obj, want := range m.objects {
		body, err := img.Object(t.Context(), obj)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(body)
		body.Close()
		if err != nil || !bytes.Equal(got, want) || obj.Verify(got) != nil {
			t.Fatalf("object %s: %d bytes, %v", obj, len(got), err)
		}
	}
	return img
}

func wantRefusal(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	var refused *images.Error
	if !errors.As(err, &refused) || refused.Remedy == "" {
		t.Errorf("%s: %v", what, err)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v, want %q in it", what, err, w)
		}
	}
}

func TestPushAndPull(t *testing.T) {
	host := kit.Registry(t, "")
	m := image(40, 1)
	tag := parse(t, "oci://"+host+"/images/debian:12")
	var done atomic.Int64
	up := m.upload()
	up.Done = &done
	p, err := Push(t.Context(), tag, up, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := len(m.objects) + 4; p.New != want || done.Load() != p.Written {
		t.Errorf("%d blobs are new, want %d; %d of %d bytes", p.New, want, done.Load(), p.Written)
	}
	img := m.pull(t, tag, Options{})
	if img.Ref.String() != p.Ref.String() || img.Ref.String() != tag.String()+"@"+digestOf(img.Ref) {
		t.Errorf("pulled %s, pushed %s", img.Ref, p.Ref)
	}
	m.pull(t, p.Ref, Options{})
	m.pull(t, parse(t, "oci+http://"+host+"/images/debian@"+digestOf(p.Ref)), Options{})

	// Again: nothing is sent. With one chunk changed: that chunk, and the index.
	if again, err := Push(t.Context(), tag, m.upload(), Options{}); err != nil || again.New != 0 || again.Ref != p.Ref {
		t.Errorf("pushed again: %+v, %v", again, err)
	}
	b := []byte("a new chunk")
	m.x.Chunks[3] = index.Of(b)
	m.objects[index.Of(b)] = b
	second, err := Push(t.Context(), tag, m.upload(), Options{})
	if err != nil || second.New != 2 {
		t.Errorf("a changed image: %+v, %v", second, err)
	}
	delete(m.objects, image(40, 1).x.Chunks[3])
	m.pull(t, tag, Options{})
	image(40, 1).pull(t, p.Ref, Options{}) // the old one is still available by its digest

	_, err = Open(t.Context(), parse(t, "oci://"+host+"/images/debian:13"), Options{})
	wantRefusal(t, "a tag that is not there", err, "does not have it", "debian:13")
	_, err = Open(t.Context(), parse(t, "oci://"+host+"/images/nothing:12"), Options{})
	wantRefusal(t, "a repository that is not there", err, "does not have it")
	_, err = Open(t.Context(), parse(t, "oci://"+host+"/images/debian@sha256:"+strings.Repeat("ab", 32)), Options{})
	wantRefusal(t, "a digest that is not there", err, "does not have it")
	_, err = img.Object(t.Context(), index.Of([]byte("never stored")))
	wantRefusal(t, "an object that is not there", err, "does not have it")
	_, err = Push(t.Context(), p.Ref, m.upload(), Options{})
	wantRefusal(t, "a push to a digest", err, "has a digest")
	broken := m.upload()
	broken.Object = func(context.Context, index.Object) ([]byte, error) { return []byte("something else"), nil }
	if _, err := Push(t.Context(), parse(t, "oci://"+host+"/other:1"), broken, Options{}); err == nil {
		t.Error("objects that are not what the index says were pushed")
	}
	if _, err := Open(t.Context(), parse(t, "oci://"+host+"/other:1"), Options{}); err == nil {
		t.Error("a broken push has left a tag")
	}
}

func digestOf(r Reference) string {
	_, d, _ := strings.Cut(r.String(), "@")
	return d
}

// TestManyObjects: more than a manifest may have layers.
func TestManyObjects(t *testing.T) {
	host := kit.Registry(t, "")
	m := image(101, 2)
	tag := parse(t, "oci://"+host+"/big:1")
	up := m.upload()
	up.layers = 30
	p, err := Push(t.Context(), tag, up, Options{})
	if err != nil {
		t.Fatal(err)
	}
	m.objects = map[index.Object][]byte{m.x.Chunks[90]: m.objects[m.x.Chunks[90]],
		m.x.Lists[0]: m.objects[m.x.Lists[0]]}
	m.pull(t, tag, Options{})
	m.pull(t, p.Ref, Options{})
	// Every object is held by a manifest, else the registry might throw it away.
	held := map[string]bool{}
	get := func(digest string, v any) {
		req, err := http.NewRequest("GET", "http://"+host+"/v2/big/manifests/"+digest, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json")
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if err := json.NewDecoder(r.Body).Decode(v); err != nil {
			t.Fatal(err)
		}
	}
	var top struct{ Manifests []struct{ Digest string } }
	get("1", &top)
	for _, d := range top.Manifests {
		var m struct{ Layers []struct{ Digest string } }
		get(d.Digest, &m)
		if len(m.Layers) > 30 {
			t.Errorf("a manifest has %d layers", len(m.Layers))
		}
		for _, l := range m.Layers {
			held[l.Digest] = true
		}
	}
	for _, o := range distinct(m.x) {
		if !held[o.String()] {
			t.Fatalf("no manifest holds %s", o)
		}
	}
	if len(top.Manifests) != 4 {
		t.Errorf("%d manifests", len(top.Manifests))
	}
}

// shelf is a registry in memory.
type shelf struct {
	mu       sync.Mutex
	things   map[string][]byte // blobs and manifests, by their digest
	keeps    bool              // what it has under a digest is not replaced, as in docker's registry
	readOnly bool
	uploads  int
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := path.Base(r.URL.Path)
	if d := r.URL.Query().Get("digest"); d != "" {
		name = d
	}
	switch r.Method {
	case http.MethodPost:
		if s.readOnly {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		s.uploads++
		w.Header().Set("Location", r.URL.Path+"upload")
		w.WriteHeader(http.StatusAccepted)
	case http.MethodPut:
		b, _ := io.ReadAll(r.Body)
		if _, there := s.things[name]; !there || !s.keeps {
			s.things[name] = b
		}
		w.WriteHeader(http.StatusCreated)
	default:
		b, there := s.things[name]
		if !there {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(b)))
		w.Write(b)
	}
}

func newShelf(t *testing.T) (*shelf, Reference) {
	s := &shelf{things: map[string][]byte{}}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return s, parse(t, "oci+http://"+strings.TrimPrefix(srv.URL, "http://")+"/x:1")
}

// TestDamagedBlobs: one that is shorter than it should be is sent again. Registries differ in what they make of that,
// and an image is not called published when one stays as it was.
func TestDamagedBlobs(t *testing.T) {
	for _, damage := range [][]byte{nil, []byte("short"), make([]byte, 1000)} {
		for _, keeps := range []bool{false, true} {
			m := image(5, 7)
			s, tag := newShelf(t)
			s.keeps = keeps
			if _, err := Push(t.Context(), tag, m.upload(), Options{}); err != nil {
				t.Fatal(err)
			}
			o := m.x.Chunks[2]
			s.things[o.String()] = damage
			delete(s.things, "1")
			p, err := Push(t.Context(), tag, m.upload(), Options{})
			if keeps {
				wantRefusal(t, "a damaged blob", err, o.String(),
					fmt.Sprintf("%d bytes instead of %d", len(damage), o.Len))
				if s.things["1"] != nil {
					t.Error("it has a tag")
				}
				continue
			}
			if err != nil || p.New != 1 || !bytes.Equal(s.things[o.String()], m.objects[o]) {
				t.Errorf("%d bytes of a damaged blob: %+v, %v", len(damage), p, err)
			}
		}
	}
}

// TestPrepare: a fault of the destination is reported before an image is made.
func TestPrepare(t *testing.T) {
	s, tag := newShelf(t)
	for range 2 {
		if err := Prepare(t.Context(), tag, Options{}); err != nil {
			t.Error(err)
		}
	}
	if len(s.things) != 1 || s.uploads != 2 {
		t.Errorf("%d things, %d uploads", len(s.things), s.uploads)
	}
	s.readOnly = true // reading is allowed
	wantRefusal(t, "somebody who may not push", Prepare(t.Context(), tag, Options{}), "does not allow this")
	wantRefusal(t, "a digest", Prepare(t.Context(), tag.WithDigest("sha256:"+strings.Repeat("ab", 32)), Options{}),
		"has a digest")
	wantRefusal(t, "anonymous", Prepare(t.Context(), parse(t, "oci://"+kit.Registry(t, "pw")+"/x:1"), Options{}),
		"requires a user and a password")
}

func TestLogin(t *testing.T) {
	host := kit.Registry(t, "s3cr:et")
	m := image(5, 3)
	tag := parse(t, "oci://"+host+"/private/x:1")
	with := func(secret string) Options { return Options{Login: Static(tag, ParseSecret(secret))} }
	for _, secret := range []string{"pub:s3cr:et", base64.StdEncoding.EncodeToString([]byte("pub:s3cr:et"))} {
		if _, err := Push(t.Context(), tag, m.upload(), with(secret)); err != nil {
			t.Fatal(err)
		}
		m.pull(t, tag, with(secret))
	}
	for what, o := range map[string]Options{"a wrong password": with("pub:wrong"),
		"a wrong user": with("stranger:s3cr:et")} {
		_, err := Open(t.Context(), tag, o)
		wantRefusal(t, what, err, "does not accept the user and password")
		if strings.Contains(err.Error(), "wrong") {
			t.Errorf("the password is in the error: %v", err)
		}
		_, err = Push(t.Context(), tag, m.upload(), o)
		wantRefusal(t, "push with "+what, err, "does not accept the user and password")
	}
	_, err := Open(t.Context(), tag, Options{})
	wantRefusal(t, "anonymous", err, "requires a user and a password")
	// A credential is for the registry that it was given for.
	elsewhere := Options{Login: Static(parse(t, "oci://registry.example.com/x:1"), ParseSecret("pub:s3cr:et"))}
	_, err = Open(t.Context(), tag, elsewhere)
	wantRefusal(t, "a credential for another registry", err, "requires a user and a password")
}

// TestTokens logs in as to the big registries: a token service, that gives tokens for a scope.
func TestTokens(t *testing.T) {
	host := kit.Registry(t, "")
	m := image(5, 4)
	if _, err := Push(t.Context(), parse(t, "oci://"+host+"/a/b:1"), m.upload(), Options{}); err != nil {
		t.Fatal(err)
	}
	behind, err := url.Parse("http://" + host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(behind)
	var tokens atomic.Int32
	var front *httptest.Server
	front = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			user, pass, ok := r.BasicAuth()
			if ok && (user != "pub" && user != "" || pass != "pw") {
				http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"no"}]}`, http.StatusUnauthorized)
				return
			}
			if r.URL.Query().Get("service") != "test" ||
				!strings.HasPrefix(r.URL.Query().Get("scope"), "repository:a/b:pull") {
				http.Error(w, "{}", http.StatusBadRequest)
				return
			}
			tokens.Add(1)
			who := "anonymous"
			if ok {
				who = "known"
			}
			fmt.Fprintf(w, `{"token": "good-%s"}`, who)
			return
		}
		if r.Header.Get("Authorization") != "Bearer good-known" {
			w.Header().Set("WWW-Authenticate",
				fmt.Sprintf(`Bearer realm="%s/token",service="test",scope="repository:a/b:pull"`, front.URL))
			code := http.StatusUnauthorized
			if r.Header.Get("Authorization") != "" {
				code = http.StatusForbidden
			}
			http.Error(w, `{"errors":[{"code":"DENIED","message":"not for you"}]}`, code)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	ref := parse(t, "oci://"+strings.TrimPrefix(front.URL, "http://")+"/a/b:1")
	for _, secret := range []string{"pub:pw", "pw"} { // the second is a token alone
		tokens.Store(0)
		m.pull(t, ref, Options{Login: Static(ref, ParseSecret(secret))})
		if tokens.Load() != 1 {
			t.Errorf("%d tokens were asked for", tokens.Load())
		}
	}
	_, err = Open(t.Context(), ref, Options{Login: Static(ref, ParseSecret("pub:bad"))})
	wantRefusal(t, "a wrong password", err, "does not accept")
	_, err = Open(t.Context(), ref, Options{})
	wantRefusal(t, "anonymous", err, "does not allow", "not for you")
}

// TestLyingRegistry: what a registry sends is compared with digests and limits.
func TestLyingRegistry(t *testing.T) {
	m := image(3, 5)
	idx := m.x.Marshal()
	sum := func(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
	manifest := func(change func(map[string]any)) []byte {
		v := map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
			"artifactType": ArtifactType,
			"layers":       []any{map[string]any{"mediaType": indexType, "digest": sum(idx), "size": len(idx)}}}
		if change != nil {
			change(v)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	layer := func(key string, value any) func(map[string]any) {
		return func(v map[string]any) { v["layers"].([]any)[0].(map[string]any)[key] = value }
	}
	good := manifest(nil)
	for _, c := range []struct {
		name     string
		manifest []byte
		mutate   func(w http.ResponseWriter, r *http.Request) bool
		pinned   string
		want     string
	}{
		{name: "nothing wrong", manifest: good},
		{name: "pinned", manifest: good, pinned: sum(good)},
		{name: "another manifest than the pinned one", manifest: manifest(layer("x", 1)), pinned: sum(good),
			want: "digest"},
		{name: "another index", manifest: good, want: "mismatch",
			mutate: func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "/blobs/") {
					return false
				}
				b := bytes.Clone(idx)
				b[100] ^= 1
				w.Write(b)
				return true
			}},
		{name: "a longer index", manifest: good, want: "registry of",
			mutate: func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "/blobs/") {
					return false
				}
				w.(http.Flusher).Flush() // without a length
				w.Write(append(bytes.Clone(idx), 0))
				return true
			}},
		{name: "a huge index", manifest: manifest(layer("size", index.MaxIndex+1)), want: "more than"},
		{name: "a negative index", manifest: manifest(layer("size", -1)), want: "more than"},
		{name: "no digest", manifest: manifest(layer("digest", "sha256:xyz")), want: "without a SHA-256"},
		{name: "another digest", manifest: manifest(layer("digest", "sha512:"+strings.Repeat("ab", 64))),
			want: "without a SHA-256"},
		{name: "a container", manifest: manifest(func(v map[string]any) { v["artifactType"] = "" }),
			want: "not a published image"},
		{name: "no layers", manifest: manifest(func(v map[string]any) { v["layers"] = nil }),
			want: "not a published image"},
		{name: "no JSON", manifest: []byte("hello"), want: "damaged"},
		{name: "a huge manifest", manifest: append(bytes.Repeat([]byte(" "), maxManifest), good...), want: "allowed"},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c.mutate != nil && c.mutate(w, r) {
				return
			}
			b := idx
			if strings.Contains(r.URL.Path, "/manifests/") {
				b = c.manifest
				w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
				w.Header().Set("Docker-Content-Digest", sum(b))
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(b)))
			if r.Method != "HEAD" {
				w.Write(b)
			}
		}))
		ref := "oci://" + strings.TrimPrefix(srv.URL, "http://") + "/x:1"
		if c.pinned != "" {
			ref += "@" + c.pinned
		}
		img, err := Open(t.Context(), parse(t, ref), Options{})
		switch {
		case c.want == "" && (err != nil || !bytes.Equal(img.Index, idx)):
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		srv.Close()
	}
}

// TestNothingInTheClear: a registry that is reached by https can't send a node, or its password, anywhere else.
func TestNothingInTheClear(t *testing.T) {
	var reached atomic.Bool
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	t.Cleanup(plain.Close)
	for _, answer := range []func(w http.ResponseWriter, r *http.Request){
		func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, plain.URL, http.StatusTemporaryRedirect)
		},
		func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="x"`, plain.URL))
			w.WriteHeader(http.StatusUnauthorized)
		},
	} {
		srv := httptest.NewTLSServer(http.HandlerFunc(answer))
		ref := parse(t, "oci://registry.test/x:1")
		c := srv.Client()
		tr := c.Transport.(*http.Transport).Clone()
		tr.TLSClientConfig.InsecureSkipVerify = true
		tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if strings.HasPrefix(addr, "registry.test") {
				addr = srv.Listener.Addr().String()
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
		_, err := Open(t.Context(), ref,
			Options{Client: &http.Client{Transport: tr}, Login: Static(ref, ParseSecret("pub:pw"))})
		wantRefusal(t, "a way out of https", err, "not encrypted")
		srv.Close()
	}
	if reached.Load() {
		t.Error("something was sent in the clear")
	}
}

// TestWordsOfErrors: a reference appears once, and the target of a registry's redirect, with its credentials, not at
// all.
func TestWordsOfErrors(t *testing.T) {
	dead := httptest.NewServer(nil)
	gone := strings.TrimPrefix(dead.URL, "http://")
	dead.Close()
	m := image(3, 6)
	idx := m.x.Marshal()
	layers, err := json.Marshal(
		map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
			"artifactType": ArtifactType,
			"layers": []any{
				map[string]any{"mediaType": indexType, "digest": index.Of(idx).String(), "size": len(idx)}}})
	if err != nil {
		t.Fatal(err)
	}
	storage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/short":
			w.Header().Set("Content-Length", "3")
			w.Write([]byte("abc"))
		case "/busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	t.Cleanup(storage.Close)
	to := ""
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/manifests/") {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", index.Of(layers).String())
			w.Write(layers)
			return
		}
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusTemporaryRedirect)
	}))
	t.Cleanup(front.Close)
	host := strings.TrimPrefix(front.URL, "http://")
	for _, c := range []struct{ ref, to, want string }{
		{ref: "oci+http://" + gone + "/x:1", want: "connection refused"},
		{ref: "oci+http://" + host + "/x:1", to: "http://" + gone + "/o?X-Amz-Signature=secret", want: gone + ": "},
		{ref: "oci+http://" + host + "/x:1", to: storage.URL + "/denied?X-Amz-Signature=secret", want: "status 403"},
		{ref: "oci+http://" + host + "/x:1", to: storage.URL + "/busy?X-Amz-Signature=secret", want: "status 503"},
		{ref: "oci+http://" + host + "/x:1", to: storage.URL + "/short?X-Amz-Signature=secret",
			want: "mismatch Content-Length"},
		{ref: "oci+http://" + host + "/x:1", to: "http://%zz/o?X-Amz-Signature=secret",
			want: "redirects to an invalid URL"},
		{ref: "oci+http://" + host + "/x:1", to: "ftp://user:secret@h/o", want: "unsupported protocol"},
	} {
		to = c.to
		_, err := Open(t.Context(), parse(t, c.ref), Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") ||
			strings.Contains(err.Error(), "/v2/") {
			t.Errorf("redirected to %q: %v, want %q and neither secret nor path", c.to, err, c.want)
		}
	}
	in := fmt.Errorf(`GET "https://user:secret@h/a?sig=secret": %w`, context.Canceled)
	ref := parse(t, "oci://h/a:1")
	if err := explain(ref, in); err.Error() != `registry of oci://h/a:1: GET "https://h/a": context canceled` ||
		!errors.Is(err, context.Canceled) {
		t.Errorf("explain = %v", err)
	}
	plain := &images.Error{Err: errors.New("which is not encrypted"), Remedy: "use https"}
	if err := explain(ref, &url.Error{Op: "Get", URL: "http://h/?sig=secret", Err: plain}); strings.Contains(
		err.Error(), "secret") || !errors.Is(err, plain) {
		t.Errorf("explain = %v", err)
	}
}

func TestReferences(t *testing.T) {
	sum := "sha256:" + strings.Repeat("ab", 32)
	for url, plain := range map[string]bool{
		"oci://registry.example.com/a/b:1": false, "oci://localhost:5000/a:1": true, "oci://127.0.0.1/a:1": true,
		"oci://[::1]:5000/a:1": true, "oci+http://10.0.0.1:5000/a:1": true, "oci://10.0.0.1:5000/a@" + sum: false,
		"oci://h/a:1@" + sum: false,
	} {
		r, err := ParseReference(url)
		if err != nil || r.plain != plain || r.String() != url || r.Pinned() != strings.Contains(url, "@") ||
			!IsReference(url) {
			t.Errorf("%s: %+v, %v", url, r, err)
		}
	}
	for _, url := range []string{"", "http://h/a:1", "oci://", "oci://h", "oci://h/a", "oci://h/A:1",
		"oci://user:pw@h/a:1", "oci://h/a:1@sha256:12", "oci://h/a@sha512:" + strings.Repeat("ab", 64),
		"oci://h/../a:1", "oci://h/a:t/x"} {
		_, err := ParseReference(url)
		wantRefusal(t, url, err)
		if err != nil && strings.Contains(err.Error(), "pw") {
			t.Errorf("a password is in %v", err)
		}
	}
	for in, want := range map[string]Credential{
		"u:p": {User: "u", Password: "p"}, "u:p:q": {User: "u", Password: "p:q"}, "dTpw": {User: "u", Password: "p"},
		"token": {Password: "token"}, "u:": {User: "u"},
	} {
		if got := ParseSecret(in); got != want {
			t.Errorf("ParseSecret(%q) = %+v", in, got)
		}
	}
}
