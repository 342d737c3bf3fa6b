package kit

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// DHCPServer is a dnsmasq that runs.
type DHCPServer struct {
	t           testing.TB
	log, leases string
	Stop        func() // may be called more than once; the end of the test does
	Reload      func() // has it read its files of hosts and options again
}

// Dnsmasq runs a real dnsmasq, without its DNS, until the test ends. netns names its network namespace; "" is that of
// the test. The lines are its configuration. When it returns, dnsmasq answers.
func Dnsmasq(t testing.TB, netns string, lines ...string) *DHCPServer {
	t.Helper()
	NeedRoot(t)
	dir := t.TempDir()
	d := &DHCPServer{t: t, log: filepath.Join(dir, "log"), leases: filepath.Join(dir, "leases")}
	cmd := DnsmasqCommand(t, netns, d.leases, lines...)
	log, err := os.Create(d.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		cmd.Wait()
		close(done)
	}()
	d.Stop = sync.OnceFunc(func() {
		cmd.Process.Kill()
		<-done
	})
	t.Cleanup(d.Stop)
	d.Reload = func() { _ = cmd.Process.Signal(syscall.SIGHUP) } // one that has ended is found out by its silence
	Eventually(t, time.Minute, "dnsmasq's start", func() bool {
		select {
		case <-done:
			t.Fatalf("dnsmasq ended: %s", d.Log())
		default:
		}
		return strings.Contains(d.Log(), "started, version")
	})
	return d
}

// DnsmasqCommand is the command that Dnsmasq runs. It logs to standard error.
func DnsmasqCommand(t testing.TB, netns, leases string, lines ...string) *exec.Cmd {
	t.Helper()
	NeedPrograms(t, "dnsmasq", "ip")
	file := filepath.Join(t.TempDir(), "dnsmasq.conf")
	lines = append([]string{"port=0", "user=root", "no-ping", "log-dhcp", "dhcp-leasefile=" + leases}, lines...)
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"dnsmasq", "--keep-in-foreground", "--log-facility=-", "--pid-file=", "--conf-file=" + file}
	if netns != "" {
		args = append([]string{"ip", "netns", "exec", netns}, args...)
	}
	return exec.Command(args[0], args[1:]...)
}

// Log returns its log.
func (d *DHCPServer) Log() string { return d.read(d.log) }

// Leases are its leases, one a line.
func (d *DHCPServer) Leases() string { return d.read(d.leases) }

func (d *DHCPServer) read(name string) string {
	d.t.Helper()
	b, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		d.t.Fatal(err)
	}
	return string(b)
}
