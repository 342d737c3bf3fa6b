package packages

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/test/kit"
)

// layoutFiles reads the archive of an image layout, whose blobs have to be what their names say.
func layoutFiles(t *testing.T, file string) map[string][]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if sum, ok := strings.CutPrefix(h.Name, "blobs/sha256/"); ok && sum != fmt.Sprintf("%x", sha256.Sum256(data)) {
			t.Errorf("blob %s has other content than its name says", h.Name)
		}
		files[h.Name] = data
	}
}

type pointer struct {
	MediaType, Digest string
	Size              int
	Platform          struct{ Architecture, OS string }
	Annotations       map[string]string
}

// follow reads the blob that a pointer leads to.
func follow(t *testing.T, files map[string][]byte, p pointer, mediaType string, to any) []byte {
	t.Helper()
	data, ok := files["blobs/"+strings.Replace(p.Digest, ":", "/", 1)]
	if !ok || len(data) != p.Size || p.MediaType != mediaType {
		t.Fatalf("%+v leads to %d bytes (there: %v), want type %s", p, len(data), ok, mediaType)
	}
	if to != nil {
		if err := json.Unmarshal(data, to); err != nil {
			t.Fatal(err)
		}
	}
	return data
}

// unpack unpacks the only layer of an image, as root.
func unpack(t *testing.T, layer []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	untar := exec.Command("tar", "--extract", "--directory", dir, "--same-permissions", "--numeric-owner", "--xattrs",
		"--xattrs-include=security.capability")
	untar.Stdin = bytes.NewReader(layer)
	if out, err := untar.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// unpackImage is the root directory of a container.
func unpackImage(t *testing.T) (dir string) {
	t.Helper()
	files := layoutFiles(t, one(t, packages(t), "ingotd-*-oci.tar"))
	for name, data := range files {
		if !strings.HasPrefix(name, "blobs/") || !bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
			continue
		}
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		layer, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		return unpack(t, layer)
	}
	t.Fatal("the image has no layer")
	return ""
}

// TestContainerImage reads the image back as a container engine does, and starts the program in it as its user, with
// the capabilities that it needs for DHCP and TFTP and no others.
func TestContainerImage(t *testing.T) {
	kit.NeedRoot(t)
	files := layoutFiles(t, one(t, packages(t), "ingotd-*-oci.tar"))
	if got := string(files["oci-layout"]); got != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("oci-layout is %s", got)
	}
	const types = "application/vnd.oci.image."
	var top, all struct{ Manifests []pointer }
	if err := json.Unmarshal(files["index.json"], &top); err != nil || len(top.Manifests) != 1 {
		t.Fatalf("index.json: %v\n%s", err, files["index.json"])
	}
	tag := top.Manifests[0].Annotations["org.opencontainers.image.ref.name"]
	if tag == "" || strings.ContainsAny(tag, "~+/: ") {
		t.Errorf("the tag is %q", tag)
	}
	follow(t, files, top.Manifests[0], types+"index.v1+json", &all)
	if len(all.Manifests) != 1 || all.Manifests[0].Platform.Architecture != runtime.GOARCH {
		t.Fatalf("images: %+v, want one for %s", all.Manifests, runtime.GOARCH)
	}
	var manifest struct {
		Config pointer
		Layers []pointer
	}
	follow(t, files, all.Manifests[0], types+"manifest.v1+json", &manifest)
	var config struct {
		Architecture, OS string
		Config           struct {
			User       string
			Entrypoint []string
			Labels     map[string]string
		}
		RootFS struct {
			Type    string
			DiffIDs []string `json:"diff_ids"`
		}
	}
	follow(t, files, manifest.Config, types+"config.v1+json", &config)
	if len(manifest.Layers) != 1 || len(config.RootFS.DiffIDs) != 1 {
		t.Fatalf("layers %+v, %v", manifest.Layers, config.RootFS)
	}
	if c := config.Config; c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/usr/bin/ingotd"}) ||
		config.OS != "linux" || config.Architecture != runtime.GOARCH {
		t.Errorf("configuration %+v", config)
	}
	for _, label := range []string{"title", "version", "revision", "created", "source", "licenses"} {
		if config.Config.Labels["org.opencontainers.image."+label] == "" {
			t.Errorf("the image has no label %s: %v", label, config.Config.Labels)
		}
	}

	z, err := gzip.NewReader(bytes.NewReader(follow(t, files, manifest.Layers[0], types+"layer.v1.tar+gzip", nil)))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256(layer)); got != config.RootFS.DiffIDs[0] {
		t.Errorf("the unpacked layer is %s, want %s", got, config.RootFS.DiffIDs[0])
	}
	dir := unpack(t, layer)
	program := filepath.Join(dir, "usr/bin/ingotd")
	if n, err := unix.Getxattr(program, "security.capability", make([]byte, 64)); err != nil || n != 20 {
		t.Errorf("the program's capabilities have %d bytes (%v), want 20", n, err)
	}
	if st, err := os.Stat(filepath.Join(dir, "var/lib/ingot")); err != nil || st.Mode().Perm() != 0o700 ||
		st.Sys().(*syscall.Stat_t).Uid != 65532 {
		t.Errorf("the data directory is %v (%v)", st, err)
	}
	bill := read(t, filepath.Join(dir, "usr/share/doc/ingotd/sbom.cdx.json"))
	if bill != read(t, one(t, packages(t), "ingotd_*.cdx.json")) {
		t.Error("the SBOM in the image is not the one beside it")
	}

	cmd := exec.Command("/usr/bin/ingotd", "doctor", "--json", "--set", "netboot.interface=lo", "--set",
		"netboot.dhcp=proxy", "--set", "netboot.address=127.0.0.1", "--set", "api.listen=127.0.0.1:0", "--set",
		"agents.listen=127.0.0.1:0", "--set", "agents.advertise=127.0.0.1:6386")
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir, Cloneflags: syscall.CLONE_NEWNET,
		Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	out, err := cmd.Output()
	var findings []struct{ Check, Status, Detail string }
	if json.Unmarshal(out, &findings) != nil || len(findings) == 0 {
		t.Fatalf("ingotd doctor in the image: %v\n%s", err, out)
	}
	for _, f := range findings {
		if strings.Contains(f.Detail, "permi") || strings.Contains(f.Detail, "may not") ||
			strings.Contains(f.Detail, "CAP_") {
			t.Errorf("%s in the image: %s", f.Check, f.Detail)
		}
	}
}

// TestComposeFile: it is YAML, and gives the container what its image needs and nothing more.
func TestComposeFile(t *testing.T) {
	var file struct {
		Services map[string]struct {
			Image       string
			NetworkMode string   `yaml:"network_mode"`
			Drop        []string `yaml:"cap_drop"`
			Add         []string `yaml:"cap_add"`
			Volumes     []string
			Privileged  bool
		}
		Volumes map[string]any
	}
	if err := yaml.Unmarshal([]byte(read(t, source+"/tools/package/compose.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	s := file.Services["ingotd"]
	if !strings.HasPrefix(s.Image, "ingotd:") || s.NetworkMode != "host" || !slices.Equal(s.Drop, []string{"ALL"}) ||
		!slices.Equal(s.Add, []string{"NET_BIND_SERVICE", "NET_RAW"}) || s.Privileged {
		t.Errorf("the service is %+v", s)
	}
	if !slices.Contains(s.Volumes, "data:/var/lib/ingot") {
		t.Errorf("volumes %v lack the data", s.Volumes)
	}
	if _, ok := file.Volumes["data"]; !ok {
		t.Errorf("volumes %v, want data", file.Volumes)
	}
}
