package instance

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/guard/redact"
	"github.com/ingot-metal/ingot/conductor/node"
)

// CheckImage refuses a deployment that could only fail, or whose image can't be verified.
func (s Site) CheckImage(n *node.Node) error {
	text := func(key string) string {
		s, _ := n.InstanceInfo[key].(string)
		return s
	}
	if text("image_source") == "" {
		return node.Invalidf("instance_info has no image_source: set it to the URL of the image")
	}
	_, inGlance := GlanceID(text("image_source"))
	if inGlance || strings.HasPrefix(text("image_source"), glanceScheme) {
		if err := s.checkGlance(n, inGlance); err != nil {
			return err
		}
	} else if u := s.ImageURL(text("image_source")); u == "" || !inRegistry(u) && !webURL(u) {
		return node.Invalidf(
			"image_source %q is not an http or https URL, nor oci://registry/repository with a tag or digest",
			redact.URL(text("image_source")))
	}
	vouched, err := s.checkPublished(n)
	if err != nil {
		return err
	}
	if _, err := s.mirrors(n); err != nil {
		return err
	}
	if _, err := RootDevice(n); err != nil {
		return err
	}
	if _, err := s.layout(n); err != nil {
		return err
	}
	algo, value := text("image_os_hash_algo"), text("image_os_hash_value")
	kind := plainAlgo(algo)
	switch kind {
	case "sha256", "sha512", "blake3":
	case "":
		if value != "" {
			return node.Invalidf(
				"instance_info has image_os_hash_value without image_os_hash_algo: set it to sha256, sha512 or blake3")
		}
	case "md5":
		if !s.AllowMD5 {
			return node.Invalidf(
				"image_os_hash_algo md5 does not protect an image: use sha256, sha512 or blake3, or have the conductor's deploy.allow_md5 set")
		}
	default:
		return node.Invalidf("image_os_hash_algo %q is not supported: use sha256, sha512 or blake3", algo)
	}
	switch sum := strings.TrimSpace(text("image_checksum")); {
	case value == "" && len(sum) == 32 && !s.AllowMD5:
		return node.Invalidf(
			"image_checksum is an MD5 sum, which does not protect an image: give a SHA-256 or SHA-512 digest, or have the conductor's deploy.allow_md5 set")
	case value == "" && text("image_checksum") == "" && !s.AllowUnverified && !vouched:
		return node.Invalidf(
			"instance_info has no digest of the image: set image_os_hash_algo and image_os_hash_value (or image_checksum)")
	}
	if value != "" {
		if err := checkDigest("image_os_hash_value", kind, value); err != nil {
			return err
		}
	}
	if sum := text("image_checksum"); sum != "" && value == "" { // else it is not used
		if err := checkDigest("image_checksum", "", sum); err != nil {
			return err
		}
	}
	return CheckDrive(n.InstanceInfo)
}

// imageArgs are the keys of instance_info that describe the image.
var imageArgs = []string{"image_os_hash_algo", "image_os_hash_value", "image_checksum", "image_disk_format",
	"image_signature", "image_pull_secret", "image_difference", "image_type", "ephemeral_format"}

// ImageArgs puts into args how the agent gets and writes the node's image.
func (s Site) ImageArgs(n *node.Node, args map[string]any) error {
	source, _ := n.InstanceInfo["image_source"].(string)
	args["image_source"] = s.ImageURL(source)
	if id, ok := GlanceID(source); ok && s.GlanceAddress != nil {
		args["image_source"] = s.GlanceAddress(n, id)
	}
	for _, k := range imageArgs {
		if v, ok := n.InstanceInfo[k].(string); ok && v != "" {
			args[k] = v
		}
	}
	layout, err := s.layout(n)
	if err != nil {
		return err
	}
	maps.Copy(args, layout)
	if others, err := s.mirrors(n); err != nil {
		return err
	} else if len(others) > 0 {
		args["image_mirrors"] = others
	}
	if trusted, err := keys(n); err != nil {
		return err
	} else if len(trusted) > 0 {
		args["image_keys"] = trusted
	}
	hints, err := RootDevice(n)
	if err != nil {
		return err
	}
	if hints != nil {
		args["root_device"] = hints
	}
	CA(n, args)
	if s.AllowUnverified {
		args["allow_unverified"] = true
	}
	if s.AllowMD5 {
		args["allow_md5"] = true
	}
	return nil
}

// ImageURL is where the agent gets an image: a URL or a reference to a registry as it is, a bare file name from the
// conductor; "" for anything else.
func (s Site) ImageURL(source string) string {
	if strings.HasPrefix(source, "http://") || strings.HasPrefix(source, "https://") || inRegistry(source) {
		return source
	}
	if source != "" && !strings.Contains(source, "/") && s.ImageBase != "" {
		return strings.TrimSuffix(s.ImageBase, "/") + "/" + source
	}
	return ""
}

