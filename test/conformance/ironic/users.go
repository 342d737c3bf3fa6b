package ironic

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/ingot-metal/ingot/test/kit/keystone"
)

// access is the part of both configurations about users.
type access struct {
	ironic, ironicMore string // lines of section DEFAULT, and sections
	ingot              string // below api
}

// Directory is a Keystone in which users, projects and roles can be made.
type Directory interface {
	Address() string // with /v3
	Project(ctx context.Context, name string) (id string, err error)
	AddUser(ctx context.Context, name, password string) error
	Grant(ctx context.Context, user, project string, roles ...string) error // "" is the system
}

// users creates the users. directory is a Keystone; nil: one is started if needed.
func (p *Pair) users(ctx context.Context, directory Directory) (access, error) {
	switch p.o.Auth {
	case HTTPBasic:
		return p.basic()
	case Keystone:
		if directory == nil {
			k, err := p.startKeystone(ctx)
			if err != nil {
				return access{}, err
			}
			directory = k
		}
		return p.keystone(ctx, directory)
	}
	p.Roles = []Role{{Name: "none"}}
	return access{ironic: "auth_strategy = noauth\n", ingot: "  auth: none\n"}, nil
}

// realKeystone is a Directory that is started for the pair.
type realKeystone struct{ *keystone.Server }

func (s realKeystone) Address() string { return s.URL }

func (p *Pair) startKeystone(ctx context.Context) (Directory, error) {
	dir := p.path("keystone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for Keystone: %w", err)
	}
	k, err := keystone.Start(ctx, p.programs, dir, tokenLife)
	if err != nil {
		return nil, err
	}
	p.running = append(p.running, k)
	return realKeystone{k}, nil
}

func (p *Pair) basic() (access, error) {
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		return access{}, fmt.Errorf("make a password: %w", err)
	}
	file, err := p.write("htpasswd", fmt.Sprintf("admin:$2y%s\n", hash[3:])) // the prefix that Ironic knows
	if err != nil {
		return access{}, err
	}
	login := func(password string) http.Header {
		return http.Header{"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte("admin:"+password))}}
	}
	p.Roles = []Role{{"admin", login("secret")}, {"wrong-password", login("guess")}, {"nobody", nil}}
	return access{ironic: "auth_strategy = http_basic\nhttp_basic_auth_user_file = " + file + "\n",
		ingot: "  auth: http_basic\n  htpasswd_file: " + file + "\n"}, nil
}

// tokenLife is longer than anybody compares.
const tokenLife = 24 * time.Hour

// keystone makes the users of a Keystone. Both validate tokens there with the same user of their own.
//
// Ironic's policy is set to what it is without the rules of old, which grant the role admin of any project everything:
// those are off by default in later releases, and Ingot never had them.
func (p *Pair) keystone(ctx context.Context, k Directory) (a access, err error) {
	p.Projects = map[string]string{"owner": "", "lessee": "", "other": ""}
	for name := range p.Projects {
		if p.Projects[name], err = k.Project(ctx, name); err != nil {
			return a, err
		}
	}
	const password = "secret"
	if err := k.AddUser(ctx, "validator", password); err != nil {
		return a, err
	}
	if err := k.Grant(ctx, "validator", "service", "service"); err != nil {
		return a, err
	}
	// Keystone's roles imply each other: an admin is a member, a member a reader.
	for _, r := range []struct{ name, scope, role string }{
		{"system-admin", keystone.System, "admin"}, {"system-member", keystone.System, "member"},
		{"system-reader", keystone.System, "reader"}, {"project-admin", "owner", "admin"},
		{"project-member", "owner", "member"}, {"project-reader", "owner", "reader"},
		{"lessee-admin", "lessee", "admin"}, {"lessee-member", "lessee", "member"},
		{"lessee-reader", "lessee", "reader"}, {"other-admin", "other", "admin"}, {"service", "service", "service"},
		{"unscoped", keystone.Unscoped, ""},
	} {
		if err := k.AddUser(ctx, r.name, password); err != nil {
			return a, err
		}
		if r.role != "" {
			if err := k.Grant(ctx, r.name, r.scope, r.role); err != nil {
				return a, err
			}
		}
		token, err := keystone.Token(ctx, k.Address(), r.name, password, r.scope)
		if err != nil {
			return a, err
		}
		p.Roles = append(p.Roles, Role{r.name, http.Header{"X-Auth-Token": {token}}})
	}
	p.Roles = append(p.Roles, Role{"bad-token", http.Header{"X-Auth-Token": {"nonsense"}}}, Role{"nobody", nil})

	url := strings.TrimSuffix(k.Address(), "/v3")
	return access{
		ironic: "auth_strategy = keystone\n",
		ironicMore: fmt.Sprintf(`[oslo_policy]
enforce_scope = true
enforce_new_defaults = true
[keystone_authtoken]
auth_type = password
www_authenticate_uri = %[1]s
auth_url = %[1]s
username = validator
password = %[2]s
project_name = service
user_domain_id = default
project_domain_id = default
interface = public
service_token_roles_required = true
`, url, password),
		ingot: fmt.Sprintf(
			"  auth: keystone\n  keystone: {auth_url: %q, username: validator, password: %s, project: service}\n", url,
			password),
	}, nil
}
