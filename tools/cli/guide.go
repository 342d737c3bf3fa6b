package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/guard/clean"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/tools/cli/render"
)

// mostOffered bounds how many machines are listed to choose from.
const mostOffered = 20

// guide asks on a terminal for what a deployment still needs, shows the command that says the same, and asks whether to
// go on. It returns the name of the machine.
func (p *program) guide(ctx context.Context, c *client.Client, name string, d *deployment) (string, error) {
	if name != "" && d.image != "" {
		return name, nil // nothing is missing
	}
	in := bufio.NewReader(p.stdin)
	n, err := p.guideMachine(ctx, c, in, name)
	if err != nil {
		return name, err
	}
	source, _ := n.InstanceInfo["image_source"].(string)
	if name != "" && source != "" {
		return name, nil
	}
	name = label(n)
	if err := p.guideImage(in, source, d); err != nil {
		return "", err
	}
	if err := p.guideLogin(in, name, d); err != nil {
		return "", err
	}
	p.note("\nThe same as a command:\n  %s\n", d.command(name))
	answer, err := p.question(in, fmt.Sprintf("Everything on the disk of %s is overwritten. Go on? [y/N]", name), "", false)
	if err != nil {
		return "", err
	}
	if a := strings.ToLower(answer); a != "y" && a != "yes" {
		return "", errors.New("nothing was done")
	}
	d.yes = true
	return name, nil
}

// guideImage asks for the image; source is the one that the node has.
func (p *program) guideImage(in *bufio.Reader, source string, d *deployment) (err error) {
	if d.image != "" {
		return nil
	}
	if d.image, err = p.question(in, "Image, a URL or the name of a file that the conductor serves", source,
		source == ""); err != nil {
		return err
	}
	if d.image == source {
		d.image = "" // it stays, with its checksum
		return nil
	}
	if d.checksum == "" {
		d.checksum, err = p.question(in, "Its checksum, sha256:HEX or the URL of a file of sums", "", false)
	}
	return err
}

// guideLogin asks for host name and ssh key, unless there is a config drive that has them.
func (p *program) guideLogin(in *bufio.Reader, name string, d *deployment) (err error) {
	if d.driveFile != "" {
		return nil
	}
	if d.hostname == "" {
		if d.hostname, err = p.question(in, "Host name", name, false); err != nil {
			return err
		}
	}
	if len(d.sshKeys) > 0 {
		return nil
	}
	found, err := filepath.Glob(filepath.Join(p.getenv("HOME"), ".ssh", "*.pub"))
	if err != nil {
		return err
	}
	key, err := p.question(in, "File with the public ssh key that may log in, - for none",
		strings.Join(found[:min(1, len(found))], ""), false)
	if err == nil && key != "" && key != "-" {
		d.sshKeys = []string{key}
	}
	return err
}

// guideMachine returns the machine of a name, or lets the user choose one that can be deployed.
func (p *program) guideMachine(ctx context.Context, c *client.Client, in *bufio.Reader,
	name string) (*rest.Node, error) {
	if name != "" {
		return c.Node(ctx, name)
	}
	nodes, err := c.Nodes(ctx, url.Values{"provision_state": {"available"}, "maintenance": {"false"}})
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, advise(errors.New("no machine is available"), "See what there is: ingot node list")
	}
	slices.SortFunc(nodes, func(a, b rest.Node) int { return cmp.Compare(label(&a), label(&b)) })
	var rows [][]string
	for i := range nodes[:min(len(nodes), mostOffered)] {
		n := &nodes[i]
		memory := ""
		if mb, err := strconv.ParseUint(fmt.Sprint(n.Properties["memory_mb"]), 10, 32); err == nil {
			memory = size(mb << 20)
		}
		rows = append(rows, []string{strconv.Itoa(i + 1), label(n), dash(string(n.ResourceClass)),
			dash(plain(cmp.Or[any](n.Properties["cpus"], "-"))), dash(memory)})
	}
	if err := render.Table(clean.Writer{W: p.stderr}, []string{"", "MACHINE", "CLASS", "CPUS", "MEMORY"},
		rows); err != nil {
		return nil, err
	}
	if more := len(nodes) - len(rows); more > 0 {
		p.note("and %d more, by their names", more)
	}
	for {
		answer, err := p.question(in, "Machine, by its number or name", label(&nodes[0]), true)
		if err != nil {
			return nil, err
		}
		if i, err := strconv.Atoi(answer); err == nil && i >= 1 && i <= len(rows) {
			return &nodes[i-1], nil
		}
		for i := range nodes {
			if n := &nodes[i]; answer == label(n) || answer == n.UUID {
				return n, nil
			}
		}
		p.note("No available machine is called %s.", clean.Quote(answer))
	}
}

// question asks for a line. An empty answer is the one that is offered; it is asked again while needed is set and there
// is none.
func (p *program) question(in *bufio.Reader, text, offered string, needed bool) (string, error) {
	for {
		fmt.Fprint(p.stderr, text+choose(offered != "", " ["+clean.Quote(offered)+"]", "")+
			choose(strings.HasSuffix(text, "]"), " ", ": "))
		line, err := in.ReadString('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("nothing was done: the input has ended")
			}
			return "", err
		}
		if answer := cmp.Or(strings.TrimSpace(line), offered); answer != "" || !needed {
			return answer, nil
		}
	}
}

// command is the command line that describes the deployment.
func (d *deployment) command(name string) string {
	words := []string{"ingot node deploy", quoted(name)}
	for _, kv := range [][2]string{{"image", d.image}, {"checksum", d.checksum}, {"format", d.format},
		{"hostname", d.hostname}, {"user-data", d.userData}, {"network-data", d.networkData},
		{"config-drive", d.driveFile}} {
		if kv[1] != "" {
			words = append(words, "--"+kv[0], quoted(kv[1]))
		}
	}
	for _, list := range []struct {
		flag   string
		values []string
	}{{"ssh-key", d.sshKeys}, {"meta", d.meta}, {"root-device", d.rootDevice}, {"step", d.steps}} {
		for _, v := range list.values {
			words = append(words, "--"+list.flag, quoted(v))
		}
	}
	if d.rebuild {
		words = append(words, "--rebuild")
	}
	return strings.Join(words, " ")
}

// quoted is a word as a shell takes it.
func quoted(word string) string {
	if word != "" && strings.IndexFunc(word, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=@%+,", r)
	}) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
