// Package redfish starts a virtual controller with a Redfish service on loopback, and behind it a machine that is
// nothing but a power state.
package redfish

import (
	"net"
	"testing"

	"github.com/google/uuid"

	"github.com/ingot-metal/ingot/tools/lab/bmc"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
)

// Password of the account "admin".
const Password = "canary-password"

// UUID of the machine.
var UUID = uuid.MustParse("6fe1a2b3-c4d5-4e6f-8091-a2b3c4d5e6f7")

// Bench is a controller with its machine.
type Bench struct {
	BMC     *bmc.BMC
	Service *service.Service
	Machine *bmc.Memory
	// Info is driver_info of a node that is this machine.
	Info map[string]any
}

// Personality returns one of the table, with more behaviours.
func Personality(t testing.TB, name string, more ...service.Behaviour) service.Personality {
	t.Helper()
	p, ok := service.ByName(name)
	if !ok {
		t.Fatalf("there is no personality %q", name)
	}
	p.Behaviours = append(p.Behaviours[:len(p.Behaviours):len(p.Behaviours)], more...)
	return p
}

// Start starts a controller, and ends it with the test.
func Start(t testing.TB, p service.Personality, change ...func(*service.Config)) *Bench {
	t.Helper()
	b := &Bench{Machine: &bmc.Memory{}}
	var err error
	if b.BMC, err = bmc.Start(nil, bmc.Config{Name: t.Name(), UUID: UUID, User: "admin", Password: "secret",
		Machine: b.Machine}); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := service.Config{User: "admin", Password: Password, Personality: p, SecureBoot: true}
	for _, c := range change {
		c(&cfg)
	}
	if b.Service, err = service.Start(ln, b.BMC, cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Service.Close(); err != nil {
			t.Error(err)
		}
		if err := b.BMC.Close(); err != nil {
			t.Error(err)
		}
	})
	b.Info = map[string]any{"redfish_address": b.Service.URL(), "redfish_username": "admin",
		"redfish_password": Password, "redfish_verify_ca": string(b.Service.CertificatePEM())}
	return b
}
