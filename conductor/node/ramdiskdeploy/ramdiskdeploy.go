// Package ramdiskdeploy reads the workload of a node with deploy_interface "ramdisk": a kernel with its initramfs, or
// an ISO image, that the machine boots into memory every time it starts, with nothing on its disks.
//
// It is read from instance_info, as Ironic's clients write it: kernel, ramdisk and kernel_append_params (or
// ramdisk_kernel_arguments), or boot_iso; Ingot's own are kernel_checksum and ramdisk_checksum. Tenants write these,
// and they end up in a boot script and on a kernel's command line, so everything passes a grammar without characters
// that are special to either. Of is pure and is called at every boot, since instance_info may change in between.
package ramdiskdeploy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/proto/drive"
)

// Interface is the deploy interface that this is about.
const Interface = "ramdisk"

// Step is the conductor's step that brings the machine to where its next start boots the workload.
const Step = "boot_ramdisk"

// Workload is the system to boot: Kernel, or ISO.
type Workload struct {
	Kernel, Ramdisk             string // URLs; Ramdisk may be empty
	KernelDigest, RamdiskDigest string // "sha256:<hex>" or "sha512:<hex>"; empty: none was given
	ISO                         string // URL
	Params                      string // words of the kernel's command line
	Drive                       json.RawMessage
}

// Seed is the archive with the config drive that goes beside the initramfs, of a node with a Drive.
func (w *Workload) Seed(nodeUUID string, now time.Time) ([]byte, error) {
	b, err := drive.Seed(w.Drive, nodeUUID, now)
	if err != nil {
		return nil, fmt.Errorf("config drive: %w", err)
	}
	return b, nil
}

// Of reads a node's workload. base is the URL below which the conductor serves its own files, for a bare file name; ""
// if it serves none. The error is a sentence for who writes instance_info.
func Of(n *node.Node, base string) (*Workload, error) {
	r := reader{info: n.InstanceInfo, base: base}
	w := &Workload{Kernel: r.url("kernel"), Ramdisk: r.url("ramdisk"), ISO: r.url("boot_iso")}
	w.KernelDigest, w.RamdiskDigest = r.digest("kernel_checksum"), r.digest("ramdisk_checksum")
	one, other := r.text("kernel_append_params"), r.text("ramdisk_kernel_arguments")
	if one != "" && other != "" && one != other {
		r.fail("instance_info has both kernel_append_params and ramdisk_kernel_arguments, and they differ: give one of them")
	}
	one = cmp.Or(one, other)
	w.Params = strings.Join(strings.Fields(one), " ")
	if err := CheckParams(w.Params); err != nil {
		r.fail("%v", err)
	}
	w.Drive = r.drive()
	switch {
	case w.ISO == "" && w.Kernel == "":
		r.fail("instance_info has nothing to boot: set kernel (and ramdisk) or boot_iso to the URL of what the machine is to run")
	case w.ISO != "" && w.Kernel+w.Ramdisk != "":
		r.fail("instance_info has both boot_iso and kernel or ramdisk: give one or the other")
	case w.ISO != "" && w.Params != "":
		r.fail("kernel parameters can't reach the kernel on an ISO image, which boots by itself: put them into the image, or give kernel and ramdisk instead of boot_iso")
	case w.ISO != "" && w.Drive != nil:
		r.fail("a config drive can't be given to an ISO image that boots from the network: give kernel and ramdisk instead of boot_iso")
	}
	if w.Kernel == "" && w.KernelDigest != "" || w.Ramdisk == "" && w.RamdiskDigest != "" {
		r.fail("instance_info has a checksum of what it does not have")
	}
	if r.err != nil {
		return nil, r.err
	}
	return w, nil
}

// reader reads instance_info and keeps the first fault.
type reader struct {
	info map[string]any
	base string
	err  error
}

func (r *reader) fail(format string, args ...any) {
	r.err = cmp.Or(r.err, fmt.Errorf(format, args...))
}

func (r *reader) text(key string) string {
	switch v := r.info[key].(type) {
	case nil:
	case string:
		return strings.TrimSpace(v)
	default:
		r.fail("instance_info's %s is not a text", key)
	}
	return ""
}

