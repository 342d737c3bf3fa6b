package steps

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/agent/fetch"
	"github.com/ingot-metal/ingot/agent/ipa/command"
	"github.com/ingot-metal/ingot/agent/ipa/ironic"
	"github.com/ingot-metal/ingot/agent/step"
)

// imageInfo is the conductor's description of an image. Keys without a meaning here are left out: id of the node and of
// kernel and ramdisk, container_format, stream_raw_images (every image is streamed), boot_option, disk_label and
// deploy_boot_mode (the firmware that runs decides).
type imageInfo struct {
	ID         string   `json:"id"`
	URLs       []string `json:"urls"`
	DiskFormat string   `json:"disk_format"`
	Checksum   string   `json:"checksum"`
	HashAlgo   string   `json:"os_hash_algo"`
	HashValue  string   `json:"os_hash_value"`
	Proxies    struct {
		HTTP  string `json:"http"`
		HTTPS string `json:"https"`
	} `json:"proxies"`
	NoProxy      string `json:"no_proxy"`
	AuthStrategy string `json:"image_server_auth_strategy"`
	User         string `json:"image_server_user"`
	Password     string `json:"image_server_password"`
	// Authorization is base64 of a whole header.
	Authorization     string          `json:"image_request_authorization"`
	ConfigDrive       json.RawMessage `json:"configdrive"`
	Type              string          `json:"image_type"`
	RootGB            json.Number     `json:"root_gb"`
	RootMB            json.Number     `json:"root_mb"`
	SwapMB            json.Number     `json:"swap_mb"`
	EphemeralMB       json.Number     `json:"ephemeral_mb"`
	EphemeralFormat   string          `json:"ephemeral_format"`
	PreserveEphemeral any             `json:"preserve_ephemeral"`
}

const (
	partition = "partition"
	wholeDisk = "whole-disk"
)

// writeImage writes an image and its config drive, and makes the disk bootable.
func (r *Runner) writeImage(ctx context.Context, k Kind, n node, given json.RawMessage,
	set ironic.Settings) (any, error) {
	var args struct {
		Image       imageInfo       `json:"image_info"`
		ConfigDrive json.RawMessage `json:"configdrive"`
	}
	if err := json.Unmarshal(given, &args); err != nil {
		return nil, step.Failf("report it with the versions of Ironic and of this ramdisk",
			"the conductor's description of the image can't be understood: %w", err)
	}
	write, access, err := args.Image.args(n, set)
	if err != nil {
		return nil, err
	}
	plan := []step.Planned{{Interface: "deploy", Name: "write_image"}}
	if plan[0].Args, err = json.Marshal(write); err != nil {
		return nil, fmt.Errorf("make the arguments of write_image: %w", err)
	}
	drive := args.ConfigDrive
	if absent(drive) {
		drive = args.Image.ConfigDrive
	}
	if !absent(drive) {
		own := map[string]any{"configdrive": drive}
		if ca := write["image_ca"]; ca != nil {
			own["image_ca"] = ca
		}
		b, err := json.Marshal(own)
		if err != nil {
			return nil, fmt.Errorf("make the arguments of write_configdrive: %w", err)
		}
		plan = append(plan, step.Planned{Interface: "deploy", Name: "write_configdrive", Args: b})
	}
	plan = append(plan, step.Planned{Interface: "deploy", Name: "prepare_instance_boot"})
	r.mu.Lock()
	r.done.Written, r.done.Partitions = false, nil
	r.mu.Unlock()
	results, err := r.Run(fetch.WithAccess(ctx, access), k.Phase, n.UUID, plan...)
	if err != nil {
		return nil, err
	}
	var written struct {
		Disk struct {
			Name string `json:"name"`
		} `json:"disk"`
	}
	if err := json.Unmarshal(results[0], &written); err != nil {
		return nil, fmt.Errorf("read the result of write_image: %w", err)
	}
	var booted struct {
		RootUUID string `json:"root_uuid"`
	}
	if err := json.Unmarshal(results[len(results)-1], &booted); err != nil {
		return nil, fmt.Errorf("read the result of prepare_instance_boot: %w", err)
	}
	r.mu.Lock()
	r.done.Written = true
	if booted.RootUUID != "" {
		r.done.Partitions = map[string]string{"root uuid": booted.RootUUID}
	}
	r.mu.Unlock()
	return map[string]any{"result": fmt.Sprintf("prepare_image: image (%s) written to device %s", args.Image.ID,
		written.Disk.Name), "ingot": results[0]}, nil
}

func absent(v json.RawMessage) bool {
	return len(v) == 0 || bytes.Equal(v, []byte("null")) || bytes.Equal(v, []byte(`""`))
}

