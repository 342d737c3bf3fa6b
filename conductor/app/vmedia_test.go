//go:build !race

package app_test

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/conductor/node"
	"github.com/ingot-metal/ingot/test/kit/redfish"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
)

// mediaSite is a site whose controller speaks Redfish, with the node n1 that boots from an image: from virtual media
// unless another boot interface is named.
func mediaSite(t *testing.T, personality string, boot ...string) (*site, *service.Service) {
	t.Helper()
	return mediaSiteWith(t, service.Config{Personality: redfish.Personality(t, personality)},
		interfaceOf(personality, append(boot, "redfish-virtual-media")[0]), driverOf(personality))
}

func mediaSiteWith(t *testing.T, cfg service.Config, boot, driver string) (*site, *service.Service) {
	t.Helper()
	s := newSite(t)
	b := s.redfish(cfg)
	s.start()
	if _, err := s.CreateNode(t.Context(), overRedfish(b, driver, boot)); err != nil {
		t.Fatal(err)
	}
	return s, b
}

// redfish starts the machine's controller, which the conductor may connect to.
func (s *site) redfish(cfg service.Config) *service.Service {
	s.t.Helper()
	cfg.User, cfg.Password, cfg.HTTPBoot = "admin", redfish.Password, true
	s.set = append(s.set, "fetch.allow=127.0.0.0/8", fmt.Sprintf("netboot.https_port=%d", freePort(s.t)))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := service.Start(ln, s.bmc, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := b.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return b
}

// overRedfish is the node n1, whose controller is b.
func overRedfish(b *service.Service, driver, boot string) client.NewNode {
	return client.NewNode{Name: "n1", Driver: driver, BootIf: boot, DriverInfo: map[string]any{
		"redfish_address": b.URL(), "redfish_username": "admin", "redfish_password": redfish.Password,
		"redfish_verify_ca": string(b.CertificatePEM())}}
}

// TestFromEnrolToActiveByHTTP: a node becomes active without virtual media, DHCP and iPXE: the machine's UEFI loads the
// image from the address that the controller was given, which is gone from it in the end.
func TestFromEnrolToActiveByHTTP(t *testing.T) {
	s, b := mediaSite(t, "hpe-ilo6", "redfish-https")
	s.do("n1", "manage", "manageable", nil)
	s.do("n1", "inspect", "manageable", nil)
	s.do("n1", "provide", "available", nil)
	s.image()
	s.do("n1", "active", "active", nil)
	boots, _ := s.machine.seen()
	if want := []string{"http", "http", "http", "disk"}; !slices.Equal(boots, want) {
		t.Errorf("the machine booted from %v, want %v", boots, want)
	}
	if now, _ := s.bmc.Boot(); now.Address != "" {
		t.Errorf("the controller still has the address %q", now.Address)
	}
	if s.machine.runs("write_image") != 1 || strings.Contains(s.log.String(), "ingot.token") {
		t.Errorf("the image was written %d times, or the log has a token", s.machine.runs("write_image"))
	}
	s.stop()
	if n := b.Sessions(); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

// noMedium fails if an image is in a drive of the machine.
func (s *site) noMedium(when string) {
	s.t.Helper()
	for drive := range 4 {
		if s.machine.Medium(drive) != nil {
			s.t.Errorf("%s: drive %d has a medium", when, drive)
		}
	}
}

// mark returns the detail of a node's last mark of a name.
func (s *site) mark(id, name string) (detail string) {
	s.t.Helper()
	tl, err := s.Timeline(s.t.Context(), id, "")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, m := range tl.Marks {
		if m.Name == name {
			detail = string(m.Detail)
		}
	}
	return detail
}

// TestFromEnrolToActiveByVirtualMedia: a node whose agent is never served over the network becomes active: its
// controller reads the image from the conductor, in which the agent finds its token. The image is out after each job.
func TestFromEnrolToActiveByVirtualMedia(t *testing.T) {
	checking := []string{"generic", "dell-idrac9", "dell-idrac9-5", "dell-idrac10", "hpe-ilo6"}
	for _, personality := range service.Personalities() {
		t.Run(personality, func(t *testing.T) {
			t.Parallel()
			s, b := mediaSite(t, personality)
			s.do("n1", "manage", "manageable", nil)
			s.do("n1", "inspect", "manageable", nil)
			s.noMedium("after inspection")
			s.do("n1", "provide", "available", nil)
			s.noMedium("after cleaning")
			s.image()
			release := s.machine.hold("boot")
			if err := s.Provision(t.Context(), "n1", client.ProvisionRequest{Target: "active"}); err != nil {
				t.Fatal(err)
			}
			<-s.machine.held
			resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/boot.ipxe?mac=%s", s.httpPort, mac))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusForbidden {
				t.Errorf("the machine's boot script over the network = %d", resp.StatusCode)
			}
			release()
			s.wait("n1", "active")
			s.noMedium("after deployment")
			level := map[bool]string{true: "L1", false: "L0"}[slices.Contains(checking, personality)]
			if got := s.mark("n1", node.MarkMedia); !strings.Contains(got, "trust level "+level) {
				t.Errorf("the time line says %q of the image, want trust level %s", got, level)
			}
			boots, _ := s.machine.seen()
			if want := []string{"cdrom", "cdrom", "cdrom", "disk"}; !slices.Equal(boots, want) {
				t.Errorf("the machine booted from %v, want %v", boots, want)
			}
			if s.machine.runs("write_image") != 1 {
				t.Errorf("the image was written %d times", s.machine.runs("write_image"))
			}
			log := s.log.String()
			for _, secret := range []string{redfish.Password, "ingot.token"} {
				if strings.Contains(log, secret) {
					t.Errorf("the log has %q", secret)
				}
			}
			if at := strings.ReplaceAll(log, node.BootImagePath+"...", ""); strings.Contains(at, node.BootImagePath) ||
				at == log {
				t.Error("the log has the address of an image, or not that it was read")
			}
			s.stop()
			if n := b.Sessions(); n != 0 {
				t.Errorf("%d sessions are left after the conductor stopped", n)
			}
		})
	}
}

// TestKilledDuringVirtualMedia: a conductor that is killed while the machine boots from the image, and while the agent
// works, goes on where it was; the image is served on, and taken out in the end.
func TestKilledDuringVirtualMedia(t *testing.T) {
	s, b := mediaSite(t, "generic")
	s.do("n1", "manage", "manageable", nil)
	s.do("n1", "inspect", "manageable", nil)
	s.do("n1", "provide", "available", nil)
	s.image()
	boot, write := s.machine.hold("boot"), s.machine.hold("write_image")
	if err := s.Provision(t.Context(), "n1", client.ProvisionRequest{Target: "active"}); err != nil {
		t.Fatal(err)
	}
	for _, moment := range []struct {
		step    string
		release func()
	}{{"boot", boot}, {"write_image", write}} {
		if got := <-s.machine.held; got != moment.step {
			t.Fatalf("%s waits, not %s", got, moment.step)
		}
		s.kill()
		s.start()
		moment.release()
	}
	s.wait("n1", "active")
	s.noMedium("after deployment")
	if boots, _ := s.machine.seen(); len(boots) != 4 || s.machine.runs("write_image") != 1 {
		t.Errorf("boots %v, the image was written %d times", boots, s.machine.runs("write_image"))
	}
	n, err := s.Node(t.Context(), "n1")
	if err != nil || n.LastError != "" {
		t.Errorf("%v, last error %q", err, n.LastError)
	}
	s.stop()
	if n := b.Sessions(); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

// TestKilledAtEachRequest: a conductor killed after the controller has carried out a request, before the answer,
// goes on: after the image was put in, the boot device set, the machine turned on, and the image taken out.
func TestKilledAtEachRequest(t *testing.T) {
	var armed atomic.Bool
	moments := []string{"POST .InsertMedia", "PATCH /Systems/", "POST .Reset", "POST .EjectMedia"}
	at, answer := make(chan string), make(chan struct{})
	var mu sync.Mutex // over moments
	s, b := mediaSiteWith(t, service.Config{Personality: redfish.Personality(t, "generic"),
		Done: func(method, path string) {
			mu.Lock()
			defer mu.Unlock()
			if !armed.Load() || len(moments) == 0 {
				return
			}
			if want, part, _ := strings.Cut(moments[0], " "); method != want || !strings.Contains(path, part) {
				return
			}
			at <- moments[0]
			moments = moments[1:]
			<-answer
		}}, "redfish-virtual-media", "redfish")
	s.do("n1", "manage", "manageable", nil)
	s.do("n1", "inspect", "manageable", nil)
	s.do("n1", "provide", "available", nil)
	s.image()
	armed.Store(true)
	if err := s.Provision(t.Context(), "n1", client.ProvisionRequest{Target: "active"}); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		select {
		case <-at:
		case <-time.After(3 * time.Minute):
			mu.Lock()
			t.Fatalf("never asked for %v", moments)
		}
		s.kill()
		answer <- struct{}{}
		s.start()
	}
	s.wait("n1", "active")
	s.noMedium("after deployment")
	if n := s.machine.runs("write_image"); n != 1 {
		t.Errorf("the image was written %d times", n)
	}
	n, err := s.Node(t.Context(), "n1")
	if err != nil || n.LastError != "" {
		t.Errorf("%v, last error %q", err, n.LastError)
	}
	s.stop()
	if n := b.Sessions(); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}
