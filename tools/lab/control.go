package lab

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Status is the state of a lab.
type Status struct {
	Name       string            `json:"name"`
	Namespace  string            `json:"namespace"`
	Dir        string            `json:"dir"`
	PID        int               `json:"pid"` // of the program that runs it
	Accel      Accel             `json:"accel"`
	AccelWhy   string            `json:"accel_why"`
	Host       netip.Addr        `json:"host"`
	Subnet     netip.Prefix      `json:"subnet"`
	Nodes      []NodeStatus      `json:"nodes"`
	Conductors []ConductorStatus `json:"conductors"`
	Netboot    string            `json:"netboot"`            // the mode that a conductor should have here
	Services   []ServiceStatus   `json:"services,omitempty"` // what is not Ingot's
}

// ServiceStatus is a DHCP server or a relay of the lab's network.
type ServiceStatus struct {
	What    string     `json:"what"` // dhcp, relay or Database
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
	PID     int        `json:"pid"` // 0 when it has ended
	Log     string     `json:"log"`
	Failure string     `json:"failure,omitempty"` // how it ended and its last words
}

// Database is the What of PostgreSQL, which has no address in the lab's network.
const Database = "database"

// NodeStatus is one machine.
type NodeStatus struct {
	Name       string   `json:"name"`
	On         bool     `json:"on"`
	PID        int      `json:"pid"`
	Starts     int      `json:"starts"`
	Failure    string   `json:"failure,omitempty"` // why it does not run, in QEMU's own words
	Firmware   Firmware `json:"firmware"`
	MemoryMiB  int      `json:"memory_mib"`
	MAC        string   `json:"mac"`
	UUID       string   `json:"uuid"`
	BMCAddress string   `json:"bmc_address"`
	BMCPort    int      `json:"bmc_port"`
	BMC        BMCKind  `json:"bmc"`
	CAFile     string   `json:"bmc_ca_file,omitempty"` // of the Redfish service
	User       string   `json:"bmc_user"`
	Password   string   `json:"bmc_password"`
	Boot       string   `json:"boot"` // the boot flags, in words
	ConsoleLog string   `json:"console_log"`
	Disks      []string `json:"disks"`
}

// ConductorStatus is one conductor.
type ConductorStatus struct {
	URL string `json:"url"`
	PID int    `json:"pid"`
	Log string `json:"log"`
}

// Status returns the state of the lab.
func (l *Lab) Status() Status {
	s := Status{
		Name: l.Name, Namespace: l.Namespace, Dir: l.Dir, PID: os.Getpid(), Accel: l.Accel, AccelWhy: l.AccelWhy,
		Host: l.Host, Subnet: l.Subnet, Nodes: []NodeStatus{}, Conductors: []ConductorStatus{},
		Netboot: l.opts.Site.Netboot,
	}
	for _, f := range l.foreign.list() {
		s.Services = append(s.Services, ServiceStatus{f.what, f.name, f.addr, f.pid(), f.log, f.failure()})
	}
	for _, m := range l.machines {
		n := NodeStatus{
			Name: m.Spec.Name, On: m.On(), PID: m.PID(), Starts: m.Starts(), Failure: m.Failure(),
			Firmware: m.Spec.Firmware, MemoryMiB: m.Spec.MemoryMiB, MAC: m.MAC, UUID: m.Spec.UUID.String(),
			BMCAddress: m.BMCAddress, BMCPort: m.BMCPort, User: m.User, Password: m.Password, Boot: "firmware's order",
			ConsoleLog: m.ConsoleLog, BMC: l.opts.BMC, CAFile: m.CAFile,
		}
		if b, persistent := m.bmc.Boot(); b.Device != "" {
			n.Boot = string(b.Device)
			if !persistent {
				n.Boot += " once"
			}
			if b.UEFI {
				n.Boot += ", uefi"
			}
		}
		for _, d := range m.Spec.Disks {
			n.Disks = append(n.Disks, fmt.Sprintf("%s %s %d MiB %s", d.Bus, d.Serial, d.SizeBytes>>20, d.File))
		}
		s.Nodes = append(s.Nodes, n)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if db := l.database; db != nil {
		s.Services = append(s.Services,
			ServiceStatus{What: Database, Name: "postgresql", Address: l.Host, PID: db.PID()})
	}
	for c := range l.conductors {
		s.Conductors = append(s.Conductors, ConductorStatus{c.URL(), c.PID(), c.log})
	}
	slices.SortFunc(s.Conductors, func(a, b ConductorStatus) int { return cmp.Compare(a.Log, b.Log) })
	return s
}

// Power does to a machine what a person in front of it, or its controller, could do: on, off, cycle, reset, soft,
// unplug, plug.
func (m *Machine) Power(action string) error {
	switch action {
	case "on":
		return m.Start()
	case "off":
		return m.Stop()
	case "cycle":
		if err := m.Stop(); err != nil {
			return err
		}
		return m.Start()
	case "reset":
		return m.Reset()
	case "soft":
		return m.PressPower()
	case "unplug":
		return m.PullPlug()
	case "plug":
		m.PlugIn()
		return nil
	}
	return fmt.Errorf("unknown power action %q: it is one of %v", action, PowerActions)
}

// PowerActions are what Machine.Power knows.
var PowerActions = []string{"on", "off", "cycle", "reset", "soft", "unplug", "plug"}

// control serves the lab's control socket, by which other programs look at the lab and act on it: JSON over HTTP over a
// unix socket that only root can open.
type control struct {
	srv  *http.Server
	done chan struct{}
}

func (l *Lab) serveControl() error {
	path := filepath.Join(l.claim.dir, controlFile)
	_ = os.Remove(path) // of a lab that died; the name is ours
	ln, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listen for control: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, l.Status())
	})
	mux.HandleFunc("POST /nodes/{node}/power/{action}", func(w http.ResponseWriter, r *http.Request) {
		m := l.Node(r.PathValue("node"))
		if m == nil {
			http.Error(w, fmt.Sprintf("the lab has no machine %q", r.PathValue("node")), http.StatusNotFound)
			return
		}
		if err := m.Power(r.PathValue("action")); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		writeJSON(w, http.StatusOK, struct{}{})
	})
	mux.HandleFunc("POST /nodes/{node}/console", l.serveConsole)
	mux.HandleFunc("POST /down", func(w http.ResponseWriter, r *http.Request) {
		l.askDown.Do(func() {
			l.purge = r.FormValue("purge") != ""
			close(l.downAsked)
		})
		w.WriteHeader(http.StatusAccepted)
	})
	c := &control{srv: &http.Server{Handler: mux}, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		if err := c.srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			l.opts.Log.Error("lab control", "err", err)
		}
	}()
	l.control = c
	return nil
}