// glanceImage is the ID of an image in Glance.
var glanceImage = regexp.MustCompile(`^(?:` + glanceScheme + `)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)

// GlanceID returns the ID of the image of OpenStack's image service that an image_source names: a UUID, also after
// glance://.
func GlanceID(source string) (id string, ok bool) {
	m := glanceImage.FindStringSubmatch(strings.ToLower(source))
	if m == nil {
		return "", false
	}
	return m[1], true
}

// glanceScheme begins an image_source that is in Glance for certain.
const glanceScheme = "glance://"

// GlanceName returns the name of the image of OpenStack's image service that an image_source may mean: what comes after
// glance://, for certain, or a bare word, which may as well be the name of a file at the conductor.
func GlanceName(source string) (name string, certain bool) {
	if _, ok := GlanceID(source); ok {
		return "", false
	}
	if name, certain = strings.CutPrefix(source, glanceScheme); !certain && strings.ContainsAny(source, "/:") {
		return "", false
	}
	return name, certain
}

// checkGlance refuses an image of Glance that can't be had. found says that its ID is known.
func (s Site) checkGlance(n *node.Node, found bool) error {
	switch {
	case s.GlanceAddress == nil:
		return node.Invalidf(
			"image_source %q is an image in Glance, which this conductor does not use: have its glance.url set, or give the URL of the image",
			n.InstanceInfo["image_source"])
	case !found: // the name is replaced by the ID when a deployment is requested
		return node.Invalidf("image_source %q was set while another image was looked up: repeat the request",
			n.InstanceInfo["image_source"])
	case n.InstanceInfo["image_mirrors"] != nil:
		return node.Invalidf("an image of Glance has no mirrors: leave out image_mirrors")
	}
	return nil
}

// maxMirrors is more than anybody has.
const maxMirrors = 16

// mirrors are the URLs of the same image at other places.
func (s Site) mirrors(n *node.Node) ([]string, error) {
	v := n.InstanceInfo["image_mirrors"]
	if v == nil {
		return nil, nil
	}
	list, ok := v.([]any)
	if !ok || len(list) > maxMirrors {
		return nil, node.Invalidf("image_mirrors is not a list of at most %d URLs", maxMirrors)
	}
	var urls []string
	for _, item := range list {
		text, _ := item.(string)
		u := s.ImageURL(text)
		if inRegistry(u) || !webURL(u) {
			return nil, node.Invalidf("image_mirrors has %q, which is not an http or https URL", redact.URL(text))
		}
		urls = append(urls, u)
	}
	return urls, nil
}

// registryImage is the reference of a published image in an OCI registry: with a tag, a digest, or both.
var registryImage = regexp.MustCompile(
	`^oci(\+http)?://[A-Za-z0-9.:\[\]-]+/[a-z0-9][a-z0-9._/-]*(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?$`)

// inRegistry reports whether an image is in a registry. A reference without tag and digest is not accepted: "the
// newest" must be said.
func inRegistry(source string) bool {
	m := registryImage.FindStringSubmatch(source)
	return m != nil && m[2]+m[3] != ""
}

// pinned reports whether a reference names a digest, so that it means one image only.
func pinned(source string) bool {
	m := registryImage.FindStringSubmatch(source)
	return m != nil && m[3] != ""
}

const maxKeys = 16

// keys returns the public keys of which one must have signed the image. With keys in driver_info the operator requires
// them for every image on this node, so a user who deploys can't name others.
func keys(n *node.Node) ([]string, error) {
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
	return nil, node.Invalidf("image_keys in %s is not a list of 1 to %d public keys of minisign or cosign", where, maxKeys)
}

// checkPublished refuses settings that don't fit a published image. vouched reports whether the image can be verified
// by something other than a digest in instance_info.
func (s Site) checkPublished(n *node.Node) (vouched bool, err error) {
	text := func(key string) string {
		s, _ := n.InstanceInfo[key].(string)
		return s
	}
	given, err := keys(n)
	if err != nil {
		return false, err
	}
	if d := text("image_difference"); !slices.Contains([]string{"", "auto", "always", "never"}, d) {
		return false, node.Invalidf("image_difference %q is not known: use auto, always or never", d)
	}
	if s := text("image_signature"); s != "" && !webURL(s) {
		return false, node.Invalidf("image_signature %q is not an http or https URL", redact.URL(s))
	}
	if inRegistry(text("image_source")) && n.InstanceInfo["image_mirrors"] != nil {
		return false, node.Invalidf("an image in a registry has no mirrors: leave out image_mirrors")
	}
	return len(given) > 0 || pinned(text("image_source")), nil
}

// CA adds the certificates that a node's operator trusts to a step that fetches tenants' URLs; none when none are set.
func CA(n *node.Node, args map[string]any) {
	if v, ok := n.DriverInfo["image_ca"].(string); ok && v != "" {
		args["image_ca"] = v
	}
}
