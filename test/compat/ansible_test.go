package compat

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

var maximumSDK = regexp.MustCompile(`(?m)^MAXIMUM_SDK_VERSION = .*$`)

// TestAnsible runs, with INGOT_FULL, Debian's ansible with its collection openstack.cloud: each module baremetal_* is a
// separate process, which takes seconds. TestOpenstackSDK always covers the calls of the modules.
//
// The collection refuses Debian's own openstacksdk by its version. The limit is removed, in a copy without other
// changes.
func TestAnsible(t *testing.T) {
	if os.Getenv("INGOT_FULL") == "" {
		return
	}
	tree := unpack(t, "ansible")
	home := t.TempDir()
	name := filepath.Join("ansible_collections", "openstack", "cloud")
	if err := os.CopyFS(filepath.Join(home, name), os.DirFS(filepath.Join(tree.Modules(), name))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(home, name, "plugins", "module_utils", "openstack.py")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(maximumSDK.FindAll(text, -1)) != 1 {
		t.Fatal("the collection has no MAXIMUM_SDK_VERSION to lift")
	}
	if err := os.WriteFile(file, maximumSDK.ReplaceAll(text, []byte("MAXIMUM_SDK_VERSION = None")), 0o600); err != nil {
		t.Fatal(err)
	}
	have, err := filepath.Glob(filepath.Join(home, name, "plugins", "modules", "baremetal_*.py"))
	if err != nil {
		t.Fatal(err)
	}
	play, err := os.ReadFile(filepath.Join("testdata", "ansible", "play.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range have {
		module := "openstack.cloud." + filepath.Base(path[:len(path)-len(".py")])
		if !bytes.Contains(play, []byte("      "+module+":")) {
			t.Errorf("the play has no task with %s", module)
		}
	}
	p := ingotd.Start(t, kit.FreeAddr(t))
	cmd := exec.CommandContext(t.Context(), debian.Python, tree.Program("ansible-playbook"), "-i", "localhost,", "-e",
		"endpoint="+p.URL, filepath.Join("testdata", "ansible", "play.yml"))
	cmd.Env = append(append(os.Environ(), tree.Env...), "HOME="+home, "LC_ALL=C.UTF-8", "ANSIBLE_COLLECTIONS_PATH="+
		home, "ANSIBLE_NOCOLOR=1",
		"ANSIBLE_LOCAL_TEMP="+filepath.Join(home, "local"), "ANSIBLE_REMOTE_TEMP="+filepath.Join(home, "remote"),
		"ANSIBLE_PYTHON_INTERPRETER="+debian.Python)
	out, err := cmd.CombinedOutput()
	tasks := bytes.Count(out, []byte("TASK [baremetal_"))
	if want := bytes.Count(play, []byte("- name: baremetal_")); err != nil || tasks != want {
		t.Errorf("ansible: %v, %d of %d tasks\n%s", err, tasks, want, out)
	}
	t.Logf("%d modules of Ansible, %d tasks", len(have), tasks)
}
