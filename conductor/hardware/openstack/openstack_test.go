package openstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/hardware/power/powertest"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit/cloudsim"
)

// service makes a Service for a cloud that is called lab.
func service(t *testing.T, c *cloudsim.Cloud) *Service {
	t.Helper()
	s := New(c.File(t, "lab"))
	s.poll = 5 * time.Millisecond
	return s
}

func info(way, server string) power.Info {
	i := power.Info{"openstack_cloud": "lab", "openstack_server": server, "openstack_boot": way}
	if way != ByMetadata {
		i["openstack_boot_image"] = cloudsim.IPXE
	}
	return i
}

func open(t *testing.T, s *Service, i power.Info) power.Driver {
	t.Helper()
	d, err := s.Open(i, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestSuite(t *testing.T) {
	for _, way := range Ways {
		for name, volume := range map[string]bool{"image": false, "volume": true} {
			t.Run(way+" "+name, func(t *testing.T) {
				powertest.Run(t, func(t *testing.T) powertest.Subject {
					c := cloudsim.New(t)
					id := c.Add(func(s *cloudsim.Server) {
						if volume {
							s.Image = ""
						}
					})
					s := service(t, c)
					return powertest.Subject{Packets: true, GUID: id,
						Open: func(t *testing.T) power.Driver { return open(t, s, info(way, id)) }}
				})
			})
		}
	}
}

// reach waits until the power is in a state.
func reach(t *testing.T, d power.Driver, want power.State) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		got, err := d.Power(t.Context())
		if err == nil && got == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the power is %q, %v, want %q", got, err, want)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func do(t *testing.T, d power.Driver, a power.Action, want power.State) {
	t.Helper()
	if err := d.SetPower(t.Context(), a); err != nil {
		t.Fatalf("SetPower(%s): %v", a, err)
	}
	reach(t, d, want)
}

// TestWaysBootTheNetwork: a life as the engine drives it, and what the server booted in it.
func TestWaysBootTheNetwork(t *testing.T) {
	disk, ipxe := "disk "+cloudsim.Image, "disk "+cloudsim.IPXE
	rescue := "rescue " + cloudsim.IPXE
	for way, want := range map[string][]string{
		ByMetadata: {"network", disk, "network", disk, disk},
		// Between a rescue and the stop after it the disk boots.
		ByRescue: {rescue, disk, disk, rescue, disk, disk},
		// A server that is off is started and stopped again when it is rebuilt.
		ByRebuild: {ipxe, ipxe, ipxe, ipxe, ipxe, ipxe},
	} {
		t.Run(way, func(t *testing.T) {
			c := cloudsim.New(t)
			id := c.Add(func(s *cloudsim.Server) { s.Metadata["theirs"] = "kept" })
			d := open(t, service(t, c), info(way, id))
			set := func(b power.Boot) {
				t.Helper()
				if err := d.SetBoot(t.Context(), b); err != nil {
					t.Fatalf("SetBoot(%+v): %v", b, err)
				}
			}
			set(power.Boot{Device: power.BootPXE}) // a deployment
			do(t, d, power.TurnOn, power.On)
			set(power.Boot{Device: power.BootDisk, Persistent: true})
			do(t, d, power.TurnOff, power.Off)
			do(t, d, power.TurnOn, power.On)
			set(power.Boot{Device: power.BootPXE}) // a restart into the ramdisk
			do(t, d, power.Reset, power.On)
			set(power.Boot{Device: power.BootDisk, Persistent: true})
			do(t, d, power.Reset, power.On)
			do(t, d, power.Cycle, power.On)
			s := c.Server(id)
			for end := time.Now().Add(30 * time.Second); s.Task != "" && time.Now().Before(end); s = c.Server(id) {
				time.Sleep(2 * time.Millisecond) // the server is on all the while
			}
			if !slices.Equal(s.Boots, want) {
				t.Errorf("it booted %q, want %q", s.Boots, want)
			}
			if s.Metadata["theirs"] != "kept" {
				t.Errorf("metadata are %v, and others' are gone", s.Metadata)
			}
		})
	}
}

// TestRepeatedAfterDeath: a call that ends at any request is made again, and the server is on as it was meant to be.
func TestRepeatedAfterDeath(t *testing.T) {
	for _, way := range Ways {
		t.Run(way, func(t *testing.T) {
			for most := 1; ; most++ {
				c := cloudsim.New(t)
				id := c.Add(nil)
				s := service(t, c)
				first := open(t, s, info(way, id))
				if err := first.SetBoot(t.Context(), power.Boot{Device: power.BootPXE}); err != nil {
					t.Fatal(err)
				}
				asked, dead := 0, errors.New("dead")
				err := power.Checked(open(t, s, info(way, id)), func() error {
					if asked++; asked > most {
						return dead
					}
					return nil
				}, nil).SetPower(t.Context(), power.TurnOn)
				if err == nil {
					if most < 3 {
						t.Fatalf("only %d requests", most)
					}
					return
				}
				other := open(t, service(t, c), info(way, id)) // of another conductor
				do(t, other, power.TurnOn, power.On)
				boots := c.Server(id).Boots
				last := boots[len(boots)-1]
				if want := map[string]string{ByMetadata: "network", ByRescue: "rescue " + cloudsim.IPXE,
					ByRebuild: "disk " + cloudsim.IPXE}[way]; last != want {
					t.Errorf("dead after %d checks: it booted %q, want %q at last", most, boots, want)
				}
			}
		})
	}
}

// TestHundredsAreListed: a round over 500 machines takes one login and a handful of requests.
func TestHundredsAreListed(t *testing.T) {
	c := cloudsim.New(t)
	s := service(t, c)
	var all []power.Driver
	for i := range 500 {
		id := c.Add(func(s *cloudsim.Server) {
			if i%2 == 0 {
				s.Status, s.Power = "ACTIVE", 1
			}
		})
		all = append(all, open(t, s, info(ByMetadata, id)))
	}
	var wg sync.WaitGroup
	work := make(chan int)
	for range 16 {
		wg.Go(func() {
			for i := range work {
				want := map[bool]power.State{true: power.On, false: power.Off}[i%2 == 0]
				if got, err := all[i].Power(t.Context()); err != nil || got != want {
					t.Errorf("machine %d: %q, %v; want %q", i, got, err, want)
				}
			}
		})
	}
	began := time.Now()
	for i := range all {
		work <- i
	}
	close(work)
	wg.Wait()
	// Login, versions, and five pages and an empty one in each listing.
	most := 2 + 6*(1+int(time.Since(began)/fresh))
	if r := c.Requests(); len(r) > most || !slices.Contains(r, "POST /identity/v3/auth/tokens") {
		t.Errorf("%d requests, want at most %d: %q", len(r), most, r)
	}
	c.Revoke()
	if err := all[0].SetPower(t.Context(), power.TurnOff); err != nil {
		t.Errorf("after the token was revoked: %v", err)
	}
	reach(t, all[0], power.Off) // not what the listing says, which is older
	if got, err := all[2].Power(t.Context()); err != nil || got != power.On {
		t.Errorf("another machine is %q, %v", got, err)
	}
}

// TestTasksAreWaitedFor: an action of another client is let come to its end, within the time of the call.
func TestTasksAreWaitedFor(t *testing.T) {
	c := cloudsim.New(t)
	id := c.Add(func(s *cloudsim.Server) { s.Status, s.Power, s.Task = "ACTIVE", 1, "powering-off" })
	d := open(t, service(t, c), info(ByMetadata, id))
	ctx, cancel := context.WithTimeout(t.Context(), margin+500*time.Millisecond)
	defer cancel()
	err := d.SetPower(ctx, power.TurnOn)
	if power.KindOf(err) != power.Busy || !strings.Contains(err.Error(), `"powering-off"`) {
		t.Errorf("SetPower of a server with a task: %v", err)
	}
	for _, r := range c.Requests() {
		if strings.HasSuffix(r, "/action") {
			t.Errorf("an action was sent nevertheless: %s", r)
		}
	}
	done := make(chan error, 1)
	go func() { done <- d.SetPower(t.Context(), power.TurnOn) }()
	c.Edit(id, func(s *cloudsim.Server) { s.Status, s.Power, s.Task = "SHUTOFF", 4, "" })
	if err := <-done; err != nil {
		t.Error(err)
	}
	reach(t, d, power.On)
}

func TestPowerStates(t *testing.T) {
	for _, test := range []struct {
		status, task string
		power        int
		want         power.State
		kind         power.Kind
	}{
		{"ACTIVE", "", 1, power.On, ""},
		{"ACTIVE", "", 4, power.Off, ""}, // the guest has turned itself off, and Nova has not noticed it yet
		{"ACTIVE", "powering-off", 1, power.On, ""},
		{"ACTIVE", "image_snapshot", 1, power.On, ""},
		{"SHUTOFF", "image_snapshot", 4, power.Off, ""},
		{"SHUTOFF", "powering-on", 4, power.Unknown, ""},
		{"SHUTOFF", "rescuing", 4, power.Unknown, ""},
		{"PAUSED", "", 3, power.On, ""},
		{"SUSPENDED", "", 7, power.Off, ""},
		{"SHELVED_OFFLOADED", "", 4, power.Off, ""},
		{"RESCUE", "", 1, power.On, ""},
		{"RESCUE", "", 4, power.Off, ""},
		{"ERROR", "", 0, power.Failed, ""},
		{"BUILD", "spawning", 0, power.Unknown, power.Busy},
		{"SOFT_DELETED", "", 0, power.Unknown, power.Config},
	} {
		c := cloudsim.New(t)
		id := c.Add(func(s *cloudsim.Server) { s.Status, s.Task, s.Power = test.status, test.task, test.power })
		got, err := open(t, service(t, c), info(ByMetadata, id)).Power(t.Context())
		if got != test.want || power.KindOf(err) != test.kind {
			t.Errorf("%s %s %d: %q, %v; want %q, kind %q", test.status, test.task, test.power, got, err, test.want,
				test.kind)
		}
	}
}

// TestGuestThatTurnedItselfOff is started again whatever Nova believes.
func TestGuestThatTurnedItselfOff(t *testing.T) {
	for status, want := range map[string]string{"ACTIVE": "disk " + cloudsim.Image, "RESCUE": "disk " + cloudsim.Image,
		"ERROR": "disk " + cloudsim.Image} {
		c := cloudsim.New(t)
		id := c.Add(func(s *cloudsim.Server) { s.Status, s.Power = status, 4 })
		do(t, open(t, service(t, c), info(ByRescue, id)), power.TurnOn, power.On)
		if b := c.Server(id).Boots; len(b) != 1 || b[0] != want {
			t.Errorf("%s: it booted %q", status, b)
		}
	}
}

// TestOldNova: what its version of the API lacks is refused before anything is done.
func TestOldNova(t *testing.T) {
	for way, minor := range map[string]int{ByRescue: 86, ByRebuild: 92} {
		c := cloudsim.New(t)
		c.Newest(minor)
		id := c.Add(func(s *cloudsim.Server) { s.Image = "" })
		d := open(t, service(t, c), info(way, id))
		err := d.SetBoot(t.Context(), power.Boot{Device: power.BootPXE})
		if power.KindOf(err) != power.Unsupported || !strings.Contains(err.Error(), fmt.Sprintf("has 2.%d", minor)) {
			t.Errorf("%s with 2.%d: %v", way, minor, err)
		}
		if len(c.Server(id).Metadata) > 0 {
			t.Errorf("%s: the choice was kept", way)
		}
		c.Newest(95) // it is upgraded
		c.Edit(id, func(s *cloudsim.Server) { s.Image = cloudsim.Image })
		if err := d.SetBoot(t.Context(), power.Boot{Device: power.BootPXE}); err != nil {
			t.Errorf("%s of a server with an image: %v", way, err)
		}
	}
	c := cloudsim.New(t)
	id := c.Add(nil)
	d := open(t, service(t, c), info(ByMetadata, id))
	reach(t, d, power.Off)
	c.Newest(60) // it is another now
	if _, err := d.Boot(t.Context()); power.KindOf(err) != power.Busy {
		t.Errorf("after Nova became older: %v", err)
	}
	if _, err := d.Boot(t.Context()); err != nil {
		t.Errorf("the version is not negotiated again: %v", err)
	}
}

func TestErrors(t *testing.T) {
	c := cloudsim.New(t)
	s := service(t, c)
	id := c.Add(nil)
	d := open(t, s, info(ByRescue, id))
	want := func(what string, err error, kind power.Kind, words ...string) {
		t.Helper()
		if power.KindOf(err) != kind {
			t.Errorf("%s: kind %q, want %q: %v", what, power.KindOf(err), kind, err)
			return
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v; want %q", what, err, w)
			}
		}
		if strings.Contains(err.Error(), cloudsim.Password) || strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("%s: %q", what, err)
		}
	}
	reach(t, d, power.Off)

	c.Edit(id, func(s *cloudsim.Server) { s.Locked = true })
	want("a locked server", d.SetPower(t.Context(), power.TurnOn), power.Refused, "is locked", "server unlock "+id)
	c.Edit(id, func(s *cloudsim.Server) { s.Locked, s.Status, s.Power = false, "PAUSED", 3 })
	want("a paused server", d.SetPower(t.Context(), power.TurnOff), power.Refused, "vm_state paused", "server show")
	c.Edit(id, func(s *cloudsim.Server) { s.Status, s.Power = "RESCUE", 1 })
	if err := d.SetBoot(t.Context(), power.Boot{Device: power.BootPXE}); err != nil {
		t.Fatalf("a choice in rescue: %v", err)
	}
	do(t, d, power.TurnOff, power.Off)
	if m := c.Server(id).Metadata; m[choiceKey] != "pxe" {
		t.Errorf("a choice in rescue is not kept after it: %v", m)
	}

	lost := info(ByRescue, id)
	lost["openstack_boot_image"] = "44444444-4444-4444-8444-444444444444"
	c.Edit(id, func(s *cloudsim.Server) { s.Status, s.Power = "SHUTOFF", 4 })
	if err := d.SetBoot(t.Context(), power.Boot{Device: power.BootPXE}); err != nil {
		t.Fatal(err)
	}
	want("an image that is not there", open(t, s, lost).SetPower(t.Context(), power.TurnOn), power.Refused,
		"not supported", lost["openstack_boot_image"].(string), "check openstack_boot_image")

	answer := func(status int) { c.Fail(func(string, string) int { return status }) }
	for status, kind := range map[int]power.Kind{403: power.Refused, 429: power.Busy, 503: power.Unreachable,
		400: power.Refused} {
		answer(status)
		want(fmt.Sprint(status), d.SetPower(t.Context(), power.TurnOn), kind, fmt.Sprint(status), id, `of cloud lab`)
	}
	c.Fail(nil)
	c.Remove(id)
	_, err := d.Power(t.Context())
	want("a server that is gone", err, power.Config, "was deleted", id)

	c.SetPassword("another one")
	_, err = d.Power(t.Context())
	want("a wrong password", err, power.Auth, "Keystone refuses", "clouds.yaml", `"lab"`)
	c.Requests()
	for range 20 {
		_, err = d.Power(t.Context())
	}
	want("a wrong password again", err, power.Auth)
	for _, r := range c.Requests() {
		if strings.HasSuffix(r, "/auth/tokens") {
			t.Error("the refused login was repeated at once, which locks users")
		}
	}

	_, err = open(t, New(c.File(t, "other")), info(ByRescue, id)).Power(t.Context())
	want("no such cloud", err, power.Config, "no cloud of this name")
	_, err = open(t, New("/nonexistent/clouds.yaml"), info(ByRescue, id)).Power(t.Context())
	want("no file", err, power.Config, "can't be read", "/nonexistent/clouds.yaml")
	bad := filepath.Join(t.TempDir(), "clouds.yaml")
	if err := os.WriteFile(bad, []byte("clouds: {lab: "+cloudsim.Password+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = open(t, New(bad), info(ByRescue, id)).Power(t.Context())
	want("a file that is not one", err, power.Config, "not one that OpenStack's client reads")

	down := cloudsim.New(t)
	file := down.File(t, "lab")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b = []byte(strings.ReplaceAll(string(b), down.URL, "http://127.0.0.1:1"))
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = open(t, New(file), info(ByRescue, id)).Power(t.Context())
	want("a cloud that is down", err, power.Unreachable, "Keystone", "refused")
}

func TestDriverInfo(t *testing.T) {
	id := "7cfb29e9-39d3-4f59-bc2c-a6e19cb3aa1c"
	with := func(pairs ...any) power.Info {
		i := info(ByRescue, id)
		for n := 0; n < len(pairs); n += 2 {
			i[pairs[n].(string)] = pairs[n+1]
		}
		return i
	}
	for want, i := range map[string]power.Info{
		"openstack_server is missing":               {},
		"openstack_cloud does not name":             with("openstack_cloud", ""),
		"openstack_server is not the UUID":          with("openstack_server", "../flavors"),
		"openstack_boot is not one of metadata, re": with("openstack_boot", "pxe"),
		"openstack_boot_image is missing":           with("openstack_boot_image", nil),
		"openstack_boot_image is not the UUID":      with("openstack_boot_image", "ipxe"),
		"openstack_boot_image is not for":           with("openstack_boot", ByMetadata),
		"openstack_cloud is not a text":             with("openstack_cloud", 7),
	} {
		if _, err := New("clouds.yaml").Open(i, nil); power.KindOf(err) != power.Config ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("Open(%v) = %v, want %q", i, err, want)
		}
	}
	if _, err := New("").Open(with(), nil); power.KindOf(err) != power.Config ||
		!strings.Contains(err.Error(), "openstack.clouds_file") {
		t.Errorf("without a file of clouds: %v", err)
	}
	s := New("clouds.yaml")
	for n := range 10 * maxClouds { // names that somebody makes up
		open(t, s, with("openstack_cloud", fmt.Sprint("cloud", n)))
	}
	if len(s.clouds) > maxClouds {
		t.Errorf("%d clouds are remembered", len(s.clouds))
	}
}

