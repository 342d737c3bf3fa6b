package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
)

func (p *program) nodeRescue() *cobra.Command {
	var passwordFile string
	var keyFiles []string
	var w waiting
	return p.onNode(&cobra.Command{
		Use:   "rescue NAME --ssh-key FILE | --password-file FILE",
		Short: "Boot a machine that is in use into a rescue system, and say how to log in",
		Example: `  ingot node rescue web1 --ssh-key ~/.ssh/id_ed25519.pub
  ingot node rescue web1 --password-file - < password`,
	}, append(w.options("people can log in"),
		opt("password-file", &passwordFile, "file with the password that opens the machine; - is the standard input"),
		opt("ssh-key", &keyFiles, "file with public keys that open the machine, as authorized_keys has them"),
	), func(ctx context.Context, c *client.Client, name string) error {
		if passwordFile == "" && len(keyFiles) == 0 {
			return usage("what opens the machine? Say --ssh-key FILE, --password-file FILE, or both")
		}
		r := client.ProvisionRequest{Target: "rescue"}
		if passwordFile != "" {
			var err error
			if r.RescuePassword, err = p.firstLine(passwordFile); err != nil {
				return err
			}
		}
		keys, err := publicKeys(keyFiles)
		if err != nil {
			return err
		}
		if len(keys) > 0 {
			patch := []rest.Operation{{Op: "add", Path: "/instance_info/rescue_ssh_keys", Value: keys}}
			if _, err := c.UpdateNode(ctx, name, patch); err != nil {
				return err
			}
		}
		if err := c.Provision(ctx, name, r); err != nil {
			return err
		}
		if err := p.finish(ctx, c, []string{name}, w.skips(), "", "rescue"); err != nil || w.skips() || p.values() {
			return err
		}
		return p.showLogin(ctx, c, name)
	})
}

func (p *program) nodeUnrescue() *cobra.Command {
	var w waiting
	return p.onNode(&cobra.Command{
		Use: "unrescue NAME", Short: "End the rescue of a machine and start its own system again",
	}, w.options("the machine is on its way to its own system"), func(ctx context.Context, c *client.Client, name string) error {
		if err := c.Provision(ctx, name, client.ProvisionRequest{Target: "unrescue"}); err != nil {
			return err
		}
		return p.finish(ctx, c, []string{name}, w.skips(), "", "active")
	})
}

// firstLine is a password: the first line of a file.
func (p *program) firstLine(file string) (string, error) {
	b, err := p.read(file)
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	if line = strings.TrimSuffix(line, "\r"); strings.TrimSpace(line) == "" {
		return "", usage("the first line of %s, which is the password, is empty", file)
	}
	return line, nil
}

// publicKeys reads files of the form of authorized_keys. The conductor refuses lines that are not keys; private keys
// are refused here.
func publicKeys(files []string) ([]string, error) {
	var keys []string
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read ssh keys: %w", err)
		}
		if strings.Contains(string(b), "PRIVATE KEY") {
			return nil, usage(
				"%s is a private key, which never leaves this machine: name the public one, mostly %s.pub", file, file)
		}
		none := true
		for line := range strings.Lines(string(b)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				keys, none = append(keys, line), false
			}
		}
		if none {
			return nil, usage("there is no key in %s", file)
		}
	}
	return keys, nil
}

// loginInfo is the agent's report of how to log in.
type loginInfo struct {
	Addresses   []string `json:"addresses"`
	Port        int      `json:"port"`
	HostKey     string   `json:"host_key"`
	HostKeyLine string   `json:"host_key_line"`
}

// showLogin prints how to log in to a machine that is being rescued, as its agent reported it to the conductor.
func (p *program) showLogin(ctx context.Context, c *client.Client, name string) error {
	st, err := c.Steps(ctx, name)
	if err != nil {
		return err
	}
	// The newest rescue only.
	i := slices.IndexFunc(st.Past, func(j rest.PastJob) bool { return j.Phase == "rescue" })
	if i < 0 {
		return nil
	}
	for _, s := range st.Past[i].Steps {
		if s.Interface != "rescue" || s.Step != "rescue" || !s.InBand {
			continue
		}
		b, err := json.Marshal(s.Result)
		if err != nil {
			return err
		}
		var l loginInfo
		if err := json.Unmarshal(b, &l); err != nil {
			return fmt.Errorf("read the agent's report of the rescue: %w", err)
		}
		for _, a := range l.Addresses {
			port := ""
			if l.Port != 22 {
				port = fmt.Sprintf("-p %d ", l.Port)
			}
			fmt.Fprintf(p.stdout, "ssh %srescue@%s\n", port, a)
		}
		return p.say("host key %s\n%s", l.HostKey, l.HostKeyLine)
	}
	return nil // a node whose rescue is a fake has nothing to log in to
}

func (p *program) nodeResetNetwork() *cobra.Command {
	return p.onNode(&cobra.Command{
		Use:   "reset-network NAME",
		Short: "Make the agent on a node configure its network again, after the switch port was changed",
	}, nil, func(ctx context.Context, c *client.Client, name string) error {
		if err := c.ResetNetwork(ctx, name); err != nil {
			return err
		}
		p.note("%s: its agent acquires its network anew", name)
		return nil
	})
}
