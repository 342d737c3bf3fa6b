package setup

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/sys/unix"
	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/config"
)

// mayWrite refuses to replace a configuration that sets something, and finds out before any question whether this user
// can write it.
func (r *run) mayWrite() error {
	for _, path := range []string{filepath.Dir(r.File), r.DataDir} {
		if err := canBeMade(path); err != nil {
			return err
		}
	}
	if r.Force {
		return nil
	}
	switch b, err := os.ReadFile(r.File); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at what is there: %w", err)
	case len(b) == 0:
		return nil
	}
	have, _, err := config.Load([]string{"--config", r.File}, nil, io.Discard)
	if err != nil && !errors.Is(err, config.ErrInvalid) || !reflect.DeepEqual(have, config.Default()) {
		return fmt.Errorf("%s has settings already: change it, or replace it with --force", r.File)
	}
	return nil
}

// canBeMade reports why a folder can't be made or written to by this user.
func canBeMade(path string) error {
	for at := path; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
			continue
		}
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
		if err == nil && !info.IsDir() {
			return fmt.Errorf("%s is no folder", at)
		}
		if err != nil || unix.Access(at, unix.W_OK|unix.X_OK) != nil {
			return fmt.Errorf("this user can't write to %s: run ingotd setup as root, or name other places with --config and --data-dir", at)
		}
		return nil
	}
}

func absolute(s string) error {
	if !filepath.IsAbs(s) {
		return fmt.Errorf("%q is not an absolute path", s)
	}
	return nil
}

