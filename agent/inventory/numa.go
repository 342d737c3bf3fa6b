package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// NUMA is the topology of memory, processors and network interfaces, in the form of ironic-python-agent's collector
// numa-topology.
type NUMA struct {
	RAM  []NUMAMemory `json:"ram"`
	CPUs []NUMACore   `json:"cpus"`
	NICs []NUMANIC    `json:"nics"`
}

// NUMAMemory is the memory of one node.
type NUMAMemory struct {
	Node   int   `json:"numa_node"`
	SizeKB int64 `json:"size_kb"`
}

// NUMACore is a core; its number is unique only within its node.
type NUMACore struct {
	CPU      int   `json:"cpu"`
	Node     int   `json:"numa_node"`
	Siblings []int `json:"thread_siblings"`
}

// NUMANIC is the node of a network interface; -1 when unknown to the firmware.
type NUMANIC struct {
	Name string `json:"name"`
	Node int    `json:"numa_node"`
}

// numa reads the topology; nil for a kernel without NUMA.
func numa(root string) (*NUMA, error) {
	dir := filepath.Join(root, "sys/devices/system/node")
	entries, err := folder(dir, "NUMA nodes")
	if entries == nil || err != nil {
		return nil, err
	}
	out := &NUMA{RAM: []NUMAMemory{}, CPUs: []NUMACore{}, NICs: []NUMANIC{}}
	var errs []error
	for _, e := range entries {
		node, ok := numbered(e.Name(), "node")
		if !ok {
			continue
		}
		kb, memErr := memTotal(filepath.Join(dir, e.Name(), "meminfo"))
		if memErr == nil {
			out.RAM = append(out.RAM, NUMAMemory{Node: node, SizeKB: kb})
		}
		inside, err := os.ReadDir(filepath.Join(dir, e.Name()))
		errs = append(errs, memErr, err)
		cores := map[string]int{} // by socket and core: index in CPUs
		for _, c := range inside {
			thread, ok := numbered(c.Name(), "cpu")
			if !ok {
				continue
			}
			topology := filepath.Join(dir, e.Name(), c.Name(), "topology")
			core, err := strconv.Atoi(read(topology, "core_id"))
			if err != nil {
				continue // offline
			}
			key := fmt.Sprint(read(topology, "physical_package_id"), "/", core)
			at, known := cores[key]
			if !known {
				at = len(out.CPUs)
				cores[key] = at
				out.CPUs = append(out.CPUs, NUMACore{CPU: core, Node: node})
			}
			out.CPUs[at].Siblings = append(out.CPUs[at].Siblings, thread)
		}
	}
	for i := range out.CPUs {
		slices.Sort(out.CPUs[i].Siblings)
	}
	slices.SortFunc(out.RAM, func(a, b NUMAMemory) int { return a.Node - b.Node })
	slices.SortFunc(out.CPUs, func(a, b NUMACore) int { return cmp.Or(a.Node-b.Node, a.Siblings[0]-b.Siblings[0]) })
	nics, err := folder(filepath.Join(root, "sys/class/net"), "network interfaces")
	errs = append(errs, err)
	for _, n := range nics {
		if node, err := strconv.Atoi(read(root, "sys/class/net", n.Name(), "device/numa_node")); err == nil {
			out.NICs = append(out.NICs, NUMANIC{Name: n.Name(), Node: node})
		}
	}
	return out, errors.Join(errs...)
}

// numbered returns the number in a name like node0.
func numbered(name, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil && n >= 0
}

// memTotal reads "Node 0 MemTotal:  478348 kB".
func memTotal(file string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("read the memory of a NUMA node: %w", err)
	}
	_, rest, ok := strings.Cut(string(b), "MemTotal:")
	if !ok {
		return 0, fmt.Errorf("read the memory of a NUMA node: %s does not say", file)
	}
	line, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(line), "kB")), 10, 64)
}
