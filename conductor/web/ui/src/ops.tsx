// Pages about the whole site where something is tried or followed: rules, erase certificates, events, first steps.
import { useState } from 'preact/hooks';
import { ask, may } from './api';
import { type Event, fleet } from './live';
import { Store, useStore } from './store';
import { Loaded, useRead, useSeldom } from './read';
import { Card, Command, Empty, Facts, Fault, Field, Sign, Table, Time } from './parts';
import { place, setQuery } from './route';
import { moment, plural, size } from './format';

// NodeField asks for a machine, with the names that there are.
function NodeField({ value, change }: { value: string; change: (v: string) => void }) {
  const f = useStore(fleet);
  const names = [...(f?.rows.values() ?? [])].slice(0, 500).map((n) => n.name ?? n.uuid);
  return (
    <Field label="Machine">
      {(id) => (
        <>
          <input id={id} list={id + '-names'} required value={value} onInput={(e) => change(e.currentTarget.value)} autocomplete="off" />
          <datalist id={id + '-names'}>
            {names.map((n) => (
              <option key={n} value={n} />
            ))}
          </datalist>
        </>
      )}
    </Field>
  );
}

interface Rule {
  uuid: string;
  description: string | null;
  priority: number;
  phase: string;
  sensitive: boolean;
  conditions: unknown[] | null;
  actions: unknown[] | null;
}

interface RuleCheck {
  matched: boolean;
  conditions: boolean[];
  changes: { path: string; from: unknown; to: unknown }[];
  calls: string[];
  notes: { severity: string; text: string }[];
  failure: string | null;
}

const example = `{
  "description": "machines of one maker get a trait",
  "conditions": [{"op": "eq", "args": {"values": ["{inventory[system_vendor][manufacturer]}", "Dell Inc."]}}],
  "actions": [{"op": "add-trait", "args": {"name": "CUSTOM_DELL"}}]
}`;

export function RulesPage() {
  const read = useRead<{ inspection_rules: Rule[] }>('/v1/inspection_rules?detail=true');
  const [rule, setRule] = useState(example);
  const [node, setNode] = useState('');
  const [fault, setFault] = useState('');
  const [result, setResult] = useState<RuleCheck | null>(null);
  const check = async (e: SubmitEvent) => {
    e.preventDefault();
    setFault('');
    setResult(null);
    try {
      const text = rule.trim();
      const body = { rule: text.startsWith('{') ? JSON.parse(text) : text };
      setResult(await ask<RuleCheck>(`/ingot/v1/nodes/${encodeURIComponent(node)}/rule_check`, { method: 'POST', body }));
    } catch (err) {
      setFault(err instanceof SyntaxError ? `The rule is no JSON: ${err.message}` : (err as Error).message);
    }
  };
  return (
    <>
      <h1>Inspection rules</h1>
      <p class="hint">What an inspection changes in a machine's record, by what it found.</p>
      <div class="columns">
        <Card title="Rules">
          <Loaded of={read}>
            {(v) =>
              v.inspection_rules.length === 0 ? (
                <p class="hint">
                  There are none. Try one out beside this, then <code>ingot rule create FILE</code>.
                </p>
              ) : (
                <ul class="plain-list">
                  {[...v.inspection_rules]
                    .sort((a, b) => b.priority - a.priority)
                    .map((r) => (
                      <li key={r.uuid}>
                        <details class="result">
                          <summary>
                            {r.priority} {r.description ?? r.uuid}
                          </summary>
                          {r.sensitive ? (
                            <p class="hint">It is sensitive: what it does is not shown.</p>
                          ) : (
                            <pre class="scrolls" tabIndex={0}>
                              {JSON.stringify({ phase: r.phase, conditions: r.conditions, actions: r.actions }, null, 2)}
                            </pre>
                          )}
                          {may('inspection_rule:create') && !r.sensitive && (
                            <button type="button" onClick={() => setRule(r.uuid)}>
                              Try it out
                            </button>
                          )}
                        </details>
                      </li>
                    ))}
                </ul>
              )
            }
          </Loaded>
        </Card>
        {may('inspection_rule:create') && (
          <Card title="Try a rule out">
            <form onSubmit={check}>
              <Field label="Rule" hint="JSON, or the UUID of a rule. Nothing is changed.">
                {(id) => <textarea id={id} rows={7} required value={rule} onInput={(e) => setRule(e.currentTarget.value)} spellcheck={false} />}
              </Field>
              <NodeField value={node} change={setNode} />
              <button type="submit" class="main">
                Try it out
              </button>
            </form>
            <Fault text={fault} />
            {result && (
              <div role="status">
                <p>
                  <Sign kind={result.failure ? 'failed' : result.matched ? 'active' : 'idle'} />{' '}
                  {result.failure
                    ? `The inspection would fail: ${result.failure}`
                    : result.matched
                      ? 'The rule matches.'
                      : `The rule does not match: condition ${result.conditions.length} does not hold.`}
                </p>
                {result.matched && result.changes.length === 0 && <p>It would change nothing.</p>}
                <ul class="plain-list">
                  {result.changes.map((c) => (
                    <li key={c.path} class="words">
                      <code>{c.path}</code>: {JSON.stringify(c.from)} becomes {JSON.stringify(c.to)}
                    </li>
                  ))}
                  {result.calls.map((c) => (
                    <li key={c} class="words">
                      it would ask <code>{c}</code>
                    </li>
                  ))}
                  {result.notes.map((n, i) => (
                    <li key={i} class="words">
                      {n.severity} {n.text}
                    </li>
                  ))}
                </ul>
              </div>
            )}
          </Card>
        )}
      </div>
    </>
  );
}

