// The address of the page: which view is shown, and how it is filtered, so that an address is a saved view.
import { Store } from './store';

export interface Place {
  path: string[]; // below /ui
  query: URLSearchParams;
}

function read(): Place {
  const path = location.pathname
    .split('/')
    .filter(Boolean)
    .slice(1)
    .map((s) => decodeURIComponent(s));
  return { path, query: new URLSearchParams(location.search) };
}

export const place = new Store<Place>(read());

window.addEventListener('popstate', () => place.set(read()));

export function go(to: string, replace = false) {
  if (to === location.pathname + location.search) return;
  if (replace) history.replaceState(null, '', to);
  else history.pushState(null, '', to);
  place.set(read());
  if (!replace) window.scrollTo(0, 0);
}

// setQuery changes members of the query; null takes one out.
export function setQuery(change: Record<string, string | null>, replace = true) {
  const q = new URLSearchParams(place.value.query);
  for (const [k, v] of Object.entries(change)) {
    if (v === null || v === '') q.delete(k);
    else q.set(k, v);
  }
  const text = q.toString();
  go(location.pathname + (text && '?' + text), replace);
}

// follow has links to our own pages followed without a request for the page.
export function follow(e: MouseEvent) {
  if (e.defaultPrevented || e.button !== 0 || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return;
  const a = (e.target as Element).closest?.('a');
  const to = a?.getAttribute('href');
  if (!a || !to || !to.startsWith('/ui/') || a.target || a.hasAttribute('download') || /\.[a-z]+$/.test(to.split('?')[0])) return;
  e.preventDefault();
  go(to);
}
