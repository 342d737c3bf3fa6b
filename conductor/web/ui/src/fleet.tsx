// All machines: counts by state, failures first, a table and a grid, and actions on many of them.
import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { fleet } from './live';
import type { Row } from './machine';
import { place, setQuery } from './route';
import { Store, useStore } from './store';
import { Ago, Bar, Empty, Fault, Sign, State } from './parts';
import { failing, type Kind, kindOf, kinds, kindText, left, sentence, share } from './states';
import { plural, rate, seconds } from './format';
import { count, GroupBar } from './group';
import { colours, type Colour, Grid } from './grid';
import { nameOf } from './actions';

interface Column {
  id: string;
  title: string;
  width: number; // in pixels, at least
  grow?: number;
  rank: number; // the higher, the earlier it is left out where there is no room
  value: (n: Row) => string | number;
  show?: (n: Row) => ComponentChildren;
}

const order = (n: Row) => kinds.indexOf(kindOf(n));

const columns: Column[] = [
  {
    id: 'name',
    title: 'Name',
    width: 130,
    grow: 1,
    rank: 0,
    value: (n) => nameOf(n),
    show: (n) => <a href={'/ui/nodes/' + n.uuid}>{nameOf(n)}</a>,
  },
  {
    id: 'state',
    title: 'State',
    width: 140,
    rank: 1,
    value: order,
    show: (n) => <State state={n.provision_state} kind={kindOf(n)} />,
  },
  { id: 'now', title: 'Now', width: 220, grow: 4, rank: 4, value: (n) => sentence(n), show: (n) => <Now n={n} /> },
  { id: 'since', title: 'For', width: 60, rank: 6, value: (n) => n.provision_updated_at ?? '', show: (n) => <Ago at={n.provision_updated_at} /> },
  {
    id: 'power',
    title: 'Power',
    width: 70,
    rank: 3,
    value: (n) => n.power_state ?? '',
    show: (n) => (n.power_state ?? '–').replace('power ', '') + (n.target_power_state ? ' …' : ''),
  },
  { id: 'health', title: 'Health', width: 70, rank: 7, value: (n) => n.health ?? '' },
  { id: 'class', title: 'Class', width: 100, rank: 5, value: (n) => n.resource_class ?? '' },
  { id: 'instance', title: 'Instance', width: 120, rank: 9, value: (n) => n.instance_name ?? n.instance_uuid ?? '' },
  { id: 'driver', title: 'Type', width: 110, rank: 10, value: (n) => n.driver },
  { id: 'owner', title: 'Owner', width: 110, rank: 11, value: (n) => n.owner ?? '' },
  { id: 'lessee', title: 'Lessee', width: 110, rank: 12, value: (n) => n.lessee ?? '' },
  { id: 'conductor', title: 'Conductor', width: 110, rank: 8, value: (n) => n.conductor ?? '' },
  { id: 'uuid', title: 'UUID', width: 290, rank: 13, value: (n) => n.uuid },
];

const usual = ['name', 'state', 'now', 'since', 'power', 'class', 'conductor'];

// Now says in one line what a machine does or lacks.
function Now({ n }: { n: Row }) {
  const p = n.progress;
  if (kindOf(n) === 'working' && p) {
    const t = left(n);
    return (
      <span class="now">
        <Bar value={share(n)} label={'Progress of ' + nameOf(n)} />
        <span class="num">
          {p.step} {p.total > 0 && rate(p.rate)} {t !== null && seconds(t) + ' left'}
        </span>
      </span>
    );
  }
  const text = sentence(n);
  return (
    <span class="cut" title={text}>
      {text}
    </span>
  );
}

// wanted makes a condition of a word of a search, in lower case: column:value is a column's whole value, all else is in
// any text.
function wanted(word: string): (n: Row) => boolean {
  const [, name, value] = /^([a-z]+):(.+)$/.exec(word) ?? [];
  const column = columns.find((c) => c.id === name || c.title.toLowerCase() === name);
  if (!column) return (n) => n.words!.includes(word) || n.provision_state.includes(word);
  const text = column.id === 'state' ? (n: Row) => n.provision_state : (n: Row) => String(column.value(n));
  return (n) => text(n).toLowerCase() === value;
}

