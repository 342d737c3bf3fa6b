package ui

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cdppage "github.com/chromedp/cdproto/page"

	"github.com/ingot-metal/ingot/test/kit"
)

// views are all pages as people see them, with a text that is there once they are complete. {node} is a deployed
// machine of the site that lookSite makes.
var views = []struct{ name, path, shows string }{
	{"fleet", "/ui/", "live"},
	{"fleet-grid", "/ui/?view=grid", "live"},
	{"node", "/ui/nodes/{node}", "Third rack"},
	{"node-timeline", "/ui/nodes/{node}/timeline", "Where the time went"},
	{"node-steps", "/ui/nodes/{node}/steps", "Last deploy"},
	{"node-hardware", "/ui/nodes/{node}/hardware", "Root disk"},
	{"node-health", "/ui/nodes/{node}/health", "ealth"},
	{"node-history", "/ui/nodes/{node}/history", "Who did what"},
	{"node-settings", "/ui/nodes/{node}/settings", "BIOS settings"},
	{"node-media", "/ui/nodes/{node}/media", "In the drives"},
	{"images", "/ui/images", "deployed from"},
	{"rules", "/ui/rules", "one maker"},
	{"pools", "/ui/pools", "warm"},
	{"allocations", "/ui/allocations", "web-1"},
	{"reservations", "/ui/reservations", "Calendar"},
	{"erasures", "/ui/erasures", "Verify a report"},
	{"conductors", "/ui/conductors", "needs attention"},
	{"events", "/ui/events", "Log"},
	{"settings", "/ui/settings", "api.listen"},
	{"start", "/ui/start", "First steps"},
	{"node-failed", "/ui/nodes/{bad}", "replace the disk"},
}

// lookSite is a site with machines in many states.
func lookSite(t testing.TB) (s *site, names *strings.Replacer) {
	t.Helper()
	s = start(t)
	for i := range 6 {
		s.node(fmt.Sprintf("rack1-u%02d", i+1), `"resource_class":"compute.large"`)
	}
	for i := range 3 {
		id := s.node(fmt.Sprintf("rack2-u%02d", i+1), `"resource_class":"storage"`)
		s.send(id, "manage")
	}
	s.available("rack3-u01", `"resource_class":"compute.large"`)
	node := s.available("rack3-u02", `"resource_class":"compute.large","description":"Third rack, second unit","driver_info":{"fake_deploy_delay":"0.2","fake_inventory":{"cpus":64,"cpu_arch":"x86_64","memory_mb":262144,"disks_gb":[960,3840],"macs":["52:54:00:00:00:01","52:54:00:00:00:02"],"vendor":"Dell Inc.","product":"PowerEdge R750","serial":"7XKQ0K3","boot_mode":"uefi"}}`)
	s.send(node, "manage")
	s.is(node, "manageable")
	s.send(node, "inspect")
	s.is(node, "manageable")
	s.send(node, "provide")
	s.is(node, "available")
	s.want(200, "PATCH", "/v1/nodes/"+node, `[{"op":"add","path":"/instance_info","value":{"image_source":"http://images.example/debian-12.qcow2","image_os_hash_algo":"sha256","image_os_hash_value":"`+
		strings.Repeat("5f", 32)+`"}}]`)
	s.send(node, "active")
	bad := s.available("rack3-u03-with-a-name-that-is-rather-long-for-a-machine", `"driver_info":{"fake_fail":{"deploy.deploy":"write image to /dev/sda at byte 4294967296: input/output error: replace the disk with serial S3Z9NX0K123456, then deploy again"}}`)
	s.send(bad, "active")
	slow := s.available("rack3-u04", `"driver_info":{"fake_deploy_delay":"600"}`)
	s.send(slow, "active")
	s.want(202, "PUT", "/v1/nodes/rack1-u02/maintenance", `{"reason":"DIMM B2 reports corrected errors; memory is ordered"}`)
	s.want(201, "POST", "/v1/inspection_rules", `{"description":"machines of one maker","actions":[{"op":"set-attribute","args":{"path":"/description","value":"x"}}]}`)
	s.want(201, "PUT", "/ingot/v1/pools/web", `{"resource_class":"compute.large","count":2}`)
	day := func(n int) string { return time.Now().AddDate(0, 0, n).UTC().Format(time.RFC3339) }
	s.want(201, "POST", "/ingot/v1/reservations", `{"name":"training","resource_class":"compute.large","project":"web","start":"`+
		day(2)+`","end":"`+day(5)+`","tear_down":true}`)
	s.want(201, "POST", "/v1/allocations", `{"name":"web-1","resource_class":"none.such"}`)
	s.is(node, "active")
	s.is(bad, "deploy failed")
	return s, strings.NewReplacer("{node}", node, "{bad}", bad)
}