func (c *control) close() error {
	err := c.srv.Close()
	<-c.done
	return err
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client has gone
}

// serveConsole turns the connection into the machine's serial line.
func (l *Lab) serveConsole(w http.ResponseWriter, r *http.Request) {
	m := l.Node(r.PathValue("node"))
	if m == nil {
		http.Error(w, fmt.Sprintf("the lab has no machine %q", r.PathValue("node")), http.StatusNotFound)
		return
	}
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	a := m.Attach()
	defer a.Close()
	if _, err := io.WriteString(conn,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: serial\r\n\r\n"); err != nil {
		return
	}
	typed := make(chan struct{})
	go func() {
		defer close(typed)
		_, _ = io.Copy(a, buf) // ends when the client goes
		a.Close()
	}()
	_, _ = io.Copy(conn, a)
	conn.Close()
	<-typed
}

// List returns the names of the labs that are up.
func List() ([]string, error) {
	entries, err := os.ReadDir(stateDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var names []string
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(stateDir, e.Name(), controlFile)); err == nil {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// NotUpError says that there is no lab of that name.
type NotUpError struct{ Name string }

func (e *NotUpError) Error() string {
	return fmt.Sprintf("lab %s is not up; start it: ingot lab up --name %s", e.Name, e.Name)
}

func dialControl(ctx context.Context, name string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", filepath.Join(stateDir, name, controlFile))
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("lab %s belongs to root: run it with sudo", name)
	}
	if err != nil {
		return nil, &NotUpError{name}
	}
	return c, nil
}

// call does one request to a lab's control socket; v, if not nil, receives the answer.
func call(ctx context.Context, name, method, path string, v any) error {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dialControl(ctx, name) },
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://lab"+path, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		var notUp *NotUpError
		if errors.As(err, &notUp) {
			return notUp
		}
		return fmt.Errorf("ask lab %s: %w", name, err)
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		said, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		return fmt.Errorf("lab %s: %s", name, string(said))
	}
	if v == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(v); err != nil {
		return fmt.Errorf("read the answer of lab %s: %w", name, err)
	}
	return nil
}

// Query asks the lab of that name how it is.
func Query(ctx context.Context, name string) (Status, error) {
	var s Status
	return s, call(ctx, name, http.MethodGet, "/status", &s)
}

// PowerNode does a power action, one of PowerActions, to a machine of the lab of that name.
func PowerNode(ctx context.Context, name, node, action string) error {
	return call(ctx, name, http.MethodPost, "/nodes/"+node+"/power/"+action, nil)
}

// DialConsole connects to the serial console of a machine of the lab of that name: raw bytes both ways.
func DialConsole(ctx context.Context, name, node string) (io.ReadWriteCloser, error) {
	conn, err := dialControl(ctx, name)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	r := bufio.NewReader(conn)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://lab/nodes/"+node+"/console", nil)
	if err == nil {
		err = req.Write(conn)
	}
	var res *http.Response
	if err == nil {
		res, err = http.ReadResponse(r, req) //nolint:bodyclose the connection is the caller's, or closed below
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to the console of %s: %w", node, err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		said, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		conn.Close()
		return nil, fmt.Errorf("console of %s: %s", node, said)
	}
	return consoleConn{conn, r}, nil
}

// consoleConn reads what the HTTP answer's reader has buffered first.
type consoleConn struct {
	net.Conn
	r *bufio.Reader
}

func (c consoleConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// downLimit is how long a lab may take to go down: its conductor may take 20 seconds.
const downLimit = time.Minute

// TakeDown takes the lab of that name down and returns when it is. With purge its disks and logs are removed as well.
// Of a lab whose program has died it removes the leftovers.
func TakeDown(ctx context.Context, name string, purge bool) error {
	path := "/down"
	if purge {
		path += "?purge=1"
	}
	err := call(ctx, name, http.MethodPost, path, nil)
	s, stateErr := readState(name)
	if err != nil && stateErr != nil {
		return err // neither a program nor leftovers
	}
	// Not reached, but there is something: the program is dying, dead, or not up yet. The lock shows which.
	ctx, cancel := context.WithTimeout(ctx, downLimit)
	defer cancel()
	dir := filepath.Join(stateDir, name)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := sweepOne(name, silent); err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(dir, lockFile)); errors.Is(err, os.ErrNotExist) {
			_ = os.Remove(dir) // what gave the name back is about to do so
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("lab %s does not go down: process %d runs it", name, s.PID)
		}
	}
}
