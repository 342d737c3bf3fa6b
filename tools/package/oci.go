package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The container image: an OCI image layout (https://github.com/opencontainers/image-spec, v1.1) in one archive, with an
// image for each architecture. There is nothing in it but the program, and it runs as a user without a name.

// imageUser is the user and group of the image, as in other images from scratch.
const imageUser = 65532

// descriptor points to a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// image writes the container image of ingotd.
func (b *build) image() (err error) {
	f, err := os.Create(filepath.Join(b.out, "ingotd-"+b.version+"-oci.tar"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	o := &layout{w: tar.NewWriter(f), when: b.when}
	if err := o.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	labels := map[string]string{
		"org.opencontainers.image.title":    "ingotd",
		"org.opencontainers.image.version":  b.version,
		"org.opencontainers.image.revision": b.program,
		"org.opencontainers.image.created":  b.when.Format(time.RFC3339),
		"org.opencontainers.image.source":   "https://github.com/ingot-metal/ingot",
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	var images []descriptor
	for _, arch := range b.arches {
		d, err := b.imageFor(o, arch, labels)
		if err != nil {
			return err
		}
		images = append(images, d)
	}
	all, err := o.object(typeIndex, map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": images})
	if err != nil {
		return err
	}
	tag := b.imageTag()
	all.Annotations = map[string]string{
		"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": "ingotd:" + tag,
	}
	index, err := json.Marshal(
		map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []descriptor{all}})
	if err != nil {
		return err
	}
	if err := o.file("index.json", index); err != nil {
		return err
	}
	return o.w.Close()
}

// imageFor writes the image of an architecture.
func (b *build) imageFor(o *layout, arch string, labels map[string]string) (descriptor, error) {
	files, err := b.imageFiles(arch)
	if err != nil {
		return descriptor{}, err
	}
	packed, err := zipped(files)
	if err != nil {
		return descriptor{}, err
	}
	layer, err := o.blob(typeLayer, packed)
	if err != nil {
		return descriptor{}, err
	}
	created := b.when.Format(time.RFC3339)
	config, err := o.object(typeConfig, map[string]any{
		"architecture": arch, "os": "linux", "created": created,
		"config": map[string]any{
			"User": fmt.Sprintf("%d:%d", imageUser, imageUser), "Entrypoint": []string{"/usr/bin/ingotd"},
			"WorkingDir":   "/",
			"ExposedPorts": map[string]any{"6385/tcp": struct{}{}, "6386/tcp": struct{}{}},
			"Volumes":      map[string]any{"/var/lib/ingot": struct{}{}}, "StopSignal": "SIGTERM", "Labels": labels,
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{digest(files)}},
		"history": []any{map[string]any{"created": created, "created_by": "make packages"}},
	})
	if err != nil {
		return descriptor{}, err
	}
	d, err := o.object(typeManifest, map[string]any{"schemaVersion": 2, "mediaType": typeManifest, "config": config,
		"layers": []descriptor{layer}, "annotations": labels})
	d.Platform = &platform{arch, "linux"}
	return d, err
}

// imageFiles is the root directory of an image, as an archive.
func (b *build) imageFiles(arch string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range []struct {
		name, from string
		mode       int64
		owner      int
		records    map[string]string
	}{
		{name: "etc/", mode: 0o755},
		{name: "etc/ingot/", mode: 0o755},
		{name: "tmp/", mode: 0o1777},
		{name: "usr/", mode: 0o755},
		{name: "usr/bin/", mode: 0o755},
		{name: "usr/bin/ingotd", from: b.file(arch, "ingotd"), mode: 0o755,
			records: map[string]string{"SCHILY.xattr.security.capability": string(capabilities())}},
		{name: "usr/share/", mode: 0o755},
		{name: "usr/share/doc/", mode: 0o755},
		{name: "usr/share/doc/ingotd/", mode: 0o755},
		{name: "usr/share/doc/ingotd/LICENSE", from: filepath.Join(b.source, "LICENSE"), mode: 0o644},
		{name: "usr/share/doc/ingotd/sbom.cdx.json", from: b.file(arch, "ingotd.cdx.json"), mode: 0o644},
		{name: "var/", mode: 0o755},
		{name: "var/lib/", mode: 0o755},
		{name: "var/lib/ingot/", mode: 0o700, owner: imageUser},
	} {
		h := &tar.Header{Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, ModTime: b.when, Typeflag: tar.TypeDir,
			PAXRecords: e.records, Format: tar.FormatPAX}
		var data []byte
		if e.from != "" {
			var err error
			if data, err = os.ReadFile(e.from); err != nil {
				return nil, err
			}
			h.Typeflag, h.Size = tar.TypeReg, int64(len(data))
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// capabilities are those of the program's file: CAP_NET_BIND_SERVICE (10) and CAP_NET_RAW (13), effective, in the form
// of struct vfs_cap_data (linux/capability.h, revision 2). A user other than root has no others in a container.
func capabilities() []byte {
	const revision, effective = 0x02000000, 0x000001
	b := binary.LittleEndian.AppendUint32(nil, revision|effective)
	b = binary.LittleEndian.AppendUint32(b, 1<<10|1<<13) // permitted, 0 to 31
	return append(b, make([]byte, 12)...)                // inheritable, and both of 32 to 63
}

// layout writes the files of an image layout.
type layout struct {
	w    *tar.Writer
	when time.Time
}

func (o *layout) file(name string, data []byte) error {
	if err := o.w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: o.when,
		Typeflag: tar.TypeReg, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err := io.Copy(o.w, bytes.NewReader(data))
	return err
}

func (o *layout) blob(mediaType string, data []byte) (descriptor, error) {
	sum := digest(data)
	return descriptor{MediaType: mediaType, Digest: sum, Size: len(data)},
		o.file("blobs/"+strings.Replace(sum, ":", "/", 1), data)
}

// object writes a blob in JSON, which sorts keys.
func (o *layout) object(mediaType string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return o.blob(mediaType, data)
}

func digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }
