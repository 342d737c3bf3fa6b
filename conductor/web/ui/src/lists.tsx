// Pages about the whole site that are lists: images, pools, allocations, reservations, conductors, settings.
import { Fragment, type JSX } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';
import { ask, may } from './api';
import { fleet } from './live';
import { Store, useStore } from './store';
import { Loaded, useRead } from './read';
import { Ago, Bar, Card, Command, Empty, Facts, Fault, Sign, Table, Time } from './parts';
import { moment, plural, size } from './format';
import { type Kind, kindOf, kinds, kindText } from './states';
import { count } from './group';
import { place, setQuery } from './route';

// nodesWith reads nodes a page at a time and reports each page.
async function nodesWith<T>(query: string, take: (list: T[]) => void, signal: AbortSignal) {
  let marker = '';
  for (;;) {
    const v = await ask<{ nodes: (T & { uuid: string })[]; next?: string }>(
      `/v1/nodes?limit=1000&${query}` + (marker && `&marker=${marker}`),
      { passive: true, signal },
    );
    take(v.nodes);
    if (!v.next || v.nodes.length === 0) return;
    marker = v.nodes[v.nodes.length - 1].uuid;
  }
}

interface Used {
  uuid: string;
  name: string | null;
  provision_state: string;
  instance_info: Record<string, any>;
}

// using are the states of machines that have an image, or get one.
const using = [
  ...['active', 'deploying', 'wait call-back', 'deploy hold', 'deploy failed', 'error'],
  ...['rescue', 'rescuing', 'rescue wait', 'rescue failed', 'unrescuing', 'unrescue failed'],
  ...['servicing', 'service wait', 'service hold', 'service failed'],
];

// UsedBy names a machine, and its state unless it simply is in use.
const UsedBy = ({ n }: { n: Used }) => (
  <>
    <a href={'/ui/nodes/' + n.uuid}>{n.name ?? n.uuid}</a>
    {n.provision_state !== 'active' && ` (${n.provision_state})`}
  </>
);

const first = 12; // machines of an image that are listed at once

interface ImageFiles {
  images: { name: string; size: number; modified_at: string | null }[];
  more: boolean;
}

// Served are the images in the folder of the conductor that answers.
function Served() {
  const read = useRead<ImageFiles>('/ingot/v1/images');
  return (
    <Card title="Served by this conductor" wide>
      <Loaded of={read}>
        {(v) =>
          v.images.length === 0 ? (
            <p class="hint">
              None. Files in the folder <code>netboot.images_dir</code> are named in the form to deploy by their names alone.
            </p>
          ) : (
            <>
              <Table heads={['Name', 'Size', 'Changed']} stack>
                {v.images.map((f) => (
                  <tr key={f.name}>
                    <td data-name="Name" class="words mono">
                      {f.name}
                    </td>
                    <td data-name="Size" class="num">
                      {size(f.size)}
                    </td>
                    <td data-name="Changed" class="num">
                      <Time at={f.modified_at} />
                    </td>
                  </tr>
                ))}
              </Table>
              {v.more && <p class="hint">There are more.</p>}
            </>
          )
        }
      </Loaded>
    </Card>
  );
}

