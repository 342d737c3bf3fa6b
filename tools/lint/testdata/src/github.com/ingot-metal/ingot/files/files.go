// Package files has findings of errcheck, and what passes.
package files

import (
	"fmt"
	"net"
	"os"
)

func lost(f *os.File) {
	f.Sync()  // want `errcheck: unchecked error`
	f.Close() // want `errcheck: unchecked error`
}

func kept(f *os.File, c net.Conn) error {
	defer f.Close()
	c.Close()
	fmt.Println("printed")
	if _, err := f.Write(nil); err != nil {
		f.Close()
		return err
	}
	return nil
}

func waived(f *os.File) {
	f.Sync() //nolint:errcheck its error comes again at the next write
	f.Sync() // want `errcheck: unchecked error`
	//nolint:errcheck its error comes again at the next write
	f.Sync()
	f.Sync() // want `errcheck: unchecked error`
}

// swallow is waived as a whole.
//
//nolint:errcheck nothing depends on it
func swallow(f *os.File) {
	f.Sync()
	f.Sync()
}

var _ = []any{lost, kept, waived, swallow}
