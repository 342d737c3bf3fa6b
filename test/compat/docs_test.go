package compat

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
	"github.com/ingot-metal/ingot/test/kit/made"
	"github.com/ingot-metal/ingot/test/kit/openstack"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
)

// block is a block of shell commands in a page of the documentation.
type block struct {
	line     int
	commands string
	output   string // that they must have; only if checked
	checked  bool
}

// TestShellBlocks runs the shell blocks of tutorials and how-tos, page by page, as a reader would: in one shell, beside
// a conductor with fake machines. A block marked sh must end with success; of one marked console, the commands after $
// must also print what follows them, where ... stands for any text. What a page needs first is in a comment that begins
// with "setup:". A block that can't run here says why, as in "sh no-run: needs a BMC".
func TestShellBlocks(t *testing.T) {
	kit.NeedPrograms(t, "bash", "curl", "qemu-img", "sfdisk", "mkfs.vfat", "mkfs.ext4", "mcopy", "jq", "minisign",
		"ssh-keygen")
	client := openstack.Start(t)
	ran := 0
	for _, page := range pages(t) {
		if filepath.Base(page) == "api-without-machines.md" {
			continue // TestTutorialOfTheAPI, with a program beside the commands
		}
		blocks := read(t, page)
		if len(blocks) == 0 {
			continue
		}
		ran++
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			p := ingotd.Start(t, kit.FreeAddr(t), settings(t, page)...)
			run(t, page, blocks, shell(t, client, p), p.URL)
		})
	}
	if ran < 8 {
		t.Errorf("blocks of %d pages were run; does this test still find them?", ran)
	}
}

// settings returns those of the conductor beside which a page's blocks are run. That of upgrades is one of two, which
// share a database of PostgreSQL.
func settings(t *testing.T, page string) []string {
	t.Helper()
	switch filepath.Base(page) {
	default:
		return nil
	case "switches.md": // the table that it shows
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		_, table, _ := strings.Cut(string(text), "```yaml\n")
		table, _, _ = strings.Cut(table, "```")
		file := filepath.Join(t.TempDir(), "switches.yaml")
		if err := os.WriteFile(file, []byte(table), 0o600); err != nil {
			t.Fatal(err)
		}
		return []string{"switches.file=" + file}
	case "upgrade.md":
	}
	_, url := pgserver.New(t).Database(t)
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte(pgserver.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	set := []string{"store.url=" + url, "store.password_file=" + password,
		"store.key=" + base64.StdEncoding.EncodeToString(make([]byte, 32))}
	ingotd.Start(t, kit.FreeAddr(t), append(set, "hostname=n2")...)
	return append(set, "hostname=n1")
}

// TestWrongBlocksAreFound: what a page may not say is found.
func TestWrongBlocksAreFound(t *testing.T) {
	for name, c := range map[string]struct{ text, fault string }{
		"failing command": {"```sh\ntrue\nfalse\n```\n", "line 1: the commands fail"},
		"wrong output":    {"```console\n$ echo 5 nodes\n6 nodes\n```\n", "line 1: the output differs"},
		"more output":     {"```console\n$ echo 1; echo 2\n1\n```\n", "line 1: the output differs"},
		"right output":    {"```console\n$ x=5\n$ echo $x nodes of 7; echo; echo a; echo b\n5 nodes ... 7\n\n...\nb\n```\n", ""},
		"setup":           {"<!-- setup:\nx=1\n-->\n```console\n$ echo $x\n1\n```\n", ""},
		"not run":         {"```sh no-run: needs a BMC\nfalse\n```\n", ""},
		"no reason":       {"```sh no-run:\nfalse\n```\n", "line 1: no reason"},
		"no language":     {"```\nfalse\n```\n", "line 1: the block has no language"},
		"indented":        {"text\n\n    false\n", "line 3: the block is indented"},
		"not closed":      {"```sh\ntrue\n", "line 1: the block is not closed"},
	} {
		blocks, err := parse(c.text)
		if err == nil && len(blocks) > 0 {
			err = check(blocks, exec.CommandContext(t.Context(), "bash"), "")
		}
		if c.fault == "" && err != nil || c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)) {
			t.Errorf("%s: %v, want %q", name, err, c.fault)
		}
	}
}

// pages lists the pages whose blocks are run.
func pages(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"../../README.md", "../../docs/tutorial/*.md", "../../docs/howto/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no pages, %v", pattern, err)
		}
		all = append(all, files...)
	}
	return all
}

func read(t *testing.T, page string) []block {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := parse(string(text))
	if err != nil {
		t.Errorf("%s: %v", page, err)
	}
	return blocks
}

