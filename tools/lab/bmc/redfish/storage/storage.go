// Package storage has the RAID controller of a virtual machine as a Redfish service shows it: its volumes, how they are
// made and deleted, at once, by a task, or at the next start of the machine.
//
// The drives are package parts'. Volumes are nothing but what the service shows: the machine's disks stay as they are.
package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/tasks"
)

type object = odata.Object

// Behaviours of controllers.
const (
	// ForgetsVolumes takes changes of volumes, and does not make them.
	ForgetsVolumes = "volumes are forgotten"
	// OldVolumeTypes shows VolumeType in place of RAIDType, as older services do.
	OldVolumeTypes = "volumes have a VolumeType"
)

// Drive is a drive of the controller.
type Drive struct {
	Path  string
	Bytes int64
}

// Options are how a controller behaves.
type Options struct {
	Personality string
	// Path is that of the storage.
	Path   string
	Drives []Drive
	Tasks  *tasks.Service
	// Has reports whether the controller behaves in some way, On whether the machine is on.
	Has func(behaviour string) bool
	On  func() bool
}

// model is how a personality's controller makes changes: the values of OperationApplyTime that it lists, the first of
// which is its own choice, and whether it makes a task of a change that is made at once.
type model struct {
	times []string
	tasks bool
}

const (
	applyTime          = "@Redfish.OperationApplyTime"
	immediate, onReset = "Immediate", "OnReset"
)

// models differ from the generic one.
var models = map[string]model{
	"":              {[]string{immediate, onReset}, false},
	"dell-idrac9":   {[]string{immediate, onReset}, true},
	"dell-idrac9-5": {[]string{onReset}, true},
	"dell-idrac10":  {[]string{immediate}, true},
	"hpe-ilo5":      {[]string{onReset}, true},
	"lenovo-xcc":    {nil, false},
	"supermicro":    {nil, true},
}

// levels are the RAID types: how few drives they need, and how many of n drives hold data.
var levels = map[string]struct {
	least, step int
	data        func(n int) int
	old         string
}{
	"RAID0":  {1, 1, func(n int) int { return n }, "NonRedundant"},
	"RAID1":  {2, 2, func(int) int { return 1 }, "Mirrored"},
	"RAID5":  {3, 1, func(n int) int { return n - 1 }, "StripedWithParity"},
	"RAID6":  {4, 1, func(n int) int { return n - 2 }, ""},
	"RAID10": {4, 2, func(n int) int { return n / 2 }, "SpannedMirrors"},
}

// Types are the RAID types that the controller has.
var Types = []string{"RAID0", "RAID1", "RAID5", "RAID6", "RAID10"}

// volume is one that was made. Guarded by Machine.mu.
type volume struct {
	id, name, level string
	bytes           int64
	drives          []string // paths
}

// use is how much of each drive it has.
func (v volume) use() int64 {
	n := int64(levels[v.level].data(len(v.drives)))
	return (v.bytes + n - 1) / n
}

// Machine is the RAID controller of a machine. One without drives has none.
type Machine struct {
	opt Options
	model

	mu      sync.Mutex
	volumes []volume
	issued  int
	asked   int // requests to make a volume that were taken
}

// New makes the controller, without volumes.
func New(opt Options) *Machine {
	m := &Machine{opt: opt, model: models[""]}
	if other, ok := models[opt.Personality]; ok {
		m.model = other
	}
	return m
}

// Volumes are the names and RAID types of the volumes, the oldest first.
func (m *Machine) Volumes() (all []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.volumes {
		all = append(all, fmt.Sprintf("%s %s %d", v.name, v.level, len(v.drives)))
	}
	return all
}

// Drives are those of the controller; none: there is no controller.
func (m *Machine) Drives() []Drive { return m.opt.Drives }

// Asked counts the requests to make a volume that were taken.
func (m *Machine) Asked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

// Make makes a volume of the first drives that have none, as a person does at the machine's setup.
func (m *Machine) Make(name, level string, drives int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := volume{name: name, level: level}
	for _, d := range m.opt.Drives {
		if len(v.drives) < drives && m.leftLocked(d) == d.Bytes {
			v.drives = append(v.drives, d.Path)
			v.bytes = d.Bytes * int64(levels[level].data(drives))
		}
	}
	m.addLocked(v)
}

