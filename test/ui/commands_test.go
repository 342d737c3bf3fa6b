package ui

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/tools/cli"
)

// TestCommandsAreTaken: each command that the dashboard shows beside an action, in every state, is one that ingot, or
// openstack, takes.
func TestCommandsAreTaken(t *testing.T) {
	s := start(t)
	p := open(t, s.d.URL)
	all := map[string]bool{}
	collect := func() int {
		t.Helper()
		found := js[[]string](p, "[...document.querySelectorAll('.command code')].map((e) => e.textContent)")
		for _, text := range found {
			for line := range strings.SplitSeq(text, "\n") {
				all[line] = true
			}
		}
		return len(found)
	}
	for _, path := range []string{"/ui/start", "/ui/allocations"} { // while there is nothing they say what to do
		p.visit(path)
		p.until("document.querySelector('.command code')")
		collect()
	}
	states := []string{"enroll", "manageable", "available", "active", "rescue", "deploy failed", "on", "quarantined",
		"clean hold"}
	id := map[string]string{}
	for _, state := range states {
		name := "m-" + strings.ReplaceAll(state, " ", "-")
		more := ""
		if state == "deploy failed" {
			more = `"driver_info":{"fake_fail":{"deploy.deploy":"broken"}}`
		}
		id[state] = s.node(name, more)
		if state == "enroll" {
			continue
		}
		s.send(id[state], "manage")
		s.is(id[state], "manageable")
		switch state {
		case "manageable":
			continue
		case "clean hold":
			s.want(202, "PUT", "/v1/nodes/"+id[state]+"/states/provision",
				`{"target":"clean","disable_ramdisk":true,"clean_steps":[{"interface":"deploy","step":"hold"}]}`)
			s.is(id[state], state)
			continue
		}
		s.send(id[state], "provide")
		s.is(id[state], "available")
		switch state {
		case "available":
			continue
		case "on":
			s.want(202, "PUT", "/v1/nodes/"+id[state]+"/states/power", `{"target":"power on"}`)
			s.want(202, "PUT", "/v1/nodes/"+id[state]+"/maintenance", `{}`)
			continue
		}
		s.send(id[state], "active")
	}
	for state, id := range id {
		switch state {
		case "active", "deploy failed":
			s.is(id, state)
		case "rescue", "quarantined":
			s.is(id, "active")
		}
	}
	s.want(202, "PUT", "/v1/nodes/"+id["rescue"]+"/states/provision", `{"target":"rescue","rescue_password":"long enough"}`)
	s.is(id["rescue"], "rescue")
	s.want(200, "POST", "/ingot/v1/nodes/"+id["quarantined"]+"/quarantine", `{"reason":"its fan"}`)

	opened := map[string]bool{}
	for _, state := range states {
		p.to("/ui/nodes/" + id[state])
		p.until("document.querySelector('.node .buttons button')")
		for _, name := range js[[]string](p, "[...document.querySelectorAll('.node .buttons button')].map((e) => e.innerText)") {
			opened[name] = true
			p.click(name)
			if collect() == 0 {
				t.Errorf("%s of a machine in %s shows no command", name, state)
			}
			p.click("Cancel")
			p.until("!document.querySelector('dialog')")
		}
		for _, tab := range []string{"/media", "/console"} {
			p.to("/ui/nodes/" + id[state] + tab)
			p.until("document.querySelector('.command code')")
			collect()
		}
	}
	for want := range strings.SplitSeq("Deploy,Rebuild,Clean,Service,Manage,Inspect,Provide,Adopt,Rescue,End rescue,Undeploy,"+
		"Power on,Power off,Shut down,Reboot,Boot device,Start maintenance,End maintenance,Go on,Abort,Quarantine,"+
		"End quarantine,Delete", ",") {
		if !opened[want+" …"] {
			t.Errorf("no machine is offered %s", want)
		}
	}

	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"FILE", "id_ed25519.pub"} {
		if err := os.WriteFile(name, []byte("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPw0 ann@desk\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ours, theirs := 0, [][]string{}
	for line := range all {
		words := shellWords(t, line)
		switch words[0] {
		case "ingot":
			ours++
			taken(t, line, words[1:])
		case "openstack":
			if slices.Contains(newer, words[3]) {
				continue
			}
			theirs = append(theirs, words[1:])
		default:
			t.Errorf("a command of neither program: %s", line)
		}
	}
	if ours < 20 || len(theirs) < 20 {
		t.Errorf("only %d commands of ingot and %d of openstack were found", ours, len(theirs))
	}
	kit.NeedPrograms(t, "openstack")
	in, err := json.Marshal(theirs)
	if err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("openstack")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	python, _, _ := strings.Cut(strings.TrimPrefix(string(text), "#!"), "\n") // its own, which has its modules
	cmd := exec.CommandContext(t.Context(), strings.TrimSpace(python), "-c", parses)
	cmd.Stdin = bytes.NewReader(in)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("openstack does not take some of them (%v):\n%s", err, out)
	}
}

// parses has the client's own parsers read command lines.
const parses = `
import argparse, contextlib, io, json, sys
from cliff.commandmanager import CommandManager
m, bad = CommandManager('openstack.baremetal.v1'), 0
for words in json.load(sys.stdin):
    err = io.StringIO()
    try:
        factory, name, rest = m.find_command(words)
        with contextlib.redirect_stderr(err):
            factory(None, None).get_parser(name).parse_args(rest)
    except (SystemExit, Exception) as e:
        bad += 1
        print(words, e, err.getvalue())
sys.exit(bad > 0)
`

// shellWords has a shell take a line apart.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	line = strings.NewReplacer("~/.ssh/", "", "sha256:HEX", "sha256:"+strings.Repeat("0", 64)).Replace(line)
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\0' `+line).Output()
	if err != nil {
		t.Fatalf("a shell does not understand %s: %v", line, err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// newer are commands of later clients than Debian's.
var newer = []string{"service", "unhold", "vmedia"}

var unreachable = regexp.MustCompile(`connection refused`)

// taken has ingot carry out a command at a conductor that is not there: whatever is wrong with the command line itself
// is found before that.
func taken(t *testing.T, line string, args []string) {
	t.Helper()
	var errs bytes.Buffer
	err := cli.Run(t.Context(), args, strings.NewReader(""), io.Discard, &errs, func(name string) string {
		return map[string]string{"INGOT_ENDPOINT": "http://127.0.0.1:1", "HOME": t.TempDir()}[name]
	})
	if err == nil || !unreachable.MatchString(err.Error()) {
		t.Errorf("%s: %v, want that it fails for want of a conductor alone\n%s", line, err, &errs)
	}
}
