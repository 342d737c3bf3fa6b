package compat

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
)

// judged is a controller of the lab that a program of Debian's works on.
type judged struct {
	t    *testing.T
	b    *redfish.Bench
	run  func(args ...string) (string, error)
	url  string // of an image
	size int64
}

// other makes a controller whose connections stay open, since these programs rely on it, and an image server.
func other(t *testing.T, personality string) *judged {
	t.Helper()
	p := redfish.Personality(t, personality)
	p.Behaviours = slices.DeleteFunc(slices.Clone(p.Behaviours), func(b service.Behaviour) bool {
		return b == service.ClosesAfterAnswer
	})
	j := &judged{t: t, size: 1 << 20}
	j.b = redfish.Start(t, p, func(c *service.Config) { c.MACs = []string{"52:54:00:aa:bb:01"} })
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "x.iso", time.Unix(1e9, 0), bytes.NewReader(make([]byte, j.size)))
	}))
	t.Cleanup(files.Close)
	j.url = files.URL + "/token/node.iso"
	return j
}

// program makes run start one of a tree's programs, with arguments before those of each call.
func (j *judged) program(tree debian.Tree, name string, first ...string) {
	home := j.t.TempDir()
	j.run = func(args ...string) (string, error) {
		all := append(append([]string{tree.Program(name)}, first...), args...)
		cmd := exec.CommandContext(j.t.Context(), debian.Python, all...)
		cmd.Env = append(append(os.Environ(), tree.Env...), "PYTHONDONTWRITEBYTECODE=1", "HOME="+home)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// must runs the program; what it prints must have all these words.
func (j *judged) must(words []string, args ...string) string {
	j.t.Helper()
	out, err := j.run(args...)
	if err != nil {
		j.t.Fatalf("%q: %v\n%s", args, err, out)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			j.t.Errorf("%q printed no %q:\n%s", args, w, out)
		}
	}
	return out
}

func (j *judged) refused(args ...string) {
	j.t.Helper()
	if out, err := j.run(args...); err == nil {
		j.t.Errorf("%q was not refused:\n%s", args, out)
	}
}

// boots reports whether the machine's next start has this choice.
func (j *judged) boots(want bmc.Device, persistent bool) {
	j.t.Helper()
	if is, p := j.b.BMC.Boot(); is.Device != want || p != persistent {
		j.t.Errorf("the boot choice is %v, persistent %v; want %v, %v", is.Device, p, want, persistent)
	}
}

func (j *judged) power(on bool) {
	j.t.Helper()
	if j.b.BMC.On() != on {
		j.t.Errorf("the machine is on: %v, want %v", !on, on)
	}
}

func (j *judged) inserted(drive string, want bool) {
	j.t.Helper()
	f := j.b.Service.Image(drive)
	if (f != nil) != want || want && f.Size() != j.size {
		j.t.Errorf("an image is in %s: %v, want %v", drive, f != nil, want)
	}
}

// drive is one that takes an image by an action: its path and Id; settings is the path of the BIOS settings to come.
type drive struct{ path, id, settings string }

var drives = map[string]drive{
	"generic": {"/redfish/v1/Systems/1/VirtualMedia/CD", "CD", "/redfish/v1/Systems/1/Bios/Settings"},
	"dell-idrac9": {"/redfish/v1/Managers/iDRAC.Embedded.1/VirtualMedia/CD", "CD",
		"/redfish/v1/Systems/System.Embedded.1/Bios/Settings"},
	"hpe-ilo5": {"/redfish/v1/Managers/1/VirtualMedia/2", "2", "/redfish/v1/Systems/1/Bios/settings"},
	"hpe-ilo6": {"/redfish/v1/Managers/1/VirtualMedia/2", "2", "/redfish/v1/Systems/1/Bios/settings"},
}

// TestRedfishtool drives the lab's controller with redfishtool, the standard's own program.
func TestRedfishtool(t *testing.T) {
	tree := unpack(t, "redfishtool")
	for _, name := range []string{"generic", "dell-idrac9", "hpe-ilo6"} {
		t.Run(name, func(t *testing.T) {
			j, d := other(t, name), drives[name]
			host := strings.TrimPrefix(j.b.Service.URL(), "https://")
			j.program(tree, "redfishtool", "-r", host, "-S", "Always", "-u", "admin", "-p", redfish.Password)
			j.must([]string{"ServiceRoot", "Systems"}, "root")
			j.must([]string{"$metadata", "Singleton"}, "odata")
			j.must([]string{"edmx:Edmx"}, "metadata")
			var login struct {
				Token string `json:"X-Auth-Token"`
			}
			out := j.must(nil, "SessionService", "login")
			if err := json.Unmarshal([]byte(out), &login); err != nil || login.Token == "" {
				t.Fatalf("login: %v: %s", err, out)
			}
			if n := j.b.Service.Sessions(); n != 1 {
				t.Errorf("%d sessions after the login", n)
			}
			j.must([]string{redfish.UUID.String()}, "-A", "Session", "-t", login.Token, "-F", "Systems")
			j.must(nil, "-F", "Systems", "reset", "On")
			j.power(true)
			j.must([]string{"Once"}, "-F", "Systems", "setBootOverride", "Once", "Pxe")
			j.boots(bmc.PXE, false)
			j.must([]string{"Disabled"}, "-F", "Systems", "setBootOverride", "Disabled")
			j.boots(bmc.Default, false)

			j.must(nil, "-d", `{"Image":"`+j.url+`"}`, "raw", "POST", d.path+"/Actions/VirtualMedia.InsertMedia")
			j.inserted(d.id, true)
			j.must([]string{j.url}, "raw", "GET", d.path)
			j.must(nil, "-d", `{}`, "raw", "POST", d.path+"/Actions/VirtualMedia.EjectMedia")
			j.inserted(d.id, false)

			j.must(nil, "-d", `{"Attributes":{"NumLock":"Disabled"}}`, "raw", "PATCH", d.settings)
			j.must(nil, "-F", "Systems", "reset", "ForceRestart")
			j.must([]string{`"NumLock": "Disabled"`}, "raw", "GET", d.settings[:strings.LastIndex(d.settings, "/")])
			j.must(nil, "-F", "Systems", "reset", "ForceOff")
			j.power(false)

			j.refused("-d", `{"Attributes":{"NumLock":"Loud"}}`, "raw", "PATCH", d.settings)
			j.refused("raw", "GET", "/redfish/v1/Systems/none")
			j.refused("-p", "wrong", "-F", "Systems")
			j.must(nil, "-i", "1", "SessionService", "logout")
			if n := j.b.Service.Sessions(); n != 0 {
				t.Errorf("%d sessions are left", n)
			}
		})
	}
}

// TestILOREST drives the lab's controller with ilorest, HPE's program, which reads the whole tree at its login. With
// INGOT_FULL it drives one of no vendor, too.
func TestILOREST(t *testing.T) {
	tree := unpack(t, "ilorest")
	names := []string{"hpe-ilo5"}
	if os.Getenv("INGOT_FULL") != "" {
		names = append(names, "generic")
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			j, d := other(t, name), drives[name]
			files := t.TempDir()
			j.program(tree, "ilorest", "--nologo", "--logdir", files, "--cache-dir", files)
			system := strings.TrimSuffix(d.settings[:strings.LastIndex(d.settings, "/")], "/Bios")
			send := func(method, path string, body any) {
				t.Helper()
				b, err := json.Marshal(map[string]any{path: body})
				if err != nil {
					t.Fatal(err)
				}
				file := filepath.Join(files, "request.json")
				if err := os.WriteFile(file, b, 0o600); err != nil {
					t.Fatal(err)
				}
				j.must(nil, "raw"+method, file)
			}
			type o = map[string]any
			j.refused("login", j.b.Service.URL(), "-u", "admin", "-p", "wrong")
			j.must(nil, "login", j.b.Service.URL(), "-u", "admin", "-p", redfish.Password)
			if n := j.b.Service.Sessions(); n != 1 {
				t.Errorf("%d sessions after the login", n)
			}
			j.must([]string{"ServiceRoot", "ComputerSystem", "Bios", "VirtualMedia", "Manager", "Drive"}, "types")
			j.must([]string{"PowerState=Off"}, "get", "PowerState", "--select", "ComputerSystem.")
			send("post", system+"/Actions/ComputerSystem.Reset", o{"ResetType": "On"})
			j.power(true)
			send("patch", system, o{"Boot": o{"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}})
			j.boots(bmc.PXE, false)

			send("post", d.path+"/Actions/VirtualMedia.InsertMedia", o{"Image": j.url})
			j.inserted(d.id, true)
			send("post", d.path+"/Actions/VirtualMedia.EjectMedia", o{})
			j.inserted(d.id, false)

			send("patch", d.settings, o{"Attributes": o{"NumLock": "Disabled"}})
			send("post", system+"/Actions/ComputerSystem.Reset", o{"ResetType": "ForceRestart"})
			j.must([]string{`"NumLock": "Disabled"`}, "rawget", system+"/Bios")
			j.refused("rawget", system+"none")
			j.must(nil, "logout") // which forgets the session, and deletes only one whose Location has a host
		})
	}
}
