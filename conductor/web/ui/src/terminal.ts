// The terminal that shows a serial console. It is loaded only where one is opened.
import { Terminal } from '@xterm/xterm';

// styleElement stands for a style element. The policy of our pages allows no style in the page; a sheet that a script
// makes is none.
function styleElement(make: (name: string) => HTMLElement): HTMLElement {
  const sheet = new CSSStyleSheet();
  const e = make('meta');
  Object.defineProperty(e, 'textContent', {
    set: (text: string) => {
      sheet.replaceSync(text);
      if (!document.adoptedStyleSheets.includes(sheet)) document.adoptedStyleSheets.push(sheet);
    },
  });
  e.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet);
    Element.prototype.remove.call(e);
  };
  return e;
}

const columns = 80; // what serial consoles expect
const rows = 25;

// show puts a terminal into an element.
export function show(into: HTMLElement, typed: (text: string) => void, leave: () => void): Terminal {
  const size = Math.max(10, Math.min(15, into.clientWidth / columns / 0.61));
  const t = new Terminal({
    cols: columns,
    rows,
    scrollback: 5000,
    fontSize: Math.floor(size),
    fontFamily: getComputedStyle(document.documentElement).getPropertyValue('--mono'),
    cursorBlink: false,
    screenReaderMode: true,
    theme: { background: '#10161d', foreground: '#e4e9ee', cursor: '#6db3f2' },
  });
  const make = document.createElement.bind(document) as (name: string) => HTMLElement;
  document.createElement = ((name: string) => (name === 'style' ? styleElement(make) : make(name))) as typeof document.createElement;
  try {
    t.open(into);
  } finally {
    document.createElement = make as typeof document.createElement;
  }
  t.onData(typed);
  // Without this the keyboard would never get out: the Tab key is the machine's.
  t.attachCustomKeyEventHandler((e) => {
    if (!(e.ctrlKey && e.key === ']')) return true;
    if (e.type === 'keydown') leave();
    return false;
  });
  t.focus();
  return t;
}
