//go:build !race

package oci

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/ingot-metal/ingot/images/index"
)

// listing is a registry in which there is only one thing, under the tag 1.
func listing(mediaType string, b []byte) *http.Client {
	return &http.Client{Transport: answers(func(req *http.Request) (string, []byte) {
		if strings.HasSuffix(req.URL.Path, "/manifests/1") {
			return mediaType, b
		}
		return "", nil
	})}
}

// TestManifestsTakeLittleMemory: the agent reads them in 64 MiB, before anything is known to be right. The race
// detector, with which this takes ten times as long, has nothing to find: nothing runs beside it.
func TestManifestsTakeLittleMemory(t *testing.T) {
	head := fmt.Sprintf(`{"schemaVersion": 2, "artifactType": %q, `, ArtifactType)
	first := fmt.Sprintf(`{"mediaType": %q, "artifactType": %q, "digest": %q, "size": 9`, indexType, ArtifactType,
		partDigest)
	for _, c := range []struct {
		name, begin, many, end string
		want                   string
	}{
		{"empty descriptors", first + "}", ",{}", "]", "damaged: it lists more than 10000 things"},
		{"lists", first + "}", "],LIST:[", "]", "damaged: it has a list twice"},
		{"lists that are null", first + "}]", ",LIST:null", "", "damaged: it has a list twice"},
		{"annotations", first + `,"annotations":{"":""`, `,"NUMBER":""`, "}}]", "does not have it"},
		{"the same, of all", first + `}],"annotations":{"":""`, `,"NUMBER":""`, "}", "does not have it"},
		{"addresses", first + `,"urls":[""`, `,""`, "]}]", "does not have it"},
		{"lists in lists", first + `,"platform":{"os.features":[""`, `,""`, "]}}]", "does not have it"},
		{"a long name", first + `},{"mediaType":"`, "x", `"}]`, "does not have it"},
		{"a name that is no UTF-8", first + `},{"mediaType":"`, "\xff", `"}]`, "damaged: it is not in UTF-8"},
		{"a list of numbers", "1", ",1", "]", "damaged: json: cannot unmarshal number"},
	} {
		for list, mediaType := range map[string]string{`"layers"`: ocispec.MediaTypeImageManifest,
			`"manifests"`: ocispec.MediaTypeImageIndex} {
			begin := "[" + c.begin
			if mediaType == ocispec.MediaTypeImageIndex {
				begin = strings.ReplaceAll(begin, indexType, ocispec.MediaTypeImageManifest)
			}
			var b strings.Builder
			b.Grow(maxManifest)
			b.WriteString(head + list + ":" + begin)
			for i := 0; b.Len() < maxManifest-100; i++ {
				more := strings.ReplaceAll(c.many, "LIST", list)
				if strings.Contains(more, "NUMBER") {
					more = strings.ReplaceAll(more, "NUMBER", fmt.Sprint(i))
				}
				b.WriteString(more)
			}
			b.WriteString(c.end + "}")
			registry := Options{Client: listing(mediaType, []byte(b.String()))}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			_, err := Open(t.Context(), parse(t, "oci://h/a:1"), registry)
			runtime.ReadMemStats(&after)
			wantRefusal(t, c.name+" of "+list, err, c.want)
			if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 48 {
				t.Errorf("%s of %s: %d MiB were allocated", c.name, list, took)
			}
		}
	}
}

// TestLargestImageIsRead: what Push makes of a disk as large as an index can hold is far below the limit.
func TestLargestImageIsRead(t *testing.T) {
	const chunks = index.MaxSize / index.ChunkSize
	objects := chunks + chunks/index.ListChunks + 10 // with the index and its signatures
	if manifests := objects/maxLayers + 1; 10*manifests > maxDescriptors || 10*maxLayers > maxDescriptors {
		t.Errorf("%d manifests of %d layers; %d are read", manifests, maxLayers, maxDescriptors)
	}
	for _, list := range []string{"null", "[]"} {
		if m, err := parseManifest([]byte(`{"layers": ` + list + `}`)); err != nil || len(m.Layers) != 0 {
			t.Errorf("%s: %d layers, %v", list, len(m.Layers), err)
		}
	}
	if m, err := parseManifest(
		[]byte(`{"layers": [{}` + strings.Repeat(", {}", maxDescriptors-1) + `]}`)); err != nil ||
		len(m.Layers) != maxDescriptors {
		t.Errorf("%d layers, %v", len(m.Layers), err)
	}
	if _, err := parseManifest([]byte(`{"layers": {}}`)); err == nil || !strings.Contains(err.Error(), "no list") {
		t.Errorf("no list: %v", err)
	}
}
