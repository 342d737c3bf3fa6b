package setup

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
)

// Keystone are the answers about OpenStack's Keystone, where it authenticates.
type Keystone struct {
	URL          string
	User         string // of ingotd
	PasswordFile string // with that user's password
}

// askKeystone asks where Keystone is, and as whom ingotd asks it about tokens.
func (r *run) askKeystone() error {
	if r.Auth != "keystone" {
		return nil
	}
	if err := r.question(&r.Keystone.URL, "keystone-url", "Address of Keystone, such as https://keystone.example:5000", "",
		func(s string) error {
			u, err := url.Parse(s)
			if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
				return fmt.Errorf("%q is no address such as https://keystone.example:5000", s)
			}
			return nil
		}); err != nil {
		return err
	}
	if err := r.question(&r.Keystone.User, "keystone-user", "User of ingotd in Keystone, with the role service", "ironic",
		func(s string) error {
			if s == "" {
				return fmt.Errorf("%q is no name", s)
			}
			return nil
		}); err != nil {
		return err
	}
	return r.question(&r.Keystone.PasswordFile, "keystone-password-file", "File with its password",
		filepath.Join(filepath.Dir(r.File), "keystone-password"), func(s string) error {
			if err := absolute(s); err != nil {
				return err
			}
			if !r.host.Exists(s) {
				return fmt.Errorf("%s does not exist: write the password into it first, for ingotd's user alone to read", s)
			}
			return nil
		})
}

// lookAtKeystone says whether Keystone answers.
func (r *run) lookAtKeystone(ctx context.Context) []Finding {
	if r.Auth != "keystone" {
		return nil
	}
	const check = "keystone"
	if err := r.host.Reach(ctx, r.Keystone.URL); err != nil {
		return []Finding{{Check: check, Detail: fmt.Sprintf("%s does not answer: %v", r.Keystone.URL, err),
			Remedy: "look at its address and at what is between; without it no client is let in"}}
	}
	return []Finding{{Check: check, Well: true, Detail: r.Keystone.URL + " answers"}}
}