export function ImagesPage() {
  const [images, set] = useState<Map<string, { digests: Set<string>; nodes: Used[] }> | null>(null);
  const [fault, setFault] = useState('');
  useEffect(() => {
    const stop = new AbortController();
    const found = new Map<string, { digests: Set<string>; nodes: Used[] }>();
    const seen = new Set<string>(); // a machine may go from state to state meanwhile
    const take = (list: Used[]) => {
      for (const n of list) {
        const source = n.instance_info?.image_source;
        if (!source || seen.has(n.uuid)) continue;
        seen.add(n.uuid);
        const at = found.get(source) ?? { digests: new Set(), nodes: [] };
        const digest = n.instance_info.image_os_hash_value ?? n.instance_info.image_checksum;
        if (digest) at.digests.add(String(digest));
        at.nodes.push(n);
        found.set(String(source), at);
      }
      set(new Map(found));
    };
    const read = async () => {
      for (const state of using)
        await nodesWith<Used>(`provision_state=${encodeURIComponent(state)}&fields=uuid,name,provision_state,instance_info`, take, stop.signal);
    };
    read().catch((err) => {
      if (!stop.signal.aborted) setFault(err.message);
    });
    return () => stop.abort();
  }, []);
  const list = [...(images ?? [])].sort((a, b) => b[1].nodes.length - a[1].nodes.length);
  return (
    <>
      <h1>Images</h1>
      <p class="hint">The images that machines in use were deployed from, or are deployed from now.</p>
      <Fault text={fault} />
      {!images && !fault && <p aria-busy="true">Reading …</p>}
      {images && list.length === 0 && (
        <Empty title="No machine in use was deployed from an image.">
          <p>
            Make an image with <code>ingot image build</code>, or publish one with <code>ingot image publish</code>, then deploy it from a
            machine's page.
          </p>
        </Empty>
      )}
      <div class="columns">
        {may('ingot:read') && <Served />}
        {list.map(([source, v]) => (
          <Card key={source} title={plural(v.nodes.length, 'machine')}>
            <p class="words">
              <code>{source}</code>
            </p>
            {[...v.digests].map((d) => (
              <p key={d} class="words hint mono">
                {d}
              </p>
            ))}
            {v.digests.size > 1 && (
              <p>
                <Sign kind="attention" /> One address, several digests: the image was replaced between the deployments.
              </p>
            )}
            <p class="words">
              {v.nodes.slice(0, first).map((n, i) => (
                <Fragment key={n.uuid}>
                  {i > 0 && ', '}
                  <UsedBy n={n} />
                </Fragment>
              ))}
            </p>
            {v.nodes.length > first && (
              <details>
                <summary>{plural(v.nodes.length - first, 'machine')} more</summary>
                <ul class="plain-list">
                  {v.nodes.slice(first).map((n) => (
                    <li key={n.uuid} class="words">
                      <UsedBy n={n} />
                    </li>
                  ))}
                </ul>
              </details>
            )}
          </Card>
        ))}
      </div>
    </>
  );
}

interface Pool {
  uuid: string;
  name: string;
  description: string | null;
  conductor_group: string | null;
  resource_class: string | null;
  count: number;
  percent: number;
  matching: number;
  wanted: number;
  warm: number;
  warming: number;
  on: number;
  watts: number;
  short: string | null;
  nodes?: { node_uuid: string; name: string | null; state: string; since: string | null; reason: string | null; last_failure: string | null; failures: number }[];
}

export function PoolsPage() {
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const t = setInterval(() => setTurn((n) => n + 1), 10000);
    return () => clearInterval(t);
  }, []);
  const read = useRead<{ pools: Pool[] }>('/ingot/v1/pools', turn);
  return (
    <>
      <h1>Pools</h1>
      <p class="hint">Available machines that wait with the agent running, so that a deployment needs no start of the firmware.</p>
      <Loaded of={read}>
        {(v) =>
          v.pools.length === 0 ? (
            <Empty title="There are no pools.">
              <p>
                Keep two machines of a class warm: <code>ingot pool set web --resource-class compute.large --count 2</code>
              </p>
            </Empty>
          ) : (
            <div class="columns">
              {v.pools.map((p) => (
                <PoolCard key={p.uuid} pool={p} turn={turn} />
              ))}
            </div>
          )
        }
      </Loaded>
    </>
  );
}

