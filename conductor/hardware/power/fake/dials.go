package fake

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/ingot-metal/ingot/conductor/hardware/power"
	"github.com/ingot-metal/ingot/conductor/rest/exact"
)

// Range is a delay between Min and Max.
type Range struct{ Min, Max time.Duration }

// At picks from the range by a number in [0, 1): short delays more often than long ones, as in life.
func (r Range) At(u float64) time.Duration {
	return r.Min + time.Duration(float64(r.Max-r.Min)*(1-math.Sqrt(1-u)))
}

// Delay reads how long an act of a kind of interface ("power", "deploy", ...) takes: fake_<kind>_delay of driver_info,
// else fake_delay. A delay is a number of seconds, a duration ("500ms"), or two of them with a comma between: a random
// time from one to the other.
func Delay(info map[string]any, kind string) (Range, error) {
	key := "fake_" + kind + "_delay"
	if info[key] == nil {
		key = "fake_delay"
	}
	r, err := parseRange(info[key])
	if err != nil {
		return r, fmt.Errorf("%s: %w", key, err)
	}
	return r, nil
}

// maxDelay keeps a slip of the pen from blocking a node for years.
const maxDelay = 24 * time.Hour

func parseRange(v any) (Range, error) {
	switch v := exact.Plain(v).(type) {
	case nil:
		return Range{}, nil
	case float64:
		return checkRange(v*float64(time.Second), v*float64(time.Second))
	case int:
		return parseRange(float64(v))
	case string:
		from, to, two := strings.Cut(v, ",")
		if !two {
			to = from
		}
		a, err := parseDelay(from)
		if err != nil {
			return Range{}, err
		}
		b, err := parseDelay(to)
		if err != nil {
			return Range{}, err
		}
		return checkRange(a, b)
	}
	return Range{}, fmt.Errorf("is a %T, not a delay", v)
}

func checkRange(a, b float64) (Range, error) {
	switch {
	case a < 0 || b < 0:
		return Range{}, errors.New("is negative")
	case !(a <= float64(maxDelay)) || !(b <= float64(maxDelay)): // neither is NaN
		return Range{}, fmt.Errorf("is more than %s", maxDelay)
	case b < a:
		return Range{}, errors.New("ends before it begins: write the shorter delay first")
	}
	return Range{time.Duration(a), time.Duration(b)}, nil
}

// parseDelay returns nanoseconds.
func parseDelay(s string) (float64, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return 0, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		return float64(d), nil
	}
	d, err := time.ParseDuration(s + "s")
	if err != nil {
		return 0, fmt.Errorf("%q is not a delay", s)
	}
	return float64(d), nil
}

// Fails reports whether fake_fail of driver_info makes an action of this kind of interface fail.
func Fails(info map[string]any, kind string) bool {
	m, _ := info["fake_fail"].(map[string]any)
	for k := range m {
		if strings.HasPrefix(k, kind+".") {
			return true
		}
	}
	return false
}

// fault is one value of fake_fail: a message to fail with every time, a number of times to fail before it works, or an
// object with both.
type fault struct {
	message string
	times   int // negative: every time
}

func parseFault(v any) (fault, error) {
	switch v := exact.Plain(v).(type) {
	case string:
		return fault{message: v, times: -1}, nil
	case bool:
		if v {
			return fault{times: -1}, nil
		}
		return fault{}, nil
	case int:
		return fault{times: v}, nil
	case float64:
		if v < 0 || v != math.Trunc(v) || v > 1e6 {
			return fault{}, fmt.Errorf("%v is not a number of times", v)
		}
		return fault{times: int(v)}, nil
	case map[string]any:
		f := fault{times: -1}
		for k, e := range v {
			switch k {
			case "message":
				s, ok := e.(string)
				if !ok {
					return f, fmt.Errorf("message is a %T, not a text", e)
				}
				f.message = s
			case "times":
				n, ok := exact.Float(e)
				if !ok || n < 0 || n != math.Trunc(n) || n > 1e6 {
					return f, fmt.Errorf("times is %v, not a number of times", e)
				}
				f.times = int(n)
			default:
				return f, fmt.Errorf("has %q; only message and times are known", k)
			}
		}
		return f, nil
	}
	return fault{}, fmt.Errorf("is a %T: give a message, a number of times, or an object with message and times", v)
}

// CheckDials returns the first thing that is wrong with the delays and failures in driver_info.
func CheckDials(info map[string]any) error {
	for k := range info {
		if k == "fake_delay" || strings.HasPrefix(k, "fake_") && strings.HasSuffix(k, "_delay") {
			if _, err := parseRange(info[k]); err != nil {
				return fmt.Errorf("%s: %w", k, err)
			}
		}
	}
	if info["fake_fail"] == nil {
		return nil
	}
	m, ok := info["fake_fail"].(map[string]any)
	if !ok {
		return fmt.Errorf(
			"fake_fail is a %T, not an object such as {\"deploy.write_image\": \"message\", \"power.on\": 2}",
			info["fake_fail"])
	}
	for k, v := range m {
		if iface, act, ok := strings.Cut(k, "."); !ok || iface == "" || act == "" {
			return fmt.Errorf("fake_fail: %q is not interface.step, such as deploy.write_image or power.on", k)
		}
		if _, err := parseFault(v); err != nil {
			return fmt.Errorf("fake_fail %s: %w", k, err)
		}
	}
	return nil
}

// Fault returns an error when fake_fail says that an act ("power.on", "deploy.write_image") of the machine fails now.
// One that fails a number of times is counted here, anew when the number is changed, and by each process for itself.
func (ms *Machines) Fault(id string, info map[string]any, act string) error {
	m, _ := info["fake_fail"].(map[string]any)
	v, ok := m[act]
	if !ok {
		return nil
	}
	f, err := parseFault(v)
	if err != nil {
		return fmt.Errorf("fake_fail %s: %w", act, err)
	}
	if f.times == 0 {
		return nil
	}
	message := cmp.Or(f.message, "fake_fail has "+act+" fail")
	if f.times < 0 {
		return &Fault{Message: message}
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.faults == nil {
		ms.faults = map[[2]string]counted{}
	}
	key := [2]string{id, act}
	c := ms.faults[key]
	if c.of != f.times {
		c = counted{of: f.times}
	}
	if c.done >= c.of {
		return nil
	}
	c.done++
	ms.faults[key] = c
	return &Fault{Message: fmt.Sprintf("%s (%d of %d)", message, c.done, c.of), Passes: true}
}

type counted struct{ of, done int }

// Fault is a failure that was dialled in.
type Fault struct {
	Message string
	Passes  bool // it goes away by itself
}

func (f *Fault) Error() string { return f.Message }

// powerFault is Fault as an error of a power driver.
func (d *Driver) powerFault(act string) error {
	err := d.ms.Fault(d.id, d.info, act)
	if err == nil {
		return nil
	}
	kind := power.Refused
	var f *Fault
	if errors.As(err, &f) && f.Passes {
		kind = power.Unreachable
	}
	return &power.Error{Kind: kind, Op: strings.Replace(act, ".", " ", 1), Addr: d.Key(), Err: err}
}
