// Package contexts knows the contexts of a user: where the conductor of a site is, and how to log in there. They are
// the entries of clouds.yaml, as for the openstack command, and those of a file of the same form that ingot writes.
package contexts

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Context is one entry: what the environment would say to reach it.
type Context struct {
	Name string
	File string            // where it stands
	Env  map[string]string // OS_..., and OS_ENDPOINT

	unchecked bool // it would take any certificate
}

// Contexts are all entries of a user.
type Contexts struct {
	all     []Context
	Current string // the one that is used when none is named; may be ""
	own     string // the file that Set, Use and Remove write
}

// entry is an entry of a file. Other keys than these are of other programs.
type entry struct {
	Auth struct {
		AuthURL       string `yaml:"auth_url,omitempty"`
		Endpoint      string `yaml:"endpoint,omitempty"`
		Username      string `yaml:"username,omitempty"`
		Password      string `yaml:"password,omitempty"`
		Token         string `yaml:"token,omitempty"`
		ProjectName   string `yaml:"project_name,omitempty"`
		ProjectID     string `yaml:"project_id,omitempty"`
		UserDomain    string `yaml:"user_domain_name,omitempty"`
		UserDomainID  string `yaml:"user_domain_id,omitempty"`
		ProjectDomain string `yaml:"project_domain_name,omitempty"`
		ProjectDomID  string `yaml:"project_domain_id,omitempty"`
		SystemScope   string `yaml:"system_scope,omitempty"`
	} `yaml:"auth,omitempty"`
	AuthType string `yaml:"auth_type,omitempty"`
	Region   string `yaml:"region_name,omitempty"`
	Endpoint string `yaml:"baremetal_endpoint_override,omitempty"`
	CACert   string `yaml:"cacert,omitempty"`
	Verify   *bool  `yaml:"verify,omitempty"`
}

// file is a clouds.yaml. Current is of ingot's own file alone.
type file struct {
	Current string           `yaml:"current,omitempty"`
	Clouds  map[string]entry `yaml:"clouds"`
}

// maxFile bounds the bytes of a file.
const maxFile = 1 << 20

// Load reads the files: those that openstack reads, of which the first that exists counts, with the secure.yaml beside
// it, and ingot's own, which comes first where both have a name. getenv is os.Getenv.
func Load(getenv func(string) string) (*Contexts, error) {
	config := cmp.Or(getenv("XDG_CONFIG_HOME"), filepath.Join(getenv("HOME"), ".config"))
	s := &Contexts{own: cmp.Or(getenv("INGOT_CONTEXTS"), filepath.Join(config, "ingot", "contexts.yaml"))}
	own, err := read(s.own)
	if err != nil {
		return nil, err
	}
	s.Current = own.Current
	s.add(s.own, own)
	places := []string{"clouds.yaml", filepath.Join(config, "openstack", "clouds.yaml"), "/etc/openstack/clouds.yaml"}
	if given := getenv("OS_CLIENT_CONFIG_FILE"); given != "" {
		places = []string{given}
	}
	for _, name := range places {
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		f, err := read(name, filepath.Join(filepath.Dir(name), "secure.yaml"))
		if err != nil {
			return nil, err
		}
		s.add(name, f)
		break
	}
	return s, nil
}

// read reads a file and those that are laid over it; one that does not exist is empty.
func read(names ...string) (f file, err error) {
	f.Clouds = map[string]entry{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return f, fmt.Errorf("read the contexts: %w", err)
		}
		if len(text) > maxFile {
			return f, fmt.Errorf("%s is longer than %d bytes", name, maxFile)
		}
		var raw struct {
			Current string
			Clouds  map[string]yaml.Node
		}
		if err := yaml.Unmarshal(text, &raw); err != nil {
			return f, fmt.Errorf("%s is not a file of contexts: %w", name, err)
		}
		f.Current = cmp.Or(raw.Current, f.Current)
		for key, node := range raw.Clouds {
			e := f.Clouds[key]
			if err := node.Decode(&e); err != nil { // what it does not have stays
				return f, fmt.Errorf("%s, %s: %w", name, key, err)
			}
			f.Clouds[key] = e
		}
	}
	return f, nil
}

func (s *Contexts) add(name string, f file) {
	for _, key := range slices.Sorted(maps.Keys(f.Clouds)) {
		if e := f.Clouds[key]; s.index(key) < 0 {
			s.all = append(s.all,
				Context{Name: key, File: name, Env: e.env(), unchecked: e.Verify != nil && !*e.Verify})
		}
	}
}