function PoolCard({ pool: p, turn }: { pool: Pool; turn: number }) {
  const [open, setOpen] = useState(false);
  const read = useRead<Pool>(open ? `/ingot/v1/pools/${encodeURIComponent(p.name)}` : null, turn);
  return (
    <Card title={p.name}>
      {p.description && <p class="words hint">{p.description}</p>}
      <div class="node-progress">
        <Bar value={p.wanted ? Math.min(1, p.warm / p.wanted) : 1} label={`Warm machines of ${p.name}`} />
        <span class="num">
          {p.warm} of {p.wanted} warm{p.warming > 0 && `, ${p.warming} on the way`}
        </span>
      </div>
      <Fault text={p.short ?? ''} />
      <Facts
        of={[
          ['Resource class', p.resource_class ?? 'any'],
          ['Conductor group', p.conductor_group === null ? 'any' : p.conductor_group || 'without a name'],
          ['Machines that fit', p.matching],
          ['Turned on', p.on],
          ['Power', p.watts ? `${p.watts} W` : null],
        ]}
      />
      <details onToggle={(e) => setOpen(e.currentTarget.open)}>
        <summary>Machines</summary>
        <Loaded of={read}>
          {(v) => (
            <ul class="plain-list">
              {(v.nodes ?? []).map((n) => (
                <li key={n.node_uuid} class="words">
                  <a href={'/ui/nodes/' + n.node_uuid}>{n.name ?? n.node_uuid}</a>: {n.state}
                  {n.since && (
                    <>
                      {' '}
                      for <Ago at={n.since} />
                    </>
                  )}
                  {n.reason && `, ${n.reason}`}
                  {n.failures > 0 && n.last_failure && `: ${n.last_failure}`}
                </li>
              ))}
            </ul>
          )}
        </Loaded>
      </details>
    </Card>
  );
}

interface Allocation {
  uuid: string;
  name: string | null;
  state: string;
  node_uuid: string | null;
  resource_class: string | null;
  traits: string[];
  owner: string | null;
  last_error: string | null;
  created_at: string;
}

export function AllocationsPage() {
  const read = useRead<{ allocations: Allocation[] }>('/v1/allocations?limit=1000');
  return (
    <>
      <h1>Allocations</h1>
      <p class="hint">Requests for a machine with certain properties, and the machines that they got.</p>
      <Loaded of={read}>
        {(v) =>
          v.allocations.length === 0 ? (
            <Empty title="There are no allocations.">
              <Command text="openstack baremetal allocation create --resource-class compute.large --name web-1" />
            </Empty>
          ) : (
            <Card title={plural(v.allocations.length, 'allocation')} wide>
              <Table heads={['Name', 'State', 'Machine', 'Wanted', 'Owner', 'Made']} stack>
                {v.allocations.map((a) => (
                  <tr key={a.uuid}>
                    <td data-name="Name" class="words">
                      {a.name ?? a.uuid}
                    </td>
                    <td data-name="State" class="words">
                      <Sign kind={a.state === 'error' ? 'failed' : a.state === 'active' ? 'active' : 'working'} /> {a.state}
                      {a.last_error && `: ${a.last_error}`}
                    </td>
                    <td data-name="Machine">
                      {a.node_uuid ? <a href={'/ui/nodes/' + a.node_uuid}>{nameFor(a.node_uuid)}</a> : '–'}
                    </td>
                    <td data-name="Wanted" class="words">
                      {[a.resource_class, ...(a.traits ?? [])].filter(Boolean).join(', ')}
                    </td>
                    <td data-name="Owner">{a.owner ?? '–'}</td>
                    <td data-name="Made" class="num">
                      <Time at={a.created_at} />
                    </td>
                  </tr>
                ))}
              </Table>
            </Card>
          )
        }
      </Loaded>
    </>
  );
}

interface Reservation {
  uuid: string;
  name: string | null;
  project: string | null;
  resource_class: string;
  traits: string[];
  count: number;
  start: string;
  end: string;
  tear_down: boolean;
  state: string;
  fault: string | null;
  machines: { slot: number; node_uuid: string | null; name: string | null; from: string; given: boolean }[];
}

const day = 86400e3;
const spans = [7, 14, 31, 92];

