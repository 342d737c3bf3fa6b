package api

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/hardware/driver"
	"github.com/ingot-metal/ingot/conductor/rest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestDocumentation keeps the tables of the API in docs/reference true to the code they are made from.
func TestDocumentation(t *testing.T) {
	documented(t, "reference/api.md", map[string]string{"routes": routeTable(), "drivers": driverTable(),
		"parts": partTable()})
	documented(t, "reference/api-versions.md", map[string]string{"fields": fieldTable()})
}

// documented keeps parts of a file in docs true to what is made here, by the names that the parts have in it. With
// -update it writes them.
func documented(t *testing.T, file string, parts map[string]string) {
	t.Helper()
	path := filepath.Join("..", "..", "docs", file)
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := string(have)
	for name, made := range parts {
		begin, end := "<!-- "+name+": made by go test ./conductor/api -update -->\n", "<!-- end of "+name+" -->"
		before, rest, ok := strings.Cut(want, begin)
		_, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("docs/%s has no place for %s", file, name)
		}
		want = before + begin + made + end + after
	}
	if want == string(have) {
		return
	}
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("docs/%s differs from the code: run go test ./conductor/api -update and read the difference", file)
}

func routeTable() string {
	var b strings.Builder
	b.WriteString("\n| path | methods | since |\n|---|---|---|\n")
	type row struct {
		methods []string
		since   rest.Version
	}
	rows, order := map[string]*row{}, []string{}
	for _, r := range (&Server{}).table() {
		key := fmt.Sprintf("%s %d", r.Path, r.Since)
		if rows[key] == nil {
			rows[key] = &row{since: max(r.Since, rest.MinVersion)}
			order = append(order, key)
		}
		rows[key].methods = append(rows[key].methods, r.Method)
	}
	for _, key := range order {
		path, _, _ := strings.Cut(key, " ")
		since := rows[key].since.String()
		if strings.HasPrefix(path, "/ingot/") || path == descriptionPath {
			since = "-"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", path, strings.Join(rows[key].methods, " "), since)
	}
	b.WriteString("\n")
	return b.String()
}

func driverTable() string {
	var b strings.Builder
	b.WriteString("\n| interface |")
	for _, name := range driver.Names() {
		fmt.Fprintf(&b, " `%s` |", name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(driver.Names())) + "\n")
	for _, kind := range slices.Sorted(slices.Values(driver.Kinds)) {
		fmt.Fprintf(&b, "| %s |", kind)
		for _, name := range driver.Names() {
			hw, _ := driver.ByName(name)
			enabled := hw.Enabled(kind)
			enabled[0] = "**" + enabled[0] + "**"
			fmt.Fprintf(&b, " %s |", strings.Join(enabled, ", "))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	return b.String()
}

// brought lists what each version brought, by the tables that the server works from.
func brought() map[rest.Version][]string {
	by := map[rest.Version][]string{}
	add := func(v rest.Version, what string) {
		if v >= rest.MinVersion && !slices.Contains(by[v], what) {
			by[v] = append(by[v], what)
		}
	}
	fieldsOf(add, "node", rest.NodeFields)
	fieldsOf(add, "states", rest.StatesFields)
	fieldsOf(add, "port", rest.PortFields)
	fieldsOf(add, "port group", rest.PortgroupFields)
	fieldsOf(add, "chassis", rest.ChassisFields)
	fieldsOf(add, "volume connector", rest.VolumeConnectorFields)
	fieldsOf(add, "volume target", rest.VolumeTargetFields)
	fieldsOf(add, "BIOS setting", rest.BIOSFields)
	fieldsOf(add, "firmware", rest.FirmwareFields)
	fieldsOf(add, "allocation", rest.AllocationFields)
	fieldsOf(add, "deploy template", rest.DeployTemplateFields)
	fieldsOf(add, "runbook", rest.RunbookFields)
	fieldsOf(add, "inspection rule", rest.InspectionRuleFields)
	fieldsOf(add, "history", rest.HistoryFields)
	for _, r := range (&Server{}).table() {
		if !strings.HasPrefix(r.Path, "/ingot/") && r.Path != descriptionPath {
			add(r.Since, r.Method+" `"+r.Path+"`")
		}
	}
	for _, t := range []struct {
		what  string
		table map[string]rest.Version
	}{{"filter", rest.NodeFilters}, {"target", rest.Verbs}, {"power target", rest.PowerTargets},
		{"with a target:", rest.ProvisionParameters}, {"with a heartbeat:", rest.HeartbeatParameters}} {
		for _, name := range slices.Sorted(maps.Keys(t.table)) {
			add(t.table[name], t.what+" `"+name+"`")
		}
	}
	for _, r := range rest.Rules {
		add(r.Since, r.Text)
	}
	return by
}

func fieldsOf[T any](add func(rest.Version, string), what string, fields rest.Fields[T]) {
	for _, f := range fields {
		add(f.Since, what+" `"+f.Name+"`")
	}
}

// TestNoVersionIsEmpty finds versions that are promised and of which nothing is there.
func TestNoVersionIsEmpty(t *testing.T) {
	by := brought()
	for v := rest.MinVersion; v <= rest.MaxVersion; v++ {
		if len(by[v]) == 0 {
			t.Errorf("version %s is on offer, and no table has anything that it brought", v)
		}
	}
}

// fieldTable lists what each version after the first brought.
func fieldTable() string {
	var b strings.Builder
	b.WriteString("\n| version | what it brought |\n|---|---|\n")
	by := brought()
	for v := rest.MinVersion + 1; v <= rest.MaxVersion; v++ {
		fmt.Fprintf(&b, "| %s | %s |\n", v, strings.Join(by[v], ", "))
	}
	b.WriteString("\n")
	return b.String()
}

// partTable lists what later versions added to the resources beside nodes and ports.
func partTable() string {
	var b strings.Builder
	b.WriteString("\n| resource | since | fields |\n|---|---|---|\n")
	partRows(&b, "chassis", rest.ChassisFields)
	partRows(&b, "portgroups", rest.PortgroupFields)
	partRows(&b, "volume/connectors", rest.VolumeConnectorFields)
	partRows(&b, "volume/targets", rest.VolumeTargetFields)
	partRows(&b, "inspection_rules", rest.InspectionRuleFields)
	b.WriteString("\n")
	return b.String()
}

func partRows[T any](b *strings.Builder, name string, fields rest.Fields[T]) {
	for v := rest.MinVersion; v <= rest.NewestVersion; v++ {
		var added []string
		for _, f := range fields {
			if f.Since == v {
				added = append(added, f.Name)
			}
		}
		if len(added) > 0 {
			slices.Sort(added)
			fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, v, strings.Join(added, ", "))
		}
	}
}
