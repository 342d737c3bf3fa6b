package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ingot-metal/ingot/conductor/client"
	"github.com/ingot-metal/ingot/test/kit/port"
	"github.com/ingot-metal/ingot/tools/lab/fleet"
)

// bench is the measurement of one number of nodes.
type bench struct {
	ctx          context.Context
	bin, dir     string
	idle         time.Duration
	out          io.Writer
	row          row
	config, boot string
	api          *client.Client
	cmd          *exec.Cmd
	log          bytes.Buffer
}

// measure has all agents idle, restarts ingotd, and then deploys all nodes at once.
func (b *bench) measure() (err error) {
	if err := b.prepare(); err != nil {
		return err
	}
	if err := b.start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	n := b.row.Nodes
	f, err := fleet.Start(b.ctx, fleet.Options{Nodes: n, Seed: 1, BootURL: b.boot, Boot: 10 * time.Second,
		Write: 20 * time.Second, Step: time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	d := fleet.NewDriver(b.api, "available", 0, nil)
	if err := d.Create(b.ctx, f.Machines); err != nil {
		return err
	}
	if err := d.Run(b.ctx); err != nil {
		return err
	}
	b.say("available: %s", f.Summary(d))
	if _, err := b.sessions(f, n); err != nil {
		return err
	}
	if err := b.idling(); err != nil {
		return err
	}
	if err := b.again(f); err != nil {
		return err
	}
	if err := b.deploy(f, d); err != nil {
		return err
	}
	b.row.Overlaps, b.row.Refused, b.row.Failed = f.Overlaps(), f.Counts().Refused, len(d.Failed())
	b.say("active: %s", f.Summary(d))
	return nil
}

func (b *bench) say(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	fmt.Fprintf(b.out, "%s  %d nodes, %s\n", time.Now().Format(time.TimeOnly), b.row.Nodes, what)
}

// prepare writes the files of an ingotd whose agents stay connected between jobs.
func (b *bench) prepare() error {
	var addr [3]string
	for i := range addr {
		var err error
		if addr[i], err = port.Free(); err != nil {
			return err
		}
	}
	_, digits, err := net.SplitHostPort(addr[2])
	if err != nil {
		return err
	}
	boot, err := strconv.Atoi(digits)
	if err != nil {
		return err
	}
	site := fleet.Site{Dir: b.dir, API: addr[0], Agents: addr[1], Boot: boot,
		Settings: map[string]map[string]any{"deploy": {"fast_track": true}}}
	if b.config, err = site.Write(); err != nil {
		return err
	}
	b.boot = "http://" + addr[2]
	b.api, err = client.New("http://"+addr[0], nil)
	return err
}

func (b *bench) start() error {
	b.cmd = exec.Command(b.bin, "--config", b.config, "--log-level", "warn")
	b.cmd.Stdout, b.cmd.Stderr = &b.log, &b.log
	b.cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { // memory as services have it
		return strings.HasPrefix(kv, "GOGC=") || strings.HasPrefix(kv, "GOMEMLIMIT=")
	})
	// An interrupt of the terminal is the bench's, which then stops it.
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := b.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", b.bin, err)
	}
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
		if _, err := b.api.Drivers(b.ctx); err == nil {
			return nil
		}
	}
	return errors.Join(errors.New("ingotd does not answer after a minute"), b.stop())
}

// stop ends ingotd as a service manager would.
func (b *bench) stop() error {
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop ingotd: %w", err)
	}
	kill := time.AfterFunc(time.Minute, func() { _ = b.cmd.Process.Kill() })
	defer kill.Stop()
	if err := b.cmd.Wait(); err != nil {
		return fmt.Errorf("ingotd ended with %w:\n%s", err, b.log.String())
	}
	return nil
}