// parse returns the blocks of a page that are to be run.
func parse(text string) (blocks []block, err error) {
	lines := strings.Split(text, "\n")
	fault := func(line int, what string) { err = errors.Join(err, fmt.Errorf("line %d: %s", line, what)) }
	for i := 0; i < len(lines); i++ {
		begin := i + 1
		end := map[bool]string{true: "-->", false: "```"}[lines[i] == "<!-- setup:"]
		info, fenced := strings.CutPrefix(lines[i], "```")
		if !fenced && end == "```" {
			if strings.HasPrefix(lines[i], "    ") && (i == 0 || lines[i-1] == "") {
				fault(begin, "the block is indented: fence it, and name its language")
			}
			continue
		}
		var body []string
		for i++; i < len(lines) && lines[i] != end; i++ {
			body = append(body, lines[i])
		}
		if i == len(lines) {
			fault(begin, "the block is not closed")
		}
		language, why, _ := strings.Cut(info, " ")
		reason, marked := strings.CutPrefix(why, "no-run:")
		switch {
		case end == "-->":
			blocks = append(blocks, block{line: begin, commands: strings.Join(body, "\n")})
		case language == "":
			fault(begin, "the block has no language")
		case marked && strings.TrimSpace(reason) == "":
			fault(begin, "no reason is given for not running the block")
		case marked:
		case language == "sh":
			blocks = append(blocks, block{line: begin, commands: strings.Join(body, "\n")})
		case language == "console":
			blocks = append(blocks, prompts(begin, body)...)
		}
	}
	return blocks, err
}

// prompts takes a block apart into its commands, each after "$ ", and what they print.
func prompts(line int, body []string) (blocks []block) {
	for i := 0; i < len(body); i++ {
		b := block{line: line, commands: strings.TrimPrefix(body[i], "$ "), checked: true}
		for ; strings.HasSuffix(body[i], `\`) && i+1 < len(body); i++ {
			b.commands += "\n" + body[i+1]
		}
		for ; i+1 < len(body) && !strings.HasPrefix(body[i+1], "$ "); i++ {
			b.output += body[i+1] + "\n"
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// shell starts a shell in its own directory that finds Ingot's programs, and the client of OpenStack, which is loaded
// once for all pages.
func shell(t *testing.T, client *openstack.Client, p *ingotd.Process) *exec.Cmd {
	t.Helper()
	endpoint := p.URL
	env := []string{"OS_AUTH_TYPE=none", "OS_ENDPOINT=" + endpoint}
	bin, home := client.Install(env), t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash")
	cmd.Dir = home
	path := bin
	for _, name := range []string{"ingot", "ingotd", "ingot-agent"} {
		path += ":" + filepath.Dir(made.Program(t, name))
	}
	// The settings of the conductor that runs, as an operator would have them for the commands of ingotd beside it.
	cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "PATH="+path+":"+os.Getenv("PATH"),
		"CONDUCTOR="+p.Dir, "INGOT_DATA_DIR="+p.Dir, "INGOT_API_LISTEN="+strings.TrimPrefix(endpoint, "http://"),
		"INGOT_AGENTS_LISTEN="+p.Agents, "INGOT_AGENTS_ADVERTISE="+p.Agents,
		"INGOT_NETBOOT_RAMDISK_DIR="+filepath.Join(home, "none"), "INGOT_ENDPOINT="+endpoint)
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

func run(t *testing.T, page string, blocks []block, cmd *exec.Cmd, endpoint string) {
	t.Helper()
	if err := check(blocks, cmd, endpoint); err != nil {
		t.Errorf("%s: %v", page, err)
	}
}

// check runs blocks in one shell and returns the fault of the first that fails.
func check(blocks []block, cmd *exec.Cmd, endpoint string) error {
	const mark = "@@ block %d @@\n"
	var script strings.Builder
	script.WriteString("set -e -o pipefail\nexec 2>&1\n")
	// Servers and folders that pages name are the conductor of the test, and folders in that of the shell.
	places := []string{"http://127.0.0.1:6385", endpoint, "http://ironic.example.org:6385", endpoint}
	for _, folder := range []string{"/srv/images", "/var/lib/ingot", "/backup", "/safe"} {
		places = append(places, folder, cmd.Dir+folder)
	}
	named := strings.NewReplacer(places...)
	for i, b := range blocks {
		fmt.Fprintf(&script, "printf '"+strings.ReplaceAll(mark, "\n", `\n`)+"'\n%s\n", i,
			named.Replace(b.commands))
	}
	cmd.Stdin = nil
	cmd.Args = append(cmd.Args, "-c", script.String())
	var out bytes.Buffer
	cmd.Stdout = &out
	failed := cmd.Run()
	_, rest, _ := strings.Cut(out.String(), fmt.Sprintf(mark, 0))
	for i, b := range blocks {
		got, after, more := strings.Cut(rest, fmt.Sprintf(mark, i+1))
		if rest = after; !more && failed != nil {
			return fmt.Errorf("line %d: the commands fail (%w):\n%s\n%s", b.line, failed, b.commands, got)
		}
		if b.checked && !matches(b.output, got) {
			return fmt.Errorf("line %d: the output differs:\n%s\n-- it is:\n%s\n-- the page has:\n%s", b.line,
				b.commands, got, b.output)
		}
	}
	return nil
}

// matches compares printed text with a page's, ignoring spaces at ends of lines.
func matches(want, got string) bool {
	pattern := regexp.QuoteMeta(trimmed(want))
	pattern = regexp.MustCompile(`(?m)^\\\.\\\.\\\.\n`).ReplaceAllString(pattern, `(?s:.*)`)
	pattern = strings.ReplaceAll(pattern, `\.\.\.`, `.*`)
	return regexp.MustCompile(`^` + pattern + `$`).MatchString(trimmed(got))
}

func trimmed(s string) string { return regexp.MustCompile(`(?m)[ \t]+$`).ReplaceAllString(s, "") }
