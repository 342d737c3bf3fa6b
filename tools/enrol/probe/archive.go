package probe

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// private are the names of properties whose values are of one machine, its people or its licence.
var private = regexp.MustCompile(`(?i)(user_?name|password|serial|uuid|guid|asset_?tag|service_?tag|sku$|mac_?address|` +
	`host_?name|fqdn|domain|address$|gateway|name_?servers?$|licen[cs]e|entitlement|activation|token|location$|` +
	`email|contact|subnet|ssid|wwn|wwpn|wwnn|durable_?name|identifiers?$|chassis_?id|node_?id|community|key$)`)

// shapes are values that are private wherever they are.
var shapes = regexp.MustCompile(`(?i)\b(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}` + // UUID
	`|(?:[0-9a-f]{2}[:-]){5,7}[0-9a-f]{2}` + // MAC, WWN
	`|(?:\d{1,3}\.){3}\d{1,3}` + // IPv4, and versions of four numbers
	`|(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{0,4}(?::[0-9a-f]{1,4})*)`) // IPv6

// version is a property whose value may look like an address, and is none.
var version = regexp.MustCompile(`(?i)version|release|@odata\.(id|type|context)$`)

// shortest is the length from which on a private value is removed from other texts, too: a shorter one is in words.
const shortest = 5

// Archive has the requests of a probe and their answers.
type Archive struct {
	Calls   []Call                     `json:"calls"`
	Answers map[string]json.RawMessage `json:"answers"`
}

// Redact returns an archive without users, passwords, licences, addresses and serial numbers: each of these values is
// replaced by one that says which it was, the same wherever the value is, so that links still lead somewhere.
func Redact(a Archive) (Archive, error) {
	values, versions := map[string]string{}, map[string]bool{}
	number := func(value string) {
		if _, known := values[value]; !known && value != "" {
			values[value] = fmt.Sprintf("private-%d", len(values)+1)
		}
	}
	docs := map[string]any{}
	for _, path := range slices.Sorted(maps.Keys(a.Answers)) {
		var doc any
		d := json.NewDecoder(bytes.NewReader(a.Answers[path]))
		d.UseNumber()
		if err := d.Decode(&doc); err != nil {
			return Archive{}, fmt.Errorf("read the answer of %s: %w", path, err)
		}
		docs[path] = doc
		walk(doc, "", false, func(name, value string, _ bool) string {
			if version.MatchString(name) && !strings.HasPrefix(name, "@") {
				versions[value] = true
			}
			return value
		})
	}
	for _, path := range slices.Sorted(maps.Keys(docs)) {
		walk(docs[path], "", false, func(name, value string, within bool) string {
			if within || private.MatchString(name) && !version.MatchString(name) {
				number(value)
			}
			if !version.MatchString(name) {
				for _, v := range shapes.FindAllString(value, -1) {
					if !versions[v] {
						number(v)
					}
				}
			}
			return value
		})
	}
	// The longest first: a value may be part of another.
	order := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return len(b) - len(a)
	})
	var pairs []string
	for _, v := range order {
		if len(v) >= shortest {
			pairs = append(pairs, v, values[v])
		}
	}
	hide := strings.NewReplacer(pairs...)
	out := Archive{Answers: map[string]json.RawMessage{}}
	for path, doc := range docs {
		doc = walk(doc, "", false, func(name, value string, within bool) string {
			if (within || private.MatchString(name) && !version.MatchString(name)) && value != "" {
				return values[value]
			}
			return hide.Replace(value)
		})
		b, err := json.Marshal(doc)
		if err != nil {
			return Archive{}, err
		}
		out.Answers[hide.Replace(path)] = b
	}
	for _, c := range a.Calls {
		c.Path, c.Fault = hide.Replace(c.Path), hide.Replace(c.Fault)
		out.Calls = append(out.Calls, c)
	}
	return out, nil
}

// walk replaces each text of a document by what f makes of it. f is called with the name of the property, and whether
// one above it is private, as a list or an object may be.
func walk(doc any, name string, within bool, f func(name, value string, within bool) string) any {
	switch v := doc.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			v[key] = walk(v[key], key, false, f)
		}
		return v
	case []any:
		for i := range v {
			v[i] = walk(v[i], name, within || private.MatchString(name) && !version.MatchString(name), f)
		}
		return v
	case string:
		return f(name, v, within)
	}
	return doc
}

// file is the name of the archive's only file.
const file = "redfish.json"

// Write writes an archive as a zip file.
func (a Archive) Write(w io.Writer) error {
	z := zip.NewWriter(w)
	to, err := z.Create(file)
	if err != nil {
		return err
	}
	e := json.NewEncoder(to)
	e.SetIndent("", " ")
	return errors.Join(e.Encode(a), z.Close())
}

// Read reads an archive. It may come from anyone: of a larger one than a probe writes only an error is left.
func Read(b []byte) (a Archive, err error) {
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return a, fmt.Errorf("this is no archive of a probe: %w", err)
	}
	from, err := z.Open(file)
	if err != nil {
		return a, fmt.Errorf("this is no archive of a probe: %w", err)
	}
	defer from.Close()
	text, err := io.ReadAll(io.LimitReader(from, 4*mostBytes+1))
	switch {
	case err != nil:
		return a, fmt.Errorf("read the archive: %w", err)
	case len(text) > 4*mostBytes:
		return a, errors.New("the archive is larger than a probe writes")
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("read the archive: %w", err)
	}
	return a, nil
}

// Get answers as the controller did whose answers are in the archive.
func (a Archive) Get(_ context.Context, path string) (status int, body []byte, err error) {
	if b, ok := a.Answers[path]; ok {
		return http.StatusOK, b, nil
	}
	for _, c := range a.Calls {
		if c.Path == path && c.Status != 0 {
			return c.Status, nil, nil
		}
	}
	return http.StatusNotFound, nil, nil
}