// sessions waits until so many agents have a session, and returns how long that took.
func (b *bench) sessions(f *fleet.Fleet, n int) (time.Duration, error) {
	began := time.Now()
	for time.Since(began) < 5*time.Minute && b.ctx.Err() == nil {
		if f.Counts().Sessions == n {
			return time.Since(began), nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return 0, fmt.Errorf("%d of %d agents have a session after %s", f.Counts().Sessions, n, time.Since(began))
}

// idling measures ingotd while nothing happens but the minute's power states and the agents' signs of life.
func (b *bench) idling() error {
	before, err := b.cpu()
	if err != nil {
		return err
	}
	select {
	case <-time.After(b.idle):
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
	after, err := b.cpu()
	if err != nil {
		return err
	}
	b.row.IdleCPU = (after - before).Seconds() / b.idle.Seconds()
	if b.row.MemoryMiB, err = b.memory(); err != nil {
		return err
	}
	b.say("idle: %.0f MiB, %.3f cores", b.row.MemoryMiB, b.row.IdleCPU)
	return nil
}

// again restarts ingotd and waits for all agents.
func (b *bench) again(f *fleet.Fleet) error {
	opened := f.Counts().Opened
	if err := b.stop(); err != nil {
		return err
	}
	began := time.Now()
	if err := b.start(); err != nil {
		return err
	}
	for f.Counts().Opened < opened+b.row.Nodes {
		if time.Since(began) > 5*time.Minute || b.ctx.Err() != nil {
			return fmt.Errorf("%d of %d agents are back", f.Counts().Opened-opened, b.row.Nodes)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if _, err := b.sessions(f, b.row.Nodes); err != nil {
		return err
	}
	b.row.Back = time.Since(began).Seconds()
	b.say("all agents are back after %.1f s", b.row.Back)
	return nil
}

// deploy deploys all nodes at once, while a client reads nodes and lists.
func (b *bench) deploy(f *fleet.Fleet, d *fleet.Driver) error {
	ctx, stop := context.WithCancel(b.ctx)
	defer stop()
	read := make(chan []float64)
	go func() {
		var took []float64
		for i := 0; ctx.Err() == nil; i++ {
			at := time.Now()
			if _, err := b.api.Node(ctx, f.Machines[i*7919%len(f.Machines)].Name); err == nil {
				took = append(took, time.Since(at).Seconds()*1000)
			}
			time.Sleep(20 * time.Millisecond)
		}
		read <- took
	}()
	began := time.Now()
	d.Target("active")
	err := d.Run(b.ctx)
	b.row.Deploy = time.Since(began).Seconds()
	stop()
	took := <-read
	if err != nil {
		return err
	}
	b.row.APIP50, b.row.APIP99 = percentile(took, 50), percentile(took, 99)
	var each []float64
	for _, one := range d.Deployments() {
		each = append(each, one.Done.Sub(one.Asked).Seconds())
	}
	b.row.PerMinute = float64(len(each)) / b.row.Deploy * 60
	b.row.EachP50, b.row.EachP99 = percentile(each, 50), percentile(each, 99)
	at := time.Now()
	nodes, err := b.api.States(b.ctx)
	if err == nil && len(nodes) != b.row.Nodes {
		err = fmt.Errorf("the list of %d nodes has %d", b.row.Nodes, len(nodes))
	}
	if err != nil {
		return err
	}
	b.row.List = time.Since(at).Seconds() * 1000
	return nil
}

// ticksPerSecond is USER_HZ, which Linux fixes for its interfaces to programs.
const ticksPerSecond = 100

// cpu is how much processor time ingotd has used.
func (b *bench) cpu() (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(b.cmd.Process.Pid), "stat"))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks int64
	for _, i := range []int{11, 12} { // utime, stime; see proc(5), counted after the name
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// memory is the resident memory of ingotd in MiB. The database is in the same process.
func (b *bench) memory() (float64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(b.cmd.Process.Pid), "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return kb / 1024, err
		}
	}
	return 0, errors.New("no VmRSS in the status of ingotd")
}
