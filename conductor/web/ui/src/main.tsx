import { render, type JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { begin, may, session, signOut } from './api';
import { Fleet, fleet, type Link } from './live';
import { follow, place } from './route';
import { SignIn } from './signin';
import { FleetPage } from './fleet';
import { NodePage, tabs } from './node';
import { Store, useStore } from './store';
import { Empty, Fault } from './parts';
import { AllocationsPage, ConductorsPage, ImagesPage, PoolsPage, ReservationsPage, SettingsPage } from './lists';
import { ErasuresPage, EventsPage, RulesPage, StartPage } from './ops';

// Themes: that of the system, unless another was chosen here.
type Theme = 'auto' | 'light' | 'dark';
const themes: Theme[] = ['auto', 'light', 'dark'];

function theme(): Theme {
  try {
    const t = localStorage.getItem('ingot-theme') as Theme;
    return themes.includes(t) ? t : 'auto';
  } catch {
    return 'auto';
  }
}

// setTheme shows the page in a theme. The style sheet knows two, and no third for the system's.
const prefersDark = matchMedia('(prefers-color-scheme: dark)');
let meant: Theme = theme();
function setTheme(t: Theme) {
  meant = t;
  document.documentElement.dataset.theme = t === 'auto' ? (prefersDark.matches ? 'dark' : 'light') : t;
}
prefersDark.addEventListener('change', () => setTheme(meant));

function keepTheme(t: Theme) {
  try {
    localStorage.setItem('ingot-theme', t);
  } catch {
    // it lasts as long as the page
  }
}

// pages are those about the whole site; a role needs rule to see one.
const pages: { path: string; title: string; rule?: string; show: () => JSX.Element | null }[] = [
  { path: '', title: 'Fleet', show: FleetPage },
  { path: 'images', title: 'Images', show: ImagesPage },
  { path: 'rules', title: 'Rules', rule: 'inspection_rule:get', show: RulesPage },
  { path: 'pools', title: 'Pools', rule: 'ingot:read', show: PoolsPage },
  { path: 'allocations', title: 'Allocations', rule: 'allocation:list', show: AllocationsPage },
  { path: 'reservations', title: 'Reservations', rule: 'allocation:list', show: ReservationsPage },
  { path: 'erasures', title: 'Erasures', rule: 'node:history:get', show: ErasuresPage },
  { path: 'conductors', title: 'Conductors', rule: 'conductor:get', show: ConductorsPage },
  { path: 'events', title: 'Events', rule: 'ingot:events', show: EventsPage },
  { path: 'settings', title: 'Settings', rule: 'ingot:read', show: SettingsPage },
  { path: 'start', title: 'First steps', rule: 'node:create', show: StartPage },
];

const seen = () => pages.filter((p) => !p.rule || may(p.rule));

function Page() {
  const { path } = useStore(place);
  if (path[0] === 'nodes' && (path.length === 2 || (path.length === 3 && tabs.some((t) => t.path === path[2]))))
    return <NodePage key={path[1]} ident={path[1]} tab={path[2] ?? ''} />;
  const page = path.length < 2 && seen().find((p) => p.path === (path[0] ?? ''));
  if (page) return <page.show />;
  return (
    <Empty title="There is no such page, or your role may not see it.">
      <p>
        <a href="/ui/">Look at the fleet</a>
      </p>
    </Empty>
  );
}

function Shell() {
  const s = useStore(session)!;
  const f = useStore(fleet);
  const { path } = useStore(place);
  const [chosen, choose] = useState(theme());
  const link = useLink(f);
  return (
    <>
      <a class="skip" href="#main" onClick={() => document.getElementById('main')?.focus()}>
        Skip to the page
      </a>
      <header class="top">
        <a class="brand" href="/ui/">
          <svg viewBox="0 0 16 16" aria-hidden="true">
            <path d="M3.2 4h9.6l2.2 8H1z" />
          </svg>
          Ingot
        </a>
        <nav aria-label="Pages">
          {seen().map((p) => (
            <a key={p.path} href={'/ui/' + p.path} aria-current={(path[0] ?? '') === p.path ? 'page' : undefined}>
              {p.title}
            </a>
          ))}
        </nav>
        <div class="who">
          <span class={'link ' + link} role="status">
            {link === 'live' ? 'live' : link === 'offline' ? 'offline: reconnecting' : 'connecting'}
          </span>
            <select
              aria-label="Theme"
              value={chosen}
              onChange={(e) => {
                const t = e.currentTarget.value as Theme;
                choose(t);
                setTheme(t);
                keepTheme(t);
              }}
            >
              <option value="auto">System</option>
              <option value="light">Light</option>
              <option value="dark">Dark</option>
            </select>
          {s.user && <span class="user">{s.user}</span>}
          {s.auth !== 'none' && (
            <button type="button" onClick={() => void signOut()}>
              Sign out
            </button>
          )}
        </div>
      </header>
      {link === 'offline' && (
        <p class="offline" role="alert">
          The server does not answer, or its stream of events is broken. What is shown may be old; the page catches up by
          itself.
        </p>
      )}
      <main id="main" tabIndex={-1}>
        <Page />
      </main>
    </>
  );
}

const unlinked = new Store<Link>('connecting');

const useLink = (f: Fleet | null) => useStore(f ? f.link : unlinked);

function App() {
  const s = useStore(session);
  const [fault, setFault] = useState('');
  const start = () => {
    setFault('');
    begin().catch((e) => setFault(e.message || 'The server does not answer.'));
  };
  useEffect(start, []);
  useEffect(() => {
    if (!s?.signed_in) return;
    const f = new Fleet();
    fleet.set(f);
    f.start();
    return () => {
      f.close();
      fleet.set(null);
    };
  }, [s?.signed_in, s?.csrf]);
  if (fault)
    return (
      <main class="signin">
        <Fault text={fault} again={start} />
      </main>
    );
  if (!s) return <main class="signin" aria-busy="true" />;
  return s.signed_in ? <Shell /> : <SignIn />;
}

setTheme(meant);
document.addEventListener('click', follow);
render(<App />, document.getElementById('app')!);
