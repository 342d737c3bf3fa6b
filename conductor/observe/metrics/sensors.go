package metrics

import (
	"bufio"
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/ingot-metal/ingot/conductor/node"
)

// The series of single nodes have the names and labels of ironic-prometheus-exporter, so that dashboards made for
// Ironic work: node_name, node_uuid, instance_uuid, entity_id and sensor_id; a status is 0 for what is well. They are
// written as text rather than through the registry, which takes several times as long for a hundred thousand of them,
// and as much memory again.

var nodeLabels = []string{"node_name", "node_uuid", "instance_uuid", "entity_id", "sensor_id"}

// family is one metric of single nodes.
type family struct{ name, help string }

// contexts are where temperatures are measured, in the words of Redfish, without spaces and in lower case. Any other is
// "other": names of metrics come from here alone.
var contexts = []string{"room", "intake", "exhaust", "front", "back", "upper", "lower", "cpu", "gpu", "backplane",
	"systemboard", "powersupply", "voltageregulator", "storagedevice", "networkingdevice", "computebay", "storagebay",
	"networkbay", "expansionbay", "powersupplybay", "memory", "chassis", "fan", "accelerator", "asic",
	"coolingsubsystem", other}

// families are all of them; temperatures come first, in the order of contexts.
var families = func() (all []family) {
	for _, c := range contexts {
		all = append(all, family{"baremetal_temp_" + c + "_celsius", "Temperature, by where it is measured: " + c + "."})
	}
	return append(all,
		family{"baremetal_temperature_status", "Whether a temperature is well, as the controller says: 0, or 1."},
		family{"baremetal_fan_status", "Whether a fan is well: 0, or 1."},
		family{"baremetal_power_status", "Whether a power supply is well: 0, or 1."},
		family{"baremetal_drive_status", "Whether a drive is well: 0, or 1, also when it says that it will fail."},
		family{"baremetal_fan_rpm", "Speed of a fan."},
		family{"baremetal_voltage_volts", "A voltage."},
		family{"baremetal_current", "A current, in amperes."},
		family{"baremetal_pwr_consumption", "Power, in watts."},
		family{"baremetal_last_payload_timestamp_seconds", "When the node's sensors were read, in Unix time."})
}()

func familyOf(name string) uint8 {
	return uint8(slices.IndexFunc(families, func(f family) bool { return f.name == name }))
}

var (
	temperatureStatus, fanStatus = familyOf("baremetal_temperature_status"), familyOf("baremetal_fan_status")
	powerStatus, driveStatus     = familyOf("baremetal_power_status"), familyOf("baremetal_drive_status")
	readAt                       = familyOf("baremetal_last_payload_timestamp_seconds")
	// readings are the families of sensors by kind and unit.
	readings = map[[2]string]uint8{{"fan", "RPM"}: familyOf("baremetal_fan_rpm"),
		{"voltage", "V"}: familyOf("baremetal_voltage_volts"), {"current", "A"}: familyOf("baremetal_current"),
		{"power", "W"}: familyOf("baremetal_pwr_consumption")}
)

// line is one series of a node. Its labels are shared with those of the same name on other nodes.
type line struct {
	family uint8
	labels unique.Handle[string] // `,entity_id="...",sensor_id="..."`, or empty
	value  float64
}

// machine is one of which sensors were read.
type machine struct {
	labels string // those of the node
	health string
	at     time.Time
	has    uint64 // families that lines have, as bits
	lines  []line // by family
}

// nodeSeries keeps the newest reading of each node.
type nodeSeries struct {
	most  int // series
	fresh time.Duration

	mu     sync.Mutex
	byUUID map[string]*machine
}

