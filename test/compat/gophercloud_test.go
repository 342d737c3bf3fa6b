package compat

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/ingot-metal/ingot/conductor/access/keystonetest"
	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// gophercloud is the module whose own acceptance tests are run, as they come. Its tests are not ours to import: they
// are started where the module is kept.
const gophercloud = "github.com/gophercloud/gophercloud/v2@v2.15.0"

// levels are releases of OpenStack that gophercloud's tests know, each with the tests that leave themselves out below a
// newer one.
var levels = map[string]map[string][]string{
	"master": {},
	"stable/2023.1": {
		"httpbasic": {"TestNodesFirmwareInterface"},
		"v1": {"TestNodesFirmwareInterface", "TestNodesServicingHold", "TestNodesVirtualInterfaces",
			"TestNodesVirtualMedia"},
	},
}

// result is a line of a test program about one of its tests.
var result = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\w+)`)

// acceptance runs gophercloud's acceptance tests of a folder against a conductor, at each level. No other test may skip
// itself.
func acceptance(t *testing.T, folder, endpoint string, env ...string) {
	t.Helper()
	var module struct{ Dir, Error string }
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", gophercloud)
	cmd.Dir = t.TempDir() // outside of this module, which does not need it
	out, err := cmd.Output()
	if jerr := json.Unmarshal(out, &module); err != nil || jerr != nil || module.Error != "" {
		t.Fatalf("download %s: %v %v %s", gophercloud, err, jerr, module.Error)
	}
	program := filepath.Join(t.TempDir(), folder)
	cmd = exec.CommandContext(t.Context(), "go", "test", "-c", "-tags=acceptance", "-o", program,
		"./internal/acceptance/openstack/baremetal/"+folder)
	cmd.Dir = module.Dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build gophercloud's tests of %s: %v\n%s", folder, err, out)
	}
	for level, skips := range levels {
		cmd = exec.CommandContext(t.Context(), program, "-test.v", "-test.timeout=15m")
		cmd.Env = append(append(os.Environ(), "IRONIC_ENDPOINT="+endpoint+"/v1", "OS_BRANCH="+level), env...)
		out, err := cmd.CombinedOutput()
		passed := 0
		var skipped []string
		for _, m := range result.FindAllSubmatch(out, -1) {
			switch name := string(m[2]); string(m[1]) {
			case "PASS":
				passed++
			case "SKIP":
				skipped = append(skipped, name)
			default:
				t.Errorf("%s of gophercloud fails at level %s", name, level)
			}
		}
		slices.Sort(skipped)
		if err != nil || passed == 0 || !slices.Equal(skipped, skips[folder]) {
			t.Errorf("gophercloud's tests of %s at level %s: %v, %d passed, skipped %v, want %v\n%s", folder, level,
				err, passed, skipped, skips[folder], out)
		}
		t.Logf("level %s: %d tests of gophercloud passed", level, passed)
	}
}

// TestGophercloud tests the client library of Metal3 and Terraform. The tests with Keystone are the fullest; the other
// two are a part of them.
func TestGophercloud(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		acceptance(t, "noauth", ingotd.Start(t, kit.FreeAddr(t)).URL, "OS_USERNAME=anybody")
	})
	t.Run("http_basic", func(t *testing.T) {
		hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "htpasswd")
		if err := os.WriteFile(file, append([]byte("alice:"), hash...), 0o600); err != nil {
			t.Fatal(err)
		}
		p := ingotd.Start(t, kit.FreeAddr(t), "api.auth=http_basic", "api.htpasswd_file="+file)
		acceptance(t, "httpbasic", p.URL, "OS_USERNAME=alice", "OS_PASSWORD=secret")
	})
	t.Run("keystone", func(t *testing.T) {
		var ks identity
		if os.Getenv("INGOT_FULL") != "" {
			ks = startKeystone(t)
		} else {
			ks = simulated{keystonetest.Start(t)}
		}
		addr := kit.FreeAddr(t)
		ks.AddEndpoint("baremetal", "http://"+addr)
		ks.AddUser("ingot", "own")
		ks.Grant("ingot", "service", "service")
		ks.AddUser("root", "secret")
		ks.Grant("root", "", "admin", "member", "reader")
		p := ingotd.Start(t, addr, "api.auth=keystone",
			"api.keystone.auth_url="+strings.TrimSuffix(ks.Address(), "/v3"), "api.keystone.username=ingot",
			"api.keystone.password=own")
		acceptance(t, "v1", p.URL, "OS_AUTH_URL="+ks.Address(), "OS_USERNAME=root", "OS_PASSWORD=secret",
			"OS_DOMAIN_ID=default", "OS_SYSTEM_SCOPE=all")
	})
}

// begins runs a command, which does not end by itself, until the stream of events has begun, for a minute at most.
const begins = `begins() {
	said=$(mktemp)
	"$@" >"$said" &
	pid=$!
	tries=0
	until grep -q '^event: ingot.ready' "$said" || ! kill -0 $pid 2>/dev/null || [ $tries -gt 600 ]; do
		sleep 0.1
		tries=$((tries + 1))
	done
	kill $pid 2>/dev/null || true
	wait $pid || true
	cat "$said"
	rm "$said"
}
`

// TestTutorialOfTheAPI: the tutorial's output is the real one. The program in it is compiled and run, and the shell's
// lines are sent unchanged.
func TestTutorialOfTheAPI(t *testing.T) {
	page, err := os.ReadFile("../../docs/tutorial/api-without-machines.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(filepath.Join("testdata", "gophercloud", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, talk, ok := strings.Cut(string(page), "\n## 2.")
	if !ok || !strings.Contains(talk, "```go\n"+string(program)+"```\n") {
		t.Fatal("the tutorial does not show testdata/gophercloud/main.go as it is")
	}
	p := ingotd.Start(t, kit.FreeAddr(t))
	here := strings.NewReplacer("http://127.0.0.1:6385", p.URL)

	blocks := strings.Split(talk, "```")
	commands := 0
	for i := 1; i < len(blocks); i += 2 {
		if strings.HasPrefix(blocks[i], "go\n") {
			dir := t.TempDir()
			mod := "module example\n\ngo 1.24\n\nrequire " + strings.Replace(gophercloud, "@", " ", 1) + "\n"
			for name, text := range map[string]string{"go.mod": mod, "main.go": here.Replace(string(program))} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "go", "run", "-mod=mod", ".")
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
			if out, err := cmd.CombinedOutput(); err != nil ||
				!strings.Contains(string(out), "second is in state enroll") {
				t.Errorf("the program: %v\n%s", err, out)
			}
			continue
		}
		// Shell commands, of which the stream of events is cut short once it has begun.
		text := here.Replace(strings.TrimPrefix(blocks[i], "sh\n"))
		text = strings.ReplaceAll(text, "curl -sN", "begins curl -sN --fail")
		text = strings.ReplaceAll(text, "curl -s ", "curl -s --fail ")
		cmd := exec.CommandContext(t.Context(), "sh", "-c", begins+"set -e\n"+text)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s\n%s", err, text, out)
		}
		commands++
		if want := map[int]string{1: "active", 2: "event: ingot.ready"}[commands]; !strings.Contains(string(out),
			want) {
			t.Errorf("the commands do not show %q:\n%s", want, out)
		}
	}
	if commands != 2 {
		t.Errorf("%d blocks of commands, want those of openstack and of curl", commands)
	}
}
