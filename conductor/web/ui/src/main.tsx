import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { begin, session, signOut } from './api';
import { Fleet, fleet, type Link } from './live';
import { follow, place } from './route';
import { SignIn } from './signin';
import { FleetPage } from './fleet';
import { NodePage } from './node';
import { Store, useStore } from './store';
import { Empty, Fault } from './parts';

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

function setTheme(t: Theme) {
  document.documentElement.dataset.theme = t;
}

function keepTheme(t: Theme) {
  try {
    localStorage.setItem('ingot-theme', t);
  } catch {
    // it lasts as long as the page
  }
}

const pages: { path: string; title: string }[] = [{ path: '', title: 'Fleet' }];

function Page() {
  const { path } = useStore(place);
  switch (path[0] ?? '') {
    case '':
      return <FleetPage />;
    case 'nodes':
      if (path.length === 2) return <NodePage key={path[1]} ident={path[1]} />;
  }
  return (
    <Empty title="There is no such page.">
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
          {pages.map((p) => (
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

setTheme(theme());
document.addEventListener('click', follow);
render(<App />, document.getElementById('app')!);