export function ReservationsPage() {
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const t = setInterval(() => setTurn((n) => n + 1), 10000);
    return () => clearInterval(t);
  }, []);
  const read = useRead<{ reservations: Reservation[] }>('/ingot/v1/reservations', turn);
  return (
    <>
      <h1>Reservations</h1>
      <p class="hint">Machines that are promised to a project, from a time until another.</p>
      <Loaded of={read}>
        {(v) =>
          v.reservations.length === 0 ? (
            <Empty title="There are no reservations.">
              <Command text="ingot reservation create --resource-class compute.large --count 2 --for 3d --name web" />
            </Empty>
          ) : (
            <>
              <Calendar of={v.reservations} />
              <Card title={plural(v.reservations.length, 'reservation')} wide>
                <Table heads={['Name', 'State', 'Machines', 'Project', 'Start', 'End']} stack>
                  {v.reservations.map((r) => (
                    <tr key={r.uuid}>
                      <td data-name="Name" class="words">
                        {r.name ?? r.uuid}
                      </td>
                      <td data-name="State" class="words">
                        <Sign kind={r.fault ? 'attention' : r.state === 'active' ? 'active' : 'working'} /> {r.state}
                        {r.fault && `: ${r.fault}`}
                      </td>
                      <td data-name="Machines" class="words">
                        {r.count} of {[r.resource_class, ...r.traits].join(', ')}
                      </td>
                      <td data-name="Project" class="words">
                        {r.project ?? '–'}
                      </td>
                      <td data-name="Start" class="num">
                        <Time at={r.start} />
                      </td>
                      <td data-name="End" class="num">
                        <Time at={r.end} />
                        {r.tear_down && ', instances are removed'}
                      </td>
                    </tr>
                  ))}
                </Table>
              </Card>
            </>
          )
        }
      </Loaded>
    </>
  );
}

// Calendar shows which machine is promised when, from today on: a row for each machine of each reservation.
function Calendar({ of }: { of: Reservation[] }) {
  const [days, setDays] = useState(14);
  const begin = new Date().setHours(0, 0, 0, 0);
  const whole = days * day;
  const part = (at: string) => Math.min(100, Math.max(0, (100 * (Date.parse(at) - begin)) / whole));
  const rows = of
    .filter((r) => Date.parse(r.end) > begin && Date.parse(r.start) < begin + whole)
    .flatMap((r) => r.machines.map((m) => ({ r, m })));
  return (
    <Card title="Calendar" wide>
      <div class="tools">
        <select aria-label="Days from today" value={days} onChange={(e) => setDays(Number(e.currentTarget.value))}>
          {spans.map((n) => (
            <option key={n} value={n}>
              {n} days
            </option>
          ))}
        </select>
      </div>
      {rows.length === 0 ? (
        <p class="hint">No machine is promised in these days.</p>
      ) : (
        <Table heads={['Machine', 'Reservation', `Today until ${moment(new Date(begin + whole).toISOString())}`]}>
          {rows.map(({ r, m }) => (
            <tr key={r.uuid + m.slot}>
              <td class="words">
                {m.node_uuid ? <a href={'/ui/nodes/' + m.node_uuid}>{m.name ?? m.node_uuid}</a> : `machine ${m.slot + 1}`}
              </td>
              <td class="words">{r.name ?? r.uuid}</td>
              <td class="calendar-bar">
                <span class="span-bar" title={`${moment(r.start)} – ${moment(r.end)}${m.given ? ', given' : ''}`}>
                  <i
                    class={r.fault ? 's-wait' : 's-agent'}
                    style={{ marginLeft: part(r.start) + '%', width: Math.max(0.5, part(r.end) - part(r.start)) + '%' }}
                  />
                </span>
              </td>
            </tr>
          ))}
        </Table>
      )}
    </Card>
  );
}

export const nameFor = (uuid: string) => fleet.value?.rows.get(uuid)?.name ?? uuid;

interface Conductor {
  hostname: string;
  alive: boolean;
  conductor_group: string;
  updated_at: string | null;
  drivers: string[];
}

const version0 = new Store(0);

// fleetOf is the address of a conductor's machines, of one kind or all.
const fleetOf = (hostname: string, kind?: Kind) =>
  '/ui/?' + new URLSearchParams({ q: 'conductor:' + hostname, ...(kind && { state: '=' + kind }) });

