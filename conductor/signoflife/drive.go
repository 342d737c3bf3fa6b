package signoflife

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// tries is how often cloud-init calls; it waits three seconds in between, and the boot waits for it.
const tries = 20

// AddPhoneHome returns a config drive that has its system call url when it has started: by vendor data for cloud-init,
// and as ingot.phone_home_url in meta_data for everything else. What the drive says already stays. A drive of nil gets
// to be one with nothing else in it than its uuid. The error is for a drive that can't be completed.
func AddPhoneHome(drive any, url, uuid string) (map[string]any, error) {
	var out map[string]any
	switch d := drive.(type) {
	case nil:
		out = map[string]any{"meta_data": map[string]any{"uuid": uuid}}
	case map[string]any:
		out = maps.Clone(d)
	case string:
		if strings.TrimSpace(d) == "" {
			return AddPhoneHome(nil, url, uuid)
		}
		if exact.Unmarshal([]byte(d), &out) != nil || out == nil {
			return nil, errors.New(
				"the config drive is a finished image, into which the address for phone_home can't be put: give it as an object with meta_data, user_data, network_data and vendor_data, or ask for another sign of life")
		}
	default:
		return nil, fmt.Errorf("the config drive is of a kind that phone_home can't be put into (%T)", drive)
	}
	if ownPhoneHome(out["user_data"]) {
		return nil, errors.New(
			"user_data of the config drive has a phone_home of its own, which cloud-init would follow instead of Ingot's: take it out, or ask for another sign of life")
	}
	vendor, err := object(out["vendor_data"], "vendor_data")
	if err != nil {
		return nil, err
	}
	ours := fmt.Sprintf("#cloud-config\nphone_home:\n  url: %q\n  post: [instance_id, hostname]\n  tries: %d\n", url,
		tries)
	// cloud-init takes a list of parts as well as one part.
	switch given := vendor["cloud-init"].(type) {
	case nil:
		vendor["cloud-init"] = ours
	case string:
		vendor["cloud-init"] = []any{given, ours}
	case []any:
		vendor["cloud-init"] = append(slices.Clone(given), ours)
	default:
		return nil, errors.New(
			"vendor_data of the config drive has a cloud-init that is neither text nor a list of texts, which cloud-init does not take")
	}
	out["vendor_data"] = vendor
	meta, err := object(out["meta_data"], "meta_data")
	if err != nil {
		return nil, err
	}
	mine, ok := meta["ingot"].(map[string]any)
	if meta["ingot"] != nil && !ok {
		return nil, errors.New(
			"meta_data of the config drive has a key ingot that is not an object; phone_home's address goes there")
	}
	mine = maps.Clone(mine)
	if mine == nil {
		mine = map[string]any{}
	}
	mine["phone_home_url"] = url
	meta["ingot"] = mine
	out["meta_data"] = meta
	return out, nil
}

// object is a part of a config drive as an object of its own.
func object(v any, name string) (map[string]any, error) {
	switch v := v.(type) {
	case nil:
		return map[string]any{}, nil
	case map[string]any:
		return maps.Clone(v), nil
	}
	return nil, fmt.Errorf("%s of the config drive is not an object", name)
}

var phoneHomeLine = regexp.MustCompile(`(?m)^["']?phone_home["']?\s*:`)

// ownPhoneHome reports whether user data plainly has a phone_home of its own. Compressed and multi-part data is not
// examined.
func ownPhoneHome(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return v["phone_home"] != nil
	case string:
		if phoneHomeLine.MatchString(v) {
			return true
		}
		b, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(v), ""))
		return err == nil && phoneHomeLine.Match(b)
	}
	return false
}

// Addresses returns the fixed addresses in a config drive's network_data, as far as they are inside of networks: users
// write them, and the conductor must not connect to other networks for them.
func Addresses(drive any, inside []netip.Prefix) []netip.Addr {
	if text, ok := drive.(string); ok {
		var o map[string]any
		if exact.Unmarshal([]byte(text), &o) != nil {
			return nil
		}
		drive = o
	}
	d, _ := drive.(map[string]any)
	data, _ := d["network_data"].(map[string]any)
	networks, _ := data["networks"].([]any)
	var out []netip.Addr
	for _, v := range networks {
		n, _ := v.(map[string]any)
		text, _ := n["ip_address"].(string)
		text, _, _ = strings.Cut(text, "/")
		a, err := netip.ParseAddr(text)
		a = a.Unmap()
		has := func(p netip.Prefix) bool { return p.Contains(a) } // never an address with a zone
		if err == nil && slices.ContainsFunc(inside, has) && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
