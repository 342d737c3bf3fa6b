// Package standin is the common part of tests' programs that take ingot-agent's place in a ramdisk: the first process
// and modprobe are the real ones, the worker is the test's, and the test reads its console output on the other side.
//
// A line of it is "VM <what> <JSON>"; the last ones are "VM FAILED <reason>", if it failed, and "VM END".
package standin

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/agent/machine/linux"
	"github.com/ingot-metal/ingot/initramfs/pid1"
)

// consoleLevel is syslog(2)'s SYSLOG_ACTION_CONSOLE_LEVEL, which takes the level as the length of the buffer: 1 leaves
// only the kernel's last words.
const consoleLevel = 8

// Main is all of such a program's main: it calls work in the worker, and never returns there, because the machine is
// the test's to end.
func Main(work func(ctx context.Context, m linux.Machine) error) {
	if os.Getpid() == 1 {
		_ = pid1.Run(pid1.Config{Version: "test"})
		return
	}
	if filepath.Base(os.Args[0]) == "modprobe" {
		_ = pid1.Modprobe(os.Args[1:])
		return
	}
	switch strings.Join(os.Args[1:], " ") { // what the builder of ramdisks asks
	case "version":
		fmt.Println("test")
	case "steps --json":
		fmt.Println(`{"steps":[{"interface":"deploy","step":"nothing","priority":{}}],"digest":"` +
			strings.Repeat("5", 64) + `"}`)
	case "worker":
		// A message of the kernel in the middle of a long line would cut it in two.
		if _, err := unix.Klogctl(consoleLevel, make([]byte, 1)); err != nil {
			Say("FAILED", err.Error())
		}
		if err := work(context.Background(),
			linux.Machine{Devices: pid1.DevicesFile, Loading: pid1.LoadingFile}); err != nil {
			Say("FAILED", err.Error())
		}
		Say("END", nil)
		select {}
	}
}

// Say prints a line that the test finds among the console's others.
func Say(what string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		b = []byte(err.Error())
	}
	fmt.Printf("\nVM %s %s\n", what, b)
}

// Serve offers the ramdisk's own files below /images on the loopback interface, and returns the address of that folder.
func Serve() (string, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return "", err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() { _ = http.Serve(l, http.FileServer(http.Dir("/images"))) }()
	return "http://" + l.Addr().String(), nil
}
