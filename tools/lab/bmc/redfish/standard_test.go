package redfish_test

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ingot-metal/ingot/test/kit/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc"
	service "github.com/ingot-metal/ingot/tools/lab/bmc/redfish"
	"github.com/ingot-metal/ingot/tools/lab/bmc/redfish/vmedia"
)

// deviations are what controllers do otherwise than the standard says, on purpose: which, and what the test would say.
var deviations = []struct {
	// behaviour is one of package redfish or vmedia; without it, the personalities are those that are named.
	behaviour     service.Behaviour
	personalities []string
	complaint     string // pattern
}{
	{behaviour: vmedia.MediaBootAsUSBCD, complaint: `BootSourceOverrideTarget\S* is UsbCd`},
	{behaviour: service.NeedsIfMatch, complaint: `PATCH of .* = 428, want 400`},
	{behaviour: service.NoIfMatch, complaint: `with its own ETag = 412`},
	{behaviour: service.WeakETag, complaint: `with its own ETag = 412`},
	{personalities: []string{"dell-idrac9", "dell-idrac9-5", "dell-idrac10"},
		complaint: `/LogServices/Sel/.*Created is `},
	{personalities: []string{"dell-idrac9", "dell-idrac9-5", "dell-idrac10"},
		complaint: `MessageId "IDRAC\.2\.8\.`},
}

// rules judges every answer of one controller.
type rules struct {
	t        *testing.T
	schemas  schemas
	p        service.Personality
	base     string
	client   *http.Client
	messages map[string]bool // names in the registry that the controller serves
	used     map[string]bool // complaints of deviations that came
	todo     []string
	faults   int
	from     map[string]string // where a path was linked
}

// TestStandard follows all links of each personality's tree and judges all answers by the rules of the standard
// (DSP0266) and by what DMTF's schemas say of the types. A failure names the path and the property or the rule.
func TestStandard(t *testing.T) {
	table := readSchemas(t)
	used := map[string]bool{}
	t.Run("personalities", func(t *testing.T) {
		for _, name := range service.Personalities() {
			t.Run(name, func(t *testing.T) {
				p := redfish.Personality(t, name)
				b := redfish.Start(t, p, func(c *service.Config) {
					c.Plain, c.MACs = true, []string{"52:54:00:aa:bb:01", "52:54:00:aa:bb:02"}
				})
				if err := b.BMC.Act(bmc.TurnOn); err != nil {
					t.Fatal(err)
				}
				if len(b.Service.RAID().Drives()) > 0 {
					b.Service.RAID().Make("data", "RAID5", 3)
				}
				r := &rules{t: t, schemas: table, p: p, base: b.Service.URL(), used: used, from: map[string]string{},
					client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true},
						CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
				r.services()
				r.session()
				r.work()
				r.crawl()
			})
		}
	})
	for _, d := range deviations {
		if !used[d.complaint] {
			t.Errorf("no controller has the deviation %q any more: take it out of the table", d.complaint)
		}
	}
}

// complain reports a fault, unless it is one that the personality has on purpose.
func (r *rules) complain(path, format string, a ...any) {
	r.t.Helper()
	text := path + ": " + fmt.Sprintf(format, a...)
	for _, d := range deviations {
		if (d.behaviour != "" && r.p.Has(d.behaviour) || slices.Contains(d.personalities, r.p.Name)) &&
			regexp.MustCompile(d.complaint).MatchString(text) {
			r.used[d.complaint] = true
			return
		}
	}
	if from := r.from[path]; from != "" {
		text += " (linked from " + from + ")"
	}
	if r.faults++; r.faults == 30 {
		r.t.Fatal("there are more faults")
	}
	r.t.Error(text)
}

// answer has the parts of an answer; o is its body as an object.
type answer struct {
	status int
	header http.Header
	text   []byte
	o      object
}

// ask makes a request; change may alter it. All rules that hold for any answer are applied.
func (r *rules) ask(method, path, body string, change ...func(*http.Request)) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.base+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.SetBasicAuth("admin", redfish.Password)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, c := range change {
		c(req)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header}
	if a.text, err = io.ReadAll(resp.Body); err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	r.common(method, path, &a)
	return a
}

