package api

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/conductor/driver"
	"github.com/ingot-metal/ingot/conductor/rest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestDocumentation keeps the tables of docs/api.md true to the code they are made from.
func TestDocumentation(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "api.md")
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := string(have)
	for name, made := range map[string]string{"routes": routeTable(), "drivers": driverTable(), "fields": fieldTable(), "parts": partTable()} {
		begin, end := "<!-- "+name+": made by go test ./conductor/api -update -->\n", "<!-- end of "+name+" -->"
		before, rest, ok := strings.Cut(want, begin)
		_, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("docs/api.md has no place for the table of %s", name)
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
	t.Error("docs/api.md differs from the code: run go test ./conductor/api -update and read the difference")
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
		if strings.HasPrefix(path, "/ingot/") {
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

// fieldTable lists what later versions added to nodes and ports.
func fieldTable() string {
	type added struct{ node, port []string }
	byVersion := map[rest.Version]*added{}
	at := func(v rest.Version) *added {
		if byVersion[v] == nil {
			byVersion[v] = &added{}
		}
		return byVersion[v]
	}
	for _, f := range rest.NodeFields {
		at(f.Since).node = append(at(f.Since).node, f.Name)
	}
	for _, f := range rest.PortFields {
		at(f.Since).port = append(at(f.Since).port, f.Name)
	}
	var b strings.Builder
	b.WriteString("\n| version | node | port |\n|---|---|---|\n")
	for v := rest.MinVersion; v <= rest.MaxVersion; v++ {
		if a := byVersion[v]; a != nil {
			slices.Sort(a.node)
			slices.Sort(a.port)
			fmt.Fprintf(&b, "| %s | %s | %s |\n", v, strings.Join(a.node, ", "), strings.Join(a.port, ", "))
		}
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