func TestInspect(t *testing.T) {
	for _, newest := range []int{46, 95} {
		c := cloudsim.New(t)
		c.Newest(newest)
		id := c.Add(nil)
		s := service(t, c)
		step := NewInspect(s, nil).Steps(nil)[0]
		n := &node.Node{DriverInfo: info(ByMetadata, id), Properties: map[string]any{"cpu_arch": "aarch64"}}
		if _, err := step.Run(t.Context(), hardware.Call{Node: n}); power.KindOf(err) != power.Refused ||
			!strings.Contains(err.Error(), "no port") {
			t.Errorf("without ports: %v", err)
		}
		for _, mac := range []string{"FA:16:3E:00:00:02", "fa:16:3e:00:00:01", "no address"} {
			c.AddNet("ports", map[string]any{"device_id": id, "mac_address": mac, "status": "ACTIVE"})
		}
		c.AddNet("ports", map[string]any{"device_id": "another", "mac_address": "fa:16:3e:00:00:03"})
		out, err := step.Run(t.Context(), hardware.Call{Node: n})
		if err != nil {
			t.Fatal(err)
		}
		var doc struct {
			Inventory struct {
				CPU struct {
					Count        int
					Architecture string
				}
				Memory struct {
					MB int `json:"physical_mb"`
				}
				Disks      []struct{ Size int64 }
				Interfaces []struct {
					MAC string `json:"mac_address"`
				}
			}
		}
		if err := json.Unmarshal(out.Found, &doc); err != nil {
			t.Fatal(err)
		}
		i := doc.Inventory
		if i.CPU.Count != 4 || i.CPU.Architecture != "aarch64" || i.Memory.MB != 8192 || len(i.Disks) != 1 ||
			i.Disks[0].Size != 20<<30 || len(i.Interfaces) != 2 || i.Interfaces[0].MAC != "fa:16:3e:00:00:01" ||
			i.Interfaces[1].MAC != "fa:16:3e:00:00:02" {
			t.Errorf("with 2.%d it found %s", newest, out.Found)
		}
	}
}