// common applies what holds for every answer.
func (r *rules) common(method, path string, a *answer) {
	say := func(format string, args ...any) {
		r.t.Helper()
		r.complain(path, "%s = %d: %s", method, a.status, fmt.Sprintf(format, args...))
	}
	if v := a.header.Get("OData-Version"); v != "4.0" {
		say("the header OData-Version is %q, want 4.0", v)
	}
	if a.status < 300 && !strings.Contains(a.header.Get("Cache-Control"), "no-") {
		say("the header Cache-Control is %q: it must forbid to keep the answer", a.header.Get("Cache-Control"))
	}
	if a.status == http.StatusNoContent || method == http.MethodHead {
		if len(a.text) > 0 {
			say("it has a body")
		}
		return
	}
	kind := a.header.Get("Content-Type")
	if strings.HasPrefix(kind, "application/xml") && path == "/redfish/v1/$metadata" {
		return
	}
	if !strings.HasPrefix(kind, "application/json") {
		say("the header Content-Type is %q", kind)
	}
	if err := json.Unmarshal(a.text, &a.o); err != nil {
		say("the body is no JSON object: %v", err)
	}
	if a.status >= 400 {
		r.problem(path, say, *a)
	}
	if a.status == http.StatusMethodNotAllowed && a.header.Get("Allow") == "" {
		say("there is no header Allow")
	}
	if a.status == http.StatusUnauthorized && !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Basic ") {
		say("the header WWW-Authenticate is %q, want Basic", a.header.Get("WWW-Authenticate"))
	}
}

var messageID = regexp.MustCompile(`^([A-Za-z0-9]+)\.([0-9]+)\.([0-9]+)\.([A-Za-z0-9]+)$`)

// problem judges the body of an error.
func (r *rules) problem(path string, say func(string, ...any), a answer) {
	e, _ := a.o["error"].(object)
	code, _ := e["code"].(string)
	text, _ := e["message"].(string)
	infos, _ := e["@Message.ExtendedInfo"].([]any)
	if code == "" || text == "" || len(infos) == 0 {
		say("the error lacks code, message or @Message.ExtendedInfo: %s", a.text)
	}
	j := judge{schemas: r.schemas, complain: say, link: func(string) {}}
	for _, i := range infos {
		info, _ := i.(object)
		j.object("error.@Message.ExtendedInfo.", "Message.Message", info)
		id, _ := info["MessageId"].(string)
		m := messageID.FindStringSubmatch(id)
		if m == nil {
			say("MessageId %q is not of the form Registry.1.2.Name", id)
			continue
		}
		if name := strings.Join(m[1:], "."); r.messages != nil && !r.messages[name] {
			say("MessageId %q is in no registry that the controller serves", id)
		}
	}
}

// services judges what is there without credentials: versions, root, service document and metadata; and it reads the
// registries of messages.
func (r *rules) services() {
	anyone := func(req *http.Request) { req.Header.Del("Authorization") }
	if a := r.ask("GET", "/redfish", "", anyone); a.status != 200 || a.o["v1"] != "/redfish/v1/" {
		r.complain("/redfish", "it is %d %s", a.status, a.text)
	}
	root := r.ask("GET", "/redfish/v1/", "", anyone)
	if root.status != 200 {
		r.t.Fatalf("GET of the service root without credentials = %d", root.status)
	}
	doc := r.ask("GET", "/redfish/v1/odata", "", anyone)
	if doc.status != 200 || doc.o["@odata.context"] != "/redfish/v1/$metadata" {
		r.complain("/redfish/v1/odata", "it is %d %s", doc.status, doc.text)
	}
	entries := asList(doc.o["value"])
	for _, v := range entries {
		o, _ := v.(object)
		if name, _ := o["name"].(string); name == "" || o["kind"] != "Singleton" || o["url"] == nil {
			r.complain("/redfish/v1/odata", "value has %v", v)
		} else if linked(root.o, name) != "" && linked(root.o, name) != o["url"] {
			r.complain("/redfish/v1/odata", "%s is %v, and in the service root %s", name, o["url"], linked(root.o, name))
		}
	}
	if len(entries) < 5 {
		r.complain("/redfish/v1/odata", "it lists %d services", len(entries))
	}
	meta := r.ask("GET", "/redfish/v1/$metadata", "", anyone)
	if err := xml.Unmarshal(meta.text, new(struct{ XMLName xml.Name })); err != nil || meta.status != 200 {
		r.complain("/redfish/v1/$metadata", "it is %d and no XML: %v", meta.status, err)
	}
	registries := r.ask("GET", linked(root.o, "Registries"), "")
	messages := map[string]bool{}
	for _, m := range asList(registries.o["Members"]) {
		file := r.ask("GET", linked(object{"m": m}, "m"), "")
		for _, l := range asList(file.o["Location"]) {
			at, _ := l.(object)
			uri, _ := at["Uri"].(string)
			reg := r.ask("GET", uri, "").o
			all, _ := reg["Messages"].(object)
			version, _ := reg["RegistryVersion"].(string)
			if parts := strings.Split(version, "."); len(parts) == 3 {
				for name := range all {
					messages[fmt.Sprintf("%s.%s.%s.%s", reg["RegistryPrefix"], parts[0], parts[1], name)] = true
				}
			}
		}
	}
	if len(messages) == 0 {
		r.t.Error("the controller serves no registry of messages")
	}
	r.messages = messages
	r.link("/redfish/v1/", "the standard")
}

