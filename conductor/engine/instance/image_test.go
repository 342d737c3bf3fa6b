package instance

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/node"
)

// imageArgsOf are the arguments that an image adds to a step.
func imageArgsOf(n *node.Node) (string, error) {
	args := map[string]any{}
	if err := (Site{}).ImageArgs(n, args); err != nil {
		return "", err
	}
	b, err := json.Marshal(args)
	return string(b), err
}

func TestPublishedImages(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("ab", 32)
	key := "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"
	for _, c := range []struct {
		name   string
		info   map[string]any
		driver map[string]any
		want   string // of the error, or of the arguments when they begin so
	}{
		{"pinned", map[string]any{"image_source": "oci://r.example:5000/os/debian" + digest}, nil,
			`{"image_source":"oci://r.example:5000/os/debian` + digest + `"}`},
		{"tag and digest", map[string]any{"image_source": "oci://r/d:12" + digest}, nil,
			`{"image_source":"oci://r/d:12` + digest + `"}`},
		{"in the clear", map[string]any{"image_source": "oci+http://r/d" + digest}, nil,
			`{"image_source":"oci+http://r/d` + digest + `"}`},
		{"tag alone", map[string]any{"image_source": "oci://r/d:12"}, nil, "no digest of the image"},
		{"tag, and a digest of the index",
			map[string]any{"image_source": "oci://r/d:12", "image_checksum": strings.Repeat("ab", 32)}, nil,
			`{"image_checksum":`},
		{"tag and a key", map[string]any{"image_source": "oci://r/d:12", "image_keys": []any{key}}, nil,
			`{"image_keys":["` + key + `"],`},
		{"neither tag nor digest", map[string]any{"image_source": "oci://r/d"}, nil, "nor oci://"},
		{"a password in it", map[string]any{"image_source": "oci://u:hidden@r/d:1"}, nil, "nor oci://"},
		{"a short digest", map[string]any{"image_source": "oci://r/d@sha256:abcd"}, nil, "nor oci://"},
		{"with mirrors", map[string]any{"image_source": "oci://r/d" + digest, "image_mirrors": []any{"http://h/i"}},
			nil, "no mirrors"},
		{"as a mirror", map[string]any{"image_source": "http://h/i", "image_mirrors": []any{"oci://r/d" + digest}}, nil,
			"not an http"},
		{"the operator's keys count", map[string]any{"image_source": "http://h/i", "image_keys": []any{"mine"}},
			map[string]any{"image_keys": key}, `{"image_keys":["` + key + `"],`},
		{"no key in the list", map[string]any{"image_source": "http://h/i", "image_keys": []any{}}, nil,
			"image_keys in instance_info"},
		{"something else in the list", map[string]any{"image_source": "http://h/i"},
			map[string]any{"image_keys": []any{7}}, "image_keys in driver_info"},
		{"difference", map[string]any{"image_source": "oci://r/d" + digest, "image_difference": "never"}, nil,
			`{"image_difference":"never",`},
		{"unknown difference", map[string]any{"image_source": "oci://r/d" + digest, "image_difference": "some"}, nil,
			"auto, always or never"},
		{"signature", map[string]any{"image_source": "http://h/i", "image_keys": key, "image_signature": "http://h/s"},
			nil, `{"image_keys":["` + key + `"],"image_signature":"http://h/s","image_source":"http://h/i"}`},
		{"no URL of a signature",
			map[string]any{"image_source": "http://h/i", "image_keys": key, "image_signature": "file:///s"}, nil,
			"image_signature"},
		{"secret", map[string]any{"image_source": "oci://r/d" + digest, "image_pull_secret": "u:p"}, nil,
			`{"image_pull_secret":"u:p",`},
	} {
		n := &node.Node{InstanceInfo: c.info, DriverInfo: c.driver}
		err := Site{}.CheckImage(n)
		if strings.HasPrefix(c.want, "{") {
			args, aerr := imageArgsOf(n)
			if err != nil || aerr != nil || !strings.HasPrefix(args, c.want) {
				t.Errorf("%s: %v, arguments are %s, %v; want %s", c.name, err, args, aerr, c.want)
			}
			continue
		}
		var invalid *node.InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v, want an InvalidError with %q", c.name, err, c.want)
		}
	}
}

// TestImageMirrors: they reach the agent next to image_source.
func TestImageMirrors(t *testing.T) {
	n := &node.Node{
		InstanceInfo: map[string]any{"image_source": "http://a/i", "image_checksum": "ab",
			"image_mirrors": []any{"https://u:p@b/i", "http://c/i"}}}
	args, err := imageArgsOf(n)
	if want := `{"image_checksum":"ab","image_mirrors":["https://u:p@b/i","http://c/i"],"image_source":"http://a/i"}`; err != nil || args != want {
		t.Errorf("arguments are %s, %v; want %s", args, err, want)
	}
}
