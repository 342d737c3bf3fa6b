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
	// Info is driver_info of a node that is this machine, IPMI that of one that is spoken to over IPMI; see StartBoth.
	Info, IPMI map[string]any
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

// StartBoth starts a controller that speaks IPMI, too, as Start does.
func StartBoth(t testing.TB, p service.Personality) *Bench {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, conn, p)
	_, port, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	b.IPMI = map[string]any{"ipmi_address": "127.0.0.1", "ipmi_port": port, "ipmi_username": "admin",
		"ipmi_password": "secret"}
	return b
}

// Start starts a controller, and ends it with the test.
func Start(t testing.TB, p service.Personality, change ...func(*service.Config)) *Bench {
	t.Helper()
	return start(t, nil, p, change...)
}

func start(t testing.TB, conn net.PacketConn, p service.Personality, change ...func(*service.Config)) *Bench {
	t.Helper()
	b := &Bench{Machine: &bmc.Memory{}}
	var err error
	if b.BMC, err = bmc.Start(conn, bmc.Config{Name: t.Name(), UUID: UUID, User: "admin", Password: "secret",
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
