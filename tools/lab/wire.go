package lab

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// wire is a cable between two namespaces, with a network card (a tap) at each end. What comes from the far end may be
// late or lost: the kernel's own way to do that, netem, is not in every kernel.
type wire struct {
	near, far *os.File
	delay     time.Duration // of what comes from the far end
	silent    atomic.Int64  // until when that is lost, in nanoseconds after start
	start     time.Time
	done      chan struct{}
	running   sync.WaitGroup
}

// openWire makes the cards, not up yet.
func openWire(nearNS *netns, nearName string, farNS *netns, farName string, delay time.Duration) (*wire, error) {
	near, err := openTap(nearNS, nearName)
	if err != nil {
		return nil, err
	}
	far, err := openTap(farNS, farName)
	if err != nil {
		near.Close()
		return nil, err
	}
	w := &wire{near: near, far: far, delay: delay, start: time.Now(), done: make(chan struct{})}
	w.running.Go(func() { w.carry(near, far) })
	w.running.Go(w.carryLate)
	return w, nil
}

// openTap makes a network card whose frames this program carries. It goes with the file.
func openTap(ns *netns, name string) (f *os.File, err error) {
	err = ns.do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		req, err := unix.NewIfreq(name)
		if err == nil {
			req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		if err != nil {
			unix.Close(fd)
			return err
		}
		f = os.NewFile(uintptr(fd), name) // not before TUNSETIFF: an unattached file can't be waited for
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("make network card %s: %w", name, err)
	}
	return f, nil
}

// OpenCard makes a network card on the provisioning network whose frames the caller carries. It goes with the file,
// which is to be closed before the lab goes down.
func (l *Lab) OpenCard(name string) (*os.File, error) {
	f, err := openTap(l.ns, name)
	if err != nil {
		return nil, err
	}
	if err := ipBatch(fmt.Sprintf("link set %s master %s up\n", name, bridge), "-n", l.Namespace, "-batch",
		"-"); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// silence loses what comes from the far end for a while from now.
func (w *wire) silence(d time.Duration) { w.silent.Store(int64(time.Since(w.start) + d)) }

func (w *wire) carry(from, to *os.File) {
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = to.Write(buf[:n]) // a card that is down loses frames
		} else if !w.pause(err) {
			return
		}
	}
}

// pause waits a moment after an error of reading, which is that the card is down.
func (w *wire) pause(error) bool {
	select {
	case <-time.After(10 * time.Millisecond):
		return true
	case <-w.done:
		return false
	}
}

// carryLate carries what comes from the far end, in order.
func (w *wire) carryLate() {
	type late struct {
		frame []byte
		at    time.Time
	}
	queue := make(chan late, 256)
	w.running.Go(func() {
		for l := range queue {
			select {
			case <-time.After(time.Until(l.at)):
				_, _ = w.near.Write(l.frame)
			case <-w.done:
			}
		}
	})
	defer close(queue)
	buf := make([]byte, 1<<16)
	for {
		n, err := w.far.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			if !w.pause(err) {
				return
			}
			continue
		}
		if int64(time.Since(w.start)) < w.silent.Load() {
			continue
		}
		select {
		case queue <- late{append([]byte(nil), buf[:n]...), time.Now().Add(w.delay)}:
		default: // full, as a switch's
		}
	}
}

func (w *wire) close() {
	close(w.done)
	_ = w.near.Close()
	_ = w.far.Close()
	w.running.Wait()
}
