package render

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

var (
	head = []string{"NAME", "SIZE"}
	rows = [][]string{{"one", "1, or more"}, {"two", "2\nthree"}}
)

func format(t *testing.T, text string) Format {
	t.Helper()
	f, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestRows: the same rows for people, for spreadsheets and for scripts.
func TestRows(t *testing.T) {
	for text, want := range map[string]string{
		"":     "NAME  SIZE\none   1, or more\ntwo   2\\nthree\n",
		"wide": "NAME  SIZE\none   1, or more\ntwo   2\\nthree\n",
		"csv":  "NAME,SIZE\none,\"1, or more\"\ntwo,\"2\nthree\"\n",
		"name": "one\ntwo\n",
	} {
		var out bytes.Buffer
		if err := format(t, text).Rows(&out, head, rows); err != nil || out.String() != want {
			t.Errorf("-o %s = %q, %v; want %q", text, &out, err, want)
		}
	}
	if err := format(t, "name").Rows(new(bytes.Buffer), []string{"TIME", "EVENT"}, rows); !errors.Is(err, ErrNameless) {
		t.Errorf("-o name of the entries of a log: %v", err)
	}
	if err := format(t, "json").Rows(new(bytes.Buffer), head, rows); err == nil {
		t.Error("rows are written as JSON")
	}
}

// TestValues: YAML and templates see the names of the JSON, and numbers keep their digits.
func TestValues(t *testing.T) {
	type disk struct {
		Name string  `json:"name"`
		Size uint64  `json:"size"`
		Part float64 `json:"part"`
		None *int    `json:"none"`
	}
	v := []disk{{"sda", 9007199254740993, 0.5, nil}}
	for text, want := range map[string]string{
		"json": "[\n  {\n    \"name\": \"sda\",\n    \"size\": 9007199254740993,\n    \"part\": 0.5,\n    \"none\": null\n  }\n]\n",
		"yaml": "---\n- name: sda\n  none: null\n  part: 0.5\n  size: 9007199254740993\n",
		"go-template={{range .}}{{.name}} {{.size}}{{end}}": "sda 9007199254740993\n",
		"go-template=": "",
	} {
		var out bytes.Buffer
		if err := format(t, text).Value(&out, v); err != nil || out.String() != want {
			t.Errorf("-o %s = %q, %v; want %q", text, &out, err, want)
		}
	}
	err := format(t, "go-template={{range .}}{{.nmae}}{{end}}").Value(new(bytes.Buffer), v)
	if err == nil || !strings.Contains(err.Error(), "nmae") || !strings.Contains(err.Error(), "-o json") {
		t.Errorf("a template with a name that does not exist: %v", err)
	}
	for _, text := range []string{"xml", "go-template={{", "JSON"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("-o %s is accepted", text)
		}
	}
}

// TestSheet: one thing with its properties.
func TestSheet(t *testing.T) {
	pairs := [][2]string{{"name", "-"}, {"uuid", "u1"}, {"disks", "sda\nsdb"}}
	for text, want := range map[string]string{
		"":     "name   -\nuuid   u1\ndisks  sda\n       sdb\n",
		"csv":  "name,-\nuuid,u1\ndisks,\"sda\nsdb\"\n",
		"name": "u1\n",
	} {
		var out bytes.Buffer
		if err := format(t, text).Sheet(&out, pairs); err != nil || out.String() != want {
			t.Errorf("-o %s = %q, %v; want %q", text, &out, err, want)
		}
	}
}

// TestTablesQuoteWhatATerminalWouldObey: strings of machines, stored before they were cleaned or made up by another
// server, are shown and not carried out.
func TestTablesQuoteWhatATerminalWouldObey(t *testing.T) {
	var out bytes.Buffer
	if err := Table(&out, []string{"NAME"}, [][]string{{"\x1b[2Jevil\nline"}, {"größer"}}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Contains(got, "\x1b") || !strings.Contains(got, `\x1b[2Jevil\nline`) ||
		!strings.Contains(got, "größer\n") {
		t.Errorf("the table is %q", got)
	}
}
