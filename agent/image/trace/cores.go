package trace

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// Cores is how long all cores of the machine together have worked since its start, for whomever, and how long they have
// been there, both in clock ticks.
type Cores struct{ Worked, All int64 }

// ReadCores asks the kernel, see proc_stat(5). What can't be read is zero.
func ReadCores() Cores {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return Cores{}
	}
	return parseCores(b)
}

func parseCores(stat []byte) (c Cores) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	for i, text := range strings.Fields(string(line)) {
		if i == 0 { // "cpu"
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || i > 8 { // what follows is in the first ones already
			break
		}
		c.All += n
		if i != 4 && i != 5 { // idle, and idle with somebody waiting for a disk
			c.Worked += n
		}
	}
	return c
}

// Since returns which share of the cores' time was work since an earlier reading, 0 to 1; 0 if it is not known.
func (c Cores) Since(before Cores) float64 {
	if c.All <= before.All {
		return 0
	}
	return min(max(float64(c.Worked-before.Worked)/float64(c.All-before.All), 0), 1)
}

// allBusy is the share of the cores' time from which there is hardly a core to have.
const allBusy = 0.9

// coresInWords says how much the cores had to do. It is not a cause by itself: other programs may have used them.
func coresInWords(share float64) string {
	if share == 0 {
		return ""
	}
	words := fmt.Sprintf(" All cores of the machine together (%d) were in use %d %% of the time, by this and other programs",
		runtime.GOMAXPROCS(0), int(100*share+0.5))
	if share >= allBusy {
		words += ": stages have waited for a core, not only for each other"
	}
	return words + "."
}