export function ConductorsPage() {
  const f = useStore(fleet);
  useStore(f ? f.version : version0); // the machines may come later than the conductors
  const read = useRead<{ conductors: Conductor[] }>('/v1/conductors?detail=true');
  const ends = useRead<{ certificates: { name: string; not_after: string }[] }>(may('ingot:read') ? '/ingot/v1/certificates' : null);
  const rows = [...(f?.rows.values() ?? [])];
  return (
    <>
      <h1>Conductors</h1>
      <Loaded of={read}>
        {(v) => (
          <div class="columns">
            {v.conductors.map((c) => {
              const mine = rows.filter((n) => n.conductor === c.hostname);
              const byKind = count(mine.map(kindOf));
              return (
                <Card key={c.hostname} title={c.hostname}>
                  <p>
                    <Sign kind={c.alive ? 'active' : 'failed'} /> {c.alive ? 'alive' : 'gone: others take its machines'}
                  </p>
                  <Facts
                    of={[
                      ['Machines', mine.length ? <a href={fleetOf(c.hostname)}>{mine.length.toLocaleString('en')}</a> : '0'],
                      ...kinds
                        .filter((k) => byKind.get(k))
                        .map((k) => [kindText[k], <a href={fleetOf(c.hostname, k)}>{byKind.get(k)!.toLocaleString('en')}</a>] as [string, JSX.Element]),
                      ['Conductor group', c.conductor_group || '–'],
                      ['Last sign', <Time at={c.updated_at} />],
                    ]}
                  />
                  <p class="hint words">{(c.drivers ?? []).join(', ')}</p>
                </Card>
              );
            })}
            {ends.value && ends.value.certificates.length > 0 && (
              <Card title="Certificates">
                <ul class="plain-list">
                  {ends.value.certificates.map((c) => (
                    <li key={c.name}>
                      {c.name}: until <Time at={c.not_after} />
                    </li>
                  ))}
                </ul>
              </Card>
            )}
          </div>
        )}
      </Loaded>
    </>
  );
}

interface Setting {
  key: string;
  value: string;
  default: string;
  section: string;
  text: string;
}

export function SettingsPage() {
  const read = useRead<{ settings: Setting[] }>('/ingot/v1/settings');
  const { query } = useStore(place);
  const q = (query.get('q') ?? '').toLowerCase();
  const changed = query.get('changed') !== null;
  const list = useMemo(
    () =>
      (read.value?.settings ?? []).filter(
        (s) => (!q || (s.key + s.text + s.value).toLowerCase().includes(q)) && (!changed || s.value !== s.default),
      ),
    [read.value, q, changed],
  );
  return (
    <>
      <h1>Settings</h1>
      <p class="hint">Those that the conductor which answers here works with. They are set in its configuration file, and read at its start.</p>
      <div class="tools">
        <label class="search">
          <span class="hidden">Search</span>
          <input type="search" placeholder="Search" value={query.get('q') ?? ''} onInput={(e) => setQuery({ q: e.currentTarget.value })} />
        </label>
        <label>
          <input type="checkbox" checked={changed} onChange={(e) => setQuery({ changed: e.currentTarget.checked ? '1' : null })} /> Only what
          differs from the default
        </label>
      </div>
      <Loaded of={read}>
        {() =>
          list.length === 0 ? (
            <Empty title="No setting is like that.">
              <button type="button" onClick={() => setQuery({ q: null, changed: null })}>
                Show all settings
              </button>
            </Empty>
          ) : (
            <Card title={plural(list.length, 'setting')} wide>
              <Table heads={['Setting', 'Value', 'Meaning']} stack more="settings">
                {list.map((s) => (
                  <tr key={s.key}>
                    <td data-name="Setting" class="words mono">
                      {s.key}
                    </td>
                    <td data-name="Value" class="words mono">
                      {s.value === s.default ? s.value || '–' : <strong>{s.value || '–'}</strong>}
                    </td>
                    <td data-name="Meaning" class="words">
                      {s.text}
                    </td>
                  </tr>
                ))}
              </Table>
            </Card>
          )
        }
      </Loaded>
    </>
  );
}