var (
	// urlForm is the grammar of a URL in a boot script: iPXE expands ${...}, and separates words by spaces.
	urlForm = regexp.MustCompile(`^https?://[A-Za-z0-9_.,:;/=@%+~?&!*()-]+$`)
	// nameForm is a file of the conductor's own.
	nameForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*$`)
	// wordForm is a word of a kernel's command line, as in conductor/netboot.
	wordForm   = regexp.MustCompile(`^[A-Za-z0-9_.,:/=@%+-]+$`)
	digestForm = regexp.MustCompile(`^(?:(sha256|sha512):)?([0-9a-f]+)$`)
)

// maxURL bounds what goes into a script; iPXE's lines are not for novels.
const maxURL = 2000

func (r *reader) url(key string) string {
	s := r.text(key)
	if s == "" {
		return ""
	}
	if !strings.Contains(s, "/") {
		if !nameForm.MatchString(s) {
			r.fail("instance_info's %s is neither an http or https URL nor the name of a file", key)
			return ""
		}
		if r.base == "" {
			r.fail("instance_info's %s names a file, but this conductor serves none: give an http or https URL", key)
			return ""
		}
		return strings.TrimSuffix(r.base, "/") + "/" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		r.fail("instance_info's %s is not an http or https URL", key)
		return ""
	}
	if !urlForm.MatchString(s) || len(s) > maxURL {
		r.fail("instance_info's %s is a URL that can't stand in a boot script: percent-encode all but letters, digits and _.,:;/=@%%+~?&!*()-, in at most %d characters", key, maxURL)
		return ""
	}
	return s
}

func (r *reader) digest(key string) string {
	s := strings.ToLower(r.text(key))
	if s == "" {
		return ""
	}
	m := digestForm.FindStringSubmatch(s)
	if m != nil {
		for algo, length := range map[string]int{"sha256": 64, "sha512": 128} {
			if len(m[2]) == length && (m[1] == "" || m[1] == algo) {
				return algo + ":" + m[2]
			}
		}
	}
	r.fail("instance_info's %s is not a SHA-256 or SHA-512 digest in hexadecimal", key)
	return ""
}

func (r *reader) drive() json.RawMessage {
	switch v := r.info["configdrive"].(type) {
	case nil:
		return nil
	case string:
		if v == "" {
			return nil
		}
		if drive.IsURL(v) {
			r.fail("the config drive is given as a URL, where nothing fetches it for a workload that runs from memory: hand it in itself")
			return nil
		}
	}
	b, err := json.Marshal(r.info["configdrive"])
	if err != nil {
		r.fail("the config drive is no JSON: %v", err)
	}
	return b
}

// reserved are the parameters that the boot script sets itself.
var reserved = []string{"initrd", "bootif"}

// CheckParams holds words of a workload's command line against the grammar. The kernel is the tenant's own, so what
// they mean is the tenant's business, apart from those that the boot script sets.
func CheckParams(params string) error {
	for w := range strings.FieldsSeq(params) {
		if !wordForm.MatchString(w) {
			return fmt.Errorf("kernel parameter %q has characters other than letters, digits and _.,:/=@%%+-", w)
		}
		key, _, _ := strings.Cut(strings.ToLower(w), "=")
		if slices.Contains(reserved, key) {
			return fmt.Errorf("kernel parameter %q: %s is set by the conductor alone", w, key)
		}
		if w == "%default%" {
			return fmt.Errorf(
				"kernel parameter %%default%% stands for those of Ingot's own ramdisk, which do not fit another system: list the parameters themselves")
		}
	}
	return nil
}

// last are the steps, of whatever job, in which the machine has been handed over to its workload, or is about to be.
var last = []string{Step, "tear_down_agent", "switch_to_tenant_network", "boot_instance"}

// Boots reports whether a machine of a node with this deploy interface that starts by itself, without an expected boot
// of the agent, is to get its workload: when the node has an instance and no other work is under way, and at the end of
// the work that deploys it.
func Boots(n *node.Node) bool {
	switch n.Provision {
	case node.Active, node.Adopting:
		return true
	case node.Deploying, node.DeployWait, node.Unrescuing, node.Servicing, node.ServiceWait:
		if n.Job == nil || n.Job.Failure != "" {
			return false
		}
		s := n.Job.Current()
		return s != nil && !s.InBand && !s.Plug && slices.Contains(last, s.Name)
	}
	return false
}