// sideways lists what is wider than the window, or is cut off and does not say so by an ellipsis.
const sideways = `(() => {
	const out = [];
	const wide = document.documentElement.scrollWidth - window.innerWidth;
	if (wide > 0) out.push('the page is ' + wide + ' px wider than the window');
	for (const e of document.querySelectorAll('body *')) {
		if (!e.checkVisibility() || e.closest('.hidden, .skip, canvas, svg, .scrolls, option')) continue;
		const r = e.getBoundingClientRect();
		if (r.width === 0 || r.height === 0) continue;
		if (r.right > window.innerWidth + 1 && wide > 0) out.push(e.tagName + '.' + e.className + ' ends at ' + Math.round(r.right));
		const s = getComputedStyle(e);
		if (s.overflowX === 'hidden' && s.textOverflow !== 'ellipsis' && e.scrollWidth > e.clientWidth + 1 && e.innerText)
			out.push(e.tagName + '.' + e.className + ' is cut off: ' + e.innerText.slice(0, 40));
	}
	return out.slice(0, 8);
})()`

// overlaps lists texts and controls that lie upon each other.
const overlaps = `(() => {
	const list = [...(document.querySelector('dialog[open]') ?? document).querySelectorAll('button, a, input, select, summary, h1, h2, h3, label, dt, dd, th, td')]
		.filter((e) => e.checkVisibility() && !e.closest('.hidden, .skip, .menu > div, .spacer') && !(window.innerWidth <= 700 && e.closest('table.stack thead')) && e.tagName !== 'OPTION')
		.map((e) => {
			const r = e.getBoundingClientRect(), c = e.closest('td, th, .cut')?.getBoundingClientRect();
			return [e, c ? { left: r.left, top: r.top, bottom: r.bottom, right: Math.min(r.right, c.right), width: Math.min(r.right, c.right) - r.left, height: r.height } : r];
		}).filter(([, r]) => r.width > 1 && r.height > 1 && r.bottom > 0 && r.top < window.innerHeight);
	const out = [];
	for (let i = 0; i < list.length; i++)
		for (let k = i + 1; k < list.length; k++) {
			const [[a, x], [b, y]] = [list[i], list[k]];
			if (a.contains(b) || b.contains(a)) continue;
			const w = Math.min(x.right, y.right) - Math.max(x.left, y.left), h = Math.min(x.bottom, y.bottom) - Math.max(x.top, y.top);
			if (w > 2 && h > 2 && !a.closest('.group') && !b.closest('.group')) out.push(a.tagName + ' ' + (a.innerText ?? '').slice(0, 30) + ' and ' + b.tagName + ' ' + (b.innerText ?? '').slice(0, 30));
		}
	return out.slice(0, 8);
})()`

// axe is the script that looks for faults that keep people out.
var axe = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("go", "-C", filepath.Join("..", "..", "tools", "bundle"), "run", "./fetch", "axe-core")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("fetch axe-core: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "axe-core", "axe.min.js"))
	return string(b), err
})

// accessible fails the test for each fault that axe calls serious or worse, contrast below AA too; of colours alone,
// if that is all that can differ.
func (p *page) accessible(what string, colours bool) {
	p.Helper()
	script, err := axe()
	if err != nil {
		p.Fatal(err)
	}
	if !js[bool](p, "typeof axe === 'object'") {
		p.does("(() => {" + script + "\n;window.axe = axe ?? module?.exports; })()")
	}
	rules := `['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']`
	if colours {
		rules = `{ type: 'rule', values: ['color-contrast', 'link-in-text-block'] }`
	}
	found := js[string](p, `axe.run(document, { resultTypes: ['violations'], runOnly: `+rules+` })
		.then((r) => JSON.stringify(r.violations.map((v) => ({ id: v.id, impact: v.impact, help: v.help, at: v.nodes.slice(0, 4).map((n) => n.html.slice(0, 200) + ' ' + (n.any[0]?.message ?? '')) }))))`)
	var faults []struct {
		ID, Impact, Help string
		At               []string
	}
	if err := json.Unmarshal([]byte(found), &faults); err != nil {
		p.Fatal(err)
	}
	for _, f := range faults {
		if f.Impact == "serious" || f.Impact == "critical" {
			p.Errorf("%s: %s (%s): %s\n  %s", what, f.ID, f.Impact, f.Help, strings.Join(f.At, "\n  "))
		}
	}
}

// forDocs is the folder of the documentation's pictures, which make pictures takes anew; "": they are not taken.
var forDocs = os.Getenv("INGOT_PICTURES")

