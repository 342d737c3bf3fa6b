// Package compare puts answers into a form in which those of two servers can be compared, and says how they differ.
//
// What differs between any two servers, or from one run to the next, is replaced: hosts, times, UUIDs that the server
// chose, and the words of errors, which are for people. What a fake machine does by itself is not compared (see
// masked), as docs/reference/ironic-differences.md has it.
package compare

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/ingot-metal/ingot/test/conformance/ask"
)

// Answer is an answer that can be compared.
type Answer struct {
	Status int               `json:"s"`
	Header map[string]string `json:"h,omitempty"`
	Body   any               `json:"b,omitempty"`
}

// Headers are compared.
var Headers = []string{"Content-Type", "Location", "Openstack-Api-Minimum-Version", "Openstack-Api-Maximum-Version",
	"Openstack-Api-Version", "Vary", "X-Openstack-Ironic-Api-Maximum-Version", "X-Openstack-Ironic-Api-Minimum-Version",
	"X-Openstack-Ironic-Api-Version"}

var (
	timeText = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?`)
	uuidText = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
)

// words are members whose texts are for people.
var words = []string{"faultstring", "title", "description", "detail", "debuginfo", "last_error"}

// masked are members of which only that they are there is compared.
var masked = map[string]string{
	"driver_internal_info": "it is the server's own",
	"power_state":          "Ironic's fake machine has no power until it is asked for, and no deployment changes it",
	"target_power_state":   "the same",
	"boot_mode":            "Ironic's fake machine has none",
	"secure_boot":          "the same",
	"boot_device":          "Ironic's fake machine forgets it",
	"persistent":           "the same",
	"last_error":           "Ironic's fake machine has no boot mode to set, and says so afterwards",
	"updated_at":           "a change of nothing is no change",
	"reservation":          "it comes and goes",
}

// apart are members of instance_info that Ironic keeps there, masked, and Ingot elsewhere.
var apart = []string{"rescue_password", "hashed_rescue_password"}

// Normal puts an answer into the form to compare.
func Normal(a ask.Ask, base string, projects map[string]string, status int, header http.Header, body []byte) Answer {
	out := Answer{Status: status, Header: map[string]string{}}
	n := normal{base: base, route: a.Route, path: a.Path, projects: projects}
	// Ironic shows mode and properties of port groups in versions before the one that brought them.
	n.early = strings.Contains(a.Route, "portgroups") && slices.Contains([]string{"1.23", "1.24", "1.25"}, a.Version)
	for _, h := range Headers {
		if v := header.Values(h); len(v) > 0 {
			out.Header[h] = n.text("", strings.Join(v, ", "))
			if strings.Contains(h, "Maximum") {
				out.Header[h] = "NEWEST"
			}
		}
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return out
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		out.Body = "WORDS"
		return out
	}
	out.Body = n.value("", v)
	return out
}

type normal struct {
	base, route, path string
	projects          map[string]string
	early             bool
}

func (n normal) value(key string, v any) any {
	if _, ok := masked[key]; ok {
		return "MASKED"
	}
	if key == "retired" && v == nil {
		return false // as it is again with Ingot when it was removed
	}
	switch v := v.(type) {
	case map[string]any:
		if strings.Contains(n.path, "properties") && strings.Contains(n.path, "drivers") {
			return "MASKED" // what driver_info holds is the server's own
		}
		if strings.Contains(n.path, "vendor_passthru") && strings.Contains(n.path, "methods") &&
			v["error_message"] == nil {
			return "MASKED" // Ironic shows the first requested node's value for all nodes of a driver
		}
		if _, list := v["history"]; list && strings.Contains(n.path, "history") {
			return "MASKED" // each server decides what to record
		}
		if info, is := v["instance_info"].(map[string]any); is && v["allocation_uuid"] == nil {
			delete(info, "traits") // those of an allocation that is gone stay with Ironic
		}
		out := make(map[string]any, len(v))
		for k, m := range v {
			if n.early && (k == "mode" || k == "properties") {
				continue
			}
			if key != "instance_info" || !slices.Contains(apart, k) {
				out[k] = n.value(k, m)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = n.value(key, v[i])
		}
		if strings.HasPrefix(key, "enabled_") { // an order without a meaning
			slices.SortFunc(out, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
		return out
	case json.Number:
		return v.String() + " (number)"
	case string:
		if key == "error_message" {
			return n.fault(v)
		}
		return n.text(key, v)
	}
	return v
}

// fault is the inside of an error: one value, since there are two kinds, which have nothing in common.
func (n normal) fault(s string) string {
	var inner any
	if json.Unmarshal([]byte(s), &inner) != nil {
		return "WORDS"
	}
	b, err := json.Marshal(normal{base: n.base}.value("", inner))
	if err != nil {
		return "WORDS"
	}
	return string(b)
}

func (n normal) text(key, s string) string {
	if s != "" && slices.Contains(words, key) && (key != "description" || !strings.Contains(n.route, "/v1/")) ||
		key == "reason" && strings.Contains(n.path, "validate") {
		return "WORDS"
	}
	if key == "version" && strings.HasPrefix(s, "1.") {
		return "NEWEST"
	}
	if key == "next" {
		s = n.next(s)
	}
	s = strings.ReplaceAll(s, n.base, "HOST")
	for name, id := range n.projects {
		s = strings.ReplaceAll(s, id, "{"+name+"}")
	}
	s = timeText.ReplaceAllString(s, "TIME")
	return uuidText.ReplaceAllStringFunc(s, own)
}

// paging are the arguments of a list that its next page has, too, in Ironic; it forgets the filters.
var paging = []string{"sort_key", "sort_dir", "fields", "detail", "limit", "marker"}

// next is the address of a next page without the parts that Ironic's lacks: the requested filters, and the parent of
// the list, without which a list of a node continues as the list of all (docs/reference/ironic-differences.md).
func (n normal) next(s string) string {
	_, asked, _ := strings.Cut(n.path, "?")
	filters, err := url.ParseQuery(asked)
	address, query, ok := strings.Cut(s, "?")
	if err != nil || !ok {
		return s
	}
	args := slices.DeleteFunc(strings.Split(query, "&"), func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return filters.Has(name) && !slices.Contains(paging, name)
	})
	if i := strings.LastIndex(strings.TrimSuffix(address, "/detail"), "/"); strings.Contains(n.route, "}/") ||
		strings.HasSuffix(n.route, ask.OtherAddress) {
		address = n.base + "/v1" + address[i:]
	}
	return address + "?" + strings.Join(args, "&")
}

// own hides a UUID that the server chose.
func own(u string) string {
	if strings.HasPrefix(u, ask.UUIDPrefix) || u == "0a0a0a0a-1111-4222-8333-444444444444" {
		return u
	}
	return "UUID"
}

// Difference is one in an answer.
type Difference struct {
	Field     string // "status", "header NAME", or the member's place in the body
	Want, Got string
	Shape     bool // a member is missing or too much: no reason is good enough
}

func (d Difference) String() string { return fmt.Sprintf("%s: %s, not %s", d.Field, d.Got, d.Want) }

const absent = "(absent)"

// Answers gives the differences of two answers. Where the status differs, nothing else is looked at.
func Answers(want, got Answer) []Difference {
	if want.Status != got.Status {
		return []Difference{{Field: "status", Want: fmt.Sprint(want.Status), Got: fmt.Sprint(got.Status)}}
	}
	var out []Difference
	for _, h := range Headers {
		w, g := want.Header[h], got.Header[h]
		if w == "" && (h == "Vary" || strings.HasPrefix(h, "X-Openstack") && routing(want)) {
			// caches have to be told of versions, which Ironic 21.4 does not; and its errors of routing know of none
			continue
		}
		if w != g {
			out = append(out, Difference{Field: "header " + h, Want: w, Got: g})
		}
	}
	return append(out, values("body", want.Body, got.Body)...)
}

// routing reports whether an answer is an error of Ironic's web framework, which comes before the API.
func routing(a Answer) bool {
	b, ok := a.Body.(map[string]any)
	text, isText := b["error_message"].(string)
	// A browser gets them as HTML, in the same member.
	return a.Status >= 400 && (!ok || isText && (strings.HasPrefix(text, `{"code":`) || text == "WORDS"))
}

func values(at string, want, got any) (out []Difference) {
	w, isObject := want.(map[string]any)
	g, both := got.(map[string]any)
	if isObject && both {
		all := maps.Clone(w)
		maps.Copy(all, g)
		for _, k := range slices.Sorted(maps.Keys(all)) {
			wv, has1 := w[k]
			gv, has2 := g[k]
			switch {
			case !has1:
				out = append(out, Difference{at + "/" + k, absent, short(gv), true})
			case !has2:
				out = append(out, Difference{at + "/" + k, short(wv), absent, true})
			default:
				out = append(out, values(at+"/"+k, wv, gv)...)
			}
		}
		return out
	}
	wl, isList := want.([]any)
	gl, both := got.([]any)
	if isList && both {
		if len(wl) != len(gl) {
			return []Difference{{Field: at, Want: fmt.Sprint(len(wl), " items"), Got: fmt.Sprint(len(gl), " items")}}
		}
		for i := range wl {
			out = append(out, values(at, wl[i], gl[i])...)
		}
		return out
	}
	if !reflect.DeepEqual(want, got) {
		out = append(out, Difference{Field: at, Want: short(want), Got: short(got)})
	}
	return out
}

func short(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if len(b) > 160 {
		return string(b[:160]) + "..."
	}
	return string(b)
}