func (m *Machine) leftLocked(d Drive) int64 {
	left := d.Bytes
	for _, v := range m.volumes {
		if slices.Contains(v.drives, d.Path) {
			left -= v.use()
		}
	}
	return left
}

// addLocked numbers a volume by the lowest number that is free, as controllers do.
func (m *Machine) addLocked(v volume) string {
	for n := 1; v.id == ""; n++ {
		id := fmt.Sprintf("Volume.%d", n)
		if !slices.ContainsFunc(m.volumes, func(o volume) bool { return o.id == id }) {
			v.id = id
		}
	}
	v.name = cmp.Or(v.name, "Virtual Disk "+v.id)
	m.issued++
	m.volumes = append(m.volumes, v)
	return v.id
}

func (m *Machine) collection() string { return m.opt.Path + "/Volumes" }

// Extend adds the volumes to the controller and to its drives.
func (m *Machine) Extend(path string, o object) {
	if len(m.opt.Drives) == 0 {
		return
	}
	if path == m.opt.Path {
		o["Volumes"] = odata.Link(m.collection())
		o["StorageControllers"] = []any{object{"@odata.id": path + "#/StorageControllers/0", "MemberId": "0",
			"Name": "RAID", "SupportedRAIDTypes": Types, "Status": object{"State": "Enabled", "Health": "OK"}}}
	}
	if !slices.ContainsFunc(m.opt.Drives, func(d Drive) bool { return d.Path == path }) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	used := []object{}
	for _, v := range m.volumes {
		if slices.Contains(v.drives, path) {
			used = append(used, odata.Link(m.collection()+"/"+v.id))
		}
	}
	o["Links"] = object{"Volumes": used, "Volumes@odata.count": len(used)}
}

// Resource returns a volume or their collection; nil if there is none at the path.
func (m *Machine) Resource(path string) object {
	if len(m.opt.Drives) == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if path == m.collection() {
		ids := []string{}
		for _, v := range m.volumes {
			ids = append(ids, v.id)
		}
		c := odata.Collection(path, "VolumeCollection", "Volumes", ids...)
		if m.times != nil {
			c["@Redfish.OperationApplyTimeSupport"] = object{
				"@odata.type": "#Settings.v1_3_5.OperationApplyTimeSupport", "SupportedValues": m.times}
		}
		return c
	}
	for i, v := range m.volumes {
		if path != m.collection()+"/"+v.id {
			continue
		}
		drives := []object{}
		for _, d := range v.drives {
			drives = append(drives, odata.Link(d))
		}
		o := object{"@odata.id": path, "@odata.type": "#Volume.v1_10_0.Volume", "Id": v.id, "Name": v.name,
			"RAIDType": v.level, "CapacityBytes": v.bytes, "Status": object{"State": "Enabled", "Health": "OK"},
			"Identifiers": []object{{"DurableNameFormat": "NAA", "DurableName": fmt.Sprintf("600508B1001C%020X", i+1)}},
			"Links":       object{"Drives": drives, "Drives@odata.count": len(drives)}}
		if m.opt.Has(OldVolumeTypes) {
			delete(o, "RAIDType")
			o["VolumeType"] = levels[v.level].old
		}
		return o
	}
	return nil
}

// Allow is the method that changes a resource, to be added to a list; "" if there is none.
func (m *Machine) Allow(path string) string {
	switch {
	case len(m.opt.Drives) > 0 && path == m.collection():
		return ", POST"
	case strings.HasPrefix(path, m.collection()+"/") && m.Resource(path) != nil:
		return ", DELETE"
	}
	return ""
}

// Do carries out a change of volumes; ok is false if the request is none.
func (m *Machine) Do(w http.ResponseWriter, method, path string, body object) (ok bool, problem *odata.Problem) {
	switch {
	case len(m.opt.Drives) == 0:
		return false, nil
	case method == http.MethodPost && path == m.collection():
		return true, m.create(w, body)
	case method == http.MethodDelete && strings.HasPrefix(path, m.collection()+"/"):
		return true, m.remove(w, path, body)
	}
	return false, nil
}

