// Package ui holds tests of the dashboard in a real Chromium, against an ingotd as it is shipped.
//
// A page is one browser window with cookies of its own. What its program complains of (an exception, a breach of the
// content security policy, a request that failed and was not expected to) fails the test.
package ui

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/ingot-metal/ingot/test/kit"
)

// browser is the one Chromium of this process, started by the first test that needs it and ended by TestMain.
var browser struct {
	sync.Mutex
	ctx context.Context
	end []context.CancelFunc
}

func TestMain(m *testing.M) {
	code := m.Run()
	for i := len(browser.end) - 1; i >= 0; i-- {
		browser.end[i]()
	}
	os.Exit(code)
}

func chromium(t testing.TB) context.Context {
	t.Helper()
	kit.NeedPrograms(t, "chromium")
	browser.Lock()
	defer browser.Unlock()
	if browser.ctx != nil {
		return browser.ctx
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("force-color-profile", "srgb"),
		chromedp.WSURLReadTimeout(2*time.Minute))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	alloc, endAlloc := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(alloc)
	if err := chromedp.Do(ctx); err != nil {
		end()
		endAlloc()
		t.Fatalf("start Chromium: %v", err)
	}
	browser.ctx, browser.end = ctx, []context.CancelFunc{endAlloc, end}
	return ctx
}

// page is a window of the browser.
type page struct {
	testing.TB
	ctx context.Context
	url string // of the server

	mu         sync.Mutex
	requests   []string // methods and addresses that were asked for
	bytes      float64  // of all answers
	complaints []string
	expected   []string // parts of complaints that a test wants
}

// open opens a window for a server; it is closed with the test.
func open(t testing.TB, url string) *page {
	t.Helper()
	ctx, end := chromedp.NewContext(chromium(t), chromedp.WithNewBrowserContext())
	p := &page{TB: t, ctx: ctx, url: url}
	t.Cleanup(func() {
		if t.Failed() {
			p.shot("failed-" + strings.ReplaceAll(t.Name(), "/", "-"))
		}
		end()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range p.complaints {
			t.Errorf("the page complains: %.1500s", c)
		}
	})
	if err := chromedp.Listen(ctx, p.note); err != nil {
		t.Fatal(err)
	}
	command(p, network.Enable, network.EnableParams{})
	command(p, cdplog.Enable, cdp.Empty{})
	command(p, runtime.Enable, cdp.Empty{})
	p.size(1280, 800)
	return p
}

// note records what the browser reports.
func (p *page) note(ev any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	complain := func(text string) {
		for _, part := range p.expected {
			if strings.Contains(text, part) {
				return
			}
		}
		p.complaints = append(p.complaints, text)
	}
	switch ev := ev.(type) {
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, ev.Request.Method+" "+strings.TrimPrefix(ev.Request.URL, p.url))
		if !strings.HasPrefix(ev.Request.URL, p.url) && !strings.HasPrefix(ev.Request.URL, "data:") {
			complain("it asks for " + ev.Request.URL)
		}
	case *network.EventLoadingFinished:
		p.bytes += ev.EncodedDataLength
	case *cdplog.EventEntryAdded:
		if ev.Entry.Level == cdplog.EntryLevelError {
			complain(ev.Entry.Text + " " + ev.Entry.URL)
		}
	case *runtime.EventExceptionThrown:
		b, _ := json.Marshal(ev.ExceptionDetails) // in the browser's words
		complain(string(b))
	case *runtime.EventConsoleAPICalled:
		if ev.Type == runtime.ConsoleAPICalledTypeError || ev.Type == runtime.ConsoleAPICalledTypeWarning {
			b, _ := json.Marshal(ev.Args)
			complain(string(ev.Type) + " " + string(b))
		}
	}
}

// expect lets the page complain of something.
func (p *page) expect(parts ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = append(p.expected, parts...)
}

// run has the browser do something, in at most two minutes.
func (p *page) run(actions ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, 2*time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.Fatal(err)
	}
}

// command sends the browser a command of its protocol.
func command[P, R any](p *page, c cdp.Command[P, R], params P) R {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, 2*time.Minute)
	defer cancel()
	out, err := chromedp.Call(ctx, c, params)
	if err != nil {
		p.Fatal(err)
	}
	return out
}

// visit goes to an address of the server.
func (p *page) visit(path string) {
	p.Helper()
	p.run(chromedp.Navigate(p.url + path))
}

func (p *page) size(width, height int64) {
	p.Helper()
	command(p, emulation.SetDeviceMetricsOverride,
		emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1})
}

