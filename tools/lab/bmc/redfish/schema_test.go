package redfish_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// schemas is the table of testdata/schemas.txt.
type schemas struct {
	newest map[string][]int
	defs   map[string]definition
}

// definition is an enumeration or an object.
type definition struct {
	values   []string
	kinds    map[string]string
	required []string
	open     bool // takes properties of any name
}

func readSchemas(t *testing.T) schemas {
	t.Helper()
	text, err := os.ReadFile("testdata/schemas.txt")
	if err != nil {
		t.Fatal(err)
	}
	s := schemas{map[string][]int{}, map[string]definition{}}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case name == "#":
		case !strings.Contains(name, "."):
			s.newest[name] = numbers(strings.Split(rest, "."))
		case strings.HasPrefix(rest, "= "):
			s.defs[name] = definition{values: strings.Split(rest[2:], "|")}
		default:
			d := definition{kinds: map[string]string{}}
			for _, word := range strings.Fields(rest) {
				at := strings.LastIndex(word, ":")
				if word == "*" {
					d.open = true
					continue
				}
				key, must := strings.CutPrefix(word[:at], "!")
				d.kinds[key] = word[at+1:]
				if must {
					d.required = append(d.required, key)
				}
			}
			s.defs[name] = d
		}
	}
	return s
}

func numbers(words []string) (n []int) {
	for _, w := range words {
		i, err := strconv.Atoi(w)
		if err != nil {
			return nil
		}
		n = append(n, i)
	}
	return n
}

var (
	versioned  = regexp.MustCompile(`^#([A-Za-z0-9]+)\.v([0-9]+)_([0-9]+)_([0-9]+)\.([A-Za-z0-9]+)$`)
	collection = regexp.MustCompile(`^#([A-Za-z0-9]+Collection)\.([A-Za-z0-9]+)$`)
	vendors    = regexp.MustCompile(`^(Dell|Hpe|Smc|Lenovo|OpenBMC)[A-Z]`)
	annotation = regexp.MustCompile(`^([#A-Za-z0-9_.]*)@(odata|Redfish|Message)\.([A-Za-z]+)$`)
)

// judge finds what is wrong with a resource, and the links in it. It says so by complain, with the property's place.
type judge struct {
	schemas
	complain func(format string, args ...any)
	link     func(path string)
}

// resource judges an object that has a type of its own.
func (j judge) resource(at string, o object) {
	typ, _ := o["@odata.type"].(string)
	if c := collection.FindStringSubmatch(typ); c != nil && c[1] == c[2] {
		j.collection(at, o)
		return
	}
	v := versioned.FindStringSubmatch(typ)
	if v == nil {
		j.complain("%s@odata.type %q is not of the form #Type.v1_2_3.Type", at, typ)
		return
	}
	if vendors.MatchString(v[1]) { // its schema is the vendor's
		j.value(at+"Id", "text", o["Id"])
		j.value(at+"Name", "text", o["Name"])
		return
	}
	newest, known := j.newest[v[1]]
	if !known {
		j.complain("%s@odata.type %q is not in testdata/schemas.txt: if DMTF has it, add its properties there", at, typ)
		return
	}
	if slices.Compare(numbers(v[2:4]), newest) > 0 {
		j.complain("%s@odata.type %q is newer than any version that DMTF has published", at, typ)
	}
	def := v[1] + "." + v[5]
	if _, known := j.defs[def]; !known {
		j.complain("%s@odata.type %q has no definition in testdata/schemas.txt", at, typ)
		return
	}
	j.object(at, def, o)
}

func (j judge) collection(at string, o object) {
	for key := range o {
		if !annotation.MatchString(key) && !slices.Contains([]string{"Name", "Description", "Members", "Oem"}, key) {
			j.complain("%s%s is no property of a collection", at, key)
		}
	}
	j.value(at+"Name", "text", o["Name"])
	members, ok := o["Members"].([]any)
	if !ok {
		j.complain("%sMembers is %T, want a list", at, o["Members"])
	}
	if n, _ := o["Members@odata.count"].(float64); int(n) != len(members) && o["Members@odata.nextLink"] == nil {
		j.complain("%sMembers@odata.count is %v, and there are %d", at, o["Members@odata.count"], len(members))
	}
	for i, m := range members {
		j.value(fmt.Sprintf("%sMembers[%d]", at, i), "link", m)
	}
	if next, ok := o["Members@odata.nextLink"].(string); ok {
		j.link(next)
	}
}

