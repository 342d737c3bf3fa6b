// Package update has the firmware of a virtual machine and its controller: versions in the inventory and where else
// they are shown, and updates that a controller carries out with a file that it fetches itself.
//
// A file is of the lab's own format (File). Its component and whether it is whole are seen when it was read. New
// firmware of the BIOS is in use from the next start of the machine on, that of the controller after a restart of its
// own.
package update

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/odata"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/tasks"
)

type object = odata.Object

// Components of a machine.
const (
	BIOS = "bios"
	BMC  = "bmc"
	NIC  = "nic"
)

// NICSerial is the serial number of the network card.
const NICSerial = "NIC0001"

// Options are how a controller treats updates.
type Options struct {
	System, Manager, Chassis string // paths
	// Starts counts the starts of the machine.
	Starts func() int64
	// Restart restarts the controller.
	Restart func()
	Tasks   *tasks.Service
	// DoneBeforeStart ends the task of a BIOS update before the start from which on the new BIOS is in use.
	DoneBeforeStart bool
	// Lies ends updates with success and keeps the firmware.
	Lies bool
	// NoDowngrade declines firmware that is older.
	NoDowngrade bool
	// Prefix is before the BIOS's version where it is shown.
	Prefix string
	// NotReady is how many requests are declined with Dell's SYS518 before one is taken.
	NotReady int
}

// shape is how a personality shows its firmware. Names and versions are like those of such machines.
type shape struct {
	ids       map[string]string // of members of the inventory, by component
	versions  map[string]string
	nicStarts bool // a network card needs a start of the machine
	none      bool // there is no UpdateService
	protocols []string
}

var generic = shape{ids: map[string]string{BIOS: "BIOS", BMC: "BMC", NIC: "NIC.1"},
	versions: map[string]string{BIOS: "2.1.0", NIC: "22.31.6"}, protocols: []string{"HTTP", "HTTPS"}}

var shapes = map[string]shape{
	"dell-idrac9": {ids: map[string]string{BIOS: "Installed-159-2.1.0__BIOS.Setup.1-1",
		BMC: "Installed-25227-7.00.00.171__iDRAC.Embedded.1-1", NIC: "Installed-104089-22.31.6__NIC.Integrated.1-1-1"},
		versions: generic.versions, nicStarts: true, protocols: []string{"HTTP", "NFS", "CIFS", "TFTP", "HTTPS"}},
	"dell-idrac10": {ids: map[string]string{BIOS: "Installed-159-2.1.0__BIOS.Setup.1-1",
		BMC: "Installed-25227-1.20.50.00__iDRAC.Embedded.1-1", NIC: "Installed-104089-22.31.6__NIC.Integrated.1-1-1"},
		versions: generic.versions, nicStarts: true, protocols: []string{"HTTP", "HTTPS"}},
	"hpe-gen9": {versions: map[string]string{BIOS: "P89 v2.76 (10/21/2019)", NIC: "22.31.6"}, none: true},
	"hpe-ilo5": {ids: map[string]string{BMC: "1", BIOS: "2", NIC: "5"},
		versions: map[string]string{BIOS: "U30 v2.68 (07/14/2022)", NIC: "22.31.6"}},
	"hpe-ilo6": {ids: map[string]string{BMC: "1", BIOS: "2", NIC: "5"},
		versions: map[string]string{BIOS: "U54 v1.32 (02/23/2023)", NIC: "22.31.6"}},
	"lenovo-xcc": {ids: map[string]string{BMC: "BMC-Primary", BIOS: "UEFI", NIC: "Slot_1.Bundle"},
		versions:  map[string]string{BIOS: "3.20", NIC: "22.31.6"},
		protocols: []string{"SFTP", "TFTP", "HTTP", "HTTPS"}},
	"supermicro": {ids: generic.ids, versions: generic.versions, protocols: []string{"HTTP", "HTTPS"}},
	"openbmc": {ids: map[string]string{BMC: "b6a8f2d1", BIOS: "bios_active", NIC: "nic_0"}, versions: generic.versions,
		protocols: []string{"TFTP", "HTTP", "HTTPS"}},
}

// Machine is the firmware of one machine. Safe for concurrent use.
type Machine struct {
	opt Options
	shape

	mu       sync.Mutex
	versions map[string]string
	staged   string // version of the BIOS that is in use from the next start on
	starts   int64
	notReady int
	made     []string
}

