package cli

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// deployment describes what is to be deployed on a machine.
type deployment struct {
	image, checksum, format                    string
	hostname, userData, networkData, driveFile string
	sshKeys, meta, rootDevice, steps           []string
	rebuild, yes                               bool
	waiting
}

func (p *program) nodeDeploy() *cobra.Command {
	var d deployment
	return p.online(&cobra.Command{
		Use: "deploy [NAME]",
		Args: func(cmd *cobra.Command, args []string) error {
			if _, ok := isTerminal(p.stdin); ok && len(args) == 0 {
				return nil // it is asked for
			}
			return oneNode(cmd, args)
		},
		ValidArgsFunction: p.completeNode,
		Short:             "Write an image to a machine and start it",
		Long: `Write an image to a machine's disk and start it from there.

--hostname, --ssh-key, --user-data, --network-data and --meta make a config drive, which cloud-init in the image reads.
An image without a checksum is refused, unless the conductor's configuration allows it. Images on the conductor's own host
can be named by their file name alone. On a terminal, without a NAME or without
an image (none given, and none that the node has) it asks for what is missing; with --yes it does not.`,
		Example: `  ingot node deploy web1 --image https://example.org/debian-12.raw.zst --checksum sha256:7f3c... \
      --hostname web1 --ssh-key ~/.ssh/id_ed25519.pub`,
	}, append(d.options("the machine is active"), []option{
		opt("image", &d.image, "URL of the image, or name of a file that the conductor serves").freeText(),
		opt("checksum", &d.checksum, "sha256:HEX or sha512:HEX, or the URL of a file of sums").freeText(),
		opt("format", &d.format, "expected format (raw, qcow2, ...); the content of the image decides", "raw", "qcow2"),
		opt("hostname", &d.hostname, "host name of the system").freeText(),
		opt("ssh-key", &d.sshKeys, "file with a public ssh key that may log in; may be repeated"),
		opt("user-data", &d.userData, "file with user data for cloud-init"),
		opt("network-data", &d.networkData, "file with network_data.json"),
		opt("meta", &d.meta, "KEY=VALUE in the config drive's meta data").freeText(),
		opt("config-drive", &d.driveFile, "file with a whole config drive (ISO 9660), instead of the options above"),
		opt("root-device", &d.rootDevice,
			`KEY=VALUE, a hint about the disk to write: serial, wwn, size, name, ... (text may start with an operator: "size=>= 100")`).freeText(),
		opt("step", &d.steps,
			`INTERFACE.STEP:PRIORITY[={"arg": "value"}], a step to add, move or leave out (priority 0)`).freeText(),
		opt("rebuild", &d.rebuild, "rebuild: write the image to an active node again"),
		opt("yes,y", &d.yes, "don't ask"),
	}...), func(ctx context.Context, c *client.Client, args []string) error {
		name := strings.Join(args, "")
		if _, ok := isTerminal(p.stdin); ok && !d.yes && !d.rebuild {
			var err error
			if name, err = p.guide(ctx, c, name, &d); err != nil {
				return about(name, err)
			}
		}
		if name == "" {
			return usage("which machine? Say its name, or leave --yes and --rebuild out to be asked")
		}
		return about(name, p.deploy(ctx, c, name, d))
	})
}