// none stands for the machines before there are any to follow.
const none = { version: new Store(0), fault: new Store('') };

const rowHeight = 28;
const spare = 10; // rows that are drawn above and below those in sight

export function FleetPage() {
  const f = useStore(fleet);
  const { query } = useStore(place);
  const version = useStore(f ? f.version : none.version);
  const fault = useStore(f ? f.fault : none.fault);
  const [chosen, choose] = useState<ReadonlySet<string>>(new Set());

  const q = query.get('q') ?? '';
  const only = (query.get('state') ?? '').split(',').filter(Boolean);
  const view = query.get('view') === 'grid' ? 'grid' : 'table';
  const by = (colours.includes(query.get('by') as Colour) ? query.get('by') : 'state') as Colour;
  const sort = query.get('sort') ?? '';
  const cols = (query.get('cols') ?? usual.join()).split(',');

  const all = useMemo(() => (f ? [...f.rows.values()] : []), [f, version]);
  const found = useMemo(() => {
    const wants = q.toLowerCase().split(/\s+/).filter(Boolean).map(wanted);
    return all.filter((n) => wants.every((fits) => fits(n)));
  }, [all, q]);
  const rows = useMemo(() => {
    const list = only.length ? found.filter((n) => only.includes(n.provision_state) || only.includes('=' + kindOf(n))) : found;
    const down = sort.startsWith('-');
    const column = columns.find((c) => c.id === sort.replace('-', ''));
    const value = column ? column.value : order;
    const keyed = list.map((n) => ({ n, v: value(n), name: nameOf(n) }));
    keyed.sort((a, b) => {
      const d = a.v < b.v ? -1 : a.v > b.v ? 1 : 0;
      return (down ? -d : d) || (a.name < b.name ? -1 : 1);
    });
    return keyed.map((k) => k.n);
  }, [found, only.join(), sort, version]);

  const byKind = useMemo(() => count(found.map(kindOf)), [found]) as Map<Kind, number>;
  const byState = useMemo(() => [...count(found.map((n) => n.provision_state))].sort((a, b) => b[1] - a[1]), [found]);
  const failures = useMemo(() => rows.filter(failing), [rows]);
  const picked = useMemo(() => all.filter((n) => chosen.has(n.uuid)), [all, chosen]);

  const filter = (name: string) =>
    setQuery({ state: (only.includes(name) ? only.filter((s) => s !== name) : [...only, name]).join(',') });

  if (!f) return null;
  const loading = !f.complete.value;
  return (
    <div class="fleet">
      <h1 class="hidden">Fleet</h1>
      <Fault text={fault} />
      <div class="summary" role="group" aria-label="Counts by state">
        <span class="total">
          <strong class="num">{found.length.toLocaleString('en')}</strong> {loading ? 'machines so far' : q ? 'found' : found.length === 1 ? 'machine' : 'machines'}
        </span>
        {kinds
          .filter((k) => byKind.get(k))
          .map((k) => (
            <button
              key={k}
              type="button"
              class={'chip t-' + k}
              aria-pressed={only.includes('=' + k)}
              onClick={() => filter('=' + k)}
            >
              <Sign kind={k} />
              <strong class="num">{byKind.get(k)!.toLocaleString('en')}</strong> {kindText[k]}
            </button>
          ))}
      </div>
      <div class="share" aria-hidden="true">
        {kinds.map((k) => (byKind.get(k) ? <span key={k} class={'b-' + k} style={{ flexGrow: byKind.get(k) }} /> : null))}
      </div>
      <div class="tools">
        <label class="search">
          <span class="hidden">Search</span>
          <input
            type="search"
            placeholder="Search name, UUID, class, error, or conductor:NAME"
            value={q}
            onInput={(e) => setQuery({ q: e.currentTarget.value })}
          />
        </label>
        <select
          aria-label="Filter by state"
          value=""
          onChange={(e) => e.currentTarget.value && filter(e.currentTarget.value)}
        >
            <option value="">All states</option>
            {byState.map(([s, n]) => (
              <option key={s} value={s}>
                {only.includes(s) ? '✓ ' : ''}
                {s} ({n})
              </option>
            ))}
        </select>
        {only.length > 0 && (
          <button type="button" onClick={() => setQuery({ state: null })}>
            Show all
          </button>
        )}
        <span class="spring" />
        {view === 'grid' && (
          <>
            <span class="label" aria-hidden="true">
              Colour
            </span>
            <select aria-label="Colour" value={by} onChange={(e) => setQuery({ by: e.currentTarget.value })}>
              {colours.map((c) => (
                <option key={c}>{c}</option>
              ))}
            </select>
          </>
        )}
        {view === 'table' && <Columns cols={cols} />}
        <div class="switch" role="group" aria-label="View">
          <button type="button" aria-pressed={view === 'table'} onClick={() => setQuery({ view: null })}>
            Table
          </button>
          <button type="button" aria-pressed={view === 'grid'} onClick={() => setQuery({ view: 'grid' })}>
            Grid
          </button>
        </div>
      </div>
      {failures.length > 0 && <Failures list={failures} narrow={view === 'table'} />}
      <GroupBar chosen={picked} clear={() => choose(new Set())} />
      {rows.length === 0 ? (
        loading ? (
          <p class="hint" aria-busy="true">
            Reading the machines …
          </p>
        ) : all.length === 0 ? (
          <Empty title="There are no machines yet.">
            <p>
              <a href="/ui/start">First steps</a> lead from here to the first deployed machine.
            </p>
          </Empty>
        ) : (
          <Empty title="No machine is like that.">
            <button type="button" onClick={() => setQuery({ q: null, state: null })}>
              Show all machines
            </button>
          </Empty>
        )
      ) : view === 'grid' ? (
        <Grid rows={rows} by={by} />
      ) : (
        <Table rows={rows} cols={cols} sort={sort} chosen={chosen} choose={choose} version={version} />
      )}
    </div>
  );
}

