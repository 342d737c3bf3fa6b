package image

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"aead.dev/minisign"
	"golang.org/x/crypto/bcrypt"

	"github.com/ingot-metal/ingot/agent/disk"
	"github.com/ingot-metal/ingot/agent/machine/fake"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/oci"
	"github.com/ingot-metal/ingot/images/publish"
	"github.com/ingot-metal/ingot/test/kit"
)

// startRegistry runs a registry in which user "rack" with password "hunter2" may do everything, and other users
// nothing.
func startRegistry(t *testing.T) string {
	t.Helper()
	kit.NeedPrograms(t, "docker-registry")
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	hash, err := bcrypt.GenerateFromPassword([]byte("hunter2"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	conf := fmt.Sprintf(
		"version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s/data}}\nhttp: {addr: %q, secret: test}\n"+
			"auth: {htpasswd: {realm: test, path: %s/htpasswd}}\n", dir, addr, dir)
	for name, text := range map[string]string{"htpasswd": "rack:" + string(hash) + "\n", "config.yml": conf} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	cmd := exec.Command("docker-registry", "serve", filepath.Join(dir, "config.yml"))
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("registry:\n%s", &log)
		}
	})
	kit.Eventually(t, 2*time.Minute, "the registry answers", func() bool {
		r, err := http.Get("http://" + addr + "/v2/")
		if err != nil {
			return false
		}
		r.Body.Close()
		return true
	})
	return addr
}

// TestImageInARegistry pulls from a real registry, through a proxy that makes trouble.
func TestImageInARegistry(t *testing.T) {
	addr := startRegistry(t)
	img := mbrImage(14*mib + 512)
	p := publishImage(t, img)
	b, err := os.ReadFile(filepath.Join(p.dir, "disk.ingot"))
	if err != nil {
		t.Fatal(err)
	}
	pub, priv, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stranger, _, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := oci.ParseReference("oci://" + addr + "/os/disk:1")
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := oci.Push(t.Context(), ref, oci.Upload{
		Name: "disk", Index: b, Signatures: map[string][]byte{".minisig": minisign.Sign(priv, b)},
		Object: func(ctx context.Context, o index.Object) ([]byte, error) { return publish.Dir(p.dir).Object(ctx, o) },
	}, oci.Options{Login: oci.Static(ref, oci.Credential{User: "rack", Password: "hunter2"})})
	if err != nil {
		t.Fatal(err)
	}
	_, digest, _ := strings.Cut(pushed.Ref.String(), "@")

	var trouble func(w http.ResponseWriter, r *http.Request, blob int64) bool
	var blobs atomic.Int64
	to := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: addr})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if trouble != nil && strings.Contains(r.URL.Path, "/blobs/") && trouble(w, r, blobs.Add(1)) {
			return
		}
		to.ServeHTTP(w, r)
	}))
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	tag, pinned := "oci://"+host+"/os/disk:1", "oci://"+host+"/os/disk@"+digest

	ill := func(w http.ResponseWriter, r *http.Request, n int64) bool {
		if n%3 != 0 {
			return false
		}
		http.Error(w, "ill", http.StatusServiceUnavailable)
		return true
	}
	breaks := func(w http.ResponseWriter, r *http.Request, n int64) bool {
		if n%3 != 0 {
			return false
		}
		w.Header().Set("Content-Length", "300000")
		w.Write(make([]byte, 70000))
		panic(http.ErrAbortHandler)
	}
	lies := func(every int64) func(w http.ResponseWriter, r *http.Request, n int64) bool {
		return func(w http.ResponseWriter, r *http.Request, n int64) bool {
			_, sum, _ := strings.Cut(r.URL.Path, "sha256:")
			stored, err := os.ReadFile(filepath.Join(p.dir, "objects", sum[:2], sum))
			if n%every != 0 || err != nil {
				return false
			}
			stored[len(stored)/3] ^= 1
			w.Write(stored)
			return true
		}
	}
	gone := func(w http.ResponseWriter, r *http.Request, n int64) bool {
		if strings.HasSuffix(r.URL.Path, fmt.Sprintf("%x", p.x.Chunks[2].Sum)) {
			http.Error(w, "no", http.StatusNotFound)
			return true
		}
		return false
	}
	secret := "rack:hunter2"
	for _, c := range []struct {
		name    string
		args    map[string]any
		trouble func(w http.ResponseWriter, r *http.Request, n int64) bool
		want    string
	}{
		{"pinned", map[string]any{"image_source": pinned, "image_pull_secret": secret}, nil, ""},
		{"tag, digest of the index",
			map[string]any{"image_source": tag, "image_pull_secret": secret, "image_checksum": p.sum}, nil, ""},
		{"tag, signed", map[string]any{"image_source": tag, "image_pull_secret": secret,
			"image_keys": []string{pub.String()}}, nil, ""},
		{"tag, unverified", map[string]any{"image_source": tag, "image_pull_secret": secret, "allow_unverified": true},
			nil, ""},
		{"tag alone", map[string]any{"image_source": tag, "image_pull_secret": secret}, nil, "no digest"},
		{"signed by another",
			map[string]any{"image_source": pinned, "image_pull_secret": secret,
				"image_keys": []string{stranger.String()}}, nil, "signature does not hold"},
		{"another digest of the index",
			map[string]any{"image_source": pinned, "image_pull_secret": secret,
				"image_checksum": strings.Repeat("ab", 32)}, nil, "digest is wrong"},
		{"another digest",
			map[string]any{"image_source": "oci://" + host + "/os/disk@sha256:" + strings.Repeat("ab", 32),
				"image_pull_secret": secret}, nil, "does not have it"},
		{"nobody", map[string]any{"image_source": pinned}, nil, "user and a password"},
		{"wrong password", map[string]any{"image_source": pinned, "image_pull_secret": "rack:hunter3"}, nil,
			"does not accept"},
		{"with mirrors", map[string]any{"image_source": pinned, "image_mirrors": []string{p.url}}, nil, "mirrors"},
		{"with a checksum file", map[string]any{"image_source": pinned, "image_checksum": p.server.URL + "/sums"}, nil,
			"no checksum file"},
		{"ill now and then", map[string]any{"image_source": pinned, "image_pull_secret": secret}, ill, ""},
		{"breaks off now and then", map[string]any{"image_source": pinned, "image_pull_secret": secret}, breaks, ""},
		{"damaged now and then", map[string]any{"image_source": pinned, "image_pull_secret": secret}, lies(3), ""},
		{"damaged", map[string]any{"image_source": pinned, "image_pull_secret": secret}, lies(1), "is damaged"},
		{"not complete", map[string]any{"image_source": pinned, "image_pull_secret": secret}, gone,
			"chunk 2 of the image"},
	} {
		t.Run(c.name, func(t *testing.T) {
			trouble = c.trouble
			blobs.Store(0)
			m := newBench(t, fake.DiskSpec{Size: 32 * mib})
			if c.want != "" {
				m.wait = hasty
			}
			r, err := m.write(t.Context(), c.args)
			if said := m.log.String() + fmt.Sprint(err); strings.Contains(said, "hunter") {
				t.Errorf("a secret got out: %s", said)
			}
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || step.AsError(err).Remedy == "" {
					t.Errorf("error = %v, want %q and a remedy", err, c.want)
				}
				if disk.HasTable(m.head(t), 512) {
					t.Error("the disk looks bootable")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.SHA256 != p.sum || r.Format != "published" {
				t.Errorf("result = %+v", r)
			}
			m.commit(t)
			m.mustHold(t, img)
		})
	}
}
