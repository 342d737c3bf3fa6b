package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// server serves a directory over HTTP, in a separate process.
type server struct {
	url string
	end []func() error
	// in puts a command where the server can be reached.
	in func(name string, args ...string) (string, []string)
}

func (s *server) close() error {
	var errs []error
	for i := len(s.end) - 1; i >= 0; i-- {
		errs = append(errs, s.end[i]())
	}
	return errors.Join(errs...)
}

// startServer serves dir over loopback, or, with a rate, in a network namespace on a link of so many bits a second.
func startServer(ctx context.Context, dir string, bits int64) (s *server, err error) {
	s = &server{in: func(name string, args ...string) (string, []string) { return name, args }}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	addr, prefix := "127.0.0.1:0", []string{}
	if bits > 0 {
		near, far := fmt.Sprintf("ingotb%da", os.Getpid()%10000), fmt.Sprintf("ingotb%db", os.Getpid()%10000)
		for _, ns := range []string{near, far} {
			if err := run("ip", "netns", "add", ns); err != nil {
				return s, err
			}
			s.end = append(s.end, func() error { return run("ip", "netns", "del", ns) })
		}
		for _, args := range [][]string{
			{"ip", "link", "add", "link0", "netns", near, "type", "veth", "peer", "name", "link0", "netns", far},
			{"ip", "-n", near, "addr", "add", "198.51.100.1/24", "dev", "link0"},
			{"ip", "-n", far, "addr", "add", "198.51.100.2/24", "dev", "link0"},
			{"ip", "-n", near, "link", "set", "link0", "up"},
			{"ip", "-n", far, "link", "set", "link0", "up"},
			{"ip", "netns", "exec", far, "tc", "qdisc", "add", "dev", "link0", "root", "tbf", "rate",
				fmt.Sprintf("%dbit", bits), "burst", "256kb", "latency", "50ms"},
		} {
			if err := run(args[0], args[1:]...); err != nil {
				return s, err
			}
		}
		addr, prefix = "198.51.100.2:8080", []string{"ip", "netns", "exec", far}
		s.in = func(name string, args ...string) (string, []string) {
			return "ip", append([]string{"netns", "exec", near, name}, args...)
		}
	}
	args := append(prefix, os.Args[0], "serve", dir, addr)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return s, err
	}
	if err := cmd.Start(); err != nil {
		return s, err
	}
	s.end = append(s.end, func() error {
		cmd.Process.Kill()
		cmd.Wait() // it was killed
		return nil
	})
	buf := make([]byte, 100)
	n, err := out.Read(buf)
	if err != nil {
		return s, fmt.Errorf("server: %w", err)
	}
	s.url = "http://" + string(buf[:n])
	return s, nil
}