// Failures are those at the top; above a table only where that has no room for sentences.
function Failures({ list, narrow }: { list: Row[]; narrow: boolean }) {
  return (
    <ul class={narrow ? 'failures narrow' : 'failures'} aria-label="Failures">
      {list.slice(0, 5).map((n) => (
        <li key={n.uuid}>
          <Sign kind="failed" />
          <a href={'/ui/nodes/' + n.uuid}>{nameOf(n)}</a>
          <span class="cut">{sentence(n) || n.provision_state}</span>
        </li>
      ))}
      {list.length > 5 && (
        <li>
          <button type="button" class="plain" onClick={() => setQuery({ state: '=failed', view: null })}>
            and {plural(list.length - 5, 'failure')} more
          </button>
        </li>
      )}
    </ul>
  );
}

function Columns({ cols }: { cols: string[] }) {
  return (
    <details class="menu">
      <summary>Columns</summary>
      <div>
        {columns.slice(1).map((c) => (
          <label key={c.id}>
            <input
              type="checkbox"
              checked={cols.includes(c.id)}
              onChange={(e) => {
                const now = columns.map((x) => x.id).filter((id) => (id === c.id ? e.currentTarget.checked : cols.includes(id)));
                setQuery({ cols: now.join() === usual.join() ? null : now.join() });
              }}
            />{' '}
            {c.title}
          </label>
        ))}
      </div>
    </details>
  );
}

