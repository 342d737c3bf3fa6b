package enrol

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Limits of a list.
const (
	MostBytes    = 16 << 20
	MostMachines = 100_000
	mostFaults   = 20 // that are told
	mostPassword = 4 << 10
)

// Read returns the machines of a list, each with what defaults has where the list says nothing. name is the file's, by
// which CSV is known; anything else is YAML, or JSON, which is YAML: a list of machines, or one under the key nodes as
// Ironic's clients read it.
//
// Keys are the names of flags of `ingot node create` with underscores, and the node's fields in the API. In CSV the
// first line has the keys; keys inside driver_info, properties and extra have a dot: driver_info.redfish_system_id.
// All machines are checked; the error has all faults with their lines, and no passwords.
func Read(name string, data []byte, defaults Machine) ([]Machine, error) {
	if len(data) > MostBytes {
		return nil, fmt.Errorf("the list is larger than %d MiB", MostBytes>>20)
	}
	read := readYAML
	if strings.EqualFold(filepath.Ext(name), ".csv") {
		read = readCSV
	}
	rows, err := read(data)
	if err != nil {
		return nil, err
	}
	if len(rows) > MostMachines {
		return nil, fmt.Errorf("the list has %d machines; split it into lists of at most %d", len(rows), MostMachines)
	}
	if len(rows) == 0 {
		return nil, errors.New("the list has no machines")
	}
	return check(rows, filepath.Dir(name), defaults)
}

// row is a machine as it stands in a file.
type row struct {
	line int
	keys map[string]any
}

func check(rows []row, dir string, defaults Machine) ([]Machine, error) {
	var all []Machine
	var faults []error
	names, controllers := map[string]int{}, map[string]int{}
	fail := func(line int, err error) { faults = append(faults, fmt.Errorf("line %d: %w", line, err)) }
	for _, r := range rows {
		m, err := machine(r.keys, dir, defaults)
		if err != nil {
			fail(r.line, err)
			continue
		}
		m.Line = r.line
		n, err := m.Enrolment()
		if err != nil {
			fail(r.line, err)
			continue
		}
		for _, key := range []string{n.Name, n.UUID} {
			if first := names[key]; key != "" && first > 0 {
				fail(r.line, fmt.Errorf("%s is in line %d already", key, first))
			}
			names[key] = r.line
		}
		if c := Controller(n.Driver, n.DriverInfo); c != "" {
			if first := controllers[c]; first > 0 {
				fail(r.line, fmt.Errorf("the controller %s is in line %d already", c, first))
			}
			controllers[c] = r.line
		}
		all = append(all, m)
	}
	if more := len(faults) - mostFaults; more > 0 {
		faults = append(faults[:mostFaults], fmt.Errorf("and %d more", more))
	}
	return all, errors.Join(faults...)
}

// machine fills a machine from its keys.
func machine(keys map[string]any, dir string, defaults Machine) (Machine, error) {
	m := defaults
	n := &m.Node
	m.MACs = slices.Clone(defaults.MACs)
	objects := map[string]*map[string]any{"driver_info": &n.DriverInfo, "properties": &n.Properties, "extra": &n.Extra}
	for _, to := range objects {
		*to = filled(*to)
	}
	passwordFile := ""
	texts := map[string]*string{"name": &n.Name, "uuid": &n.UUID, "driver": &n.Driver, "bmc": &m.BMC,
		"bmc_user": &m.User, "bmc_password": &m.Password, "bmc_password_file": &passwordFile, "boot_mode": &m.BootMode,
		"resource_class": &n.ResourceClass, "description": &n.Description, "owner": &n.Owner,
		"network_interface": &n.NetworkIf, "boot_interface": &n.BootIf, "deploy_interface": &n.DeployIf,
		"inspect_interface": &n.InspectIf}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		v := keys[key]
		if to := texts[key]; to != nil {
			text, err := textOf(key, v)
			if err != nil {
				return m, err
			}
			*to = cmp.Or(text, *to)
			continue
		}
		if to := objects[key]; to != nil {
			object, ok := v.(map[string]any)
			if !ok {
				return m, fmt.Errorf("%s is not an object", key)
			}
			maps.Copy(*to, object)
			continue
		}
		macs, err := macsOf(key, v)
		if err != nil {
			return m, err
		}
		m.MACs = append(m.MACs, macs...)
	}
	if passwordFile != "" {
		if keys["bmc_password"] != nil {
			return m, errors.New("it has both bmc_password and bmc_password_file")
		}
		var err error
		if m.Password, err = password(passwordFile, dir); err != nil {
			return m, err
		}
	}
	switch m.BootMode {
	case "", "bios", "uefi":
	default:
		return m, errors.New("boot_mode is neither bios nor uefi")
	}
	if n.Name == "" && n.UUID == "" {
		return m, errName
	}
	return m, nil
}

