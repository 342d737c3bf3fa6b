//go:build !race

package app_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingot-metal/ingot/test/kit"
	"github.com/ingot-metal/ingot/test/kit/ingotd"
)

// manyBMCs are controllers with Redfish that answer late, each with an address and a certificate of its own, in this
// process: what a client needs to read the power, and nothing else.
type manyBMCs struct {
	latency time.Duration
	port    string
	ca      string // PEM
	each    []oneBMC
}

type oneBMC struct {
	host        string
	busy, most  atomic.Int32 // requests under way
	reads, rest atomic.Int32 // of the system, and other requests
}

func newBMCs(b *testing.B, n int, latency time.Duration) *manyBMCs {
	b.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, key.Public(), key)
	if err != nil {
		b.Fatal(err)
	}
	all := answers()
	m := &manyBMCs{latency: latency, each: make([]oneBMC, n),
		ca: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
	for i := range m.each {
		one := &m.each[i]
		ip := net.IPv4(127, 1, byte(i/250), byte(i%250+1))
		one.host = ip.String()
		ln, err := net.Listen("tcp", net.JoinHostPort(one.host, m.port))
		if err != nil {
			b.Fatal(err)
		}
		if m.port == "" {
			_, m.port, _ = net.SplitHostPort(ln.Addr().String())
		}
		leaf := &x509.Certificate{SerialNumber: big.NewInt(int64(i + 2)), NotAfter: authority.NotAfter,
			IPAddresses: []net.IP{ip}}
		signed, err := x509.CreateCertificate(rand.Reader, leaf, authority, key.Public(), key)
		if err != nil {
			b.Fatal(err)
		}
		web := &http.Server{Handler: m.handler(one, all), ReadHeaderTimeout: time.Minute,
			ErrorLog:  slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
			TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{signed}, PrivateKey: key}}}}
		go web.ServeTLS(ln, "", "")
		b.Cleanup(func() { web.Close() })
	}
	return m
}

// answers are what a controller says: 12 memory modules, 4 drives, 24 sensors and 50 log entries.
func answers() map[string]any {
	type object = map[string]any
	const root, system, chassis = "/redfish/v1", "/redfish/v1/Systems/1", "/redfish/v1/Chassis/1"
	fine := object{"State": "Enabled", "Health": "OK", "HealthRollup": "OK"}
	link := func(path string) object { return object{"@odata.id": path} }
	all := object{}
	members := func(path string, n int, one func(i int) object) {
		var list []object
		for i := range n {
			at := fmt.Sprint(path, "/", i+1)
			o := one(i + 1)
			o["@odata.id"], o["Id"] = at, fmt.Sprint(i+1)
			all[at] = o
			list = append(list, link(at))
		}
		all[path] = object{"@odata.id": path, "Members": list}
	}
	all[root] = object{"@odata.id": root + "/", "Id": "Root", "Name": "Root", "Vendor": "Bench",
		"Systems": link(root + "/Systems"), "SessionService": link(root + "/SessionService")}
	all[system] = object{"@odata.id": system, "Id": "1", "Name": "System", "PowerState": "On", "Manufacturer": "Bench",
		"Status": fine, "Memory": link(system + "/Memory"), "Storage": link(system + "/Storage"),
		"LogServices": link(system + "/LogServices"), "Links": object{"Chassis": []object{link(chassis)}},
		"Actions": object{"#ComputerSystem.Reset": object{"target": system + "/Actions/ComputerSystem.Reset"}}}
	members(system+"/Memory", 12, func(i int) object {
		return object{"Name": fmt.Sprint("DIMM ", i), "Status": fine}
	})
	members(system+"/Drives", 4, func(i int) object {
		return object{"Name": fmt.Sprint("Bay ", i), "FailurePredicted": false, "Status": fine}
	})
	members(system+"/Storage", 1, func(int) object {
		return object{"Drives": all[system+"/Drives"].(object)["Members"]}
	})
	all[chassis] = object{"@odata.id": chassis, "Thermal": link(chassis + "/Thermal"),
		"Power": link(chassis + "/Power")}
	var temperatures []object
	for i := range 24 {
		temperatures = append(temperatures, object{"Name": fmt.Sprint("Temp ", i), "ReadingCelsius": 40,
			"Status": fine})
	}
	all[chassis+"/Thermal"] = object{"@odata.id": chassis + "/Thermal", "Temperatures": temperatures}
	all[chassis+"/Power"] = object{"@odata.id": chassis + "/Power"}
	all[system+"/LogServices"] = object{"Members": []object{link(system + "/LogServices/SEL")}}
	all[system+"/LogServices/SEL"] = object{"Entries": link(system + "/LogServices/SEL/Entries")}
	var entries []object
	for i := range 50 {
		entries = append(entries, object{"@odata.id": fmt.Sprint(system, "/LogServices/SEL/Entries/", i+1),
			"Id": fmt.Sprint(i + 1), "Message": "Something happened", "Severity": "OK",
			"Created": "2026-11-01T10:00:00Z"})
	}
	all[system+"/LogServices/SEL/Entries"] = object{"Members": entries}
	return all
}

