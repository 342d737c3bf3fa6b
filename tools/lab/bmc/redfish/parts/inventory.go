// Package parts has the parts of a virtual machine as a Redfish service lists them: processors, memory, drives,
// readings, logs and lamps. They are data by personality, and the same for each machine of one.
package parts

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
)

type object = odata.Object

// machineParts are the parts of a machine as a controller lists them.
type machineParts struct {
	processors, cores, threads int // cores and threads of each processor
	set                        string
	dimms, dimmMiB             int
	drivesGiB                  []int64
	// raid are the drives of its RAID controller; none: it has no such controller.
	raid raidParts
	// lampAt is the property of the chassis' lamp: the newer LocationIndicatorActive, or IndicatorLED.
	lampAt string
}

// theParts is the table by personality; "" is of those that are not in it.
var theParts = map[string]machineParts{
	"": {processors: 2, cores: 16, threads: 32, set: "x86-64", dimms: 8, dimmMiB: 32 << 10,
		drivesGiB: []int64{447, 1788}, raid: sixDrives, lampAt: locationLamp},
	"dell-idrac9": dell, "dell-idrac9-5": dell, "dell-idrac10": dell,
	"hpe-gen9": {processors: 1, cores: 8, threads: 16, set: "x86-64", dimms: 4, dimmMiB: 16 << 10,
		drivesGiB: []int64{279}, lampAt: colourLamp},
	"supermicro": {processors: 2, cores: 12, threads: 24, set: "x86-64", dimms: 12, dimmMiB: 16 << 10,
		drivesGiB: []int64{894, 894}, raid: sixDrives, lampAt: colourLamp},
	"openbmc": {processors: 1, cores: 80, threads: 80, set: "ARM-A64", dimms: 8, dimmMiB: 16 << 10,
		drivesGiB: []int64{894}, lampAt: locationLamp},
	"ami": {processors: 1, cores: 8, threads: 16, set: "x86-64", dimms: 2, dimmMiB: 32 << 10,
		drivesGiB: []int64{476}, lampAt: colourLamp},
}

const (
	locationLamp = "LocationIndicatorActive"
	colourLamp   = "IndicatorLED"
)

// raidParts are a RAID controller and its drives, which are all the same.
type raidParts struct {
	id    string
	drive string // form of the drives' Ids
	count int
	gib   int64
}

var sixDrives = raidParts{"RAID-1", "%d", 6, 893}

// dell has Dell's names.
var dell = machineParts{processors: 2, cores: 16, threads: 32, set: "x86-64", dimms: 8, dimmMiB: 32 << 10,
	drivesGiB: []int64{447, 1788}, lampAt: locationLamp,
	raid: raidParts{"RAID.Integrated.1-1", "Disk.Bay.%d:Enclosure.Internal.0-1:RAID.Integrated.1-1", 6, 893}}

// Machine is the parts of one machine.
type Machine struct {
	system, manager, chassis string // paths
	machineParts
	readings

	mu      sync.Mutex
	lamps   map[string]string // by path
	failing map[string]State  // by path
	cleared bool              // the log
}

// New makes the parts of a machine of a personality whose system, manager and chassis have these paths.
func New(personality, system, manager, chassis string) *Machine {
	m := &Machine{system: system, manager: manager, chassis: chassis, machineParts: theParts[""],
		readings: theReadings[""], lamps: map[string]string{}, failing: map[string]State{}}
	if p, ok := theParts[personality]; ok {
		m.machineParts = p
	}
	if r, ok := theReadings[personality]; ok {
		m.readings = r
	}
	return m
}

func fine() object { return object{"State": "Enabled", "Health": "OK"} }

// Extend adds to a resource of the service its parts, logs and lamp.
func (m *Machine) Extend(path string, o object) {
	switch path {
	case m.system:
		maps.Copy(o, object{"SerialNumber": "CANARY-SERIAL-1", "SKU": "CANARY-SKU-1", "AssetTag": "",
			"Processors": odata.Link(path + "/Processors"), "Memory": odata.Link(path + "/Memory"),
			"Storage": odata.Link(path + "/Storage"),
			"ProcessorSummary": object{"Count": m.processors, "LogicalProcessorCount": m.processors * m.threads,
				"Model": "Lab CPU", "Status": fine()},
			"MemorySummary": object{"TotalSystemMemoryGiB": m.dimms * m.dimmMiB / 1024, "Status": fine()}})
		m.addLogs(path, o)
		m.rollUp(o)
	case m.manager:
		m.addLogs(path, o)
	case m.chassis:
		m.addReadings(o)
	}
	if path == m.system || path == m.chassis {
		o[m.lampAt] = m.lamp(path)
	}
}

// lamp is the state of a lamp in the words of its property.
func (m *Machine) lamp(path string) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	state := m.lamps[path]
	if m.lampAt == locationLamp {
		return state == "Lit"
	}
	if state == "" {
		return "Off"
	}
	return state
}

// HasLamp reports whether a resource has a lamp, IsLamp whether a change is one of a lamp and nothing else.
func (m *Machine) HasLamp(o object) bool {
	_, has := o[m.lampAt]
	return has
}

// IsLamp is described at HasLamp.
func (m *Machine) IsLamp(change object) bool { return m.HasLamp(change) && len(change) == 1 }