// env is the entry as variables of the environment.
func (e *entry) env() map[string]string {
	a := &e.Auth
	kind := strings.TrimPrefix(e.AuthType, "v3")
	if kind == "token" {
		kind = ""
	}
	out := map[string]string{"OS_AUTH_TYPE": kind, "OS_AUTH_URL": a.AuthURL, "OS_USERNAME": a.Username,
		"OS_PASSWORD": a.Password, "OS_TOKEN": a.Token, "OS_PROJECT_NAME": a.ProjectName, "OS_PROJECT_ID": a.ProjectID,
		"OS_USER_DOMAIN_NAME": cmp.Or(a.UserDomain, a.UserDomainID), "OS_SYSTEM_SCOPE": a.SystemScope,
		"OS_PROJECT_DOMAIN_NAME": cmp.Or(a.ProjectDomain, a.ProjectDomID), "OS_REGION_NAME": e.Region,
		"OS_ENDPOINT": cmp.Or(e.Endpoint, a.Endpoint), "OS_CACERT": e.CACert}
	maps.DeleteFunc(out, func(_, v string) bool { return v == "" })
	return out
}

func (s *Contexts) index(name string) int {
	return slices.IndexFunc(s.all, func(x Context) bool { return x.Name == name })
}

// All lists the sites, those of ingot's own file first, each by name.
func (s *Contexts) All() []Context { return slices.Clone(s.all) }

// Find returns the site of a name.
func (s *Contexts) Find(name string) (*Context, error) {
	i := s.index(name)
	if i < 0 {
		names := make([]string, len(s.all))
		for i := range s.all {
			names[i] = s.all[i].Name
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("there is no context %q, and no other: add one with ingot context set, or as an entry of clouds.yaml",
				name)
		}
		return nil, fmt.Errorf("there is no context %q; there are: %s", name, strings.Join(names, ", "))
	}
	if s.all[i].unchecked {
		return nil, fmt.Errorf("context %q has verify: false, and ingot takes no certificate without checking it: name the one to trust in cacert",
			name)
	}
	return &s.all[i], nil
}

// Use makes a site the one that is used when none is named; "" makes it none.
func (s *Contexts) Use(name string) error {
	if name != "" {
		if _, err := s.Find(name); err != nil {
			return err
		}
	}
	return s.change(func(f *file) error {
		f.Current = name
		return nil
	})
}

// Set writes an entry of ingot's own file: its endpoint and a basic login, without which nothing but the address is
// changed.
func (s *Contexts) Set(name, endpoint, user, password, cacert string) error {
	return s.change(func(f *file) error {
		e := f.Clouds[name]
		e.Endpoint, e.CACert = cmp.Or(endpoint, e.Endpoint), cmp.Or(cacert, e.CACert)
		if e.Endpoint == "" {
			return fmt.Errorf("context %q needs an --endpoint", name)
		}
		if user != "" {
			e.AuthType, e.Auth.Username, e.Auth.Password = "http_basic", user, password
		}
		f.Clouds[name] = e
		return nil
	})
}

// Remove takes an entry out of ingot's own file.
func (s *Contexts) Remove(name string) error {
	return s.change(func(f *file) error {
		if _, ok := f.Clouds[name]; !ok {
			if at, err := s.Find(name); err == nil {
				return fmt.Errorf("context %q stands in %s: take it out there", name, at.File)
			}
			return fmt.Errorf("there is no context %q", name)
		}
		delete(f.Clouds, name)
		if f.Current == name {
			f.Current = ""
		}
		return nil
	})
}

// change rewrites ingot's own file, which only its user may read: it has passwords.
func (s *Contexts) change(do func(*file) error) error {
	f, err := read(s.own)
	if err != nil {
		return err
	}
	if err := do(&f); err != nil {
		return err
	}
	text, err := yaml.Marshal(f)
	if err != nil {
		return err
	}
	dir := filepath.Dir(s.own)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write the contexts: %w", err)
	}
	t, err := os.CreateTemp(dir, ".contexts-") // 0600
	if err != nil {
		return fmt.Errorf("write the contexts: %w", err)
	}
	_, err = t.Write(text)
	err = errors.Join(err, t.Close())
	if err == nil {
		err = os.Rename(t.Name(), s.own)
	}
	if err != nil {
		_ = os.Remove(t.Name())
		return fmt.Errorf("write the contexts: %w", err)
	}
	return nil
}
