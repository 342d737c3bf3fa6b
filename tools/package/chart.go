package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// imageTag is the tag of the container image. A tag has neither ~ nor +.
func (b *build) imageTag() string { return strings.NewReplacer("~", "-", "+", "-").Replace(b.version) }

// chartVersion is the version of the chart, which Helm wants in semantic versioning: what is older than a release is
// behind a hyphen. There it is one word, since a number could begin with 0.
func (b *build) chartVersion() string {
	release, before, ok := strings.Cut(b.version, "~")
	if !ok {
		return b.version
	}
	return release + "-" + strings.ReplaceAll(before, ".", "-")
}

// chart writes the Helm chart as an archive, with this version and that of the container image.
func (b *build) chart() error {
	dir := filepath.Join(b.source, "tools/package/chart")
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(name string, data []byte) error {
		if err := w.WriteHeader(&tar.Header{Name: "ingot/" + name, Mode: 0o644, Size: int64(len(data)), ModTime: b.when,
			Typeflag: tar.TypeReg, Format: tar.FormatPAX}); err != nil {
			return err
		}
		_, err := w.Write(data)
		return err
	}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // in the order of names
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if name == "Chart.yaml" {
			if data, err = b.chartAbout(data); err != nil {
				return err
			}
		}
		return add(filepath.ToSlash(name), data)
	}); err != nil {
		return err
	}
	licence, err := os.ReadFile(filepath.Join(b.source, "LICENSE"))
	if err != nil {
		return err
	}
	if err := add("LICENSE", licence); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	packed, err := zipped(out.Bytes())
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.out, b.chartFile()), packed, 0o644)
}

// chartFile is the name that Helm gives such an archive.
func (b *build) chartFile() string { return "ingot-" + b.chartVersion() + ".tgz" }

// chartAbout puts versions into Chart.yaml.
func (b *build) chartAbout(text []byte) ([]byte, error) {
	for _, line := range [][2]string{{"\nversion: 0.0.0\n", "\nversion: " + b.chartVersion() + "\n"},
		{"\nappVersion: \"0.0.0\"\n", fmt.Sprintf("\nappVersion: %q\n", b.imageTag())}} {
		if bytes.Count(text, []byte(line[0])) != 1 {
			return nil, fmt.Errorf("chart/Chart.yaml has not one line %q to put the version into", strings.TrimSpace(line[0]))
		}
		text = bytes.Replace(text, []byte(line[0]), []byte(line[1]), 1)
	}
	return text, nil
}
