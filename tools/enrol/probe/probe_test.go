package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/tools/enrol/discover"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
)

const user = "canary-user"

var macs = []string{"52:54:00:AA:BB:01", "52:54:00:aa:bb:02"}

// probed starts a controller and probes it.
func probed(t *testing.T, p service.Personality) (*redfish.Bench, *Report, Archive) {
	t.Helper()
	b := redfish.Start(t, p, func(c *service.Config) { c.User, c.MACs = user, macs })
	targets, err := discover.Parse(strings.TrimPrefix(b.Service.URL(), "https://"))
	if err != nil {
		t.Fatal(err)
	}
	found := discover.Find(t.Context(), targets)[0]
	g, err := found.Open(&discover.Account{User: user, Password: redfish.Password})
	if err != nil {
		t.Fatalf("%v: %s", err, found.Fault)
	}
	defer g.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, answers := Run(ctx, g, true)
	return b, r, Archive{r.Calls, answers}
}

// TestProbe: every personality is recognised, with its abilities; an archive without private values says the same; and
// no private value is in it.
func TestProbe(t *testing.T) {
	for _, name := range service.Personalities() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := redfish.Personality(t, name)
			b, r, a := probed(t, p)
			if r.Vendor != p.Vendor || len(r.Machines) != 1 || r.Machines[0].Model != p.Model ||
				r.Machines[0].Firmware != p.Firmware || len(r.Machines[0].Can) < 6 || len(r.Notes) > 0 {
				t.Errorf("%+v", r)
			}
			if strings.HasPrefix(name, "dell") != slices.ContainsFunc(r.Machines[0].Rows,
				func(row string) bool { return strings.HasPrefix(row, "dell-same-state: ") }) {
				t.Errorf("rows %q", r.Machines[0].Rows)
			}
			for _, c := range r.Calls {
				if c.Fault != "" || c.Status != 200 {
					t.Errorf("%+v", c)
				}
			}
			if b.Service.MostAtOnce() > 1 || b.Service.Sessions() > 0 {
				t.Errorf("%d requests at once, %d sessions", b.Service.MostAtOnce(), b.Service.Sessions())
			}
			less, err := Redact(a)
			if err != nil {
				t.Fatal(err)
			}
			var file bytes.Buffer
			if err := less.Write(&file); err != nil {
				t.Fatal(err)
			}
			back, err := Read(file.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			again, _ := Run(t.Context(), back, true)
			for _, both := range []*Report{r, again} {
				for i := range both.Machines {
					both.Machines[i].Path = ""
				}
			}
			got := fmt.Sprint(again.Machines, again.Vendor, again.Product, again.Version)
			want := fmt.Sprint(r.Machines, r.Vendor, r.Product, r.Version)
			if got != want || len(again.Calls) != len(r.Calls) {
				t.Errorf("from the archive %d requests, %s, want %d, %s", len(again.Calls), got, len(r.Calls), want)
			}
			said, err := json.Marshal(back)
			if err != nil {
				t.Fatal(err)
			}
			secrets := []string{user, redfish.Password, b.BMC.UUID().String(), "127.0.0.1", macs[0], macs[1]}
			for _, answer := range a.Answers {
				for _, m := range serials.FindAllSubmatch(answer, -1) {
					secrets = append(secrets, string(m[1]))
				}
			}
			for _, secret := range secrets {
				if strings.Contains(strings.ToLower(string(said)), strings.ToLower(secret)) {
					t.Errorf("the archive has %q", secret)
				}
			}
		})
	}
}

var serials = regexp.MustCompile(`"SerialNumber":"([^"]{5,})"`)

// TestHostileProbe: a controller that has more than anyone wants, or answers nonsense, ends a probe and nothing else,
// and what it says does not reach a terminal.
func TestHostileProbe(t *testing.T) {
	for _, does := range []service.Behaviour{service.ManyMembers, service.LinksInLoops, service.EscapesInNames,
		service.DeepAnswers, service.Endless, service.LeadsElsewhere, service.DropsSessions} {
		t.Run(string(does), func(t *testing.T) {
			t.Parallel()
			_, r, a := probed(t, redfish.Personality(t, "generic", does))
			if len(r.Calls) > mostCalls {
				t.Errorf("%d requests", len(r.Calls))
			}
			for _, c := range r.Calls {
				r.Vendor += c.Path + c.Fault
			}
			said := fmt.Sprintf("%s %s %v", r.Vendor, r.Product, r.Machines)
			if strings.ContainsAny(said, "\x1b\x07\u202e") {
				t.Errorf("%q", said)
			}
			if _, err := Redact(a); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestReadArchive: files of others are archives or errors.
func TestReadArchive(t *testing.T) {
	var empty bytes.Buffer
	if err := (Archive{}).Write(&empty); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"nothing": nil, "text": []byte("no zip"), "half": empty.Bytes()[:30]} {
		if _, err := Read(b); err == nil {
			t.Errorf("%s is an archive", name)
		}
	}
	if a, err := Read(empty.Bytes()); err != nil || len(a.Calls) > 0 {
		t.Errorf("%+v, %v", a, err)
	}
	r, _ := Run(t.Context(), Archive{}, true)
	if len(r.Machines) > 0 || len(r.Calls) != 1 {
		t.Errorf("of nothing: %+v", r)
	}
}

// TestRedact: private values are replaced wherever they are, and what only looks like one is not.
func TestRedact(t *testing.T) {
	a, err := Redact(Archive{Calls: []Call{{Path: "/redfish/v1/Systems/SN12345"}},
		Answers: map[string]json.RawMessage{"/redfish/v1/Systems/SN12345": json.RawMessage(`{"SerialNumber":"SN12345",
			"Name":"System SN12345 of rack","FirmwareVersion":"7.10.30.00","HostName":"web1","IPv4Addresses":[{"Address":
			"192.0.2.7","SubnetMask":"255.255.255.0"}],"NameServers":["192.0.2.1"],"PowerState":"On","Note":"see 192.0.2.9",
			"Oem":{"X":{"LicenseKey":"ABCDE-12345","LicenseKeys":["FGHIJ"]}},"Count":3,
			"Uri":"/redfish/v1/Systems/SN12345/Bios"}`)}})
	if err != nil {
		t.Fatal(err)
	}
	said := fmt.Sprint(a.Calls)
	for path, b := range a.Answers {
		said += path + string(b)
	}
	for _, secret := range []string{"SN12345", "web1", "192.0.2.", "255.255", "ABCDE", "FGHIJ"} {
		if strings.Contains(said, secret) {
			t.Errorf("%q is in %s", secret, said)
		}
	}
	for _, fact := range []string{"7.10.30.00", `"PowerState":"On"`, `"Count":3`, "/Bios"} {
		if !strings.Contains(said, fact) {
			t.Errorf("%q is not in %s", fact, said)
		}
	}
}
