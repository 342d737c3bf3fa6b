package image

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/ingot-metal/ingot/agent/step"
)

// LeastMemory is, in MiB, enough for every format on a machine with few cores.
const LeastMemory = 48

const (
	leastMemory = LeastMemory << 20
	fewCores    = 4

	// perCore keeps a further core busy: a piece that it unpacks, the packed bytes that wait for it, and the pieces
	// that were fetched ahead meanwhile.
	perCore = 12 << 20
	// perCorePacked of it is for parts of a compressed stream that are unpacked at once.
	perCorePacked = 8 << 20
)

// MemoryFor returns how many bytes the write of an image may use by default on a machine with so many cores and bytes
// of RAM: 48 MiB for up to four cores and 12 MiB for each further one, but at most a quarter of the RAM, and at least
// 48 MiB.
func MemoryFor(cores int, ram int64) int64 {
	return max(leastMemory, min(leastMemory+perCore*int64(max(0, cores-fewCores)), ram/4))
}

// further returns for how many cores beyond four the argument image_memory, in MiB, has memory; 0 is the default.
func further(wanted int64) (int, error) {
	ram := int64(0)
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		ram = int64(si.Totalram) * int64(si.Unit)
	}
	memory := MemoryFor(runtime.GOMAXPROCS(0), ram)
	if wanted != 0 {
		if memory = wanted << 20; ram > 0 && memory > max(leastMemory, ram/2) {
			return 0, step.Failf("set image_memory to less, or leave it out",
				"image_memory of %d MiB is more than half of this machine's memory, %d MiB", wanted, ram>>20)
		}
	}
	return int((memory - leastMemory) / perCore), nil
}