// picture takes one for the documentation, small enough for a page; false: none are taken.
func (p *page) picture(name string) bool {
	p.Helper()
	if forDocs == "" {
		return false
	}
	out := command(p, cdppage.CaptureScreenshot, cdppage.CaptureScreenshotParams{
		Format: cdppage.CaptureScreenshotFormatWebp, Quality: new(int64(25)),
		Clip: &cdppage.Viewport{Width: 1280, Height: 800, Scale: 0.65}})
	if err := os.WriteFile(filepath.Join(forDocs, name+".webp"), out.Data, 0o644); err != nil {
		p.Fatal(err)
	}
	return true
}

// pictured takes those for the documentation in both themes.
func (p *page) pictured(name string) {
	p.Helper()
	for _, theme := range []string{"light", "dark"} {
		p.theme(theme)
		p.picture(name + "-" + theme)
	}
}

// pictures asks for pictures at all widths, too.
var pictures = os.Getenv("INGOT_FULL") != ""

// widths are a phone, a laptop and the widest screen, in pixels.
var widths = []int64{360, 1280, 3840}

// TestEveryPageLooksRight: in both themes and at all widths no page is cut off, overlaps or scrolls sideways, and no
// page keeps people out who can't see, point or tell colours apart. The pictures are in build/ui.
func TestEveryPageLooksRight(t *testing.T) {
	kit.NeedPrograms(t, "npm")
	s, names := lookSite(t)
	p := open(t, s.d.URL)
	for _, v := range views {
		for _, theme := range []string{"light", "dark"} {
			p.theme(theme)
			p.size(1280, 800)
			p.visit(names.Replace(v.path))
			p.shows(v.shows)
			p.until("![...document.querySelectorAll('main [aria-busy=true]')].some((e) => e.checkVisibility())")
			if p.picture(v.name + "-" + theme) {
				continue
			}
			p.shot(v.name + "-" + theme)
			p.accessible(v.name+", "+theme, theme == "dark")
			if theme == "dark" { // colours alone differ
				continue
			}
			p.fits(v.name)
		}
	}
}

// fits fails the test where what is shown is cut off, overlaps or is wider than the window, at each width.
func (p *page) fits(what string) {
	p.Helper()
	for _, w := range widths {
		p.size(w, 800)
		p.does("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
		for kind, script := range map[string]string{"too wide": sideways, "overlaps": overlaps} {
			faults := js[[]string](p, script)
			for until := time.Now().Add(patience / 10); len(faults) > 0 && time.Now().Before(until); {
				time.Sleep(50 * time.Millisecond) // the page may still be at it
				faults = js[[]string](p, script)
			}
			for _, fault := range faults {
				p.Errorf("%s, %d px, %s: %s", what, w, kind, fault)
			}
		}
		if pictures {
			p.shot(fmt.Sprintf("%s-%d", what, w))
		}
	}
	p.size(1280, 800)
}

// TestDialogsLookRight, and the page to sign in, as the pages do.
func TestDialogsLookRight(t *testing.T) {
	kit.NeedPrograms(t, "npm")
	_, set := keystone(t)
	s := start(t, set...)
	p := open(t, s.d.URL)
	look := func(name string) {
		t.Helper()
		for _, theme := range []string{"light", "dark"} {
			p.theme(theme)
			if p.picture(name + "-" + theme) {
				continue
			}
			p.shot(name + "-" + theme)
			p.accessible(name+", "+theme, theme == "dark")
		}
		if forDocs == "" {
			p.fits(name)
		}
	}
	p.visit("/ui/")
	p.shows("Sign in to Keystone with")
	look("sign-in")

	fleet := start(t)
	fleet.available("rack1-u01-with-a-name-that-is-rather-long-for-a-machine", "")
	fleet.node("rack1-u02", "")
	p = open(t, fleet.d.URL)
	p.visit("/ui/")
	p.until("document.querySelectorAll('.machines-table tbody a').length === 2")
	p.click("Choose all machines in the table")
	p.click("Start maintenance …")
	p.click("The same in a shell")
	look("group")
	p.click("Cancel")
	p.click("rack1-u01")
	p.click("Deploy …")
	p.fill("SSH keys", "no key")
	p.click("Check")
	p.click("More of the config drive")
	p.click("The same in a shell")
	look("deploy")
	p.click("Cancel")
	p.click("Console")
	p.click("Open the console")
	p.screen("fake login:")
	look("console")
	p.click("Close the console")
	p.click("Fleet")
	p.click("rack1-u02")
	p.click("Manage …")
	p.click("Manage")
	p.click("Clean …")
	p.fill("Step 1", "bios.apply_configuration")
	p.fill("Arguments of step 1", `{"settings": [{"name": "LogicalProc", "value": "Enabled"}]}`)
	p.click("Add a step")
	p.fill("Step 2", "raid.delete_configuration")
	p.click("Check")
	p.until("document.querySelector('dialog .steps li')")
	look("clean")
}