func (m *manyBMCs) handler(one *oneBMC, answers map[string]any) http.Handler {
	const root, system = "/redfish/v1", "/redfish/v1/Systems/1"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := one.busy.Add(1)
		defer one.busy.Add(-1)
		if now > one.most.Load() {
			one.most.Store(now) // one is too many, however many more there were
		}
		time.Sleep(m.latency)
		path := strings.TrimSuffix(r.URL.Path, "/")
		w.Header().Set("Content-Type", "application/json")
		if path == system {
			one.reads.Add(1)
		} else {
			one.rest.Add(1)
		}
		switch o := answers[path]; {
		case r.Method == http.MethodPost && path == root+"/SessionService/Sessions":
			w.Header().Set("X-Auth-Token", "token")
			w.Header().Set("Location", path+"/1")
			w.WriteHeader(http.StatusCreated)
		case r.Method == http.MethodGet && o != nil:
			_ = json.NewEncoder(w).Encode(o)
		case r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
}

// reads are those of all systems so far, and those of the system that was read least.
func (m *manyBMCs) reads() (all, least int) {
	least = int(m.each[0].reads.Load())
	for i := range m.each {
		n := int(m.each[i].reads.Load())
		all, least = all+n, min(least, n)
	}
	return all, least
}

// processorTime is the time that a process has used so far.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))
	var ticks int64
	for _, f := range fields[11:13] { // utime, stime; proc_pid_stat(5)
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}

// send sends a request that has to be answered with this status.
func send(ctx context.Context, d *ingotd.Process, want int, method, path string, body any) error {
	doc, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, d.URL+path, bytes.NewReader(doc))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-OpenStack-Ironic-API-Version", "1.82")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != want {
		err = fmt.Errorf("%s %s = %d %s", method, path, resp.StatusCode, said)
	}
	return err
}

// BenchmarkPowerSync has ingotd read the power of 1,000 machines once a minute at controllers that take 300 ms for each
// answer, over HTTPS with a certificate that is checked. It reports the share of one core that ingotd, a process of its
// own, takes for it (cores; less than 0.25 is wanted, and ratio is the part of that), and fails beyond it, when a
// machine is read less often, and when a controller has two requests at once. The second figure is with the health
// of all machines read besides, as it is by default.
func BenchmarkPowerSync(b *testing.B) {
	const machines, latency, most = 1000, 300 * time.Millisecond, 0.25
	for _, tt := range []struct{ name, interval string }{{"power", "-1s"}, {"power and health", "10m"}} {
		b.Run(tt.name, func(b *testing.B) {
			bmcs := newBMCs(b, machines, latency)
			d := ingotd.Start(b, kit.FreeAddr(b), "fetch.allow=127.0.0.0/8", "health.interval="+tt.interval,
				"log_level=error")
			var g errgroup.Group
			g.SetLimit(16)
			for i := range bmcs.each {
				g.Go(func() error {
					name := fmt.Sprint("n", i)
					if err := send(b.Context(), d, 201, "POST", "/v1/nodes", map[string]any{"name": name,
						"driver": "redfish", "driver_info": map[string]any{"redfish_username": "admin",
							"redfish_password": "secret", "redfish_verify_ca": bmcs.ca,
							"redfish_address":   "https://" + bmcs.each[i].host + ":" + bmcs.port,
							"redfish_system_id": "/redfish/v1/Systems/1"}}); err != nil {
						return err
					}
					return send(b.Context(), d, 202, "PUT", "/v1/nodes/"+name+"/states/provision",
						map[string]string{"target": "manage"})
				})
			}
			if err := g.Wait(); err != nil {
				b.Fatal(err)
			}
			ingotd.Wait(b, "all nodes are manageable", func() bool {
				_, _, out := d.Ask("GET", "/v1/nodes?provision_state=manageable&fields=name&limit=1000", "", nil)
				return strings.Count(out, `"name"`) == machines
			})
			_, enrolled := bmcs.reads()
			ingotd.Wait(b, "all nodes are read once more", func() bool {
				_, least := bmcs.reads()
				return least > enrolled
			})
			var used, wall time.Duration
			for b.Loop() {
				all, least := bmcs.reads()
				before, begun := processorTime(b, d.PID), time.Now()
				time.Sleep(time.Minute)
				took := time.Since(begun)
				used, wall = used+processorTime(b, d.PID)-before, wall+took
				now, nowLeast := bmcs.reads()
				if now-all < machines*9/10 || nowLeast < least {
					b.Errorf("%d readings of %d machines in %s", now-all, machines, took)
				}
			}
			for i := range bmcs.each {
				if n := bmcs.each[i].most.Load(); n > 1 {
					b.Fatalf("controller %d had %d requests at once", i, n)
				}
			}
			cores := used.Seconds() / wall.Seconds()
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(cores, "cores")
			b.ReportMetric(cores/most, "ratio")
			if cores >= most {
				b.Errorf("ingotd takes %.2f of a core, less than %.2f is wanted", cores, most)
			}
		})
	}
}
