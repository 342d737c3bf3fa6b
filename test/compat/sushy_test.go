package compat

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/update"
)

// TestSushy drives the lab's controller with python3-sushy, Ironic's own Redfish client, so that Ingot's client and the
// lab's controller do not share one misunderstanding of the standard.
func TestSushy(t *testing.T) {
	tree := unpack(t, "python3-sushy")
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(update.File(update.BIOS, "99.1")) // a controller that went away misses it
	}))
	defer files.Close()
	for _, tt := range []struct{ personality, auth string }{{"generic", "session"}, {"generic", "basic"},
		{"dell-idrac9", "auto"}, {"supermicro", "session"}, {"hpe-ilo6", "session"}, {"openbmc", "auto"},
		{"dell-idrac10", "session"}, {"dell-idrac9-5", "session"}, {"hpe-ilo5", "session"}, {"lenovo-xcc", "session"}} {
		t.Run(tt.personality+" "+tt.auth, func(t *testing.T) {
			const mac = "52:54:00:aa:bb:01"
			p := redfish.Personality(t, tt.personality)
			b := redfish.Start(t, p, func(c *service.Config) { c.MACs = []string{mac} })
			ca := filepath.Join(t.TempDir(), "ca.pem")
			if err := os.WriteFile(ca, b.Service.CertificatePEM(), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), debian.Python, "testdata/redfish.py", b.Service.URL(), "admin",
				redfish.Password, ca, tt.auth, files.URL)
			// The variable outranks the argument of the library beneath.
			cmd.Env = append(append(os.Environ(), tree.Env...), "PYTHONDONTWRITEBYTECODE=1", "REQUESTS_CA_BUNDLE="+ca)
			var said strings.Builder
			cmd.Stderr = &said
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("sushy: %v\n%s\n%s", err, out, said.String())
			}
			var got struct {
				UUID, Manufacturer, Firmware string
				BIOSVersion                  string `json:"bios_version"`
				Power, Boot                  [][]string
				MACs                         []string
				Processors                   int
				MemoryGiB                    float64 `json:"memory_gib"`
				Disks                        []int64
				BIOS, Subscription           []string
				Kinds                        int
				SecureBoot                   bool `json:"secure_boot"`
				Refused, Missing, Denied     bool

				// What sushy meets where Ingot has a row, or a way of its own.
				Conflict bool
				OnceOnly bool `json:"once_only"`
			}
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			boots := 6
			if p.Has(service.OnceOnly) {
				boots = 3
			}
			if got.Conflict != p.Has(service.ConflictAfterOff) || got.OnceOnly != p.Has(service.OnceOnly) {
				t.Errorf("sushy met conflict %v, once only %v; the lab has %v", got.Conflict, got.OnceOnly,
					p.Behaviours)
			}
			if got.UUID != redfish.UUID.String() || got.Manufacturer != p.Manufacturer ||
				got.Firmware != p.Firmware || !strings.HasSuffix(got.BIOSVersion, "99.1") ||
				len(got.Power) < 3 || len(got.Boot) != boots || len(got.MACs) != 1 ||
				got.MACs[0] != mac || got.Processors < 8 || got.MemoryGiB < 64 || len(got.Disks) == 0 ||
				len(got.Subscription) != 2 || got.Subscription[1] != "sushy" || got.Kinds != 5 ||
				len(got.BIOS) != 1 || got.BIOS[0] != "BootRetries" ||
				!got.SecureBoot || !got.Refused || !got.Missing || !got.Denied {
				t.Errorf("sushy found %+v", got)
			}
			if n := b.Service.Sessions(); n != 0 {
				t.Errorf("%d sessions are left", n)
			}
			if boots := len(b.Machine.Boots()); boots != 4 {
				t.Errorf("the machine started %d times, want 4", boots)
			}
		})
	}
}