// raidWork is the type of its tasks.
const raidWork = "RAIDConfiguration"

// carryOut makes a change when the request says. done answers one that is made at once.
func (m *Machine) carryOut(w http.ResponseWriter, target string, body object, change func() error,
	done func()) *odata.Problem {
	at, timed := body[applyTime]
	text, _ := at.(string)
	switch {
	case timed && !slices.Contains(m.times, text):
		return odata.Fault("PropertyValueNotInList", fmt.Sprint(at), applyTime)
	case !timed && len(m.times) > 0:
		text = m.times[0]
	}
	switch {
	case !m.opt.On():
		return odata.Fault("GeneralError") // it has no power
	case text == onReset && len(m.opt.Tasks.Unfinished(raidWork)) > 0:
		return odata.Fault("ResourceInUse") // it takes one change for each start
	}
	if m.opt.Has(ForgetsVolumes) {
		change = func() error { return nil }
	}
	if text == onReset || m.tasks {
		m.opt.Tasks.Accepted(w, m.opt.Tasks.Add(tasks.Work{Name: "Configure: RAID", Type: raidWork, Target: target,
			Stages: []tasks.Stage{{AtStart: text == onReset, Do: func(context.Context) error { return change() }}}}))
		return nil
	}
	if err := change(); err != nil {
		return odata.Fault("PropertyValueNotInList", err.Error(), "Links/Drives")
	}
	done()
	return nil
}

func (m *Machine) create(w http.ResponseWriter, body object) *odata.Problem {
	for key := range body {
		if !slices.Contains([]string{"RAIDType", "CapacityBytes", "Name", "Links", applyTime}, key) {
			return odata.Fault("PropertyUnknown", key)
		}
	}
	v := volume{}
	v.name, _ = body["Name"].(string)
	v.level, _ = body["RAIDType"].(string)
	size, sized := body["CapacityBytes"].(float64)
	links, _ := body["Links"].(object)
	list, _ := links["Drives"].([]any)
	least := int64(1) << 62
	for _, one := range list {
		ref, _ := one.(object)
		path, _ := ref["@odata.id"].(string)
		i := slices.IndexFunc(m.opt.Drives, func(d Drive) bool { return d.Path == path })
		if i < 0 || slices.Contains(v.drives, path) {
			return odata.Fault("PropertyValueNotInList", path, "Links/Drives")
		}
		v.drives = append(v.drives, path)
		least = min(least, m.opt.Drives[i].Bytes)
	}
	level, known := levels[v.level]
	switch {
	case !known:
		return odata.Fault("PropertyValueNotInList", v.level, "RAIDType")
	case len(v.drives) < level.least || len(v.drives)%level.step != 0 || v.level == "RAID1" && len(v.drives) != 2:
		return odata.Fault("PropertyMissing", "Links/Drives")
	case sized && (size < 1 || size > float64(least)*float64(level.data(len(v.drives)))):
		return odata.Fault("PropertyValueNotInList", fmt.Sprint(size), "CapacityBytes")
	}
	v.bytes = int64(size)
	id := ""
	change := func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		left := int64(1) << 62
		for _, d := range m.opt.Drives {
			if slices.Contains(v.drives, d.Path) {
				left = min(left, m.leftLocked(d))
			}
		}
		if v.bytes == 0 {
			v.bytes = left * int64(level.data(len(v.drives)))
		}
		if v.bytes == 0 || v.use() > left {
			return errors.New("the drives have not enough room")
		}
		id = m.addLocked(v)
		return nil
	}
	problem := m.carryOut(w, m.collection(), body, change, func() {
		path := m.collection() + "/" + id
		w.Header().Set("Location", path)
		odata.Write(w, http.StatusCreated, m.Resource(path))
	})
	if problem == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.asked++
	}
	return problem
}

func (m *Machine) remove(w http.ResponseWriter, path string, body object) *odata.Problem {
	if m.Resource(path) == nil {
		return odata.Fault("ResourceMissingAtURI", path)
	}
	return m.carryOut(w, path, body, func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.volumes = slices.DeleteFunc(m.volumes, func(v volume) bool { return m.collection()+"/"+v.id == path })
		return nil
	}, func() { w.WriteHeader(http.StatusNoContent) })
}