// session judges login and logout.
func (r *rules) session() {
	const path = "/redfish/v1/SessionService/Sessions"
	anyone := func(req *http.Request) { req.Header.Del("Authorization") }
	for body, want := range map[string]int{`{"UserName":"admin","Password":"wrong"}`: 401, `{`: 400} {
		if a := r.ask("POST", path, body, anyone); a.status != want {
			r.complain(path, "POST %s = %d, want %d", body, a.status, want)
		}
	}
	a := r.ask("POST", path, `{"UserName":"admin","Password":"`+redfish.Password+`"}`, anyone)
	token, at := a.header.Get("X-Auth-Token"), a.header.Get("Location")
	if a.status != 201 || token == "" || at != a.o["@odata.id"] {
		r.t.Fatalf("login = %d, token %q, Location %q: %s", a.status, token, at, a.text)
	}
	j := judge{schemas: r.schemas, link: func(string) {},
		complain: func(f string, a ...any) { r.complain(at, f, a...) }}
	j.resource("", a.o)
	with := func(req *http.Request) {
		req.Header.Del("Authorization")
		req.Header.Set("X-Auth-Token", token)
	}
	for _, step := range []struct {
		method string
		want   int
	}{{"GET", 200}, {"DELETE", 204}, {"GET", 401}} {
		if a := r.ask(step.method, at, "", with); a.status != step.want {
			r.complain(at, "%s with the session's token = %d, want %d", step.method, a.status, step.want)
		}
	}
	if a := r.ask("GET", at, ""); a.status != 404 {
		r.complain(at, "GET of a session that ended = %d, want 404", a.status)
	}
}

// work asks for a change of the BIOS settings, so that there are tasks where the controller has them, and for events.
func (r *rules) work() {
	bios := "/redfish/v1/Systems/" + r.p.SystemID + "/Bios"
	settings, _ := r.ask("GET", bios, "").o["@Redfish.Settings"].(object)
	path := linked(settings, "SettingsObject")
	tag := strings.TrimPrefix(r.ask("GET", path, "").header.Get("ETag"), "W/")
	a := r.ask("PATCH", path, `{"Attributes":{"NumLock":"Disabled"}}`, func(q *http.Request) {
		if !r.p.Has(service.NoIfMatch) {
			q.Header.Set("If-Match", tag)
		}
	})
	if a.status != 204 && a.status != 202 && a.status != 200 {
		r.complain(path, "PATCH of a setting = %d: %s", a.status, a.text)
	}
	if at := a.header.Get("Location"); a.status == 202 && !strings.HasPrefix(at, "/redfish/v1/") {
		r.complain(path, "PATCH = 202, and the header Location is %q", at)
	}
	subscriptions := linked(r.ask("GET", "/redfish/v1/EventService", "").o, "Subscriptions")
	a = r.ask("POST", subscriptions, `{"Destination":"https://192.0.2.1/events","Protocol":"Redfish","Context":"x"}`)
	if at := a.header.Get("Location"); a.status != 201 || at == "" || at != a.o["@odata.id"] {
		r.complain(subscriptions, "POST = %d with Location %q: %s", a.status, at, a.text)
	}
}

// link notes a path to be asked for.
func (r *rules) link(path, from string) {
	path, _, _ = strings.Cut(path, "#")
	if _, known := r.from[path]; !known {
		r.from[path] = from
		r.todo = append(r.todo, path)
	}
}

func (r *rules) crawl() {
	for _, m := range asList(r.ask("GET", "/redfish/v1/JsonSchemas", "").o["Members"]) {
		r.link(linked(object{"m": m}, "m"), "JsonSchemas")
	}
	for len(r.todo) > 0 {
		path := r.todo[0]
		r.todo = r.todo[1:]
		r.one(path)
		if len(r.from) > 5000 {
			r.t.Fatalf("there is no end of links, the newest to %s", r.todo[len(r.todo)-1])
		}
	}
	if len(r.from) < 40 {
		r.t.Errorf("only %d resources were found", len(r.from))
	}
}