// SetLamp switches a lamp.
func (m *Machine) SetLamp(path string, change object) *odata.Problem {
	for key := range change {
		if key != m.lampAt {
			return odata.Fault("PropertyUnknown", key)
		}
	}
	v := change[m.lampAt]
	state, isText := v.(string)
	on, isBool := v.(bool)
	switch {
	case m.lampAt == locationLamp && !isBool, m.lampAt == colourLamp && !isText:
		return odata.Fault("PropertyValueTypeError", fmt.Sprint(v), m.lampAt)
	case m.lampAt == colourLamp && !slices.Contains([]string{"Lit", "Blinking", "Off"}, state):
		return odata.Fault("PropertyValueNotInList", state, m.lampAt)
	case on:
		state = "Lit"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lamps[path] = state
	return nil
}

// RAID returns the path of the RAID controller, and those of its drives with their size in bytes; none: there is no
// such controller.
func (m *Machine) RAID() (path string, drives []string, bytes int64) {
	path = m.system + "/Storage/" + m.raid.id
	for i := range m.raid.count {
		drives = append(drives, path+"/Drives/"+fmt.Sprintf(m.raid.drive, i+1))
	}
	return path, drives, m.raid.gib << 30
}

// Resource returns a part or a reading, or a collection of them; nil if there is none at the path.
func (m *Machine) Resource(path string) object {
	if o := m.part(path); o != nil {
		return o
	}
	return m.reading(path)
}

// part is a processor, memory module or drive, or a collection of them.
func (m *Machine) part(path string) object {
	system, storage := m.system, m.system+"/Storage/1"
	switch path {
	case system + "/Processors":
		return odata.Numbered(path, "ProcessorCollection", "Processors", m.processors)
	case system + "/Memory":
		return odata.Numbered(path, "MemoryCollection", "Memory", m.dimms)
	case system + "/Storage":
		ids := []string{"1"}
		if m.raid.count > 0 {
			ids = append(ids, m.raid.id)
		}
		return odata.Collection(path, "StorageCollection", "Storage", ids...)
	case storage:
		var drives []string
		for i := range m.drivesGiB {
			drives = append(drives, fmt.Sprintf("%s/Drives/%d", storage, i+1))
		}
		return storageOf(path, "1", drives)
	}
	if o := m.raidPart(path); o != nil {
		return o
	}
	arch := map[string]string{"x86-64": "x86", "ARM-A64": "ARM"}[m.set]
	if i, ok := odata.Number(path, system+"/Processors", m.processors); ok {
		return object{"@odata.id": path, "@odata.type": "#Processor.v1_20_0.Processor", "Id": fmt.Sprint(i),
			"Name": fmt.Sprint("Processor ", i), "ProcessorType": "CPU", "ProcessorArchitecture": arch,
			"InstructionSet": m.set, "Manufacturer": "Lab", "Model": "Lab CPU", "MaxSpeedMHz": 2400,
			"TotalCores": m.cores, "TotalThreads": m.threads, "Status": fine()}
	}
	if i, ok := odata.Number(path, system+"/Memory", m.dimms); ok {
		return object{"@odata.id": path, "@odata.type": "#Memory.v1_20_0.Memory", "Id": fmt.Sprint(i),
			"Name": fmt.Sprint("DIMM ", i), "MemoryType": "DRAM", "MemoryDeviceType": "DDR4", "CapacityMiB": m.dimmMiB,
			"SerialNumber": fmt.Sprint("CANARY-SERIAL-D", i), "Status": m.statusOf(path)}
	}
	if i, ok := odata.Number(path, storage+"/Drives", len(m.drivesGiB)); ok {
		return m.drive(path, fmt.Sprint(i), i, m.drivesGiB[i-1], "SATA")
	}
	return nil
}

// raidPart is the RAID controller or one of its drives.
func (m *Machine) raidPart(path string) object {
	at, drives, _ := m.RAID()
	if path == at && len(drives) > 0 {
		return storageOf(path, m.raid.id, drives)
	}
	if i := slices.Index(drives, path); i >= 0 {
		return m.drive(path, fmt.Sprintf(m.raid.drive, i+1), 100+i, m.raid.gib, "SAS")
	}
	return nil
}

func storageOf(path, id string, drives []string) object {
	var links []object
	for _, d := range drives {
		links = append(links, odata.Link(d))
	}
	return object{"@odata.id": path, "@odata.type": "#Storage.v1_15_0.Storage", "Id": id, "Name": "Storage",
		"Drives": links, "Drives@odata.count": len(links), "Status": fine()}
}

// drive is a drive with a number of its own in the machine.
func (m *Machine) drive(path, id string, number int, gib int64, protocol string) object {
	d := object{"@odata.id": path, "@odata.type": "#Drive.v1_20_0.Drive", "Id": id,
		"Name": fmt.Sprint("Drive ", id), "Manufacturer": "Lab", "Model": "Lab disk", "MediaType": "SSD",
		"Protocol": protocol, "CapacityBytes": gib << 30, "FailurePredicted": false,
		"SerialNumber": fmt.Sprint("CANARY-SERIAL-", number), "Status": m.statusOf(path),
		"Identifiers": []object{{"DurableName": fmt.Sprintf("5000C500000000%02X", number), "DurableNameFormat": "NAA"}}}
	d[m.lampAt] = m.lamp(path)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failing[path] == Predicted {
		d["FailurePredicted"] = true
	}
	return d
}