// textOf takes a scalar. The value is not told: it may be a password in the wrong place.
func textOf(key string, v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case int, bool, float64:
		return "", fmt.Errorf("%s is a number or a truth value: put it into quotes", key)
	}
	return "", fmt.Errorf("%s is not a text", key)
}

// macsOf takes the addresses of ports: key mac or macs, or Ironic's ports.
func macsOf(key string, v any) (macs []string, err error) {
	bad := fmt.Errorf("%s is not a list of MAC addresses", key)
	switch key {
	case "mac", "macs":
		if text, ok := v.(string); ok {
			return strings.Fields(strings.ReplaceAll(text, ",", " ")), nil
		}
	case "ports":
	default:
		return nil, fmt.Errorf("%q is no key of a machine", key)
	}
	list, ok := v.([]any)
	if !ok {
		return nil, bad
	}
	for _, item := range list {
		if port, ok := item.(map[string]any); ok && key == "ports" {
			if len(port) != 1 {
				return nil, errors.New("of ports only the address can be given: set the rest with openstack baremetal port set")
			}
			item = port["address"]
		}
		mac, ok := item.(string)
		if !ok {
			return nil, bad
		}
		macs = append(macs, mac)
	}
	return macs, nil
}

// password reads a password from a file beside the list.
func password(file, dir string) (string, error) {
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("bmc_password_file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostPassword+1))
	if err != nil {
		return "", fmt.Errorf("bmc_password_file: %w", err)
	}
	if len(b) > mostPassword {
		return "", fmt.Errorf("bmc_password_file: %s is larger than %d bytes: it has no password", file, mostPassword)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

func readYAML(data []byte) (rows []row, err error) {
	var doc yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the list is not YAML: %w", err)
	}
	if err := d.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("the list has more than one YAML document")
	}
	if len(doc.Content) != 1 {
		return nil, nil
	}
	list := doc.Content[0]
	if list.Kind == yaml.MappingNode && len(list.Content) == 2 && list.Content[0].Value == "nodes" {
		list = list.Content[1]
	}
	if list.Kind != yaml.SequenceNode {
		return nil, errors.New("the file has no list of machines, neither by itself nor under the key nodes")
	}
	for _, item := range list.Content {
		r := row{line: item.Line}
		if err := item.Decode(&r.keys); err != nil {
			return nil, fmt.Errorf("line %d: the machine is not an object with each key once", item.Line)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func readCSV(data []byte) (rows []row, err error) {
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(data, []byte("\ufeff")))) // as spreadsheets begin it
	r.TrimLeadingSpace, r.Comment = true, '#'
	head, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the list is not CSV: %w", err)
	}
	for i, key := range head {
		head[i] = strings.ReplaceAll(strings.TrimSpace(key), "-", "_")
		if slices.Contains(head[:i], head[i]) {
			return nil, fmt.Errorf("the first line has %q twice", head[i])
		}
	}
	for {
		cells, err := r.Read()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, fmt.Errorf("the list is not CSV: %w", err)
		}
		line, _ := r.FieldPos(0)
		keys := map[string]any{}
		for i, cell := range cells {
			if cell == "" {
				continue
			}
			outer, inner, dotted := strings.Cut(head[i], ".")
			if !dotted {
				keys[head[i]] = cell
				continue
			}
			if keys[outer] == nil {
				keys[outer] = map[string]any{}
			}
			object, ok := keys[outer].(map[string]any)
			if !ok {
				return nil, fmt.Errorf("line %d: there are both %s and %s", line, outer, head[i])
			}
			object[inner] = cell
		}
		rows = append(rows, row{line, keys})
	}
}
