// Command swarm measures the benefit of a swarm: N agents in N network namespaces, each with an uplink and a downlink
// of its own, write the same published image at the same time. It prints how long the last one took and how much the
// image's server had to send, against one agent alone in the same net.
//
// Everything is real except the disks, which are memory: the agents are agent.Agent, the conductor's side is
// conductor/agents with its store, and the image comes from a web server with its own uplink. It needs root, for
// namespaces (ip) and their limits (tc, tbf).
//
//	swarm -nodes 1,4,16 -rate 100mbit -stored 96
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "swarm:", err)
		os.Exit(1)
	}
}

// result is one measurement, as JSON on one line.
type result struct {
	Nodes    int     `json:"nodes"`
	Rate     string  `json:"rate"`
	Swarm    bool    `json:"swarm"`
	StoredMB float64 `json:"stored_mb"` // of one copy of the image
	Seconds  float64 `json:"seconds"`   // until the last agent had it
	Median   float64 `json:"median_seconds"`
	EgressMB float64 `json:"egress_mb"` // what the image's server sent, index and lists included
	CPU      float64 `json:"cpu"`       // of the whole machine, 0 to 1, meanwhile
	Times    float64 `json:"times,omitempty"`
	Copies   float64 `json:"copies,omitempty"` // egress against that of one agent alone
	Repacked int64   `json:"repacked"`         // chunks that were read back and packed anew
}

func run(ctx context.Context, args []string, out io.Writer) error {
	fl := flag.NewFlagSet("swarm", flag.ContinueOnError)
	nodes := fl.String("nodes", "1,4,16",
		"how many agents, one measurement each; the others are compared with the first")
	rate := fl.String("rate", "100mbit", "of each uplink and downlink, as tc takes it")
	stored := fl.Int("stored", 96, "MiB of the image as published")
	off := fl.Bool("off", false, "without swarm, for comparison")
	work := fl.String("dir", "", "folder for the image and logs; empty: a temporary one")
	role := fl.String("role", "", "for the program's own use")
	verbose := fl.Bool("v", false, "keep the agents' logs and CPU profiles in the folder")
	if err := fl.Parse(args); err != nil {
		return err
	}
	switch *role {
	case "serve":
		return serve(ctx, fl.Args(), out)
	case "node":
		return runAgent(ctx, fl.Args())
	}
	dir := *work
	if dir == "" {
		d, err := os.MkdirTemp("", "ingot-swarm-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(d)
		dir = d
	}
	if err := makeImage(filepath.Join(dir, "www"), *stored); err != nil {
		return err
	}
	var first *result
	for n := range strings.SplitSeq(*nodes, ",") {
		k, err := strconv.Atoi(n)
		if err != nil || k < 1 || k > 250 {
			return fmt.Errorf("-nodes %s: want numbers from 1 to 250", *nodes)
		}
		r, err := measure(ctx, dir, k, *rate, !*off, *verbose)
		if err != nil {
			return err
		}
		if first == nil {
			first = r
		} else {
			r.Times, r.Copies = r.Seconds/first.Seconds, r.EgressMB/first.EgressMB
		}
		if err := json.NewEncoder(out).Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// measure makes a net, has everybody write the image, and takes the net down.
func measure(ctx context.Context, dir string, nodes int, rate string, swarm, verbose bool) (r *result, err error) {
	n := &net{prefix: fmt.Sprintf("isw%d", os.Getpid()%10000), rate: rate}
	defer func() { err = errors.Join(err, n.remove()) }()
	if err := n.make(ctx, nodes); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	state, err := os.MkdirTemp(dir, "run-")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", n.ns(0), self, "-role", "serve", "--", state,
		filepath.Join(dir, "www"), n.addr(0), strconv.Itoa(nodes), strconv.FormatBool(swarm))
	cmd.Stderr = os.Stderr
	from, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cmd.Wait()) }()
	size, err := diskSize(filepath.Join(dir, "www"))
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(from)
	var rack rackSays
	if err := dec.Decode(&rack); err != nil {
		return nil, fmt.Errorf("the server did not start: %w", err)
	}
	for i, token := range rack.Tokens {
		log := ""
		if verbose {
			log = filepath.Join(state, fmt.Sprintf("node-%d.log", i+1))
		}
		node := exec.CommandContext(ctx, "ip", "netns", "exec", n.ns(i+1), self, "-role", "node", "--", n.addr(0),
			rack.CA, token, strconv.FormatInt(size, 10), log)
		node.Stderr = os.Stderr
		// One thread each: there are more of them than processors anyway, and their processor time is not measured.
		node.Env = append(os.Environ(), "GOMAXPROCS=1", "GOMEMLIMIT=200MiB")
		if err := node.Start(); err != nil {
			return nil, err
		}
		defer func() {
			_ = node.Process.Signal(syscall.SIGTERM)
			_ = node.Wait()
		}()
	}
	r = &result{}
	if err := dec.Decode(r); err != nil {
		return nil, fmt.Errorf("the server gave no result: %w", err)
	}
	r.Rate, r.Swarm = rate, swarm
	return r, nil
}

