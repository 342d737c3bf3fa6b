package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/ingot-metal/ingot/conductor/config"
)

// dev serves fake machines until ctx ends: all interfaces are enabled, nothing is booted over the network, and the data
// goes with it.
func dev(ctx context.Context, args, environ []string, stdout, stderr io.Writer) (err error) {
	c, _ := find([]string{"dev"})
	fl := c.flags(stderr)
	auth := fl.String("auth", "none",
		"who may call: none (everybody on this machine), http_basic, or keystone (as OS_AUTH_URL and its kin in the environment say)")
	listen := fl.String("listen", "127.0.0.1:6385", "`host:port` of the API")
	level := fl.String("log-level", "warn", "debug, info, warn or error")
	if done, err := parse(fl, args); done || err != nil {
		return err
	}
	if fl.NArg() > 0 {
		return fmt.Errorf("ingotd dev takes no arguments, only flags; %q is none", fl.Arg(0))
	}
	if !slices.Contains(devAuths, *auth) {
		return fmt.Errorf("--auth %s: want one of %s", *auth, strings.Join(devAuths, ", "))
	}
	// Asked here, so that what answers below is ours, and to say it in words.
	l, err := net.Listen("tcp", *listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf(
			"something listens on %s already, perhaps another ingotd or an Ironic: stop it, or give this one another address (--listen, or make dev LISTEN=127.0.0.1:6390)", *listen)
	}
	if err != nil {
		return fmt.Errorf("listen for the API: %w", err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "ingotd-dev-")
	if err != nil {
		return fmt.Errorf("make a folder for the data: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	settings, how, err := devAuth(*auth, dir, "http://"+addr, environ)
	if err != nil {
		return err
	}
	// A file of its own keeps that of the machine's real conductor out of it.
	file := filepath.Join(dir, "ingotd.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	load := []string{"--config", file, "--data-dir", filepath.Join(dir, "data"), "--listen", addr, "--log-level",
		*level}
	for _, s := range append([]string{"hostname=dev", "agents.listen=127.0.0.1:0", "agents.advertise=" + addr,
		"netboot.dhcp=off", "netboot.interface=", "netboot.address=", "netboot.ramdisk_dir=" + dir,
		"netboot.images_dir="}, settings...) {
		load = append(load, "--set", s)
	}
	cfg, _, err := config.Load(load, nil, stderr)
	if err != nil {
		return err
	}
	announced := make(chan error, 1)
	serving, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		announced <- announce(serving, stdout, "http://"+addr, how)
	}()
	err = serve(serving, cfg, logger(cfg, stderr))
	stop()
	return errors.Join(err, <-announced)
}

// announce waits until the API answers and prints how to reach it.
func announce(ctx context.Context, out io.Writer, url, how string) error {
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/", nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(r); err == nil {
			if err := resp.Body.Close(); err != nil {
				return err
			}
			if resp.StatusCode == http.StatusOK {
				break
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(5 * time.Millisecond):
		}
	}
	_, err := fmt.Fprintf(out,
		"Ingot serves fake machines on %s until you press Ctrl-C, and the dashboard on %s/ui. In another terminal:\n\n%s\n\n  openstack baremetal node create --driver fake-hardware --name first\n  openstack baremetal node list\n\n", url, url, how)
	return err
}

// devUser is the user for http_basic.
const devUser = "admin"

// devAuth returns the settings for a way to authenticate, and the lines that point the openstack command at it.
func devAuth(auth, dir, url string, environ []string) (settings []string, how string, err error) {
	switch auth {
	case "none":
		return nil, "  export OS_AUTH_TYPE=none\n  export OS_ENDPOINT=" + url, nil
	case "http_basic":
		password := rand.Text()
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			return nil, "", fmt.Errorf("make a password: %w", err)
		}
		file := filepath.Join(dir, "htpasswd")
		if err := os.WriteFile(file, fmt.Appendf(nil, "%s:%s\n", devUser, hash), 0o600); err != nil {
			return nil, "", fmt.Errorf("write users: %w", err)
		}
		return []string{"api.auth=http_basic", "api.htpasswd_file=" + file},
			"  export OS_AUTH_TYPE=http_basic OS_USERNAME=" + devUser + " OS_PASSWORD=" + password +
				"\n  export OS_ENDPOINT=" + url, nil
	}
	settings, err = devKeystone(environ)
	return settings, "  export OS_BAREMETAL_ENDPOINT_OVERRIDE=" + url +
		"\n  # and OS_AUTH_URL, OS_USERNAME and so on of your Keystone, as in the environment of this command", err
}

// devAuths are the ways in which callers of ingotd dev may be known.
var devAuths = []string{"none", "http_basic", "keystone"}

// devKeystone takes Keystone's address and a user who may validate tokens from the variables of the openstack command.
func devKeystone(environ []string) (settings []string, err error) {
	env := map[string]string{"OS_USER_DOMAIN_NAME": "Default", "OS_PROJECT_DOMAIN_NAME": "Default"}
	for _, kv := range environ {
		if name, value, _ := strings.Cut(kv, "="); value != "" {
			env[name] = value
		}
	}
	var missing []string
	for _, name := range []string{"OS_AUTH_URL", "OS_USERNAME", "OS_PASSWORD"} {
		if env[name] == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf(
			"--auth keystone needs a running Keystone and one of its users who may validate tokens (role admin or service): %s not set. Load the file that you use for the openstack command, such as `. ./openrc`, and start again", strings.Join(missing, " and ")+map[bool]string{true: " is", false: " are"}[len(missing) == 1])
	}
	for _, s := range []struct{ key, name string }{
		{"auth_url", "OS_AUTH_URL"}, {"username", "OS_USERNAME"}, {"password", "OS_PASSWORD"},
		{"user_domain", "OS_USER_DOMAIN_NAME"}, {"project", "OS_PROJECT_NAME"},
		{"project_domain", "OS_PROJECT_DOMAIN_NAME"}, {"ca_file", "OS_CACERT"},
	} {
		if v := env[s.name]; v != "" {
			settings = append(settings, "api.keystone."+s.key+"="+v)
		}
	}
	return append(settings, "api.auth=keystone"), nil
}
