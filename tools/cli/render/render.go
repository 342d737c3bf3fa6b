// Package render writes what a command found in the format that its user has asked for: a table for people, or the
// values for programs.
//
// Values are written as the API has them: YAML and templates see the names and shapes of the JSON. Tables and CSV have
// columns, which a command gives beside its values; the format name writes one column, for scripts.
package render

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"

	"gopkg.in/yaml.v3"

	"github.com/ingot-metal/ingot/conductor/guard/clean"
)

// Formats are the formats, for help and completion.
var Formats = []string{"table", "wide", "json", "yaml", "csv", "name", "go-template="}

// Format is one way to write. The zero value is a table.
type Format struct {
	kind     string
	template *template.Template
}

// Parse reads a format by its name: table, wide, json, yaml, csv, name, or go-template=TEXT.
func Parse(text string) (Format, error) {
	if text, ok := strings.CutPrefix(text, "go-template="); ok {
		t, err := template.New("go-template").Option("missingkey=error").Parse(text)
		if err != nil {
			return Format{}, fmt.Errorf("-o go-template: %w; an example: -o go-template='{{range .}}{{.name}}{{\"\\n\"}}{{end}}'",
				err)
		}
		return Format{"template", t}, nil
	}
	switch text {
	case "", "table":
		return Format{}, nil
	case "wide", "json", "yaml", "csv", "name":
		return Format{kind: text}, nil
	}
	return Format{}, fmt.Errorf("-o %q is not an output format: use table, wide, json, yaml, csv, name or go-template=TEXT",
		text)
}

// Values reports whether the format has values as they are, and no columns.
func (f Format) Values() bool { return f.kind == "json" || f.kind == "yaml" || f.kind == "template" }

// JSON reports whether the format is JSON.
func (f Format) JSON() bool { return f.kind == "json" }

// ForPeople reports whether the format is a table, which remarks may stand beside.
func (f Format) ForPeople() bool { return f.kind == "" || f.kind == "wide" }

// Wide reports whether the table has all columns.
func (f Format) Wide() bool { return f.kind == "wide" }

// Value writes a value; f.Values must hold, else it is written as JSON.
func (f Format) Value(w io.Writer, v any) error {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	if f.kind != "yaml" && f.kind != "template" {
		_, err := io.WriteString(w, b.String())
		return err
	}
	// Numbers keep their digits: sizes of disks are no floating-point numbers.
	dec := json.NewDecoder(strings.NewReader(b.String()))
	dec.UseNumber()
	var plain any
	if err := dec.Decode(&plain); err != nil {
		return err
	}
	if f.kind == "template" {
		var out strings.Builder
		if err := f.template.Execute(&out, plain); err != nil {
			return fmt.Errorf("-o go-template: %w; -o json shows what there is", err)
		}
		if text := out.String(); text != "" && !strings.HasSuffix(text, "\n") {
			out.WriteString("\n")
		}
		_, err := io.WriteString(w, out.String())
		return err
	}
	text, err := yaml.Marshal(numbers(plain))
	if err != nil {
		return err
	}
	// A command that follows something writes one document after the other.
	_, err = w.Write(append([]byte("---\n"), text...))
	return err
}

// numbers makes numbers of JSON what YAML writes as such.
func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		n, err := v.Float64()
		if err != nil {
			return v.String()
		}
		return n
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	}
	return v
}

// ErrNameless means that the format name was asked for of something that has none.
var ErrNameless = errors.New("-o name: what is shown has no name; -o json shows what there is")

// identifying are the columns that the format name takes, the first that there is.
var identifying = []string{"NAME", "UUID", "ID", "ADDRESS"}

// Rows writes rows under a head in columns. A table without a head has its rows alone.
func (f Format) Rows(w io.Writer, head []string, rows [][]string) error {
	switch f.kind {
	case "csv":
		c := csv.NewWriter(w)
		if head != nil {
			_ = c.Write(head) // errors are kept for Error
		}
		for _, r := range rows {
			_ = c.Write(r)
		}
		c.Flush()
		return c.Error()
	case "name":
		at := 0
		for _, name := range identifying {
			if i := slices.Index(head, name); i >= 0 {
				at = i
				break
			}
		}
		if at < len(head) && head[at] == "TIME" { // entries of a log
			return ErrNameless
		}
		for _, r := range rows {
			if _, err := fmt.Fprintln(w, clean.Quote(r[at])); err != nil {
				return err
			}
		}
		return nil
	case "", "wide":
		return Table(w, head, rows)
	}
	return errors.New("this command has no values for -o " + f.kind)
}

// Table writes rows under a head for people; without a head, rows alone.
func Table(w io.Writer, head []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if head != nil {
		fmt.Fprintln(tw, strings.Join(head, "\t"))
	}
	for _, r := range rows {
		quoted := make([]string, len(r))
		for i := range r {
			quoted[i] = clean.Quote(r[i])
		}
		fmt.Fprintln(tw, strings.Join(quoted, "\t"))
	}
	return tw.Flush()
}

// Sheet writes names and values, values of several lines under each other; as CSV a row for each.
func (f Format) Sheet(w io.Writer, pairs [][2]string) error {
	var rows [][]string
	for _, kv := range pairs {
		if !f.ForPeople() {
			rows = append(rows, []string{kv[0], kv[1]})
			continue
		}
		name := kv[0]
		for line := range strings.SplitSeq(kv[1], "\n") {
			rows = append(rows, []string{name, line})
			name = ""
		}
	}
	if f.kind == "name" { // of one thing, of which there is a value
		for _, want := range []string{"name", "uuid", "id"} {
			for _, r := range rows {
				if r[0] == want && r[1] != "" && r[1] != "-" {
					_, err := fmt.Fprintln(w, clean.Quote(r[1]))
					return err
				}
			}
		}
		return ErrNameless
	}
	return f.Rows(w, nil, rows)
}
