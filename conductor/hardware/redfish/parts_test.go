package redfish

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/node"
	kit "github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
)

const mac1, mac2 = "52:54:00:aa:bb:01", "52:54:00:aa:bb:02"

func withCards(c *service.Config) { c.MACs = []string{strings.ToUpper(mac1), mac2} }

func (b *bench) management() *Management { return NewManagement(b.pool, "", time.Minute, nil) }

func (b *bench) node() *node.Node {
	return &node.Node{UUID: "1", Driver: "redfish", DriverInfo: b.Info}
}

// inspected is the result of an inspection.
type inspected struct {
	Inventory struct {
		CPU struct {
			Count, SocketCount int
			Architecture       string
		}
		Memory     struct{ PhysicalMB int }
		Disks      []struct{ Serial, WWN, Name string }
		Interfaces []struct {
			MAC string `json:"mac_address"`
		}
		Boot map[string]any
	}
	RootDisk struct{ Size int64 } `json:"root_disk"`
}

func (b *bench) inspect(ctx context.Context) (string, error) {
	step := NewInspect(b.management()).Steps(b.node())[0]
	out, err := step.Run(ctx, hardware.Call{Node: b.node()})
	return string(out.Found), err
}

// Every personality lists its processors, memory, disks and network cards, and its vendor.
func TestInspectionOfEveryPersonality(t *testing.T) {
	for _, name := range service.Personalities() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, name), withCards)
			said, err := b.inspect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			said = strings.NewReplacer("physical_mb", "PhysicalMB", "socket_count", "SocketCount").Replace(said)
			var got inspected
			if err := json.Unmarshal([]byte(said), &got); err != nil {
				t.Fatal(err)
			}
			i := got.Inventory
			arch := map[bool]string{true: "aarch64", false: "x86_64"}[name == "openbmc"]
			if i.CPU.Count < 8 || i.CPU.SocketCount < 1 || i.CPU.Architecture != arch || i.Memory.PhysicalMB < 64<<10 ||
				len(i.Disks) == 0 || i.Disks[0].Serial != "CANARY-SERIAL-1" || i.Disks[0].WWN != "0x5000c50000000001" ||
				got.RootDisk.Size < 200<<30 || len(i.Interfaces) != 2 || i.Interfaces[0].MAC != mac1 ||
				i.Boot["secure_boot"] != false || i.Boot["current_boot_mode"] != "bios" && name != "hpe-gen9" {
				t.Errorf("found %s", said)
			}
			d := b.open(b.pool, nil)
			if vendor, err := d.(power.VendorTeller).Vendor(t.Context()); err != nil ||
				vendor != kit.Personality(t, name).Manufacturer {
				t.Errorf("Vendor = %q, %v", vendor, err)
			}
		})
	}
}

// The lamps of every personality can be listed, read, switched and read again.
func TestIndicators(t *testing.T) {
	for _, name := range service.Personalities() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, name))
			m, n := b.management(), b.node()
			lamps, err := m.Indicators(t.Context(), n, "")
			if err != nil || len(lamps) < 3 {
				t.Fatalf("Indicators = %v, %v", lamps, err)
			}
			for _, l := range lamps {
				for _, state := range l.States {
					if err := m.SetIndicator(t.Context(), n, l.Component, l.Name, strings.ToUpper(state)); err != nil {
						t.Errorf("SetIndicator(%s@%s, %s): %v", l.Name, l.Component, state, err)
					}
					if got, err := m.Indicator(t.Context(), n, l.Component, l.Name); got != state || err != nil {
						t.Errorf("Indicator(%s@%s) = %q, %v, want %s", l.Name, l.Component, got, err, state)
					}
				}
			}
			one, err := m.Indicators(t.Context(), n, "chassis")
			if err != nil || len(one) != 1 || one[0].Component != "chassis" {
				t.Errorf("Indicators of the chassis = %v, %v", one, err)
			}
			for _, bad := range [][3]string{{"chassis", "9", "on"}, {"roof", "1", "on"}, {"chassis", "1", "purple"}} {
				if err := m.SetIndicator(t.Context(), n, bad[0], bad[1], bad[2]); err == nil {
					t.Errorf("SetIndicator(%v) works", bad)
				}
			}
		})
	}
}

// hostile are the ways in which a controller attacks those who read much of it.
var hostile = []service.Behaviour{service.HTML, service.Endless, service.ManyMembers, service.LinksInLoops,
	service.EscapesInNames, service.DeepAnswers, service.LeadsElsewhere}

// A hostile controller does not keep an inspection, makes it use no more memory and requests than are set, and writes
// nothing to a terminal.
func TestHostileInspection(t *testing.T) {
	for _, behaviour := range hostile {
		t.Run(string(behaviour), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Personality(t, "generic", behaviour), withCards,
				func(c *service.Config) { c.Elsewhere = "127.0.0.1:1" })
			begun := time.Now()
			found, err := b.inspect(t.Context())
			mild := slices.Contains([]service.Behaviour{service.LinksInLoops, service.EscapesInNames}, behaviour)
			if mild && err != nil || !mild && power.KindOf(err) != power.Refused && power.KindOf(err) != power.Config {
				t.Errorf("inspection: %v", err)
			}
			_, lerr := b.management().Indicators(t.Context(), b.node(), "")
			for _, said := range []string{found, errorText(err), errorText(lerr)} {
				if strings.ContainsAny(said, "\x1b\x07\u202e") || strings.Contains(said, `\u001b`) ||
					len(said) > 1<<20 || strings.Contains(said, kit.Password) {
					t.Errorf("it says %.300q", said)
				}
			}
			if n := b.Service.Requests(); n > 900 {
				t.Errorf("%d requests", n)
			}
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestInspectionWithoutCards: a controller that shows no network cards does not fail the inspection.
func TestInspectionWithoutCards(t *testing.T) {
	said, err := newBench(t, kit.Personality(t, "generic", service.NoEthernet), withCards).inspect(t.Context())
	if err != nil || !strings.Contains(said, "physical_mb") || strings.Contains(strings.ToLower(said), mac2) {
		t.Errorf("%v: %s", err, said)
	}
}