func (p *program) deploy(ctx context.Context, c *client.Client, name string, d deployment) error {
	info, err := d.instanceInfo()
	if err != nil {
		return err
	}
	drive, err := d.configDrive(name)
	if err != nil {
		return err
	}
	steps, err := deployStepArguments(d.steps)
	if err != nil {
		return err
	}
	n, err := c.Node(ctx, name)
	if err != nil {
		return err
	}
	target := "active"
	switch n.ProvisionState {
	case "available", "deploy failed":
	case "active", "error":
		if !d.rebuild {
			return advise(fmt.Errorf("%s is %s: what is on it would be lost", name, n.ProvisionState),
				"Say --rebuild to write over it, or first: ingot node undeploy %s", name)
		}
		if err := p.confirm(d.yes, fmt.Sprintf("This writes over what %s runs. Go on?", name)); err != nil {
			return err
		}
		target = "rebuild"
	default:
		return advise(fmt.Errorf("%s is in state %q, in which nothing can be deployed to it", name, n.ProvisionState),
			"%s", nextFrom(string(n.ProvisionState), name))
	}
	if d.image == "" && n.InstanceInfo["image_source"] == nil {
		return usage("which image? Say --image URL")
	}
	var patch []rest.Operation
	if d.image != "" {
		// What an earlier image was described by must not describe this one.
		for _, k := range []string{"image_checksum", "image_os_hash_algo", "image_os_hash_value", "image_disk_format"} {
			if _, ok := n.InstanceInfo[k]; ok && info[k] == nil {
				patch = append(patch, rest.Operation{Op: "remove", Path: "/instance_info/" + k})
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(info)) {
		patch = append(patch, rest.Operation{Op: "add", Path: "/instance_info/" + k, Value: info[k]})
	}
	if len(patch) > 0 {
		if _, err := c.UpdateNode(ctx, name, patch); err != nil {
			return err
		}
	}
	if err := c.Provision(ctx, name,
		client.ProvisionRequest{Target: target, DeploySteps: steps, ConfigDrive: drive}); err != nil {
		return err
	}
	return p.finish(ctx, c, []string{name}, d.skips(), "", "active")
}

// instanceInfo describes the image as the API wants it.
func (d *deployment) instanceInfo() (map[string]any, error) {
	info := map[string]any{}
	if d.image != "" {
		info["image_source"] = d.image
	}
	if d.format != "" {
		info["image_disk_format"] = d.format
	}
	algo, value, ok := strings.Cut(d.checksum, ":")
	switch {
	case d.checksum == "":
	case strings.HasPrefix(d.checksum, "http://"), strings.HasPrefix(d.checksum, "https://"):
		info["image_checksum"] = d.checksum
	default:
		if !ok {
			value, algo = d.checksum, map[int]string{64: "sha256", 128: "sha512"}[len(d.checksum)]
		}
		raw, err := hex.DecodeString(value)
		want := map[string]int{"sha256": 32, "sha512": 64}[algo]
		if want == 0 {
			return nil, usage("--checksum %q is neither sha256:HEX nor sha512:HEX nor a URL", d.checksum)
		}
		if err != nil || len(raw) != want {
			return nil, usage("--checksum: a %s sum has %d hexadecimal digits, this is %q", algo, 2*want, value)
		}
		info["image_os_hash_algo"], info["image_os_hash_value"] = algo, strings.ToLower(value)
	}
	hints, err := assignments("root-device", d.rootDevice)
	if err != nil {
		return nil, err
	}
	if len(hints) > 0 {
		info["root_device"] = hints
	}
	return info, nil
}

// configDrive makes the config drive; nil when nothing asks for one.
func (d *deployment) configDrive(name string) (any, error) {
	parts := d.hostname != "" || len(d.sshKeys) > 0 || d.userData != "" || d.networkData != "" || len(d.meta) > 0
	if d.driveFile != "" {
		if parts {
			return nil, usage("--config-drive is a whole config drive; it doesn't go with options that make one")
		}
		return packedDrive(d.driveFile)
	}
	if !parts {
		return nil, nil
	}
	meta, err := assignments("meta", d.meta)
	if err != nil {
		return nil, err
	}
	// cloud-init does its once-per-instance work when the UUID is one that it has not seen.
	if meta["uuid"] == nil {
		meta["uuid"] = uuid.NewString()
	}
	if d.hostname != "" {
		meta["hostname"] = d.hostname
	}
	if meta["name"] == nil {
		meta["name"] = cmp.Or(d.hostname, name)
	}
	keys := map[string]any{}
	for _, file := range d.sshKeys {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read ssh key: %w", err)
		}
		for line := range strings.SplitSeq(string(b), "\n") {
			line = strings.TrimSpace(line)
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			if strings.Contains(line, "PRIVATE KEY") {
				return nil, usage("%s is a private key; give the public one, %s.pub", file, file)
			}
			keys[fmt.Sprintf("%s-%d", filepath.Base(file), len(keys))] = line
		}
	}
	if len(keys) > 0 {
		meta["public_keys"] = keys
	}
	drive := client.ConfigDrive{MetaData: meta}
	if d.userData != "" {
		b, err := os.ReadFile(d.userData)
		if err != nil {
			return nil, fmt.Errorf("read user data: %w", err)
		}
		drive.UserData = string(b)
	}
	if d.networkData != "" {
		if drive.NetworkData, err = networkDataIn(d.networkData); err != nil {
			return nil, err
		}
	}
	return drive, nil
}

// networkDataIn reads a network_data.json.
func networkDataIn(file string) (data map[string]any, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read network data: %w", err)
	}
	if err := exact.Unmarshal(b, &data); err != nil {
		return nil, usage("%s is not a JSON object: %v", file, err)
	}
	return data, nil
}

// packedDrive reads an image of a config drive and packs it for the API: gzip in base64.
func packedDrive(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read config drive: %w", err)
	}
	if bytes.HasPrefix(b, []byte("H4sI")) { // packed already
		return strings.TrimSpace(string(b)), nil
	}
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	if _, err := zw.Write(b); err != nil {
		return "", fmt.Errorf("pack config drive: %w", err)
	}
	if err := zw.Close(); err != nil {
		return "", fmt.Errorf("pack config drive: %w", err)
	}
	return base64.StdEncoding.EncodeToString(out.Bytes()), nil
}

// deployStepArguments reads steps as INTERFACE.STEP:PRIORITY[={...}].
func deployStepArguments(list []string) ([]client.Step, error) {
	var steps []client.Step
	for _, s := range list {
		name, args, _ := strings.Cut(s, "=")
		name, prio, ok := strings.Cut(name, ":")
		var n int
		if _, err := fmt.Sscanf(prio, "%d", &n); !ok || err != nil || n < 0 {
			return nil, usage("--step %q is not of the form INTERFACE.STEP:PRIORITY", s)
		}
		if args != "" {
			args = "=" + args
		}
		st, err := stepArguments([]string{name + args})
		if err != nil {
			return nil, err
		}
		st[0].Priority = &n
		steps = append(steps, st[0])
	}
	return steps, nil
}