// one judges one resource and everything that can be asked of it without a change.
func (r *rules) one(path string) {
	a := r.ask("GET", path, "")
	if a.status != 200 {
		r.complain(path, "GET = %d, want 200: every link must lead to a resource", a.status)
		return
	}
	if id, _ := a.o["@odata.id"].(string); strings.TrimSuffix(id, "/") != strings.TrimSuffix(path, "/") {
		r.complain(path, "@odata.id is %q", id)
	}
	j := judge{schemas: r.schemas, link: func(to string) { r.link(to, path) },
		complain: func(format string, a ...any) { r.complain(path, format, a...) }}
	j.resource("", a.o)
	typ, _ := a.o["@odata.type"].(string)
	name, _, _ := strings.Cut(strings.TrimPrefix(typ, "#"), ".")
	if !strings.HasSuffix(name, "Collection") && !vendors.MatchString(name) &&
		r.from["/redfish/v1/JsonSchemas/"+name] == "" {
		r.complain(path, "the type %s is not in JsonSchemas", typ)
	}
	allow := strings.Split(strings.ReplaceAll(a.header.Get("Allow"), " ", ""), ",")
	may := func(method string) bool { return slices.Contains(allow, method) }
	etag := a.header.Get("ETag")
	if !may("GET") || !may("HEAD") {
		r.complain(path, "GET = 200 with the header Allow %q", allow)
	}
	if !strings.Contains(a.header.Get("Link"), "rel=describedby") {
		r.complain(path, "the header Link is %q, want one with rel=describedby", a.header.Get("Link"))
	}
	if may("PATCH") && !regexp.MustCompile(`^(W/)?"[^"]+"$`).MatchString(etag) {
		r.complain(path, "the header ETag is %q, and it can be changed", etag)
	}
	if in, has := a.o["@odata.etag"]; has && in != etag {
		r.complain(path, "@odata.etag is %v, the header ETag %q", in, etag)
	}
	if h := r.ask("HEAD", path, ""); h.status != 200 || h.header.Get("ETag") != etag {
		r.complain(path, "HEAD = %d with ETag %q; of GET it is %q", h.status, h.header.Get("ETag"), etag)
	}
	if path != "/redfish/v1/" {
		if b := r.ask("GET", path, "", func(q *http.Request) { q.Header.Del("Authorization") }); b.status != 401 {
			r.complain(path, "GET without credentials = %d, want 401", b.status)
		}
	}
	if b := r.ask("GET", strings.TrimSuffix(path, "/")+"/none", ""); b.status != 404 {
		r.complain(path+"/none", "GET of what is not there = %d, want 404", b.status)
	}
	const garbage = `{"Garbage":1}`
	for _, method := range []string{"POST", "PATCH", "PUT", "DELETE"} {
		switch {
		case !may(method):
			if b := r.ask(method, path, garbage); b.status != 405 {
				r.complain(path, "%s = %d, want 405, since Allow is %q", method, b.status, a.header.Get("Allow"))
			}
		case method == "PATCH":
			r.patch(path, garbage, etag)
		case method == "POST":
			if b := r.ask(method, path, garbage); b.status != 400 && b.status != 401 {
				r.complain(path, "POST of %s = %d, want 400", garbage, b.status)
			}
		}
	}
	r.actions(path, a.o)
}

// patch asks for changes that must be declined.
func (r *rules) patch(path, garbage, etag string) {
	if b := r.ask("PATCH", path, garbage); b.status != 400 {
		r.complain(path, "PATCH of %s = %d, want 400", garbage, b.status)
	}
	with := func(tag string) func(*http.Request) {
		return func(q *http.Request) { q.Header.Set("If-Match", tag) }
	}
	if b := r.ask("PATCH", path, garbage, with(`"another"`)); b.status != 412 {
		r.complain(path, "PATCH of %s with another ETag = %d, want 412", garbage, b.status)
	}
	if b := r.ask("PATCH", path, garbage, with(etag)); b.status != 400 {
		r.complain(path, "PATCH of %s with its own ETag = %d, want 400", garbage, b.status)
	}
	if b := r.ask("PATCH", path, `{"a`, with(strings.TrimPrefix(etag, "W/"))); b.status != 400 {
		r.complain(path, "PATCH of half an object = %d, want 400", b.status)
	}
}

// actions asks for each action of a resource with parameters that it can't have.
func (r *rules) actions(path string, o object) {
	all, _ := o["Actions"].(object)
	for name, v := range all {
		a, _ := v.(object)
		target, _ := a["target"].(string)
		if name == "Oem" {
			continue
		}
		if !strings.HasPrefix(name, "#") || !strings.HasSuffix(target, "/Actions/"+strings.TrimPrefix(name, "#")) {
			r.complain(path, "the target of the action %s is %q", name, target)
			continue
		}
		for _, body := range []string{`{"Garbage":1}`, `[]`, `{`} {
			if b := r.ask("POST", target, body); b.status != 400 {
				r.complain(path, "the action %s with %s = %d, want 400", name, body, b.status)
			}
		}
		if b := r.ask("POST", target+"None", `{}`); b.status != 404 && b.status != 405 {
			r.complain(path, "the action %sNone, which there is not, = %d, want 404", name, b.status)
		}
	}
}