// object judges the properties of an object by its definition.
func (j judge) object(at, def string, o object) {
	d := j.defs[def]
	for _, key := range d.required {
		if _, there := o[key]; !there {
			j.complain("%s%s is missing: it is required by %s", at, key, def)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(o)) {
		v := o[key]
		kind, known := d.kinds[key]
		a := annotation.FindStringSubmatch(key)
		switch {
		case known:
			j.value(at+key, kind, v)
		case a != nil:
			j.annotation(at, a, d.kinds[a[1]], o, v)
		case key == "Oem":
			if _, is := v.(object); !is {
				j.complain("%sOem is %T, want an object", at, v)
			}
		case !d.open:
			j.complain("%s%s is no property of %s: correct its name, or add it to testdata/schemas.txt if DMTF has it", at,
				key, def)
		}
	}
}

// annotation judges what is said of the property a[1], whose kind this is; a[1] is "" for the object itself.
func (j judge) annotation(at string, a []string, kind string, o object, v any) {
	list, isList := v.([]any)
	switch key := a[2] + "." + a[3]; key {
	case "odata.count":
		if n, _ := v.(float64); int(n) != len(asList(o[a[1]])) {
			j.complain("%s%s is %v, and there are %d", at, a[0], v, len(asList(o[a[1]])))
		}
	case "Redfish.AllowableValues":
		if !isList {
			j.complain("%s%s is %T, want a list", at, a[0], v)
		}
		for i, one := range list {
			j.value(fmt.Sprintf("%s%s[%d]", at, a[0], i), strings.Trim(kind, "[]?"), one)
		}
	case "Redfish.Settings":
		s, _ := v.(object)
		if typ, _ := s["@odata.type"].(string); !strings.HasPrefix(typ, "#Settings.v1_") {
			j.complain("%s@Redfish.Settings has the type %q", at, typ)
		}
		j.object(at+"@Redfish.Settings.", "Settings.Settings", s)
	case "odata.id", "odata.type", "odata.etag", "odata.context":
		if _, is := v.(string); !is {
			j.complain("%s%s is %T, want a text", at, a[0], v)
		}
	}
}

func asList(v any) []any {
	l, _ := v.([]any)
	return l
}

// value judges a value by its kind.
func (j judge) value(at, kind string, v any) {
	kind, null := strings.CutSuffix(kind, "?")
	wrong := func() { j.complain("%s is %v (%T), want %s", at, v, v, kind) }
	text, isText := v.(string)
	number, isNumber := v.(float64)
	_, isBool := v.(bool)
	o, isObject := v.(object)
	list, isList := v.([]any)
	right := true
	switch {
	case kind == "any", kind == "", v == nil && null:
	case strings.HasPrefix(kind, "["):
		if right = isList; isList {
			for i, one := range list {
				j.value(fmt.Sprintf("%s[%d]", at, i), kind[1:len(kind)-1], one)
			}
		}
	case kind == "text":
		right = isText
	case kind == "int":
		right = isNumber && number == float64(int64(number))
	case kind == "number":
		right = isNumber
	case kind == "bool":
		right = isBool
	case kind == "time":
		_, err := time.Parse(time.RFC3339, text)
		right = isText && err == nil
	case kind == "uri":
		if right = isText && !strings.ContainsAny(text, " \t"); right && strings.HasPrefix(text, "/redfish/") {
			j.link(text)
		}
	case kind == "object":
		right = isObject
	case kind == "action":
		target, _ := o["target"].(string)
		right = strings.HasPrefix(target, "/redfish/v1/")
	case kind == "link":
		id, _ := o["@odata.id"].(string)
		if right = strings.HasPrefix(id, "/redfish/v1"); !right {
			break
		}
		j.link(id)
		if len(o) > 1 { // the resource itself
			j.resource(at+".", o)
		}
	case j.defs[kind].values != nil:
		right = isText && slices.Contains(j.defs[kind].values, text)
	default:
		if _, known := j.defs[kind]; !known {
			panic("testdata/schemas.txt has no definition of " + kind)
		}
		if right = isObject; isObject {
			j.object(at+".", kind, o)
		}
	}
	if !right {
		wrong()
	}
}