// compact is JSON as it was signed: without white space between its parts, and with a few characters written by their
// numbers.
export function compact(json: string): string {
  let out = '';
  let inside = false;
  for (let i = 0; i < json.length; i++) {
    const c = json[i];
    if (inside && c === '\\') {
      out += c + json[++i];
      continue;
    }
    if (c === '"') inside = !inside;
    if (!inside && /\s/.test(c)) continue;
    out += inside && '<>&\u2028\u2029'.includes(c) ? '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0') : c;
  }
  return out;
}

// member is the text of a member of a JSON object, as it is written.
function member(json: string, name: string): string {
  const text = compact(json);
  let depth = 0;
  for (let i = 0; i < text.length; i++) {
    if (text[i] === '"') {
      const from = i;
      for (i++; text[i] !== '"'; i++) if (text[i] === '\\') i++;
      if (depth === 1 && text.slice(from + 1, i) === name && text[i + 1] === ':') {
        let end = i + 2;
        let d = 0;
        for (; end < text.length; end++) {
          if (text[end] === '"') {
            for (end++; text[end] !== '"'; end++) if (text[end] === '\\') end++;
          } else if ('{['.includes(text[end])) d++;
          else if ('}]'.includes(text[end])) {
            if (--d < 0) break;
          } else if (text[end] === ',' && d === 0) break;
        }
        return text.slice(i + 2, end);
      }
      continue;
    }
    if ('{['.includes(text[i])) depth++;
    if ('}]'.includes(text[i])) depth--;
  }
  return '';
}

const bytes = (base64: string) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));

interface Verdict {
  good: boolean;
  text: string;
  statement?: any;
}

// verify checks a signed report in the browser, against the conductor's public key.
export async function verify(document: string, pem: string): Promise<Verdict> {
  let d: any;
  try {
    d = JSON.parse(document);
  } catch (err) {
    return { good: false, text: `This is no signed report: ${(err as Error).message}` };
  }
  if (d.format !== 'ingot-signed-erasure-1') return { good: false, text: 'This is no signed report of an erasure.' };
  if (!crypto.subtle)
    return { good: false, text: 'The browser verifies signatures only over TLS or on the server itself: use ingot erase verify FILE.' };
  const key = await crypto.subtle.importKey('spki', bytes(pem.replace(/-----[^-]+-----|\s/g, '')), 'Ed25519', false, ['verify']);
  const signed = new TextEncoder().encode(d.format + '\n' + member(document, 'statement'));
  if (!(await crypto.subtle.verify('Ed25519', key, bytes(d.signature), signed)))
    return { good: false, text: "The signature does not fit: the report was changed, or it is not this installation's." };
  return { good: true, text: 'The signature is good: this report was signed by this installation and not changed since.', statement: d.statement };
}

