package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	conductorReady = 60 * time.Second
	conductorStop  = 20 * time.Second
)

// Conductor is an ingotd that runs in the lab's namespace while its REST API is on the host's loopback.
//
// The listening socket is opened outside the namespace and handed over the way systemd does it (LISTEN_FDS). It stays
// open here while ingotd is down: clients that connect meanwhile wait for the next start instead of being refused.
type Conductor struct {
	lab              *Lab
	bin, config, log string
	listener         *net.TCPListener

	mu   sync.Mutex
	cmd  *exec.Cmd
	gone chan struct{}
	err  error // of the process that ended last
}

// StartConductor runs `bin --config configPath` in the lab. restAddr is an address of the host, such as 127.0.0.1:6385
// or 127.0.0.1:0; logFile gets the output, appended. It returns when the API answers.
func (l *Lab) StartConductor(ctx context.Context, bin, configPath, restAddr, logFile string) (*Conductor, error) {
	ln, err := net.Listen("tcp", restAddr)
	if err != nil {
		return nil, fmt.Errorf("listen for the conductor's API: %w", err)
	}
	c := &Conductor{lab: l, bin: bin, config: configPath, log: logFile, listener: ln.(*net.TCPListener)}
	l.mu.Lock()
	down := l.down
	if !down {
		l.conductors[c] = true
	}
	l.mu.Unlock()
	if down {
		ln.Close()
		return nil, errors.New("start conductor: the lab is down")
	}
	if err := c.Start(ctx); err != nil {
		return nil, errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// URL is the API's, without a path.
func (c *Conductor) URL() string { return "http://" + c.listener.Addr().String() }

// PID is that of the process, 0 when it isn't running.
func (c *Conductor) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil {
		return 0
	}
	return c.cmd.Process.Pid
}

// Start starts it unless it runs, and returns when the API answers.
func (c *Conductor) Start(ctx context.Context) error {
	c.mu.Lock()
	if c.cmd != nil {
		c.mu.Unlock()
		return nil
	}
	gone, err := c.startLocked()
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("start conductor: %w", err)
	}
	c.lab.save()
	return c.ready(ctx, gone)
}

func (c *Conductor) startLocked() (<-chan struct{}, error) {
	out, err := os.OpenFile(c.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	sock, err := c.listener.File()
	if err != nil {
		return nil, err
	}
	defer sock.Close()
	// LISTEN_PID must be the process's own, which only the process itself knows in time: the shell sets it and becomes
	// ingotd.
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, c.bin, "--config", c.config)
	cmd.Env = append(os.Environ(), "LISTEN_FDS=1", "LISTEN_FDNAMES=rest")
	cmd.ExtraFiles = []*os.File{sock}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	fmt.Fprintf(out, "=== lab %s: starting %s ===\n", time.Now().UTC().Format(time.RFC3339Nano), c.bin)
	if err := c.lab.ns.start(cmd); err != nil {
		return nil, err
	}
	gone := make(chan struct{})
	c.cmd, c.gone, c.err = cmd, gone, nil
	go func() {
		err := cmd.Wait()
		c.mu.Lock()
		c.cmd, c.err = nil, err
		c.mu.Unlock()
		close(gone)
	}()
	return gone, nil
}

// ready waits for any answer of the API.
func (c *Conductor) ready(ctx context.Context, gone <-chan struct{}) error {
	ctx, cancel := context.WithTimeoutCause(ctx, conductorReady,
		fmt.Errorf("its API did not answer within %s", conductorReady))
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-gone:
			cancel()
		case <-stop:
		}
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL()+"/", nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err == nil {
			res.Body.Close()
			return nil
		}
		select {
		case <-gone:
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
			continue
		}
		select {
		case <-gone: // which ends ctx as well
			c.mu.Lock()
			defer c.mu.Unlock()
			return fmt.Errorf("start conductor: it ended (%v): %s", c.err, endOf(c.log))
		default:
			return fmt.Errorf("start conductor: %w; see %s", context.Cause(ctx), c.log)
		}
	}
}

// Kill ends it with SIGKILL, as a crash would, and returns when it is gone.
func (c *Conductor) Kill() error { return c.signal(unix.SIGKILL, nil) }

// Stop ends it in order, or by force after 20 seconds or the end of ctx, and closes its listener.
func (c *Conductor) Stop(ctx context.Context) error {
	err := c.Terminate(ctx)
	c.lab.mu.Lock()
	delete(c.lab.conductors, c)
	c.lab.mu.Unlock()
	return errors.Join(err, c.listener.Close())
}

// Terminate ends it in order, as Stop does, but keeps the listener, so that Start can start it again.
func (c *Conductor) Terminate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, conductorStop)
	defer cancel()
	return c.signal(unix.SIGTERM, ctx.Done())
}

// Restart terminates and starts it.
func (c *Conductor) Restart(ctx context.Context) error {
	if err := c.Terminate(ctx); err != nil {
		return err
	}
	return c.Start(ctx)
}

// Wait waits until it has ended and returns how.
func (c *Conductor) Wait() error {
	c.mu.Lock()
	gone, running := c.gone, c.cmd != nil
	c.mu.Unlock()
	if running {
		<-gone
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// supervise starts it again a while after it has ended, until it is stopped.
func (c *Conductor) supervise(ctx context.Context, pause time.Duration) {
	for {
		_ = c.Wait() // the log has it
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		c.lab.mu.Lock()
		stopped := !c.lab.conductors[c]
		c.lab.mu.Unlock()
		if stopped {
			return
		}
		if err := c.Start(ctx); err != nil {
			c.lab.opts.Log.Warn("the conductor can't be started again", "log", c.log, "err", err)
		}
	}
}

// addAddress gives the lab's host another address in its network.
func (l *Lab) addAddress(a netip.Addr) error {
	return ip("-n", l.Namespace, "addr", "add", netip.PrefixFrom(a, l.Subnet.Bits()).String(), "dev", bridge)
}

func (c *Conductor) signal(sig os.Signal, limit <-chan struct{}) error {
	c.mu.Lock()
	cmd, gone := c.cmd, c.gone
	c.mu.Unlock()
	if cmd == nil {
		return nil
	}
	_ = cmd.Process.Signal(sig) // it may have ended just now
	select {
	case <-gone:
	case <-limit:
		_ = cmd.Process.Kill()
		<-gone
		c.lab.save()
		return fmt.Errorf("conductor did not end by itself and was killed; see %s", c.log)
	}
	c.lab.save()
	return nil
}

// endOf returns the end of a log for an error message.
func endOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 2000 {
		if _, err := f.Seek(-2000, io.SeekEnd); err != nil {
			return ""
		}
	}
	data, _ := io.ReadAll(f)
	return string(data)
}
