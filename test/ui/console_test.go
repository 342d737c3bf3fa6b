package ui

import (
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

// screen waits until the terminal shows a text.
func (p *page) screen(text string) {
	p.Helper()
	p.until("document.querySelector('.xterm-rows')?.textContent.replaceAll('\\u00a0', ' ').includes(" + quoted(text) + ")")
}

// TestConsole: who may opens a machine's console, types, and gets out again by keyboard; another page takes it over;
// and what a machine writes there is no markup.
func TestConsole(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.node("m1", "")
	p := open(t, s.d.URL)
	p.expect("status of 404")
	p.visit("/ui/nodes/m1/console")
	if p.asked("GET /ui/part-") != 0 {
		t.Error("the terminal is loaded before a console is opened")
	}
	p.click("Open the console")
	p.screen("fake login:")
	p.run(chromedp.KeyEvent("<b>root</b>\t\r"))
	p.screen("fake login: <b>root</b>")
	if got := js[string](p, "getComputedStyle(document.querySelector('.xterm-rows > div')).height"); got == "auto" || got == "0px" {
		t.Errorf("the rows are %s high: the terminal's style is not there", got)
	}
	p.shot("node-console")
	if !js[bool](p, "document.querySelector('.terminal-box').contains(document.activeElement)") {
		t.Error("the terminal does not have the focus")
	}
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeRawKeyDown,
		input.DispatchKeyEventTypeKeyUp} {
		command(p, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: kind, Modifiers: 2, // Ctrl
			Key: "]", Code: "BracketRight", WindowsVirtualKeyCode: 221})
	}
	p.until("document.activeElement === " + named("Close the console"))

	other := open(t, s.d.URL)
	other.expect("status of 404") // its session is taken over while it closes it
	other.visit("/ui/nodes/m1/console")
	other.click("Open the console")
	other.screen("fake login:")
	p.shows("The session has ended")
	other.click("Overview")
	other.until("location.pathname === '/ui/nodes/m1'")
	p.click("Open it again") // it is free
	p.screen("fake login:")
	p.click("Close the console")
	p.shows("You have closed it.")
	if history := s.want(200, "GET", "/v1/nodes/m1/history?detail=true", ""); strings.Count(history, "console opened") != 3 {
		t.Errorf("the history does not have three openings: %s", history)
	}
}
