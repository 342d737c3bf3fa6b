package compat

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/test/kit/debian"
	"github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/update"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/vmedia"
)

// driven is a controller of the lab that sushy works on.
type driven struct {
	personality, auth string
	// more are behaviours beside the personality's: those of other vendors' controllers.
	more []service.Behaviour
	// less are those of the personality that it lacks.
	less []service.Behaviour
	// model, unless "", is that of the machine.
	model string
}

// sushyDrives are the controllers, all of the lab's personalities among them. Behaviours of vendors that have no
// personality are at the generic one. Basic authentication is for what sushy takes for a lost session.
var sushyDrives = []driven{
	{personality: "generic", auth: "session"},
	{personality: "dell-idrac9", auth: "auto"},
	{personality: "dell-idrac9-5", auth: "session"},
	{personality: "dell-idrac10", auth: "session"},
	{personality: "hpe-gen9", auth: "session"},
	{personality: "hpe-ilo5", auth: "session"},
	{personality: "hpe-ilo6", auth: "auto"},
	{personality: "lenovo-xcc", auth: "session"},
	{personality: "supermicro", auth: "session"},
	{personality: "ami", auth: "session"},
	{personality: "openbmc", auth: "auto"},
	{personality: "dell-idrac9", auth: "basic",
		more: []service.Behaviour{service.ModeIsJob, service.NotReady, vmedia.FailsFirst}},
	{personality: "hpe-ilo5", auth: "basic", more: []service.Behaviour{service.InPOST, service.NoIdentity}},
	{personality: "supermicro", auth: "basic", model: "X10DRi",
		more: []service.Behaviour{service.NoBootMode, service.SecureBootLicence}},
	{personality: "supermicro", auth: "session", model: "ARS-111GL-NHR",
		more: []service.Behaviour{vmedia.ListsUSBCD, vmedia.NoIPv6},
		less: []service.Behaviour{vmedia.MediaBootAsUSBCD}},
	// Cisco's, whose drives are for DVDs, and some not for clients
	{personality: "generic", auth: "session",
		more: []service.Behaviour{vmedia.InternalSlots, vmedia.OnlyDVD, service.NoEthernet}},
	// Nokia's and Huawei's
	{personality: "generic", auth: "basic", more: []service.Behaviour{vmedia.WantsProtocol, service.NoManagedBy}},
	// xFusion's, and what sushy's newest versions know of ETags
	{personality: "generic", auth: "auto", more: []service.Behaviour{vmedia.WantsMethod, service.EmptyETag}},
	// NVIDIA's DGX
	{personality: "generic", auth: "basic", more: []service.Behaviour{vmedia.WantsCredentials, service.PhantomSystem}},
}

func (d driven) name() string {
	words := []string{d.personality, d.auth}
	for _, b := range d.more {
		words = append(words, string(b))
	}
	return strings.Join(words, ", ")
}

func (d driven) is(t *testing.T) service.Personality {
	p := redfish.Personality(t, d.personality, d.more...)
	p.Model = cmp.Or(d.model, p.Model)
	p.Behaviours = slices.DeleteFunc(p.Behaviours, func(b service.Behaviour) bool { return slices.Contains(d.less, b) })
	return p
}

// TestSushy drives the lab's controllers with python3-sushy, Ironic's own Redfish client, so that Ingot's client and
// the lab's controllers do not share one misunderstanding. What vendors do otherwise, and Ironic knows, sushy must meet
// just where the lab does so: sushyMeets.
func TestSushy(t *testing.T) {
	tree := unpack(t, "python3-sushy")
	iso := make([]byte, 1<<20)
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".iso") {
			http.ServeContent(w, r, "x.iso", time.Unix(1e9, 0), bytes.NewReader(iso))
			return
		}
		_, _ = w.Write(update.File(update.BIOS, "99.1")) // a controller that went away misses it
	}))
	t.Cleanup(files.Close)
	for _, d := range sushyDrives {
		t.Run(d.name(), func(t *testing.T) {
			t.Parallel()
			sushy(t, d, tree, files.URL)
		})
	}
}

// start is one of the machine: its device, and whether a disc was in the drive.
type start struct {
	device bmc.Device
	disc   bool
}

func sushy(t *testing.T, d driven, tree debian.Tree, files string) {
	const mac = "52:54:00:aa:bb:01"
	p := d.is(t)
	b := redfish.Start(t, p, func(c *service.Config) {
		c.MACs, c.Down = []string{mac}, time.Second
	})
	var mu sync.Mutex
	var starts []start
	b.Machine.Started = func(boot bmc.Boot) {
		mu.Lock()
		defer mu.Unlock()
		starts = append(starts, start{boot.Device, b.Machine.Medium(0) != nil})
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, b.Service.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), debian.Python, "testdata/redfish/main.py", b.Service.URL(), "admin",
		redfish.Password, ca, d.auth, files, files+"/token/node.iso")
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
		// Starts is why the machine started, Met what sushy met.
		Starts, Met []string
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	boots, macs, version := 6, []string{mac}, "99.1"
	if p.Has(service.OnceOnly) {
		boots = 3
	}
	if p.Has(service.NoEthernet) {
		macs = nil
	}
	if slices.Contains(got.Met, "no_update") {
		version = b.Service.Firmware().Version(update.BIOS)
	}
	if got.UUID != redfish.UUID.String() || got.Manufacturer != p.Manufacturer || got.Firmware != p.Firmware ||
		!strings.HasSuffix(got.BIOSVersion, version) || len(got.Power) < 3 || len(got.Boot) != boots+1 ||
		!slices.Equal(got.MACs, macs) || got.Processors < 8 || got.MemoryGiB < 64 || len(got.Disks) == 0 ||
		len(got.Subscription) != 2 || got.Subscription[1] != "sushy" || got.Kinds != 5 ||
		len(got.BIOS) != 1 || got.BIOS[0] != "BootRetries" || got.SecureBoot == p.Has(service.SecureBootLicence) ||
		!got.Refused || !got.Missing || !got.Denied {
		t.Errorf("sushy found %+v", got)
	}
	if n := b.Service.Sessions(); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
	if b.Machine.Medium(0) != nil {
		t.Error("an image is left in the drive")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(starts) != len(got.Starts) {
		t.Fatalf("the machine started with %v, want %q", starts, got.Starts)
	}
	for i, why := range got.Starts {
		switch at := starts[i]; {
		case why != "" && !at.disc:
			t.Errorf("start %d (%s) was without a disc", i, why)
		case why == "media" && at.device == bmc.Default:
			got.Met = append(got.Met, "own_drive")
		case why != "" && at.device != bmc.CDROM:
			t.Errorf("start %d (%s) was from %q", i, why, at.device)
		}
	}
	for _, m := range sushyMeets {
		if is, want := slices.Contains(got.Met, m.word), m.at(p); is != want {
			t.Errorf("sushy met %s: %v, want %v: the lab's controller and Ironic's client disagree", m.word, is, want)
		}
	}
	for _, word := range got.Met {
		if !slices.ContainsFunc(sushyMeets, func(m meeting) bool { return m.word == word }) {
			t.Errorf("sushy met %q, which is in no row", word)
		}
	}
}
