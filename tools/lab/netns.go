package lab

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// netnsDir is where iproute2 keeps named network namespaces.
const netnsDir = "/run/netns"

// netns is a named network namespace and one operating system thread that lives in it. Processes started and sockets
// opened on that thread belong to the namespace, while the rest of the program stays where it is.
//
// The thread lives as long as the namespace is open, and nothing else runs on it. That is also what makes Pdeathsig
// safe: the kernel sends that signal when the *thread* that started the child ends, and Go ends threads of goroutines
// that were locked.
type netns struct {
	name  string
	calls chan func()
	ended chan struct{}
}

// openNetns makes the namespace, which must not exist, and enters it with one thread.
func openNetns(name string) (*netns, error) {
	if err := ip("netns", "add", name); err != nil {
		return nil, err
	}
	ns := &netns{name: name, calls: make(chan func()), ended: make(chan struct{})}
	entered := make(chan error)
	go ns.live(entered)
	if err := <-entered; err != nil {
		return nil, errors.Join(err, ip("netns", "del", name))
	}
	return ns, nil
}

func (ns *netns) live(entered chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// /proc/PID shows the main thread: leave it where it is. While this goroutine waits here, locked, the
		// other one gets a different thread.
		ns.live2(entered)
		runtime.UnlockOSThread()
		return
	}
	ns.run(entered)
}

func (ns *netns) live2(entered chan<- error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		ns.run(entered)
	}()
	<-done
}

// run works through calls on a locked thread. It unlocks the thread only when it is back in the namespace it came from;
// otherwise the thread ends with the goroutine.
func (ns *netns) run(entered chan<- error) {
	back, err := enter(ns.name)
	if err != nil {
		runtime.UnlockOSThread()
		entered <- err
		return
	}
	entered <- nil
	for f := range ns.calls {
		f()
	}
	if back() == nil {
		runtime.UnlockOSThread()
	}
	close(ns.ended)
}

// enter moves the calling thread, which must be locked, into a namespace and returns the way back.
func enter(name string) (back func() error, err error) {
	home, err := unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open own network namespace: %w", err)
	}
	fd, err := unix.Open(netnsDir+"/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Setns(fd, unix.CLONE_NEWNET)
		unix.Close(fd)
	}
	if err != nil {
		unix.Close(home)
		return nil, fmt.Errorf("enter network namespace %s: %w", name, err)
	}
	return func() error {
		defer unix.Close(home)
		return unix.Setns(home, unix.CLONE_NEWNET)
	}, nil
}

// do runs f on the namespace's thread. f must not wait for long: everybody else waits behind it.
func (ns *netns) do(f func() error) error {
	done := make(chan error, 1)
	select {
	case ns.calls <- func() { done <- f() }:
		return <-done
	case <-ns.ended:
		return net.ErrClosed
	}
}

// visit runs f, which may take its time, on a thread of its own inside the namespace.
func (ns *netns) visit(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		back, err := enter(ns.name)
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		err = f()
		if back() == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// start starts cmd inside the namespace, to be killed when this program ends for whatever reason.
func (ns *netns) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	return ns.do(cmd.Start)
}

// close ends the thread and removes the namespace, and with it the links in it.
func (ns *netns) close() error {
	close(ns.calls)
	<-ns.ended
	return deleteNetns(ns.name)
}

// deleteNetns removes a namespace if it is there.
func deleteNetns(name string) error {
	if _, err := os.Lstat(netnsDir + "/" + name); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return ip("netns", "del", name)
}

// ip runs iproute2, whose way with namespaces and links is the one that operators see.
func ip(args ...string) error { return ipBatch("", args...) }

// ipBatch runs iproute2 with commands on its input, one per line.
func ipBatch(commands string, args ...string) error {
	cmd := exec.Command("ip", args...)
	cmd.Stdin = strings.NewReader(commands)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