func hostPort(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err != nil || port == "" {
		return fmt.Errorf("%q is not HOST:PORT", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q is no port, which is a number from 1 to 65535", port)
	}
	return nil
}

// askAPI asks who may use the API, and where it is.
func (r *run) askAPI() error {
	if err := r.question(&r.Auth, "auth", "Authentication: http_basic, keystone, or none (for this host alone)",
		"http_basic", oneOf("http_basic", "keystone", "none")); err != nil {
		return err
	}
	if err := r.askKeystone(); err != nil {
		return err
	}
	if r.Auth == "http_basic" {
		r.users = filepath.Join(filepath.Dir(r.File), "htpasswd")
		if r.host.Exists(r.users) {
			fmt.Fprintf(r.out, "  The users in %s remain.\n", r.users)
			r.unasked["user"] = false // as said
		} else if err := r.question(&r.User, "user", "Name of the first user", "admin", func(s string) error {
			if s == "" || strings.ContainsAny(s, ": \t\r\n#") {
				return fmt.Errorf("%q has a character that no name may have", s)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	there := func(s string) error {
		if s == none {
			return nil
		}
		if err := absolute(s); err != nil {
			return err
		}
		if !r.host.Exists(s) {
			return fmt.Errorf("%s does not exist", s)
		}
		return nil
	}
	if err := r.question(&r.TLSCert, "tls-cert", "Certificate of the API (PEM), or none", none, there); err != nil {
		return err
	}
	listen := "127.0.0.1:6385"
	if r.TLSCert != none {
		pair := func(key string) error {
			if err := there(key); err != nil {
				return err
			}
			if _, err := tls.LoadX509KeyPair(r.TLSCert, key); err != nil {
				return fmt.Errorf("%s and %s are no certificate with its key: %w", r.TLSCert, key, err)
			}
			return nil
		}
		if err := r.question(&r.TLSKey, "tls-key", "Its key (PEM)",
			strings.TrimSuffix(r.TLSCert, filepath.Ext(r.TLSCert))+".key", pair); err != nil {
			return err
		}
		if r.Auth != "none" {
			listen = ":6385"
		}
	}
	return r.question(&r.Listen, "listen", "Address of the API", listen, hostPort)
}

// settings are those in the file; empty ones are left out.
type settings struct {
	DataDir string   `yaml:"data_dir"`
	API     api      `yaml:"api"`
	Agents  *agents  `yaml:"agents,omitempty"`
	Netboot *netboot `yaml:"netboot,omitempty"`
}

type api struct {
	Listen   string `yaml:"listen"`
	Auth     string `yaml:"auth"`
	Htpasswd string `yaml:"htpasswd_file,omitempty"`
	TLSCert  string `yaml:"tls_cert,omitempty"`
	TLSKey   string `yaml:"tls_key,omitempty"`

	Keystone *keystone `yaml:"keystone,omitempty"`
}

type keystone struct {
	AuthURL      string `yaml:"auth_url"`
	Username     string `yaml:"username"`
	PasswordFile string `yaml:"password_file"`
}

type agents struct {
	Advertise string `yaml:"advertise"`
}

type netboot struct {
	DHCP       string `yaml:"dhcp"`
	Interface  string `yaml:"interface,omitempty"`
	Address    string `yaml:"address,omitempty"`
	TFTP       *bool  `yaml:"tftp,omitempty"`
	RangeStart string `yaml:"range_start,omitempty"`
	RangeEnd   string `yaml:"range_end,omitempty"`
	RamdiskDir string `yaml:"ramdisk_dir,omitempty"`
	ImagesDir  string `yaml:"images_dir"`
}

// packaged is where the package ingot-ramdisk puts the ramdisk.
const packaged = "/usr/lib/ingot/ramdisk"

// compose makes the file, and checks it as a start of ingotd does.
func (r *run) compose() (cfg config.Config, text []byte, err error) {
	s := settings{DataDir: r.DataDir, API: api{Listen: r.Listen, Auth: r.Auth, Htpasswd: r.users}}
	if r.TLSCert != none {
		s.API.TLSCert, s.API.TLSKey = r.TLSCert, r.TLSKey
	}
	if k := r.Keystone; r.Auth == "keystone" {
		s.API.Keystone = &keystone{k.URL, k.User, k.PasswordFile}
	}
	if r.Interface == none {
		s.Agents = &agents{r.Advertise}
		if r.servesControllers() { // with virtual media, over HTTP
			s.Netboot = &netboot{DHCP: "off", Address: r.local.String(), TFTP: new(bool), ImagesDir: r.Images}
		}
	} else {
		s.Netboot = &netboot{DHCP: r.DHCP, Interface: r.Interface, RangeStart: r.RangeStart, RangeEnd: r.RangeEnd,
			ImagesDir: r.Images}
		if r.DHCP != "server" {
			s.Netboot.RangeStart, s.Netboot.RangeEnd = "", ""
		}
	}
	if s.Netboot != nil && r.host.Exists(packaged) {
		s.Netboot.RamdiskDir = packaged
	}
	var out bytes.Buffer
	out.WriteString("# Made by ingotd setup. `ingotd --help` and `ingotd --print-example` show all settings.\n")
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(s), enc.Close()); err != nil {
		return cfg, nil, err
	}
	text = out.Bytes()
	dir, err := os.MkdirTemp("", "ingotd-setup-")
	if err != nil {
		return cfg, nil, err
	}
	defer os.RemoveAll(dir)
	try := filepath.Join(dir, "ingotd.yaml")
	if err := os.WriteFile(try, text, 0o600); err != nil {
		return cfg, nil, err
	}
	cfg, _, err = config.Load([]string{"--config", try}, nil, io.Discard)
	return cfg, text, err
}

// show lists what was found on the networks of this host.
func show(out io.Writer, all []Interface) {
	fmt.Fprintln(out, "Network interfaces:")
	for _, i := range all {
		address, state := "no IPv4 address", ""
		if i.Address.IsValid() {
			address = i.Address.String()
		}
		if !i.Up {
			state = ", no link"
		}
		fmt.Fprintf(out, "  %-12s %s%s\n", i.Name, address, state)
		for _, d := range i.DHCP {
			fmt.Fprintf(out, "  %-12s %s\n", "", d)
		}
		if i.Unknown != "" {
			fmt.Fprintf(out, "  %-12s other DHCP servers can't be looked for: %s\n", "", i.Unknown)
		}
	}
}

func (r *run) examine(ctx context.Context, cfg config.Config) {
	fmt.Fprintln(r.out, "\nWith these answers:")
	for _, f := range slices.Concat(r.host.Examine(ctx, cfg), r.lookAtControllers(r.address), r.lookAtKeystone(ctx)) {
		mark := "ok"
		if !f.Well {
			mark = "TO DO"
		}
		fmt.Fprintf(r.out, "  %-6s %-12s %s\n", mark, f.Check, f.Detail)
		if f.Remedy != "" {
			fmt.Fprintf(r.out, "  %-6s %-12s -> %s\n", "", "", f.Remedy)
		}
	}
}

func (r *run) confirm() (bool, error) {
	answer := ""
	if r.in == nil {
		return true, nil
	}
	if err := r.question(&answer, "yes", "Write "+r.File+"? yes or no", "yes", oneOf("yes", "no")); err != nil {
		return false, err
	}
	if answer == "no" {
		fmt.Fprintln(r.out, "Nothing was written.")
	}
	return answer == "yes", nil
}

// write puts the files where they belong, the configuration last.
func (r *run) write(text []byte) error {
	if err := os.MkdirAll(filepath.Dir(r.File), 0o755); err != nil {
		return err
	}
	for _, dir := range []struct {
		path string
		mode fs.FileMode
	}{{r.DataDir, 0o700}, {r.Images, 0o755}} {
		if dir.path == "" || r.host.Exists(dir.path) {
			continue
		}
		if err := os.MkdirAll(dir.path, dir.mode); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
		if err := r.give(dir.path, r.host.User); err != nil {
			return err
		}
	}
	if r.users != "" && !r.host.Exists(r.users) {
		r.password = rand.Text()
		hash, err := bcrypt.GenerateFromPassword([]byte(r.password), bcrypt.DefaultCost)
		if err != nil {
			return err
		}
		if err := r.put(r.users, fmt.Appendf(nil, "%s:%s\n", r.User, hash)); err != nil {
			return err
		}
	}
	return r.put(r.File, text)
}

// put writes a file that only root changes and ingotd reads, whole or not at all.
func (r *run) put(file string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o640), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	if err := r.give(f.Name(), -1); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// give gives a file to ingotd's group, and to a user. -1 leaves it as it is.
func (r *run) give(path string, user int) error {
	if r.host.Group < 0 {
		return nil
	}
	return os.Chown(path, user, r.host.Group)
}

// next says what is to be done now.
func (r *run) next() {
	fmt.Fprintf(r.out, "\n%s is written. Next:\n\n  %s\n", r.File, r.host.Start)
	if r.Auth == "none" {
		fmt.Fprintln(r.out, "  ingot node list")
		r.nextDiscovery()
		return
	}
	user, password, how := r.User, r.password, "OS_AUTH_TYPE=http_basic"
	if r.Auth == "keystone" {
		how = "OS_AUTH_URL=" + r.Keystone.URL + " OS_SYSTEM_SCOPE=all"
	}
	if password == "" {
		user, password = "NAME", "PASSWORD"
	}
	scheme, host, port := "http", "127.0.0.1", "6385"
	if r.TLSCert != none {
		scheme = "https"
	}
	if h, p, err := net.SplitHostPort(r.Listen); err == nil {
		port = p
		if ip := net.ParseIP(h); h != "" && (ip == nil || !ip.IsUnspecified()) {
			host = h
		}
	}
	fmt.Fprintf(r.out, "  export INGOT_ENDPOINT=%s://%s %s OS_USERNAME=%s OS_PASSWORD=%s\n  ingot node list\n",
		scheme, net.JoinHostPort(host, port), how, user, password)
	r.nextDiscovery()
	if r.password != "" {
		fmt.Fprintf(r.out, "\nThe password is nowhere else: %s has its hash only.\n", r.users)
	}
}
