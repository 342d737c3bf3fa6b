// One machine: what it is, what it does, and what can be done with it.
import { useEffect, useState } from 'preact/hooks';
import { ask, may, Refused } from './api';
import { fleet } from './live';
import type { Machine } from './machine';
import { Store, useStore } from './store';
import { type Action, actions, faultOf, given, nameOf, offered } from './actions';
import { Ago, Bar, Card, Command, Dialog, Empty, Facts, Fault, Questions, State, Time } from './parts';
import { kindOf, left, sentence, share } from './states';
import { rate, seconds, size } from './format';
import { TimelineTab } from './waterfall';
import { StepsTab } from './steps';
import { HardwareTab } from './hardware';
import { Erasures, HealthTab, HistoryTab, SettingsTab } from './records';
import { MediaTab } from './media';
import { ConsoleTab } from './console';
import { Deploy, deployable } from './deploy';
import { type Kind as Work, StepsDialog, works } from './work';

// tabs are the parts of a machine's page; a role needs rule to see one.
export const tabs: { path: string; title: string; rule?: string }[] = [
  { path: '', title: 'Overview' },
  { path: 'timeline', title: 'Timeline' },
  { path: 'steps', title: 'Steps and log' },
  { path: 'hardware', title: 'Hardware', rule: 'node:inventory:get' },
  { path: 'health', title: 'Health', rule: 'node:history:get' },
  { path: 'history', title: 'History', rule: 'node:history:get' },
  { path: 'settings', title: 'BIOS and firmware' },
  { path: 'media', title: 'Virtual media' },
  { path: 'console', title: 'Console', rule: 'node:set_console_state' },
];

const version0 = new Store(0);

// useMachine reads a machine, and reads it again when it has changed.
export function useMachine(ident: string): { n: Machine | null; fault: string; missing: boolean } {
  const f = useStore(fleet);
  useStore(f ? f.version : version0); // for what the stream changes
  const [n, set] = useState<Machine | null>(null);
  const [fault, setFault] = useState('');
  const [missing, setMissing] = useState(false);
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const read = async (passive: boolean) => {
      try {
        set(await ask<Machine>(`/v1/nodes/${encodeURIComponent(ident)}`, { passive, signal: stop.signal }));
        setFault('');
      } catch (err) {
        if (stop.signal.aborted) return;
        if (err instanceof Refused && err.status === 404) setMissing(true);
        else setFault((err as Error).message);
      }
    };
    setMissing(false);
    void read(false);
    const off = f?.listen((e) => {
      if (e.type === 'ingot.node.progress' || (e.node_uuid ?? e.uuid) !== ident && e.node_name !== ident) return;
      if (e.kind === 'node' && e.type.endsWith('.delete.end')) {
        setMissing(true);
        return;
      }
      clearTimeout(timer);
      timer = window.setTimeout(() => void read(true), 100);
    });
    return () => {
      off?.();
      clearTimeout(timer);
      stop.abort();
    };
  }, [ident, f]);
  const row = n && f?.rows.get(n.uuid);
  return { n: n && row ? { ...n, ...row } : n, fault, missing };
}

export function NodePage({ ident, tab }: { ident: string; tab: string }) {
  const { n, fault, missing } = useMachine(ident);
  useEffect(() => {
    document.title = n ? `${nameOf(n)} – Ingot` : 'Ingot';
    return () => {
      document.title = 'Ingot';
    };
  }, [n && nameOf(n)]);
  if (missing)
    return (
      <Empty title="There is no such machine, or you may not see it.">
        <p>
          <a href="/ui/">Look at the fleet</a>
        </p>
      </Empty>
    );
  const own = n ? tabs.filter((t) => !t.rule || may(t.rule, n)) : [];
  if (n && !own.some((t) => t.path === tab))
    return (
      <Empty title="There is no such part of this machine's page for your role.">
        <p>
          <a href={'/ui/nodes/' + ident}>Look at the machine</a>
        </p>
      </Empty>
    );
  if (!n) return fault ? <Fault text={fault} /> : <p class="hint" aria-busy="true">Reading the machine …</p>;
  return (
    <div class="node">
      <Head n={n} />
      <Fault text={fault} />
      <nav class="tabs" aria-label="About this machine">
        {own.map((t) => (
          <a key={t.path} href={`/ui/nodes/${ident}${t.path && '/' + t.path}`} aria-current={tab === t.path ? 'page' : undefined}>
            {t.title}
          </a>
        ))}
      </nav>
      {tab === '' && (
        <div class="columns">
          <Card title="Summary">
            <Summary n={n} />
          </Card>
          <Actions n={n} />
        </div>
      )}
      {tab === 'timeline' && <TimelineTab n={n} />}
      {tab === 'steps' && <StepsTab n={n} />}
      {tab === 'hardware' && (
        <>
          <HardwareTab n={n} />
          {may('node:history:get', n) && <Erasures n={n} />}
        </>
      )}
      {tab === 'history' && <HistoryTab n={n} />}
      {tab === 'health' && <HealthTab n={n} />}
      {tab === 'settings' && <SettingsTab n={n} />}
      {tab === 'media' && <MediaTab n={n} />}
      {tab === 'console' && <ConsoleTab n={n} />}
    </div>
  );
}