export function ErasuresPage() {
  const [node, setNode] = useState('');
  const [of, setOf] = useState<string | null>(null);
  const list = useRead<{ erasures: any[] }>(of && `/ingot/v1/nodes/${encodeURIComponent(of)}/erasures`);
  const [text, setText] = useState('');
  const [verdict, setVerdict] = useState<Verdict | null>(null);
  const [fault, setFault] = useState('');
  const check = async (document: string) => {
    setFault('');
    setText(document);
    setVerdict(null);
    try {
      const { public_key } = await ask<{ public_key: string }>('/ingot/v1/erasure_key', { passive: true });
      setVerdict(await verify(document, public_key));
    } catch (err) {
      setFault((err as Error).message);
    }
  };
  const s = verdict?.statement;
  return (
    <>
      <h1>Erase certificates</h1>
      <p class="hint">Each erased disk has a report that the conductor has signed. It can be verified here, or offline with ingot erase verify.</p>
      <div class="columns">
        <Card title="Of a machine">
          <form
            onSubmit={(e) => {
              e.preventDefault();
              setOf(node);
            }}
          >
            <NodeField value={node} change={setNode} />
            <button type="submit">List</button>
          </form>
          {of && (
            <Loaded of={list} missing={<p class="hint">There is no such machine, or you may not see it.</p>}>
              {(v) =>
                v.erasures.length === 0 ? (
                  <p class="hint">No disk of this machine was erased since its reports are kept.</p>
                ) : (
                  <ul class="plain-list">
                    {v.erasures.map((e) => (
                      <li key={e.uuid} class="words">
                        <Sign kind={e.result === 'erased' ? 'active' : 'failed'} /> <Time at={e.received_at} /> {e.disk} {e.serial}{' '}
                        {size(e.size)}, {e.level}{' '}
                        <button
                          type="button"
                          onClick={async () => {
                            try {
                              const r = await ask<unknown>(`/ingot/v1/nodes/${encodeURIComponent(of)}/erasures/${e.uuid}`);
                              await check(JSON.stringify(r, null, 2));
                            } catch (err) {
                              setFault((err as Error).message);
                            }
                          }}
                        >
                          Verify
                        </button>
                      </li>
                    ))}
                  </ul>
                )
              }
            </Loaded>
          )}
        </Card>
        <Card title="Verify a report">
          <form
            onSubmit={(e) => {
              e.preventDefault();
              void check(text);
            }}
          >
            <Field label="Report" hint="As ingot erase show prints it.">
              {(id) => <textarea id={id} rows={8} required value={text} onInput={(e) => setText(e.currentTarget.value)} spellcheck={false} />}
            </Field>
            <button type="submit" class="main">
              Verify the signature
            </button>
          </form>
          <Fault text={fault} />
          {verdict && (
            <div role="status">
              <p class="words">
                <Sign kind={verdict.good ? 'active' : 'failed'} /> {verdict.text}
              </p>
              {s && (
                <Facts
                  of={[
                    ['Machine', s.node_name || s.node_uuid],
                    ['Disk', s.report?.disk?.name],
                    ['Model', s.report?.disk?.model],
                    ['Serial', s.report?.disk?.serial],
                    ['How', [s.report?.level, s.report?.method].filter(Boolean).join(', ')],
                    ['Result', s.report?.result],
                    ['Finished', <Time at={s.report?.finished} />],
                    ['Signed by', s.conductor],
                  ]}
                />
              )}
            </div>
          )}
        </Card>
      </div>
    </>
  );
}

interface LogEntry {
  uuid: string;
  created_at: string;
  node_uuid: string;
  node_name: string | null;
  node_deleted: boolean;
  event_type: string;
  severity: string;
  event: string;
  user: string | null;
}

const version0 = new Store(0);

export function EventsPage() {
  const f = useStore(fleet);
  useStore(f ? f.version : version0);
  const { query } = useStore(place);
  const q = new URLSearchParams({ limit: '200' });
  for (const k of ['node', 'user', 'text', 'severity', 'since']) {
    const v = query.get(k);
    if (v) q.set(k, v);
  }
  const read = useRead<{ log: LogEntry[] }>('/ingot/v1/log?' + q, useSeldom(f?.heard ?? 0, 1000));
  const live = [...(f?.events ?? [])].reverse().slice(0, 50);
  return (
    <>
      <h1>Events</h1>
      <div class="columns">
        <Card title="Now" wide>
          {live.length === 0 && <p class="hint">Nothing has happened since this page was opened.</p>}
          <ul class="plain-list" aria-label="Events since the page was opened">
            {live.map((e, i) => (
              <li key={e.id ?? i} class="words">
                <span class="hint num">{moment(e.time)}</span> {told(e)}
              </li>
            ))}
          </ul>
        </Card>
        <Card title="Log" wide>
          <form class="tools" onSubmit={(e) => e.preventDefault()}>
            {(
              [
                ['node', 'Machine'],
                ['user', 'User'],
                ['text', 'Text'],
              ] as const
            ).map(([k, title]) => (
              <input
                key={k}
                class="short"
                aria-label={title}
                placeholder={title}
                value={query.get(k) ?? ''}
                onChange={(e) => setQuery({ [k]: e.currentTarget.value })}
              />
            ))}
            <select aria-label="Severity" value={query.get('severity') ?? ''} onChange={(e) => setQuery({ severity: e.currentTarget.value })}>
              <option value="">All severities</option>
              <option>INFO</option>
              <option>WARNING</option>
              <option>ERROR</option>
            </select>
            <select aria-label="Since" value={query.get('since') ?? ''} onChange={(e) => setQuery({ since: e.currentTarget.value })}>
              <option value="">At any time</option>
              <option value="1h">In the last hour</option>
              <option value="24h">In the last day</option>
              <option value="168h">In the last week</option>
            </select>
          </form>
          <Loaded of={read}>
            {(v) =>
              v.log.length === 0 ? (
                <Empty title="No line is like that.">
                  <button type="button" onClick={() => setQuery({ node: null, user: null, text: null, severity: null, since: null })}>
                    Show all lines
                  </button>
                </Empty>
              ) : (
                <Table heads={['When', 'Machine', 'Who', 'What']} stack>
                  {v.log.map((l) => (
                    <tr key={l.uuid}>
                      <td data-name="When" class="num">
                        <Time at={l.created_at} />
                      </td>
                      <td data-name="Machine" class="words">
                        {l.node_deleted ? (l.node_name ?? l.node_uuid) : <a href={'/ui/nodes/' + l.node_uuid}>{l.node_name ?? l.node_uuid}</a>}
                      </td>
                      <td data-name="Who" class="words">
                        {l.user ?? '–'}
                      </td>
                      <td data-name="What" class="words">
                        {l.severity === 'ERROR' && <Sign kind="failed" />}
                        {l.severity === 'WARNING' && <Sign kind="attention" />} {l.event}
                      </td>
                    </tr>
                  ))}
                </Table>
              )
            }
          </Loaded>
        </Card>
      </div>
    </>
  );
}

