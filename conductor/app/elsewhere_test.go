//go:build !race

// The programs under test are processes of their own, built without the race detector.

package app_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/rest"
	"github.com/ingot-metal/ingot/test/kit/pgserver"
	"github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
)

// besides starts a second conductor on the database of s's, and returns when the two know each other.
func (s *site) besides() *site {
	s.t.Helper()
	o := newSite(s.t)
	o.set = append(slices.Clone(s.set), "hostname=other", fmt.Sprintf("netboot.https_port=%d", freePort(s.t)))
	o.start()
	for _, c := range []*site{s, o} {
		s.until("both know each other", func() bool {
			return strings.Count(c.conductors(), `"alive":true`) == 2
		})
	}
	return o
}

// conductors is the list of them, as the API has it.
func (s *site) conductors() string {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), "GET", s.url+"/v1/conductors", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-OpenStack-Ironic-API-Version", "1.49")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// own enrols a node that is to be this conductor's, and stays so.
func (s *site) own(want client.NewNode) *rest.Node {
	s.t.Helper()
	for range 30 {
		if _, err := s.CreateNode(s.t.Context(), want); err != nil {
			s.t.Fatal(err)
		}
		s.do(want.Name, "manage", "manageable", nil)
		n, err := s.Node(s.t.Context(), want.Name)
		if err != nil {
			s.t.Fatal(err)
		}
		if n.Conductor == "sim" {
			return n
		}
		if err := s.DeleteNode(s.t.Context(), want.Name); err != nil {
			s.t.Fatal(err)
		}
	}
	s.t.Fatal("of 30 nodes none belongs to this conductor")
	return nil
}

// shares has s use a database that others use, too.
func (s *site) shares() {
	s.t.Helper()
	_, db := pgserver.New(s.t).Database(s.t)
	secret := filepath.Join(s.t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(pgserver.Password+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.set = append(s.set, "peer.listen=127.0.0.1:0", "store.url="+db, "store.password_file="+secret,
		"store.key="+base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32))))
}

var phoneHome = regexp.MustCompile(`http://[^"\\ ]+/phone_home/[^"\\ ]+`)

// TestMachineAtAnotherConductor: all that a machine asks for by HTTP, it may ask of a conductor that does not own its
// node: boot script and kernel, the image that its firmware was told to load, and the call when its system is up. The
// address may be one that moves between conductors.
func TestMachineAtAnotherConductor(t *testing.T) {
	for _, boot := range []string{"ipxe", "redfish-https"} {
		t.Run(boot, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.shares()
			b := s.redfish(service.Config{Personality: redfish.Personality(t, "hpe-ilo6")})
			s.start()
			o := s.besides()
			n := s.own(overRedfish(b, "redfish", boot))
			asked := 0
			s.machine.reroute = func(address string) string {
				asked++
				u, err := url.Parse(address)
				if err != nil {
					t.Error(err)
				}
				u.Scheme, u.Host = "http", fmt.Sprintf("127.0.0.1:%d", o.httpPort)
				return u.String()
			}
			s.do("n1", "inspect", "manageable", nil)
			s.do("n1", "provide", "available", nil)
			s.image()
			if _, err := s.UpdateNode(t.Context(), "n1", []rest.Operation{
				{Op: "add", Path: "/instance_info/sign_of_life", Value: "phone_home"}}); err != nil {
				t.Fatal(err)
			}
			if err := s.Provision(t.Context(), "n1", client.ProvisionRequest{Target: "active",
				ConfigDrive: client.ConfigDrive{MetaData: map[string]any{"hostname": "web-1"}}}); err != nil {
				t.Fatal(err)
			}
			s.until("it starts from its disk", func() bool {
				boots, _ := s.machine.seen()
				return boots[len(boots)-1] == "disk"
			})
			if got, err := s.Node(t.Context(), "n1"); err != nil || got.Conductor != "sim" {
				t.Fatalf("the owner is %s, %v", got.Conductor, err)
			}
			s.callHome(t.Context(), o)
			s.wait("n1", "active")
			if strings.Contains(s.log.String(), "call home") || asked < 3 {
				t.Errorf("the owner was called, or the other one asked only %d times", asked)
			}
			if r := s.machine.runs("write_image"); r != 1 {
				t.Errorf("the image of %s was written %d times", n.UUID, r)
			}
		})
	}
}

// callHome calls the conductor at with the token in the config drive: twice, of which one counts.
func (s *site) callHome(ctx context.Context, at *site) {
	s.t.Helper()
	s.machine.mu.Lock()
	text := s.machine.args["write_configdrive"]
	s.machine.mu.Unlock()
	home := phoneHome.FindString(drive(s.t, text))
	u, err := url.Parse(home)
	if err != nil || home == "" {
		s.t.Fatalf("no address to call in %.300s, %v", text, err)
	}
	u.Host = fmt.Sprintf("127.0.0.1:%d", at.httpPort)
	for _, want := range []int{http.StatusNoContent, http.StatusNotFound} {
		req, err := http.NewRequestWithContext(ctx, "POST", u.String(), nil)
		if err != nil {
			s.t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			s.t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			s.t.Errorf("calling home at another conductor = %d, want %d", resp.StatusCode, want)
		}
	}
}

// drive is the text in the argument of write_configdrive.
func drive(t *testing.T, args string) string {
	t.Helper()
	var a struct {
		ConfigDrive json.RawMessage `json:"configdrive"`
	}
	if err := json.Unmarshal([]byte(args), &a); err != nil {
		t.Fatal(err)
	}
	return string(a.ConfigDrive)
}