function Table(p: {
  rows: Row[];
  cols: string[];
  sort: string;
  chosen: ReadonlySet<string>;
  choose: (s: ReadonlySet<string>) => void;
  version: number;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [port, setPort] = useState({ top: 0, height: 600, width: 1000 });
  const last = useRef(-1); // the row that was chosen last, for shift
  useEffect(() => {
    const look = () => {
      if (!box.current) return;
      const r = box.current.getBoundingClientRect();
      setPort({ top: Math.max(0, -r.top), height: window.innerHeight, width: r.width });
    };
    look();
    const o = new ResizeObserver(look);
    o.observe(box.current!);
    window.addEventListener('scroll', look, { passive: true });
    window.addEventListener('resize', look);
    return () => {
      o.disconnect();
      window.removeEventListener('scroll', look);
      window.removeEventListener('resize', look);
    };
  }, []);

  const cols = useMemo(() => {
    const wanted = columns.filter((c) => c.id === 'name' || p.cols.includes(c.id));
    let width = 36;
    const fit = new Set<string>();
    for (const c of [...wanted].sort((a, b) => a.rank - b.rank)) {
      if (width + c.width > port.width && fit.size >= 2) break;
      width += c.width;
      fit.add(c.id);
    }
    return wanted.filter((c) => fit.has(c.id));
  }, [p.cols.join(), port.width]);
  const room = Math.max(0, port.width - 36 - cols.reduce((w, c) => w + c.width, 0));
  const grow = cols.reduce((g, c) => g + (c.grow ?? 0), 0) || 1;

  const first = Math.max(0, Math.min(p.rows.length - 1, Math.floor(port.top / rowHeight) - spare));
  const end = Math.min(p.rows.length, first + Math.ceil(port.height / rowHeight) + 2 * spare);
  const seen = p.rows.slice(first, end);
  const everything = p.rows.length > 0 && p.rows.every((n) => p.chosen.has(n.uuid));

  const pick = (i: number, on: boolean, range: boolean) => {
    const set = new Set(p.chosen);
    const [a, b] = range && last.current >= 0 ? [Math.min(last.current, i), Math.max(last.current, i)] : [i, i];
    for (let k = a; k <= b && k < p.rows.length; k++) on ? set.add(p.rows[k].uuid) : set.delete(p.rows[k].uuid);
    last.current = i;
    p.choose(set);
  };

  return (
    <div ref={box} class="table-box">
      <table class="machines-table" aria-rowcount={p.rows.length + 1}>
        <caption class="hidden">Machines</caption>
        <colgroup>
          <col style={{ width: '36px' }} />
          {cols.map((c) => (
            <col key={c.id} style={{ width: Math.floor(c.width + (room * (c.grow ?? 0)) / grow) + 'px' }} />
          ))}
        </colgroup>
        <thead>
          <tr>
            <th class="pick">
              <input
                type="checkbox"
                aria-label="Choose all machines in the table"
                checked={everything}
                onChange={(e) => p.choose(e.currentTarget.checked ? new Set(p.rows.map((n) => n.uuid)) : new Set())}
              />
            </th>
            {cols.map((c) => {
              const now = p.sort === c.id ? 'ascending' : p.sort === '-' + c.id ? 'descending' : undefined;
              return (
                <th key={c.id} scope="col" aria-sort={now}>
                  <button
                    type="button"
                    class="plain"
                    onClick={() => setQuery({ sort: now === 'ascending' ? '-' + c.id : now ? null : c.id })}
                  >
                    {c.title}
                    <span aria-hidden="true">{now === 'ascending' ? ' ↑' : now ? ' ↓' : ''}</span>
                  </button>
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {first > 0 && (
            <tr aria-hidden="true" class="spacer">
              <td colSpan={cols.length + 1} style={{ height: first * rowHeight + 'px' }} />
            </tr>
          )}
          {seen.map((n, i) => (
            <tr key={n.uuid} aria-rowindex={first + i + 2} class={p.chosen.has(n.uuid) ? 'chosen' : ''}>
              <td class="pick">
                <input
                  type="checkbox"
                  aria-label={'Choose ' + nameOf(n)}
                  checked={p.chosen.has(n.uuid)}
                  onClick={(e) => pick(first + i, e.currentTarget.checked, e.shiftKey)}
                />
              </td>
              {cols.map((c) => (
                <td key={c.id}>{c.show ? c.show(n) : String(c.value(n) || '–')}</td>
              ))}
            </tr>
          ))}
          {end < p.rows.length && (
            <tr aria-hidden="true" class="spacer">
              <td colSpan={cols.length + 1} style={{ height: (p.rows.length - end) * rowHeight + 'px' }} />
            </tr>
          )}
        </tbody>
      </table>
    </div>
  );
}
