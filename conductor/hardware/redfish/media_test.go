package redfish

import (
	"bytes"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stmcginnis/gofish/schemas"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/controller"
	"github.com/ingot-metal/ingot/conductor/node"
	kit "github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/vmedia"
)

// images serves two discs, whose addresses are secrets as those of boot images, and nothing else.
func images(t *testing.T) (first, second string) {
	t.Helper()
	s := httptest.NewServer(twoDiscs)
	t.Cleanup(s.Close)
	return s.URL + "/boot-image/canary1/a.iso", s.URL + "/boot-image/canary2/b.iso"
}

// insert inserts an image from a server of which no more is known.
func insert(t *testing.T, d *Driver, address string) error {
	t.Helper()
	checked, err := d.InsertMedia(t.Context(), power.BootImage{Address: address})
	if checked {
		t.Error("the controller checks certificates of HTTP")
	}
	return err
}

var twoDiscs = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	content, ok := map[string]string{"/boot-image/canary1/a.iso": "first",
		"/boot-image/canary2/b.iso": "second"}[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	http.ServeContent(w, r, "", time.Unix(1e9, 0), bytes.NewReader([]byte(content+strings.Repeat("\x00", 4096))))
})

// TestMediaOverTLS: a controller that can check certificates is given that of the authority, once, and checks; with
// another one's it takes no image. What can't check is not believed to.
func TestMediaOverTLS(t *testing.T) {
	s := httptest.NewTLSServer(twoDiscs)
	t.Cleanup(s.Close)
	address := s.URL + "/boot-image/canary1/a.iso"
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	for name, checks := range map[string]bool{"generic": true, "dell-idrac9": true, "dell-idrac10": true,
		"hpe-ilo6": true, "hpe-ilo5": false, "lenovo-xcc": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, name))
			d := b.open(b.pool, nil).(*Driver)
			if checks {
				other := b.Service.CertificatePEM()
				_, err := d.InsertMedia(t.Context(), power.BootImage{Address: address, Authority: string(other)})
				if power.KindOf(err) != power.Refused || !strings.Contains(err.Error(), "it checks the certificate") ||
					b.disc() != "" {
					t.Errorf("with another authority's certificate: %v, disc %q", err, b.disc())
				}
			}
			for range 2 {
				got, err := d.InsertMedia(t.Context(), power.BootImage{Address: address, Authority: authority})
				if err != nil || got != checks || b.disc() != "first" {
					t.Errorf("checked %t, %v, disc %q", got, err, b.disc())
				}
			}
			all, err := d.certificates(t)
			if err != nil || len(all) != map[bool]int{true: 2}[checks] {
				t.Errorf("%d certificates, %v", len(all), err)
			}
		})
	}
}

// certificates are those that the controller's drives trust.
func (d *Driver) certificates(t *testing.T) (all []string, err error) {
	t.Helper()
	err = d.on(t.Context(), "read", func(sys *controller.System) error {
		drives, err := d.drives(t.Context(), sys)
		for _, v := range drives {
			var c struct{ Members schemas.Links }
			if v.Certificates == "" {
				continue
			}
			if _, err := d.c.Read(t.Context(), string(v.Certificates), &c); err != nil {
				return err
			}
			for _, m := range c.Members {
				all = append(all, string(m))
			}
		}
		return err
	})
	return all, err
}

// disc is the beginning of the disc in the drives of a machine; "" when all are empty.
func (b *bench) disc() string {
	b.Helper()
	for drive := range 4 {
		if m := b.Machine.Medium(drive); m != nil {
			text := make([]byte, 16)
			if _, err := m.ReadAt(text, 0); err != nil {
				b.Fatal(err)
			}
			return strings.TrimRight(string(text), "\x00")
		}
	}
	return ""
}

// TestMedia: every personality's machine boots from a disc that is put in, and another one takes its place; what is
// taken out is out, and taking out nothing is no error.
func TestMedia(t *testing.T) {
	first, second := images(t)
	personalities := map[string][]service.Behaviour{"generic": nil}
	for _, p := range service.Personalities() {
		personalities[p] = nil
	}
	for _, does := range []service.Behaviour{vmedia.WantsProtocol, vmedia.WantsMethod, vmedia.WantsCredentials,
		vmedia.NoInserted, vmedia.OnlyImage, vmedia.EjectWantsBody, vmedia.InternalSlots, vmedia.WantsInserted,
		vmedia.StaysInserted, vmedia.NameStays, vmedia.PlainURL, vmedia.OnlyDVD, service.NoIfMatch} {
		personalities["generic, "+string(does)] = []service.Behaviour{does}
	}
	personalities["dell-idrac9, without ManagedBy"] = []service.Behaviour{service.NoManagedBy}
	for name, more := range personalities {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base, _, _ := strings.Cut(name, ",")
			b := newBench(t, kit.Personality(t, base, more...))
			d := b.open(b.pool, nil).(*Driver)
			check := func(err error, want string) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				if got := b.disc(); got != want {
					t.Fatalf("the disc is %q, want %q", got, want)
				}
			}
			check(d.EjectMedia(t.Context()), "")
			check(insert(t, d, first), "first")
			check(insert(t, d, second), "second")
			check(insert(t, d, second), "second")
			check(d.SetBoot(t.Context(), power.Boot{Device: power.BootCDROM}), "second")
			check(d.SetPower(t.Context(), power.TurnOn), "second")
			if at := b.Machine.Boots(); len(at) != 1 || at[0].Device != bmc.CDROM {
				t.Errorf("the machine started with %v", at)
			}
			check(d.EjectMedia(t.Context()), "")
			check(d.EjectMedia(t.Context()), "")
			if strings.Contains(b.log.String(), "canary") {
				t.Error("the log has an image's address")
			}
		})
	}
}

