package lab_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ingot-metal/ingot/tools/lab"
)

// TestMain lets the test program play ingotd: a web server on the socket it was handed, which reports its own settings.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "--config" {
		if err := playConductor(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 2 && os.Args[1] == "run-lab" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if err := lab.RunDaemon(ctx, os.Stdin, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

type about struct {
	PID, ListenPID, Config string
	Addresses              []string
}

func playConductor(config string) error {
	if strings.HasSuffix(config, "broken") {
		return fmt.Errorf("configuration %s: port is no number", config)
	}
	ln, err := net.FileListener(os.NewFile(3, "rest"))
	if err != nil {
		return err
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	a := about{PID: strconv.Itoa(os.Getpid()), ListenPID: os.Getenv("LISTEN_PID"), Config: config}
	for _, addr := range addrs {
		a.Addresses = append(a.Addresses, addr.String())
	}
	return http.Serve(ln,
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(a) }))
}

func TestConductor(t *testing.T) {
	needs(t)
	l, err := lab.Up(t.Context(), lab.Options{Name: name(t), Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Down(t.Context())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "ingotd.log")

	_, err = l.StartConductor(t.Context(), self, "broken", "127.0.0.1:0", log)
	if err == nil || !strings.Contains(err.Error(), "port is no number") {
		t.Errorf("StartConductor with a broken configuration: %v, want its complaint", err)
	}

	c, err := l.StartConductor(t.Context(), self, "/etc/ingot.yaml", "127.0.0.1:0", log)
	if err != nil {
		t.Fatal(err)
	}
	ask := func() about {
		t.Helper()
		res, err := http.Get(c.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var a about
		if err := json.NewDecoder(res.Body).Decode(&a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := ask()
	if a.PID != strconv.Itoa(c.PID()) || a.ListenPID != a.PID || a.Config != "/etc/ingot.yaml" {
		t.Errorf("conductor says %+v, its process is %d", a, c.PID())
	}
	if !strings.Contains(strings.Join(a.Addresses, " "), "10.77.0.1/24") {
		t.Errorf("conductor has the addresses %v: not in the lab", a.Addresses)
	}
	first := c.PID()
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	if c.PID() != 0 || exists(fmt.Sprintf("/proc/%d", first)) {
		t.Error("runs after Kill")
	}
	// Who connects now is served by the next one.
	waiting := make(chan error)
	go func() {
		res, err := http.Get(c.URL())
		if err == nil {
			res.Body.Close()
		}
		waiting <- err
	}()
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil {
		t.Errorf("a client that came while the conductor was down: %v", err)
	}
	second := c.PID()
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ask(); second == first || c.PID() == second {
		t.Error("not restarted")
	}
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := http.Get(c.URL()); err == nil {
		t.Error("the API answers after Down")
	}
}

// Sockets made through the lab are inside it.
func TestListenAndCommand(t *testing.T) {
	needs(t)
	l, err := lab.Up(t.Context(), lab.Options{Name: name(t), Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Down(t.Context())
	ln, err := l.Listen("tcp", l.Host.String()+":80")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "inside") })}
	go srv.Serve(ln)
	defer srv.Close()
	url := "http://" + l.Host.String()
	if out, err := l.Command(t.Context(), "ip", "-o", "addr").CombinedOutput(); err != nil ||
		!strings.Contains(string(out), l.Host.String()+"/24") {
		t.Errorf("ip addr: %v: %s", err, out)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: l.DialContext}}
	res, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
}