// args are write_image's own arguments.
func (i imageInfo) args(n node, set ironic.Settings) (map[string]any, fetch.Access, error) {
	var access fetch.Access
	if len(i.URLs) == 0 {
		return nil, access, step.Failf("set image_source in instance_info", "the conductor names no URL of the image")
	}
	if i.DiskFormat != "" && len(set.Formats) > 0 && !slices.Contains(set.Formats, i.DiskFormat) {
		return nil, access, step.Failf("add it to [conductor]permitted_image_formats, or use another image",
			"the image's format is %s, and Ironic permits only %s", i.DiskFormat, strings.Join(set.Formats, ", "))
	}
	urls, err := i.urls(&access)
	if err != nil {
		return nil, access, err
	}
	args := map[string]any{"image_source": urls[0], "image_type": wholeDisk, "allow_md5": set.MD5 == nil || *set.MD5}
	if len(urls) > 1 {
		args["image_mirrors"] = urls[1:]
	}
	optional := map[string]string{"image_os_hash_algo": i.HashAlgo, "image_os_hash_value": i.HashValue,
		"image_checksum": i.Checksum, "image_disk_format": i.DiskFormat}
	for name, v := range optional {
		if v != "" {
			args[name] = v
		}
	}
	if v := n.rootDevice(); v != nil {
		args["root_device"] = v
	}
	if ca, _ := n.DriverInfo["image_ca"].(string); ca != "" {
		args["image_ca"] = ca
	}
	if i.Type != partition {
		return args, access, nil
	}
	args["image_type"] = partition
	sizes, err := i.layout()
	maps.Copy(args, sizes)
	return args, access, err
}

// urls are the image's, with the user for its server.
func (i imageInfo) urls(access *fetch.Access) ([]string, error) {
	access.HTTPProxy, access.HTTPSProxy, access.NoProxy = i.Proxies.HTTP, i.Proxies.HTTPS, i.NoProxy
	out := slices.Clone(i.URLs)
	if i.Authorization != "" {
		b, err := base64.StdEncoding.DecodeString(i.Authorization)
		if err != nil || bytes.ContainsAny(b, "\r\n") {
			return nil, step.Failf("correct image_request_authorization_secret in instance_info",
				"image_request_authorization is no base64 of a header")
		}
		u, err := url.Parse(out[0])
		if err != nil {
			return nil, step.Failf("correct image_source in instance_info", "the image's URL can't be understood")
		}
		access.Authorization, access.Host = string(b), u.Host
	}
	switch i.AuthStrategy {
	case "", "noauth":
		return out, nil
	case "http_basic":
	default:
		return nil, step.Failf("set image_server_auth_strategy to http_basic or noauth",
			"this agent does not know the authentication %q for image servers", i.AuthStrategy)
	}
	for n, raw := range out {
		u, err := url.Parse(raw)
		if err != nil {
			return nil, step.Failf("correct image_source in instance_info", "the image's URL can't be understood")
		}
		u.User = url.UserPassword(i.User, i.Password)
		out[n] = u.String()
	}
	return out, nil
}

// layout is the partitioning for a partition image.
func (i imageInfo) layout() (map[string]any, error) {
	args := map[string]any{}
	whole := func(name string, v json.Number) (int64, error) {
		if v == "" {
			return 0, nil
		}
		f, err := v.Float64()
		if err != nil || f < 0 || f != float64(int64(f)) {
			return 0, step.Failf("correct "+name+" in instance_info", "%s is %q, and has to be a whole number", name, v)
		}
		return int64(f), nil
	}
	root, err := whole("root_gb", i.RootGB)
	if err == nil && root == 0 {
		var mb int64
		mb, err = whole("root_mb", i.RootMB)
		root = mb >> 10
	}
	if err != nil {
		return nil, err
	}
	swap, err := whole("swap_mb", i.SwapMB)
	if err != nil {
		return nil, err
	}
	ephemeral, err := whole("ephemeral_mb", i.EphemeralMB)
	if err != nil {
		return nil, err
	}
	args["root_gb"], args["swap_mb"], args["ephemeral_gb"] = root, swap, ephemeral>>10
	if i.EphemeralFormat != "" {
		args["ephemeral_format"] = i.EphemeralFormat
	}
	switch v := i.PreserveEphemeral.(type) {
	case bool:
		args["preserve_ephemeral"] = v
	case string:
		if b, err := strconv.ParseBool(strings.ToLower(v)); err == nil {
			args["preserve_ephemeral"] = b
		}
	}
	return args, nil
}

// Partitions answers get_partition_uuids.
func (r *Runner) Partitions() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done.Partitions == nil {
		return map[string]string{}
	}
	return r.done.Partitions
}

// InstallBootloader answers install_bootloader: the boot entry was written with the image.
func (r *Runner) InstallBootloader(context.Context, command.Params) (any, error) {
	if r.wrote() {
		return nil, nil
	}
	return nil, step.Failf("deploy again", "no image was written in this boot, so there is nothing to start")
}