// New makes the firmware of a machine of a personality, whose controller has this version.
func New(personality, version string, opt Options) *Machine {
	sh, ok := shapes[personality]
	if !ok {
		sh = generic
	}
	m := &Machine{opt: opt, shape: sh, versions: map[string]string{BMC: version}, starts: opt.Starts(),
		notReady: opt.NotReady}
	for c, v := range sh.versions {
		m.versions[c] = v
	}
	return m
}

// Version is that of a component, as it is shown.
func (m *Machine) Version(component string) string {
	if component == BIOS {
		return m.opt.Prefix + m.version(component)
	}
	return m.version(component)
}

func (m *Machine) version(component string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if starts := m.opt.Starts(); starts != m.starts {
		if m.staged != "" {
			m.setLocked(BIOS, m.staged)
		}
		m.starts, m.staged = starts, ""
	}
	return m.versions[component]
}

// Made lists what was brought into use, in order: "bios 2.2.0".
func (m *Machine) Made() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.made)
}

func (m *Machine) setLocked(component, version string) {
	m.made = append(m.made, component+" "+version)
	if !m.opt.Lies {
		m.versions[component] = version
	}
}

const (
	servicePath   = odata.Root + "/UpdateService"
	inventoryPath = servicePath + "/FirmwareInventory"
	// Target is the path of SimpleUpdate.
	Target = servicePath + "/Actions/UpdateService.SimpleUpdate"
)

func (m *Machine) adapters() string { return m.opt.Chassis + "/NetworkAdapters" }

// Extend adds links and versions to a resource of the service.
func (m *Machine) Extend(path string, o object) {
	switch path {
	case odata.Root:
		if !m.none {
			o["UpdateService"] = odata.Link(servicePath)
		}
	case m.opt.System:
		o["BiosVersion"] = m.Version(BIOS)
	case m.opt.Manager:
		o["FirmwareVersion"] = m.Version(BMC)
	case m.opt.Chassis:
		o["NetworkAdapters"] = odata.Link(m.adapters())
	}
}

// Resource returns a part of the UpdateService, or a network card; nil if there is none at the path.
func (m *Machine) Resource(path string) object {
	ok := object{"State": "Enabled", "Health": "OK"}
	switch {
	case path == m.adapters():
		return odata.Collection(path, "NetworkAdapterCollection", "Network cards", "NIC.1")
	case path == m.adapters()+"/NIC.1":
		return object{"@odata.id": path, "@odata.type": "#NetworkAdapter.v1_11_0.NetworkAdapter", "Id": "NIC.1",
			"Name": "Network card", "Manufacturer": "Lab", "Model": "Two ports", "SerialNumber": NICSerial,
			"Status": ok, "Controllers": []any{object{"FirmwarePackageVersion": m.Version(NIC)}}}
	case m.none:
		return nil
	case path == servicePath:
		action := object{"target": Target}
		if m.protocols != nil {
			action["TransferProtocol@Redfish.AllowableValues"] = m.protocols
		}
		return object{"@odata.id": path, "@odata.type": "#UpdateService.v1_14_0.UpdateService", "Id": "UpdateService",
			"Name": "Update Service", "ServiceEnabled": true, "Status": ok,
			"FirmwareInventory": odata.Link(inventoryPath), "Actions": object{"#UpdateService.SimpleUpdate": action}}
	case path == inventoryPath:
		return odata.Collection(path, "SoftwareInventoryCollection", "Firmware", m.ids[BIOS], m.ids[BMC], m.ids[NIC])
	}
	for c, id := range m.ids {
		if path == inventoryPath+"/"+id {
			return object{"@odata.id": path, "@odata.type": "#SoftwareInventory.v1_10_2.SoftwareInventory", "Id": id,
				"Name": strings.ToUpper(c), "Version": m.Version(c), "Updateable": true, "Status": ok}
		}
	}
	return nil
}