// Reading shows a node's sensors, in place of its earlier ones.
func (s *Set) Reading(n *node.Node, r node.Reading) {
	if s.nodes.most <= 0 {
		return
	}
	m := &machine{health: "none", at: r.At, labels: `node_name="` + escaped(n.Name) + `",node_uuid="` +
		escaped(n.UUID) + `",instance_uuid="` + escaped(n.InstanceUUID) + `"`}
	if slices.Contains([]string{node.HealthOK, node.HealthWarning, node.HealthCritical}, r.Health) {
		m.health = r.Health
	}
	type series struct {
		family uint8
		labels unique.Handle[string]
	}
	seen := map[series]bool{} // two sensors of one name are one to a scraper
	add := func(family uint8, value float64, entity, sensor string) {
		labels := ""
		if entity != "" {
			labels = `,entity_id="` + escaped(entity) + `",sensor_id="` + escaped(sensor) + `"`
		}
		l := line{family, unique.Make(labels), value}
		if !seen[series{family, l.labels}] {
			seen[series{family, l.labels}] = true
			m.lines, m.has = append(m.lines, l), m.has|1<<family
		}
	}
	add(readAt, float64(r.At.UnixMilli())/1000, "", "")
	for _, x := range r.Sensors {
		where := cmp.Or(x.Context, x.Kind)
		if x.Value != nil {
			if x.Kind == "temperature" {
				add(temperatureIn(x.Context), *x.Value, where, x.Name)
			} else if f, ok := readings[[2]string{x.Kind, x.Unit}]; ok {
				add(f, *x.Value, where, x.Name)
			}
		}
		if x.Health != "" && x.Kind == "temperature" {
			add(temperatureStatus, status(x.Health), where, x.Name)
		} else if x.Health != "" && x.Kind == "fan" {
			add(fanStatus, status(x.Health), where, x.Name)
		}
	}
	for _, p := range r.Checked {
		switch p.Kind {
		case "drive":
			add(driveStatus, max(status(p.Health), truth(p.Predicted)), "HDD", p.Name)
		case "power supply":
			add(powerStatus, status(p.Health), "PSU", p.Name)
		}
	}
	slices.SortStableFunc(m.lines, func(a, b line) int { return cmp.Compare(a.family, b.family) })
	s.nodes.mu.Lock()
	defer s.nodes.mu.Unlock()
	s.nodes.byUUID[n.UUID] = m
}

// Forget shows the sensors of a node no more: it is gone, or another conductor's.
func (s *Set) Forget(uuid string) {
	s.nodes.mu.Lock()
	defer s.nodes.mu.Unlock()
	delete(s.nodes.byUUID, uuid)
}

func status(health string) float64 { return truth(health != node.HealthOK) }

func temperatureIn(context string) uint8 {
	c := strings.ToLower(strings.ReplaceAll(context, " ", ""))
	if i := slices.Index(contexts, c); i >= 0 {
		return uint8(i)
	}
	return uint8(len(contexts) - 1)
}

// longestLabel bounds a label of a node's series, in bytes.
const longestLabel = 128

var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// escaped makes a label's value of a text of a machine or a tenant.
func escaped(text string) string {
	if len(text) > longestLabel {
		text = text[:longestLabel]
	}
	return escapes.Replace(strings.ToValidUTF8(text, "\ufffd"))
}

// shown are the machines whose readings are new enough, by UUID, and as many as there may be series. It removes those
// that are too old, and returns how many series are left out.
func (n *nodeSeries) shown(now time.Time) (all []*machine, series, dropped int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fresh > 0 {
		maps.DeleteFunc(n.byUUID, func(_ string, m *machine) bool { return now.Sub(m.at) > n.fresh })
	}
	for _, id := range slices.Sorted(maps.Keys(n.byUUID)) {
		m := n.byUUID[id]
		if series+len(m.lines) > n.most {
			dropped += len(m.lines)
			continue
		}
		series += len(m.lines)
		all = append(all, m)
	}
	return all, series, dropped
}

// healths counts the machines by health.
func (n *nodeSeries) healths(now time.Time) map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[string]int{}
	for _, m := range n.byUUID {
		if n.fresh <= 0 || now.Sub(m.at) <= n.fresh {
			out[m.health]++
		}
	}
	return out
}

// write writes the series of machines.
func write(b *bufio.Writer, machines []*machine) error {
	var text []byte
	for i, f := range families {
		head := false
		for _, m := range machines {
			if m.has&(1<<i) == 0 {
				continue
			}
			text = text[:0]
			if !head {
				head = true
				text = append(text, "# HELP "+f.name+" "+f.help+"\n# TYPE "+f.name+" gauge\n"...)
			}
			for _, l := range m.lines {
				if int(l.family) != i {
					continue
				}
				text = append(append(append(text, f.name...), '{'), m.labels...)
				text = append(append(text, l.labels.Value()...), "} "...)
				text = append(strconv.AppendFloat(text, l.value, 'g', -1, 64), '\n')
			}
			if _, err := b.Write(text); err != nil {
				return err
			}
		}
	}
	return b.Flush()
}