// told is an event in words.
function told(e: Event): string {
  const what = e.node_name || e.name || e.node_uuid || e.uuid || e.kind || '';
  const changes = Object.entries(e.changed ?? {})
    .filter(([, c]) => c.to !== c.from)
    .map(([k, c]) => `${k.replaceAll('_', ' ')} ${c.from === null ? '' : `from ${String(c.from)} `}to ${c.to === null ? 'none' : String(c.to)}`)
    .join(', ');
  const by = e.user ? `, by ${e.user}` : '';
  return `${what}: ${changes || e.type.replace('baremetal.', '').replaceAll('.', ' ').replaceAll('_', ' ')}${by}${e.error ? `: ${e.error}` : ''}`;
}

// StartPage leads from nothing to the first deployed machine; what is done is ticked.
export function StartPage() {
  const f = useStore(fleet);
  useStore(f ? f.version : version0);
  const rows = [...(f?.rows.values() ?? [])];
  const some = (...states: string[]) => rows.some((n) => states.includes(n.provision_state));
  const past = ['available', 'deploying', 'wait call-back', 'deploy failed', 'active', 'cleaning', 'clean wait'];
  const steps: { title: string; done: boolean; text: string; commands: string[] }[] = [
    {
      title: 'Enrol a machine',
      done: rows.length > 0,
      text: "The address of its controller and the controller's account are enough; an inspection finds the rest.",
      commands: [
        'ingot node create first --driver redfish --bmc 192.0.2.10 --bmc-user admin --bmc-password-file FILE',
        'openstack baremetal node create --driver redfish --name first --driver-info redfish_address=https://192.0.2.10 --driver-info redfish_username=admin --driver-info redfish_password=SECRET',
      ],
    },
    {
      title: 'Check its controller',
      done: rows.some((n) => n.provision_state !== 'enroll' && n.provision_state !== 'verifying'),
      text: 'The conductor logs in to the controller and reads the power state.',
      commands: ['ingot node manage first', 'openstack baremetal node manage first'],
    },
    {
      title: 'Look at its hardware',
      done: some(...past) || rows.some((n) => !!n.health) || some('inspect wait', 'inspecting'),
      text: 'It is started from the network, and the agent lists disks, network cards and memory.',
      commands: ['ingot node inspect first', 'openstack baremetal node inspect first'],
    },
    {
      title: 'Make it available',
      done: some(...past),
      text: 'It is cleaned, which can erase its disks.',
      commands: ['ingot node provide first', 'openstack baremetal node provide first'],
    },
    {
      title: 'Deploy an image',
      done: some('active'),
      text: "Choose Deploy on the machine's page, or:",
      commands: ['ingot node deploy first --image URL --checksum sha256:HEX --ssh-key ~/.ssh/id_ed25519.pub'],
    },
  ];
  const next = steps.findIndex((s) => !s.done);
  return (
    <>
      <h1>First steps</h1>
      <p class="hint">
        {next < 0
          ? 'A machine is deployed: nothing here is left to do.'
          : `From nothing to the first deployed machine: ${plural(steps.length - next, 'step')} left.`}
      </p>
      <ol class="start">
        {steps.map((s, i) => (
          <li key={s.title} class={i === next ? 'next' : ''}>
            <h2>
              <Sign kind={s.done ? 'active' : i === next ? 'working' : 'available'} /> {s.title}
              <span class="hidden">{s.done ? ' (done)' : ''}</span>
            </h2>
            {!s.done && (
              <>
                <p>{s.text}</p>
                {s.commands.map((c) => (
                  <Command key={c} text={c} />
                ))}
              </>
            )}
          </li>
        ))}
      </ol>
    </>
  );
}
