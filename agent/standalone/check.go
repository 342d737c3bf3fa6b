package standalone

import (
	"fmt"
	"strings"

	"github.com/ingot-metal/ingot/agent/image"
	"github.com/ingot-metal/ingot/agent/image/chunked"
	"github.com/ingot-metal/ingot/agent/step"
	"github.com/ingot-metal/ingot/images"
	"github.com/ingot-metal/ingot/images/index"
	"github.com/ingot-metal/ingot/images/oci"
)

// check finds the faults that options have by themselves. The steps would find most of them too, but later.
func (o Options) check() error {
	const giveDigest = "give --sha256, --sha512, --blake3, --checksum or --key; or --allow-unverified, if you must"
	if o.Step != nil {
		return nil // FromStep and write_image check them
	}
	if o.Image == "" {
		return step.Failf("give --image, a URL or the path of a file", "no image is given")
	}
	if _, local := localImage(o.Image); local && len(o.Mirrors) > 0 {
		return step.Failf("leave out --mirror, or give URLs alone",
			"an image that is a file of this machine can't have mirrors")
	}
	pinned := false
	if oci.IsReference(o.Image) {
		ref, err := oci.ParseReference(o.Image)
		if err != nil {
			return image.Explain(fmt.Errorf("--image: %w", err))
		}
		switch pinned = ref.Pinned(); {
		case len(o.Mirrors) > 0:
			return step.Failf("leave out --mirror", "an image in a registry can't have mirrors")
		case o.Checksum != "":
			return step.Failf("give the digest of the image's index itself, or name a digest in --image",
				"an image in a registry is in no checksum file")
		}
	}
	if o.Digest != "" {
		algo, value, ok := cutDigest(o.Digest)
		if !ok {
			return step.Failf("give it as sha256:HEX, sha512:HEX or blake3:HEX", "the digest %q can't be understood",
				o.Digest)
		}
		if _, err := images.ParseDigest(algo, value); err != nil {
			return step.Fail("correct --"+algo+": copy all digits of the digest of the file at --image",
				fmt.Errorf("--%s: %w", algo, err))
		}
	}
	if o.Checksum != "" && !isURL(o.Checksum) {
		return step.Failf(
			"give digits by --sha256, --sha512 or --blake3; --checksum is the URL of a file that names the image",
			"--checksum: %q is no http or https URL", o.Checksum)
	}
	if o.Signature != "" && !isURL(o.Signature) {
		return step.Failf("give a URL, or put the signature beside the index, with .minisig or .sig appended to its name",
			"--signature: %q is no http or https URL", o.Signature)
	}
	for _, k := range o.Keys {
		if _, err := index.ParseKey(k); err != nil {
			return image.Explain(fmt.Errorf("--key: %w", err))
		}
	}
	if _, err := chunked.ParseDifference(o.Difference); err != nil {
		return step.Failf("set --difference to auto, always or never", "--difference: %q is not known", o.Difference)
	}
	if o.Memory != 0 && o.Memory < image.LeastMemory {
		return step.Failf(fmt.Sprintf("set --memory to %d or more, or leave it out", image.LeastMemory),
			"--memory: no image can be written in %d MiB", o.Memory)
	}
	if o.Digest == "" && o.Checksum == "" && len(o.Keys) == 0 && !pinned && !o.Unverified {
		return step.Failf(giveDigest, "the image has no digest or signature, by which it could be verified")
	}
	return nil
}

func isURL(s string) bool { return strings.HasPrefix(s, "http://") || strings.HasPrefix(s, "https://") }

// flags are the words of a deployment, and what the same is called here.
var flags = strings.NewReplacer(
	"; if there is nothing but MD5, the conductor's setting deploy.allow_md5 accepts it", "",
	"set image_source in instance_info", "give --image, a URL or the path of a file",
	"set image_os_hash_algo and image_os_hash_value in instance_info", "give --sha256, --sha512 or --blake3",
	"image_os_hash_algo (sha256, sha512 or blake3) and image_os_hash_value of the image file",
	"--sha256, --sha512 or --blake3 of the image file",
	"correct root_gb, swap_mb and ephemeral_gb of instance_info, or use", "use", "set root_gb to more, use", "use",
	"this node accepts signed images only", "with --key only signed images are written",
	"that this node trusts (image_keys)", "given by --key",
	"image_source", "--image",
	"image_mirrors", "--mirror",
	"image_checksum", "--checksum",
	"image_keys", "--key",
	"image_signature", "--signature",
	"image_ca", "--ca",
	"image_difference", "--difference",
	"image_memory", "--memory",
	"allow_unverified", "--allow-unverified",
	"then deploy again", "then write again",
	"deploy again;", "write again;",
	"the provisioning network", "this network",
	" in instance_info", "",
)

// inFlags makes an error of the steps speak of this command's flags.
func inFlags(err error) error {
	if err == nil {
		return nil
	}
	e := step.AsError(image.Explain(err))
	return &step.Error{Err: &worded{e.Err, flags.Replace(e.Err.Error())}, Remedy: flags.Replace(e.Remedy),
		Retryable: e.Retryable}
}

// worded is an error in other words.
type worded struct {
	err  error
	text string
}

func (w *worded) Error() string { return w.text }
func (w *worded) Unwrap() error { return w.err }