function Head({ n }: { n: Machine }) {
  const kind = kindOf(n);
  const t = left(n);
  const p = n.progress;
  return (
    <header class="node-head">
      <p class="crumbs">
        <a href="/ui/">Fleet</a> /
      </p>
      <h1 class="words">{nameOf(n)}</h1>
      <p class="node-state">
        <State state={n.provision_state} kind={kind} />
        {n.target_provision_state && n.target_provision_state !== n.provision_state && (
          <span class="hint">on the way to {n.target_provision_state}</span>
        )}
        <span class="hint">
          for <Ago at={n.provision_updated_at} />
        </span>
        <span>
          {n.power_state ?? 'power unknown'}
          {n.target_power_state && `, becoming ${n.target_power_state}`}
        </span>
        {n.protected && <span>protected</span>}
        {n.retired && <span>retired</span>}
        {n.health && <span>health {n.health}</span>}
      </p>
      {n.description && <p class="words hint">{n.description}</p>}
      {kind === 'working' && p && (
        <div class="node-progress">
          <Bar value={share(n)} label="Progress" />
          <span class="num" role="status">
            {p.step} {p.phase} {p.total > 0 ? `${size(p.bytes)} of ${size(p.total)}` : p.bytes > 0 ? size(p.bytes) : ''}{' '}
            {p.rate > 0 && rate(p.rate)} {t !== null && `${seconds(t)} left`}
          </span>
        </div>
      )}
      <Fault text={sentence(n)} />
    </header>
  );
}

function Summary({ n }: { n: Machine }) {
  const p = n.properties ?? {};
  return (
    <Facts
      of={[
        ['UUID', <code>{n.uuid}</code>],
        ['Resource class', n.resource_class],
        ['Hardware type', n.driver],
        ['Conductor', n.conductor],
        ['Owner', n.owner],
        ['Lessee', n.lessee],
        ['Instance', n.instance_name || n.instance_uuid],
        ['Image', n.instance_info?.image_source],
        ['Processors', p.cpus ? `${p.cpus} × ${p.cpu_arch ?? ''}` : null],
        ['Memory', p.memory_mb ? size(Number(p.memory_mb) * 1048576) : null],
        ['Root disk', p.local_gb ? `${p.local_gb} GiB` : null],
        ['Traits', n.traits?.length ? n.traits.join(', ') : null],
        ['Firmware', n.boot_mode ? n.boot_mode + (n.secure_boot ? ', Secure Boot' : '') : null],
        ['Locked by', n.reservation],
        ['Inspected', <Time at={n.inspection_finished_at} />],
        ['Made', <Time at={n.created_at} />],
      ]}
    />
  );
}

// Actions are those that state and role allow, each with its commands. The others are named with what they lack, where
// the role has them.
function Actions({ n }: { n: Machine }) {
  const [chosen, choose] = useState<Action | null>(null);
  const [deploying, deploy] = useState(false);
  const [working, work] = useState<Work | null>(null);
  const list = offered(n);
  const kinds = works(n);
  const can = deployable(n);
  const none = actions.filter((a) => may(a.rule, n)).length === 0;
  return (
    <Card title="Actions">
      <div class="buttons">
        {can && (
          <button type="button" class={can === 'active' ? 'main' : 'danger'} onClick={() => deploy(true)}>
            {can === 'active' ? 'Deploy' : 'Rebuild'} …
          </button>
        )}
        {kinds.map((k) => (
          <button key={k} type="button" class="danger" onClick={() => work(k)}>
            {k === 'clean' ? 'Clean' : 'Service'} …
          </button>
        ))}
        {list.map((a) => (
          <button key={a.id} type="button" class={a.danger ? 'danger' : ''} onClick={() => choose(a)}>
            {a.title} …
          </button>
        ))}
      </div>
      {list.length === 0 && !can && kinds.length === 0 && (
        <p class="hint">
          {none ? 'Your role lets you look at this machine only.' : `Nothing can be asked of it while it is ${n.provision_state}.`}
        </p>
      )}
      {deploying && <Deploy n={n} close={() => deploy(false)} />}
      {working && <StepsDialog kind={working} n={n} close={() => work(null)} />}
      {chosen && <ActionDialog action={chosen} n={n} close={() => choose(null)} />}
    </Card>
  );
}

function ActionDialog({ action, n, close }: { action: Action; n: Machine; close: () => void }) {
  const [filled, fill] = useState(() => given(action));
  const [fault, setFault] = useState('');
  const [busy, setBusy] = useState(false);
  const run = async (e: Event) => {
    e.preventDefault();
    const wrong = faultOf(action, filled);
    setFault(wrong);
    if (wrong) return;
    setBusy(true);
    try {
      await action.send(n, filled);
      close();
    } catch (err) {
      setFault((err as Error).message);
      setBusy(false);
    }
  };
  const other = action.openstack(nameOf(n), filled);
  return (
    <Dialog title={`${action.title}: ${nameOf(n)}`} close={close}>
      <form onSubmit={run}>
        <p>{action.what}</p>
        <Questions of={action.asks ?? []} given={filled} change={fill} />
        <h3>The same in a shell</h3>
        <Command text={action.ingot(nameOf(n), filled)} />
        {other && <Command text={other} />}
        <Fault text={fault} />
        <footer>
          <button type="button" onClick={close}>
            Cancel
          </button>
          <button type="submit" class={action.danger ? 'main danger' : 'main'} disabled={busy}>
            {action.title}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
