// Package segment writes the part of an initramfs that goes beside the ramdisk or a workload of one machine: an
// uncompressed newc cpio, which any other archive, compressed or not, may follow.
//
// The agent reads the files of its own segment (Params, Network) when it starts; conductors that boot it from an ISO
// image write them. What is in a segment is in no command line, which kernels log and every process can read.
package segment

import (
	"bytes"
	"fmt"
	"path"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
)

// Files of the agent's segment.
const (
	Params  = "/etc/ingot/params"            // boot parameters, as on a kernel's command line
	Network = "/etc/ingot/network_data.json" // OpenStack's network data
)

// Archive builds a segment. Its files are readable by their owner only: they have secrets. Make it with New.
type Archive struct {
	private string
	b       bytes.Buffer
	out     cpio.RecordWriter
	made    map[string]bool
	ino     uint64
	err     error // the first error
}

// New returns an empty archive. Folders from private on are their owner's only; "": all are readable.
func New(private string) *Archive {
	a := &Archive{private: private, made: map[string]bool{}}
	a.out = cpio.Newc.Writer(&a.b)
	return a
}

func (a *Archive) dir(name string) {
	if name == "." || a.made[name] {
		return
	}
	a.dir(path.Dir(name))
	a.made[name] = true
	mode := uint64(0o755)
	if a.private != "" && strings.HasPrefix("/"+name, a.private) {
		mode = 0o700
	}
	a.put(cpio.Directory(name, mode))
}

// File adds a file by its absolute path.
func (a *Archive) File(name string, data []byte) {
	name = strings.TrimPrefix(name, "/")
	a.dir(path.Dir(name))
	a.put(cpio.StaticRecord(data, cpio.Info{Name: name, Mode: cpio.S_IFREG | 0o600}))
}

func (a *Archive) put(r cpio.Record) {
	a.ino++
	r.Ino, r.NLink = a.ino, 1
	if err := a.out.WriteRecord(r); err != nil && a.err == nil {
		a.err = fmt.Errorf("write the archive: %w", err)
	}
}

// End returns the archive; its length is a multiple of 512 bytes.
func (a *Archive) End() ([]byte, error) {
	a.put(cpio.TrailerRecord)
	a.b.Write(make([]byte, (512-a.b.Len()%512)%512))
	return a.b.Bytes(), a.err
}

// OfAgent returns the agent's segment. networkData nil means none.
func OfAgent(params string, networkData []byte) ([]byte, error) {
	a := New("")
	a.File(Params, []byte(params+"\n"))
	if networkData != nil {
		a.File(Network, networkData)
	}
	return a.End()
}