// Simple carries out SimpleUpdate: it returns the ID of its task.
func (m *Machine) Simple(body object, raw string) (id string, problem *odata.Problem) {
	const action = "UpdateService.SimpleUpdate"
	text, _ := body["ImageURI"].(string)
	u, err := url.Parse(text)
	protocol, given := body["TransferProtocol"].(string)
	switch {
	case text == "":
		return "", odata.Fault("ActionParameterMissing", action, "ImageURI")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", odata.Fault("ActionParameterValueFormatError", text, "ImageURI", action)
	case given && (m.protocols != nil && !slices.Contains(m.protocols, protocol) ||
		!strings.EqualFold(protocol, u.Scheme)):
		return "", odata.Fault("ActionParameterValueNotInList", protocol, "TransferProtocol", action)
	}
	for key, v := range body {
		list, isList := v.([]any)
		switch {
		case slices.Contains([]string{"ImageURI", "TransferProtocol", "Username", "Password",
			"@Redfish.OperationApplyTime"}, key):
		case key != "Targets":
			return "", odata.Fault("ActionParameterUnknown", action, key)
		case !isList:
			return "", odata.Fault("ActionParameterValueTypeError", fmt.Sprint(v), key, action)
		}
		for _, target := range list {
			if path, _ := target.(string); m.Resource(path) == nil {
				return "", odata.Fault("ActionParameterValueNotInList", path, key, action)
			}
		}
	}
	m.mu.Lock()
	early := m.notReady > 0
	m.notReady--
	m.mu.Unlock()
	if early {
		return "", &odata.Problem{ID: "SYS518", Registry: "IDRAC.2.8.", Status: http.StatusBadRequest}
	}
	if len(m.opt.Tasks.Unfinished(jobType)) > 0 {
		return "", odata.Fault("ResourceInUse")
	}
	user, _ := body["Username"].(string)
	password, _ := body["Password"].(string)
	return m.opt.Tasks.Add(tasks.Work{Name: "Firmware Update", Type: jobType, Target: Target, Body: raw,
		Stages: []tasks.Stage{{Then: func(ctx context.Context) ([]tasks.Stage, error) {
			return m.fetched(ctx, u, user, password)
		}}}}), nil
}

const jobType = "FirmwareUpdate"

// fetched reads a file and returns what is to be done with it.
func (m *Machine) fetched(ctx context.Context, u *url.URL, user, password string) ([]tasks.Stage, error) {
	component, version, err := fetch(ctx, u, user, password)
	if err != nil {
		return nil, err
	}
	now := m.version(component)
	if m.opt.NoDowngrade && version < now {
		return nil, refusal(fmt.Sprintf("The file has version %s, which is older than %s.", version, now))
	}
	use := func(context.Context) error {
		m.version(component) // what a start has brought
		m.mu.Lock()
		defer m.mu.Unlock()
		if component == BIOS && m.opt.DoneBeforeStart {
			m.staged = version
			return nil
		}
		m.setLocked(component, version)
		return nil
	}
	st := tasks.Stage{Do: use}
	switch {
	case component == BIOS:
		st.AtStart = !m.opt.DoneBeforeStart
	case component == NIC:
		st.AtStart = m.nicStarts
	case component == BMC && !m.opt.Lies:
		return []tasks.Stage{st, {Do: func(context.Context) error {
			m.opt.Restart()
			return nil
		}}}, nil
	}
	return []tasks.Stage{st}, nil
}

// refusal is the reason of a failure, as a controller words it.
type refusal string

func (r refusal) Error() string { return string(r) }

// magic is the first line of a file.
const magic = "ingot lab firmware"

// File is a file with firmware of a component, of a few KiB.
func File(component, version string) []byte {
	head := magic + "\n" + component + "\n" + version + "\n"
	payload := bytes.Repeat([]byte(head), 100)
	sum := sha256.Sum256(payload)
	return append([]byte(head+hex.EncodeToString(sum[:])+"\n"), payload...)
}

// parse reads a file.
func parse(b []byte) (component, version string, err error) {
	lines := bytes.SplitN(b, []byte("\n"), 5)
	if len(lines) < 5 || string(lines[0]) != magic {
		return "", "", refusal("The file is no firmware for this machine.")
	}
	if sum := sha256.Sum256(lines[4]); hex.EncodeToString(sum[:]) != string(lines[3]) {
		return "", "", refusal("The signature of the file is wrong.")
	}
	component = string(lines[1])
	if !slices.Contains([]string{BIOS, BMC, NIC}, component) {
		return "", "", refusal("The file is for a part that this machine has not.")
	}
	return component, string(lines[2]), nil
}

// Bounds of the reading of a file.
const (
	largest   = 1 << 20
	fetchTime = 30 * time.Second
)

func fetch(ctx context.Context, u *url.URL, user, password string) (component, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return "", "", err
	}
	if user != "" {
		r.SetBasicAuth(user, password)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", "", err // with the address, as controllers do
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", "", refusal(fmt.Sprintf("The server of %s answered %s.", u, resp.Status))
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, largest+1))
	if err != nil {
		return "", "", err
	}
	if len(b) > largest {
		return "", "", refusal("The file is too large.")
	}
	return parse(b)
}