// TestMediaOfAnother: where one service has several machines and does not say whose a manager is, no drive is touched:
// it may be another machine's.
func TestMediaOfAnother(t *testing.T) {
	first, _ := images(t)
	b := newBench(t, kit.Personality(t, "dell-idrac9", service.NoManagedBy, service.TwoSystems))
	d := b.open(b.pool, map[string]any{"redfish_system_id": "/redfish/v1/Systems/System.Embedded.1"}).(*Driver)
	err := insert(t, d, first)
	if power.KindOf(err) != power.Unsupported || !strings.Contains(err.Error(), "ManagedBy") {
		t.Errorf("insert: %v", err)
	}
	if err := d.EjectMedia(t.Context()); err != nil {
		t.Errorf("eject: %v", err)
	}
	if got := b.disc(); got != "" {
		t.Errorf("the disc is %q", got)
	}
}

// TestMediaRefused: a controller that can't insert an image says why, without the image's address, and what to do.
func TestMediaRefused(t *testing.T) {
	first, _ := images(t)
	for name, tt := range map[string]struct {
		does  service.Behaviour
		image string
		kind  power.Kind
		want  string
	}{
		"licence": {does: vmedia.NoMediaLicence, image: first, kind: power.Unsupported, want: "licence"},
		"query": {does: vmedia.PlainURL, image: first + "?canary=1&b=2", kind: power.Refused,
			want: "is not a format that"},
		"IPv6": {does: vmedia.NoIPv6, image: "http://[::1]:1/canary.iso", kind: power.Refused,
			want: "[::1]:1/..."},
		"no such image": {image: first + "canary", kind: power.Refused, want: "/..."},
		"no server":     {image: "http://127.0.0.1:1/canary.iso", kind: power.Refused, want: "127.0.0.1:1/..."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, "generic", tt.does))
			err := insert(t, b.open(b.pool, nil).(*Driver), tt.image)
			if power.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) ||
				strings.Contains(err.Error()+b.log.String(), "canary") {
				t.Errorf("%v, want %q of kind %q", err, tt.want, tt.kind)
			}
			if got := b.disc(); got != "" {
				t.Errorf("the disc is %q", got)
			}
		})
	}
}

// TestMediaWithQuery: an address with & reaches the server of the image as it was given.
func TestMediaWithQuery(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "a=1&b=%26%3c" {
			http.Error(w, r.URL.RawQuery, http.StatusNotFound)
			return
		}
		r.URL.Path = "/boot-image/canary1/a.iso"
		twoDiscs(w, r)
	}))
	t.Cleanup(s.Close)
	b := newBench(t, kit.Personality(t, "generic"))
	err := insert(t, b.open(b.pool, nil).(*Driver), s.URL+"/x.iso?a=1&b=%26%3c")
	if err != nil || b.disc() != "first" {
		t.Errorf("%v, the disc is %q", err, b.disc())
	}
}

// TestManagementMedia: the API's calls reach the drives by Ironic's names, and show no secret.
func TestManagementMedia(t *testing.T) {
	first, second := images(t)
	b := newBench(t, kit.Personality(t, "hpe-ilo6"))
	m := NewManagement(b.pool, "", time.Minute, slog.New(slog.DiscardHandler))
	n := &node.Node{Driver: "redfish", DriverInfo: b.Info}
	list := func() (full []hardware.Media) {
		t.Helper()
		all, err := m.VirtualMedia(t.Context(), n)
		if err != nil || len(all) != 2 {
			t.Fatalf("drives %v, %v", all, err)
		}
		for _, v := range all {
			if v.Inserted {
				full = append(full, v)
			}
		}
		return full
	}
	for _, url := range []string{first, second} {
		if err := m.AttachMedia(t.Context(), n, "cdrom", url); err != nil {
			t.Fatal(err)
		}
	}
	if full := list(); len(full) != 1 || full[0].Types[0] != "CD" ||
		!strings.HasSuffix(full[0].URL, "/boot-image/...") {
		t.Errorf("with a disc: %v", full)
	}
	if err := m.DetachMedia(t.Context(), n, []string{"floppy", "disk"}); err != nil || len(list()) != 1 {
		t.Errorf("after other devices: %v, %v", list(), err)
	}
	if err := m.DetachMedia(t.Context(), n, nil); err != nil || len(list()) != 0 {
		t.Errorf("after all devices: %v, %v", list(), err)
	}
}