// congestion is TCP's congestion control: the ramdisk's, independent of this machine's setting.
const congestion = "cubic"

// net is a bridge in a namespace, and namespaces around it: 0 is the server's.
type net struct {
	prefix, rate string
	all          []string
}

func (n *net) ns(i int) string   { return fmt.Sprintf("%sn%d", n.prefix, i) }
func (n *net) addr(i int) string { return fmt.Sprintf("10.99.0.%d", i+1) }

func (n *net) make(ctx context.Context, nodes int) error {
	bridge := n.prefix + "br"
	if err := n.add(ctx, bridge); err != nil {
		return err
	}
	steps := [][]string{
		{"-n", bridge, "link", "add", "br0", "type", "bridge"},
		{"-n", bridge, "link", "set", "br0", "up"},
		// A firewall that this machine may have has no business here. The files are there when its module is.
		{"netns", "exec", bridge, "sh", "-c",
			"for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -e $f ] || echo 0 > $f; done"},
	}
	for _, s := range steps {
		if err := command(ctx, "ip", s...); err != nil {
			return err
		}
	}
	for i := range nodes + 1 {
		ns := n.ns(i)
		if err := n.add(ctx, ns); err != nil {
			return err
		}
		port := fmt.Sprintf("p%d", i)
		for _, s := range [][]string{
			{"ip", "-n", bridge, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", ns},
			{"ip", "-n", bridge, "link", "set", port, "master", "br0", "up"},
			{"ip", "-n", ns, "link", "set", "lo", "up"},
			{"ip", "-n", ns, "link", "set", "eth0", "address", mac(i), "up"},
			{"ip", "-n", ns, "addr", "add", n.addr(i) + "/24", "dev", "eth0"},
			// As in a ramdisk, independent of this machine's setting.
			{"ip", "-n", ns, "route", "change", "10.99.0.0/24", "dev", "eth0", "congctl", congestion},
			{"tc", "-n", ns, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", n.rate, "burst", "128kb", "latency",
				"50ms"},
			{"tc", "-n", bridge, "qdisc", "add", "dev", port, "root", "tbf", "rate", n.rate, "burst", "128kb",
				"latency", "50ms"},
		} {
			if err := command(ctx, s[0], s[1:]...); err != nil {
				return err
			}
		}
		// The kernel has one neighbour table for all namespaces, too small for a swarm that must resolve each address.
		var batch strings.Builder
		for j := range nodes + 1 {
			if j != i {
				fmt.Fprintf(&batch, "neigh add %s lladdr %s dev eth0 nud permanent\n", n.addr(j), mac(j))
			}
		}
		cmd := exec.CommandContext(ctx, "ip", "-n", ns, "-batch", "-")
		cmd.Stdin = strings.NewReader(batch.String())
		if b, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ip -batch in %s: %w: %s", ns, err, b)
		}
	}
	return nil
}

func mac(i int) string { return fmt.Sprintf("02:99:00:00:00:%02x", i) }

func (n *net) add(ctx context.Context, name string) error {
	if err := command(ctx, "ip", "netns", "add", name); err != nil {
		return err
	}
	n.all = append(n.all, name)
	return nil
}

// remove removes the namespaces that make made, and with them all that is in them.
func (n *net) remove() error {
	var faults []error
	for _, name := range n.all {
		faults = append(faults, command(context.Background(), "ip", "netns", "del", name))
	}
	return errors.Join(faults...)
}

func command(ctx context.Context, name string, args ...string) error {
	if b, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, b)
	}
	return nil
}
