package engine

import (
	"regexp"
	"strings"

	"github.com/ingot-metal/ingot/conductor/node"
)

// registryImage is the reference of a published image in an OCI registry: with a tag, a digest, or both.
var registryImage = regexp.MustCompile(`^oci(\+http)?://[A-Za-z0-9.:\[\]-]+/[a-z0-9][a-z0-9._/-]*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)

// inRegistry tells whether an image is in a registry. A reference without tag and digest is none: nobody may mean "whatever is newest" unsaid.
func inRegistry(source string) bool {
	m := registryImage.FindStringSubmatch(source)
	return m != nil && m[2]+m[3] != ""
}

// pinned tells whether a reference names a digest, so that only one image can be behind it.
func pinned(source string) bool {
	m := registryImage.FindStringSubmatch(source)
	return m != nil && m[3] != ""
}

const maxKeys = 16

// imageKeys are the public keys of which one must have signed the image. Keys in driver_info are what the operator demands of every image
// on this node, so who deploys can't name others.
func imageKeys(n *node.Node) ([]string, error) {
	where, v := "driver_info", n.DriverInfo["image_keys"]
	if v == nil {
		where, v = "instance_info", n.InstanceInfo["image_keys"]
	}
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		if strings.TrimSpace(v) != "" {
			return []string{v}, nil
		}
	case []any:
		var keys []string
		for _, k := range v {
			if s, ok := k.(string); ok && strings.TrimSpace(s) != "" {
				keys = append(keys, s)
			}
		}
		if len(keys) == len(v) && len(v) > 0 && len(v) <= maxKeys {
			return keys, nil
		}
	}
	return nil, invalidf("image_keys in %s is not a list of 1 to %d public keys of minisign or cosign", where, maxKeys)
}

// checkPublished refuses what a published image can't be had with. It tells whether the image has something to be trusted by other than a
// digest in instance_info.
func (e *Engine) checkPublished(n *node.Node) (vouched bool, err error) {
	text := func(key string) string {
		s, _ := n.InstanceInfo[key].(string)
		return s
	}
	keys, err := imageKeys(n)
	if err != nil {
		return false, err
	}
	switch text("image_difference") {
	case "", "auto", "always", "never":
	default:
		return false, invalidf("image_difference %q is not known: use auto, always or never", text("image_difference"))
	}
	if s := text("image_signature"); s != "" && !strings.HasPrefix(s, "http://") && !strings.HasPrefix(s, "https://") {
		return false, invalidf("image_signature %q is not an http or https URL", redact(s))
	}
	if inRegistry(text("image_source")) && n.InstanceInfo["image_mirrors"] != nil {
		return false, invalidf("an image in a registry has no mirrors: leave out image_mirrors")
	}
	return len(keys) > 0 || pinned(text("image_source")), nil
}
