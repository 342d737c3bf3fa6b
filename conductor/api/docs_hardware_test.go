package api

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/api/own"
	"github.com/ingot-metal/ingot/conductor/hardware"
	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/hardware/fake"
	powerfake "github.com/ingot-metal/ingot/conductor/hardware/power/fake"
	"github.com/ingot-metal/ingot/conductor/hardware/redfish/quirk"
	"github.com/ingot-metal/ingot/conductor/rest"
)

// TestDocumentationOfHardware keeps the reference true to the tables of hardware types and of controllers that differ.
func TestDocumentationOfHardware(t *testing.T) {
	all := own.Capabilities(driver.All(),
		hardware.New(driver.All().Interface, fake.New(new(powerfake.Machines), nil).Plugs()))
	documented(t, "reference/hardware.md",
		map[string]string{"matrix": driverTable(), "types": typeTable(all), "interfaces": interfaceTable(all),
			"properties": propertyTables()})
	documented(t, "reference/redfish-differences.md", map[string]string{"quirks": quirkTable()})
}

func typeTable(all rest.Capabilities) string {
	var b strings.Builder
	b.WriteString("\n")
	for _, typ := range all.HardwareTypes {
		fmt.Fprintf(&b, "- `%s`: %s\n", typ.Name, typ.Description)
	}
	return b.String() + "\n"
}

func interfaceTable(all rest.Capabilities) string {
	var b strings.Builder
	b.WriteString("\n| kind | interface | types | what it does | features, verbs | steps (phase priority) |\n|---|---|---|---|---|---|\n")
	for _, i := range all.Interfaces {
		var steps []string
		for _, s := range i.Steps {
			var phases []string
			for _, p := range slices.Sorted(maps.Keys(s.Phases)) {
				if s.Phases[p] > 0 {
					p += fmt.Sprintf(" %d", s.Phases[p])
				}
				phases = append(phases, p)
			}
			steps = append(steps, fmt.Sprintf("`%s.%s` (%s)", s.Interface, s.Step, strings.Join(phases, ", ")))
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s | %s |\n", i.Kind, i.Name, strings.Join(i.HardwareTypes, ", "),
			i.Description, strings.Join(append(slices.Clone(i.Features), i.Verbs...), ", "), strings.Join(steps, ", "))
	}
	return b.String() + "\n"
}

func quirkTable() string {
	var b strings.Builder
	b.WriteString("\n| row | vendor | product | firmware | what is done | known from | test |\n|---|---|---|---|---|---|---|\n")
	for _, r := range quirk.Table {
		firmware, product := "", ""
		if r.From != "" {
			firmware = "from " + r.From
		}
		if r.Before != "" {
			firmware += " before " + r.Before
		}
		if r.Product != "" {
			product = "`" + strings.ReplaceAll(r.Product, "|", `\|`) + "`" // else it would be two columns
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | `%s` |\n", r.Name, r.Vendor, product,
			strings.TrimSpace(firmware), r.Does, r.Source, r.Test)
	}
	return b.String() + "\n"
}

func propertyTables() string {
	var b strings.Builder
	for _, name := range driver.Names() {
		typ, _ := driver.ByName(name)
		if name == "idrac" {
			b.WriteString("\n### idrac\n\nThose of [redfish](#redfish).\n")
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n| driver_info | | meaning |\n|---|---|---|\n", name)
		for _, p := range typ.Properties {
			required := ""
			if p.Required {
				required = "required"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", p.Name, required, p.Description)
		}
	}
	return b.String() + "\n"
}

func TestCapabilities(t *testing.T) {
	types := driver.All()
	f := newFixture(t, Config{Hardware: hardware.New(types.Interface, fake.New(new(powerfake.Machines), nil).Plugs())})
	out := f.want(200, "GET", "/ingot/v1/capabilities", "")
	list, _ := out["hardware_types"].([]any)
	if len(list) != len(driver.Names()) {
		t.Errorf("hardware_types = %v", list)
	}
	steps := map[string]bool{}
	for _, v := range out["interfaces"].([]any) {
		i := v.(map[string]any)
		for _, s := range i["steps"].([]any) {
			m := s.(map[string]any)
			steps[fmt.Sprint(i["kind"], " ", i["name"], ": ", m["interface"], ".", m["step"])] = true
		}
		if strings.HasPrefix(i["name"].(string), "no-") && len(i["features"].([]any))+len(i["steps"].([]any))+
			len(i["verbs"].([]any)) > 0 {
			t.Errorf("%v does something: %v", i["name"], i)
		}
	}
	for _, want := range []string{"bios fake: bios.apply_configuration", "raid fake: raid.create_configuration",
		"deploy direct: deploy.write_image", "deploy fake: deploy.deploy", "inspect agent: inspect.inspect"} {
		if !steps[want] {
			t.Errorf("%s is missing in %v", want, steps)
		}
	}
	// What is not enabled is not shown.
	few, err := driver.New(driver.Config{Types: []string{"ipmi"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range own.Capabilities(few, nil).Interfaces {
		if i.Name == "fake" {
			t.Errorf("%s interface fake is shown for ipmi alone", i.Kind)
		}
	}
}
