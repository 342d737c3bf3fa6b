package instance

import (
	"fmt"
	"maps"
	"strings"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/crypto/ssh"

	"github.com/ingot-metal/ingot/conductor/node"
)

// Keys of instance_info for rescue logins. Both are removed when the rescue has begun, or failed.
const (
	rescuePassword = "hashed_rescue_password" // bcrypt
	rescueKeys     = "rescue_ssh_keys"        // lines of an authorized_keys file, as a list or one text
)

// maxRescueKeys is the agent's limit.
const maxRescueKeys = 64

// HashRescue returns the stored form of a rescue password; "" of a blank one. It takes a while, so no transaction waits
// for it.
func HashRescue(password string) (string, error) {
	if strings.TrimSpace(password) == "" {
		return "", nil
	}
	if len(password) > 72 {
		return "", node.Invalidf("the rescue password has %d bytes, and may have 72", len(password))
	}
	b, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
	if err != nil {
		return "", fmt.Errorf("hash the rescue password: %w", err)
	}
	return string(b), nil
}

// BeginRescue puts into the node what opens it: the hash of a password, unless it is "", beside the keys that it has.
func BeginRescue(n *node.Node, hash string) error {
	keys, err := RescueKeys(n)
	if err != nil {
		return err
	}
	if hash == "" && len(keys) == 0 {
		return node.Invalidf("rescue needs a rescue_password that is not empty, or ssh keys in instance_info's %s",
			rescueKeys)
	}
	if hash == "" {
		return nil
	}
	n.InstanceInfo = node.With(n.InstanceInfo, rescuePassword, any(hash))
	return nil
}

// ForgetRescue takes out of the node what opens it.
func ForgetRescue(n *node.Node) {
	n.InstanceInfo = maps.Clone(n.InstanceInfo)
	delete(n.InstanceInfo, rescuePassword)
	delete(n.InstanceInfo, rescueKeys)
}

// RescueKeys are the keys of instance_info that open a machine that is being rescued; an *InvalidError names one that
// is none.
func RescueKeys(n *node.Node) ([]string, error) {
	var lines []string
	switch v := n.InstanceInfo[rescueKeys].(type) {
	case nil:
	case string:
		lines = strings.Split(v, "\n")
	case []any:
		for _, item := range v {
			line, ok := item.(string)
			if !ok {
				return nil, node.Invalidf("instance_info's %s is neither a list of keys nor a text with one a line",
					rescueKeys)
			}
			lines = append(lines, line)
		}
	default:
		return nil, node.Invalidf("instance_info's %s is neither a list of keys nor a text with one a line", rescueKeys)
	}
	var keys []string
	for _, line := range lines {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		k, _, options, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil || strings.Contains(line, "\n") {
			return nil, node.Invalidf("key %d of instance_info's %s is no line of an authorized_keys file", len(keys)+1,
				rescueKeys)
		}
		if len(options) > 0 {
			return nil, node.Invalidf("key %d of instance_info's %s has options, which are not supported", len(keys)+1,
				rescueKeys)
		}
		if _, ok := k.(*ssh.Certificate); ok {
			return nil, node.Invalidf("key %d of instance_info's %s is a certificate, which is not supported", len(keys)+1,
				rescueKeys)
		}
		if keys = append(keys, line); len(keys) > maxRescueKeys {
			return nil, node.Invalidf("instance_info's %s has more than %d keys", rescueKeys, maxRescueKeys)
		}
	}
	return keys, nil
}

// RescueArgs are the arguments of the agent's step rescue.rescue.
func RescueArgs(n *node.Node, args map[string]any) error {
	if hash, _ := n.InstanceInfo[rescuePassword].(string); hash != "" {
		args["password_hash"] = hash
	}
	keys, err := RescueKeys(n)
	if err == nil && len(keys) > 0 {
		args["ssh_keys"] = keys
	}
	return err
}
