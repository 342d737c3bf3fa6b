package rest

import "strings"

// Masked stands for a secret.
const Masked = "******"

// secretWords mark the keys whose values are never shown.
var secretWords = []string{"password", "passwd", "pswd", "passphrase", "secret", "token", "private_key", "priv_key", "auth_key", "kg_key",
	"api_key", "community", "adminpass", "admin_pass", "new_pass", "credential"}

// IsSecret tells whether a key's value is a secret.
func IsSecret(key string) bool {
	key = strings.ToLower(key)
	for _, word := range secretWords {
		if strings.Contains(key, word) {
			return true
		}
	}
	return false
}

// Mask copies an object with its secrets replaced, and the values of the keys in also. An empty secret stays empty: that there
// is none is what an operator wants to see.
func Mask(m map[string]any, also ...string) map[string]any {
	c := make(map[string]any, len(m))
	for k, v := range m {
		hide := IsSecret(k)
		for _, key := range also {
			hide = hide || key == k
		}
		switch x := v.(type) {
		case map[string]any:
			if hide {
				c[k] = Masked
			} else {
				c[k] = Mask(x)
			}
		default:
			if hide && v != nil && v != "" {
				c[k] = Masked
			} else {
				c[k] = v
			}
		}
	}
	return c
}

// Unmask puts the stored secrets back where a client sent the mask: one that reads an object, changes something else and writes
// it back must not lose the password.
func Unmask(sent, stored map[string]any) {
	for k, v := range sent {
		old, ok := stored[k]
		if !ok {
			continue
		}
		if v == Masked {
			sent[k] = clone(old)
			continue
		}
		if inner, is := v.(map[string]any); is {
			if was, is := old.(map[string]any); is {
				Unmask(inner, was)
			}
		}
	}
}
