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
	"updated_at":           "a change of nothing is no change",
	"reservation":          "it comes and goes",
}

// Normal puts an answer into the form to compare.
func Normal(a ask.Ask, base string, status int, header http.Header, body []byte) Answer {
	out := Answer{Status: status, Header: map[string]string{}}
	n := normal{base: base, route: a.Route}
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

type normal struct{ base, route string }

func (n normal) value(key string, v any) any {
	if _, ok := masked[key]; ok {
		return "MASKED"
	}
	switch v := v.(type) {
	case map[string]any:
		if strings.HasSuffix(n.route, "/properties") && strings.Contains(n.route, "/drivers/") {
			return "MASKED" // what driver_info holds is the server's own
		}
		out := make(map[string]any, len(v))
		for k, m := range v {
			out[k] = n.value(k, m)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = n.value(key, v[i])
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
		key == "reason" && strings.Contains(n.route, "validate") {
		return "WORDS"
	}
	if key == "version" && strings.HasPrefix(s, "1.") {
		return "NEWEST"
	}
	if key == "next" {
		u, err := url.Parse(s)
		if err != nil {
			return s
		}
		return "NEXT limit=" + u.Query().Get("limit") + " marker=" +
			uuidText.ReplaceAllStringFunc(u.Query().Get("marker"), own)
	}
	s = strings.ReplaceAll(s, n.base, "HOST")
	s = timeText.ReplaceAllString(s, "TIME")
	return uuidText.ReplaceAllStringFunc(s, own)
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

// routing tells whether an answer is an error of Ironic's web framework, which comes before the API.
func routing(a Answer) bool {
	b, ok := a.Body.(map[string]any)
	text, isText := b["error_message"].(string)
	return a.Status >= 400 && (!ok || isText && strings.HasPrefix(text, `{"code":`))
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
