package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/ingot-metal/ingot/conductor/observe/trace"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// report is the measurement of a run.
type report struct {
	Image    string `json:"image"`
	Firmware string `json:"firmware"`
	NIC      string `json:"nic"`
	Bus      string `json:"bus"`
	Rounds   int    `json:"rounds"`
	Runs     []run1 `json:"runs"`
}

// added are the seconds of firmware that are added for each boot in the computed columns.
var added = []float64{60, 300}

func (r report) of(way string) []run1 {
	var out []run1
	for _, x := range r.Runs {
		if x.Way == way {
			out = append(out, x)
		}
	}
	return out
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func each(runs []run1, f func(run1) float64) []float64 {
	var out []float64
	for _, x := range runs {
		out = append(out, f(x))
	}
	return out
}

// with is how long a deployment takes when each way through the firmware takes so many seconds more.
func with(x run1, firmware float64) float64 {
	return x.Seconds + float64(x.Trace.FirmwareBoots)*firmware
}

// print shows the times, the spans side by side, and one waterfall of each way.
func (r report) print(w io.Writer) error {
	fmt.Fprintf(w, "\nFrom the request to the login prompt; image %s, firmware %s, network card %s, disk %s; medians of %d\n\n", r.Image, r.Firmware, r.NIC, r.Bus, r.Rounds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\tboots through firmware\tmeasured (+0 s)\t")
	for _, s := range added {
		fmt.Fprintf(t, "computed (+%.0f s a boot)\t", s)
	}
	fmt.Fprintln(t)
	ways := []string{ordinary, zero}
	for _, way := range ways {
		runs := r.of(way)
		fmt.Fprintf(t, "%s\t%.0f\t%.1f s\t", way,
			median(each(runs, func(x run1) float64 { return float64(x.Trace.FirmwareBoots) })),
			median(each(runs, func(x run1) float64 { return x.Seconds })))
		for _, s := range added {
			fmt.Fprintf(t, "%.1f s\t", median(each(runs, func(x run1) float64 { return with(x, s) })))
		}
		fmt.Fprintln(t)
	}
	fmt.Fprint(t, "ratio\t\t")
	for _, s := range append([]float64{0}, added...) {
		ratio := 0.0
		if under := median(each(r.of(zero), func(x run1) float64 { return with(x, s) })); under > 0 {
			ratio = median(each(r.of(ordinary), func(x run1) float64 { return with(x, s) })) / under
		}
		fmt.Fprintf(t, "%.1f\t", ratio)
	}
	fmt.Fprintln(t)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nThe computed columns add that much for each boot through the firmware, as counted from the trace.")

	fmt.Fprintln(w, "\nWhere the time went, in seconds")
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\t%s\t%s\t\n", ordinary, zero)
	for _, name := range r.spans() {
		cells, some := "", false
		for _, way := range ways {
			v := median(each(r.of(way), func(x run1) float64 { return spent(x.Trace)[name] }))
			if v < 0.005 {
				cells += "-\t"
			} else {
				cells, some = cells+fmt.Sprintf("%.2f\t", v), true
			}
		}
		if some {
			fmt.Fprintf(t, "%s\t%s\n", name, cells)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, way := range ways {
		runs := r.of(way)
		if len(runs) == 0 {
			continue
		}
		fmt.Fprintf(w, "\nThe last deployment, %s\n", way)
		if err := trace.Waterfall(w, runs[len(runs)-1].Trace, 110); err != nil {
			return err
		}
	}
	if last := r.of(zero); len(last) > 0 {
		fmt.Fprintf(w, "\nNo firmware ran in %d of %d zero-reboot deployments between the request and the login prompt: the trace has no start of the machine,\nand neither have its console nor the lab's count of starts.\n",
			len(slices.DeleteFunc(slices.Clone(last),
				func(x run1) bool { return x.Starts != 0 || x.Trace.FirmwareBoots != 0 })), len(last))
	}
	return nil
}

// spent sums a trace by the names of its leaves; the conductor's, and the controller's, are one sum each.
func spent(t rest.Trace) map[string]float64 {
	out := map[string]float64{}
	for _, s := range trace.Leaves(t.Spans) {
		out[label(s)] += s.Seconds
	}
	return out
}

func label(s rest.Span) string {
	switch s.Kind {
	case trace.Conductor:
		return "conductor"
	case trace.BMC:
		return "power, BMC"
	case trace.Network:
		return "network boot"
	case trace.Kernel, trace.Agent:
		return "the agent's boot"
	}
	return s.Name
}

// spans are the names in the order in which they first come.
func (r report) spans() []string {
	var out []string
	for _, x := range r.Runs {
		for _, s := range trace.Leaves(x.Trace.Spans) {
			if !slices.Contains(out, label(s)) {
				out = append(out, label(s))
			}
		}
	}
	return out
}