// theme has the browser prefer light or dark.
func (p *page) theme(name string) {
	p.Helper()
	command(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name},
			{Name: "prefers-reduced-motion", Value: "reduce"}}})
}

// js evaluates an expression, which may be a promise, and decodes its value.
func js[T any](p *page, expression string) T {
	p.Helper()
	v, err := evaluate[T](p, expression)
	if err != nil {
		p.Fatalf("%.300s: %v", expression, err)
	}
	return v
}

func evaluate[T any](p *page, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(p.ctx, 2*time.Minute)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// does has the page do something, without a value.
func (p *page) does(script string) {
	p.Helper()
	js[bool](p, "(async () => { await ("+script+"); return true; })()")
}

// until waits until an expression is true. A page that gives way to another one meanwhile has no answer, and is asked
// again.
func (p *page) until(expression string) {
	p.Helper()
	deadline := time.Now().Add(patience)
	for {
		ok, err := evaluate[bool](p, "!!("+expression+")")
		switch {
		case ok && err == nil:
			return
		case err != nil && !strings.Contains(err.Error(), "navigated or closed"):
			p.Fatalf("%.300s: %v", expression, err)
		case time.Now().After(deadline):
			p.Fatalf("after %v still not: %s (%v)\nthe page shows: %.3000s", patience, expression, err, p.text())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// patience is how long a page may take.
var patience = 60 * time.Second

// text is all that is shown.
func (p *page) text() string {
	p.Helper()
	return js[string](p, "document.body.innerText")
}

func quoted(text string) string {
	b, _ := json.Marshal(text) // a string always is JSON
	return string(b)
}

// shows waits until a text is on the page.
func (p *page) shows(text string) {
	p.Helper()
	p.until("document.body.innerText.includes(" + quoted(text) + ")")
}

// lacks waits until a text is not on the page.
func (p *page) lacks(text string) {
	p.Helper()
	p.until("!document.body.innerText.includes(" + quoted(text) + ")")
}

// named is an expression for the visible element with a name, as people know it: of a button, a link, a field. Where a
// dialog is open, it is in the dialog.
func named(name string) string {
	return `(() => { const want = ` + quoted(name) + `;
		const within = document.querySelector('dialog[open]') ?? document;
		const all = [...within.querySelectorAll('button, a, summary, input, select, textarea, [role=tab]')];
		const name = (e) => (e.getAttribute('aria-label') ?? ([...(e.labels ?? [])].map((l) => l.innerText || l.textContent).join(' ') || e.innerText) ?? '').trim().replace(/\s+/g, ' ');
		const seen = all.filter((e) => e.checkVisibility() && !e.disabled);
		return seen.find((e) => name(e) === want) ?? seen.find((e) => name(e).startsWith(want)) ?? seen.find((e) => name(e).includes(want)); })()`
}

// click clicks what has a name, once it is there. A name that ends in an ellipsis opens a dialog.
func (p *page) click(name string) {
	p.Helper()
	p.until(named(name))
	p.does(named(name) + ".click()")
	if strings.HasSuffix(name, "…") {
		p.until("document.querySelector('dialog[open]')")
	}
}

// offers reports whether something with a name is there to click.
func (p *page) offers(name string) bool {
	p.Helper()
	return js[bool](p, "!!("+named(name)+")")
}

// fill writes into a field, as a person does by the keyboard.
func (p *page) fill(name, text string) {
	p.Helper()
	p.until(named(name))
	p.does("(() => { const e = " + named(name) + "; e.focus(); e.select?.(); })()")
	p.run(chromedp.KeyEvent(kb.Backspace))
	if text != "" {
		p.run(chromedp.KeyEvent(text))
	}
}

// set puts a text into a field at once.
func (p *page) set(name, text string) {
	p.Helper()
	p.until(named(name))
	p.does("(() => { const e = " + named(name) + "; e.value = " + quoted(text) +
		"; e.dispatchEvent(new Event('input', { bubbles: true })); })()")
}

// choose chooses an option of a list by its value.
func (p *page) choose(name, value string) {
	p.Helper()
	p.until(named(name))
	p.does("(() => { const e = " + named(name) + "; e.value = " + quoted(value) +
		"; e.dispatchEvent(new Event('change', { bubbles: true })); })()")
}

// asked counts requests whose method and address begin with a text.
func (p *page) asked(prefix string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.requests {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}

// shots is where pictures of pages are put.
func shots(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", "build", "ui"))
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// shot takes a picture of what is in sight.
func (p *page) shot(name string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	b, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(shots(p), name+".png"), b, 0o644)
	}
	if err != nil {
		p.Errorf("take a picture: %v", err)
	}
}
