// Command vm stands in for ingot-agent in a virtual machine: it prints a capture of the machine, and the inventory that goes with it, on
// the console.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingot-metal/ingot/agent/inventory"
	"github.com/ingot-metal/ingot/agent/linux"
	pid1 "github.com/ingot-metal/ingot/initramfs/init"
)

func main() {
	if os.Getpid() == 1 {
		_ = pid1.Run(pid1.Config{Version: "test"})
		return
	}
	if filepath.Base(os.Args[0]) == "modprobe" {
		_ = pid1.Modprobe(os.Args[1:])
		return
	}
	switch strings.Join(os.Args[1:], " ") {
	case "version":
		fmt.Println("test")
	case "steps --json":
		fmt.Println(`{"steps":[{"interface":"deploy","step":"nothing","priority":{}}],"digest":"` + strings.Repeat("5", 64) + `"}`)
	case "worker":
		if err := work(context.Background()); err != nil {
			fmt.Printf("\nVM FAILED %v\n", err)
		}
		fmt.Println("\nVM END")
		select {}
	}
}

func work(ctx context.Context) error {
	m := linux.Machine{Devices: pid1.DevicesFile, Loading: pid1.LoadingFile}
	if err := m.Settle(ctx); err != nil {
		return err
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := inventory.Capture("/", z); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	r, err := inventory.Collect(ctx, m, inventory.Options{})
	if err != nil {
		return err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	fmt.Printf("\nVM REPORT %s\n\nVM CAPTURE %s\n", b, base64.StdEncoding.EncodeToString(packed.Bytes()))
	return nil
}
